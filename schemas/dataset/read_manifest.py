"""Finding and reading the manifest of a dataset and its ``rejects.jsonl``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from shardmill.schemas.arguments import ArgumentError
from shardmill.schemas.dataset.dataset_files import check_dataset_file, read_dataset_file
from shardmill.schemas.dataset.manifest import VERSION, Manifest, Split, missing_dataset
from shardmill.schemas.dataset.shard_names import CURRENT, MANIFEST, check_not_lost, is_generation
from shardmill.schemas.errors import FormatError, InputError, StorageError, UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.option_types import check_windows_path
from shardmill.schemas.storage import join, open_storage, resolve_links, scheme_of


class OpenedManifest(NamedTuple):
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


def open_manifest(path: str | os.PathLike[str], *, counts: bool = True) -> OpenedManifest:
    """Returns the manifest of a dataset.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.
        counts: Whether the examples of each split must equal the sum over its shards, since wrong
            numbers would lead to wrong steps.

    Raises:
        InputError: It does not exist, or this release cannot read it.
    """
    text = _check_path(path)
    folder, file, data = text, join(text, MANIFEST), _read_below(text)
    if data is None:
        folder, file = _find_manifest(text)
    manifest = _read_manifest(folder, file, data, counts=counts)
    if manifest.root and folder and text != file:
        root = manifest.root
        # A reader that was given the folder would read another one.
        if resolve_links(folder).rstrip("/") != resolve_links(root).rstrip("/"):
            raise InputError(
                f"{join(folder, MANIFEST)} is a count of {root}, another folder: give that folder, "
                "or the path of the manifest itself if you trust it."
            )
    base = manifest.root or manifest.folder(folder or os.path.dirname(file) or ".")
    return OpenedManifest(folder, file, base, manifest)


def load_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Returns the manifest of a dataset; see ``open_manifest``."""
    return open_manifest(path).manifest


def _check_path(path: str | os.PathLike[str]) -> str:
    """Returns the path of a dataset or manifest as a text.

    Raises:
        UsageError: It is not one.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise ArgumentError(
            f"{path!r:.60} ({type(path).__name__}) is not a path: give the folder of a dataset."
        )
    text = os.fsdecode(path)
    if not text:
        raise UsageError("the path of the manifest is empty: give a dataset or its manifest.json.")
    check_windows_path(text)
    scheme, slash, _ = text.partition(":/")
    # pathlib turns gs://bucket into gs:/bucket.
    if slash and scheme in ("gs", "s3") and not scheme_of(text):
        raise UsageError(
            f"{text} is not a URI: give {scheme}://... as a str; pathlib removes a slash."
        )
    return text


def _read_below(folder: str) -> bytes | None:
    """Returns the manifest of a folder of an object store; None if there is none, or elsewhere.

    Objects are not in folders: to look whether there is one takes two more requests.
    """
    if scheme_of(folder) and not folder.endswith(MANIFEST):
        with contextlib.suppress(FileNotFoundError):
            return read_dataset_file(join(folder, MANIFEST))
    return None


def _find_manifest(text: str) -> tuple[str, str]:
    """Returns the folder of a dataset and the path of its manifest, given either of them."""
    entry = open_storage(text).stat(text)
    if entry is not None and entry.kind == "dir" and os.path.islink(text):
        target = os.path.realpath(text)  # a publication changes the link to the current generation
        text = target if is_generation(os.path.basename(target)) else text
    if entry is not None and entry.kind == "dir":
        return text, join(text, MANIFEST)
    above, name = os.path.split(text)
    if name == MANIFEST:
        return above or ".", text
    return "", text


def _read_manifest(folder: str, file: str, data: bytes | None, *, counts: bool) -> Manifest:
    try:
        if data is None:
            data = read_dataset_file(file)
        manifest = Manifest.from_json(data)
        for name, split in manifest.splits.items():
            stated, counted = split.num_examples, sum(shard.records for shard in split.shards)
            if counts and stated != counted:
                raise FormatError(
                    f"it states {plural(stated, 'example')} for the split {name!r}, but its shards "
                    f"have {counted}"
                )
    except FileNotFoundError as error:
        check_not_lost(file)
        raise missing_dataset(file) from error
    except FormatError as error:
        check_not_lost(file, data or b"")
        dataset = _dataset_of(file)
        if dataset:
            raise InputError(
                f"{file} is a file of the dataset {dataset}, which its manifest describes: give "
                f"{dataset}, and a split."
            ) from error
        if folder:
            fix = "build or copy the dataset again"
        else:
            fix = f"give a dataset or its {MANIFEST}"
            if isinstance(error.__cause__, UnicodeError):
                fix += ", or use `shardmill count` for TFRecord files"
        fix = f"; {fix}" if error.__cause__ else ""
        raise InputError(f"{file} cannot be read: {error}{fix}.") from error
    return manifest


def _dataset_of(file: str) -> str:
    """Returns the folder of the dataset that a shard or side file belongs to, or an empty text."""
    path = file
    while "/" in path:
        path, _, name = path.rpartition("/")
        if name == CURRENT or is_generation(name):
            return path or "."
    return ""


def describe_manifest(manifest: Manifest) -> dict[str, Any]:
    """Returns the content of a manifest; reads no file."""
    total = sum(split.num_examples for split in manifest.splits.values())
    splits = {name: _describe_split(split, total) for name, split in manifest.splits.items()}
    held = {"held": True} if manifest.held else {}
    return {
        "version": VERSION,
        "generation": manifest.generation or None,
        "previous": list(manifest.previous),
        **held,
        "root": manifest.root or None,
        "finished": manifest.build.finished,
        "runner": manifest.build.runner,
        "compression": manifest.compression,
        "num_examples": total,
        "num_bytes": sum(split.num_bytes for split in manifest.splits.values()),
        "num_shards": len(manifest.shards),
        "splits": splits,
        "labels": list(_labels(manifest)),
        "features": [dict(feature) for feature in manifest.features],
        "inputs": asdict(manifest.inputs),
        "warnings": [str(warning) for warning in manifest.warnings],
        "damaged": [asdict(damaged) for damaged in manifest.damaged],
    }


def _describe_split(split: Split, total: int) -> dict[str, Any]:
    share = split.num_examples / total if total else 0.0
    return {
        "num_examples": split.num_examples,
        "num_bytes": split.num_bytes,
        "share": share,
        "statistics": split.statistics and split.statistics.to_json(),
        "shards": [shard.to_json() for shard in split.shards],
    }


def default_split(manifest: Manifest) -> str:
    """Returns train, or the first split with examples, or an empty text."""
    full = [name for name, split in manifest.splits.items() if split.num_examples]
    if "train" in full:
        return "train"
    if full:
        return full[0]
    return ""


def _labels(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yields all labels by class id, then labels that have counts only."""
    counts = {name: split.label_counts for name, split in manifest.splits.items()}
    ids: dict[str, int | None] = {label: number for number, label in enumerate(manifest.labels)}
    for split in counts.values():
        for label in split:
            ids.setdefault(label, None)
    for label, number in ids.items():
        by_split = {name: split.get(label, 0) for name, split in counts.items()}
        total = sum(by_split.values())
        yield {"class_id": number, "label": str(label), "total": total, "splits": by_split}


def read_rejects(path: str) -> Iterator[dict[str, str]]:
    """Yields the rejects of a file, with a text for each field; nothing if it cannot be read."""
    rest = b""
    try:
        check_dataset_file(path)
        with open_storage(path).open_read(path) as chunks:
            for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                yield from map(_reject, lines)
    except (FileNotFoundError, FormatError, StorageError):
        return  # the rest of the dataset can still be shown


def _reject(line: bytes) -> dict[str, str]:
    try:
        body = json.loads(line)
        names = ["key", "stage", "error", "message"]
        if "column" in body:
            names.insert(3, "column")
        return {name: str(body[name]) for name in names}
    except (ValueError, TypeError, KeyError):
        return {"key": "?", "stage": "?", "error": "?", "message": "this line is damaged"}
