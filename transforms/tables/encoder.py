"""RowEncoder: merge the segments of a part, one per run, into its records in final order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Split
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.refs import Reject, SegmentRef
from shardmill.schemas.schema_pbtxt.columns import format_schema, parse_schema
from shardmill.schemas.storage.base import map_ordered, storage_threads
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.match.next_steps import next_step, remedy_of
from shardmill.transforms.sink.spec import Block, BuildHooks, EncoderOutput, ExtraFiles
from shardmill.transforms.statistics.sums import Summary, Totals
from shardmill.transforms.tables import segments
from shardmill.transforms.tables.byte_arrays import ByteStrings
from shardmill.transforms.tables.table_source import (
    FEW_ROWS,
    MAX_LABELS,
    TOO_MANY_LABELS,
    TableSource,
    TextTable,
    describe_lost_files,
)

_BLOCK_BYTES = 8 << 20
_MAX_SHOWN = 100
_INFERRED_RULES = frozenset({"cast", "range", "missing"})


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
    tables = [table for table in map_ordered(segments.read_records, refs, threads) if len(table)]
    # Segments are read whole and sorted: merging them row by row would take longer.
    if not tables:  # the blocks hold records of neighboring parts only
        return
    # Equal keys have equal positions, so rows with the same key are adjacent in the order.
    records, order = segments.sort_records(tables)
    del tables  # a copy of all records
    frames = records[segments.FRAME].chunk(0)
    repeated = _repeated(records, order)
    duplicates = 0
    if repeated.any():
        conflicts = _conflicts(frames, order, repeated, unique=unique)
        duplicates = int(repeated.sum()) - len(conflicts)
        origins = records[segments.ORIGIN].chunk(0)
        for first, row in conflicts:
            here, other = (segments.Origin.of_text(origins[at].as_py()) for at in (row, first))
            yield _conflict(here, other, _key_text(frames[row].as_py(), key))
        order = order[~repeated]
    # Sums of floats depend on the order of adding: use the order of records, never of runs.
    summary = Summary(segments.sum_records(records, order)) if summarize else Summary()
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
    frames: pa.LargeBinaryArray,
    order: npt.NDArray[np.int64],
    repeated: npt.NDArray[np.bool_],
    *,
    unique: bool,
) -> list[tuple[int, int]]:
    """Return the pairs (kept row, dropped row with the same key) whose records differ, or all."""
    # For each row of the order, the index of the last row before it that is not a repetition.
    kept = np.maximum.accumulate(np.where(repeated, 0, np.arange(len(order))))
    pairs = [
        (int(order[kept[index]]), int(order[index])) for index in np.flatnonzero(repeated).tolist()
    ]
    return [pair for pair in pairs if unique or frames[pair[0]] != frames[pair[1]]]


def _key_text(frame: bytes, key: str) -> str:
    """Return the key of a record for a message, or no text if the key is not a feature."""
    feature = parse_example(frame[HEADER_BYTES:-FOOTER_BYTES]).get(key)
    if feature is None or not feature.values:
        return ""
    value = feature.values[0]
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return f" {key}={text!r}"[:_MAX_SHOWN]


def _conflict(here: segments.Origin, other: segments.Origin, key_text: str) -> Reject:
    where = "the same file" if here.source == other.source else other.source
    return Reject(
        here.source,
        here.uri,
        "encode",
        "key_conflict",
        f"a row has the --key{key_text} of another row in {where}, but other values: "
        "give each row a different key",
    )


def _count_labels(records: pa.Table, chosen: npt.NDArray[np.int64]) -> Counter[str]:
    """Return the number of chosen records with each label."""
    if segments.LABEL not in records.column_names:
        return Counter()
    labels = records[segments.LABEL].chunk(0).take(pa.array(chosen))
    values, counts = labels.drop_null().value_counts().flatten()
    return Counter(dict(zip(values.to_pylist(), counts.to_pylist(), strict=True)))


@dataclass(frozen=True)
class RowEncoder:
    """Yields the records of a part's segments.

    Attributes:
        source: The source of the rows.
        made_by: Versions of all code that decides the bytes of records.
        packing: How members of a gzip shard are compressed.
        expected_bytes: None: parts of rows are planned by the source.
    """

    source: TableSource | TextTable
    made_by: dict[str, str]
    packing: Packing = "deflated"
    expected_bytes: int | None = None

    def encode(
        self,
        refs: Sequence[SegmentRef],
        labels: Sequence[str],  # noqa: ARG002
    ) -> Iterator[EncoderOutput]:
        """Yield the rejects of segments without a split, then the merged records of the others."""
        for ref in refs:
            if not ref.split:
                yield from (Reject(**json.loads(line)) for line in segments.read_lines(ref))
        segment_refs = [ref for ref in refs if ref.split]
        if segment_refs:
            table = self.source.table
            yield from merge_segments(segment_refs, table.key, summarize=bool(table.columns))

    def versions(self) -> dict[str, str]:
        """Return the versions of all code that decides the bytes of records."""
        return self.made_by

    def schema(self, labels: Sequence[str]) -> str:
        """Return the text of ``schema.pbtxt``."""
        return self.source.schema(labels)

    def features(self) -> list[dict[str, Any]]:
        """Return the manifest's list of features, sorted by name."""
        return self.source.features()


@dataclass(frozen=True)
class RowsHooks(BuildHooks):
    """Adapts a build to rows.

    Attributes:
        label_feature: Feature with the labels; training code maps texts in it to class ids.
        transformed: Whether a TensorFlow Transform graph is published.
        inferred: Whether the schema was inferred.
        finds_gaps: Whether the records decide which columns are required.
        max_rejected_files: Largest accepted number of files that are rejected as a whole.
        label: Column that is required because the user named it as the label, or empty.
        max_labels: Number of distinct labels up to which they are listed and counted.
        reports_inputs: See ``BuildHooks``.
        inputs: See ``BuildHooks``.
        input_description: See ``BuildHooks``.
    """

    label_feature: str = ""
    transformed: bool = False
    inferred: bool = False
    finds_gaps: bool = False
    max_rejected_files: int = 0
    label: str = ""
    max_labels: int = MAX_LABELS
    reports_inputs: bool = False
    inputs: str = "rows"
    input_description: str = "a table (.csv, .tsv or .jsonl, also .gz, .bz2, .xz, .zst; .parquet)"

    def next_step(self, name: str, default: str) -> str:
        """Return advice for a file that is not a table."""
        return next_step(name, "rows", default)

    def remedy(self, reason: str, keys: Sequence[str]) -> str:
        """Return advice if no file can be read, or an empty text."""
        remedies = {
            "columns": "give the files the schema's columns, or the schema theirs",
            "header": "name the columns with --columns",
            "not_csv": self.next_step(keys[0], "check --input and --encoding"),
        }
        return remedies.get(reason) or remedy_of(reason, keys)

    def labels(
        self, counted: Collection[str], features: Sequence[dict[str, Any]]
    ) -> tuple[str, ...] | None:
        """Return the labels sorted by their bytes; no labels if records contain numbers."""
        if len(counted) > self.max_labels or TOO_MANY_LABELS in counted:
            return None
        texts = {"name": self.label_feature, "type": "bytes"} in features
        if texts:
            return super().labels(counted, features)
        return ()

    def extra_files(self, build: str, input_id: str) -> ExtraFiles:
        """Return the files of the TensorFlow Transform graph, its schema and features."""
        if not self.transformed:
            return ExtraFiles()
        from shardmill.transforms.tables.tft.build_graph import read_graph

        return read_graph(build, input_id).extra_files()

    def schema(self, text: str, splits: Mapping[str, Split]) -> str:
        """Return the schema; with ``finds_gaps``, columns that no record lacks are required."""
        if not self.finds_gaps:
            return text
        features = [split.statistics.features for split in splits.values() if split.statistics]
        complete = set().union(*features)
        for split_features in features:
            complete -= {name for name, column in split_features.items() if column.missing}
        columns = parse_schema(text, shard_names.SCHEMA)
        complete |= {column.name for column in columns if column.required}
        return format_schema(
            [replace(column, required=column.name in complete) for column in columns]
        )

    def why_unacceptable(self, rejects: Iterator[Reject], rows: int) -> str:
        """Return why too much was lost: whole files, or rows that an inferred schema rejects."""
        first: dict[str, Reject] = {}  # by file, and by column
        misfits: Counter[str] = Counter()
        files = set()
        for reject in rejects:
            cause = ""
            if reject.stage in ("match", "read") and reject.error != "empty":
                cause = reject.uri
                files.add(cause)
            elif self.inferred and reject.column and reject.error in _INFERRED_RULES:
                cause = reject.column
                if not self._lacks_label(reject):  # which is a rule of the user
                    misfits[cause] += reject.inputs
            earlier = first.get(cause)
            if earlier is None or (reject.uri, reject.line or 0) < (earlier.uri, earlier.line or 0):
                first[cause] = reject
        if len(files) > self.max_rejected_files:
            name = min(files)
            message = first[name].message
            return describe_lost_files(len(files), self.max_rejected_files, name, message)
        column, count = max(misfits.items(), key=lambda item: (item[1], item[0]), default=("", 0))
        if count <= max(FEW_ROWS, rows // 1000):
            return ""
        return (
            f"{count:,} rows do not fit the type of column {column!r}, which was inferred from the "
            f"first rows: {first[column].key}, {first[column].message}; give an edited copy of "
            "the schema.pbtxt next to the following list with --schema, or read more rows first "
            "with --sample_bytes"
        )

    def _lacks_label(self, reject: Reject) -> bool:
        return reject.error == "missing" and reject.column == self.label

    def advice(self, rejects: Iterator[Reject]) -> str:
        """Return the most frequent column (or reason) of rejects, with an example and its fix."""
        counts: Counter[str] = Counter()
        examples: dict[str, Reject] = {}
        no_label = f"rows have no label (the column {self.label!r} is empty)"
        for reject in rejects:
            cause = f"for {reject.error}"
            if self._lacks_label(reject):
                cause = no_label
            elif reject.column is not None:
                cause = f"in column {reject.column!r}"
            counts[cause] += reject.inputs
            examples.setdefault(cause, reject)
        if not counts:
            return ""
        cause, count = max(counts.items(), key=lambda item: (item[1], item[0]))
        example = examples[cause]
        if cause == no_label:
            return f"{count:,} {no_label}, such as {example.key}; fill them or raise the limit"
        return f"{count:,} of them {cause}, for example {example.key}: {example.message}"
