"""Steps per epoch, from the manifest."""

from __future__ import annotations

import operator
import os
from typing import Any, Literal, get_args

from shardmill.loaders.selection import select
from shardmill.schemas.arguments import check_arguments, invalid_number, unknown_value
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.read_manifest import load_manifest, open_manifest
from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.storage import join

Remainder = Literal["keep", "drop", "pad"]


@check_arguments()
def steps_per_epoch(
    manifest: Manifest | str | os.PathLike[str],
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
            storage.
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
    if not isinstance(manifest, Manifest):
        manifest = load_manifest(manifest)
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


def batches(examples: int, batch_size: int, remainder: Remainder | None, hosts: int) -> int:
    """Returns the number of batches that each of some hosts gets of their equal shares.

    Raises:
        UsageError: A value is invalid.
    """
    batch_size, hosts = to_int("batch_size", batch_size, 1), to_int("hosts", hosts, 1)
    if batch_size % hosts:
        above = -(-batch_size // hosts) * hosts
        raise UsageError(
            f"a batch of {batch_size} cannot be divided among {plural(hosts, 'host')}: use a "
            f"multiple of {hosts}, such as {above}."
        )
    check_word("remainder", remainder, Remainder)
    full, rest = divmod(examples, batch_size)
    drops = remainder == "drop" or (remainder != "pad" and hosts > 1)
    return full + (rest > 0 and not drops)


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


def check_word(name: str, value: object, words: Any) -> None:
    """Checks that an argument is None or one of the words of a ``Literal``."""
    *others, last = get_args(words)
    if value not in (None, *others, last):
        choices = f"{', '.join(others)} or {last}"
        raise unknown_value(name=name, value=value, choices=choices)


def to_int(name: str, value: Any, least: int = 0) -> int:
    """Returns the value of an argument as int; NumPy integers count.

    Raises:
        UsageError: It is not an integer of 64 bits, or it is less than ``least``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number < 1 << 63:
        raise invalid_number(name=name, value=value, least=least)
    return number
