"""Source: the selected splits of a published dataset, with schema and checked shard sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from shardmill.loaders.boxes import BOX_SIDES, BOXES, boxes_spec
from shardmill.loaders.components import Components
from shardmill.loaders.selection import Selection, ShardSlice, select
from shardmill.schemas.dataset.catalog import read_table
from shardmill.schemas.dataset.dataset_files import read_dataset_file
from shardmill.schemas.dataset.manifest import Manifest, Shard
from shardmill.schemas.dataset.read_manifest import open_manifest
from shardmill.schemas.dataset.shard_names import SCHEMA, check_not_deleted
from shardmill.schemas.errors import FormatError, InputError, UsageError, format_names
from shardmill.schemas.example.parse import FeatureValues
from shardmill.schemas.numbers import plural
from shardmill.schemas.schema_pbtxt.feature_spec import FeatureSpec, parse_feature_specs
from shardmill.schemas.schema_pbtxt.image_features import (
    CLASS_ID,
    CLASS_TEXT,
    HEIGHT,
    IMAGE_FEATURES,
    WIDTH,
)
from shardmill.schemas.storage import (
    Entry,
    join,
    map_ordered,
    open_storage,
    scheme_of,
    storage_threads,
)
from shardmill.schemas.tfrecord.members import different_records

# Names of features by their short names, which TFDS and Hugging Face datasets use too.
LONG_NAMES = {feature.short: feature.name for feature in IMAGE_FEATURES.values() if feature.short}
# Options of a build that attach features, by the names of these in readers.
_ATTACHED = {
    BOXES: "--annotations=voc, yolo or coco:FILE",
    "classes": "--annotations=voc, yolo or coco:FILE",
    "mask": "--masks=FOLDER",
}
_ID_SOURCES = (CLASS_ID, "label")
_TEXT_SOURCES = (CLASS_TEXT, "label/text")


@dataclass(frozen=True)
class Source:
    """The selected splits of a dataset.

    Attributes:
        folder: The folder of the shards.
        manifest: The manifest.
        selection: The splits that are read in an epoch.
        specs: The features of a record, sorted by name.
        lacking: Names of the features with labels that records lack, as a split has no labels.
        mix: Of a mix, whose parts are those of all its datasets, these datasets; else None.
        versions: Versions of the shards on object stores when they were listed, by path.
    """

    folder: str
    manifest: Manifest
    selection: Selection
    specs: tuple[FeatureSpec, ...]
    lacking: frozenset[str] = frozenset()
    mix: Components | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Returns the number of examples."""
        return self.selection.num_examples

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards in their order."""
        return tuple(part.shard for part in self.selection.parts)

    @property
    def paths(self) -> list[str]:
        """The paths of all shards in their order."""
        return [join(self.folder_of(n), shard.file) for n, shard in enumerate(self.shards)]

    def folder_of(self, part: int) -> str:
        """Returns the folder of the shard of a part."""
        if self.mix is None:
            return self.folder
        return self.mix.folder_of(part)

    def adapt(self, part: int, payload: bytes) -> bytes:
        """Returns a record as readers get it: that of a mix has the class ids of the mix.

        Raises:
            FormatError: It is not an example.
        """
        if self.mix is None:
            return payload
        return self.mix.adapt(part, payload)

    @property
    def first_parts(self) -> list[int]:
        """Numbers of the first part with records of each dataset."""
        firsts: dict[str, int] = {}
        for number, shard in enumerate(self.shards):
            if not shard.records:
                continue
            firsts.setdefault(self.folder_of(number), number)
            if self.mix is None:
                break
        return list(firsts.values())

    @cached_property
    def label_id(self) -> str:
        """Name of the feature with class ids or integer labels, or empty."""
        return self.named_by(*_ID_SOURCES) or self._label_column("int64")

    @cached_property
    def label_text(self) -> str:
        """Name of the feature with the text of labels, or empty."""
        return self.named_by(*_TEXT_SOURCES) or self._label_column("bytes")

    @property
    def label_features(self) -> frozenset[str]:
        """Names of all features with the label."""
        return frozenset({self.label_id, self.label_text, self._label_column("float32")} - {""})

    @property
    def num_classes(self) -> int:
        """Number of labels; of integer labels without a list, one more than the maximum.

        Raises:
            UsageError: It is not known.
        """
        if self.manifest.labels:
            return len(self.manifest.labels)
        if self.mix is not None and self.mix.num_classes:
            return self.mix.num_classes
        splits = self.manifest.splits.values()
        try:
            numbers = [int(label) for split in splits for label in split.label_counts]
        except ValueError:
            numbers = []
        if not numbers or min(numbers) < 0:
            self.check_labeled()
            raise UsageError("label='one_hot' needs a known number of classes: use label='id'.")
        return max(numbers) + 1

    @property
    def box_sides(self) -> list[str]:
        """Names of the features with the sides of boxes; empty texts where records lack them."""
        return [self.named_by(f"image/object/bbox/{side}") for side in BOX_SIDES]

    @property
    def has_boxes(self) -> bool:
        """Whether records have boxes with all sides."""
        return all(self.box_sides)

    @cached_property
    def sides(self) -> tuple[str, str]:
        """Names of the features with the height and width of images, or empty."""
        return self.named_by(HEIGHT), self.named_by(WIDTH)

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """Names of the features whose bytes hold arrays: images or raw values."""
        return tuple(spec.name for spec in self.specs if spec.encoding)

    def spec_of(self, name: str) -> FeatureSpec:
        """Returns the spec of a feature.

        Raises:
            UsageError: The feature is unknown.
        """
        spec = self.find_spec(name)
        if spec is None:
            names = format_names([spec.name for spec in self.specs])
            raise UsageError(f"the records have no feature {name!r}: they have {names}.")
        return spec

    def find_spec(self, name: str) -> FeatureSpec | None:
        """Returns the spec of a feature, or None if it is unknown.

        Raises:
            UsageError: The records lack the feature for a reason that is known.
        """
        long = LONG_NAMES.get(name, "")
        if name in self.lacking or (long and long in self.lacking):
            self.check_labeled()
        for candidate in (name, self.named_by(long), long):
            for spec in self.specs:
                if spec.name == candidate:
                    return spec
        if name.partition("/")[0] == BOXES and self.has_boxes:
            return boxes_spec(name, self.box_sides, self.sides[::-1])
        part = name.partition("/")[0]
        if part in _ATTACHED:
            raise UsageError(
                f"{name!r}: the records have no {part}: build the dataset with {_ATTACHED[part]}."
            )
        return None

    @property
    def unlabeled(self) -> list[str]:
        """Names of the selected splits whose records have no labels."""
        files = {shard.file for shard in self.shards}
        return [
            name
            for name, split in self.manifest.splits.items()
            if not split.labeled and any(shard.file in files for shard in split.shards)
        ]

    def check_labeled(self) -> None:
        """Checks that no split is one without labels.

        Raises:
            UsageError: One is, so that the labels of the others are left out.
        """
        names = self.unlabeled
        if names:
            split = self.selection.split
            listed = " and ".join(names)
            raise UsageError(
                f"{split} has no labels, because {listed} has none (--unlabeled_splits): read "
                "the other splits alone, or give label=None, or features without the label."
            )

    def label_of(self, features: Mapping[str, FeatureValues]) -> str | None:
        """Returns the label of a record as the manifest counts it."""
        labels = self.manifest.labels
        for name in (self.label_text, self.label_id):
            value: Any = next(iter(features[name].values), None) if name in features else None
            if isinstance(value, bytes):
                return value.decode("utf-8", "replace")
            if isinstance(value, int):
                if 0 <= value < len(labels):
                    return labels[value]
                return str(value)
        return None

    def named_by(self, *sources: str) -> str:
        """Returns the name of the first feature of some sources, or an empty text."""
        for feature in self.manifest.features:
            if feature.get("source") in sources:
                return feature["name"]
        return ""

    def _label_column(self, kind: str) -> str:
        column = self.manifest.build.config.get("label") or ""
        if any(s.name == column and s.kind == kind for s in self.specs):
            return column
        return ""


def open_source(path: str | os.PathLike[str], split: str) -> Source:
    """Opens splits of a dataset; reads the manifest and schema, and checks the sizes of shards.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.
        split: A split, or several as in ``train+validation``.

    Raises:
        InputError: The manifest or schema cannot be read, or a shard is missing or of another size.
        UsageError: A split is unknown.
    """
    *_, folder, manifest = open_manifest(path)
    if not scheme_of(folder):  # the process, or one that unpickles it, may change its folder
        folder = os.path.abspath(folder)
    selection = select(manifest, split)
    manifest, lacking = manifest.of_shards({part.shard.file for part in selection.parts})
    source = Source(folder, manifest, selection, (), frozenset(lacking))
    calls: list[Callable[[], Any]] = [
        partial(read_specs, folder, manifest, *lacking),
        partial(_check_shards, source),
    ]
    specs, versions = map_ordered(_call, calls, storage_threads(folder))
    return replace(source, specs=_by_name(specs), versions=versions)


def _call(function: Callable[[], Any]) -> Any:
    return function()


def open_without_shards(path: str | os.PathLike[str]) -> Source:
    """Opens a dataset for its manifest and schema only; does not check shards.

    Raises:
        InputError: The manifest or schema cannot be read.
    """
    *_, folder, manifest = open_manifest(path)
    return Source(folder, manifest, Selection("", ()), _by_name(read_specs(folder, manifest)))


def read_catalog(folder: str, part: ShardSlice, names: Sequence[str]) -> list[list[Any]]:
    """Returns columns of the catalog of images, of the records of a part; see ``open_catalog``."""
    table = open_catalog(folder, part.shard, names)
    return [table.column(name).to_pylist()[part.first : part.stop] for name in names]


def open_catalog(folder: str, shard: Shard, names: Sequence[str]) -> Any:
    """Returns columns of the catalog of a shard as an Arrow table.

    Raises:
        InputError: The catalog cannot be read, or has no such column.
    """
    path = join(folder, shard.catalog.file if shard.catalog else "")
    try:
        table = read_table(read_dataset_file(path), names)
        if len(table) != shard.records:
            raise different_records(actual=len(table), expected=shard.records)
    except (FileNotFoundError, FormatError) as error:
        raise InputError(
            f"the catalog {path} cannot be read: {error}; copy or build the dataset again."
        ) from error
    return table


def _by_name(specs: Iterable[FeatureSpec]) -> tuple[FeatureSpec, ...]:
    return tuple(sorted(specs, key=lambda spec: spec.name.encode()))


def read_specs(folder: str, manifest: Manifest, *lacking: str) -> tuple[FeatureSpec, ...]:
    """Returns the features of the schema file in its order, without the lacking ones.

    Raises:
        InputError: The schema cannot be read.
    """
    path = join(folder, SCHEMA)
    try:
        text = read_dataset_file(path).decode("utf-8")
        return tuple(spec for spec in parse_feature_specs(text, SCHEMA) if spec.name not in lacking)
    except FileNotFoundError as error:
        check_not_deleted(folder)
        why = "the files were counted, not built" if manifest.root else "it was deleted"
        raise InputError(
            f"{path} does not exist ({why}), so the features are unknown: build the dataset again, "
            "or parse the shards with your own feature spec."
        ) from error
    except (FormatError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read: {error}; build the dataset again, or copy the file again."
        ) from error


def _check_shards(source: Source) -> dict[str, str]:
    """Compares the sizes of shards with the manifest.

    Returns:
        The versions of shards on object stores, by path.

    Raises:
        InputError: A shard is missing or has another size.
    """
    paths = source.paths
    versions: dict[str, str] = {}
    folders = {os.path.dirname(path) for path in paths}
    listed: dict[str, Entry] = {}
    for entries in map_ordered(_list, folders, storage_threads(source.folder)):
        listed |= entries
    for path, shard in zip(paths, source.shards, strict=True):
        entry = listed.get(path)
        if entry is None:
            check_not_deleted(source.folder)
            how = "is missing, but manifest.json lists it"
        elif entry.kind != "file":
            how = "is not a file, but manifest.json lists it"
        elif entry.size != shard.bytes:
            how = f"has {plural(entry.size, 'byte')}, but manifest.json says {shard.bytes:,}"
        else:
            if scheme_of(path):
                versions[path] = entry.version
            continue
        raise InputError(
            f"{path} {how}: run `shardmill verify {source.folder}` to see what else is wrong, and "
            "build or copy the dataset again."
        )
    return versions


def _list(folder: str) -> dict[str, Entry]:
    return {join(folder, entry.name): entry for entry in open_storage(folder).list_dir(folder)}


def record_unlike_schema(path: object, record: int, error: object, folder: object) -> InputError:
    """Return the error for a record that does not follow the schema."""
    return InputError(
        f"{path}, record {record:,}: {error}; run `shardmill verify {folder}` to see what else is "
        "wrong."
    )


def id_of_several_labels() -> UsageError:
    """Return the error for class ids of examples with several labels."""
    return UsageError(
        "label='id' gives one class id of each example, and these have several: use "
        "label='one_hot', whose vectors have a 1 for each label."
    )
