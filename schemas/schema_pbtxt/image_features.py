"""Features of image records: their names, kinds and schema.pbtxt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.schema_text import (
    Kind,
    class_id_domain,
    format_schema_text,
    single_value,
)

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
    """The features of a record and their names.

    Attributes:
        pairs: (name in the record, source feature), in the order of the flag.
    """

    pairs: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str, *, labelled: bool) -> FeatureNames:
        """Return the features of a ``--features`` value; an empty one means all features.

        Args:
            text: ``NAME=SOURCE,...``; the name of a feature without ``NAME=`` is its source.
            labelled: Whether the images have labels.

        Raises:
            UsageError: A source is unknown, is a label where there are none, or a name is repeated.
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
                    + ("." if labelled else " (the images have no labels).")
                )
            pairs.append((name, source))
        if len({name for name, _ in pairs}) != len(pairs):
            raise UsageError(
                f"--features={text} uses a name twice: give each feature a different name."
            )
        return cls(tuple(pairs))

    def rename(self, values: Mapping[str, bytes | int]) -> dict[str, bytes | int]:
        """Return the values of the features by their names in the record."""
        return {name: values[source] for name, source in self.pairs}

    def describe(self) -> list[dict[str, str]]:
        """Return the features for the manifest, sorted by name."""
        return [
            {"name": name, "type": IMAGE_FEATURES[source], "source": source}
            for name, source in sorted(self.pairs)
        ]


def image_schema(names: FeatureNames, labels: Sequence[str], tags: Sequence[str] = ()) -> str:
    """Return the text of ``schema.pbtxt``.

    Args:
        names: The features of a record.
        labels: All labels in the order of their class ids.
        tags: Annotation tags of the encoded image, as from ``feature_spec.array_tags``.
    """
    features = []
    for name, source in sorted(names.pairs):
        feature = single_value(name, IMAGE_FEATURES[source], tags if source == ENCODED else ())
        if source == ENCODED:
            feature["image_domain"] = {}
        elif source == CLASS_ID:
            feature |= class_id_domain(name, labels)
        features.append(feature)
    return format_schema_text(features)
