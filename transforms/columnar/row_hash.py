"""Placement of many rows at once: which split each belongs to, and where it stands in the order.

A row's identity is its file and its offset there, or the text of a key column. Both hashes have two
halves of 64 bits, for the split and for the position, made in the same way from salts of their own.
They are pinned for ever by golden tests: changing them would reshuffle every user's splits. They
are made to spread well and cheaply, not to withstand somebody who looks for collisions.

The definition, with all sums and products modulo 2**64::

    step(state, word):  x = (state ^ word) + 0x9E3779B97F4A7C15
                        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9
                        x = (x ^ x >> 27) * 0x94D049BB133111EB
                        x ^ x >> 31
    salts:              blake2b of the file's key (for texts: of nothing), 16 bytes, salted with the
                        seed as 16 bytes little-endian, personalised "shardmill-row" ("-text"); two
                        big-endian numbers, for the split and for the position
    of an offset:       step(step(salt, offset), salt)
    of a text:          the salt, stepped over the text's words, then over its length in bytes;
                        words are 8 bytes little-endian, the last filled up with zeros; a text of
                        more than 128 bytes stands for its 16 bytes of blake2b

The step is the one of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
generators, 2014, with the constants that its authors publish).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shardmill.schemas.dataset.splits import Splits
from shardmill.transforms.columnar.byte_arrays import Blobs

_ROW, _TEXT = b"shardmill-row", b"shardmill-text"
_WORD = 8  # bytes
_LONGEST = 128  # bytes of a text that are stepped over; more would be one step for few texts each
_DIGEST_BYTES = 16
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIXES = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)
# By the bytes of a text that are left: which bits of its next word are the text's.
_KEPT = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MOST_PARTS = 1 << 31


class Hashes(NamedTuple):
    """The two halves of each row's hash.

    Attributes:
        split: uint64[rows], for the split.
        position: uint64[rows], the row's place in the global order.
    """

    split: np.ndarray
    position: np.ndarray


def hash_offsets(seed: int, file_key: str, offsets: np.ndarray) -> Hashes:
    """Returns the hashes of rows that are known by their file and place; all different in a file.

    Args:
        seed: 0 to 2**64 - 1.
        file_key: The key of the file.
        offsets: int64[rows], where each row begins.
    """
    words = offsets.astype(np.uint64)
    split, position = (
        _step(_step(np.full(words.shape, salt), words), salt)
        for salt in _salts(seed, file_key.encode(), _ROW)
    )
    return Hashes(split, position)


def hash_texts(seed: int, texts: pa.Array) -> Hashes:
    """Returns the hashes of texts, wherever they stand: equal bytes have equal hashes.

    Args:
        seed: 0 to 2**64 - 1.
        texts: binary, large_binary or a dictionary of them; without nulls.

    Raises:
        ValueError: A text is null.
    """
    if texts.null_count:
        raise ValueError(f"{texts.null_count} of {len(texts)} texts are null")
    if isinstance(texts, pa.DictionaryArray):
        distinct = hash_texts(seed, texts.dictionary)
        indices = texts.indices.to_numpy()
        return Hashes(distinct.split[indices], distinct.position[indices])
    blobs = Blobs.of_arrow(texts)
    halves = [np.full(blobs.number, salt) for salt in _salts(seed, b"", _TEXT)]
    for rows, words in _words_of(blobs):
        for half in halves:
            half[rows] = _step(half[rows], words)
    lengths = blobs.sizes.astype(np.uint64)
    split, position = (_step(half, lengths) for half in halves)
    return Hashes(split, position)


def split_numbers(splits: Splits, hashes: np.ndarray) -> np.ndarray:
    """Returns which of ``splits.names`` each hash falls to, as ``Splits.of_hash`` says; int32.

    Args:
        splits: Splits by fractions.
        hashes: uint64[rows].

    Raises:
        ValueError: The splits have no fractions.
    """
    if splits.mode != "fractions":
        raise ValueError(f"splits of the mode {splits.mode} are not found by hashes")
    ends = (share * (1 << 64) for share in accumulate(share for _, share in splits.shares))
    # A bound that no hash reaches, 2**64, is no uint64 either.
    bounds = [math.ceil(end) for end in ends if end <= (1 << 64) - 1]
    found = np.searchsorted(np.array(bounds, np.uint64), hashes, side="right")
    result: np.ndarray = found.astype(np.int32)
    return result


def part_numbers(position: np.ndarray, parts: int) -> np.ndarray:
    """Returns which of equal slices of the order positions lie in, as ``part_of`` says; int64.

    Args:
        position: uint64[rows].
        parts: 1 to 2**31.

    Raises:
        ValueError: There are too many parts, or none.
    """
    if not 1 <= parts <= _MOST_PARTS:
        raise ValueError(f"{parts} parts are not 1 to {_MOST_PARTS}")
    factor = np.uint64(parts)
    # The product has up to 95 bits; neither of the halves' products overflows 64, nor their sum.
    low = (position & _LOW) * factor >> _HALF
    result: np.ndarray = ((position >> _HALF) * factor + low >> _HALF).astype(np.int64)
    return result


def _salts(seed: int, key: bytes, person: bytes) -> tuple[np.uint64, np.uint64]:
    digest = hashlib.blake2b(
        key, digest_size=_DIGEST_BYTES, salt=seed.to_bytes(16, "little"), person=person
    ).digest()
    return np.uint64(int.from_bytes(digest[:8], "big")), np.uint64(
        int.from_bytes(digest[8:], "big")
    )


def _step(states: np.ndarray, words: np.ndarray | np.uint64) -> np.ndarray:
    result: np.ndarray = states ^ words
    result += _GAMMA
    for shift, factor in _MIXES:
        result ^= result >> shift
        result *= factor
    result ^= result >> _LAST_SHIFT
    return result


def _words_of(blobs: Blobs) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields word after word: the texts that have one more, and the word of each of them."""
    begins, left = blobs.offsets[:-1].copy(), blobs.sizes
    long = np.flatnonzero(left > _LONGEST)
    spans = zip(begins[long].tolist(), blobs.offsets[long + 1].tolist(), strict=True)
    digests = [
        hashlib.blake2b(blobs.data[begin:end].tobytes(), digest_size=_DIGEST_BYTES).digest()
        for begin, end in spans
    ]
    begins[long] = blobs.data.size + np.arange(long.size) * _DIGEST_BYTES
    left[long] = _DIGEST_BYTES
    behind = np.frombuffer(b"".join(digests) + bytes(_WORD), np.uint8)
    filled = np.concatenate([blobs.data, behind])
    view = np.ndarray((filled.size - _WORD + 1,), "<u8", filled, strides=(1,))
    rows = np.flatnonzero(left)
    while rows.size:
        yield rows, view[begins[rows]] & _KEPT[np.minimum(left[rows], _WORD)]
        begins += _WORD
        left -= _WORD
        rows = rows[left[rows] > 0]
