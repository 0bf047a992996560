"""Segments: the records of one range that belong to one part, in their order.

A run file is a row of segments. Each is one LZ4 frame: it is written once, read once and thrown
away, so it is packed fast rather than small. What identifies a segment is its content, not the
packed bytes.
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
_HEAD = struct.Struct("<IIQ")  # records, bytes of the labels' text, bytes of the frames
_KEYED, _LABELLED, _VALUES = "keyed", "labels", "values"
NO_LABEL = np.iinfo(np.uint32).max


@dataclass(frozen=True)
class Segment:
    """Records in their order.

    Attributes:
        positions: Their 64-bit places in the global order; uint64, shape [records], ascending.
        lengths: Bytes of each frame; int64, shape [records].
        frames: The frames, one after another.
        keys: A second hash of each record's key; uint64, shape [records]. None where rows are told
            apart by their places in files.
        labels: Number of each record's label in ``names``, or ``NO_LABEL``; uint32, shape
            [records]. None where there are no labels.
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
        """Returns the packed segment, the bytes of its content, and their CRC-32C."""
        about = json.dumps(
            {
                _KEYED: self.keys is not None,
                _LABELLED: self.labels is not None and self.names,
                _VALUES: len(self.values),
            },
            ensure_ascii=False,
        ).encode()
        pieces = [_HEAD.pack(len(self.positions), len(about), len(self.frames)), about]
        pieces += [self.positions.tobytes(), self.lengths.astype(np.uint32).tobytes()]
        pieces += [array.tobytes() for array in (self.keys, self.labels) if array is not None]
        return _pack(b"".join([*pieces, self.values, self.frames]))


def unpack_segment(content: bytes) -> Segment:
    """Returns the segment whose content this is."""
    records, about_bytes, frame_bytes = _HEAD.unpack_from(content)
    at = _HEAD.size + about_bytes
    about = json.loads(content[_HEAD.size : at])
    positions = np.frombuffer(content, np.uint64, records, at)
    at += 8 * records
    lengths = np.frombuffer(content, np.uint32, records, at).astype(np.int64)
    at += 4 * records
    keys = labels = None
    if about[_KEYED]:
        keys = np.frombuffer(content, np.uint64, records, at)
        at += 8 * records
    if about[_LABELLED] is not False:
        labels = np.frombuffer(content, np.uint32, records, at)
        at += 4 * records
    values = content[at : at + about[_VALUES]]
    at += len(values)
    frames = memoryview(content)[at : at + frame_bytes]
    names = tuple(about[_LABELLED] or ())
    return Segment(positions, lengths, frames, keys, labels, names, values)


def slices(lengths: npt.NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yields (first row, row behind the last) of slices that hold about so many bytes at most.

    Args:
        lengths: Bytes of each row; shape [rows].
        most: Bytes; a longer row is a slice of its own.
    """
    ends = np.cumsum(lengths)
    start = done = 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, done + most, side="right")))
        yield start, stop
        start, done = stop, int(ends[stop - 1])


def pack_lines(lines: Sequence[str]) -> tuple[bytes, int, int]:
    """Returns lines of text packed as ``Segment.pack`` does; for rejects."""
    return _pack("".join(f"{line}\n" for line in lines).encode())


def _pack(content: bytes) -> tuple[bytes, int, int]:
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
    except (OSError, pa.ArrowException) as error:  # what the decoder says of damage
        raise OutputError(f"{ref.run} is damaged ({error}): run again.") from error
    if google_crc32c.value(content) != ref.crc32c:
        raise OutputError(f"{ref.run} is damaged: run again.")
    return content
