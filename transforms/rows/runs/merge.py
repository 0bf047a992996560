"""Merge the segments of a part, one per run, into its records in final order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.refs import SegmentRef
from shardmill.schemas.rejects import Reject
from shardmill.schemas.storage import open_storage
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES
from shardmill.transforms.build.encoder import Block
from shardmill.transforms.columnar.byte_arrays import ByteStrings, offsets_from_sizes
from shardmill.transforms.rows.runs.record_values import unpack_values
from shardmill.transforms.rows.runs.segments import (
    NO_LABEL,
    Segment,
    read_segment,
    slices,
    unpack_segment,
)
from shardmill.transforms.runtime.map_ordered import map_ordered, storage_threads
from shardmill.transforms.statistics.sums import Summary

_BLOCK_BYTES = 8 << 20
_MAX_SHOWN = 100


def read_rejects(ref: SegmentRef) -> Iterator[Reject]:
    """Yield the rejects of a segment."""
    for line in _read(ref).decode().splitlines():
        yield Reject(**json.loads(line))


def merge_segments(refs: Sequence[SegmentRef], key: str = "") -> Iterator[Block | Reject]:
    """Yield the records of a part by position, then by file and row.

    A row with the key of an earlier row is dropped: as a duplicate if the records are equal, else
    as a reject.

    Args:
        refs: Segments of the part, ordered by run; at least one.
        key: Column that identifies rows, for messages.

    Raises:
        OutputError: A run file is damaged.
        FileNotFoundError: A run file does not exist.
    """
    contents = map_ordered(_read, refs, storage_threads(refs[0].run))
    segments = [unpack_segment(content) for content in contents]
    positions = np.concatenate([segment.positions for segment in segments])
    order = np.argsort(positions, kind="stable")
    frames = join_frames(segments)
    labels = _join_labels(segments)
    repeated = _repeated(segments, positions, order)
    duplicates = 0
    if repeated.any():
        conflicts = _conflicts(frames, order, repeated)
        duplicates = int(repeated.sum()) - len(conflicts)
        ends = np.cumsum([len(segment.positions) for segment in segments])
        for first, row in conflicts:
            ref, other = (refs[int(ends.searchsorted(each, side="right"))] for each in (row, first))
            yield _conflict(ref, other, _shown_key(frames[row].as_py(), key))
        order = order[~repeated]
    values = unpack_values([segment.values for segment in segments])
    summary: Summary | None = Summary(values.sum(order))
    lengths = np.concatenate([segment.lengths for segment in segments])[order]
    for start, stop in slices(lengths, _BLOCK_BYTES):
        chosen = order[start:stop]
        data = memoryview(frames.take(pa.array(chosen)).buffers()[2])
        yield Block(data, lengths[start:stop], _count_labels(labels, chosen), duplicates, summary)
        duplicates, summary = 0, None
    if duplicates:
        raise AssertionError("duplicates without a record")


def _read(ref: SegmentRef) -> bytes:
    with open_storage(ref.run).open_at(ref.run) as reader:
        return read_segment(ref, reader)


def join_frames(segments: Sequence[Segment]) -> pa.LargeBinaryArray:
    """Return the frames of all segments as one array, in the order of segments."""
    sizes = np.concatenate([segment.lengths for segment in segments])
    data = np.frombuffer(b"".join(segment.frames for segment in segments), np.uint8)
    return ByteStrings(data, offsets_from_sizes(sizes)).arrow()


def _repeated(
    segments: Sequence[Segment], positions: npt.NDArray[np.uint64], order: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which rows of the order have the key of the row before; bool[records]."""
    same = np.zeros(len(order), bool)
    if not segments or segments[0].keys is None:
        return same
    keys = np.concatenate([segment.keys for segment in segments if segment.keys is not None])
    sorted_positions, sorted_keys = positions[order], keys[order]
    same[1:] = (sorted_positions[1:] == sorted_positions[:-1]) & (
        sorted_keys[1:] == sorted_keys[:-1]
    )
    return same


def _conflicts(
    frames: pa.LargeBinaryArray, order: npt.NDArray[np.int64], repeated: npt.NDArray[np.bool_]
) -> list[tuple[int, int]]:
    """Return the pairs (kept row, dropped row with the same key) whose records differ."""
    kept = np.maximum.accumulate(np.where(repeated, 0, np.arange(len(order))))
    pairs = [
        (int(order[kept[index]]), int(order[index])) for index in np.flatnonzero(repeated).tolist()
    ]
    return [pair for pair in pairs if frames[pair[0]] != frames[pair[1]]]


def _shown_key(frame: bytes, key: str) -> str:
    """Return the key of a record for a message; empty if the key is not a feature."""
    feature = parse_example(frame[HEADER_BYTES:-FOOTER_BYTES]).get(key)
    if feature is None or not feature.values:
        return ""
    value = feature.values[0]
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return f" {key}={text!r}"[:_MAX_SHOWN]


def _conflict(ref: SegmentRef, other: SegmentRef, shown: str) -> Reject:
    where = "the same file" if ref.source == other.source else other.source
    return Reject(
        ref.source,
        ref.source_uri,
        "encode",
        "key_conflict",
        f"a row has the --key{shown} of another row in {where}, but other values: give each row a "
        "different key",
    )


def _join_labels(segments: Sequence[Segment]) -> pa.DictionaryArray | None:
    """Return the label of each record, null if it has none; None without labels."""
    arrays = [
        pa.DictionaryArray.from_arrays(
            pa.array(segment.labels, mask=segment.labels == NO_LABEL),
            pa.array(segment.names, pa.string()),
        )
        for segment in segments
        if segment.labels is not None
    ]
    return pa.chunked_array(arrays).unify_dictionaries().combine_chunks() if arrays else None


def _count_labels(labels: pa.DictionaryArray | None, chosen: npt.NDArray[np.int64]) -> Counter[str]:
    """Return the number of chosen records with each label."""
    if labels is None:
        return Counter()
    counted = labels.take(pa.array(chosen)).drop_null().value_counts()
    values, counts = counted.flatten()
    return Counter(dict(zip(values.to_pylist(), counts.to_pylist(), strict=True)))
