"""Finding and reading the manifest of a dataset."""

from __future__ import annotations

import os
from typing import NamedTuple

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.shard_names import MANIFEST, check_not_lost, is_generation
from shardmill.schemas.errors import FormatError, InputError, UsageError
from shardmill.schemas.storage import join, open_storage, scheme_of


class FoundManifest(NamedTuple):
    """A manifest, and where it is.

    Attributes:
        folder: The folder of the dataset; empty if the path is a file of another name, such as the
            manifest of a count.
        file: Path of the manifest.
        base: The folder that file names are relative to.
        manifest: The manifest.
    """

    folder: str
    file: str
    base: str
    manifest: Manifest

    @property
    def path(self) -> str:
        """The folder of the dataset, else the file."""
        return self.folder or self.file


def open_manifest(path: str | os.PathLike[str], *, counts: bool = True) -> FoundManifest:
    """Returns the manifest of a dataset.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.
        counts: Whether the examples of each split must be those of its shards, as wrong ones would
            lead to wrong steps.

    Raises:
        InputError: It does not exist, or this release cannot read it.
    """
    folder, file = _find_manifest(path)
    manifest = _read_manifest(folder, file, counts=counts)
    base = manifest.root or manifest.folder(folder or os.path.dirname(file) or ".")
    return FoundManifest(folder, file, base, manifest)


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Returns the manifest of a dataset; see ``open_manifest``."""
    return open_manifest(path).manifest


def _find_manifest(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Returns the folder of a dataset and the path of its manifest, given either of them."""
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


def _read_manifest(folder: str, file: str, *, counts: bool) -> Manifest:
    storage, data = open_storage(file), b""
    try:
        data = storage.read(file)
        manifest = Manifest.from_json(data)
        for name, split in manifest.splits.items() if counts else ():
            stated, found = split.num_examples, sum(shard.records for shard in split.shards)
            if stated != found:
                raise FormatError("manifest-counts-differ", stated=stated, name=name, found=found)
    except FileNotFoundError as error:
        check_not_lost(file)
        raise InputError("dataset-missing", file=file) from error
    except FormatError as error:
        check_not_lost(file, data)
        fix = "build or copy the dataset again" if folder else f"give a dataset or its {MANIFEST}"
        fix = f"; {fix}" if error.__cause__ else ""
        raise InputError("manifest-unreadable", file=file, error=error, fix=fix) from error
    return manifest
