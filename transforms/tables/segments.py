"""Runs and their segments: sorted records of one range of a table, in blocks that parts read.

A run file is a sequence of blocks: the records of one split after another, each sorted by position,
then one block of rejects. Bounds of blocks are multiples of a power of two, so that a part (a slice
of all positions) rarely reads records of other parts. A run does not depend on the number of parts:
its *segments*, the consecutive blocks that hold the records of a part, are cut later.

A block is its compressed and its uncompressed size (uint32), and an Arrow stream in one LZ4 frame:
it is written once, read once and deleted, so speed matters more than size. The stream has these
columns, and the columns of ``take_values``:

position   uint64, position in the global order, ascending
frame      large_binary, the record as framed in a TFRecord file
key        uint64, second hash of the record's key; only with a key column
origin     string or dictionary of them, see ``Origin``; only with a key column
label      string, the label of the record or null; only with labels

Statistics are computed from the records of a part in their final order and without duplicates,
which is known only when segments are merged. To parse the records again would take too long, so a
segment stores its numbers too. Large tables have many segments with few records each: no step loops
over their columns, apart from those with lists; one column of structured values holds all others.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.refs import InputRef, SegmentRef
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.schemas.storage import open_storage
from shardmill.schemas.tfrecord.framing import combine_crc32c
from shardmill.transforms.sink import placement
from shardmill.transforms.sink.plan import Plan
from shardmill.transforms.sink.spec import damaged_part
from shardmill.transforms.statistics.sums import Sums, sum_values
from shardmill.transforms.tables.byte_arrays import ByteStrings, part_numbers
from shardmill.transforms.tables.table_source import TypedColumn

POSITION, FRAME, KEY, ORIGIN, LABEL = "position", "frame", "key", "origin", "label"
BLOCK_BYTES = 256 << 10  # of records; parts of 64 MiB of 256 runs read as much of each
_CODEC = "lz4"
_SIZES = struct.Struct("<II")
_CELLS, _COLUMNS = "values", b"columns"
_DTYPES: dict[Kind, str] = {"int64": "<i8", "float32": "<f4"}


class RunBlock(NamedTuple):
    """Records, or rejects, that are stored together in a run file.

    Attributes:
        split: Split of the records; empty for rejects.
        first: Position of the first record; 0 for rejects.
        last: Position of the last record.
        length: Bytes in the run file.
        crc32c: CRC-32C of these bytes.
        size: Bytes of the records.
    """

    split: str
    first: int
    last: int
    length: int
    crc32c: int
    size: int


class Run(NamedTuple):
    """A finished run file; this reference to it crosses shuffles.

    Attributes:
        key: Identity of the range of a table; the records of a part are ordered by it where
            positions are equal.
        path: Path of the run file.
        blocks: Its blocks, in the order of the file.
    """

    key: str
    path: str
    blocks: tuple[RunBlock, ...]


class Origin(NamedTuple):
    """Where a record comes from.

    Attributes:
        run: Identity of the range of a table.
        source: Key of the input.
        uri: Path or URI of the input, relative to the root of the inputs if it is below it, since
            they may be moved before the build is resumed.
    """

    run: str
    source: str
    uri: str

    def to_text(self) -> str:
        """Return one text, which sorts as the origin does."""
        return "\0".join(self)

    @classmethod
    def of_text(cls, text: str) -> Origin:
        """Return the origin of a text."""
        return cls(*text.split("\0"))


def cut_blocks(split: str, records: pa.Table, slices: int = 1) -> Iterator[tuple[RunBlock, bytes]]:
    """Yield the blocks of a split's records and their bytes.

    Args:
        split: The split.
        records: At least one record, sorted by position.
        slices: They are all records in one of so many slices of the positions, a power of two.
    """
    frames = [ByteStrings.of_arrow(chunk).sizes for chunk in records[FRAME].chunks]
    ends = np.cumsum(np.concatenate(frames))
    position = records[POSITION].to_numpy()
    # The highest bits of a position give its slot. A part of 2**n is a whole number of slots, and
    # positions are hashes, so that slots have about the same size.
    bits = (slices * int(ends[-1] // BLOCK_BYTES)).bit_length()
    slots = part_numbers(position, 1 << bits)
    bounds = [0, *(np.flatnonzero(np.diff(slots)) + 1).tolist(), len(position)]
    for start, stop in itertools.pairwise(bounds):
        before = int(ends[start - 1]) if start else 0
        size = int(ends[stop - 1]) - before
        content = pa.BufferOutputStream()
        with pa.ipc.new_stream(content, records.schema) as stream:
            stream.write_table(records.slice(start, stop - start))
        packed = _compress(content.getvalue())
        first, last = int(position[start]), int(position[stop - 1])
        yield RunBlock(split, first, last, len(packed), google_crc32c.value(packed), size), packed


def pack_lines(lines: Sequence[str]) -> tuple[RunBlock, bytes]:
    """Return a block of lines of text (rejects), and its bytes."""
    content = pa.py_buffer("".join(f"{line}\n" for line in lines).encode())
    packed = _compress(content)
    return RunBlock("", 0, 0, len(packed), google_crc32c.value(packed), content.size), packed


def _compress(content: pa.Buffer) -> bytes:
    packed: bytes = pa.Codec(_CODEC).compress(content, asbytes=True)
    return _SIZES.pack(len(packed), content.size) + packed


def cut_segments(run: Run, plan: Plan) -> Iterator[placement.Placed]:
    """Yield the segments of a run's records, each with its part.

    Args:
        run: The run.
        plan: Number of parts of each split.
    """
    for split in dict.fromkeys(block.split for block in run.blocks if block.split):
        series = placement.Series(split, "")
        for ref in of_slices(run, split, max(1, plan.parts_of(series))):
            yield placement.PartKey(*series, ref.part), placement.PlacedRef(b"", ref)


def cut_rejects(run: Run, plan: Plan) -> Iterator[placement.Placed]:
    """Yield the segment of a run's rejects, if it has some, with its part."""
    return (place_rejects(plan, ref) for ref in of_slices(run, "", 1))


def of_slices(run: Run, split: str, parts: int) -> Iterator[SegmentRef]:
    """Yield the segments of a run for equal slices of the positions of a split.

    Args:
        run: The run.
        split: The split; empty for rejects.
        parts: Number of slices. Those without records of the run have no segment.
    """
    # Blocks are sorted, so a part's blocks are consecutive: one read. A block on the bound of two
    # parts is read by both; each keeps its own records.
    spans: dict[int, tuple[int, int, int]] = {}
    offset = 0
    for block in run.blocks:
        if block.split == split:
            first, last = (placement.part_of(at, parts) for at in (block.first, block.last))
            for part in range(first, last + 1):
                begin, length, crc = spans.get(part, (offset, 0, 0))
                crc = combine_crc32c(crc, block.crc32c, block.length)
                spans[part] = begin, length + block.length, crc
        offset += block.length
    for part, span in spans.items():
        yield SegmentRef(run.key, run.path, *span, split, part, parts)


def place_rejects(plan: Plan, ref: InputRef | SegmentRef) -> placement.Placed:
    """Return the part of a rejected input or of a segment of rejects.

    Rejects of one input follow each other in a part.
    """
    # By the key of the run, not of the file: the rejects of one huge file are many parts.
    number = placement.part_of(
        placement.hash_key(0, ref.key).position, plan.parts_of(placement.REJECTED) or 1
    )
    source = ref.key.rpartition("#")[0] or ref.key  # the key of a run has the range after a "#"
    order = placement.hash_key(0, source).position.to_bytes(8, "big")
    return placement.PartKey(*placement.REJECTED, number), placement.PlacedRef(order, ref)


def read_lines(ref: SegmentRef) -> list[bytes]:
    """Return the lines of a segment of rejects."""
    return [line for data in _read_blocks(ref) for line in data.to_pybytes().splitlines()]


def read_records(ref: SegmentRef) -> pa.Table:
    """Return the records of a segment that are in its part.

    Raises:
        OutputError: The run file is damaged.
        FileNotFoundError: It does not exist.
    """
    blocks = [pa.ipc.open_stream(content).read_all() for content in _read_blocks(ref)]
    records = pa.concat_tables(blocks)
    inside = part_numbers(records[POSITION].to_numpy(), ref.parts) == ref.part
    # Blocks may hold records of neighboring parts. Records are sorted by position, so a part's
    # records are consecutive.
    rows = np.flatnonzero(inside)
    first = int(rows[0]) if len(rows) else 0
    return records.slice(first, len(rows))


def _read_blocks(ref: SegmentRef) -> Iterator[pa.Buffer]:
    with open_storage(ref.uri).open_at(ref.uri) as reader:
        packed = reader.read_at(ref.offset, ref.length)
    if google_crc32c.value(packed) != ref.crc32c:
        raise damaged_part(ref.uri)
    view, at, codec = memoryview(packed), 0, pa.Codec(_CODEC)
    # Each block was compressed alone, since one that two parts share is read for both.
    while at < len(view):
        length, size = _SIZES.unpack_from(view, at)
        at += _SIZES.size + length
        yield codec.decompress(view[at - length : at], size)


def sort_records(segments: Iterable[pa.Table]) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the records of segments as a table with one chunk, and their order by position.

    Records with one position are ordered by their origin, if it is known, else by segment.

    Args:
        segments: At least one record, ordered by run.
    """
    records = pa.concat_tables([segment for segment in segments if len(segment)]).combine_chunks()
    position = records[POSITION].to_numpy()
    order = np.argsort(position, kind="stable")
    equal = np.flatnonzero(position[order[1:]] == position[order[:-1]])
    if ORIGIN not in records.column_names or not len(equal):
        return records, order
    # Positions are equal where keys are: the first of such rows is kept, and which one is first
    # must not depend on how runs were merged: so origins are compared.
    tied = order[np.union1d(equal, equal + 1)]
    origins = records[ORIGIN].chunk(0).take(pa.array(tied)).to_pylist()
    ranks = np.zeros(len(order), np.int64)
    ranks[tied] = np.unique(np.array(origins, object), return_inverse=True)[1]
    return records, np.lexsort((ranks, position))


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


class _Column(NamedTuple):
    """A column: whether its cells are lists decides where its values are stored."""

    name: str
    kind: Kind
    is_list: bool


def _count(column: int) -> str:
    return f"count{column}"


def _value(column: int) -> str:
    return f"value{column}"


def _cell_dtype(columns: Sequence[_Column]) -> np.dtype[np.void]:
    # Counts come first: nearly all are 1, so they compress faster and better next to each other.
    fields = []
    for number, column in enumerate(columns):
        size = "<u4" if column.is_list else "u1"
        fields.append((_count(number), size))
    for number, column in enumerate(columns):
        if column.kind != "bytes" and not column.is_list:
            fields.append((_value(number), _DTYPES[column.kind]))
    return np.dtype(fields)


def take_values(columns: Sequence[TypedColumn], order: npt.NDArray[np.int64]) -> pa.Table:
    """Return the values of the records of a table.

    Args:
        columns: The columns of the table.
        order: Row number of each record; shape [records].

    Returns:
        A table of one row per record. ``values`` has for each column the number of values, and the
        value itself if it is a number and not a list. A column of lists of numbers has a column.
    """
    described = tuple(_Column(column.name, column.kind, column.has_lists) for column in columns)
    cells = np.zeros(len(order), _cell_dtype(described))
    lists = {}
    for number, column in enumerate(columns):
        values = column.take(order)
        if described[number].is_list:
            cells[_count(number)] = pc.fill_null(pc.list_value_length(values), 0)
            if column.kind != "bytes":
                lists[_value(number)] = values
            continue
        cells[_count(number)] = values.is_valid()
        if column.kind != "bytes":
            cells[_value(number)] = values.fill_null(0)
    buffers = [None, pa.py_buffer(cells.view(np.uint8))]
    packed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(cells.itemsize), len(cells), buffers)
    text = json.dumps(described, ensure_ascii=False)
    return pa.table({_CELLS: packed, **lists}, metadata={_COLUMNS: text})


def sum_records(table: pa.Table, order: npt.NDArray[np.int64]) -> dict[str, Sums]:
    """Return the sums over some of the records, by name of the column.

    Args:
        table: A table with the columns of ``take_values``, each with one chunk.
        order: Indices of these records in their final order.
    """
    columns = [_Column(*column) for column in json.loads(table.schema.metadata[_COLUMNS])]
    packed, dtype = table[_CELLS].chunk(0), _cell_dtype(columns)
    start = packed.offset * dtype.itemsize  # a slice has the buffer of the whole array
    stored = np.frombuffer(packed.buffers()[1], dtype, len(table), start)
    # Indexing a structured array is 15 times slower than take.
    cells = np.take(stored, order)
    sums = {}
    for number, column in enumerate(columns):
        counts = cells[_count(number)]
        examples = int(np.count_nonzero(counts))
        if column.kind == "bytes":
            sums[column.name] = Sums("bytes", examples, int(counts.sum(dtype=np.int64)))
            continue
        if column.is_list:
            lists = table[_value(number)].chunk(0)
            values = lists.take(pa.array(order)).flatten().to_numpy()
        else:
            values = np.ascontiguousarray(cells[_value(number)])
            values = values if examples == len(cells) else values[counts > 0]
        sums[column.name] = sum_values(values, examples)
    return sums
