"""TFRecord framing: length, masked CRC of the length, payload, masked CRC of the payload.

Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import struct

import google_crc32c

HEADER_BYTES = 12
FOOTER_BYTES = 4
MASK_DELTA = 0xA282EAD8
POLYNOMIAL = 0x82F63B78  # Castagnoli, its bits reversed


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of data as an unsigned 32-bit integer."""
    return int(google_crc32c.value(data))


def masked_crc(data: bytes) -> int:
    """Returns the CRC-32C of data, rotated and offset as TFRecord files store it."""
    return mask(crc32c(data))


def mask(crc: int) -> int:
    """Returns a CRC, rotated and offset as TFRecord files store it."""
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Returns payload as one framed TFRecord record."""
    length = struct.pack("<Q", len(payload))
    return b"".join(
        (
            length,
            struct.pack("<I", masked_crc(length)),
            payload,
            struct.pack("<I", masked_crc(payload)),
        )
    )


def _times(matrix: list[int], vector: int) -> int:
    total = 0
    row = 0
    while vector:
        if vector & 1:
            total ^= matrix[row]
        vector >>= 1
        row += 1
    return total


def _squared(matrix: list[int]) -> list[int]:
    return [_times(matrix, row) for row in matrix]


def zero_operators(count: int) -> list[list[int]]:
    """Returns matrices that advance a CRC-32C over 2**n zero bytes, for n below count.

    A matrix is a list of 32 columns, each an unsigned 32-bit integer.
    """
    one_bit = [POLYNOMIAL, *(1 << n for n in range(31))]
    operators = [_squared(_squared(_squared(one_bit)))]
    while len(operators) < count:
        operators.append(_squared(operators[-1]))
    return operators


_OPERATORS = zero_operators(64)


def combine_crc32c(first: int, second: int, second_bytes: int) -> int:
    """Returns the CRC-32C of A + B from those of A and B and the length of B in bytes.

    The method is zlib's crc32_combine (GF(2) matrices) with the Castagnoli polynomial.
    """
    power = 0
    while second_bytes:
        if second_bytes & 1:
            first = _times(_OPERATORS[power], first)
        second_bytes >>= 1
        power += 1
    return first ^ second
