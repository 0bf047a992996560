"""Manifests, examples and numbers as HTML, for the report and for notebooks."""
