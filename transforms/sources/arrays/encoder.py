"""ArrayEncoder: the features of arrays, and the records of their parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import deflate

from shardmill.schemas.refs import SegmentRef
from shardmill.schemas.schema_pbtxt import schema_text
from shardmill.schemas.schema_pbtxt.feature_spec import array_tags
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.sink.encoder import Item
from shardmill.transforms.sink.hooks import BuildHooks
from shardmill.transforms.sources.arrays.array_file import ArrayFile
from shardmill.transforms.sources.arrays.labels import LABEL, LABEL_TEXT, ArrayLabels
from shardmill.transforms.tables.merge import encode_part
from shardmill.transforms.tables.table_source import is_countable

ARRAYS_VERSION = "1"  # of the encoding; a change makes new records


@dataclass(frozen=True)
class ArrayEncoder:
    """The ``Encoder`` of arrays: yields the records of runs.

    Attributes:
        arrays: The features without the label.
        label: The label, if there is one.
        packing: Compression of the members.
    """

    arrays: tuple[ArrayFile, ...]
    label: ArrayLabels | None
    packing: Packing = "deflated"

    @property
    def expected_bytes(self) -> int | None:
        """See ``Encoder.expected_bytes``."""
        return sum(array.row_bytes for array in self.arrays)

    def versions(self) -> dict[str, str]:
        """See ``Encoder.versions``."""
        return {"arrays": ARRAYS_VERSION, "deflate": deflate.__version__}

    def encode(
        self,
        refs: Sequence[SegmentRef],
        labels: Sequence[str],  # noqa: ARG002
    ) -> Iterator[Item]:
        """Yield the records of parts, in the order of positions."""
        yield from encode_part(refs, summarize=False)

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
        return self.text_labels or is_countable(counted)

    def labels(self, counted: Collection[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return no labels: texts are known before the build, and integers are not listed."""
        return ()
