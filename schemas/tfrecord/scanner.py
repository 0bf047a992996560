"""Checking a stream of TFRecords, whatever pieces it comes in.

Memory does not depend on what a length field says: only bytes that are there are ever held.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import NamedTuple

import google_crc32c
import numpy as np

from shardmill.schemas.errors import FormatError
from shardmill.schemas.tfrecord import batch_crc
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES, mask, masked_crc

# Why a file, or what is left of it, cannot be counted: name and explanation.
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
_LOCATED = frozenset({"truncated", "length_crc", "payload_crc", "bad_gzip", "trailing_garbage"})
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_KNOWN_LENGTHS = 1 << 16
_BLOCK = 1 << 18  # places looked at together
_ZEROS = bytes(_BLOCK + HEADER_BYTES)
_MANY = 64  # records that are quicker checked together
_EVER = 1 << 80  # beyond any offset


class Fault(NamedTuple):
    """The first thing wrong with a file.

    Attributes:
        reason: A name of ``FAULTS``.
        record: Number of the record at which it is, the first being 0.
        offset: Where that record begins, in bytes of the uncompressed records.
        message: What exactly.
    """

    reason: str
    record: int
    offset: int
    message: str

    def __str__(self) -> str:
        if self.reason not in _LOCATED:
            return self.message
        return f"record {self.record:,} at byte {self.offset:,}: {self.message}"


class DamagedError(FormatError):
    """A file is damaged, or holds no TFRecords.

    Attributes:
        fault: What is wrong, and where.
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault

    def __reduce__(self) -> tuple[type[DamagedError], tuple[Fault]]:
        return type(self), (self.fault,)


class RecordScanner:
    """Counts and checks the records of a stream that is fed to it.

    Attributes:
        records: Records seen whole.
        offset: Where the next one begins.
    """

    def __init__(
        self, start: int = 0, stop: int = _EVER, *, check: bool = True,
        take: Callable[[bytes], object] | None = None,
    ) -> None:  # fmt: skip
        """Starts a scan.

        Args:
            start: Offset of the first byte that will be fed, where a record begins.
            stop: Records that begin here or later are left alone.
            check: Whether payloads are checked; lengths always are.
            take: Called with each payload that passed.
        """
        self.records = 0
        self.offset = start
        self._fed = start
        self._stop = stop
        self._check = check
        self._take = take
        self._masks: dict[int, int] = {}
        self._held = bytearray()  # of a header or footer
        self._left = -1  # of a payload; negative before its header is whole
        self._length = 0
        self._crc = 0
        self._payload = bytearray()

    @property
    def done(self) -> bool:
        """Whether all records that begin before ``stop`` were seen."""
        return self.offset >= self._stop

    @property
    def between(self) -> bool:
        """Whether the last byte fed ended a record."""
        return self._fed == self.offset

    @property
    def pending_end(self) -> int:
        """Where the record ends whose length is known and whose end was not fed; else 0."""
        if self._left < 0 or self.done:
            return 0
        return self.offset + self._length + HEADER_BYTES + FOOTER_BYTES

    def feed(self, data: bytes) -> None:
        """Scans the next bytes of the stream; nothing more once ``done``.

        Raises:
            DamagedError: A length or payload fails its check.
        """
        if self.done:
            return
        at = 0 if self.between else self._resume(data, 0)
        if self._fed + at == self.offset and not self.done:
            at = self._hop(data, at)
            if at < len(data) and not self.done:
                self._resume(data, at)
        self._fed += len(data)

    def close(self) -> None:
        """Ends the stream.

        Raises:
            DamagedError: It ended inside a record.
        """
        if self._fed > self.offset and not self.done:
            raise self.cut(self._fed)

    def cut(self, size: int) -> DamagedError:
        """Returns the error for a stream of so many bytes, which ends inside a record."""
        whole = self._length + HEADER_BYTES + FOOTER_BYTES
        of = f" of its {whole:,}" if self._left >= 0 else ""
        return self.damaged("truncated", f"the file ends after {size - self.offset:,}{of} bytes")

    def damaged(self, reason: str, message: str) -> DamagedError:
        """Returns the error for something wrong at the record that is being read."""
        return DamagedError(Fault(reason, self.records, self.offset, message))

    def _hop(self, data: bytes, at: int) -> int:
        """Scans the records that lie whole in data and returns where the next one begins.

        Lengths are added up right or wrong; then it is checked what they led to, for many small
        records all at once.
        """
        limit = min(len(data) - HEADER_BYTES, self._stop - self._fed - 1)
        length_at = _LENGTH.unpack_from
        begins: list[int] = []
        while at <= limit:
            begins.append(at)
            at += length_at(data, at)[0] + HEADER_BYTES + FOOTER_BYTES
        wrong = self._find_wrong_length(data, begins)
        whole = len(begins) if wrong < 0 else wrong
        begins.append(at)
        if wrong < 0 and at > len(data):
            whole -= 1  # the last one goes on behind data
        self._check_payloads(data, begins[: whole + 1])
        if wrong >= 0:
            raise self._bad_length()
        return begins[whole]

    def _find_wrong_length(self, data: bytes, begins: list[int]) -> int:
        """Returns the first of some records whose length fails its check, or -1."""
        if len(begins) >= _MANY:
            return batch_crc.first_wrong_length(data, np.array(begins))
        for number, at in enumerate(begins):
            if not self._is_sound(*_HEADER.unpack_from(data, at)):
                return number
        return -1

    def _check_payloads(self, data: bytes, begins: list[int]) -> None:
        """Checks, takes and counts records that lie whole in data, one behind the other.

        Args:
            data: The bytes.
            begins: Where each of them begins, and where the last one ends.

        Raises:
            DamagedError: A payload fails its check; those before it are taken and counted.
        """
        check, take = self._check, self._take
        count = len(begins) - 1
        if check and count >= _MANY and batch_crc.add_up(data, np.array(begins)):
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

    def _resume(self, data: bytes, at: int) -> int:
        """Scans one record that does not lie whole in data; returns where it ends there."""
        if self._left < 0:
            at = self._hold(data, at, HEADER_BYTES)
            if len(self._held) < HEADER_BYTES:
                return at
            self._length, stated = _HEADER.unpack(self._held)
            if not self._is_sound(self._length, stated):
                raise self._bad_length()
            self._left, self._crc = self._length, 0
            self._held.clear()
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

    def _hold(self, data: bytes, at: int, wanted: int) -> int:
        piece = data[at : at + wanted - len(self._held)]
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
        return self.damaged("payload_crc", "the CRC of its payload does not match")

    def _bad_length(self) -> DamagedError:
        return self.damaged("length_crc", "the CRC of its length does not match")

    def _is_sound(self, length: int, stated: int) -> bool:
        """Tells whether a length and its CRC agree, and remembers the right one."""
        known = self._masks.get(length)
        if known is None:
            if len(self._masks) >= _KNOWN_LENGTHS:
                self._masks.clear()
            known = self._masks[length] = masked_crc(struct.pack("<Q", length))
        return known == stated


def find_record(data: bytes, room: int) -> int:
    """Returns the first place in data where a record can begin, or -1.

    That is where a length and its CRC agree and the record fits; by chance one place in 2**32 does.

    Args:
        data: The bytes to look through.
        room: Bytes from the start of data to the end of the file.
    """
    for start in range(0, len(data) - HEADER_BYTES + 1, _BLOCK):
        places = min(_BLOCK, len(data) - HEADER_BYTES + 1 - start)
        width = places + HEADER_BYTES - 1
        if not data[start] and data[start : start + width] == _ZEROS[:width]:
            continue  # slow to look through, and no CRC of a length is 0
        lengths = np.ndarray((places,), "<u8", data, start, strides=(1,))
        limit = room - HEADER_BYTES - FOOTER_BYTES - start
        fits = np.flatnonzero(lengths <= np.uint64(max(0, limit)))
        masks = np.ndarray((places,), "<u4", data, start + 8, strides=(1,))
        for place in fits[
            batch_crc.masked(batch_crc.length_crcs(lengths[fits])) == masks[fits]
        ].tolist():
            if int(lengths[place]) + place <= limit:
                return int(start + place)
    return -1
