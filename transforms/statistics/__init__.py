"""Sums for the statistics in the manifest."""
