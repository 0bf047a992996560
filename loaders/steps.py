"""Steps per epoch, from the manifest; loading a manifest and selecting splits."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass
from typing import SupportsIndex

from shardmill.schemas.dataset.generations import check_not_lost
from shardmill.schemas.dataset.manifest import Manifest, Shard, Split
from shardmill.schemas.dataset.shard_names import JOURNAL, MANIFEST
from shardmill.schemas.errors import FormatError, InputError, UsageError
from shardmill.schemas.storage import join, open_storage, scheme_of


@dataclass(frozen=True)
class Selection:
    """The splits that are read in an epoch, one after the other.

    Attributes:
        split: The requested split, or several such as ``train+validation``.
        num_examples: Number of examples in all of them.
        shards: Their shards, in the requested order of splits.
    """

    split: str
    num_examples: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Share:
    """One of several equal shares of the work.

    Attributes:
        index: Number of the share, from 0.
        count: Number of shares.
    """

    index: int
    count: int


def steps_per_epoch(
    manifest: Manifest | str | os.PathLike[str],
    split: str,
    batch_size: int,
    *,
    drop_remainder: bool = False,
    replicas: int = 1,
) -> int:
    """Returns the number of batches in one pass over a split.

    Args:
        manifest: The dataset's manifest, its folder or the path of its manifest.json, on any
            storage.
        split: Name of the split, or several joined as in ``train+validation``.
        batch_size: The global batch size: examples over all replicas.
        drop_remainder: Whether to leave out a last batch that is not full.
        replicas: Number of replicas. With more than one, shards are assigned round-robin (replica
            ``i`` reads shards ``i``, ``i + replicas``, ...), and the replica with the fewest
            examples determines the number of full batches, so that no replica runs out of data.

    Raises:
        UsageError: The split is unknown, or a number is invalid.
        InputError: The manifest does not exist, or this release cannot read it.
    """
    if not isinstance(manifest, Manifest):
        manifest = load_manifest(manifest)
    selection = select(manifest, split)
    return count_steps(selection, batch_size, drop_remainder=drop_remainder, replicas=replicas)


def select(manifest: Manifest, split: str) -> Selection:
    """Returns the splits that an expression such as ``train`` or ``train+validation`` names.

    Raises:
        UsageError: A split is unknown, named twice, empty or a slice.
    """
    names = [name.strip() for name in split.split("+")]
    for name in names:
        if "[" in name or "%" in name:
            raise UsageError(
                f"the split {name!r} is a slice, and only whole splits can be read: build with "
                "other --splits, or use take and skip of tf.data."
            )
        if not name:
            raise UsageError(f"the split {split!r} has an empty name: write it as in train+test.")
        get_split(manifest, name)
        if names.count(name) > 1:
            raise UsageError(f"the split {split!r} names {name!r} twice: name each once.")
    splits = [manifest.splits[name] for name in names]
    shards = tuple(shard for each in splits for shard in each.shards)
    return Selection(split, sum(each.num_examples for each in splits), shards)


def count_steps(
    selection: Selection,
    batch_size: int,
    *,
    drop_remainder: bool = False,
    replicas: int = 1,
    noun: str = "replicas",
) -> int:
    """Returns the number of batches in one pass over a selection; see ``steps_per_epoch``.

    Args:
        selection: The splits.
        batch_size: Examples over all replicas.
        drop_remainder: Whether to leave out a last batch that is not full.
        replicas: Number of replicas.
        noun: The word for replicas in messages.

    Raises:
        UsageError: A number is invalid.
    """
    if not is_positive_int(batch_size) or not is_positive_int(replicas):
        raise UsageError(
            f"a batch of {batch_size!r} over {replicas!r} {noun}: both must be positive integers."
        )
    if batch_size % replicas:
        above = -(-batch_size // replicas) * replicas
        raise UsageError(
            f"a batch of {batch_size} cannot be divided among {replicas} {noun}: "
            f"use a multiple of {replicas}, such as {above}."
        )
    if replicas == 1:
        full, rest = divmod(selection.num_examples, batch_size)
        return full + (rest > 0 and not drop_remainder)
    shards = selection.shards
    if replicas > len(shards):
        number = f"{len(shards)} shard{'' if len(shards) == 1 else 's'}"
        raise UsageError(
            f"{selection.split} has {number}, fewer than {replicas} {noun}: use fewer {noun}, or "
            f"build with --num_shards={replicas} or a multiple of it."
        )
    smallest = min(sum(shard.records for shard in shards[i::replicas]) for i in range(replicas))
    return smallest // (batch_size // replicas)


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
    folder, file = find_manifest(path)
    manifest = read_manifest(folder, file)
    base = files_folder(folder, file, manifest)
    return [join(base, shard.file) for shard in select(manifest, split).shards]


def files_folder(folder: str, file: str, manifest: Manifest) -> str:
    """Returns the folder that the file names of a manifest are relative to.

    Args:
        folder: The folder of the dataset, as ``find_manifest`` returned it.
        file: The path of the manifest.
        manifest: The manifest.
    """
    return manifest.root or manifest.folder(folder or os.path.dirname(file) or ".")


def is_positive_int(value: object) -> bool:
    """Returns whether a value is an integer of 1 or more; NumPy integers count."""
    return isinstance(value, SupportsIndex) and operator.index(value) > 0


def parse_share(name: str, value: tuple[int, int]) -> Share:
    """Returns an argument such as ``host=(0, 2)`` as a share.

    Args:
        name: Name of the argument, for the message.
        value: Index and count.

    Raises:
        UsageError: It is not a pair of integers with 0 <= index < count.
    """
    try:
        index, count = map(operator.index, value)
    except (TypeError, ValueError):
        index = count = 0
    if not 0 <= index < count:
        raise UsageError(
            f"{name}={value!r} must be (index, count) with 0 <= index < count, as in {name}=(0, 2)."
        )
    return Share(index, count)


def get_split(manifest: Manifest | str | os.PathLike[str], name: str) -> tuple[Manifest, Split]:
    """Returns a manifest and one split of it.

    Args:
        manifest: The dataset's manifest, or a path as in ``load_manifest``.
        name: Name of the split.

    Raises:
        InputError: The manifest does not exist, or this release cannot read it.
        UsageError: The split is unknown.
    """
    if not isinstance(manifest, Manifest):
        manifest = load_manifest(manifest)
    if name not in manifest.splits:
        known = ", ".join(manifest.splits) or "none"
        raise UsageError(f"the dataset has no split {name!r}: it has {known}.")
    return manifest, manifest.splits[name]


def find_manifest(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Returns the folder of a dataset and the path of its manifest, given either of them.

    The folder is empty if the path is a file of another name, such as the manifest of a count.
    """
    text = os.fspath(path)
    if not text:
        raise UsageError(f"the path of the manifest is empty: give a dataset or its {MANIFEST}.")
    scheme, slash, _ = text.partition(":/")
    # pathlib turns gs://bucket into gs:/bucket.
    if slash and scheme in ("gs", "s3") and not scheme_of(text):
        raise UsageError(
            f"{text} is not a URI: give {scheme}://... as a str; pathlib removes a slash."
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
        InputError: It does not exist, or this release cannot read it.
    """
    return read_manifest(*find_manifest(path))


def read_manifest(folder: str, file: str) -> Manifest:
    """Returns the manifest that ``find_manifest`` found; see ``load_manifest``."""
    storage, data = open_storage(file), b""
    try:
        data = storage.read(file)
        manifest = Manifest.from_json(data)
        _check_counts(manifest)
    except FileNotFoundError as error:
        check_not_lost(file)
        if folder and storage.stat(join(folder, JOURNAL)) is not None:
            raise InputError(
                f"{file} does not exist, a publication of release 0.1.0 is unfinished: complete it "
                f"by `shardmill clean {folder}`, or build the dataset again."
            ) from error
        raise InputError(f"{file} does not exist: give a dataset or its {MANIFEST}.") from error
    except FormatError as error:
        check_not_lost(file, data)
        raise InputError(f"{file} cannot be read: {error}.") from error
    except (RecursionError, ValueError) as error:
        raise InputError(f"{file} cannot be read: it is not a Shardmill manifest.") from error
    return manifest


def _check_counts(manifest: Manifest) -> None:
    """Checks the numbers of examples, which would otherwise lead to wrong steps.

    Raises:
        FormatError: A number is invalid, or a split and its shards disagree.
    """
    for name, split in manifest.splits.items():
        counts = [split.num_examples, *(shard.records for shard in split.shards)]
        if any(type(count) is not int or count < 0 for count in counts):
            raise FormatError(f"a count of the split {name!r} is not a number of examples")
        if counts[0] != sum(counts[1:]):
            raise FormatError(
                f"it states {counts[0]} examples for the split {name!r}, but its shards have "
                f"{sum(counts[1:])}"
            )
