"""Compare the records of two versions by key: of images from catalogs, of rows by reading them.

Each column of both versions becomes integers that are equal where the values are, so that a million
records take a second and few of them are Python objects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from shardmill.loaders.selection import Selection, ShardSlice
from shardmill.loaders.shards import Caches, ShardFiles
from shardmill.loaders.source import open_catalog, open_without_shards
from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.example.parse import parse_example

_THREADS = 8  # that read catalogs
_IMAGE_COLUMNS = {
    "key": "key", "image": "image_hash", "input": "content_hash", "label": "label",
    "annotation": "annotation_hash",
}  # fmt: skip
_ROW_COLUMNS = ("key", "content", "label")


@dataclass(frozen=True)
class Side:
    """One of the two versions.

    Attributes:
        path: Its folder or manifest, as it was given.
        folder: Folder of the shards.
        manifest: The manifest.
        shards: Split and shard of all records that are compared.
    """

    path: str
    folder: str
    manifest: Manifest
    shards: tuple[tuple[str, Shard], ...]

    @cached_property
    def key(self) -> str:
        """Where keys are: ``catalog``, or the name of a feature of rows; empty for nowhere."""
        if all(shard.catalog for _, shard in self.shards):
            return "catalog"
        name = str(self.manifest.build.config.get("key") or "")
        return name if any(each["name"] == name for each in self.manifest.features) else ""

    @property
    def num_records(self) -> int:
        """Number of records in the shards."""
        return sum(shard.records for _, shard in self.shards)


def compare_records(before: Side, after: Side, most: int) -> dict[str, Any]:
    """Return the numbers of records that were added, removed and changed, with examples.

    Args:
        before: The shards of one version that the other one lacks.
        after: Those of the other one.
        most: Number of examples of each kind of change.

    Raises:
        InputError: A catalog or a shard cannot be read.
    """
    import numpy as np

    sides, images = (before, after), before.key == after.key == "catalog"
    names = _IMAGE_COLUMNS if images else _ROW_COLUMNS
    tables = [_read_catalogs(side) if images else _read_rows(side) for side in sides]
    lengths = [[len(chunk) for chunk in table[0]] for table in tables]
    codes: dict[str, tuple[Any, Any]] = {}
    texts: dict[str, Any] = {}
    for number, name in enumerate(names):
        codes[name], values = _encode(tables[0][number], tables[1][number])
        for table in tables:
            table[number] = []
        if name in ("key", "label"):
            texts[name] = values
    splits = sorted({name for side in sides for name, _ in side.shards})
    first, second = (
        np.repeat(np.array([splits.index(name) for name, _ in side.shards], int), length)
        for side, length in zip(sides, lengths, strict=True)
    )
    codes["split"] = first, second
    return _describe(sides, lengths, codes, texts, most)


def _describe(
    sides: Sequence[Side], lengths: Sequence[Sequence[int]], codes: Mapping[str, tuple[Any, Any]],
    texts: Mapping[str, Any], most: int,
) -> dict[str, Any]:  # fmt: skip
    """Return the numbers and examples; values that are pairs have the version before first."""
    import numpy as np

    def place(side: int, row: Any) -> dict[str, Any]:
        ends = [0, *accumulate(lengths[side])]
        number = bisect_right(ends, row) - 1
        split, shard = sides[side].shards[number]
        found = {k: values[int(codes[k][side][row])].as_py() for k, values in texts.items()}
        return {**found, "split": split, "shard": shard.file, "record": int(row) - ends[number]}

    (keys, first), (new_keys, new_first) = (np.unique(k, return_index=True) for k in codes["key"])
    _, one, two = np.intersect1d(keys, new_keys, assume_unique=True, return_indices=True)
    left, right = first[one], new_first[two]
    removed, added = np.delete(first, one), np.delete(new_first, two)
    kinds = [name for name in codes if name != "key"]
    differ = {kind: codes[kind][0][left] != codes[kind][1][right] for kind in kinds}
    changed = np.flatnonzero(np.any([*differ.values()], axis=0))
    # Not by images, which other options change.
    content, new_content = codes["input" if "input" in kinds else "content"]
    gone, come = content[removed], new_content[added]
    _, old, new = np.intersect1d(gone, come, return_indices=True)
    renamed = [*zip(removed[old], added[new], strict=True)]
    return {
        "added": len(added), "removed": len(removed), "renamed": len(old),
        "changed": {"all": len(changed), **{k: int(v.sum()) for k, v in differ.items()}},
        "same": len(left) - len(changed),
        "repeated_keys": sum(map(len, codes["key"])) - len(keys) - len(new_keys),
        "examples": {
            "added": [place(1, row) for row in added[:most]],
            "removed": [place(0, row) for row in removed[:most]],
            "renamed": [{"before": place(0, a), "after": place(1, b)} for a, b in renamed[:most]],
            "changed": [
                {"what": [kind for kind in kinds if differ[kind][n]],
                 "before": place(0, left[n]), "after": place(1, right[n])}
                for n in changed[:most]
            ],
        },
    }  # fmt: skip


def _read_catalogs(side: Side) -> list[list[Any]]:
    """Return the chunks of each column: one for each shard."""
    names = [*_IMAGE_COLUMNS.values()]
    with ThreadPoolExecutor(_THREADS) as pool:
        read = lambda item: open_catalog(side.folder, item[1], names)  # noqa: E731
        tables = [*pool.map(read, side.shards)]
    return [[table.column(name).combine_chunks() for table in tables] for name in names]


def _read_rows(side: Side) -> list[list[Any]]:
    """Return the same of rows with keys."""
    import pyarrow as pa

    columns: list[list[Any]] = [[] for _ in _ROW_COLUMNS]
    for rows in _rows_of(side):
        for number, column in enumerate(columns):
            column.append(pa.array([row[number] for row in rows], pa.string()))
    return columns


def _rows_of(side: Side) -> Iterator[list[tuple[str, str, str | None]]]:
    """Yield key, digest of the values and label of the records of each shard."""
    parts = tuple(ShardSlice(shard, 0, shard.records) for _, shard in side.shards)
    source = replace(open_without_shards(side.folder), selection=Selection("", parts))
    labels, files = sorted(source.label_features), ShardFiles(source, Caches(None))
    for number, part in enumerate(parts):
        rows = []
        for _, payload in files.records(number, 0, part.records):
            features = parse_example(payload)
            label = source.label_of(features)
            found = [each for each in (features.pop(name, None) for name in labels) if each]
            if label is None:  # a real number, which the manifest does not count
                label = next((str(value) for each in found for value in each.values), None)
            named = features.pop(side.key, None)
            key = named.values[0] if named and named.values else ""
            text = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)
            rows.append((text, blake2b(repr(sorted(features.items())).encode()).hexdigest(), label))
        yield rows
    files.close()


def _encode(before: Sequence[Any], after: Sequence[Any]) -> tuple[tuple[Any, Any], Any]:
    """Return integers for the values of both versions, equal where these are, and the values."""
    import numpy as np
    import pyarrow as pa

    text = pa.large_string()  # a column of a large dataset has more than 2 GiB
    chunks = pa.chunked_array([chunk.cast(text) for chunk in (*before, *after)], text)
    encoded = chunks.dictionary_encode(null_encoding="encode").chunks
    numbers = [np.zeros(0, np.int32), *(chunk.indices.to_numpy() for chunk in encoded)]
    border = len(before) + 1
    pair = np.concatenate(numbers[:border]), np.concatenate(numbers[:1] + numbers[border:])
    return pair, encoded[0].dictionary if encoded else None
