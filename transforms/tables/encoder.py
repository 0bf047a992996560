"""RowEncoder: yield the records of a part from segments that were encoded earlier."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardmill.schemas.dataset import shard_names
from shardmill.schemas.dataset.manifest import Split
from shardmill.schemas.refs import SegmentRef
from shardmill.schemas.rejects import Reject
from shardmill.schemas.schema_pbtxt.columns import format_schema, parse_schema
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.match.next_steps import next_step, remedy_of
from shardmill.transforms.sink.encoder import Item
from shardmill.transforms.sink.spec import BuildHooks, ExtraFiles
from shardmill.transforms.tables.merge import merge_segments
from shardmill.transforms.tables.row_rejects import FEW_ROWS, describe_lost_files
from shardmill.transforms.tables.segments import read_lines
from shardmill.transforms.tables.table_source import (
    MAX_LABELS,
    TOO_MANY_LABELS,
    TableSource,
    TextTable,
)

_INFERRED_RULES = frozenset({"cast", "range", "missing"})


@dataclass(frozen=True)
class RowEncoder:
    """Yields the records of a part's segments.

    Attributes:
        source: What gave the rows.
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
    ) -> Iterator[Item]:
        """Yield the rejects of segments without a split, then the merged records of the others."""
        for ref in refs:
            if not ref.split:
                yield from (Reject(**json.loads(line)) for line in read_lines(ref))
        found = [ref for ref in refs if ref.split]
        if found:
            table = self.source.table
            yield from merge_segments(found, table.key, summarize=bool(table.columns))

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
    """What rows add at the end of a build.

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
        wanted: See ``BuildHooks``.
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
    wanted: str = "a table (.csv, .tsv or .jsonl, also .gz, .bz2, .xz, .zst; .parquet)"

    def next_step(self, name: str, default: str) -> str:
        """Return what to do with a file that is not a table."""
        return next_step(name, "rows", default)

    def remedy(self, reason: str, keys: Sequence[str]) -> str:
        """Return what to change if no file can be read, or nothing."""
        remedies = {
            "columns": "give the files the schema's columns, or the schema theirs",
            "header": "name the columns with --columns",
            "not_csv": self.next_step(keys[0], "check --input and --encoding"),
        }
        return remedies.get(reason) or remedy_of(reason, keys)

    def labels(
        self, counted: Collection[str], features: Sequence[dict[str, Any]]
    ) -> tuple[str, ...] | None:
        """Return the labels sorted by their bytes; none if records contain numbers instead."""
        if len(counted) > self.max_labels or TOO_MANY_LABELS in counted:
            return None
        texts = {"name": self.label_feature, "type": "bytes"} in features
        return super().labels(counted, features) if texts else ()

    def extra_files(self, build: str, input_id: str) -> ExtraFiles:
        """Return the files of the TensorFlow Transform graph, its schema and features."""
        if not self.transformed:
            return ExtraFiles()
        from shardmill.transforms.tables.tft.graph_store import read_graph

        return read_graph(build, input_id).extra_files()

    def schema(self, text: str, splits: Mapping[str, Split]) -> str:
        """Return the schema; with ``finds_gaps``, columns that no record lacks are required."""
        if not self.finds_gaps:
            return text
        features = [split.statistics.features for split in splits.values() if split.statistics]
        gaps = {name for each in features for name in each if each[name].missing}
        complete = set().union(*features) - gaps
        columns = parse_schema(text, shard_names.SCHEMA)
        return format_schema(
            [replace(each, required=each.required or each.name in complete) for each in columns]
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
                # That labels are required is a rule of the user.
                misfits[cause] += 0 if self._lacks_label(reject) else reject.inputs
            known = first.get(cause)
            if known is None or (reject.uri, reject.line or 0) < (known.uri, known.line or 0):
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
