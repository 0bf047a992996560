"""Rows are read from every kind of array file, in any slices and reads of any size."""

import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from shardmill.schemas.errors import InputError
from shardmill.schemas.storage import open_storage
from shardmill.transforms.sources.arrays import array_source
from shardmill.transforms.sources.arrays.array_file import ArrayFile, open_npy, open_npz
from tests.conftest import build_dataset, examples
from tests.support.array_tools import DTYPES
from tests.transforms.sources.csv.test_reads import Reads


def check_rows(opened: ArrayFile, array: np.ndarray, bounds: list[int], step: int) -> None:
    """Assert that slices of the rows are those of the array, a step at a time."""
    if opened.is_stream:
        bounds = [0, len(array)]
    wanted = array.astype(array.dtype.newbyteorder("<"))
    for first, end in itertools.pairwise(bounds):
        found = list(array_source.read_rows(opened, first, end, step))
        assert all(rows.shape[1] == opened.row_bytes for rows in found)
        assert [len(rows) for rows in found[:-1]] == [step] * (len(found) - 1)
        assert sum(map(len, found)) == end - first
        assert b"".join(rows.tobytes() for rows in found) == wanted[first:end].tobytes()


@given(
    data=st.data(),
    dtype=st.sampled_from([f"{s}{d}" for d in DTYPES if d != "bool" for s in "<>"] + ["bool"]),
    shape=arrays_of.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=7),
    order=st.sampled_from("CF"),
    packed=st.sampled_from(["npy", "stored", "deflated"]),
)
@settings(max_examples=examples(300))
def test_reads_rows_of_any_array(tmp_path_factory, data, dtype, shape, order, packed) -> None:
    array = np.asarray(data.draw(arrays_of.arrays(dtype, shape)), order=order)
    path = tmp_path_factory.mktemp("any", numbered=True) / "a"
    with path.open("wb") as target:
        save = {"npy": np.save, "stored": np.savez, "deflated": np.savez_compressed}[packed]
        save(target, array) if packed == "npy" else save(target, a=array)
    entry = open_storage(str(path)).stat(str(path))
    opened = open_npy(entry, "a", "A") if packed == "npy" else open_npz(entry, "a", "A")
    assert opened.shape == shape
    cuts = data.draw(st.lists(st.integers(0, len(array)), max_size=3))
    check_rows(opened, array, [0, *sorted(cuts), len(array)], data.draw(st.integers(1, 9)))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("pack", "order", "threads"),
    [
        (np.save, "C", 3),
        (np.savez, "F", 2),
        (np.savez_compressed, "F", 1),
        *(
            pytest.param(*each, marks=pytest.mark.heavy)
            for each in (
                (np.save, "C", 1),
                (np.save, "C", 2),
                (np.save, "F", 2),
                (np.savez, "C", 1),
                (np.savez_compressed, "C", 3),
            )
        ),
    ],
)
def test_each_byte_is_read_once_at_any_number_of_parts(
    tmp_path, monkeypatch, pack, order, threads
) -> None:
    """Those of labels too."""
    monkeypatch.setattr(array_source, "_BATCH_BYTES", 1 << 16)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (9_000, 20 if pack is np.save else 100), np.uint8)
    options = {"output": tmp_path / "ds", "num_shards": 7, "threads": threads}
    if pack is np.save:
        options |= {"input": tmp_path / "x.npy", "labels": tmp_path / "y.npy"}
        np.save(options["labels"], np.arange(len(x)) % 9)
        np.save(options["input"], np.asarray(x, order=order))
    else:
        options |= {"input": tmp_path / "x.npz"}
        pack(options["input"], x=np.asarray(x, order=order))
    size = sum(path.stat().st_size for path in tmp_path.glob("*.np?"))
    reads = Reads(monkeypatch, options["input"].suffix)
    outcome, manifest = build_dataset("arrays", **options)
    assert outcome.status == "published"
    assert manifest.written == len(x)
    assert size < reads.num_bytes + 1000
    assert reads.num_bytes <= 1.1 * size


def test_a_file_that_changed_after_it_was_opened_is_named(tmp_path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(9))
    opened = open_npy(open_storage(str(path)).stat(str(path)), "x", "X")
    os.utime(path, ns=(1, 1))
    with pytest.raises(InputError) as caught:
        list(array_source.read_rows(opened, 0, 9, 9))
    reason = "its size or modification time differs"
    assert str(caught.value) == f"{path} changed while it was read ({reason}): run again."
