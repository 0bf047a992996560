"""Segment: the records of one range that belong to one part, in final order.

A run file is a sequence of segments. Each segment is one LZ4 frame: it is written once, read once
and deleted, so speed matters more than size. The uncompressed content identifies a segment.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.schemas.errors import OutputError
from shardmill.schemas.refs import SegmentRef
from shardmill.schemas.storage import RandomReader

_CODEC = "lz4"
_HEADER = struct.Struct("<IIQ")  # records, bytes of the JSON, bytes of the frames
_KEYED, _LABELLED, _VALUES = "keyed", "labels", "values"
NO_LABEL = np.iinfo(np.uint32).max


@dataclass(frozen=True)
class Segment:
    """Records in final order.

    Attributes:
        positions: uint64[records], position in the global order, ascending.
        lengths: int64[records], bytes of each frame.
        frames: The frames, back to back.
        keys: uint64[records], second hash of each record's key; None without a key column.
        labels: uint32[records], index of each record's label in ``names``, or ``NO_LABEL``; None
            without labels.
        names: Texts of labels.
        values: The values of the records, as ``RecordValues.pack`` returns them.
    """

    positions: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.int64]
    frames: memoryview
    keys: npt.NDArray[np.uint64] | None = None
    labels: npt.NDArray[np.uint32] | None = None
    names: tuple[str, ...] = ()
    values: bytes = b""

    def pack(self) -> tuple[bytes, int, int]:
        """Return the compressed segment, and the size and CRC-32C of its content."""
        body = json.dumps(
            {
                _KEYED: self.keys is not None,
                _LABELLED: self.labels is not None and self.names,
                _VALUES: len(self.values),
            },
            ensure_ascii=False,
        ).encode()
        pieces = [_HEADER.pack(len(self.positions), len(body), len(self.frames)), body]
        pieces += [self.positions.tobytes(), self.lengths.astype(np.uint32).tobytes()]
        pieces += [array.tobytes() for array in (self.keys, self.labels) if array is not None]
        return _compress(b"".join([*pieces, self.values, self.frames]))


def unpack_segment(content: bytes) -> Segment:
    """Return the segment with this uncompressed content."""
    records, body_bytes, frame_bytes = _HEADER.unpack_from(content)
    at = _HEADER.size + body_bytes
    body = json.loads(content[_HEADER.size : at])
    positions = np.frombuffer(content, np.uint64, records, at)
    at += 8 * records
    lengths = np.frombuffer(content, np.uint32, records, at).astype(np.int64)
    at += 4 * records
    keys = labels = None
    if body[_KEYED]:
        keys = np.frombuffer(content, np.uint64, records, at)
        at += 8 * records
    if body[_LABELLED] is not False:
        labels = np.frombuffer(content, np.uint32, records, at)
        at += 4 * records
    values = content[at : at + body[_VALUES]]
    at += len(values)
    frames = memoryview(content)[at : at + frame_bytes]
    names = tuple(body[_LABELLED] or ())
    return Segment(positions, lengths, frames, keys, labels, names, values)


def slices(lengths: npt.NDArray[np.int64], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive slices of rows with at most ``max_bytes`` each.

    Args:
        lengths: Bytes of each row; shape [rows].
        max_bytes: Limit of a slice; a longer row is a slice of one row.
    """
    ends = np.cumsum(lengths)
    start = done = 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, done + max_bytes, side="right")))
        yield start, stop
        start, done = stop, int(ends[stop - 1])


def pack_lines(lines: Sequence[str]) -> tuple[bytes, int, int]:
    """Return lines of text (rejects), compressed like ``Segment.pack`` does."""
    return _compress("".join(f"{line}\n" for line in lines).encode())


def _compress(content: bytes) -> tuple[bytes, int, int]:
    packed: bytes = pa.Codec(_CODEC).compress(content, asbytes=True)
    return packed, len(content), google_crc32c.value(content)


def read_segment(ref: SegmentRef, reader: RandomReader) -> bytes:
    """Return the uncompressed content of a segment.

    Args:
        ref: The segment.
        reader: Reads the run file.

    Raises:
        OutputError: The run file is damaged.
    """
    packed = reader.read_at(ref.offset, ref.length)
    try:
        content: bytes = pa.Codec(_CODEC).decompress(packed, ref.size, asbytes=True)
    except MemoryError:  # also one of Arrow
        raise
    except (OSError, pa.ArrowException) as error:  # the LZ4 data is damaged
        raise OutputError(f"{ref.run} is damaged ({error}): run again.") from error
    if google_crc32c.value(content) != ref.crc32c:
        raise OutputError(f"{ref.run} is damaged: run again.")
    return content
