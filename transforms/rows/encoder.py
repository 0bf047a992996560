"""RowEncoder: what the sink asks of rows, whose records were encoded when runs were made."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardmill.schemas.refs import SegmentRef
from shardmill.schemas.rejects import Reject
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.build.encoder import Beside, Finishing, Item
from shardmill.transforms.rows.runs.merge import merge_segments, read_rejects
from shardmill.transforms.rows.table import MANY, MAX_LABELS

_NAME = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_COLUMN = re.compile(rf"line (?P<line>\d+), column (?P<name>{_NAME}): (?P<problem>.*)", re.DOTALL)
_TYPES = {"int64": "int64", "float32": "float", "bytes": "bytes"}


@dataclass(frozen=True)
class RowEncoder:
    """Gives the records of a part's segments.

    Attributes:
        columns: The schema.
        key: Column that tells rows apart, or empty.
        made_by: Versions of all code that decides bytes.
    """

    columns: tuple[Column, ...]
    key: str
    made_by: dict[str, str]

    @property
    def packing(self) -> Packing:
        """How members of a gzip shard are packed."""
        return "deflated"

    @property
    def expected_bytes(self) -> int | None:
        """Not known: rows are planned by the bytes of their text."""
        return None

    def encode(
        self,
        refs: Sequence[SegmentRef],
        labels: Sequence[str],  # noqa: ARG002
    ) -> Iterator[Item]:
        """Yield the rejects of segments that hold some, then the merged records of the others."""
        for ref in refs:
            if not ref.split:
                yield from read_rejects(ref)
        segments = [ref for ref in refs if ref.split]
        if segments:
            yield from merge_segments(segments, self.key)

    def versions(self) -> dict[str, str]:
        """Returns the versions of all code that decides the records' bytes."""
        return self.made_by

    def schema(self, labels: Sequence[str]) -> str:  # noqa: ARG002
        """Returns the text of ``schema.pbtxt``."""
        return format_schema(self.columns)

    def features(self) -> list[dict[str, Any]]:
        """Returns the features as the manifest lists them, sorted by name."""
        return [
            {"name": column.name, "type": _TYPES[column.kind]}
            for column in sorted(self.columns, key=lambda column: column.name.encode())
        ]


@dataclass(frozen=True)
class RowsFinishing(Finishing):
    """What rows add at the end of a build.

    Attributes:
        text_labels: Whether labels are texts that a trainer turns into class ids.
        transformed: Whether a TensorFlow Transform graph is published too.
    """

    text_labels: bool = False
    transformed: bool = False
    watches_inputs: bool = False

    def countable(self, counted: Collection[str]) -> bool:
        """Tells whether labels are few enough to be listed and counted."""
        return len(counted) <= MAX_LABELS and MANY not in counted

    def labels(self, counted: Collection[str]) -> tuple[str, ...]:
        """Returns the labels by their bytes; none where records hold numbers instead."""
        return super().labels(counted) if self.text_labels else ()

    def beside(self, build: str, input_id: str) -> Beside:
        """Returns the files of the TensorFlow Transform graph, its schema and features."""
        if not self.transformed:
            return Beside()
        from shardmill.transforms.rows.tft.graph_store import read_pointer  # reads protos

        return read_pointer(build, input_id).beside()

    def advice(self, rejects: Iterator[Reject]) -> str:
        """Returns which column most bad rows are bad in, an example, and what to change."""
        counts: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for reject in rejects:
            found = _COLUMN.fullmatch(reject.message)
            name = found["name"] if found else reject.error
            counts[name] += reject.inputs
            if found:
                file = reject.key.rpartition(":")[0]
                examples.setdefault(name, f"line {found['line']} of {file}: {found['problem']}")
            else:
                examples.setdefault(name, f"{reject.key}: {reject.message}")
        if not counts:
            return ""
        name, count = max(counts.items(), key=lambda item: (item[1], item[0]))
        where = f"in column {name}" if name.startswith(("'", '"')) else f"for {name}"
        return f"{count:,} of them {where}, as in {examples[name]}"
