"""ImagesConfig: every option of the images pipeline as one frozen value, checked when made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, cast

from shardmill.schemas.errors import UsageError
from shardmill.schemas.features import FeatureNames
from shardmill.schemas.members import Packing
from shardmill.schemas.names import DEFAULT_TEMPLATE, LABEL_TEMPLATE, ShardTemplate
from shardmill.schemas.splits import Splits
from shardmill.schemas.storage import open_storage
from shardmill.transforms.geometry import Resize, ResizeSpec, parse_image_size
from shardmill.transforms.images import ImageEncoder
from shardmill.transforms.labels import LabelFrom, LabelSpec, parse_labels
from shardmill.transforms.parts import FORMAT_VERSION
from shardmill.transforms.pixels import Encoding, ImageSpec
from shardmill.transforms.placement import PlaceSpec
from shardmill.transforms.planning import ShardSpec, parse_bytes

COMPRESSIONS = ("gzip", "none")
# Options that say where or how a build runs, and do not decide what it writes.
_NOT_IDENTITY = frozenset(
    {"input", "output", "root", "follow_links", "labels", "max_reject_fraction", "overwrite",
     "dry_run", "limit", "threads"}
)  # fmt: skip


@dataclass(frozen=True)
class ImagesConfig:
    """Options of ``shardmill images``; docs/images.md explains each.

    Raises:
        UsageError: A value breaks a rule, or two do not go together.
    """

    input: str
    output: str
    root: str = ""
    follow_links: bool = False
    label_from: str = "directory"
    label_pattern: str = ""
    labels: str = ""
    splits: str = "train:0.9,validation:0.1"
    group_pattern: str = ""
    image_size: str = "224"
    resize: str = "stretch"
    interpolation: str = "bilinear"
    only_shrink: bool = False
    reducing_gap: float = 3.0
    icc: str = "ignore"
    encoding: str = "jpeg"
    quality: int = 95
    channels: int = 3
    num_shards: int | None = None
    shard_bytes: str = "128MiB"
    shard_examples: int | None = None
    shard_by: str = ""
    shard_name: str = ""
    compression: str = "gzip"
    features: str = ""
    seed: int = 0
    max_reject_fraction: float = 0.05
    overwrite: bool = False
    dry_run: bool = False
    limit: int | None = None
    threads: int = 0

    def __post_init__(self) -> None:
        if not self.output:
            raise UsageError("--output is empty: give the folder of the new dataset.")
        if self.compression not in COMPRESSIONS:
            raise UsageError(f"--compression={self.compression} is unknown: use gzip or none.")
        if self.shard_by not in ("", "label"):
            raise UsageError(f"--shard_by={self.shard_by} is unknown: the only choice is label.")
        if self.icc not in ("ignore", "srgb"):
            raise UsageError(f"--icc={self.icc} is unknown: use ignore or srgb.")
        if not 0 <= self.max_reject_fraction <= 1:
            raise UsageError(
                f"--max_reject_fraction={self.max_reject_fraction:g} is no share: use 0 to 1."
            )
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit={self.limit} must be 1 or more.")
        if self.threads < 0:
            raise UsageError(f"--threads={self.threads} must be 1 or more, or 0 for one a core.")
        # Each part checks its own values.
        _ = self.image_spec, self.place_spec, self.shard_spec, self.feature_names
        _ = LabelSpec(cast("LabelFrom", self.label_from), self.label_pattern)
        if self.shard_by == "label" and self.label_from == "none":
            raise UsageError("--shard_by=label needs labels: choose another --label_from.")

    @cached_property
    def image_spec(self) -> ImageSpec:
        """What happens to the pixels."""
        size = parse_image_size(str(self.image_size))
        return ImageSpec(
            resize=ResizeSpec(size, cast("Resize", self.resize), self.only_shrink),
            interpolation=self.interpolation,
            reducing_gap=self.reducing_gap,
            encoding=cast("Encoding", self.encoding),
            quality=self.quality,
            channels=self.channels,
            icc=self.icc == "srgb",
        )

    @cached_property
    def place_spec(self) -> PlaceSpec:
        """How images find their places."""
        by_label = self.shard_by == "label"
        return PlaceSpec(Splits.parse(self.splits), self.seed, self.group_pattern, by_label)

    @cached_property
    def shard_spec(self) -> ShardSpec:
        """How many shards there are and what they are called."""
        default = LABEL_TEMPLATE if self.shard_by == "label" else DEFAULT_TEMPLATE
        if self.compression == "none":
            default = default.removesuffix(".gz")
        template = ShardTemplate(self.shard_name or default)
        shown = f"--shard_name={self.shard_name!r}"
        shares = [name for name, share in self.place_spec.splits.shares if share]
        if "split" not in template.fields and len(shares) != 1:
            raise UsageError(
                f"{shown} would give shards of several splits one name: "
                "add {split}, or make one split as in --splits=train:1."
            )
        if "label" not in template.fields and self.shard_by == "label":
            raise UsageError(
                f"{shown} would give shards of several labels one name: add {{label}}."
            )
        if "label" in template.fields and self.shard_by != "label":
            raise UsageError(f"{shown} has {{label}}: that needs --shard_by=label.")
        if "index" not in template.fields and self.num_shards != 1:
            raise UsageError(f"{shown} would give several shards one name: add {{index}}.")
        return ShardSpec(
            template,
            self.num_shards,
            parse_bytes(self.shard_bytes, "shard_bytes"),
            self.shard_examples,
        )

    @cached_property
    def feature_names(self) -> FeatureNames:
        """Which features a record has."""
        return FeatureNames.parse(self.features, labelled=self.label_from != "none")

    @cached_property
    def label_spec(self) -> LabelSpec:
        """Where labels come from, the labels file read.

        Raises:
            UsageError: The labels file is missing or malformed.
        """
        fixed = None
        if self.labels:
            try:
                text = open_storage(self.labels).read(self.labels).decode("utf-8")
            except (FileNotFoundError, IsADirectoryError) as error:
                raise UsageError(
                    f"--labels={self.labels} does not exist: give a text file."
                ) from error
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"--labels={self.labels} is not UTF-8: save it as UTF-8."
                ) from error
            fixed = parse_labels(text, self.labels)
        return LabelSpec(cast("LabelFrom", self.label_from), self.label_pattern, fixed)

    @cached_property
    def encoder(self) -> ImageEncoder:
        """How refs become records."""
        packing: Packing = self.image_spec.packing if self.compression == "gzip" else "none"
        return ImageEncoder(self.image_spec, self.feature_names, packing, self.threads)

    def identity(self) -> dict[str, Any]:
        """Returns the options that decide what is written, and nothing else."""
        values = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_IDENTITY
        }
        if self.label_spec.fixed is not None:
            values["labels"] = list(self.label_spec.fixed)
        return values

    def config_id(self) -> str:
        """Returns the identity of the config, format and codecs: 16 hexadecimal digits."""
        body = {
            "pipeline": "images",
            "format": FORMAT_VERSION,
            "versions": self.encoder.versions(),
            "options": self.identity(),
        }
        text = json.dumps(body, sort_keys=True, ensure_ascii=False)
        return hashlib.blake2b(text.encode(), digest_size=8, person=b"shardmill-conf").hexdigest()
