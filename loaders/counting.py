"""Counts without reading: steps per epoch, and the files of a split."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardmill.loaders.selection import select
from shardmill.loaders.steps import Remainder, batches
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.read_manifest import load_manifest, open_manifest
from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.storage import join

if TYPE_CHECKING:
    from shardmill.loaders.mixes import Dataset


@check_arguments()
def steps_per_epoch(
    manifest: Manifest | Dataset,
    split: str,
    batch_size: int,
    *,
    remainder: Remainder | None = None,
    hosts: int = 1,
    whole_shards: bool = False,
) -> int:
    """Returns the number of batches in one pass over a split.

    Args:
        manifest: The dataset's manifest, its folder or the path of its manifest.json, on any
            storage; or a ``mix``, or its TOML file.
        split: Name of the split, several joined as in ``train+validation``, or a slice such as
            ``train[:10%]``.
        batch_size: The global batch size: examples over all hosts.
        remainder: Whether to ``keep``, ``drop`` or ``pad`` a last batch that is not full.
            None for ``keep``, and for ``drop`` with several hosts, which cannot keep it.
        hosts: Number of hosts that read equal shares, as Shardmill's readers do.
        whole_shards: Whether each host reads whole shards instead, as with files in your own
            pipeline: host ``i`` reads shards ``i``, ``i + hosts``, ... The host with the fewest
            examples then determines the number of batches.

    Raises:
        UsageError: The split is unknown, or a number is invalid.
        InputError: The manifest does not exist, or this release cannot read it.
    """
    if isinstance(manifest, str | os.PathLike) and not os.fsdecode(manifest).endswith(".toml"):
        manifest = load_manifest(manifest)
    if not isinstance(manifest, Manifest):
        if whole_shards:
            raise UsageError("whole_shards=True counts shards of one dataset, not of a mix.")
        return batches(count_mix(manifest, split), batch_size, remainder, hosts)
    selection = select(manifest, split)
    steps = batches(selection.num_examples, batch_size, remainder, hosts)
    if hosts == 1 or not whole_shards:
        return steps
    parts = selection.parts
    if hosts > len(parts):
        raise UsageError(
            f"{selection.split} has {plural(len(parts), 'shard')}, fewer than "
            f"{plural(hosts, 'host')}: use fewer hosts, or build with --num_shards={hosts} or a "
            "multiple of it."
        )
    records = [part.records for part in parts]
    smallest = min(sum(records[host::hosts]) for host in range(hosts))
    return smallest // (batch_size // hosts)


def count_mix(dataset: Dataset, split: str) -> int:
    """Returns the number of examples in an epoch of a mix.

    Args:
        dataset: The mix, or its TOML file.
        split: The split of the datasets that name none.
    """
    from shardmill.loaders.opening import open_any  # imports NumPy

    mix = open_any(dataset, split).mix
    if mix is None:
        return 0
    return len(mix.epochs)


@check_arguments()
def files(path: str | os.PathLike[str], split: str = "train") -> list[str]:
    """Returns the paths of the current shards of a split, for readers such as tf.data.

    The files of a version never change. After the next publication they stay until the one after
    it, unless ``--keep`` says otherwise, so list the files once per epoch.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.
        split: A split, or several as in ``train+validation``.

    Raises:
        InputError: The manifest does not exist, or this release cannot read it.
        UsageError: The split is unknown.
    """
    *_, folder, manifest = open_manifest(path)
    return [join(folder, part.shard.file) for part in select(manifest, split).parts]
