"""Verify datasets."""
