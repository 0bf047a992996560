"""Publish a dataset, and clean up after unfinished builds."""
