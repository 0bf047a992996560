"""BuildConfig: the options that every pipeline which writes a dataset shares.

And the splits that the folders of an input name, as in ``train/`` and ``validation/``.
"""

from __future__ import annotations

import itertools
import os
import shlex
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from typing_extensions import Self

from shardmill.pipelines.dataset_options import DatasetOptions
from shardmill.pipelines.report.terminal import Answer
from shardmill.pipelines.split_places import relative_places
from shardmill.schemas.dataset.shard_names import (
    MANIFEST,
    ShardTemplate,
    is_generation,
    shard_template,
)
from shardmill.schemas.dataset.splits import DEFAULT_SPLITS, Splits, split_of_folder
from shardmill.schemas.errors import UsageError, format_names
from shardmill.schemas.option_types import as_text, identity_of, options_of, parse_path
from shardmill.schemas.storage import absolute, join, open_storage, scheme_of
from shardmill.transforms.match.annotations.layouts import is_named_like_annotations
from shardmill.transforms.match.inputs import MatchSpec, find_inputs
from shardmill.transforms.match.walk import check_apart, folder_names
from shardmill.transforms.sink.placement import PlaceSpec, ShardOptions, ShardSpec
from shardmill.transforms.sink.spec import SinkSpec

_MODES = frozenset({"update", "overwrite", "limits", "dry_run", "beam_options"})

Config = TypeVar("Config", bound="BuildConfig")
_FEW = 100  # entries of a folder
_MAX_SIBLINGS = 12
_MAX_DEPTH = 4  # a link may lead to a folder above it


@dataclass
class BuildConfig(DatasetOptions):
    """The options of every build, checked.

    Attributes:
        source_id: See ``SinkSpec``.

    Raises:
        UsageError: A value breaks a rule, or two values conflict.
    """

    source_id: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.output:
            raise UsageError("--output is empty: give the folder of the new dataset.")
        for source in (
            () if self.source_id else filter(None, self.sources)
        ):  # else reported when it is looked for
            check_apart(source, os.fspath(self.output))
        if self.update and self.overwrite:
            raise UsageError(
                "--update and --overwrite cannot be combined: --update builds if inputs or options "
                "changed, --overwrite in any case."
            )
        self._check_shard_name()

    @property
    def sources(self) -> tuple[str, ...]:
        """Paths or URIs of the inputs."""
        return cast("tuple[str, ...]", self.input)

    @property
    def source(self) -> str:
        """Paths or URIs of all inputs, for messages."""
        if self.source_id:
            return "the Python source"
        return ", ".join(self.sources)

    def find_inputs(self, **options: Any) -> MatchSpec:
        """Return the inputs and what to match in them; see ``inputs.find_inputs``."""
        source = absolute(self.sources[0]) if len(self.sources) == 1 else ""
        if source and _are_swapped(source, self.absolute_output):
            raise UsageError(
                f"--output={self.absolute_output} holds files that are not a dataset, and "
                f"--input={source} is a dataset or does not exist: the input comes first, the "
                "output second."
            )
        for place in map(absolute, self.sources):
            if _holds_dataset(place):
                raise UsageError(
                    f"--input={place} is a dataset of Shardmill: read it with open_dataset, or in "
                    "Beam with ReadDataset; for another dataset give the inputs that it was built "
                    "from."
                )
        return find_inputs(self.sources, self.root, **options)

    @property
    def absolute_output(self) -> str:
        """Absolute path or URI of the output."""
        return absolute(os.fspath(self.output))

    @property
    def shares(self) -> Splits:
        """The splits; by default those of every build."""
        return self.splits or Splits.parse(None)

    @property
    def by_label(self) -> bool:
        """Whether each label has separate shards."""
        return False

    @property
    def place_spec(self) -> PlaceSpec:
        """How examples are assigned to splits and positions."""
        return PlaceSpec(self.shares, self.seed)

    @property
    def one_split(self) -> bool:
        """Whether at most one split can have examples."""
        return len(self.shares.required) == 1

    @property
    def shard_spec(self) -> ShardSpec:
        """Number or size of the shards, and their names."""
        return ShardSpec(self._shard_template, **vars(self.pick(ShardOptions)))

    @property
    def _shard_template(self) -> ShardTemplate:
        return shard_template(self.shard_name, by_label=self.by_label, compression=self.compression)

    def _check_shard_name(self) -> None:
        fields = self._shard_template.fields
        if "split" not in fields and not self.one_split:
            raise UsageError(
                f"--shard_name={self.shard_name!r} would give shards of several splits one name: "
                "add {split}, or make one split as in --splits=train:1."
            )
        if "label" not in fields and self.by_label:
            raise UsageError(
                f"--shard_name={self.shard_name!r} would give shards of several labels one name: "
                "add {label}."
            )
        if "label" in fields and not self.by_label:
            raise UsageError(
                f"--shard_name={self.shard_name!r} has {{label}}: that needs --shard_by=label."
            )
        if "index" not in fields and self.num_shards != 1:
            raise UsageError(
                f"--shard_name={self.shard_name!r} would give several shards one name: add "
                "{index}."
            )

    def start(self, answer: Answer, *, in_memory: bool) -> None:
        """Prepare a build of the command, before Beam is imported.

        Args:
            answer: How the command answers.
            in_memory: Whether this process makes the records.
        """

    def explain(self, error: Exception) -> Exception | None:  # noqa: ARG002
        """Return the error to report for an exception of another library, or None."""
        return None

    @property
    def has_folder_labels(self) -> bool:
        """Whether labels are names of folders, and no option says more about them."""
        return False

    def without_labels(self) -> Self:
        """Return the options for an input without labels."""
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
            compression=self.compression,
            max_reject_fraction=self.max_reject_fraction,
            update=self.update,
            overwrite=self.overwrite,
            keep=self.keep,
            dry_run=self.dry_run,
            root=root,
            input=self.source,
            source_id=self.source_id,
            check=self.limits.check_build if self.limits else None,
            **values,
        )

    def used_values(self) -> dict[str, Any]:
        """Return the values of all options by name, as the build uses them."""
        return {name: getattr(self, name) for name in options_of(self)}

    def command(self, kind: str) -> tuple[str, ...]:
        """Return the command line that builds the dataset again; empty if it was a Python call.

        Args:
            kind: Name of the kind of input.
        """
        if self.source_id:
            return ()
        values = self.used_values()
        words = ["shardmill", kind, *(f"--input={absolute(source)}" for source in self.sources)]
        words.append(f"--output={self.absolute_output}")
        for name, option in options_of(self).items():
            value = values[name]
            if name not in _MODES and value != option.default:
                if option.parse is parse_path:
                    value = absolute(value)
                if value is True:
                    words.append(f"--{name}")
                else:
                    words.append(f"--{name}={as_text(option, value)}")
        return tuple(words)

    def identity(self) -> dict[str, Any]:
        """Return the options that decide the content of the dataset."""
        return identity_of(self) | {"splits": str(self.shares)}


def _are_swapped(source: str, output: str) -> bool:
    """Return whether an input and an output look like each other's.

    The input is a dataset or does not exist, and the output is a file, or a folder with files that
    is not a dataset. Only local ones are looked at: each look at a bucket takes two requests.
    """
    if scheme_of(source) or scheme_of(output):
        return False
    storage = open_storage(output)
    entry = storage.stat(output)
    if entry is None or open_storage(source).stat(source) is not None:
        if entry is None or open_storage(source).stat(join(source, MANIFEST)) is None:
            return False
    elif any(character in source for character in "*?["):
        return False
    if entry.kind != "dir":
        return True
    names = {item.name for item in itertools.islice(storage.list_dir(output), _FEW)}
    return MANIFEST not in names and any(not name.startswith((".", "gen-")) for name in names)


def _holds_dataset(folder: str) -> bool:
    """Return whether a local folder is a dataset, as ``_are_swapped`` looks at local ones only."""
    if scheme_of(folder) or any(character in folder for character in "*?["):
        return False
    storage = open_storage(folder)
    if storage.stat(join(folder, MANIFEST)) is None:
        return False
    return any(is_generation(entry.name) for entry in storage.list_dir(folder))


def resolve_splits(config: Config, match: MatchSpec) -> tuple[Config, tuple[str, ...]]:
    """Return a config with the splits of an input's folders, and warnings for the manifest.

    Folders are splits if all of them are named like splits, and name at least two: a folder of
    images that is called ``test`` next to ``cat`` and ``dog`` is a label. With labels from folders,
    split folders without subfolders have no labels.

    Args:
        config: The options; splits that it names are not changed.
        match: The input.
    """
    if config.splits and config.splits.named:
        return replace(config, splits=relative_places(config.splits, match, config.sources)), ()
    one_level = match.kind == "glob" and "/" not in match.input[len(match.top.rstrip("/")) + 1 :]
    inside = match.kind in ("directory", "glob") and match.root == match.top and not one_level
    if (config.splits and config.splits.mode != "directory") or not inside:
        return config, ()
    names = sorted(folder_names(match.top))
    splits = [name for name in names if split_of_folder(name)]
    several = len({split_of_folder(name) for name in splits}) > 1
    if config.splits is None and not (several and splits == names):
        warning = _warn_of_labels(config, match.top, names, splits)
        return config, tuple(filter(None, [warning]))
    if not several:
        return config, ()
    warning = (
        f"the folders {format_names(splits)} were taken as splits; --splits={DEFAULT_SPLITS} "
        "divides all files"
    )
    divided: Config = replace(config, splits=Splits("directory"))
    flat = [name for name in splits if not folder_names(join(match.top, name))]
    if flat and divided.has_folder_labels:
        if flat == splits:
            divided = divided.without_labels()
            warning += (
                "; they have no subfolders, so the images have no labels: --label_from=filename "
                "takes labels from file names"
            )
        else:
            unlabeled = ",".join(sorted({split_of_folder(name) for name in flat}))
            have = "has" if len(flat) == 1 else "have"
            warning += (
                f"; {format_names(flat)} {have} no subfolders, so the images have no labels: add "
                f"--unlabeled_splits={unlabeled}"
            )
    if config.splits:
        return divided, ()
    return divided, (warning,)


def _warn_of_labels(config: Config, top: str, names: list[str], splits: list[str]) -> str:
    """Return a warning about folders that are named like splits but not taken as splits.

    Args:
        config: The options.
        top: Folder of the input.
        names: All folders in it.
        splits: Those that are named like splits.
    """
    if not splits:
        return _warn_of_deeper_splits(top, names)
    listed = format_names(splits)
    divided = f"all files were divided by --splits={DEFAULT_SPLITS}"
    if len(splits) < len(names):
        others = format_names([name for name in names if name not in splits])
        return (
            f"the folders {listed} look like splits, but not {others}: {divided}; "
            f"--splits=directory takes the folders as splits, and rejects the files in {others}"
        )
    if config.has_folder_labels and not any(folder_names(join(top, name)) for name in splits):
        return (
            f"the folders {listed} look like splits and became labels: set --label_from=filename "
            f"or none; {divided}"
        )
    return ""


def _warn_of_deeper_splits(top: str, names: list[str]) -> str:
    """Return a warning if a deeper folder of an input holds folders that are named like splits.

    It is the only folder, or the only one next to those of annotations.
    """
    folder = ""
    for _ in range(_MAX_DEPTH):
        with_splits = {}
        for name in names[:_MAX_SIBLINGS]:  # each takes a request in a bucket
            path = join(folder, name) if folder else name
            splits = _splits_in(top, path)
            if splits and not is_named_like_annotations(name):
                with_splits[path] = splits
        if len(with_splits) == 1:
            [(path, splits)] = with_splits.items()
            option = f"--input={join(top, path)}"
            if len(names) > 1:  # also files next to the folder may be needed
                places = (f"{split}={place}" for place, split in splits.items())
                option = f"--splits={','.join(places)}"
            return f"{format_names([*splits])} look like splits: use {shlex.quote(option)}"
        if len(names) != 1:
            break
        folder = join(folder, names[0]) if folder else names[0]
        names = folder_names(join(top, folder))
    return ""


def _splits_in(top: str, folder: str) -> dict[str, str]:
    """Return the folders in a folder that are named like splits, with these; {} for one split."""
    names = sorted(folder_names(join(top, folder)))
    splits = {join(folder, name): split_of_folder(name) for name in names if split_of_folder(name)}
    if len({*splits.values()}) > 1:
        return splits
    return {}


def useless_unlabeled_splits() -> UsageError:
    """Return the error for unlabeled splits of a dataset without labels."""
    return UsageError("--unlabeled_splits needs a label: name one, or leave it out.")
