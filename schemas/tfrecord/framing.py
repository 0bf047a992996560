"""TFRecord framing: length, masked CRC of the length, payload, masked CRC of the payload.

The CRCs of many records are checked at once, vectorised over NumPy arrays. A CRC is linear: the CRC
of A + B follows from the CRCs of A and B and the length of B. So the CRC of consecutive records
follows from the CRCs that are stored in the records, and one comparison with the CRC of their bytes
checks all of them. Damage to a single record is detected as reliably as by the record's own CRC,
and damage to several as reliably as by any CRC-32C.

Source of the format: tensorflow/core/lib/io/record_writer.h, and tensorflow/core/lib/hash/crc32c.h
for the mask.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import google_crc32c
import numpy as np

from shardmill.schemas.errors import FormatError

if TYPE_CHECKING:
    import numpy.typing as npt

    Crc = TypeVar("Crc", int, npt.NDArray[Any])

HEADER_BYTES = 12
FOOTER_BYTES = 4
MASK_DELTA = 0xA282EAD8
POLYNOMIAL = 0x82F63B78  # Castagnoli, bit-reversed
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_DIGIT = 6  # bits of a distance that one table handles
_DIGITS = 4
MAX_DISTANCE = 1 << _DIGIT * _DIGITS
_ONES = np.uint32(0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of data as an unsigned 32-bit integer."""
    return int(google_crc32c.value(data))


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of data."""
    return mask(crc32c(data))


def mask(crc: Crc) -> Crc:
    """Return a CRC-32C, or an array of them, in the masked form of TFRecord files."""
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF


def frame_pieces(payload: bytes) -> tuple[bytes, bytes, bytes]:
    """Return a framed record as header, payload and footer, without a copy of the payload."""
    length = struct.pack("<Q", len(payload))
    return length + _CRC.pack(masked_crc(length)), payload, _CRC.pack(masked_crc(payload))


def frame(payload: bytes) -> bytes:
    """Return payload as one framed record."""
    return b"".join(frame_pieces(payload))


def starts_record(data: bytes, at: int = 0) -> bool:
    """Return whether data has a valid record header at an offset."""
    length, crc = data[at : at + 8], data[at + 8 : at + HEADER_BYTES]
    return len(crc) == 4 and masked_crc(length) == int.from_bytes(crc, "little")


def unframe(framed: bytes) -> bytes:
    """Return the payload of one framed record after checking both of its CRCs.

    Raises:
        FormatError: The record is damaged.
    """
    length = len(framed) - HEADER_BYTES - FOOTER_BYTES
    if not starts_record(framed) or int.from_bytes(framed[:8], "little") != length:
        raise FormatError("the CRC of its length does not match")
    return payload_at(framed, 0, len(framed))


def payload_at(content: bytes, start: int, end: int) -> bytes:
    """Return the payload of a framed record of content, whose length was checked.

    Args:
        content: Framed records.
        start: Offset of the record.
        end: Offset after it.

    Raises:
        FormatError: The CRC of the payload does not match.
    """
    payload = content[start + HEADER_BYTES : end - FOOTER_BYTES]
    if _CRC.unpack_from(content, end - FOOTER_BYTES)[0] != masked_crc(payload):
        raise FormatError("the CRC of its payload does not match")
    return payload


def record_offsets(content: bytes) -> list[int]:
    """Return the offset of each framed record in content, followed by the length of content.

    Raises:
        FormatError: The CRC of a length does not match, or the last record is truncated.
    """
    offsets, at, end = [0], 0, len(content)
    unpack, crc_of = _HEADER.unpack_from, google_crc32c.value
    while at < end:
        number = len(offsets) - 1
        if end - at < HEADER_BYTES:
            raise truncated_record(number)
        length, crc = unpack(content, at)
        if mask(crc_of(content[at : at + 8])) != crc:
            raise wrong_length_crc(number)
        at += HEADER_BYTES + length + FOOTER_BYTES
        if at > end:
            raise truncated_record(number)
        offsets.append(at)
    return offsets


def truncated_record(number: object) -> FormatError:
    """Return the error for a record that ends too early."""
    return FormatError(f"record {number} is truncated")


def wrong_length_crc(number: object) -> FormatError:
    """Return the error for a record whose length is damaged."""
    return FormatError(f"the CRC of the length of record {number} does not match")


def multiply(factor: int, crc: Crc) -> Crc:
    """Return the product of a polynomial and a CRC-32C, or an array of them, as a CRC-32C.

    The factors are polynomials over GF(2), modulo CRC-32C's polynomial, with their bits reversed:
    bit 31 is the coefficient of 1.
    """
    product: Crc = crc ^ crc
    for bit in range(31, -1, -1):
        if factor >> bit & 1:
            product = product ^ crc
        crc = (crc >> 1) ^ (crc & 1) * POLYNOMIAL
    return product


def zero_factors(count: int) -> list[int]:
    """Return the factors that advance a CRC-32C over 2**n zero bytes, for n below count."""
    factors = [1 << 31 - 8]
    while len(factors) < count:
        factors.append(multiply(factors[-1], factors[-1]))
    return factors


_FACTORS = zero_factors(64)


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32C of A + B, given the CRCs of A and B and the length of B in bytes.

    As zlib's crc32_combine does, but with the Castagnoli polynomial.
    """
    for power, factor in enumerate(_FACTORS):
        if second_bytes >> power & 1:
            first = multiply(factor, first)
    return first ^ second


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
        # linearity the advanced CRC is the XOR of the advanced bytes.
        rows[0] = units
        for bit in range(_DIGIT):
            factor = factors[digit * _DIGIT + bit]
            # A row with this bit set is the row without it, advanced again by 2**bit zero bytes.
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
    if wrong.size:
        return int(wrong[0])
    return -1


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
    # Advanced to the end of the last record, the CRCs of all records add up to the bytes' CRC.
    whole = np.bitwise_xor.reduce(advance(records, stop - ends))
    return bool(int(whole) == google_crc32c.value(data[start:stop]))
