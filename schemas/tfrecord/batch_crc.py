"""CRC-32C arithmetic on many records at once.

A CRC is linear: that of A + B follows from those of A and B and the length of B. So the CRC of a
stretch of records follows from the CRCs that the records themselves state, and one comparison with
the CRC of the stretch's bytes checks them all. Any single damage that the CRC of its record would
show, shows; several at once hide each other as seldom as they hide from any CRC-32C.

The method is that of ``framing.combine_crc32c``, with tables in place of matrices.
"""

from __future__ import annotations

from functools import lru_cache

import google_crc32c
import numpy as np

from shardmill.schemas.tfrecord.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    MASK_DELTA,
    POLYNOMIAL,
    zero_operators,
)

_DIGIT = 6  # bits of a distance that one table advances over
_DIGITS = 4
FARTHEST = 1 << _DIGIT * _DIGITS
_ONES = np.uint32(0xFFFFFFFF)


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return table


_TABLE = _byte_table()


def masked(crcs: np.ndarray) -> np.ndarray:
    """Returns CRCs as TFRecord files store them."""
    rotated = (crcs >> np.uint32(15)) | (crcs << np.uint32(17))
    result: np.ndarray = rotated + np.uint32(MASK_DELTA)
    return result


def unmasked(masks: np.ndarray) -> np.ndarray:
    """Returns CRCs from the form that TFRecord files store."""
    rotated = masks - np.uint32(MASK_DELTA)
    result: np.ndarray = (rotated >> np.uint32(17)) | (rotated << np.uint32(15))
    return result


def length_crcs(lengths: np.ndarray) -> np.ndarray:
    """Returns the CRC of each length, a 64-bit integer, as it stands in a header."""
    crcs = np.full(lengths.shape, _ONES)
    for shift in range(0, 64, 8):
        byte = (lengths >> np.uint64(shift)).astype(np.uint8)
        crcs = _TABLE[crcs.astype(np.uint8) ^ byte] ^ (crcs >> np.uint32(8))
    result: np.ndarray = ~crcs
    return result


@lru_cache(maxsize=1)
def _tables() -> tuple[np.ndarray, ...]:
    """For each digit of a distance, all its values and all bytes of a CRC: the CRC advanced."""
    operators = zero_operators(_DIGIT * _DIGITS)
    units = np.concatenate([np.arange(256, dtype=np.uint32) << np.uint32(8 * n) for n in range(4)])
    tables = []
    for digit in range(_DIGITS):
        rows = np.empty((1 << _DIGIT, units.size), np.uint32)
        rows[0] = units
        for bit in range(_DIGIT):
            matrix = operators[digit * _DIGIT + bit]
            rows[1 << bit : 2 << bit] = _times(matrix, rows[: 1 << bit])
        tables.append(rows.reshape(-1))
    return tuple(tables)


def _times(matrix: list[int], vectors: np.ndarray) -> np.ndarray:
    result = np.zeros_like(vectors)
    for bit, column in enumerate(matrix):
        result ^= np.where(vectors >> np.uint32(bit) & np.uint32(1), np.uint32(column), 0)
    return result


def _lookup(table: np.ndarray, rows: np.ndarray, crcs: np.ndarray) -> np.ndarray:
    parts = crcs.astype("<u4").view(np.uint8).reshape(-1, 4)
    result: np.ndarray = table[rows + parts[:, 0]]
    for number in range(1, 4):
        result = result ^ table[rows + 256 * number + parts[:, number]]
    return result


def advanced(crcs: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Returns each CRC advanced over a number of zero bytes, less than ``FARTHEST``.

    ``crc(A + B) == advanced(crc(A), len(B)) ^ crc(B)``.
    """
    for number, table in enumerate(_tables()):
        digits = distances >> (number * _DIGIT) & ((1 << _DIGIT) - 1)
        crcs = _lookup(table, digits << 10, crcs)
    return crcs


def _advanced_4(crcs: np.ndarray) -> np.ndarray:
    return _lookup(_tables()[0], np.array([4 << 10]), crcs)


def first_wrong_length(data: bytes, begins: np.ndarray) -> int:
    """Returns the first of the headers in data whose length and mask do not agree, or -1.

    Args:
        data: The bytes.
        begins: Where the headers begin, int64.
    """
    size = len(data) - HEADER_BYTES + 1
    lengths = np.ndarray((size,), "<u8", data, strides=(1,))[begins]
    masks = np.ndarray((size,), "<u4", data, offset=8, strides=(1,))[begins]
    wrong = np.flatnonzero(masked(length_crcs(lengths)) != masks)
    return int(wrong[0]) if wrong.size else -1


def add_up(data: bytes, begins: np.ndarray) -> bool:
    """Tells whether a stretch of records has the CRC that follows from what the records state.

    Args:
        data: The bytes.
        begins: Where each record begins, one directly behind the other and with lengths that
            passed their check, and where the last one ends; int64.
    """
    start, stop = int(begins[0]), int(begins[-1])
    if stop - start >= FARTHEST:
        return False
    ends = begins[1:]
    lengths, which = np.unique(
        ends - begins[:-1] - HEADER_BYTES - FOOTER_BYTES, return_inverse=True
    )
    of_length = length_crcs(lengths.astype(np.uint64))
    headers = _advanced_4(of_length ^ masked(of_length) ^ _ONES) ^ _ONES
    stated = np.ndarray((len(data) - FOOTER_BYTES + 1,), "<u4", data, strides=(1,))[
        ends - FOOTER_BYTES
    ]
    bodies = advanced(headers, lengths)[which] ^ unmasked(stated)
    records = _advanced_4(bodies ^ stated ^ _ONES) ^ _ONES
    whole = np.bitwise_xor.reduce(advanced(records, stop - ends))
    return bool(int(whole) == google_crc32c.value(data[start:stop]))
