"""Steps per epoch, from the manifest alone."""

from __future__ import annotations

from shardmill.schemas.errors import UsageError
from shardmill.schemas.manifest import Manifest


def steps_per_epoch(
    manifest: Manifest,
    split: str,
    batch_size: int,
    *,
    drop_remainder: bool = False,
    replicas: int = 1,
) -> int:
    """Returns how many batches one pass over a split takes.

    Args:
        manifest: The dataset's manifest.
        split: Name of the split.
        batch_size: The global batch: examples over all replicas.
        drop_remainder: Leave out a last batch that is not full.
        replicas: With more than one, shards are dealt out by turns (worker ``i`` reads shards
            ``i``, ``i + replicas``, ...) and the smallest worker's full batches count, so that
            none runs dry.

    Raises:
        UsageError: The split is unknown, or a number breaks its rule.
    """
    if split not in manifest.splits:
        known = ", ".join(manifest.splits) or "none"
        raise UsageError(f"the dataset has no split {split!r}: it has {known}.")
    if batch_size < 1 or replicas < 1 or batch_size % replicas:
        raise UsageError(
            f"a batch of {batch_size} over {replicas} replicas: both must be positive and the "
            "batch divisible by the replicas."
        )
    found = manifest.splits[split]
    if replicas > 1:
        shards = found.shards
        smallest = min(sum(s.records for s in shards[i::replicas]) for i in range(replicas))
        return smallest // (batch_size // replicas)
    if drop_remainder:
        return found.num_examples // batch_size
    return -(-found.num_examples // batch_size)
