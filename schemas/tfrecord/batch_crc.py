"""CRC-32C checks of many records at once, vectorised over NumPy arrays.

A CRC is linear: the CRC of A + B follows from those of A and B and the length of B. So the CRC of
consecutive records follows from the CRCs that are stored in the records, and one comparison with
the CRC of their bytes checks all of them. Damage to a single record is detected as reliably as by
the record's own CRC, and damage to several as reliably as by any CRC-32C.

The method is that of ``framing.combine_crc32c``, with lookup tables.
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
    mask,
    multiply,
    zero_factors,
)

_DIGIT = 6  # bits of a distance that one table handles
_DIGITS = 4
MAX_DISTANCE = 1 << _DIGIT * _DIGITS
_ONES = np.uint32(0xFFFFFFFF)


def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return table


_TABLE = _byte_table()


def unmask(masks: np.ndarray) -> np.ndarray:
    """Return CRCs, uint32, from their masked form; the inverse of ``framing.mask``."""
    rotated = masks - np.uint32(MASK_DELTA)
    result: np.ndarray = (rotated >> np.uint32(17)) | (rotated << np.uint32(15))
    return result


def length_crcs(lengths: np.ndarray) -> np.ndarray:
    """Return the CRCs, uint32, of the 8 bytes of each length, uint64."""
    crcs = np.full(lengths.shape, _ONES)
    for shift in range(0, 64, 8):
        byte = (lengths >> np.uint64(shift)).astype(np.uint8)
        crcs = _TABLE[crcs.astype(np.uint8) ^ byte] ^ (crcs >> np.uint32(8))
    result: np.ndarray = ~crcs
    return result


@lru_cache(maxsize=1)
def _tables() -> tuple[np.ndarray, ...]:
    """Return a table for each digit of a distance: the advanced CRC by digit and CRC byte."""
    factors = zero_factors(_DIGIT * _DIGITS)
    units = np.concatenate([np.arange(256, dtype=np.uint32) << np.uint32(8 * n) for n in range(4)])
    tables = []
    for digit in range(_DIGITS):
        rows = np.empty((1 << _DIGIT, units.size), np.uint32)
        # units has each byte value in each of the four bytes of a CRC. A CRC is their XOR, so by
        # linearity it advances as the XOR of what they advance to.
        rows[0] = units
        for bit in range(_DIGIT):
            factor = factors[digit * _DIGIT + bit]
            # Rows with this bit set are those without it, advanced again by 2**bit zero bytes.
            rows[1 << bit : 2 << bit] = multiply(factor, rows[: 1 << bit])
        tables.append(rows.reshape(-1))
    return tuple(tables)


def _lookup(table: np.ndarray, rows: np.ndarray, crcs: np.ndarray) -> np.ndarray:
    parts = crcs.astype("<u4").view(np.uint8).reshape(-1, 4)
    result: np.ndarray = table[rows + parts[:, 0]]
    for number in range(1, 4):
        result = result ^ table[rows + 256 * number + parts[:, number]]
    return result


def advance(crcs: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Return each CRC advanced over a number of zero bytes, less than ``MAX_DISTANCE``.

    ``crc(A + B) == advance(crc(A), len(B)) ^ crc(B)``.
    """
    for number, table in enumerate(_tables()):
        digits = distances >> (number * _DIGIT) & ((1 << _DIGIT) - 1)
        crcs = _lookup(table, digits << 10, crcs)
    return crcs


def _advance_4(crcs: np.ndarray) -> np.ndarray:
    return _lookup(_tables()[0], np.array([4 << 10]), crcs)


def find_damaged_length(data: bytes, begins: np.ndarray) -> int:
    """Return the number of the first header whose length does not match its CRC, or -1.

    Args:
        data: Bytes with record headers.
        begins: Offset of each header, int64.
    """
    size = len(data) - HEADER_BYTES + 1
    lengths = np.ndarray((size,), "<u8", data, strides=(1,))[begins]
    masks = np.ndarray((size,), "<u4", data, offset=8, strides=(1,))[begins]
    wrong = np.flatnonzero(mask(length_crcs(lengths)) != masks)
    return int(wrong[0]) if wrong.size else -1


def all_payloads_match(data: bytes, begins: np.ndarray) -> bool:
    """Return whether consecutive records match their CRCs; False also if there are too many.

    Args:
        data: Bytes with records.
        begins: Offset of each record and of the end of the last one, int64. The lengths of the
            records have been checked.
    """
    start, stop = int(begins[0]), int(begins[-1])
    if stop - start >= MAX_DISTANCE:
        return False
    ends = begins[1:]
    # Most records of a dataset have one of few lengths, so the work per length is small.
    lengths, which = np.unique(
        ends - begins[:-1] - HEADER_BYTES - FOOTER_BYTES, return_inverse=True
    )
    of_length = length_crcs(lengths.astype(np.uint64))
    # A record is its length (8 bytes), the masked CRC of that (4), the payload, and the masked CRC
    # of the payload (4). The CRC of a record follows from these without reading the payload: four
    # bytes are added to a CRC by XOR with its register, which is the CRC without the final
    # inversion (^ _ONES), and advancing by four bytes.
    headers = _advance_4(of_length ^ mask(of_length) ^ _ONES) ^ _ONES
    stated = np.ndarray((len(data) - FOOTER_BYTES + 1,), "<u4", data, strides=(1,))[
        ends - FOOTER_BYTES
    ]
    bodies = advance(headers, lengths)[which] ^ unmask(stated)
    records = _advance_4(bodies ^ stated ^ _ONES) ^ _ONES
    # Advanced to the end of the last record, the CRCs of all records add up to that of their bytes.
    whole = np.bitwise_xor.reduce(advance(records, stop - ends))
    return bool(int(whole) == google_crc32c.value(data[start:stop]))
