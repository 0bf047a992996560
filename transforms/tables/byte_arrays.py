"""Byte strings stored in one array, and hashes of them and of row numbers, without a Python loop.

The hashes decide each row's split and position. A row's identity is its file and byte offset, or
the text of a key column. A hash has two 64-bit halves, one for the split and one for the position,
computed alike from different salts. Golden tests pin the hashes: a change would reshuffle every
user's splits. They spread well and are cheap; they do not resist an attacker who searches for
collisions.

Definition, with all sums and products modulo 2**64::

    step(state, word):  x = (state ^ word) + 0x9E3779B97F4A7C15
                        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9
                        x = (x ^ x >> 27) * 0x94D049BB133111EB
                        x ^ x >> 31
    salts:              blake2b of the file's key (for texts: of nothing), 16 bytes, salted with the
                        seed as 16 bytes little-endian, personalised "shardmill-row" ("-text"); two
                        big-endian numbers, for the split and for the position
    of an offset:       step(step(salt, offset), salt)
    of a text:          the salt, stepped over the text's words, then over its length in bytes;
                        words are 8 bytes little-endian, the last padded with zeros; a text of
                        more than 128 bytes is replaced by its 16 bytes of blake2b

``step`` is splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014)
with its published constants.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.dataset.splits import Splits

_NOTHING = pa.scalar(b"", pa.large_binary())
_ROW, _TEXT = b"shardmill-row", b"shardmill-text"
_WORD = 8  # bytes
_MAX_STEPPED_BYTES = 128  # longer texts are hashed by blake2b first: few texts share a late step
_DIGEST_BYTES = 16
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIXES = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)
# Mask of the bits that belong to a text in its next word, indexed by the bytes left (0 to 8).
_WORD_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)
_HALF_BITS = np.uint64(32)
_LOW_MASK = np.uint64(0xFFFFFFFF)


class ByteStrings(NamedTuple):
    """Byte strings stored back to back.

    Attributes:
        data: uint8, the concatenated bytes.
        offsets: int64[n + 1], start of each string and end of the last; the first is 0.
    """

    data: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of_arrow(cls, array: pa.Array) -> ByteStrings:
        """Return the values of a binary or large_binary array without nulls, without a copy."""
        if not len(array):
            return cls(np.empty(0, np.uint8), np.zeros(1, np.int64))
        large = array.cast(pa.large_binary())
        _, offset_buffer, data = large.buffers()
        offsets = np.frombuffer(offset_buffer, np.int64)
        offsets = offsets[large.offset : large.offset + len(large) + 1]
        all_bytes = np.frombuffer(data or b"", np.uint8)
        return cls(all_bytes[offsets[0] : offsets[-1]], offsets - offsets[0])

    @classmethod
    def fixed(cls, data: np.ndarray, number: int) -> ByteStrings:
        """Return a number of byte strings of one size that are stored back to back."""
        return cls(data, np.arange(number + 1, dtype=np.int64) * (data.size // max(1, number)))

    @property
    def number(self) -> int:
        """Number of byte strings."""
        return self.offsets.size - 1

    @property
    def sizes(self) -> np.ndarray:
        """Length of each string in bytes, int64[n]."""
        return np.diff(self.offsets)

    @property
    def width(self) -> int:
        """Length of all strings, or 0 if they are empty, or differ in it."""
        sizes = self.sizes
        if sizes.size and (sizes == sizes[0]).all():
            return int(sizes[0])
        return 0

    def arrow(self) -> pa.LargeBinaryArray:
        """Return the strings as an Arrow array without a copy; 64-bit offsets do not overflow."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), self.number, buffers)


def offsets_from_sizes(sizes: np.ndarray) -> np.ndarray:
    """Return the offsets, int64[n + 1], of items of these sizes stored back to back."""
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def headers_of(
    sizes: np.ndarray, header: Callable[[int], bytes]
) -> tuple[pa.LargeBinaryArray, np.ndarray]:
    """Return the distinct headers of items, and the index of each item's header; int32[n].

    Args:
        sizes: Bytes of each item; int64[n].
        header: Returns the header for a size; called once per size.
    """
    encoded = pa.array(sizes).dictionary_encode()
    headers = pa.array([*map(header, encoded.dictionary.to_pylist())], pa.large_binary())
    return headers, encoded.indices.to_numpy()


def prepend_headers(strings: ByteStrings, header: Callable[[int], bytes]) -> ByteStrings:
    """Return each byte string with a header in front that depends only on its size.

    Args:
        strings: The byte strings.
        header: Returns the header for a size in bytes, empty for 0 alone; called once per size.
    """
    size = strings.width
    if size:  # as of float32 values
        start = header(size)
        both = np.empty(strings.number, [("start", f"V{len(start)}"), ("value", f"V{size}")])
        both["start"] = np.void(start)
        both["value"] = strings.data.view(f"V{size}")
        return ByteStrings.fixed(both.view(np.uint8), strings.number)
    headers, rows = headers_of(strings.sizes, header)
    joined = pc.binary_join_element_wise(headers.take(pa.array(rows)), strings.arrow(), _NOTHING)
    return ByteStrings.of_arrow(joined)


class Hashes(NamedTuple):
    """The two halves of each row's hash.

    Attributes:
        split: uint64[rows], decides the split.
        position: uint64[rows], position in the global order.
    """

    split: np.ndarray
    position: np.ndarray


def hash_offsets(seed: int, file_key: str, offsets: np.ndarray) -> Hashes:
    """Return the hashes of rows identified by file and offset; distinct within a file.

    Args:
        seed: 0 to 2**64 - 1.
        file_key: Key of the file.
        offsets: int64[rows], offset of each row's first byte.
    """
    words = offsets.astype(np.uint64)
    split, position = (
        _step(_step(np.full(words.shape, salt), words), salt)
        for salt in _salts(seed, file_key.encode(), _ROW)
    )
    return Hashes(split, position)


def hash_texts(seed: int, texts: pa.Array) -> Hashes:
    """Return the hashes of rows identified by a text; equal texts have equal hashes.

    Args:
        seed: 0 to 2**64 - 1.
        texts: binary or large_binary, without nulls.
    """
    strings = ByteStrings.of_arrow(texts)
    halves = [np.full(strings.number, salt) for salt in _salts(seed, b"", _TEXT)]
    for rows, words in _iter_words(strings):
        for half in halves:
            half[rows] = _step(half[rows], words)
    lengths = strings.sizes.astype(np.uint64)
    split, position = (_step(half, lengths) for half in halves)
    return Hashes(split, position)


def split_numbers(splits: Splits, hashes: np.ndarray) -> np.ndarray:
    """Return the index into ``splits.names`` of each hash, as ``Splits.of_hash`` does; int32[rows].

    Args:
        splits: Splits by fractions.
        hashes: uint64[rows].
    """
    # No hash reaches 2**64, which does not fit into uint64 either.
    bounds = [bound for bound in splits.bounds if bound < 1 << 64]
    indices = np.searchsorted(np.array(bounds, np.uint64), hashes, side="right")
    return indices.astype(np.int32)


def rank(position: np.ndarray) -> np.ndarray:
    """Return the rank of rows in a random order that is independent of their positions.

    It is below 2**63, as Beam's coder of integers demands.
    """
    result: np.ndarray = _step(position, np.uint64(0)) >> np.uint64(1)
    return result


def part_numbers(position: np.ndarray, parts: int) -> np.ndarray:
    """Return the part of each position, as ``part_of`` does; int64[rows].

    Args:
        position: uint64[rows].
        parts: Number of equal slices of the order, 1 to 2**31.
    """
    factor = np.uint64(parts)
    # The product has up to 95 bits; the products of its halves and their sum fit into 64.
    low = (position & _LOW_MASK) * factor >> _HALF_BITS
    result: np.ndarray = ((position >> _HALF_BITS) * factor + low >> _HALF_BITS).astype(np.int64)
    return result


def _salts(seed: int, key: bytes, person: bytes) -> tuple[np.uint64, np.uint64]:
    digest = hashlib.blake2b(
        key, digest_size=_DIGEST_BYTES, salt=seed.to_bytes(16, "little"), person=person
    ).digest()
    split, position = struct.unpack(">QQ", digest)
    return np.uint64(split), np.uint64(position)


def _step(states: np.ndarray, words: np.ndarray | np.uint64) -> np.ndarray:
    result: np.ndarray = states ^ words
    result += _GAMMA
    for shift, factor in _MIXES:
        result ^= result >> shift
        result *= factor
    result ^= result >> _LAST_SHIFT
    return result


def _iter_words(texts: ByteStrings) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for n = 0, 1, …, the indices of texts with an n-th word, and those words."""
    begins, left = texts.offsets[:-1].copy(), texts.sizes
    long = np.flatnonzero(left > _MAX_STEPPED_BYTES)
    spans = zip(begins[long].tolist(), texts.offsets[long + 1].tolist(), strict=True)
    digests = [
        hashlib.blake2b(texts.data[begin:end].tobytes(), digest_size=_DIGEST_BYTES).digest()
        for begin, end in spans
    ]
    begins[long] = texts.data.size + np.arange(long.size) * _DIGEST_BYTES
    left[long] = _DIGEST_BYTES
    padding = np.frombuffer(b"".join(digests) + bytes(_WORD), np.uint8)
    padded = np.concatenate([texts.data, padding])
    view = np.ndarray((padded.size - _WORD + 1,), "<u8", padded, strides=(1,))
    rows = np.flatnonzero(left)
    while rows.size:
        yield rows, view[begins[rows]] & _WORD_MASKS[np.minimum(left[rows], _WORD)]
        begins += _WORD
        left -= _WORD
        rows = rows[left[rows] > 0]
