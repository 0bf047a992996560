"""Decode, convert, resize and encode images."""
