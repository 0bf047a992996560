"""Encode and hash columns of values; shared by rows and arrays."""
