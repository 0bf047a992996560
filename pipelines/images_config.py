"""ImagesConfig: every option of the images pipeline as one frozen value, checked when made."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast, get_args

from shardmill.pipelines.build_config import BuildConfig, useless_unlabeled_splits
from shardmill.pipelines.dataset_options import ImagesOptions
from shardmill.pipelines.option_file import read_option_file
from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.option_types import identity_of, options_of, useless_option
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.schemas.schema_pbtxt.image_features import FeatureSet, Part, listed_feature
from shardmill.schemas.storage import absolute, open_storage
from shardmill.transforms.images.convert import ImageSpec
from shardmill.transforms.images.decoder_pool import use_pool
from shardmill.transforms.images.encoder import ImageEncoder
from shardmill.transforms.images.image_options import DecoderLimits
from shardmill.transforms.images.scaling import HAS_SIMD
from shardmill.transforms.match.annotations.annotation_spec import (
    UNDECLARED,
    AnnotationKind,
    AnnotationSource,
    AnnotationSpec,
    LineFormat,
    flag_of,
)
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.labels import (
    BELOW_SPLIT,
    LabelFrom,
    LabelSpec,
    below_places,
    check_label_pattern,
    parse_labels,
)
from shardmill.transforms.publish.generation import config_id
from shardmill.transforms.runtime.process_pool import usable_cores
from shardmill.transforms.sink.placement import PlaceSpec, check_group_pattern, check_unlabeled
from shardmill.transforms.sources.csv.dialect import CellOptions, CsvFormat, Dialect
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.sources.listings import ListingOptions
from shardmill.transforms.tables.column_options import typed_columns

_LARGE_SIDE = 4096  # pixels; such images rarely are what --image_size should say


@dataclass(kw_only=True)
class ImagesConfig(ImagesOptions, BuildConfig):
    """``ImagesOptions``, checked.

    Attributes:
        listed: Columns of listings that are features; None until the listings are opened.

    Raises:
        UsageError: A value breaks a rule, or two values conflict.
    """

    listed: tuple[Column, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resizer == "simd" and not HAS_SIMD:
            raise UsageError(
                "--resizer=simd needs cykooz-resizer, which is not installed here: install it, or "
                "use --resizer=pillow."
            )
        self._check_annotations()
        self._check_duplicates()
        check_group_pattern(self.group_pattern)
        if self.splits is not None or self.source_id:  # else folders may name the splits
            check_unlabeled(self.unlabeled_splits, self.shares)
        typed_columns(self.types)
        check_label_pattern(self.label_source, self.label_pattern)
        if self.zip_encoding and not _extends_ascii(self.zip_encoding):
            raise UsageError(
                f"--zip_encoding={self.zip_encoding} is not the name of an encoding: give one such "
                "as cp932, cp936, cp866 or cp850."
            )
        if self.group_pattern and self.shares.mode != "fractions":
            raise UsageError(
                f"--group_pattern has no effect with --splits={self.splits}, which names the split "
                "of each image: leave it out, or divide the images by shares such as "
                "--splits=train:0.9,validation:0.1."
            )
        if self.unlabeled_splits and self.label_source == "none":
            raise useless_unlabeled_splits()
        if self.shard_by == "label" and self.label_source == "none":
            raise UsageError("--shard_by=label needs labels: choose another --label_from.")
        if self.shard_by == "label" and self.label_separator:
            raise UsageError(
                "--shard_by=label and several labels of an image cannot be combined: leave one of "
                "them out."
            )

    @property
    def label_source(self) -> LabelFrom:
        """Where labels come from: ``none`` if boxes or pixels have them."""
        if self.annotations or (self.masks and self.label_from == "directory"):
            return "none"
        return self.label_from

    @property
    def reads_archive_labels(self) -> bool:
        """Whether labels that archives hold are used: a pattern is one for all paths without it."""
        named = bool(self.label_column) or not self.label_pattern
        return self.label_source == "directory" and named

    def _check_annotations(self) -> None:
        kinds = {item.partition(":")[0] for item in self.annotations}
        for item in self.annotations:
            kind, _, place = item.partition(":")
            if kind not in get_args(AnnotationKind) or (kind == "coco" and not place):
                raise UsageError(
                    f"--annotations={item} is not voc, voc:FOLDER, yolo, yolo:FOLDER or coco:FILE: "
                    "give one of them, and convert other formats, such as LabelMe's JSON or CVAT's "
                    "XML, to one of them."
                )
        if len(kinds) > 1:
            listed = ", ".join(sorted(kinds))
            raise UsageError(
                f"--annotations names several kinds ({listed}): build a dataset of each."
            )
        if "yolo" in kinds and not self.labels:
            raise UsageError(
                "--annotations=yolo numbers its classes: name them by --labels=FILE, the data.yaml "
                "of the data set or a text file with one class per line."
            )
        if self.coco_ids and kinds != {"coco"}:
            raise useless_option(flag="coco_ids", value=True, why="without --annotations=coco:FILE")
        if kinds and self.label_from not in ("directory", "none"):
            raise UsageError(
                f"--annotations and --label_from={self.label_from} cannot be combined, since boxes "
                "have the labels: leave one of them out."
            )
        for flag, used, why in (
            ("boxes_frame", True, "without --annotations or --masks"),
            ("labels", self.label_from == "none", "with --label_from=none"),
            (
                "label_order",
                self.label_from == "none" and self.label_order != "text",
                "with --label_from=none",
            ),
        ):
            value = getattr(self, flag)
            if value and used and not (kinds or self.masks):
                raise useless_option(flag=flag, value=value, why=why)

    def _check_duplicates(self) -> None:
        if self.duplicates == "keep":
            return
        for flag, named in (
            ("group_pattern", self.group_pattern),
            ("label_from", self.label_source == "listing"),
            ("splits", self.shares.mode != "fractions"),
        ):
            if named:
                raise UsageError(
                    f"--duplicates={self.duplicates} and --{flag}={getattr(self, flag)} cannot be "
                    "combined, since both say what belongs together: leave one of them out."
                )

    @cached_property
    def image_spec(self) -> ImageSpec:
        """How images are decoded, resized and encoded."""
        return self.pick(ImageSpec)

    @property
    def by_label(self) -> bool:
        """Whether each label has separate shards."""
        return self.shard_by == "label"

    @property
    def place_spec(self) -> PlaceSpec:
        """How images are assigned to splits and positions."""
        return PlaceSpec(
            self.shares, self.seed, self.group_pattern, self.by_label, self.unlabeled_splits
        )

    @cached_property
    def feature_set(self) -> FeatureSet:
        """The features of a record."""
        has: dict[Part, bool] = {
            "label": self.label_source != "none",
            "boxes": bool(self.annotations),
            "coco_ids": self.coco_ids,
            "mask": bool(self.masks),
        }
        features = FeatureSet.parse(
            self.features,
            [part for part, given in has.items() if given],
            several=bool(self.label_separator),
            listed=[*map(listed_feature, self.listed or ())],
        )
        return replace(features, keeps=self.encoding == "keep")

    @cached_property
    def listing_options(self) -> ListingOptions:
        """What is read of listings."""
        types = typed_columns(self.types)
        labelled, split = self.label_source == "listing", self.shares.mode == "listing"
        rules = CellRules.of(self.null_texts, self.pick(CellOptions))
        dialect = Dialect(**vars(self.pick(CsvFormat)))
        return ListingOptions(
            labelled, split, self.label_separator, types, rules, self.features, dialect
        )

    @cached_property
    def image_endings(self) -> tuple[str, ...]:
        """What follows the first dot in the names of images in archives, in lower case."""
        return tuple(suffix.lower().lstrip(".") for suffix in self.image_suffix)

    @cached_property
    def label_spec(self) -> LabelSpec:
        """Source of the labels, with the list of the labels file.

        Raises:
            UsageError: The labels file is missing or malformed.
        """
        fixed = None
        if self.labels:
            text = read_option_file("labels", self.labels, "a text file with one label a line")
            fixed = parse_labels(text, self.labels)
        pattern = self.label_pattern
        if self.label_source == "directory" and not pattern:
            # A split of all files does not say which folders are labels.
            places = [place for _, place in self.shares.named if place != "**"]
            pattern = BELOW_SPLIT if self.shares.mode == "directory" else below_places(places)
        several = bool(self.label_separator)
        is_unlabeled = self.place_spec.is_unlabeled
        option = f"--label_pattern={self.label_pattern}" if self.label_pattern else ""
        of_archives = self.reads_archive_labels
        return LabelSpec(
            self.label_source, pattern, fixed, is_unlabeled, several, option, of_archives
        )

    @cached_property
    def line_format(self) -> LineFormat:
        """What the ``data.yaml`` of YOLO's classes says of the lines of label files.

        Raises:
            UsageError: The file is missing or malformed.
        """
        if not (self.annotations and self.labels):
            return UNDECLARED
        text = read_option_file("labels", self.labels, "a text file in UTF-8")
        return LineFormat.parse(text, self.labels)

    @cached_property
    def encoder(self) -> ImageEncoder:
        """The encoder of records."""
        return ImageEncoder(
            self.image_spec,
            self.feature_set,
            self.workers,
            self.pick(DecoderLimits),
            self.boxes_frame,
        )

    def annotation_specs(self, match: MatchSpec) -> tuple[AnnotationSpec, ...]:
        """Return the image sets, annotations and masks of the matched images.

        Raises:
            ShardmillError: They do not exist.
        """
        places_by_kind: dict[AnnotationSource, list[str]] = {}
        if self.shares.mode == "imagesets":
            places_by_kind["imagesets"] = [""]
        for item in self.annotations:
            kind, _, place = item.partition(":")
            places_by_kind.setdefault(cast("AnnotationKind", kind), []).append(place)
        if self.masks:
            places_by_kind["masks"] = [self.masks]
        if places_by_kind and match.archives:
            first = next(iter(places_by_kind))
            raise UsageError(
                f"{first} cannot be attached to images in archives: unpack the archives first."
            )
        labels = self.label_spec
        return tuple(
            AnnotationSpec(
                kind,
                tuple({_find_place(kind, place or match.root, match): 0 for place in places}),
                labels.fixed or (),
                self.line_format,
                labels.allowed,
                match.root,
                "Segmentation" if self.masks else "Main",
                self.coco_ids,
            )
            for kind, places in places_by_kind.items()
        )

    def start(self, answer: Answer, *, in_memory: bool) -> None:
        """Print a note about very large images, and start a decoder, which takes a while."""
        size = self.image_size
        if self.resize != "none" and max(size) > _LARGE_SIDE and not answer.quiet:
            print(
                f"shardmill: --image_size={size} makes records of {size.height}x{size.width} "
                "pixels, which take seconds each.",
                file=sys.stderr,
            )
        if in_memory:
            with use_pool(self.workers or usable_cores()) as pool:
                pool.start_one()

    @property
    def has_folder_labels(self) -> bool:
        """See ``BuildConfig``; labels that other options describe are missing labels."""
        described = self.label_pattern or self.labels or self.by_label or self.unlabeled_splits
        return self.label_source == "directory" and not described

    def without_labels(self) -> ImagesConfig:
        """See ``BuildConfig``."""
        return replace(self, label_from="none", label_order="text")

    def used_values(self) -> dict[str, Any]:
        """Return the values of all options by name, as the build uses them."""
        return super().used_values() | {"label_from": self.label_source}

    def command(self, kind: str) -> tuple[str, ...]:
        """See ``BuildConfig``; on a machine with the other default, the images are the same."""
        words = super().command(kind)
        if words and not self.resizer and self.image_spec.resizer == "pillow":
            return (*words, "--resizer=pillow")
        return words

    def identity(self) -> dict[str, Any]:
        """Return the options that decide the content of the dataset."""
        values = super().identity()
        values["label_from"] = self.label_source
        if self.label_spec.fixed is not None:
            values["labels"] = list(self.label_spec.fixed)
        if self.label_order != "text":
            values["label_order"] = self.label_order
        if self.annotations:
            values["annotations"] = self.annotations[0].partition(":")[0]
        # In datasets of 0.2.0, some options had no names.
        for name in options_of(CellOptions) | options_of(CsvFormat):
            del values[name]
        if given := self.given_csv_options():
            values["csv"] = {name: str(value) for name, value in given.items()}
        if self.masks:
            values["masks"] = True
        if self.listed:
            values["columns"] = format_schema(self.listed)
        return values

    def config_id(self) -> str:
        """Return the digest of options, format and codecs: 16 hexadecimal digits."""
        return config_id("images", self.encoder.versions(), self.identity())

    def record_id(self) -> str:
        """Return the digest of the options and codecs that decide the features of a record."""
        encoder = self.encoder
        # The names of 0.2.0, by which records are recognized.
        limits = identity_of(encoder.limits)
        pixels = limits.pop("max_pixels")
        limits["memory"] = limits.pop("decoder_memory")
        limits["seconds"] = limits.pop("decoder_seconds")
        options: dict[str, Any] = {
            "spec": encoder.spec.record_identity() | {"max_pixels": pixels},
            "limits": limits,
            "features": encoder.feature_set.pairs,
            "content_hash": "blake3",
        }
        if self.masks:  # boxes are placed again
            options["boxes_frame"] = self.boxes_frame
        return config_id("images", encoder.versions(), options)


def _extends_ascii(encoding: str) -> bool:
    """Return whether a name is that of an encoding for names of files."""
    try:
        return b"a/b.jpg".decode(encoding, "surrogateescape") == "a/b.jpg"
    except (LookupError, ValueError):
        return False


def _find_place(kind: AnnotationSource, place: str, match: MatchSpec) -> MatchSpec:
    """Return what to match of a folder or file with annotations.

    Raises:
        InputError: It does not exist.
    """
    path = absolute(place)
    entry = open_storage(path).stat(path)
    is_file = kind == "coco"
    if entry is None or entry.kind != ("file" if is_file else "dir"):
        what = "a file" if is_file else "a folder"
        separator = ":" if kind in get_args(AnnotationKind) else "="
        flag = f"{flag_of(kind)}{separator}{place}"
        raise InputError(f"{flag} does not name {what} that exists: check the path.")
    return MatchSpec("file" if is_file else "directory", path, path, match.follow_links, "any")
