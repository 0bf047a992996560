"""Verify datasets and describe records."""
