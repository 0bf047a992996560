"""Scanner that counts and checks the records of a byte stream.

Memory does not depend on the value of length fields: only bytes that were fed are buffered.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import NamedTuple

import google_crc32c
import numpy as np

from shardmill.schemas.errors import FormatError
from shardmill.schemas.tfrecord.framing import (
    FOOTER_BYTES,
    HEADER_BYTES,
    all_payloads_match,
    find_damaged_length,
    mask,
    masked_crc,
    starts_record,
)

# Reasons for which a file, or the rest of it, cannot be counted, with their explanations.
FAULTS = {
    "truncated": "the file ends inside a record or inside compressed data",
    "length_crc": "the CRC of a record's length does not match",
    "payload_crc": "the CRC of a record's payload does not match",
    "bad_gzip": "compressed data cannot be decompressed, or fails the checksum of its format",
    "trailing_garbage": "extra bytes follow the compressed data",
    "not_tfrecord": "the file has no TFRecords: text, a Git LFS pointer, a web page, zeros, ...",
    "empty": "the file has no bytes where other files have records",
    "changed": "the file changed while it was read",
    "not_found": "the file does not exist, or no longer",
    "unreadable": "reading the file is not allowed",
}
# Reasons with a place in the file; the others concern all of it.
LOCATED = frozenset({"truncated", "length_crc", "payload_crc", "bad_gzip", "trailing_garbage"})
_FOOTER = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_MANY = 64  # records from which on a vectorised check is faster


class FileFault(NamedTuple):
    """The first problem of a file.

    Attributes:
        reason: A key of ``FAULTS``.
        record: Number of the record with the problem; the first record is 0.
        offset: Offset of that record in the decompressed data.
        message: Description of the problem.
    """

    reason: str
    record: int
    offset: int
    message: str

    def __str__(self) -> str:
        if self.reason not in LOCATED:
            return self.message
        return f"record {self.record:,} at byte {self.offset:,}: {self.message}"


class DamagedError(FormatError):
    """A file is damaged, is not a TFRecord file, or cannot be opened.

    Attributes:
        fault: The problem and its place.
    """

    def __init__(self, fault: FileFault) -> None:
        super().__init__(str(fault))
        self.fault = fault

    def __reduce__(self) -> tuple[type[DamagedError], tuple[FileFault]]:
        return type(self), (self.fault,)


class RecordScanner:
    """Counts and checks the records of a stream, which is fed in chunks of any size.

    Attributes:
        records: Number of complete records.
        offset: Offset of the next record.
    """

    def __init__(
        self,
        start: int = 0,
        *,
        check: bool = True,
        take: Callable[[bytes], object] | None = None,
    ) -> None:
        """Initializes the scanner.

        Args:
            start: Offset of the first byte that is fed, where a record begins.
            check: Whether to check the CRCs of payloads; lengths are always checked.
            take: Called with each valid payload.
        """
        self.records = 0
        self.offset = start
        self._fed = start
        self._check = check
        self._take = take
        self._held = bytearray()  # incomplete header or footer
        self._left = -1  # bytes missing of the payload; -1 before its header is complete
        self._length = 0
        self._crc = 0
        self._payload = bytearray()

    @property
    def is_between_records(self) -> bool:
        """Whether the last byte fed was the end of a record."""
        return self._fed == self.offset

    @property
    def pending_end(self) -> int:
        """End offset of an incomplete record whose length is known; else 0."""
        if self._left < 0:
            return 0
        return self.offset + self._length + HEADER_BYTES + FOOTER_BYTES

    def feed(self, data: bytes) -> None:
        """Scan the next bytes of the stream.

        Raises:
            DamagedError: A length or payload does not match its CRC.
        """
        # At most one record is incomplete at each end of data; those between are scanned at once.
        at = 0 if self.is_between_records else self._scan_partial(data, 0)
        # If that record goes on beyond data, all of data was used.
        if self._fed + at == self.offset:
            at = self._scan_complete(data, at)
            if at < len(data):
                self._scan_partial(data, at)
        self._fed += len(data)

    def close(self) -> None:
        """End the stream.

        Raises:
            DamagedError: The stream ended inside a record.
        """
        if self._fed > self.offset:
            raise self.truncated_error(self._fed)

    def truncated_error(self, size: int) -> DamagedError:
        """Return the error for a stream of ``size`` bytes, which ends inside a record."""
        whole = self._length + HEADER_BYTES + FOOTER_BYTES
        of = f" of its {whole:,}" if self._left >= 0 else ""
        return self._error("truncated", f"the file ends after {size - self.offset:,}{of} bytes")

    def _error(self, reason: str, message: str) -> DamagedError:
        return DamagedError(FileFault(reason, self.records, self.offset, message))

    def _scan_complete(self, data: bytes, at: int) -> int:
        """Scan the records that are complete in data; return where the next one begins.

        Offsets are computed from unchecked lengths first. The lengths and payloads are checked
        afterwards, which can be vectorised.
        """
        # A damaged length leads anywhere, even beyond data: offsets after it are discarded below,
        # and no memory depends on it. The walk ends, since each record has at least 16 bytes.
        limit = len(data) - HEADER_BYTES
        length_at = _LENGTH.unpack_from
        begins: list[int] = []
        while at <= limit:
            begins.append(at)
            at += length_at(data, at)[0] + HEADER_BYTES + FOOTER_BYTES
        if len(begins) >= _MANY:
            damaged = find_damaged_length(data, np.array(begins))
        else:
            damaged = next((n for n, at in enumerate(begins) if not starts_record(data, at)), -1)
        complete = len(begins) if damaged < 0 else damaged
        begins.append(at)
        if damaged < 0 and at > len(data):
            complete -= 1  # the last record continues after data
        # Payloads before a damaged length are checked first: an earlier fault counts.
        self._check_payloads(data, begins[: complete + 1])
        if damaged >= 0:
            raise self._bad_length()
        return begins[complete]

    def _check_payloads(self, data: bytes, begins: list[int]) -> None:
        """Check, take and count consecutive records that are complete in data.

        Args:
            data: The bytes.
            begins: Offset of each record, and of the end of the last one.

        Raises:
            DamagedError: A payload does not match its CRC. Those before it were taken and counted.
        """
        check, take = self._check, self._take
        count = len(begins) - 1
        # If the one check of all fails, each record is checked alone, to name the damaged one.
        if check and count >= _MANY and all_payloads_match(data, np.array(begins)):
            check = False
        if check or take is not None:
            for at, end in itertools.pairwise(begins):
                payload = data[at + HEADER_BYTES : end - FOOTER_BYTES]
                if (
                    check
                    and masked_crc(payload) != _FOOTER.unpack_from(data, end - FOOTER_BYTES)[0]
                ):
                    self.offset = self._fed + at
                    raise self._bad_payload()
                if take is not None:
                    take(payload)
                self.records += 1
        else:
            self.records += count
        self.offset = self._fed + begins[-1]

    def _scan_partial(self, data: bytes, at: int) -> int:
        """Scan one record that is not complete in data; return where it ends in data."""
        if self._left < 0:
            at = self._hold(data, at, HEADER_BYTES)
            if len(self._held) < HEADER_BYTES:
                return at
            (self._length,) = _LENGTH.unpack_from(self._held)
            if not starts_record(bytes(self._held)):
                raise self._bad_length()
            # Nothing is reserved for the length, which may be huge.
            self._left, self._crc = self._length, 0
            self._held.clear()
        # The payload is not collected unless it is taken, so a record may be larger than memory.
        if self._left:
            piece = data[at : at + self._left]
            if self._check:
                self._crc = google_crc32c.extend(self._crc, piece)
            if self._take is not None:
                self._payload += piece
            at += len(piece)
            self._left -= len(piece)
            if self._left:
                return at
        at = self._hold(data, at, FOOTER_BYTES)
        if len(self._held) == FOOTER_BYTES:
            self._end_record()
        return at

    def _hold(self, data: bytes, at: int, size: int) -> int:
        piece = data[at : at + size - len(self._held)]
        self._held += piece
        return at + len(piece)

    def _end_record(self) -> None:
        if self._check and _FOOTER.unpack(self._held)[0] != mask(self._crc):
            raise self._bad_payload()
        self._held.clear()
        self._left = -1
        self.records += 1
        self.offset += self._length + HEADER_BYTES + FOOTER_BYTES
        if self._take is not None:
            self._take(bytes(self._payload))
            self._payload.clear()

    def _bad_payload(self) -> DamagedError:
        return self._error("payload_crc", "the CRC of its payload does not match")

    def _bad_length(self) -> DamagedError:
        return self._error("length_crc", "the CRC of its length does not match")
