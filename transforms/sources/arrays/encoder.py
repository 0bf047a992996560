"""ArrayEncoder: encode the rows of a part as framed tf.train.Examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import deflate
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.schemas.refs import ArrayRef
from shardmill.schemas.schema_pbtxt import schema_text
from shardmill.schemas.schema_pbtxt.feature_spec import array_tags
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.runtime import progress
from shardmill.transforms.runtime.process_pool import usable_cores
from shardmill.transforms.sink.encoder import Block, Item
from shardmill.transforms.sink.hooks import BuildHooks
from shardmill.transforms.sink.totals import Totals
from shardmill.transforms.sources.arrays.array_file import ArrayFile
from shardmill.transforms.sources.arrays.labels import LABEL, LABEL_TEXT, ArrayLabels, decode_label
from shardmill.transforms.sources.arrays.row_index import RowPlacement, index_rows
from shardmill.transforms.sources.arrays.row_reader import read_part
from shardmill.transforms.tables import label_limit
from shardmill.transforms.tables.byte_arrays import ByteStrings
from shardmill.transforms.tables.encode import encode_rows, prepare
from shardmill.transforms.tables.row_hash import hash_offsets
from shardmill.transforms.tables.typed_column import TypedColumn

ARRAYS_VERSION = "1"  # of the encoding; a change makes new records
_BLOCK_BYTES = 8 << 20  # of arrays that are encoded at a time


@dataclass(frozen=True)
class ArrayEncoder:
    """The ``Encoder`` of arrays: a reference points to all rows of a part.

    Attributes:
        arrays: The features without the label.
        label: The label, if there is one.
        placement: How rows are placed in parts.
        packing: Compression of the members.
        threads: Number of concurrent reads; 0 for one per core.
    """

    arrays: tuple[ArrayFile, ...]
    label: ArrayLabels | None
    placement: RowPlacement
    packing: Packing
    threads: int = 0

    @property
    def expected_bytes(self) -> int | None:
        """See ``Encoder.expected_bytes``."""
        return sum(array.row_bytes for array in self.arrays)

    def versions(self) -> dict[str, str]:
        """See ``Encoder.versions``."""
        return {"arrays": ARRAYS_VERSION, "deflate": deflate.__version__}

    def encode(self, refs: Sequence[ArrayRef], labels: Sequence[str]) -> Iterator[Item]:
        """Yield the records of parts, each in the order of positions.

        Raises:
            InputError: A file changed or is damaged.
            OutputError: A scratch file cannot be written.
        """
        for ref in refs:
            part = self.placement.part_index(ref.split, ref.part)
            yield from self._encode_part(part, labels)

    def _encode_part(self, part: int, labels: Sequence[str]) -> Iterator[Block]:
        place = self.placement
        rows = index_rows(place).rows_of(part)
        order = np.argsort(hash_offsets(place.seed, place.key, rows).position)
        places = np.empty_like(order)
        places[order] = np.arange(len(rows))
        threads = self.threads or usable_cores()
        read = partial(read_part, placement=place, part=part, places=places, threads=threads)
        raw = [read(array) for array in self.arrays]
        values = self.label.values(read(self.label.array)) if self.label else None
        step = max(1, _BLOCK_BYTES // max(1, sum(each.shape[1] for each in raw)))
        for first in range(0, len(rows), step):
            rows_of_block = slice(first, first + step)
            block_values = None if values is None else values[rows_of_block]
            yield self._block([each[rows_of_block] for each in raw], block_values, labels)
            progress.current().add(sum(each[rows_of_block].size for each in raw))

    def _block(
        self, raw: Sequence[npt.NDArray[np.uint8]], values: npt.NDArray[Any] | None,
        labels: Sequence[str],
    ) -> Block:  # fmt: skip
        columns = [
            TypedColumn(array.name, "bytes", _to_arrow(rows), None)
            for array, rows in zip(self.arrays, raw, strict=True)
        ]
        counts: Counter[str] = Counter()
        if self.label and values is not None:
            label_features, counts = label_columns(self.label, values, labels)
            columns += label_features
        num_rows = len(raw[0])
        prepared = prepare(columns, np.arange(num_rows))
        totals = Totals(records=num_rows, label_counts=counts)
        return Block(memoryview(encode_rows(prepared, 0, num_rows)), prepared.lengths, totals)

    def schema(self, labels: Sequence[str]) -> str:
        """See ``Encoder.schema``."""
        features = [
            schema_text.single_value(
                a.name, "bytes", array_tags(a.dtype.newbyteorder("<"), a.shape[1:])
            )
            for a in self.arrays
        ]
        if self.label:
            name = self.label.name
            class_id = schema_text.single_value(name, "int64")
            if self.label.texts:
                features.append(schema_text.single_value(self.label.text_name, "bytes"))
                class_id |= schema_text.class_id_domain(name, labels)
            features.append(class_id)
        return schema_text.format_schema_text(
            sorted(features, key=lambda feature: feature["name"].encode())
        )

    def features(self) -> list[dict[str, Any]]:
        """See ``Encoder.features``."""
        features = [{"name": a.name, "type": "bytes", "source": "array"} for a in self.arrays]
        if self.label:
            features.append({"name": self.label.name, "type": "int64", "source": LABEL})
            if self.label.texts:
                text = {"name": self.label.text_name, "type": "bytes", "source": LABEL_TEXT}
                features.append(text)
        return sorted(features, key=lambda feature: feature["name"].encode())


@dataclass(frozen=True)
class ArraysHooks(BuildHooks):
    """The ``BuildHooks`` of arrays.

    Attributes:
        reports_inputs: False: the encoder reports progress, in bytes.
        inputs: See ``BuildHooks``.
        text_labels: Whether labels are texts.
    """

    reports_inputs: bool = False
    inputs: str = "rows"
    text_labels: bool = False

    def countable(self, counted: Collection[str]) -> bool:
        """Return whether labels are few enough to be counted."""
        return self.text_labels or label_limit.is_countable(counted)

    def labels(self, counted: Collection[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return no labels: texts are known before the build, and integers are not listed."""
        return ()


def label_columns(
    label: ArrayLabels, values: npt.NDArray[Any], labels: Sequence[str]
) -> tuple[list[TypedColumn], Counter[str]]:
    """Return the features of labels, and the number of records with each label.

    Args:
        label: The label.
        values: int64, or texts; shape [n].
        labels: All labels in the order of their class ids, where they are texts.
    """
    distinct, numbers = np.unique(values, return_inverse=True)
    indices: npt.NDArray[np.int32] = numbers.reshape(-1).astype(np.int32)
    counts = np.bincount(indices, minlength=len(distinct)).tolist()
    if not label.texts:
        column = TypedColumn(label.name, "int64", pa.array(distinct), indices)
        if len(distinct) > label_limit.MAX_LABELS:
            return [column], Counter({label_limit.TOO_MANY_LABELS: len(values)})
        return [column], Counter(dict(zip(map(str, distinct.tolist()), counts, strict=True)))
    texts = [decode_label(value)[0] for value in distinct.tolist()]
    ids = {text: number for number, text in enumerate(labels)}
    columns = [
        TypedColumn(label.name, "int64", pa.array([ids[t] for t in texts], pa.int64()), indices),
        TypedColumn(
            label.text_name, "bytes", pa.array([t.encode() for t in texts], pa.binary()), indices
        ),
    ]
    return columns, Counter(dict(zip(texts, counts, strict=True)))


def _to_arrow(rows: npt.NDArray[np.uint8]) -> pa.LargeBinaryArray:
    """Return rows of bytes as an Arrow array, without a copy."""
    count, width = rows.shape
    return ByteStrings(rows.reshape(-1), np.arange(count + 1, dtype=np.int64) * width).arrow()
