"""ImagesConfig: every option of the images pipeline as one frozen value, checked when made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, cast

from shardmill.pipelines.build_config import BuildConfig, config_id, read_option_file
from shardmill.pipelines.dataset_options import ImagesOptions
from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.image_features import Encoding, FeatureSet
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.images.convert import ImageSpec
from shardmill.transforms.images.decoder_protocol import Limits
from shardmill.transforms.images.encoder import ImageEncoder
from shardmill.transforms.images.resize import Resize, ResizeSpec, parse_image_size
from shardmill.transforms.match.labels import BELOW_SPLIT, LabelFrom, LabelSpec, parse_labels
from shardmill.transforms.sink.placement import DUPLICATES, PlaceSpec
from shardmill.transforms.sink.planning import parse_bytes

_MIN_DECODER_MEMORY = 1 << 30  # twice the largest file that is read


@dataclass(frozen=True)
class ImagesConfig(ImagesOptions, BuildConfig):
    """``ImagesOptions``, checked.

    Raises:
        UsageError: A value breaks a rule, or two values conflict.
    """

    not_identity: ClassVar[frozenset[str]] = BuildConfig.not_identity | {
        "labels", "limit", "workers",
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "image_size", str(parse_image_size(self.image_size)))
        if self.shard_by not in ("", "label"):
            raise UsageError(f"--shard_by={self.shard_by} is unknown: the only choice is label.")
        self._check_duplicates()
        if self.icc not in ("ignore", "srgb"):
            raise UsageError(f"--icc={self.icc} is unknown: use ignore or srgb.")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit={self.limit} must be 1 or more.")
        if self.threads:
            raise UsageError(
                f"--threads={self.threads} is not a flag of images: use --workers=N, "
                "the number of decoder processes."
            )
        for flag, fits, rule in (
            ("workers", self.workers >= 0, "1 or more, or 0 for one per core"),
            ("decoder_memory", self.limits.memory >= _MIN_DECODER_MEMORY, "1GiB or more"),
            ("decoder_seconds", 0 < self.limits.seconds <= 86_400, "above 0, at most 86400"),
        ):
            if not fits:
                raise UsageError(f"--{flag}={getattr(self, flag)} is out of range: {rule}.")
        # The parsers of these values check them.
        _ = self.image_spec, self.place_spec, self.shard_spec, self.feature_set
        _ = LabelSpec(cast("LabelFrom", self.label_from), self.label_pattern)
        if self.shard_by == "label" and self.label_from == "none":
            raise UsageError("--shard_by=label needs labels: choose another --label_from.")

    def _check_duplicates(self) -> None:
        if self.duplicates not in DUPLICATES:
            choices = ", ".join(DUPLICATES)
            raise UsageError(f"--duplicates={self.duplicates} is unknown: use {choices}.")
        if self.duplicates == "keep":
            return
        for flag, named in (
            ("group_pattern", self.group_pattern), ("label_from", self.label_from == "listing"),
            ("splits", self.splits in ("directory", "listing")),
        ):  # fmt: skip
            if named:
                raise UsageError(
                    f"--duplicates={self.duplicates} excludes --{flag}={getattr(self, flag)}, "
                    "which says itself what belongs together: leave one of them out."
                )

    @cached_property
    def image_spec(self) -> ImageSpec:
        """How images are decoded, resized and encoded."""
        size = parse_image_size(self.image_size)
        return ImageSpec(
            resize=ResizeSpec(size, cast("Resize", self.resize), self.only_shrink),
            interpolation=self.interpolation,
            reducing_gap=self.reducing_gap,
            encoding=cast("Encoding", self.encoding),
            quality=self.quality,
            channels=self.channels,
            icc=self.icc == "srgb",
            max_pixels=self.max_pixels,
        )

    @property
    def limits(self) -> Limits:
        """Memory and time that decoding one image may take."""
        return Limits(parse_bytes(self.decoder_memory, "decoder_memory"), self.decoder_seconds)

    @property
    def by_label(self) -> bool:
        """Whether each label has separate shards."""
        return self.shard_by == "label"

    @property
    def place_spec(self) -> PlaceSpec:
        """How images are assigned to splits and positions."""
        return PlaceSpec(Splits.parse(self.splits), self.seed, self.group_pattern, self.by_label)

    @cached_property
    def feature_set(self) -> FeatureSet:
        """The features of a record."""
        return FeatureSet.parse(self.features, labelled=self.label_from != "none")

    @cached_property
    def label_spec(self) -> LabelSpec:
        """Source of the labels, with the list of the labels file.

        Raises:
            UsageError: The labels file is missing or malformed.
        """
        fixed = None
        if self.labels:
            text = read_option_file("labels", self.labels, "a text file in UTF-8")
            fixed = parse_labels(text, self.labels)
        by_folder = self.label_from == "directory" and self.splits == "directory"
        pattern = self.label_pattern or (BELOW_SPLIT if by_folder else "")
        return LabelSpec(cast("LabelFrom", self.label_from), pattern, fixed)

    @cached_property
    def encoder(self) -> ImageEncoder:
        """The encoder of records."""
        packing: Packing = self.image_spec.packing if self.compression == "gzip" else "none"
        return ImageEncoder(self.image_spec, self.feature_set, packing, self.workers, self.limits)

    def without_folder_labels(self) -> ImagesConfig:
        """See ``BuildConfig``; labels that other options describe are missing labels."""
        described = self.label_pattern or self.labels or self.by_label
        if described or self.label_from != "directory":
            return self
        return replace(self, label_from="none")

    def identity(self) -> dict[str, Any]:
        """Return the options that decide the content of the dataset."""
        values = super().identity()
        if self.label_spec.fixed is not None:
            values["labels"] = list(self.label_spec.fixed)
        return values

    def config_id(self) -> str:
        """Return the digest of options, format and codecs: 16 hexadecimal digits."""
        return config_id("images", self.encoder.versions(), self.identity())

    def record_id(self) -> str:
        """Return the digest of the options and codecs that decide the features of a record."""
        encoder = self.encoder
        options = {
            "spec": asdict(encoder.spec), "features": encoder.feature_set.pairs,
            "limits": asdict(encoder.limits), "content_hash": "blake3",
        }  # fmt: skip
        return config_id("images", encoder.versions(), options)
