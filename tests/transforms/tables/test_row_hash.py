"""Row hashes decide splits and positions; the golden values here must never change."""

import hashlib
import math

import numpy as np
import pyarrow as pa
import pytest
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


OFFSETS = {
    (0, "", 0): (0x65E795E78FD707E9, 0x003BA604443B415A),
    (0, "data/adult.csv", 0): (0x8656B9A3A4F8FA49, 0x0713DA9E2CA75580),
    (0, "data/adult.csv", 117): (0x6DF003F980DE8299, 0xFBB0E39E345B5ABC),
    (7, "data/adult.csv", 117): (0x00FF51FFFB5EF1EF, 0xD5C4D903EA7EFDF9),
    (ALL, "caf\xe9/\u7332.csv", 2**62 + 1): (0x43D97729CF939593, 0x1AD4F706E5B3EF0F),
}
TEXTS = {
    (0, b""): (0x5FDA8584AAAE1440, 0x82D9882B1B4142D8),
    (0, b"1"): (0x5FDEAA7F45D65C6C, 0x9A311BE54C926EB7),
    (0, b"12345678"): (0x4BC9839EF0CEA8C2, 0x72DBC81DA7505D58),
    (7, b"12345678"): (0xAA34436BE813BF35, 0x7BC7FDCB89941277),
    (0, b"customer 0000017"): (0x9704E512B3B89775, 0x7F50211C8486D45B),
    (0, b"caf\xc3\xa9 and \x00 more"): (0xD6209B9608DB7584, 0x08E1B942AA8E2A89),
    (0, b"x" * 128): (0x9096357539274DB0, 0xD620E0B323D99DBC),
    (0, b"x" * 129): (0xD46E97961D523B1C, 0xCEDCE8D86FAB8672),
}


@pytest.mark.parametrize(("seed", "key", "offset"), list(OFFSETS))
def test_hashes_of_offsets_are_pinned(seed: int, key: str, offset: int) -> None:
    found = pairs(hash_offsets(seed, key, np.array([offset])))
    assert found == [OFFSETS[seed, key, offset]] == [row_hash(seed, key, offset)]


@pytest.mark.parametrize(("seed", "text"), list(TEXTS))
def test_hashes_of_texts_are_pinned(seed: int, text: bytes) -> None:
    found = pairs(hash_texts(seed, pa.array([text])))
    assert found == [TEXTS[seed, text]] == [slow_text(seed, text)]


def test_splits_and_parts_of_known_rows_are_pinned() -> None:
    splits = Splits.parse("train:0.5,validation:0.25,test:1/4")
    of_rows = hash_offsets(3, "a.csv", np.arange(0, 4000, 100))
    of_texts = hash_texts(3, pa.array([b"%d" % n for n in range(40)]))
    for numbers, digits in (
        (split_numbers(splits, of_rows.split), "2121210200000200201102000200000000020002"),
        (split_numbers(splits, of_texts.split), "2010102100011002011110000100000200200101"),
        (part_numbers(of_rows.position, 10), "1293812488756225486645501541804079496244"),
    ):
        assert "".join(map(str, numbers)) == digits


@given(u64, st.text(max_size=20), st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_offset_hashes_equal_the_definition(seed: int, key: str, offsets: list[int]) -> None:
    wanted = [row_hash(seed, key, offset) for offset in offsets]
    assert pairs(hash_offsets(seed, key, np.array(offsets, np.int64))) == wanted


@given(u64, st.lists(texts, max_size=30), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_text_hashes_equal_the_definition(seed: int, keys: list[bytes], kind: pa.DataType) -> None:
    wanted = [slow_text(seed, text) for text in keys]
    array = pa.array([b"before", *keys, b"after"], kind)[1:-1]
    assert pairs(hash_texts(seed, array)) == wanted
    encoded = pa.array([b"before", *keys, *keys], kind).dictionary_encode()[1:]
    assert pairs(hash_texts(seed, encoded)) == wanted * 2


def test_rejects_other_types() -> None:
    with pytest.raises(TypeError, match="large_string is not binary"):
        hash_texts(0, pa.array(["a"], pa.large_string()))


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


def test_split_bounds_are_exact() -> None:
    third = -(-(2**64) // 3)
    hashes = np.array([0, third - 1, third, 2 * third - 2, 2 * third - 1, ALL], np.uint64)
    splits = Splits.parse("a:1/3,none:0,b:1/3,c:1/3,last:0")
    assert split_numbers(splits, hashes).tolist() == [0, 0, 2, 2, 3, 3]
    assert [splits.of_hash(int(h)) for h in hashes] == ["a", "a", "b", "b", "c", "c"]
    for bits, wanted in ((64, [0, 1]), (65, [0, 0])):  # the first bound is 2**64 - 1, 2**64
        few = Splits.parse(f"a:{2**bits - 1}/{2**bits},b:1/{2**bits}")
        assert split_numbers(few, np.array([ALL - 1, ALL], np.uint64)).tolist() == wanted
        assert [few.names.index(few.of_hash(h)) for h in (ALL - 1, ALL)] == wanted


@given(st.lists(u64 | edges, max_size=30), st.integers(1, 2**31) | st.just(2**31))
def test_part_numbers_equal_part_of(positions: list[int], parts: int) -> None:
    bounds = [-(-(number << 64) // parts) for number in (1, parts // 2, parts - 1)]
    positions += [p for bound in bounds for p in (bound - 1, bound) if 0 <= p <= ALL]
    numbers = part_numbers(np.array(positions, np.uint64), parts)
    assert numbers.tolist() == [part_of(position, parts) for position in positions]
