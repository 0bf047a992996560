"""Compare two versions of a dataset: their manifests, and their records by key.

Images are compared by their catalogs; rows are read. Each column of both versions becomes integers
that are equal where the values are, so that a million records take a second and few of them are
Python objects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from shardmill.loaders.selection import Selection, ShardSlice
from shardmill.loaders.shards import Caches, ShardFiles
from shardmill.loaders.source import open_catalog, open_without_shards
from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.dataset.read_manifest import open_manifest
from shardmill.schemas.errors import InputError, ShardmillError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.numbers import short_number
from shardmill.schemas.storage import join

_MAX_LINES = 12  # of the summary of an update
_MAX_RECORDS = 4_000_000  # that it compares, of both versions: about 2 GB of memory
_TOO_MANY = f"over {_MAX_RECORDS:,} are in shards that changed: see shardmill diff"
_NOTHING = (None, "")  # an option that is not given, or that the other kind of input has
_THREADS = 8  # that read catalogs
_IMAGE_COLUMNS = {
    "key": "key",
    "image": "image_hash",
    "input": "content_hash",
    "label": "label",
    "values": "values_digest",
}
_ROW_COLUMNS = ("key", "content", "label")


@dataclass(frozen=True)
class Side:
    """One of the two versions.

    Attributes:
        path: Its folder or manifest, as the user named it.
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
        """Where keys are: ``catalog``, or the name of a feature of rows; empty without keys."""
        if all(shard.catalog for _, shard in self.shards):
            return "catalog"
        name = str(self.manifest.build.config.get("key") or "")
        return name if any(feature["name"] == name for feature in self.manifest.features) else ""

    @property
    def num_records(self) -> int:
        """Number of records in the shards."""
        return sum(shard.records for _, shard in self.shards)


def compare_records(before: Side, after: Side, most: int) -> dict[str, Any]:
    """Return the numbers of records that were added, removed and changed, with examples.

    Args:
        before: The shards of one version that the other one lacks.
        after: The shards of the other version that the first one lacks.
        most: Number of examples of each kind of change.

    Raises:
        InputError: A catalog or a shard cannot be read.
    """
    import numpy as np

    sides, images = (before, after), before.key == after.key == "catalog"
    names = _IMAGE_COLUMNS if images else _ROW_COLUMNS
    tables = [*map(_read_catalogs if images else _read_rows, sides)]
    lengths = [[*map(len, table[0])] for table in tables]
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
    sides: Sequence[Side],
    lengths: Sequence[Sequence[int]],
    codes: Mapping[str, tuple[Any, Any]],
    texts: Mapping[str, Any],
    most: int,
) -> dict[str, Any]:
    """Return the numbers and examples; values that are pairs have the version before first."""
    import numpy as np

    def place(side: int, row: Any) -> dict[str, Any]:
        ends = [0, *accumulate(lengths[side])]
        number = bisect_right(ends, row) - 1
        split, shard = sides[side].shards[number]
        row_texts = {k: values[int(codes[k][side][row])].as_py() for k, values in texts.items()}
        return {**row_texts, "split": split, "shard": shard.file, "record": int(row) - ends[number]}

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
        "added": len(added),
        "removed": len(removed),
        "renamed": len(old),
        "changed": {"all": len(changed), **{k: int(v.sum()) for k, v in differ.items()}},
        "same": len(left) - len(changed),
        "repeated_keys": sum(map(len, codes["key"])) - len(keys) - len(new_keys),
        "examples": {
            "added": [place(1, row) for row in added[:most]],
            "removed": [place(0, row) for row in removed[:most]],
            "renamed": [{"before": place(0, a), "after": place(1, b)} for a, b in renamed[:most]],
            "changed": [
                {
                    "what": [kind for kind in kinds if differ[kind][n]],
                    "before": place(0, left[n]),
                    "after": place(1, right[n]),
                }
                for n in changed[:most]
            ],
        },
    }


def _read_catalogs(side: Side) -> list[list[Any]]:
    """Return the chunks of each column: one for each shard."""
    names = [*_IMAGE_COLUMNS.values()]
    with ThreadPoolExecutor(_THREADS) as pool:
        read = lambda item: open_catalog(side.folder, item[1], names)  # noqa: E731
        tables = [*pool.map(read, side.shards)]
    return [[table.column(name).combine_chunks() for table in tables] for name in names]


def _read_rows(side: Side) -> list[list[Any]]:
    """Return the same for rows with keys."""
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
            label_values: list[Any] = []
            for name in labels:
                if name in features:
                    label_values += features.pop(name).values
            if label is None and label_values:  # a real number, which the manifest does not count
                label = str(label_values[0])
            named = features.pop(side.key, None)
            key = named.values[0] if named and named.values else ""
            text = key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)
            rows.append((text, blake2b(repr(sorted(features.items())).encode()).hexdigest(), label))
        yield rows
    files.close()


def _encode(before: Sequence[Any], after: Sequence[Any]) -> tuple[tuple[Any, Any], Any]:
    """Return equal integers for equal values of both versions, and the values by integer."""
    import numpy as np
    import pyarrow as pa

    text = pa.large_string()  # a column of a large dataset has more than 2 GiB
    chunks = pa.chunked_array([chunk.cast(text) for chunk in (*before, *after)], text)
    encoded = chunks.dictionary_encode(null_encoding="encode").chunks
    numbers = [np.zeros(0, np.int32), *(chunk.indices.to_numpy() for chunk in encoded)]
    border = len(before) + 1
    pair = np.concatenate(numbers[:border]), np.concatenate(numbers[:1] + numbers[border:])
    return pair, encoded[0].dictionary if encoded else None


def compare_datasets(before: str, after: str, most: int, *, read: bool = True) -> dict[str, Any]:
    """Return how two versions differ; ``commands/diff.py`` documents the keys.

    Args:
        before: A dataset, the folder of a generation, or a manifest, on any storage.
        after: Another one.
        most: Number of examples of each kind of change.
        read: Whether to read the records of rows and arrays that have keys, and of images if they
            are many.

    Raises:
        InputError: A manifest, a catalog or a shard cannot be read.
    """
    sides = [_open(before), _open(after)]
    sections = [_sections(side.manifest) for side in sides]
    body: dict[str, Any] = {
        name: [*_differences(one, sections[1][name])] for name, one in sections[0].items()
    }
    files = [Counter((k, shard.bytes, shard.crc32c) for k, shard in side.shards) for side in sides]
    sizes = {"before": files[0].total(), "after": files[1].total()}
    body["shards"] = {**sizes, "equal": (files[0] & files[1]).total()}
    why = _why_not_compared(sides, read=read)
    records, differs = None, files[0] != files[1]
    if not why:
        first, second = ({_identity(item): item for item in side.shards} for side in sides)
        equal = first.keys() & second.keys()
        same = sum(first[key][1].records for key in equal)
        one = replace(sides[0], shards=tuple(first[key] for key in first if key not in equal))
        two = replace(sides[1], shards=tuple(second[key] for key in second if key not in equal))
        if not read and one.num_records + two.num_records > _MAX_RECORDS:
            why = _TOO_MANY
    if not why:
        records = compare_records(one, two, most)
        records["same"] += same
        differs = records["added"] + records["removed"] + records["changed"]["all"] > 0
    differs = differs or any(body[name] for name in sections[0])
    body |= {"records": records, "not_compared": why or None}
    paths = {"before": sides[0].path, "after": sides[1].path}
    return {"status": "different" if differs else "same", **paths, **body}


def find_version_before(path: str) -> str:
    """Return the folder of the version before a dataset's current one.

    Raises:
        InputError: None is kept, or the path is not the folder of a dataset.
    """
    opened = open_manifest(path)
    if not opened.manifest.previous:
        raise InputError(
            f"{path} keeps no version before its own: give two datasets, as in `shardmill diff OLD "
            f"{path}`."
        )
    return join(opened.folder or path, opened.manifest.previous[0])


def changes_of_update(output: str, manifest: Manifest) -> tuple[str, ...]:
    """Return a line for each kind of change since the version before the one just published.

    Args:
        output: Folder of the dataset.
        manifest: Its manifest.
    """
    if not manifest.previous:
        return ()
    before, after = (join(output, name) for name in (manifest.previous[0], manifest.generation))
    try:
        differences = compare_datasets(before, after, 0, read=False)
    except (ShardmillError, FileNotFoundError) as error:
        return (f"not compared with the version before: {error}",)
    names = ["records", "labels", "codecs"]
    if differences["not_compared"] == _TOO_MANY:
        names.append("not compared")
    lines = [f"{name}: {text}" for name, text in summary_rows(differences) if name in names]
    if len(lines) > _MAX_LINES:
        more = f"and {len(lines) - _MAX_LINES:,} more, see shardmill diff"
        lines = [*lines[:_MAX_LINES], more]
    return tuple(lines)


def summary_rows(differences: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a name and a text for each count and each changed number, option or type."""
    records = differences["records"]
    if records:
        changed = records["changed"]
        kinds = ", ".join(
            f"{count:,} {name}" for name, count in changed.items() if count and name != "all"
        )
        numbers = {name: records[name] for name in ("added", "removed", "renamed")}
        # Catalogs have the images and labels, not which features the records have of them.
        other_features = any(option["path"] == ["features"] for option in differences["options"])
        same = "same but for --features" if other_features and records["same"] else "same"
        numbers[same] = records["same"]
        numbers[f"changed ({kinds})" if kinds else "changed"] = changed["all"]
        if records["repeated_keys"]:
            numbers["with a repeated key, which are not compared"] = records["repeated_keys"]
        yield "records", ", ".join(f"{count:,} {name}" for name, count in numbers.items())
    elif differences["not_compared"]:
        yield "not compared", differences["not_compared"]
    for name in ("splits", "labels", "features", "options", "codecs", "inputs", "statistics"):
        for change in differences[name]:
            values = (_value_text(change[side]) for side in ("before", "after"))
            yield name, f"{' '.join(change['path'])}  {' -> '.join(values)}"


def _value_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    text = "none" if value in _NOTHING else str(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = short_number(value)
    return f"({len(text.splitlines()):,} lines)" if "\n" in text else text


def _open(path: str) -> Side:
    opened = open_manifest(path)
    manifest = opened.manifest
    shards = tuple((k, shard) for k, split in manifest.splits.items() for shard in split.shards)
    return Side(opened.path, opened.base, manifest, shards)


def _why_not_compared(sides: Sequence[Side], *, read: bool) -> str:
    """Return why records are not compared, or an empty text if they are."""
    keys = {side.key for side in sides if side.shards}
    if any(side.manifest.root for side in sides):
        return "the manifest of a count has no keys of records"
    if "" in keys:
        return "records of rows and arrays need a column of --key in both versions"
    if keys == {"catalog"} or (read and "catalog" not in keys):
        return ""
    return "only one version has a catalog" if read else "records of rows are not read"


def _identity(item: tuple[str, Shard]) -> tuple[Any, ...]:
    """Return a key that is equal for shards with equal records and keys."""
    split, shard = item
    catalog = shard.catalog
    own = shard.bytes, shard.crc32c or shard.file, catalog and catalog.crc32c
    return split, shard.records, *own


def _sections(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return the sections of a manifest that are compared, besides records and shards."""
    splits = manifest.splits.items()
    sizes = {k: {"examples": s.num_examples, "bytes": s.num_bytes} for k, s in splits}
    return {
        "splits": sizes,
        "labels": {name: split.label_counts for name, split in splits},
        "statistics": {k: s.statistics.to_json() for k, s in splits if s.statistics},
        "features": {
            feature["name"]: {k: v for k, v in feature.items() if k != "name"}
            for feature in manifest.features
        },
        "options": manifest.build.config,
        "codecs": manifest.build.versions,
        "inputs": {k: v for k, v in asdict(manifest.inputs).items() if k != "root"},
    }


def _differences(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield the path and both values of each leaf that differs; a missing one is None."""
    if not isinstance(before, Mapping) and not isinstance(after, Mapping):
        if before != after and not (before in _NOTHING and after in _NOTHING):
            yield {"path": [*path], "before": before, "after": after}
        return
    one, two = (value if isinstance(value, Mapping) else {} for value in (before, after))
    for name in {**one, **two}:
        yield from _differences(one.get(name), two.get(name), (*path, str(name)))
