"""Steps per epoch, from the manifest alone."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass
from typing import SupportsIndex

from shardmill.schemas.dataset.manifest import Manifest, Shard, Split
from shardmill.schemas.dataset.shard_names import JOURNAL, MANIFEST
from shardmill.schemas.errors import FormatError, InputError, UsageError
from shardmill.schemas.storage import join, open_storage, scheme_of


@dataclass(frozen=True)
class Selection:
    """What is read in an epoch: one split, or several one after the other.

    Attributes:
        split: As it was asked for.
        num_examples: Of all its splits.
        shards: Of all its splits, in the order named.
    """

    split: str
    num_examples: int
    shards: tuple[Shard, ...]


def steps_per_epoch(
    manifest: Manifest | str | os.PathLike[str],
    split: str,
    batch_size: int,
    *,
    drop_remainder: bool = False,
    replicas: int = 1,
) -> int:
    """Returns how many batches one pass over a split takes.

    Args:
        manifest: The dataset's manifest, or where it is: the dataset's folder or its manifest.json,
            on any storage.
        split: Name of the split, or several joined as in ``train+validation``.
        batch_size: The global batch: examples over all replicas.
        drop_remainder: Leave out a last batch that is not full.
        replicas: With more than one, shards are dealt out by turns (worker ``i`` reads shards
            ``i``, ``i + replicas``, ...) and the smallest worker's full batches count, so that
            none runs dry.

    Raises:
        UsageError: The split is unknown or not to be had so, or a number breaks its rule.
        InputError: There is no manifest that this release can read.
    """
    if not isinstance(manifest, Manifest):
        manifest = load_manifest(manifest)
    selection = select(manifest, split)
    return count_steps(selection, batch_size, drop_remainder=drop_remainder, replicas=replicas)


def select(manifest: Manifest, split: str) -> Selection:
    """Returns what a split such as ``train`` or ``train+validation`` means.

    Raises:
        UsageError: A split is unknown, named twice, or more than a name.
    """
    names = [name.strip() for name in split.split("+")]
    for name in names:
        if "[" in name or "%" in name:
            raise UsageError(
                f"the split {name!r} is a slice, and only whole splits are counted: build with "
                "other --splits, or use take and skip of tf.data and count what you take."
            )
        if not name:
            raise UsageError(f"the split {split!r} has an empty name: write it as in train+test.")
        split_of(manifest, name)
        if names.count(name) > 1:
            raise UsageError(f"the split {split!r} names {name!r} twice: name each once.")
    found = [manifest.splits[name] for name in names]
    shards = tuple(shard for one in found for shard in one.shards)
    return Selection(split, sum(one.num_examples for one in found), shards)


def count_steps(
    selection: Selection, batch_size: int, *, drop_remainder: bool = False, replicas: int = 1
) -> int:
    """Returns how many batches one pass over a selection takes; see ``steps_per_epoch``.

    Raises:
        UsageError: A number breaks its rule.
    """
    if not is_count(batch_size) or not is_count(replicas):
        raise UsageError(
            f"a batch of {batch_size!r} over {replicas!r} replicas: both must be positive whole "
            "numbers."
        )
    if batch_size % replicas:
        above = -(-batch_size // replicas) * replicas
        raise UsageError(
            f"a batch of {batch_size} cannot be shared by {replicas} replicas: "
            f"give a multiple of {replicas}, such as {above}."
        )
    if replicas == 1:
        full, rest = divmod(selection.num_examples, batch_size)
        return full + (rest > 0 and not drop_remainder)
    shards = selection.shards
    if replicas > len(shards):
        some = f"{len(shards)} shard{'' if len(shards) == 1 else 's'}"
        raise UsageError(
            f"{selection.split} has {some}, so of {replicas} replicas some would have nothing to "
            f"read: use fewer replicas, or build with --num_shards={replicas} or a multiple of it."
        )
    smallest = min(sum(shard.records for shard in shards[i::replicas]) for i in range(replicas))
    return smallest // (batch_size // replicas)


def is_count(value: object) -> bool:
    """Tells whether a value is a whole number, 1 or more; NumPy's integers are."""
    return isinstance(value, SupportsIndex) and operator.index(value) > 0


def split_of(manifest: Manifest | str | os.PathLike[str], name: str) -> tuple[Manifest, Split]:
    """Returns a manifest and one split of it.

    Args:
        manifest: The dataset's manifest, or where it is.
        name: Name of the split.

    Raises:
        InputError: There is no manifest that this release can read.
        UsageError: The split is unknown.
    """
    if not isinstance(manifest, Manifest):
        manifest = load_manifest(manifest)
    if name not in manifest.splits:
        known = ", ".join(manifest.splits) or "none"
        raise UsageError(f"the dataset has no split {name!r}: it has {known}.")
    return manifest, manifest.splits[name]


def find_manifest(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Returns the folder of a dataset and its manifest's path, given one of them.

    The folder is empty where the path is a file of another name, which may lie anywhere.
    """
    text = os.fspath(path)
    if not text:
        raise UsageError(f"the path of the manifest is empty: give a dataset or its {MANIFEST}.")
    scheme, slash, _ = text.partition(":/")
    # What pathlib makes of a URI.
    if slash and scheme in ("gs", "s3", "hdfs") and not scheme_of(text):
        raise UsageError(
            f"{text} is no URI: give {scheme}://... as text, pathlib takes a slash away."
        )
    entry = open_storage(text).stat(text)
    if entry is not None and entry.kind == "dir":
        return text, join(text, MANIFEST)
    above, name = os.path.split(text)
    return (above or ".") if name == MANIFEST else "", text


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Returns the manifest of a dataset.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.

    Raises:
        InputError: There is none, or none that this release can read.
    """
    return read_manifest(*find_manifest(path))


def read_manifest(folder: str, file: str) -> Manifest:
    """Returns the manifest that ``find_manifest`` found; see ``load_manifest``."""
    storage = open_storage(file)
    try:
        manifest = Manifest.from_json(storage.read(file))
        _check_counts(manifest)
    except FileNotFoundError as error:
        if folder and storage.stat(join(folder, JOURNAL)) is not None:
            raise InputError(
                f"{file} does not exist, a publish is unfinished: complete it by "
                f"`shardmill clean {folder}` and run again."
            ) from error
        raise InputError(f"{file} does not exist: give a dataset or its {MANIFEST}.") from error
    except FormatError as error:
        raise InputError(f"{file} cannot be read: {error}.") from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"{file} cannot be read: this is no Shardmill manifest.") from error
    return manifest


def _check_counts(manifest: Manifest) -> None:
    """Refuses numbers that cannot be: they would become wrong steps, or an error far from here.

    Raises:
        FormatError: A number is none.
    """
    for name, split in manifest.splits.items():
        counts = [split.num_examples, *(shard.records for shard in split.shards)]
        if any(type(count) is not int or count < 0 for count in counts):
            raise FormatError(f"a count of the split {name!r} is no number of examples")
        if counts[0] != sum(counts[1:]):
            raise FormatError(
                f"it says {counts[0]} examples for the split {name!r}, and its shards hold "
                f"{sum(counts[1:])}"
            )
