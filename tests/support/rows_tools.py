"""Builds datasets of rows, and judges them by Python's csv module and TensorFlow."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import jsonschema
import numpy as np

from shardmill.pipelines import cli, run
from shardmill.pipelines.rows import outcomes, resolve
from shardmill.pipelines.rows_config import RowsConfig
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.storage import open_storage
from shardmill.transforms.build.outcome import Outcome
from shardmill.transforms.publish.publish import read_manifest
from tests.conftest import ROOT

JSON_SCHEMA = json.loads((ROOT / "schemas" / "dataset" / "manifest.schema.json").read_text())
LEFT = {"manifest.json", "schema.pbtxt", "labels.txt", "rejects.jsonl"}
MISSING_TEXTS, MISSING_NUMBERS = {""}, {"", "?", "NA"}
# What Python makes of a cell, as a record holds it.
Read = Callable[[str], Any]


def build_rows(**options) -> tuple[Outcome, Manifest | None]:
    """Builds in this process, by Beam's in-memory runner, and returns what came of it."""
    texts = {
        name: str(value) if isinstance(value, Path) else value for name, value in options.items()
    }
    config = RowsConfig(**texts)
    job = resolve(config, runner=run.IN_MEMORY)
    output = config.absolute_output
    outcome = run.run_pipeline(
        lambda root: outcomes(root, job), run.IN_MEMORY, [], output, build=job.sink.build
    )
    return outcome, read_manifest(open_storage(output), output)


def run_here(capsys, *args: object) -> tuple[int, str, str]:
    """Runs the command in this process; returns the exit code, and what it wrote."""
    code = cli.main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return code, out, err


def published(**options) -> tuple[list[dict], Manifest]:
    """Builds a dataset that must be published, checks it, and returns its examples."""
    outcome, manifest = build_rows(**options)
    assert outcome.status == "published", outcome
    return check_dataset(Path(options["output"]), manifest), manifest


def check_dataset(
    folder: Path, manifest: Manifest | None, label: str = "", others: Iterable[str] = ()
) -> list[dict]:
    """Checks a dataset by other people's readers and returns all its examples, split by split.

    Args:
        folder: The dataset.
        manifest: As it was read.
        label: Feature whose values the manifest should count.
        others: Files that may stand beside what every dataset has.
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
        mine = []
        for shard in split["shards"]:
            data = (folder / shard["file"]).read_bytes()
            assert len(data) == shard["bytes"]
            assert f"{google_crc32c.value(data):08x}" == shard["crc32c"]
            examples = tf_examples(
                folder / shard["file"], "GZIP" if body["compression"] == "gzip" else ""
            )
            assert len(examples) == shard["records"]
            mine += examples
        assert len(mine) == split["num_examples"]
        if label:
            assert split["label_counts"] == label_counts(mine, label)
        everything += mine
    assert len(everything) == body["written"] == inputs["accepted"]
    reasons: Counter[str] = Counter()
    for reject in rejects_of(folder):
        reasons[reject["error"]] += reject.get("inputs", 1)
    assert dict(reasons) == inputs["rejected_by_reason"]
    left = {path.name for path in folder.iterdir()} - set(manifest.files)
    assert left <= LEFT | set(others)
    return everything


def tf_examples(path: Path, compression: str = "GZIP") -> list[dict]:
    """Returns each tf.train.Example of a file as {feature: list of values}; tf.data reads them."""
    import tensorflow as tf

    batches = tf.data.TFRecordDataset(str(path), compression).batch(4_096).as_numpy_iterator()
    examples = []
    for payload in (payload for batch in batches for payload in batch):
        features = tf.train.Example.FromString(payload).features.feature
        kinds = ((name, feature, feature.WhichOneof("kind")) for name, feature in features.items())
        examples.append({name: list(getattr(feature, kind).value) for name, feature, kind in kinds})
    return examples


def label_counts(examples: Iterable[Mapping], label: str) -> dict[str, int]:
    """Returns how often each label stands in examples."""
    values = (example[label][0] for example in examples)
    return dict(Counter(v.decode() if isinstance(v, bytes) else str(v) for v in values))


def by_split(folder: Path, manifest: Manifest) -> dict[str, list[dict]]:
    """Returns the examples of each split in their order."""
    return {
        name: [e for shard in split.shards for e in tf_examples(folder / shard.file)]
        for name, split in manifest.splits.items()
    }


def python_rows(data: bytes | str, encoding: str = "utf-8-sig", **options) -> list[list[str]]:
    """Returns what Python's csv module reads, without empty rows."""
    text = data if isinstance(data, str) else data.decode(encoding)
    return [row for row in csv.reader(io.StringIO(text, newline=""), **options) if row]


def number(cell: str) -> float:
    """Returns a decimal as the nearest float32, read as a double first."""
    return float(np.float32(float(cell)))


def text(cell: str) -> bytes:
    """Returns the bytes of a text."""
    return cell.encode()


def expected(
    names: Sequence[str], rows: Iterable[Sequence[str]], reads: Mapping[str, Read]
) -> Counter[tuple]:
    """Returns the records that rows should become, by Python's own int, float and str.

    Args:
        names: Of the columns.
        rows: Their cells.
        reads: What to make of the cells of each column that is a feature.
    """
    found: Counter[tuple] = Counter()
    for row in rows:
        assert len(row) == len(names)
        cells = dict(zip(names, row, strict=True))
        features = {
            name: [read(cells[name])]
            for name, read in reads.items()
            if cells[name] not in (MISSING_TEXTS if read is text else MISSING_NUMBERS)
        }
        found[frozen(features)] += 1
    return found


def frozen(example: Mapping[str, Sequence]) -> tuple:
    """Returns an example as a value that can be counted."""
    return tuple(sorted((name, tuple(values)) for name, values in example.items()))


def counted(examples: Iterable[Mapping[str, Sequence]]) -> Counter[tuple]:
    """Returns examples, whatever their order."""
    return Counter(map(frozen, examples))


def make_table(path: Path, names: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    """Writes a CSV file by Python's csv module."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as target:
        writer = csv.writer(target)
        writer.writerow(names)
        writer.writerows(rows)
    return path


def rejects_of(folder: Path) -> list[dict]:
    """Returns the rejects of a dataset, or of a build that failed."""
    (path,) = [*folder.glob("rejects.jsonl"), *folder.glob(".build-*/rejects.jsonl")]
    return [json.loads(line) for line in path.read_text().splitlines()]
