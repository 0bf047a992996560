"""Build datasets of rows; check them with Python's csv module and TensorFlow."""

import contextlib
import csv
import io
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import jsonschema
import numpy as np

from shardmill.pipelines import cli
from shardmill.pipelines.commands.build import configure, run_build
from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import Manifest
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms import Outcome
from tests.conftest import ROOT, build_dataset
from tests.support.fault_tools import PROGRESS
from tests.support.readers import current, tf_examples

JSON_SCHEMA = json.loads((ROOT / "schemas" / "dataset" / "manifest.schema.json").read_text())
SIDE_FILES = {"manifest.json", "schema.pbtxt", "labels.txt", "rejects.jsonl", "catalog"}
MISSING_TEXTS, MISSING_NUMBERS = {""}, {"", "?", "NA"}
Read = Callable[[str], Any]  # converts a cell to the value that its record should have


def build_rows(**options) -> tuple[Outcome, Manifest | None]:
    """See ``build_dataset``."""
    return build_dataset("rows", **options)


def run_here(capsys, *args: object) -> tuple[int, str, str]:
    """Run the command in this process; return exit code, stdout and stderr without progress."""
    level = logging.getLogger().level
    try:
        code = cli.main([str(arg) for arg in args])
    finally:
        logging.getLogger().setLevel(level)
    out, err = capsys.readouterr()
    return code, out, PROGRESS.sub("", err)


def run_json_here(command: str, options: Any, **more: object) -> dict:
    """Run a build in this process, as ``shardmill.write`` does in another; return its JSON."""
    printed, answer = io.StringIO(), Answer(json=True)
    with contextlib.redirect_stdout(printed):
        run_build(command, configure(command, vars(options) | more, [], answer))
    return json.loads(printed.getvalue())


def published(**options) -> tuple[list[dict], Manifest]:
    """Build a dataset that must be published, check it, and return its examples."""
    outcome, manifest = build_rows(**options)
    assert outcome.status == "published", outcome
    return check_dataset(Path(options["output"]), manifest), manifest


def check_dataset(
    folder: Path, manifest: Manifest | None, label: str = "", others: Iterable[str] = ()
) -> list[dict]:
    """Check a dataset with independent readers; return its examples, split by split.

    Args:
        folder: The dataset.
        manifest: The manifest as Shardmill reads it.
        label: Feature whose values the manifest should count.
        others: Names of further files that the dataset may contain.
    """
    assert manifest is not None
    body = json.loads((folder / "manifest.json").read_text())
    jsonschema.validate(body, JSON_SCHEMA)
    inputs = body["inputs"]
    parts = ("accepted", "rejected", "skipped", "duplicates")
    assert inputs["matched"] == sum(inputs[name] for name in parts)
    assert inputs["rejected"] == sum(inputs["rejected_by_reason"].values())
    everything = []
    for split in body["splits"].values():
        of_split = []
        for shard in split["shards"]:
            data = (folder / shard["file"]).read_bytes()
            assert len(data) == shard["bytes"]
            assert f"{google_crc32c.value(data):08x}" == shard["crc32c"]
            examples = tf_examples(
                folder / shard["file"], "GZIP" if body["compression"] == "gzip" else ""
            )
            assert len(examples) == shard["records"]
            of_split += examples
        assert len(of_split) == split["num_examples"]
        if label:
            assert split["label_counts"] == label_counts(of_split, label)
        everything += of_split
    assert len(everything) == body["written"] == inputs["accepted"]
    reasons: Counter[str] = Counter()
    for reject in rejects_of(folder):
        reasons[reject["error"]] += reject.get("inputs", 1)
    assert dict(reasons) == inputs["rejected_by_reason"]
    side_files = {path.name for path in current(folder).iterdir()} - set(manifest.files)
    assert side_files <= SIDE_FILES | set(others)
    return everything


def label_counts(examples: Iterable[Mapping], label: str) -> dict[str, int]:
    """Return the number of examples with each label."""
    values = (example[label][0] for example in examples)
    return dict(Counter(v.decode() if isinstance(v, bytes) else str(v) for v in values))


def by_split(folder: Path, manifest: Manifest) -> dict[str, list[dict]]:
    """Return the examples of each split, in order."""
    return {
        name: [e for shard in split.shards for e in tf_examples(current(folder) / shard.file)]
        for name, split in manifest.splits.items()
    }


def number(cell: str) -> float:
    """Return a decimal as float32, via float64."""
    return float(np.float32(float(cell)))


def text(cell: str) -> bytes:
    """Return the bytes of a text."""
    return cell.encode()


def expected(
    names: Sequence[str], rows: Iterable[Sequence[str]], reads: Mapping[str, Read]
) -> Counter[tuple]:
    """Return the expected records of rows, by Python's int, float and str.

    Args:
        names: Names of the columns.
        rows: Cells of each row.
        reads: Converts the cells of each column that is a feature.
    """
    records: Counter[tuple] = Counter()
    for row in rows:
        assert len(row) == len(names)
        cells = dict(zip(names, row, strict=True))
        features = {
            name: [read(cells[name])]
            for name, read in reads.items()
            if cells[name] not in (MISSING_TEXTS if read is text else MISSING_NUMBERS)
        }
        records[frozen(features)] += 1
    return records


def frozen(example: Mapping[str, Sequence]) -> tuple:
    """Return an example as a hashable value."""
    return tuple(sorted((name, tuple(values)) for name, values in example.items()))


def counted(examples: Iterable[Mapping[str, Sequence]]) -> Counter[tuple]:
    """Return the number of equal examples, ignoring their order."""
    return Counter(map(frozen, examples))


def make_table(path: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Write a CSV file with Python's csv module."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as target:
        writer = csv.writer(target)
        writer.writerow(names)
        writer.writerows(rows)
    return path


def rejects_of(folder: Path) -> list[dict]:
    """Return the rejects of a dataset, or of a failed build."""
    (path,) = [*folder.glob("current/rejects.jsonl"), *folder.glob(".build-*/rejects.jsonl")]
    return [json.loads(line) for line in path.read_text().splitlines()]


def make_mixed_tables(folder: Path) -> Path:
    """Write files with all kinds of cells, quoted line breaks and bad rows, and a schema."""
    rng = random.Random(3)
    for name in ("one.csv", "two.csv"):
        rows = [
            [n, f"{rng.random():.6f}", rng.choice(["a", 'q"\n', "é, x", ""]), rng.choice("xyz")]
            for n in range(900)
        ]
        rows[5][0], rows[700][1] = "five", "heavy"
        make_table(folder / name, ["id", "x", "text", "class"], rows)
    kinds: dict[str, Kind] = {"id": "int64", "x": "float32", "text": "bytes", "class": "bytes"}
    columns = [Column(name, kind, required=name != "text") for name, kind in kinds.items()]
    (folder / "schema.pbtxt").write_text(format_schema(columns))
    return folder
