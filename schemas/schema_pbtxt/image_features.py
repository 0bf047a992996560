"""The features of image records: names, kinds and the schema that is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardmill.schemas.errors import UsageError

Kind = Literal["bytes", "int64"]
Encoding = Literal["jpeg", "png", "raw"]
ENCODINGS: tuple[Encoding, ...] = ("jpeg", "png", "raw")

ENCODED = "image/encoded"
FORMAT = "image/format"
HEIGHT = "image/height"
WIDTH = "image/width"
CLASS_ID = "image/class/label"
CLASS_TEXT = "image/class/text"
KEY = "image/key"

IMAGE_FEATURES: dict[str, Kind] = {
    ENCODED: "bytes",
    FORMAT: "bytes",
    HEIGHT: "int64",
    WIDTH: "int64",
    CLASS_ID: "int64",
    CLASS_TEXT: "bytes",
    KEY: "bytes",
}
LABEL_FEATURES = frozenset({CLASS_ID, CLASS_TEXT})


@dataclass(frozen=True)
class FeatureNames:
    """Which features a record has, and what they are called.

    Attributes:
        pairs: (name in the record, source feature) in the order given.
    """

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str, *, labelled: bool) -> FeatureNames:
        """Returns the features that a ``--features`` value names; all, when it is empty.

        Args:
            text: ``NAME=SOURCE,...``; a lone source keeps its own name.
            labelled: Whether records have labels at all.

        Raises:
            UsageError: A source is unknown, is a label that nothing has, or a name stands twice.
        """
        sources = [s for s in IMAGE_FEATURES if labelled or s not in LABEL_FEATURES]
        if not text:
            return cls(tuple((source, source) for source in sources))
        pairs = []
        for item in text.split(","):
            name, equals, source = item.strip().partition("=")
            source = source if equals else name
            if source not in sources or not name:
                raise UsageError(
                    f"--features={text}: {item.strip()!r} is not NAME=SOURCE with a source among "
                    + ", ".join(sources)
                    + ("." if labelled else " (there are no labels).")
                )
            pairs.append((name, source))
        if len({name for name, _ in pairs}) != len(pairs):
            raise UsageError(f"--features={text} uses a name twice: give each feature its own.")
        return cls(tuple(pairs))

    def rename(self, values: Mapping[str, bytes | int]) -> dict[str, bytes | int]:
        """Returns the values of the chosen features under their names in the record."""
        return {name: values[source] for name, source in self.pairs}

    def describe(self) -> list[dict[str, str]]:
        """Returns the features as the manifest lists them, sorted by name."""
        return [
            {"name": name, "type": IMAGE_FEATURES[source], "source": source}
            for name, source in sorted(self.pairs)
        ]


def image_schema(names: FeatureNames, labels: Sequence[str], tags: Sequence[str] = ()) -> str:
    """Returns ``schema.pbtxt``: a tensorflow_metadata Schema in protobuf text format.

    Args:
        names: Which features a record has.
        labels: All labels in the order of their class ids.
        tags: What ``feature_spec.array_tags`` says of the pictures.
    """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = schema_pb2.Schema()
    for name, source in sorted(names.pairs):
        kind = schema_pb2.BYTES if IMAGE_FEATURES[source] == "bytes" else schema_pb2.INT
        feature = schema.feature.add(name=name, type=kind)
        feature.presence.min_fraction = 1.0
        feature.presence.min_count = 1
        feature.shape.dim.add(size=1)
        if source == ENCODED:
            feature.image_domain.SetInParent()
            feature.annotation.tag.extend(tags)
        elif source == CLASS_ID:
            feature.int_domain.name = name
            feature.int_domain.min = 0
            feature.int_domain.max = max(0, len(labels) - 1)
            feature.int_domain.is_categorical = True
    return str(text_format.MessageToString(schema))
