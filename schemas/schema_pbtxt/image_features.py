"""Features of image records, declared once.

The encoder, schema.pbtxt, the manifest, the catalog, ``--update`` and the loaders read
``IMAGE_FEATURES``; a new feature is a new entry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.schemas.schema_pbtxt.schema_text import (
    Kind,
    class_id_domain,
    feature_fields,
    format_schema_text,
)

if TYPE_CHECKING:
    from shardmill.schemas.example.serialize import FeatureValue

Encoding = Literal["jpeg", "png", "raw", "keep"]
ENCODINGS: tuple[Encoding, ...] = ("jpeg", "png", "raw", "keep")
Part = Literal["label", "boxes", "coco_ids", "mask"]  # annotations that an image may lack


@dataclass(frozen=True)
class Feature:
    """A feature that records of images can have.

    Attributes:
        name: Its name, unless ``--features`` gives it another one.
        kind: Type of its values.
        field: Name of its value: a field of the decoded image that ``decoder_process`` lists, or a
            field of ``input_fields``.
        of_input: Whether it is a value of the input, which may change while the image does not.
        part: The annotation that it comes from; empty if all images have it.
        count: Number of its values in a record: ``one``, ``some`` (one or none), ``any``.
        column: Column of the catalog with the value, or with the BLAKE3 hash of bytes (for a mask,
            of its file); empty if the catalog does not record it.
        short: Its short name in loaders, or empty.
    """

    name: str
    kind: Kind
    field: str
    of_input: bool = False
    part: Part | Literal[""] = ""
    count: Literal["one", "some", "any"] = "one"
    column: str = ""
    short: str = ""


ENCODED = "image/encoded"
FORMAT = "image/format"
HEIGHT = "image/height"
WIDTH = "image/width"
CLASS_ID = "image/class/label"
CLASS_TEXT = "image/class/text"
KEY = "image/key"
MASK_CLASS = "image/segmentation/class"
MASK = f"{MASK_CLASS}/encoded"
_BOX_FIELDS: tuple[tuple[str, Kind, str], ...] = (
    ("bbox/xmin", "float32", "box/xmin"),
    ("bbox/ymin", "float32", "box/ymin"),
    ("bbox/xmax", "float32", "box/xmax"),
    ("bbox/ymax", "float32", "box/ymax"),
    ("class/text", "bytes", "box/text"),
    ("class/label", "int64", "box/class_id"),
    ("difficult", "int64", "box/difficult"),
    ("truncated", "int64", "box/truncated"),
    ("is_crowd", "int64", "box/is_crowd"),
    ("area", "float32", "box/area"),
)
_BOX_SHORTS = {"box/class_id": "classes"}
# Columns of the catalog that are counts, or 1 for some images; and the warning about their sums.
ORIGINAL_COUNTS = {  # with the encoding ``keep``
    "kept": "",
    "kept_with_position": "kept files with a GPS position, which --strip_metadata removes",
    "converted": "",
}
BOX_COUNTS = {
    "boxes": "",
    "boxes_clipped": "boxes that reach outside of their images and were clipped",
    "boxes_outside": "boxes outside of their images, which were left out",
    "boxes_empty": "boxes without width or height, which were left out",
    "boxes_swapped": "boxes with a negative width or height, as where xmax is less than xmin, "
    "which were left out",
    "boxes_cropped": "boxes that were cropped away with the pixels",
    "boxes_size_differs": "annotations with another size than their images, which was ignored",
    "boxes_stored_frame": "annotations with the size of their images before these are rotated as "
    "EXIF data ask, of which boxes were rotated too",
    "outlines": "outlines of objects, of which only the boxes were read",
}
DEPTH_REDUCED = "depth_reduced"
DEPTH_COUNTS = {
    DEPTH_REDUCED: "images of more than 8 bits a channel, of which records have 8",
}
# Left out where they are 0, as in datasets of 0.2.0.
RARE_COUNTS = (DEPTH_REDUCED, "boxes_swapped")
COUNTS = ORIGINAL_COUNTS | BOX_COUNTS | DEPTH_COUNTS
IMAGE_HASH = "image_hash"  # column of the catalog: of the encoded image
VALUES = "values_digest"  # column of the catalog: of the values of listings and annotations

# As TensorFlow's Object Detection API names them; sides as fractions of the record's image.
_BOX_FEATURES = [
    Feature(
        f"image/object/{name}",
        kind,
        field,
        of_input=True,
        part="boxes",
        count="any",
        short=_BOX_SHORTS.get(field, ""),
    )
    for name, kind, field in _BOX_FIELDS
]
_FEATURES = (
    Feature(ENCODED, "bytes", "data", column=IMAGE_HASH, short="image"),
    Feature(FORMAT, "bytes", "format"),
    Feature(HEIGHT, "int64", "height"),
    Feature(WIDTH, "int64", "width"),
    Feature(CLASS_ID, "int64", "class_id", of_input=True, part="label", short="label"),
    Feature(CLASS_TEXT, "bytes", "label", of_input=True, part="label"),
    Feature(KEY, "bytes", "key", of_input=True),
    *_BOX_FEATURES,
    Feature("image/source/height", "int64", "source_height", part="boxes"),
    Feature("image/source/width", "int64", "source_width", part="boxes"),
    Feature("image/source/orientation", "int64", "orientation", part="boxes"),
    Feature(
        "image/source/id",
        "int64",
        "coco_image_id",
        of_input=True,
        part="coco_ids",
        short="image_id",
    ),
    Feature(
        "image/object/category_id",
        "int64",
        "box/category_id",
        of_input=True,
        part="coco_ids",
        count="any",
        short="category_ids",
    ),
    Feature(MASK, "bytes", "mask", part="mask", column="mask_hash", short="mask"),
    Feature(f"{MASK_CLASS}/format", "bytes", "mask_format", part="mask"),
)
IMAGE_FEATURES = {feature.name: feature for feature in _FEATURES}


def listed_feature(column: Column) -> Feature:
    """Return the feature of a column of a listing."""
    count: Any = "one" if column.required else "some"
    count = "any" if column.separator or column.several else count
    name, field = f"image/{column.name}", f"listing/{column.name}"
    return Feature(name, column.kind, field, of_input=True, count=count)


@dataclass(frozen=True)
class FeatureSet:
    """The features of a record; a small picklable value.

    Attributes:
        features: (name in the record, feature), in the order of the flag.
        keeps: Whether files may be kept unchanged.
    """

    features: tuple[tuple[str, Feature], ...]
    keeps: bool = False

    @classmethod
    def parse(
        cls,
        text: str,
        parts: Collection[Part] = (),
        *,
        several: bool = False,
        listed: Sequence[Feature] = (),
    ) -> FeatureSet:
        """Return the features of a ``--features`` value; an empty one means all features.

        Args:
            text: ``NAME=SOURCE,...``; the name of a feature without ``NAME=`` is its source.
            parts: The annotations that the images have.
            several: Whether an image may have several labels.
            listed: Features whose values are columns of a listing.

        Raises:
            UsageError: A source is unknown, is a label where there are none, or a name is repeated.
        """
        sources: dict[str, Feature] = {}
        for feature in (*listed, *IMAGE_FEATURES.values()):
            if feature.part and feature.part not in parts:
                continue
            sources[feature.name] = feature
            if several and feature.part == "label":
                sources[feature.name] = replace(feature, count="any")
        for column in listed:
            if not text and sources[column.name] != column:
                raise UsageError(
                    f"A column of the listing would be the feature {column.name}, which images "
                    "have: rename it, or choose features with --features."
                )
        if not text:
            return cls(tuple(sources.items()))
        features = []
        for item in text.split(","):
            name, equals, source = item.strip().partition("=")
            source = source if equals else name
            if source not in sources or not name:
                choices = ", ".join(sources)
                hint = "." if "label" in parts else " (the images have no labels)."
                raise UsageError(
                    f"--features={text}: {item.strip()!r} is not NAME=SOURCE with a source among "
                    f"{choices}{hint}"
                )
            features.append((name, sources[source]))
        if len(dict(features)) != len(features):
            raise UsageError(
                f"--features={text} uses a name twice: give each feature a different name."
            )
        return cls(tuple(features))

    @cached_property
    def boxes(self) -> bool:
        """Whether a record has values of boxes, or the fields needed to place them again."""
        return any(
            feature.part == "boxes" or feature.field.startswith("box/")
            for _, feature in self.features
        )

    def name_of(self, field: str) -> str:
        """Return the name in the record of the feature of a field, or an empty text."""
        return next((name for name, feature in self.features if feature.field == field), "")

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """(name in the record, name in the declaration), in the order of the flag."""
        return tuple((name, feature.name) for name, feature in self.features)

    @cached_property
    def catalogued(self) -> dict[str, Kind]:
        """Columns of the catalog that record its features, with the types of the features."""
        counts: list[str] = []
        if self.keeps:
            counts += ORIGINAL_COUNTS
        if self.boxes:
            counts += BOX_COUNTS
        columns = {feature.column: feature.kind for _, feature in self.features if feature.column}
        return {**columns, **dict.fromkeys(counts, "int64")}

    def values(
        self, fields: Mapping[str, FeatureValue], *, of_input: bool = False
    ) -> dict[str, FeatureValue]:
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

    def columns(self, fields: Mapping[str, Any]) -> dict[str, str | int]:
        """Return the columns of the catalog that record its features.

        Args:
            fields: Values by ``Feature.field``, and others of the catalog by column.
        """
        from blake3 import blake3  # loaders do not need it

        columns = {
            feature.column: fields[feature.field] for _, feature in self.features if feature.column
        }
        columns |= {name: fields[name] for name in self.catalogued if name in fields}
        for column, value in columns.items():
            if isinstance(value, bytes):
                columns[column] = blake3(value).hexdigest()
        return columns

    def describe(self) -> list[dict[str, Any]]:
        """Return the features for the manifest, sorted by name."""
        return [
            {"name": name, "type": feature.kind, "source": feature.name}
            for name, feature in sorted(self.features, key=lambda pair: pair[0])
        ]

    def schema(
        self, labels: Sequence[str], tags: Sequence[str] = (), mask_tags: Sequence[str] = ()
    ) -> str:
        """Return the text of ``schema.pbtxt``.

        Args:
            labels: All labels in the order of their class ids.
            tags: Annotation tags of the encoded image, as from ``schema_text.array_tags``.
            mask_tags: Annotation tags of the encoded mask.
        """
        tagged = {ENCODED: tags, MASK: mask_tags}
        described = []
        for name, feature in sorted(self.features, key=lambda pair: pair[0]):
            fields = feature_fields(
                name,
                feature.kind,
                tagged.get(feature.name, ()),
                required=feature.count == "one",
                several=feature.count == "any",
            )
            if feature.name == ENCODED:
                fields["image_domain"] = {}
            elif feature.field in ("class_id", "box/class_id"):
                fields |= class_id_domain(name, labels)
            described.append(fields)
        return format_schema_text(described)


def catalog_columns() -> dict[str, Kind]:
    """Return the columns of the catalog that record features: ``bytes`` are texts there."""
    columns = {
        feature.column: feature.kind for feature in IMAGE_FEATURES.values() if feature.column
    }
    return {**columns, **dict.fromkeys(COUNTS, "int64"), VALUES: "bytes"}
