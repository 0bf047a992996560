"""Steps per epoch, from the manifest; loading a manifest."""

from __future__ import annotations

import operator
import os
from typing import Literal, SupportsIndex, get_args

from shardmill.loaders.selection import select
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import MANIFEST, check_not_lost, is_generation
from shardmill.schemas.errors import FormatError, InputError, UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.storage import join, open_storage, scheme_of

Remainder = Literal["keep", "drop", "pad"]


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
        remainder: What happens to a last batch that is not full: ``keep``, ``drop`` or ``pad`` it.
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
            "shards-fewer-than-hosts",
            split=selection.split,
            shards=plural(len(parts), "shard"),
            hosts=hosts,
        )
    smallest = min(sum(part.records for part in parts[i::hosts]) for i in range(hosts))
    return smallest // (batch_size // hosts)


def batches(examples: int, batch_size: int, remainder: Remainder | None, hosts: int) -> int:
    """Returns the number of batches that each of some hosts gets of their equal shares.

    Raises:
        UsageError: A value is invalid.
    """
    if not is_positive_int(batch_size) or not is_positive_int(hosts):
        raise UsageError("batch-invalid", batch_size=batch_size, hosts=hosts)
    if batch_size % hosts:
        above = -(-batch_size // hosts) * hosts
        raise UsageError("batch-not-divisible", batch_size=batch_size, hosts=hosts, above=above)
    if remainder not in (None, *get_args(Remainder)):
        raise UsageError("remainder-unknown", remainder=remainder)
    full, rest = divmod(examples, batch_size)
    drops = remainder == "drop" or (remainder != "pad" and hosts > 1)
    return full + (rest > 0 and not drops)


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
    folder, manifest = find_dataset(path)
    return [join(folder, part.shard.file) for part in select(manifest, split).parts]


def find_dataset(path: str | os.PathLike[str]) -> tuple[str, Manifest]:
    """Returns the folder of the shards of a dataset, and its manifest; see ``find_manifest``."""
    folder, file = find_manifest(path)
    manifest = read_manifest(folder, file)
    return files_folder(folder, file, manifest), manifest


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


def find_manifest(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Returns the folder of a dataset and the path of its manifest, given either of them.

    The folder is empty if the path is a file of another name, such as the manifest of a count.
    """
    text = os.fsdecode(path)
    if not text:
        raise UsageError("manifest-path-empty")
    scheme, slash, _ = text.partition(":/")
    # pathlib turns gs://bucket into gs:/bucket.
    if slash and scheme in ("gs", "s3") and not scheme_of(text):
        raise UsageError("manifest-not-uri", text=text, scheme=scheme)
    entry = open_storage(text).stat(text)
    if entry is not None and entry.kind == "dir" and os.path.islink(text):
        found = os.path.realpath(text)  # a publication changes the link to the current generation
        text = found if is_generation(os.path.basename(found)) else text
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
        raise InputError("dataset-missing", file=file) from error
    except FormatError as error:
        check_not_lost(file, data)
        fix = "build or copy the dataset again" if folder else f"give a dataset or its {MANIFEST}"
        fix = f"; {fix}" if error.__cause__ else ""
        raise InputError("manifest-unreadable", file=file, error=error, fix=fix) from error
    except (RecursionError, ValueError) as error:
        raise InputError("manifest-not-json", file=file) from error
    return manifest


def _check_counts(manifest: Manifest) -> None:
    """Checks the numbers of examples, which would otherwise lead to wrong steps.

    Raises:
        FormatError: A number is invalid, or a split and its shards disagree.
    """
    for name, split in manifest.splits.items():
        counts = [split.num_examples, *(shard.records for shard in split.shards)]
        if any(type(count) is not int or count < 0 for count in counts):
            raise FormatError("manifest-count-not-number", name=name)
        if counts[0] != sum(counts[1:]):
            raise FormatError(
                "manifest-counts-differ", stated=counts[0], name=name, found=sum(counts[1:])
            )
