"""Compare two versions of a dataset: their manifests, and their records by key.

Images are compared by their catalogs; rows are read. Only records of shards that differ are
compared: a million take three seconds and 550 MB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

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
# What may differ, and the attribute of a record that has it.
_IMAGE_KINDS = {
    "image": "image",
    "input": "content",
    "label": "label",
    "values": "values",
    "split": "split",
}
_ROW_KINDS = {name: name for name in ("content", "label", "split")}


class _Record(NamedTuple):
    """A record: its key, label and place, and digests of what is compared.

    Attributes:
        content: Digest of the input file, or of the values of a row.
        image: Digest of the image in the record.
        values: Digest of boxes, mask and columns of a listing.
    """

    key: str
    label: str | None
    split: str
    shard: str
    record: int
    content: str
    image: str | None = None
    values: str | None = None

    @property
    def place(self) -> dict[str, Any]:
        """Key, label and place, as ``--json`` has them."""
        return {name: getattr(self, name) for name in self._fields[:5]}


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
        if any(feature["name"] == name for feature in self.manifest.features):
            return name
        return ""

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
    images = before.key == after.key == "catalog"
    read, kinds = (_read_catalogs, _IMAGE_KINDS) if images else (_read_rows, _ROW_KINDS)
    old, new = (_first_records(read(side), "key") for side in (before, after))
    removed = [record for key, record in old.items() if key not in new]
    added = [record for key, record in new.items() if key not in old]
    # Not by images, which other options change.
    gone, come = (_first_records(records, "content") for records in (removed, added))
    renamed = [(record, come[content]) for content, record in gone.items() if content in come]
    changed = dict.fromkeys(["all", *kinds], 0)
    examples: list[dict[str, Any]] = []
    for key, record in old.items():
        other = new.get(key, record)
        differing = [
            kind for kind, name in kinds.items() if getattr(record, name) != getattr(other, name)
        ]
        if differing:
            for kind in ("all", *differing):
                changed[kind] += 1
        if differing and len(examples) < most:
            examples.append({"what": differing, **_pair(record, other)})
    return {
        "added": len(added),
        "removed": len(removed),
        "renamed": len(renamed),
        "changed": changed,
        "same": len(old) - len(removed) - changed["all"],
        "repeated_keys": before.num_records + after.num_records - len(old) - len(new),
        "examples": {
            "added": [record.place for record in added[:most]],
            "removed": [record.place for record in removed[:most]],
            "renamed": [_pair(*records) for records in renamed[:most]],
            "changed": examples,
        },
    }


def _first_records(records: Iterable[_Record], name: str) -> dict[str, _Record]:
    """Return the first record of each value of an attribute."""
    first: dict[str, _Record] = {}
    for record in records:
        first.setdefault(getattr(record, name), record)
    return first


def _pair(before: _Record, after: _Record) -> dict[str, Any]:
    return {"before": before.place, "after": after.place}


def _read_catalogs(side: Side) -> Iterator[_Record]:
    """Yield the records of images."""
    names = ["key", "label", "content_hash", "image_hash", "values_digest"]
    with ThreadPoolExecutor(_THREADS) as pool:
        tables = pool.map(lambda item: open_catalog(side.folder, item[1], names), side.shards)
        for (split, shard), table in zip(side.shards, tables, strict=True):
            rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
            for number, (key, label, *hashes) in enumerate(rows):
                yield _Record(key, label, split, shard.file, number, *hashes)


def _read_rows(side: Side) -> Iterator[_Record]:
    """Yield the records of rows with keys."""
    parts = tuple(ShardSlice(shard, 0, shard.records) for _, shard in side.shards)
    source = replace(open_without_shards(side.folder), selection=Selection("", parts))
    labels, files = sorted(source.label_features), ShardFiles(source, Caches(None))
    for number, (split, shard) in enumerate(side.shards):
        for record, payload in files.records(number, 0, shard.records):
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
            digest = blake2b(repr(sorted(features.items())).encode()).hexdigest()
            yield _Record(text, label, split, shard.file, record, digest)
    files.close()


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
    if "\n" in text:
        return f"({len(text.splitlines()):,} lines)"
    return text


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
    if read:
        return "only one version has a catalog"
    return "records of rows are not read"


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
