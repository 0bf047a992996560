"""BuildConfig: the options that every pipeline which writes a dataset shares."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from typing_extensions import Self

from shardmill.pipelines.dataset_options import DatasetOptions
from shardmill.schemas.dataset.shard_names import DEFAULT_TEMPLATE, LABEL_TEMPLATE, ShardTemplate
from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import absolute, open_storage
from shardmill.schemas.tfrecord.gzip_member import COMPRESSIONS
from shardmill.transforms.sink.parts import FORMAT_VERSION
from shardmill.transforms.sink.placement import PlaceSpec
from shardmill.transforms.sink.planning import ShardSpec, parse_bytes
from shardmill.transforms.sink.spec import SinkSpec

_PATHS = frozenset({"input", "output", "root", "labels", "schema", "preprocessing"})
_MODES = frozenset({"update", "overwrite", "dry_run"})

Config = TypeVar("Config", bound="BuildConfig")


@dataclass(frozen=True)
class BuildConfig(DatasetOptions):
    """The options of every build, checked.

    Attributes:
        not_identity: Options that do not change the content of the dataset.

    Raises:
        UsageError: A value breaks a rule, or two values conflict.
    """

    not_identity: ClassVar[frozenset[str]] = frozenset(
        {"input", "output", "root", "follow_links", "max_reject_fraction", "update", "overwrite",
         "keep", "dry_run", "threads"}
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in _PATHS & {each.name for each in fields(self)}:
            object.__setattr__(self, name, os.fspath(getattr(self, name)))
        if not self.output:
            raise UsageError("--output is empty: give the folder of the new dataset.")
        if self.compression not in COMPRESSIONS:
            raise UsageError(f"--compression={self.compression} is unknown: use gzip or none.")
        if not 0 <= self.max_reject_fraction <= 1:
            raise UsageError(
                f"--max_reject_fraction={self.max_reject_fraction:g} must be between 0 and 1."
            )
        if self.update and self.overwrite:
            raise UsageError(
                "--update and --overwrite exclude each other: --update builds if inputs or options "
                "changed, --overwrite in any case."
            )
        if self.keep < 0:
            raise UsageError(f"--keep={self.keep} is negative: give 0 or more.")
        if self.threads < 0:
            raise UsageError(f"--threads={self.threads} must be 1 or more, or 0 for one per core.")

    @property
    def absolute_output(self) -> str:
        """Absolute path or URI of the output."""
        return absolute(self.output)

    @property
    def by_label(self) -> bool:
        """Whether each label has separate shards."""
        return False

    @property
    def place_spec(self) -> PlaceSpec:
        """How examples are assigned to splits and positions."""
        return PlaceSpec(Splits.parse(self.splits), self.seed)

    @property
    def one_split(self) -> bool:
        """Whether at most one split can have examples."""
        return sum(share > 0 for _, share in self.place_spec.splits.shares) == 1

    @cached_property
    def shard_spec(self) -> ShardSpec:
        """Number or size of the shards, and their names."""
        default = LABEL_TEMPLATE if self.by_label else DEFAULT_TEMPLATE
        if self.compression == "none":
            default = default.removesuffix(".gz")
        template = ShardTemplate(self.shard_name or default)
        shown = f"--shard_name={self.shard_name!r}"
        if "split" not in template.fields and not self.one_split:
            raise UsageError(
                f"{shown} would give shards of several splits one name: "
                "add {split}, or make one split as in --splits=train:1."
            )
        if "label" not in template.fields and self.by_label:
            raise UsageError(
                f"{shown} would give shards of several labels one name: add {{label}}."
            )
        if "label" in template.fields and not self.by_label:
            raise UsageError(f"{shown} has {{label}}: that needs --shard_by=label.")
        if "index" not in template.fields and self.num_shards != 1:
            raise UsageError(f"{shown} would give several shards one name: add {{index}}.")
        return ShardSpec(
            template,
            self.num_shards,
            parse_bytes(self.shard_bytes, "shard_bytes"),
            self.shard_examples,
        )

    def without_folder_labels(self) -> Self:
        """Return the options for an input whose folders are splits and have no subfolders."""
        return self

    def sink_spec(self, identity: str, root: str, **values: Any) -> SinkSpec:
        """Return what the build writes, and where.

        Args:
            identity: Digest of all options that decide bytes.
            root: Folder that keys are relative to.
            values: Other attributes of the SinkSpec.
        """
        return SinkSpec(
            output=self.absolute_output,
            config_id=identity,
            place=self.place_spec,
            shards=self.shard_spec,
            compression="gzip" if self.compression == "gzip" else "none",
            max_reject_fraction=self.max_reject_fraction,
            update=self.update,
            overwrite=self.overwrite,
            keep=self.keep,
            dry_run=self.dry_run,
            root=root,
            **values,
        )

    def command(self, kind: str) -> tuple[str, ...]:
        """Return the command line that builds the dataset again.

        Args:
            kind: Name of the kind of input.
        """
        flags = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in _MODES or value == each.default:
                continue
            if each.name in _PATHS and value:
                value = absolute(value)
            flags.append(f"--{each.name}" if value is True else f"--{each.name}={value}")
        return ("shardmill", kind, *flags)

    def identity(self) -> dict[str, Any]:
        """Return the options that decide the content of the dataset."""
        return {
            f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.not_identity
        } | {
            "splits": str(Splits.parse(self.splits)),
            "shard_bytes": parse_bytes(self.shard_bytes, "shard_bytes"),
        }


def read_option_file(flag: str, path: str, remedy: str) -> str:
    """Return the text of a file that an option names.

    Args:
        flag: Name of the option.
        path: Path or URI of the file.
        remedy: What to give instead, for messages.

    Raises:
        UsageError: The file is missing, a folder, or not UTF-8.
    """
    storage = open_storage(path)
    entry = storage.stat(path)
    if entry is None:
        raise UsageError(f"--{flag}={path} does not exist: give {remedy}.")
    if entry.kind == "dir":
        raise UsageError(f"--{flag}={path} is a folder: give {remedy}.")
    try:
        return storage.read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"--{flag}={path} is not UTF-8: give {remedy}.") from error


def config_id(pipeline: str, versions: Mapping[str, str], options: Mapping[str, Any]) -> str:
    """Return the digest of options, format and codecs: 16 hexadecimal digits.

    Args:
        pipeline: Name of the pipeline.
        versions: Versions of the codecs.
        options: The options that decide the content of the dataset.
    """
    body = {
        "pipeline": pipeline,
        "format": FORMAT_VERSION,
        "versions": dict(versions),
        "options": dict(options),
    }
    text = json.dumps(body, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"shardmill-conf").hexdigest()
