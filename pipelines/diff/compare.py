"""Compare two versions of a dataset: their manifests, and their records by key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from shardmill.pipelines.diff.records import Side, compare_records
from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.dataset.read_manifest import open_manifest
from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.numbers import short_number
from shardmill.schemas.storage import join

_MAX_LINES = 12  # of the summary of an update
_MAX_RECORDS = 4_000_000  # that it compares, of both versions: about 2 GB of memory
_TOO_MANY = f"over {_MAX_RECORDS:,} are in shards that changed: see shardmill diff"
_NOTHING = (None, "")  # an option that is not given, or that the other kind of input has


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
    files = [Counter((k, each.bytes, each.crc32c) for k, each in side.shards) for side in sides]
    sizes = {"before": files[0].total(), "after": files[1].total()}
    body["shards"] = {**sizes, "equal": (files[0] & files[1]).total()}
    why = _why_not_compared(sides, read=read)
    records, differs = None, files[0] != files[1]
    if not why:
        known = [{_identity(item): item for item in side.shards} for side in sides]
        equal = known[0].keys() & known[1].keys()
        one, two = (
            replace(side, shards=tuple(each for key, each in by_id.items() if key not in equal))
            for side, by_id in zip(sides, known, strict=True)
        )
        if not read and one.num_records + two.num_records > _MAX_RECORDS:
            why = _TOO_MANY
    if not why:
        records = compare_records(one, two, most)
        records["same"] += sum(shard.records for _, shard in map(known[0].__getitem__, equal))
        differs = records["added"] + records["removed"] + records["changed"]["all"] > 0
    differs = differs or any(body[name] for name in sections[0])
    body |= {"records": records, "not_compared": why or None}
    paths = {"before": sides[0].path, "after": sides[1].path}
    return {"status": "different" if differs else "same", **paths, **body}


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
        found = compare_datasets(before, after, 0, read=False)
    except (ShardmillError, FileNotFoundError) as error:
        return (f"not compared with the version before: {error}",)
    shown = ("records", "labels", "codecs", *["not compared"][: found["not_compared"] == _TOO_MANY])
    rows = [(k, text) for k, text in summary_rows(found) if k in shown]
    more = [f"and {len(rows) - _MAX_LINES:,} more, see shardmill diff"][: len(rows) > _MAX_LINES]
    return *(f"{name}: {text}" for name, text in rows[:_MAX_LINES]), *more


def summary_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a name and a text for each count and each changed number, option or type."""
    records = found["records"]
    if records:
        changed = records["changed"]
        kinds = ", ".join(
            f"{count:,} {name}" for name, count in changed.items() if count and name != "all"
        )
        numbers = {name: records[name] for name in ("added", "removed", "renamed", "same")}
        numbers[f"changed ({kinds})" if kinds else "changed"] = changed["all"]
        if records["repeated_keys"]:
            numbers["with a repeated key, which are not compared"] = records["repeated_keys"]
        yield "records", ", ".join(f"{count:,} {name}" for name, count in numbers.items())
    elif found["not_compared"]:
        yield "not compared", found["not_compared"]
    for name in ("splits", "labels", "features", "options", "codecs", "inputs", "statistics"):
        for each in found[name]:
            values = (_shown(each[side]) for side in ("before", "after"))
            yield name, f"{' '.join(each['path'])}  {' -> '.join(values)}"


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
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
    """Return what is equal for shards of equal records with equal keys, which a catalog has."""
    split, shard = item
    found = shard.catalog
    own = shard.bytes, shard.crc32c or shard.file, found and found.crc32c
    return split, shard.records, *own


def _sections(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return what two versions are compared in, besides records and shards."""
    splits = manifest.splits.items()
    sizes = {k: {"examples": s.num_examples, "bytes": s.num_bytes} for k, s in splits}
    return {
        "splits": sizes,
        "labels": {name: split.label_counts for name, split in splits},
        "statistics": {k: s.statistics.to_json() for k, s in splits if s.statistics},
        "features": {
            each["name"]: {k: v for k, v in each.items() if k != "name"}
            for each in manifest.features
        },
        "options": manifest.build.config,
        "codecs": manifest.build.versions,
        "inputs": {k: v for k, v in asdict(manifest.inputs).items() if k != "root"},
    }


def _differences(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield the path and both values of each leaf that differs; None where there is none."""
    if not isinstance(before, Mapping) and not isinstance(after, Mapping):
        if before != after and not (before in _NOTHING and after in _NOTHING):
            yield {"path": [*path], "before": before, "after": after}
        return
    one, two = (each if isinstance(each, Mapping) else {} for each in (before, after))
    for name in {**one, **two}:
        yield from _differences(one.get(name), two.get(name), (*path, str(name)))
