"""A published dataset: manifest, shard names, splits and statistics."""
