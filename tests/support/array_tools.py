"""Build datasets of arrays and compare them with NumPy and TensorFlow."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shardmill.schemas import Manifest
from shardmill.transforms import Outcome, RowsSpec
from tests.conftest import build_dataset, resolve_job, run_job
from tests.support.rows_tools import by_split, check_dataset

DTYPES = [
    "bool",
    "u1",
    "u2",
    "u4",
    "u8",
    "i1",
    "i2",
    "i4",
    "i8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
]
_64 = (1 << 64) - 1


def spec_of(**options) -> RowsSpec:
    """Return the spec of a build with these options."""
    return resolve_job("arrays", **options)


def run_spec(spec: RowsSpec) -> Outcome:
    """Run a build in this process with Beam's in-memory runner."""
    return run_job("arrays", spec)


def published(**options) -> Manifest:
    """Build a dataset, assert that it is published, and return its manifest."""
    outcome, manifest = build_dataset("arrays", **options)
    assert outcome.status == "published", outcome
    return manifest


def records_of(folder: Path, manifest: Manifest) -> dict[str, list[dict]]:
    """Check a dataset; return the examples of each split in their order."""
    assert manifest.written == manifest.inputs.matched
    check_dataset(folder, manifest)
    return by_split(folder, manifest)


def plain_bytes(array: np.ndarray, row: int) -> bytes:
    """Return the bytes of a row in a record: little-endian values in C order."""
    little = array.dtype.newbyteorder("<")
    return np.ascontiguousarray(array[row]).astype(little).tobytes()


def row_hash(seed: int, key: str, row: int) -> tuple[int, int]:
    """Return the hashes of a row for its split and its position, as docs/arrays.md defines them."""
    salts = hash_salts(seed, key, b"shardmill-row")
    split, position = (hash_step(hash_step(salt, row), salt) for salt in salts)
    return split, position


def hash_salts(seed: int, key: str, person: bytes) -> tuple[int, int]:
    """Return the numbers that the hashes for the split and for the position start with."""
    digest = hashlib.blake2b(
        key.encode(), digest_size=16, salt=seed.to_bytes(16, "little"), person=person
    ).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


def hash_step(state: int, word: int) -> int:
    """Return the next state of a hash (SplitMix64)."""
    x = ((state ^ word) + 0x9E3779B97F4A7C15) & _64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _64
    return x ^ x >> 31


def expected_rows(
    key: str, rows: int, seed: int = 0, shares: tuple[tuple[str, int], ...] = ()
) -> dict[str, list[int]]:
    """Return the expected rows of each split, in their order.

    Args:
        key: Key of the input.
        rows: Number of rows.
        seed: Seed of the hash.
        shares: Splits and their shares in percent.
    """
    shares = shares or (("train", 90), ("validation", 10))
    found: dict[str, list[tuple[int, int]]] = {name: [] for name, _ in shares}
    for row in range(rows):
        split, position = row_hash(seed, key, row)
        share = 0
        for name, percent in shares:
            share += percent
            if split * 100 < share << 64:
                found[name].append((position, row))
                break
    return {name: [row for _, row in sorted(pairs)] for name, pairs in found.items()}


def check_records(
    folder: Path, manifest: Manifest, arrays: Mapping[str, np.ndarray], key: str, **place
) -> None:
    """Assert that a dataset has exactly the rows of arrays, in the expected splits and order."""
    rows = len(next(iter(arrays.values())))
    wanted = expected_rows(key, rows, **place)
    records = records_of(folder, manifest)
    assert set(records) == set(wanted)
    for name, examples in records.items():
        assert len(examples) == len(wanted[name])
        for example, row in zip(examples, wanted[name], strict=True):
            for feature, array in arrays.items():
                assert example[feature] == [plain_bytes(array, row)], (feature, row)
