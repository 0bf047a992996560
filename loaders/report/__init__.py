"""A page about a dataset: HTML without scripts, in one file, which needs no network."""
