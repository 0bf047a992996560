"""Rows of parts are read from every kind of array file, in any order and chunk size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.storage import open_storage
from shardmill.transforms.sources.arrays import row_index, row_reader
from shardmill.transforms.sources.arrays.array_file import ArrayFile, open_npy, open_npz
from shardmill.transforms.sources.arrays.row_index import RowPlacement, index_rows
from tests.conftest import examples
from tests.support.array_tools import DTYPES, row_hash


def check_parts(opened: ArrayFile, array: np.ndarray, *, parts: int, threads: int = 2) -> None:
    """Assert that each part has its rows, each in its place."""
    shares = Splits.parse("train:0.8,validation:0.2").shares
    placement = RowPlacement("key", len(array), 0, shares, (parts, 1))
    seen = []
    for slot in range(parts + 1):
        rows = index_rows(placement).rows_of(slot)
        places = np.random.default_rng(slot).permutation(len(rows))
        taken = row_reader.read_part(opened, placement, slot, places, threads)
        assert taken.shape == (len(rows), opened.row_bytes)
        wanted = array[rows].astype(array.dtype.newbyteorder("<"))
        assert taken[places].tobytes() == wanted.tobytes()
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(array)))


@given(
    data=st.data(),
    dtype=st.sampled_from([f"{s}{d}" for d in DTYPES if d != "bool" for s in "<>"] + ["bool"]),
    shape=arrays_of.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=7),
    order=st.sampled_from("CF"),
    packed=st.sampled_from(["npy", "stored", "deflated"]),
)
@settings(max_examples=examples(300))
def test_reads_parts_of_any_array(tmp_path_factory, data, dtype, shape, order, packed) -> None:
    array = np.asarray(data.draw(arrays_of.arrays(dtype, shape)), order=order)
    path = tmp_path_factory.mktemp("any", numbered=True) / "a"
    with path.open("wb") as target:
        save = {"npy": np.save, "stored": np.savez, "deflated": np.savez_compressed}[packed]
        save(target, array) if packed == "npy" else save(target, a=array)
    entry = open_storage(str(path)).stat(str(path))
    opened = open_npy(entry, "a", "A") if packed == "npy" else open_npz(entry, "a", "A")
    assert opened.shape == shape
    check_parts(opened, array, parts=data.draw(st.integers(1, 5)))
    row_reader._regroup.cache_clear()


@pytest.mark.parametrize("chunk", [1, 64, 1 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_read_size_and_threads_do_not_change_rows(tmp_path, monkeypatch, chunk, threads) -> None:
    monkeypatch.setattr(row_reader, "_CHUNK_BYTES", chunk)
    monkeypatch.setattr(row_reader, "_BLOCK_BYTES", chunk)
    rng = np.random.default_rng(1)
    for number, order in enumerate("CF"):
        array = np.asarray(rng.integers(0, 1 << 40, (500, 5, 3)), order=order)
        np.save(tmp_path / f"{chunk}{number}.npy", array)
        entry = open_storage("").stat(str(tmp_path / f"{chunk}{number}.npy"))
        for large_row in (0, 1 << 30):
            monkeypatch.setattr(row_reader, "_LARGE_ROW", large_row)
            opened = open_npy(entry, "a", "A")
            assert row_reader.is_regrouped(opened) == (order == "F" or large_row > 0)
            check_parts(opened, array, parts=4, threads=threads)
            row_reader._regroup.cache_clear()


@pytest.mark.parametrize("chunk", [7, 100, 1 << 20])
def test_row_index_matches_the_documented_hash(monkeypatch, chunk) -> None:
    monkeypatch.setattr(row_index, "_CHUNK_ROWS", chunk)
    row_index._index_rows.cache_clear()
    shares = Splits.parse("train:0.7,validation:0.2,none:0,test:0.1").shares
    placement = RowPlacement("some/key", 600, 3, shares, (8, 2, 0, 1))
    index = index_rows(placement)
    expected: dict[tuple[str, int], list[int]] = {}
    for row in range(600):
        split, position = row_hash(3, "some/key", row)
        ends = (("train", 7), ("validation", 9), ("test", 10))
        name = next(name for name, end in ends if split * 10 < end << 64)
        number = {"train": 8, "validation": 2, "test": 1}[name]
        expected.setdefault((name, position * number >> 64), []).append(row)
    assert len(expected) == 11
    for (name, part), rows in expected.items():
        assert index.rows_of(placement.part_index(name, part)).tolist() == rows
    row_index._index_rows.cache_clear()
