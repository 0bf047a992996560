"""Comparison of two versions of a dataset."""
