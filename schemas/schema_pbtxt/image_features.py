"""Features of image records: one declaration, of which all other places are derived.

The encoder, schema.pbtxt, the manifest, the catalog, ``--update`` and the loaders read
``IMAGE_FEATURES``; a new feature is a new entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.schema_text import (
    Kind,
    class_id_domain,
    format_schema_text,
    single_value,
)

Encoding = Literal["jpeg", "png", "raw", "keep"]
ENCODINGS: tuple[Encoding, ...] = ("jpeg", "png", "raw", "keep")
# What ``keep`` did with a file; empty for other encodings. The last has a position by GPS.
ORIGINALS = ("", "converted", "kept", "kept_with_position")
Value = bytes | int


@dataclass(frozen=True)
class Feature:
    """A feature that records of images can have.

    Attributes:
        name: Its name, unless ``--features`` gives it another one.
        kind: Type of its value, of which each record has one.
        field: What it is a value of: of the decoded image, a field that ``decoder_process`` lists;
            of the input, ``key``, ``label`` or ``class_id``.
        of_input: Whether it is a value of the input, which may change while the image does not.
        labelled: Whether only images with labels have it.
        column: Column of the catalog with the value, or the BLAKE3 hash of bytes; empty for none.
        short: Its short name in loaders; empty for none.
    """

    name: str
    kind: Kind
    field: str
    of_input: bool = False
    labelled: bool = False
    column: str = ""
    short: str = ""


ENCODED = "image/encoded"
FORMAT = "image/format"
HEIGHT = "image/height"
WIDTH = "image/width"
CLASS_ID = "image/class/label"
CLASS_TEXT = "image/class/text"
KEY = "image/key"

IMAGE_FEATURES: dict[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature(ENCODED, "bytes", "data", column="image_hash", short="image"),
        Feature(FORMAT, "bytes", "format"),
        Feature(HEIGHT, "int64", "height"),
        Feature(WIDTH, "int64", "width"),
        Feature(CLASS_ID, "int64", "class_id", of_input=True, labelled=True, short="label"),
        Feature(CLASS_TEXT, "bytes", "label", of_input=True, labelled=True),
        Feature(KEY, "bytes", "key", of_input=True),
    )
}


@dataclass(frozen=True)
class FeatureSet:
    """The features of a record; a small picklable value.

    Attributes:
        features: (name in the record, feature), in the order of the flag.
    """

    features: tuple[tuple[str, Feature], ...]

    @classmethod
    def parse(cls, text: str, *, labelled: bool) -> FeatureSet:
        """Return the features of a ``--features`` value; an empty one means all features.

        Args:
            text: ``NAME=SOURCE,...``; the name of a feature without ``NAME=`` is its source.
            labelled: Whether the images have labels.

        Raises:
            UsageError: A source is unknown, is a label where there are none, or a name is repeated.
        """
        known = {
            name: each for name, each in IMAGE_FEATURES.items() if labelled or not each.labelled
        }
        if not text:
            return cls(tuple(known.items()))
        features = []
        for item in text.split(","):
            name, equals, source = item.strip().partition("=")
            source = source if equals else name
            if source not in known or not name:
                raise UsageError(
                    "features-invalid",
                    text=text,
                    item=item.strip(),
                    known=", ".join(known),
                    hint="." if labelled else " (the images have no labels).",
                )
            features.append((name, known[source]))
        if len(dict(features)) != len(features):
            raise UsageError("features-twice", text=text)
        return cls(tuple(features))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(name in the record, name in the declaration), in the order of the flag."""
        return tuple((name, feature.name) for name, feature in self.features)

    @cached_property
    def catalogued(self) -> dict[str, Kind]:
        """Columns of the catalog that record its features, with the types of the features."""
        return {each.column: each.kind for _, each in self.features if each.column}

    def values(self, fields: Mapping[str, Value], *, of_input: bool = False) -> dict[str, Value]:
        """Return the values of the features by their names in the record.

        Args:
            fields: Values by ``Feature.field``; no label where images have none.
            of_input: Whether to return only the values of the input.
        """
        return {
            name: fields[feature.field]
            for name, feature in self.features
            if feature.field in fields and (feature.of_input or not of_input)
        }

    def columns(self, values: Mapping[str, Any]) -> dict[str, str | int]:
        """Return the columns of the catalog that record its features.

        Args:
            values: Values by the names in the record.
        """
        from blake3 import blake3  # loaders do not need it

        columns = {each.column: values[name] for name, each in self.features if each.column}
        return {
            column: blake3(value).hexdigest() if isinstance(value, bytes) else value
            for column, value in columns.items()
        }

    def describe(self) -> list[dict[str, Any]]:
        """Return the features for the manifest, sorted by name."""
        return [
            {"name": name, "type": feature.kind, "source": feature.name}
            for name, feature in sorted(self.features, key=lambda pair: pair[0])
        ]

    def schema(self, labels: Sequence[str], tags: Sequence[str] = ()) -> str:
        """Return the text of ``schema.pbtxt``.

        Args:
            labels: All labels in the order of their class ids.
            tags: Annotation tags of the encoded image, as from ``feature_spec.array_tags``.
        """
        described = []
        for name, feature in sorted(self.features, key=lambda pair: pair[0]):
            is_image = feature.name == ENCODED
            fields = single_value(name, feature.kind, tags if is_image else ())
            if is_image:
                fields["image_domain"] = {}
            elif feature.name == CLASS_ID:
                fields |= class_id_domain(name, labels)
            described.append(fields)
        return format_schema_text(described)


def input_fields(key: str, label: str | None, class_id: int) -> dict[str, Value]:
    """Return the values of features of the input, by ``Feature.field``.

    Args:
        key: Key of the input.
        label: Its label; None where images have none.
        class_id: Number of the label.
    """
    fields: dict[str, Value] = {"key": key.encode()}
    return fields if label is None else fields | {"label": label.encode(), "class_id": class_id}


def catalog_columns() -> dict[str, Kind]:
    """Return the columns of the catalog that record features: ``bytes`` are texts there."""
    return {each.column: each.kind for each in IMAGE_FEATURES.values() if each.column}
