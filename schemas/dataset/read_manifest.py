"""Finding and reading the manifest of a dataset."""

from __future__ import annotations

import os

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import MANIFEST, check_not_lost, is_generation
from shardmill.schemas.errors import FormatError, InputError, UsageError
from shardmill.schemas.storage import join, open_storage, scheme_of


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
