"""Sources of tables: each writes the same rows in its form, and builds a dataset of them.

A table is a list of dicts of Python's values; ``None`` and an empty list mean that a value is missing.
``KINDS`` has the kinds of columns, and ``UNSAID`` what a source cannot say.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

import shardmill
from tests.conftest import build_dataset
from tests.support.readers import current, tf_examples
from tests.support.rows_tools import check_dataset

Rows = Sequence[dict[str, Any]]

# The type in Arrow, the type of the feature, and the type of CSV's cells where text does not say it.
KINDS: dict[str, tuple[pa.DataType, str, str]] = {
    "integer": (pa.int64(), "int64", ""),
    "float": (pa.float64(), "float", ""),
    "text": (pa.string(), "bytes", ""),
    "bytes": (pa.binary(), "bytes", ""),
    "boolean": (pa.bool_(), "int64", ""),
    "integers": (pa.list_(pa.int64()), "int64", "int:|"),
    "floats": (pa.list_(pa.float64()), "float", "float:|"),
    "texts": (pa.list_(pa.string()), "bytes", "text:|"),
}
STRUCT = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])

# Kinds of columns, values and options that a source does not have.
ROWS_OPTIONS = {"select", "drop", "rename", "defaults", "null_values", "limit", "group_by", "types"}
UNSAID: dict[str, set[str]] = {
    "csv": {"bytes", "struct", "empty text", "empty list", "number as text"},
    "jsonl": {"bytes"},
    "parquet": {"another type"},  # a column has one
    "write": {"another type", "files"},  # a record of another type ends the build
    "elements": {"inference", "files", "struct", "missing NaN", *ROWS_OPTIONS},
}
FILES = ("csv", "jsonl", "parquet")


def sources(*promises: str) -> list[str]:
    """Return the sources that can say something."""
    return [name for name, unsaid in UNSAID.items() if not unsaid.intersection(promises)]


def kind_of(rows: Rows, name: str) -> str:
    """Return the kind of a column, by its first value that is not missing."""
    values = [row[name] for row in rows if row.get(name) not in (None, [])]
    value = values[0]
    if isinstance(value, list):
        return kind_of([{name: value[0]}], name) + "s"
    names = {
        dict: "struct",
        bool: "boolean",
        int: "integer",
        float: "float",
        str: "text",
        bytes: "bytes",
    }
    return names[type(value)]


def column_names(rows: Rows) -> list[str]:
    """Return the names of all columns."""
    return list(dict.fromkeys(name for row in rows for name in row))


def write_csv(path: Path, rows: Rows) -> None:
    """Write rows as CSV: no text for a missing value, yes and no, and lists with ``|``."""

    def cell(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, list):
            return "|".join(map(str, value))
        return str(value)

    names = column_names(rows)
    with path.open("w", newline="", encoding="utf-8") as target:
        writer = csv.writer(target)
        writer.writerow(names)
        writer.writerows([cell(row.get(name)) for name in names] for row in rows)


def write_jsonl(path: Path, rows: Rows) -> None:
    """Write rows as JSON Lines: in every second row a missing value is null, else no key."""
    lines = []
    for number, row in enumerate(rows):
        values = {name: value for name, value in row.items() if number % 2 or value is not None}
        lines.append(json.dumps(values, ensure_ascii=number % 3 == 0) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def write_parquet(path: Path, rows: Rows) -> None:
    """Write rows as Parquet, in groups of few rows."""
    columns = {}
    for name in column_names(rows):
        values = [row.get(name) for row in rows]
        kind = kind_of(rows, name)
        columns[name] = pa.array(values, STRUCT if kind == "struct" else KINDS[kind][0])
    pq.write_table(pa.table(columns), path, row_group_size=3)


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


@dataclass(frozen=True)
class Dataset:
    """A published dataset, as readers that do not use Shardmill's code see it."""

    folder: Path
    examples: list[dict[str, list]]

    @property
    def manifest(self) -> dict[str, Any]:
        """The JSON of the manifest."""
        body: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return body

    @property
    def rejects(self) -> list[dict[str, Any]]:
        """The rejects, none without a file."""
        path = current(self.folder) / "rejects.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def splits(self) -> dict[str, list[dict[str, list]]]:
        """The examples of the splits."""
        return {
            name: [
                example
                for shard in split["shards"]
                for example in tf_examples(self.folder / shard["file"])
            ]
            for name, split in self.manifest["splits"].items()
        }

    @property
    def shards(self) -> dict[str, bytes]:
        """The bytes of the shards."""
        files = [shard["file"] for s in self.manifest["splits"].values() for shard in s["shards"]]
        return {Path(file).name: (self.folder / file).read_bytes() for file in files}

    @property
    def schema(self) -> dict[str, schema_pb2.Feature]:
        """The features of schema.pbtxt, as TensorFlow Metadata reads them."""
        text = (current(self.folder) / "schema.pbtxt").read_text()
        return {f.name: f for f in text_format.Parse(text, schema_pb2.Schema()).feature}


def read_dataset(folder: Path) -> Dataset:
    """Read and check a published dataset."""
    manifest = shardmill.BuildResult("published", str(folder)).manifest
    return Dataset(folder, check_dataset(folder, manifest))


def build_files(
    kind: str, folder: Path, tables: dict[str, Rows], types: Iterable[str] = (), **options: Any
) -> Dataset:
    """Write tables as files of a kind, and build ``folder/ds``.

    Args:
        kind: The kind of files.
        folder: Gets a folder of the files, and the dataset.
        tables: The rows of each file, by its name without suffix.
        types: The option of this name.
        options: Others of ``shardmill rows``.
    """
    (folder / "in").mkdir(parents=True, exist_ok=True)
    named = dict(name.split(":", 1) for name in types)
    for stem, rows in tables.items():
        path = folder / "in" / f"{stem}.{kind}"
        WRITERS[kind](folder / "new", rows)
        if path.exists() and path.read_bytes() == (folder / "new").read_bytes():
            continue  # its time stays too
        (folder / "new").rename(path)
    if kind == "csv":
        for rows in tables.values():
            cells = {name: KINDS[kind_of(rows, name)][2] for name in column_names(rows)}
            named = {name: text for name, text in cells.items() if text} | named
    options["types"] = [f"{name}:{text}" for name, text in named.items()]
    outcome, _ = build_dataset("rows", input=folder / "in", output=folder / "ds", **options)
    outcome.check()
    return read_dataset(folder / "ds")


def build_records(folder: Path, tables: dict[str, Rows], **options: Any) -> Dataset:
    """Build ``folder/ds`` with ``shardmill.write``."""
    options["split"] = options.pop("split_by", "")
    rows = [row for table in tables.values() for row in table]
    shardmill.write(rows, folder / "ds", **options)
    return read_dataset(folder / "ds")


def schema_text(rows: Rows, required: Iterable[str] = ()) -> str:
    """Return a schema.pbtxt of the columns."""
    types = {"int64": "INT", "float": "FLOAT", "bytes": "BYTES"}
    lines = []
    for name in column_names(rows):
        kind = kind_of(rows, name)
        presence = int(name in required)
        count = "min: 0" if kind.endswith("s") and kind != "bytes" else "min: 1 max: 1"
        lines.append(
            f'feature {{ name: "{name}" type: {types[KINDS[kind][1]]} value_count {{ {count} }} '
            f"presence {{ min_fraction: {presence} }} }}\n"
        )
    return "".join(lines)


def build_elements(folder: Path, tables: dict[str, Rows], **options: Any) -> Dataset:
    """Build ``folder/ds`` with ``WriteDataset``; equal keys are dropped, as by other sources."""
    options["split"] = options.pop("split_by", "")
    options.setdefault("key", lambda row: json.dumps(row, default=repr))
    rows = [row for table in tables.values() for row in table]
    options.setdefault("schema", schema_text(rows))
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        elements = pipeline | beam.Create(rows, reshuffle=False)
        _ = elements | shardmill.WriteDataset(folder / "ds", duplicates="drop", **options)
    return read_dataset(folder / "ds")


BUILDS: dict[str, Callable[..., Dataset]] = {
    **{kind: partial(build_files, kind) for kind in FILES},
    "write": build_records,
    "elements": build_elements,
}


def expected_example(row: dict[str, Any], drop: Iterable[str] = ()) -> dict[str, list]:
    """Return the features of the record of a row, by Python and NumPy."""
    features: dict[str, list] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            features |= expected_example({f"{name}.{part}": v for part, v in value.items()})
            continue
        values = value if isinstance(value, list) else [value]
        is_missing = value in (None, []) or (isinstance(value, float) and math.isnan(value))
        if is_missing or name in drop:
            continue
        if isinstance(values[0], float):
            values = np.array(values, np.float32).tolist()
        elif isinstance(values[0], str):
            values = [text.encode() for text in values]
        features[name] = [int(v) if isinstance(v, bool) else v for v in values]
    return features
