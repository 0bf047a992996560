"""Infer column types, and parse cells into typed values."""
