"""TFRecord framing: length, masked CRC of the length, payload, masked CRC of the payload.

Source of the format: tensorflow/core/lib/io/record_writer.h, and tensorflow/core/lib/hash/crc32c.h
for the mask.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeVar

import google_crc32c

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


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of data as an unsigned 32-bit integer."""
    return int(google_crc32c.value(data))


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of data."""
    return mask(crc32c(data))


def mask(crc: Crc) -> Crc:
    """Return a CRC-32C, or an array of them, in the masked form of TFRecord files."""
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Return payload as one framed record."""
    length = struct.pack("<Q", len(payload))
    header = length + _CRC.pack(masked_crc(length))
    return b"".join((header, payload, _CRC.pack(masked_crc(payload))))


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
        raise FormatError("length-crc")
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
        raise FormatError("payload-crc")
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
            raise FormatError("record-truncated", number=number)
        length, crc = unpack(content, at)
        if mask(crc_of(content[at : at + 8])) != crc:
            raise FormatError("record-length-crc", number=number)
        at += HEADER_BYTES + length + FOOTER_BYTES
        if at > end:
            raise FormatError("record-truncated", number=number)
        offsets.append(at)
    return offsets


def multiply(factor: int, crc: Crc) -> Crc:
    """Return the product of a polynomial and a CRC-32C, or an array of them, as a CRC-32C.

    The factors are polynomials over GF(2), modulo that of CRC-32C, with their bits reversed: bit 31
    is the coefficient of 1.
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
    """Return the CRC-32C of A + B from those of A and B and the length of B in bytes.

    The method is that of zlib's crc32_combine, with the Castagnoli polynomial.
    """
    for power, factor in enumerate(_FACTORS):
        if second_bytes >> power & 1:
            first = multiply(factor, first)
    return first ^ second
