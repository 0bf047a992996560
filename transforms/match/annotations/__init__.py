"""Annotations of images in formats of other tools, as values that references carry."""
