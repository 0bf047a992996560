"""Row hashes decide splits and positions; the golden values here must never change."""

import hashlib
import math

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas import Splits
from shardmill.transforms.sink.placement import part_of
from shardmill.transforms.tables.byte_arrays import (
    Hashes,
    hash_offsets,
    hash_texts,
    part_numbers,
    split_numbers,
)
from tests.support.array_tools import hash_salts, hash_step, row_hash

ALL = 2**64 - 1
u64 = st.integers(0, ALL)
edges = st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, ALL - 1, ALL])
texts = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([bytes(n) for n in (0, 7, 8, 9, 16, 127, 128, 129, 136, 4000)]),
    st.integers(0, 300).map(lambda n: bytes(i % 251 for i in range(n))),
)


# The definition in the docstring of byte_arrays, on Python integers.
def slow_text(seed: int, text: bytes) -> tuple[int, ...]:
    data = text if len(text) <= 128 else hashlib.blake2b(text, digest_size=16).digest()
    halves = []
    for salt in hash_salts(seed, "", b"shardmill-text"):
        state = salt
        for at in range(0, len(data), 8):
            state = hash_step(state, int.from_bytes(data[at : at + 8], "little"))
        halves.append(hash_step(state, len(text)))
    return tuple(halves)


def pairs(hashes: Hashes) -> list[tuple[int, int]]:
    assert hashes.split.dtype == hashes.position.dtype == np.uint64
    return list(zip(hashes.split.tolist(), hashes.position.tolist(), strict=True))


@given(u64, st.text(max_size=20), st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_offset_hashes_equal_the_definition(seed: int, key: str, offsets: list[int]) -> None:
    wanted = [row_hash(seed, key, offset) for offset in offsets]
    assert pairs(hash_offsets(seed, key, np.array(offsets, np.int64))) == wanted


@given(u64, st.lists(texts, max_size=30), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_text_hashes_equal_the_definition(seed: int, keys: list[bytes], kind: pa.DataType) -> None:
    wanted = [slow_text(seed, text) for text in keys]
    array = pa.array([b"before", *keys, b"after"], kind)[1:-1]
    assert pairs(hash_texts(seed, array)) == wanted


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.lists(u64 | edges, max_size=20))
def test_split_numbers_equal_split_of_hash(weights: list[int], hashes: list[int]) -> None:
    weights[0] += not any(weights)
    total = sum(weights)
    splits = Splits.parse(",".join(f"s{i}:{w}/{total}" for i, w in enumerate(weights)))
    # Include hashes at the bounds.
    ends = [math.ceil(2**64 * sum(weights[:n]) / total) for n in range(len(weights) + 1)]
    hashes += [h for end in ends for h in (end - 1, end, end + 1) if 0 <= h <= ALL]
    numbers = split_numbers(splits, np.array(hashes, np.uint64))
    assert numbers.dtype == np.int32
    assert [splits.names[n] for n in numbers] == [splits.of_hash(h) for h in hashes]


@given(st.lists(u64 | edges, max_size=30), st.integers(1, 2**31) | st.just(2**31))
def test_part_numbers_equal_part_of(positions: list[int], parts: int) -> None:
    bounds = [-(-(number << 64) // parts) for number in (1, parts // 2, parts - 1)]
    positions += [p for bound in bounds for p in (bound - 1, bound) if 0 <= p <= ALL]
    numbers = part_numbers(np.array(positions, np.uint64), parts)
    assert numbers.tolist() == [part_of(position, parts) for position in positions]
