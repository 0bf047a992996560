"""Runs hold the same records however parts are cut, and however many runs there are."""

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import scale_estimate
from shardmill.schemas.errors import OutputError
from shardmill.schemas.refs import SegmentRef
from shardmill.transforms.sink.placement import PartKey, Series, part_of
from shardmill.transforms.sink.plan import Plan
from shardmill.transforms.tables import encoder, run_writer, segments, transform
from shardmill.transforms.tables.segments import Origin, Run
from tests.conftest import examples
from tests.support.rows_tools import build_rows, current, make_table

MERGE = encoder.merge_segments
POSITIONS = st.lists(
    st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**63, 2**64 - 1]), min_size=1, max_size=30
)


def write_run(folder, name: str, splits: dict[str, list[int]]) -> Run:
    """Write a run with a record of 9 bytes or more for each position."""

    def blocks():
        for split, positions in splits.items():
            frames = [f"{name}{split}{at:09d}".encode() for at in sorted(positions)]
            origins = [Origin(name, name, "").to_text()] * len(frames)
            columns = {
                segments.POSITION: pa.array(sorted(positions), pa.uint64()),
                segments.FRAME: pa.chunked_array([pa.array(frames, pa.large_binary())]),
                segments.ORIGIN: pa.array(origins).dictionary_encode(),
            }
            yield from segments.cut_blocks(split, pa.table(columns))
        yield segments.pack_lines([name])

    made = run_writer.write_blocks(str(folder), name, blocks())
    return Run(name, str(folder / made.payload), made.blocks)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("ab"), POSITIONS, min_size=1), min_size=1, max_size=4),
    st.integers(1, 3_000),  # a block has a segment for each part that it may have records of
    st.sampled_from([1, 40, 1 << 20]),
    st.booleans(),
)
def test_parts_hold_each_record_once_in_order(
    tmp_path_factory, tables, parts, block_bytes, merges
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    plan = Plan("build", parts={Series("", ""): 1}, default_parts=parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "BLOCK_BYTES", block_bytes)
        patch.setattr(run_writer, "MERGE_BYTES", 3 * block_bytes)
        runs = [write_run(folder, f"r{number}", table) for number, table in enumerate(tables)]
        rejects = [
            (key, line.decode())
            for run in runs
            for key, (_, ref) in segments.cut_rejects(run, plan)
            for line in segments.read_lines(ref)
        ]
        assert rejects == [(PartKey("", "", 0), run.key) for run in runs]
        runs = [run_writer.merge_runs(str(folder), 7, runs)] if merges else runs
    placed: dict[PartKey, list] = {}
    for run in runs:
        for key, (_, ref) in segments.cut_segments(run, plan):
            placed.setdefault(key, []).append(ref)
    found: dict[str, list] = {"a": [], "b": []}
    for key, refs in sorted(placed.items()):
        records = [each for each in map(segments.read_records, refs) if len(each)]
        assert all(
            part_of(at, parts) == key.part
            for each in records
            for at in each["position"].to_pylist()
        )
        if records:
            table, order = segments.sort_records(records)
            rows = table.take(order).select(["position", "frame"]).to_pylist()
            found[key.split] += [(row["position"], row["frame"].decode()) for row in rows]
    for split, records in found.items():
        given_records = [
            (at, f"r{number}{split}{at:09d}")
            for number, table in enumerate(tables)
            for at in table.get(split, [])
        ]
        assert records == sorted(given_records)


def test_a_damaged_run_is_an_error(tmp_path) -> None:
    run = write_run(tmp_path, "r", {"a": [5]})
    (ref,) = segments.of_slices(run, "a", 1)
    data = bytearray((tmp_path / ref.uri).read_bytes())
    data[ref.offset + 20] ^= 1
    (tmp_path / ref.uri).write_bytes(data)
    with pytest.raises(OutputError, match="is damaged: run again"):
        segments.read_records(ref)


@pytest.mark.heavy
def test_no_part_opens_more_runs_than_the_limit(tmp_path, monkeypatch) -> None:
    """More runs are merged first, which changes no byte of the dataset."""
    for number in range(12):
        rows = [[n, f"{number // 2}" if n % 9 == 0 else "x"] for n in range(number, number + 40)]
        make_table(tmp_path / "in" / f"{number:02d}.csv", ["id", "text"], [*rows, ["ragged"]])
    flags = {"input": tmp_path / "in", "key": "id", "max_reject_fraction": 1.0, "num_shards": 2}
    opened: list[int] = []

    def merged(refs, key, **options):
        opened.append(len(refs))
        return MERGE(refs, key, **options)

    monkeypatch.setattr(encoder, "merge_segments", merged)
    results = []
    for limit in (256, 3):
        monkeypatch.setattr("shardmill.transforms.tables.transform.MAX_RUNS", limit)
        output = tmp_path / f"out{limit}"
        assert build_rows(output=output, **flags)[0].status == "published"
        shards = sorted(current(output).glob("*.tfrecord.gz"))
        rejects = (current(output) / "rejects.jsonl").read_bytes()
        results.append([*(path.read_bytes() for path in shards), rejects])
        assert len(shards) == 4
    assert results[0] == results[1]
    assert len(opened) == 8
    assert max(opened[:4]) == 12
    assert max(opened[4:]) <= 3


@pytest.mark.heavy
def test_formulas_of_the_scale_page(tmp_path, monkeypatch) -> None:
    """docs/scale.md says how many segments there are, and how often the merge reads."""
    monkeypatch.setattr(transform, "MAX_RUNS", 8)
    monkeypatch.setattr(run_writer, "MERGE_BYTES", 2_050)
    monkeypatch.setattr(segments, "BLOCK_BYTES", 200)
    positions = np.random.default_rng(1).integers(0, 2**64 - 1, (160, 36), np.uint64).tolist()
    runs = [
        write_run(tmp_path, f"r{number}", {"a": some[:24], "b": some[24:]})
        for number, some in enumerate(positions)
    ]
    sizes: Counter[str] = Counter()
    groups: defaultdict[int, list[Run]] = defaultdict(list)
    for run in runs:
        for block in run.blocks:
            sizes[block.split] += block.size
        for output in transform.group_run(run, len(runs)):
            number, member = output.value
            groups[number].append(member)
    reads: list[SegmentRef] = []
    read = segments.read_records

    def read_records(ref: SegmentRef) -> pa.Table:
        reads.append(ref)
        return read(ref)

    monkeypatch.setattr(segments, "read_records", read_records)
    monkeypatch.setattr(run_writer, "storage_threads", lambda path: 4)  # as in a bucket
    merged = [run_writer.merge_runs(str(tmp_path), number, some) for number, some in groups.items()]
    plan = Plan("build", parts={Series("a", ""): 4, Series("b", ""): 2})
    count = sum(1 for run in merged for _ in segments.cut_segments(run, plan))
    assert count == pytest.approx(scale_estimate.count_groups(160) * (4 + 2), rel=0.02)
    expected = scale_estimate.count_merge_reads(160, [sizes["a"], sizes["b"]])
    assert expected == 160 * (8 + 4)
    assert len(reads) == pytest.approx(expected, rel=0.1)
