"""Build a dataset: place, plan, write parts, assemble shards and finalize."""
