"""Samples of many files: those with the same columns are merged as they arrive."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.schemas import InputRef
from shardmill.transforms.sources.csv import sample as sampling
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.sample import sample_file, sample_files
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.sources.jsonl.jsonl_source import sample_jsonl
from shardmill.transforms.sources.parquet.parquet_source import sample_parquet

SAMPLERS = {"csv": sample_file, "jsonl": sample_jsonl, "parquet": sample_parquet}
VALUES = {
    "int": [1, 20, 3],
    "float": [1.5, 2.0, None],
    "text": ["a", "b", None],
    "none": [None] * 3,
}


def write(path, kind: str, rng: random.Random, names=()) -> None:
    names = names or rng.choice((["a", "b"], ["a", "b", "c"], ["b", "a"], ["a"], ["c", "d"]))
    usual = {"a": "int", "b": "text", "c": "float", "d": "none"}
    columns = {n: VALUES[usual[n] if rng.random() < 0.8 else rng.choice([*VALUES])] for n in names}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind == "parquet":
        pq.write_table(pa.table({name: pa.array(found) for name, found in columns.items()}), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [
            ",".join("" if cell is None else str(cell) for cell in row.values()) for row in rows
        ]
        path.write_text("\n".join([",".join(names), *lines]) + "\n")


@pytest.mark.sweep
@pytest.mark.parametrize("kind", SAMPLERS)
def test_merging_files_as_they_arrive_changes_nothing(kind, tmp_path, monkeypatch) -> None:
    """Columns, types, rejects and counts are those of samples that are merged at the end."""
    rules, merged, rejected = CellRules.of(None), 0, 0
    for seed in range(40):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        paths = [folder / f"{number:02d}.{kind}" for number in range(rng.randrange(1, 14))]
        for path in paths:
            write(path, kind, rng, ["a", "b", "c"] if path == paths[-1] else ())
        if len(paths) > 1 and rng.random() < 0.3:
            paths[0].write_bytes(b"")
        refs = [
            InputRef(p.name, str(p), p.stat().st_size, str(p.stat().st_mtime_ns)) for p in paths
        ]
        needed = rng.choice(([], ["a"], ["a", "c"]))

        def sample(refs=refs, needed=needed):
            one = lambda ref: SAMPLERS[kind](ref, Dialect(), rules, 1 << 16)  # noqa: E731
            found = sample_files(refs, one, needed, "first")
            facts = found.base, found.partial, found.rows, found.text_bytes, found.complete
            refs = [(each.key, each.error) for each in found.refs]
            return refs, found.infer("", (), {}, strict=True), *facts

        with monkeypatch.context() as patch:
            patch.setattr(sampling, "_merge_alike", list)
            expected = sample()
        assert sample() == expected
        assert [key for key, _ in expected[0]] == [path.name for path in paths]
        rejected += sum(bool(error) for _, error in expected[0])
        merged += len(paths)
    assert rejected
    assert merged > 100


def test_files_with_the_same_columns_are_one_sample(tmp_path) -> None:
    """The profiles of each file were held: 103 MiB of 1,000 files with 100 columns."""
    refs = []
    for number in range(50):
        path = tmp_path / f"{number:02d}.csv"
        path.write_text(f"a,b\n{number},x\n")
        refs.append(InputRef(path.name, str(path), path.stat().st_size))
    rules = CellRules.of(None)
    (only,) = sampling._merge_alike(sample_file(ref, Dialect(), rules, 100) for ref in refs)
    assert only.refs == tuple(refs)
    assert only.rows == 50
    assert (only.profiles["a"].low, only.profiles["a"].high) == (0, 49)
