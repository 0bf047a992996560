"""Metrics, progress, ordered concurrency and process pools."""
