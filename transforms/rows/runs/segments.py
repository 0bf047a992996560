"""Segments: the records of one range that belong to one part, in final order, as Arrow tables.

A run file is a sequence of segments. Each segment is an Arrow stream in one LZ4 frame: it is
written once, read once and deleted, so speed matters more than size.

A segment has these columns, and those of ``record_values``:

position   uint64, position in the global order, ascending
frame      large_binary, the record as framed in a TFRecord file
key        uint64, second hash of the record's key; only with a key column
label      string, the label of the record or null; only with labels
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.schemas.errors import OutputError
from shardmill.schemas.refs import SegmentRef
from shardmill.schemas.storage import RandomReader

POSITION, FRAME, KEY, LABEL = "position", "frame", "key", "label"
_CODEC = "lz4"


def pack_segment(segment: pa.Table) -> tuple[bytes, int, int]:
    """Return the compressed segment, the size of its content, and its CRC-32C."""
    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, segment.schema) as stream:
        stream.write_table(segment)
    return _compress(content.getvalue())


def join_segments(contents: Iterable[pa.Buffer]) -> pa.Table:
    """Return the segments with these contents, at least one, as a table with one chunk."""
    segments = [pa.ipc.open_stream(content).read_all() for content in contents]
    return pa.concat_tables(segments).combine_chunks()


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
    """Return lines of text (rejects), compressed like ``pack_segment`` does."""
    return _compress(pa.py_buffer("".join(f"{line}\n" for line in lines).encode()))


def _compress(content: pa.Buffer) -> tuple[bytes, int, int]:
    packed: bytes = pa.Codec(_CODEC).compress(content, asbytes=True)
    return packed, content.size, google_crc32c.value(packed)


def read_segment(ref: SegmentRef, reader: RandomReader) -> pa.Buffer:
    """Return the uncompressed content of a segment.

    Args:
        ref: The segment.
        reader: Reads the run file.

    Raises:
        OutputError: The run file is damaged.
    """
    packed = reader.read_at(ref.offset, ref.length)
    if google_crc32c.value(packed) != ref.crc32c:
        raise OutputError(f"{ref.run} is damaged: run again.")
    return pa.Codec(_CODEC).decompress(packed, ref.size)
