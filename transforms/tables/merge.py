"""Merge the segments of a part, one per run, into its records in final order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.map_ordered import map_ordered, storage_threads
from shardmill.schemas.refs import SegmentRef
from shardmill.schemas.rejects import Reject
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES
from shardmill.transforms.sink.encoder import Block
from shardmill.transforms.statistics.sums import Summary, Totals
from shardmill.transforms.tables import segments
from shardmill.transforms.tables.byte_arrays import ByteStrings
from shardmill.transforms.tables.record_values import sum_records

_BLOCK_BYTES = 8 << 20
_MAX_SHOWN = 100


def merge_segments(
    refs: Sequence[SegmentRef], key: str, *, summarize: bool, unique: bool = False
) -> Iterator[Block | Reject]:
    """Yield the records of a part by position, then by file and row.

    A row with the key of an earlier row is dropped: as a duplicate if the records are equal, else
    as a reject.

    Args:
        refs: Segments of the part, ordered by run; at least one.
        key: Column that identifies rows, for messages.
        summarize: Whether statistics of the records are computed.
        unique: Whether copies of a record are rejects too.

    Raises:
        OutputError: A run file is damaged.
        FileNotFoundError: A run file does not exist.
    """
    threads = storage_threads(refs[0].uri)
    found = [each for each in map_ordered(segments.read_records, refs, threads) if len(each)]
    # A segment is read whole and sorted; to merge sorted segments row by row would take longer.
    if not found:  # the blocks hold records of neighboring parts only
        return
    # Equal keys have equal positions, so rows with the same key are adjacent in the order.
    records, order = segments.sort_records(found)
    del found  # a copy of all records
    frames = records[segments.FRAME].chunk(0)
    repeated = _repeated(records, order)
    duplicates = 0
    if repeated.any():
        conflicts = _conflicts(frames, order, repeated, unique=unique)
        duplicates = int(repeated.sum()) - len(conflicts)
        origins = records[segments.ORIGIN].chunk(0)
        for first, row in conflicts:
            here, other = (segments.Origin.of_text(origins[at].as_py()) for at in (row, first))
            yield _conflict(here, other, _shown_key(frames[row].as_py(), key))
        order = order[~repeated]
    # Sums of floats depend on the order of adding: it is that of the records, never that of runs.
    summary = Summary(sum_records(records, order)) if summarize else Summary()
    totals = Totals(duplicates=duplicates, summary=summary)
    lengths = ByteStrings.of_arrow(frames).sizes[order]
    for start, stop in segments.slices(lengths, _BLOCK_BYTES):
        chosen = order[start:stop]
        # One copy per block: frames are in one buffer, in the order of the runs.
        data = memoryview(frames.take(pa.array(chosen)).buffers()[2])
        totals.records = len(chosen)
        totals.label_counts = _count_labels(records, chosen)
        yield Block(data, lengths[start:stop], totals)
        totals = Totals()


def _repeated(records: pa.Table, order: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which rows of the order have the key of the row before; bool[records]."""
    # Positions are one half of a key's hash and KEY is the other: 128 equal bits are an equal key.
    same = np.zeros(len(order), bool)
    if segments.KEY in records.column_names:
        names = segments.POSITION, segments.KEY
        position, key = (records[name].to_numpy()[order] for name in names)
        same[1:] = (position[1:] == position[:-1]) & (key[1:] == key[:-1])
    return same


def _conflicts(
    frames: pa.LargeBinaryArray, order: npt.NDArray[np.int64], repeated: npt.NDArray[np.bool_],
    *, unique: bool,
) -> list[tuple[int, int]]:  # fmt: skip
    """Return the pairs (kept row, dropped row with the same key) whose records differ, or all."""
    # For each row of the order, the index of the last row before it that is not a repetition.
    kept = np.maximum.accumulate(np.where(repeated, 0, np.arange(len(order))))
    pairs = [
        (int(order[kept[index]]), int(order[index])) for index in np.flatnonzero(repeated).tolist()
    ]
    return [pair for pair in pairs if unique or frames[pair[0]] != frames[pair[1]]]


def _shown_key(frame: bytes, key: str) -> str:
    """Return the key of a record for a message; empty if the key is not a feature."""
    feature = parse_example(frame[HEADER_BYTES:-FOOTER_BYTES]).get(key)
    if feature is None or not feature.values:
        return ""
    value = feature.values[0]
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return f" {key}={text!r}"[:_MAX_SHOWN]


def _conflict(here: segments.Origin, other: segments.Origin, shown: str) -> Reject:
    where = "the same file" if here.source == other.source else other.source
    return Reject(
        here.source,
        here.uri,
        "encode",
        "key_conflict",
        f"a row has the --key{shown} of another row in {where}, but other values: give each row a "
        "different key",
    )


def _count_labels(records: pa.Table, chosen: npt.NDArray[np.int64]) -> Counter[str]:
    """Return the number of chosen records with each label."""
    if segments.LABEL not in records.column_names:
        return Counter()
    labels = records[segments.LABEL].chunk(0).take(pa.array(chosen))
    values, counts = labels.drop_null().value_counts().flatten()
    return Counter(dict(zip(values.to_pylist(), counts.to_pylist(), strict=True)))
