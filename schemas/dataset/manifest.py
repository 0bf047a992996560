"""The manifest: the published list of shards with counts and checksums.

It is written last: a dataset with a manifest is complete. All other files of a build are in one
folder, its generation, which has a manifest too. docs/manifest.md explains each field;
manifest.schema.json is its JSON Schema.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from shardmill.schemas.dataset.shard_names import is_generation
from shardmill.schemas.dataset.statistics import Statistics
from shardmill.schemas.errors import FormatError, InputError
from shardmill.schemas.storage import join

VERSION = 2
_OPTIONAL = "record_id", "ctime_id", "content_id", "files"  # of the build
_REQUIRED = ("labels", "features", "warnings")  # which have defaults only in Python
_NOT_EMPTY = "beside", "generation", "previous", "checksums", "manifests", "held"
_MAX_NUMBER = (1 << 63) - 1  # readers number records by int64
COUNT_PIPELINE = "count"  # in the config of a manifest that `shardmill count` wrote
T = TypeVar("T")


class CatalogFile(NamedTuple):
    """The catalog of a shard.

    Attributes:
        file: File name relative to the folder of the generation.
        bytes: Size of the file.
        crc32c: CRC-32C of the file as 8 hexadecimal digits.
    """

    file: str
    bytes: int
    crc32c: str


@dataclass(frozen=True)
class Shard:
    """One published shard.

    Attributes:
        file: File name relative to the folder of the generation.
        records: Number of records.
        bytes: Size of the file.
        crc32c: CRC-32C of the file as 8 hexadecimal digits; None if it was not read completely.
        label: Label of all its records with ``--shard_by=label``; else None.
        catalog: Its catalog, or None.
    """

    file: str
    records: int
    bytes: int
    crc32c: str | None
    label: str | None = None
    catalog: CatalogFile | None = None

    def to_json(self, prefix: str = "") -> dict[str, Any]:
        """Return the JSON object, with a prefix before the file name."""
        # asdict copies each value, which is slow for a hundred thousand shards.
        body: dict[str, Any] = {**vars(self), "file": prefix + self.file}
        if self.catalog is not None:
            body["catalog"] = {**self.catalog._asdict(), "file": prefix + self.catalog.file}
        return {k: v for k, v in body.items() if v is not None or k == "crc32c"}


@dataclass(frozen=True)
class Damaged:
    """One file that could not be counted.

    Attributes:
        file: Name relative to the manifest's root.
        bytes: Size of the file.
        reason: A key of ``scanner.FAULTS`` or ``refs.REASONS``.
        record: Number of the damaged record; the first record is 0.
        offset: Offset of that record in the decompressed data.
        message: Description of the problem.
    """

    file: str
    bytes: int
    reason: str
    record: int
    offset: int
    message: str


@dataclass(frozen=True)
class Split:
    """One split's shards and totals.

    Attributes:
        num_examples: Number of records.
        num_bytes: Size of all shards.
        label_counts: Number of records by label; empty without labels.
        shards: The shards.
        statistics: Statistics of the values, or None.
        labeled: Whether the records may have labels; false for ``--unlabeled_splits``.
    """

    num_examples: int
    num_bytes: int
    label_counts: dict[str, int]
    shards: tuple[Shard, ...]
    statistics: Statistics | None = None
    labeled: bool = True

    @property
    def class_weights(self) -> dict[str, float]:
        """Weights by label that balance the classes; the average over the examples is 1."""
        counts = {label: count for label, count in self.label_counts.items() if count}
        labelled = sum(counts.values())
        return {label: labelled / (len(counts) * count) for label, count in counts.items()}

    def to_json(self, prefix: str = "") -> dict[str, Any]:
        """Return the JSON object, without weights and statistics if there are none.

        Args:
            prefix: Added to the file names.
        """
        labeled = None if self.labeled else False  # true is left out
        body = {
            "num_examples": self.num_examples,
            "num_bytes": self.num_bytes,
            "label_counts": self.label_counts,
            "labeled": labeled,
            "class_weights": self.class_weights or None,
            "statistics": self.statistics and self.statistics.to_json(),
            "shards": [shard.to_json(prefix) for shard in self.shards],
        }
        return {k: v for k, v in body.items() if v is not None}


@dataclass(frozen=True)
class Inputs:
    """Number of inputs by outcome.

    ``matched == accepted + rejected + skipped + duplicates`` always holds.

    Attributes:
        root: Folder that keys are relative to.
        matched: All inputs that were found.
        accepted: Inputs that became records.
        rejected: Inputs that could not.
        skipped: Files of other kinds.
        duplicates: Inputs that repeat another.
        rejected_by_reason: Rejected inputs by reason.
        multi_frame: Images with several frames; only the first was used.
        copies: Records whose input has the content of another.
        copies_across_splits: Contents in several splits.
        copies_with_other_labels: Contents with different labels, boxes or masks.
        counts: Sums of the columns of the catalog that are counts.
    """

    root: str
    matched: int
    accepted: int
    rejected: int
    skipped: int
    duplicates: int
    rejected_by_reason: dict[str, int]
    multi_frame: int = 0
    copies: int = 0
    copies_across_splits: int = 0
    copies_with_other_labels: int = 0
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Build:
    """How the dataset was made.

    Attributes:
        config_id: Identity of all options that decide bytes.
        input_id: Identity of the inputs.
        config: Options that decide the content of the dataset.
        versions: Versions of the code that decides bytes.
        runner: Name of the runner.
        finished: Time of the end, in ISO 8601.
        command: Command line that builds the dataset again.
        record_id: Identity of the options and codecs that decide the features of a record, where
            records can be reused.
        ctime_id: Identity of the ctimes of the inputs.
        content_id: Identity of the content of tables.
        files: Identity of each file of tables or arrays by its key; empty if there are many.
    """

    config_id: str
    input_id: str
    config: dict[str, Any]
    versions: dict[str, str]
    runner: str
    finished: str
    command: tuple[str, ...] = ()
    record_id: str = ""
    ctime_id: str = ""
    content_id: str = ""
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``.

    Attributes:
        splits: Each split by its name.
        written: Number of records.
        compression: ``gzip`` or ``none``; in a count, the compression of the files.
        inputs: Number of inputs by outcome.
        build: How the dataset was made.
        labels: Labels in the order of their class ids.
        features: Name, type and source of each feature.
        warnings: Sentences for people.
        root: Of a count: the folder to which file names are relative (by default the manifest's).
        damaged: Of a count: the damaged files.
        side_files: Other files of the dataset, such as a TensorFlow Transform graph; in JSON
            ``beside``.
        generation: Folder with all other files, next to the manifest. Empty in the manifest inside
            that folder and in a count's. File names are relative to that folder here, and to the
            manifest's folder in JSON.
        previous: Earlier generations that are kept, the latest first.
        checksums: CRC-32C of each file that is neither a shard nor a catalog, by name; empty in
            datasets of 0.2.0.
        manifests: CRC-32C of the manifest inside the generation and inside earlier ones, by the
            generation; empty inside of them.
        held: Whether builds must not publish another version, by ``shardmill rollback --hold``.
    """

    splits: dict[str, Split]
    written: int
    compression: str
    inputs: Inputs
    build: Build
    labels: tuple[str, ...] = ()
    features: tuple[dict[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    root: str = ""
    damaged: tuple[Damaged, ...] = ()
    side_files: tuple[str, ...] = ()
    generation: str = ""
    previous: tuple[str, ...] = ()
    checksums: dict[str, str] = field(default_factory=dict)
    manifests: dict[str, str] = field(default_factory=dict)
    held: bool = False

    def to_json(self) -> str:
        """Return the manifest as indented JSON, with the version first."""
        prefix = self.generation and f"{self.generation}/"
        body: dict[str, Any] = {
            "version": VERSION,
            "generation": self.generation,
            **vars(self),
            "splits": {name: split.to_json(prefix) for name, split in self.splits.items()},
            "inputs": vars(self.inputs),
            "build": _without_empty(vars(self.build), *_OPTIONAL),
            "damaged": list(map(vars, self.damaged)),
            "beside": [prefix + name for name in self.side_files],
        }
        del body["side_files"]
        if not self.root:  # not a count
            del body["root"], body["damaged"]
        body = _without_empty(body, *_NOT_EMPTY)
        return json.dumps(body, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Return the manifest from its JSON text.

        Raises:
            FormatError: The text is not a manifest, or its version is not supported.
        """
        try:
            body = json.loads(text)
            if not isinstance(body, dict) or "version" not in body:
                raise ValueError("it has no field 'version'")
        except (RecursionError, ValueError) as error:
            problem = str(error)
            if isinstance(error, UnicodeError):
                problem = "it is not text"
            raise FormatError(f"it is not a Shardmill manifest ({problem})") from error
        version = body["version"]
        if version != VERSION:
            fix = "use the Shardmill that wrote it"
            if isinstance(version, int) and version < VERSION:
                fix = "build the dataset again"
            raise FormatError(f"manifest version {version!r} is not {VERSION}: {fix}")
        try:
            prefix = ""
            if "generation" in body:
                prefix = _checked_generation(body["generation"]) + "/"
            body["previous"] = list(map(_checked_generation, body.get("previous", ())))
            body["splits"] = {k: _split(v, prefix) for k, v in body["splits"].items()}
            body["inputs"] = _parse_fields(Inputs, body["inputs"])
            body["build"] = _parse_fields(Build, body["build"])
            body["damaged"] = [
                _parse_fields(Damaged, damaged) for damaged in body.get("damaged", ())
            ]
            body["side_files"] = [_file(name, prefix) for name in body.get("beside", ())]
            _check_checksums(body)
            manifest = _parse_fields(cls, {name: body[name] for name in _REQUIRED} | body)
            names = (feature["name"] for feature in manifest.features)
            # A TypeError unless all are texts.
            "".join((*names, *manifest.label_features, *manifest.labels, *manifest.build.command))
            _check_root(manifest)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            field = str(error)
            if isinstance(error, KeyError):
                field = f"{error} is missing"
            raise FormatError(
                f"a field of the manifest is missing or malformed ({field})"
            ) from error
        return manifest

    def of_shards(self, files: Container[str]) -> tuple[Manifest, frozenset[str]]:
        """Return the manifest without labels if some files have none, and their features."""
        unlabeled = (split for split in self.splits.values() if not split.labeled)
        if not any(shard.file in files for split in unlabeled for shard in split.shards):
            return self, frozenset()
        features = tuple(
            feature for feature in self.features if feature["name"] not in self.label_features
        )
        return replace(self, features=features, labels=()), self.label_features

    @property
    def label_separator(self) -> str:
        """Text that joins labels in the catalog if a record may have several; else empty."""
        return str(self.build.config.get("label_separator") or "")

    @property
    def label_features(self) -> frozenset[str]:
        """Names of all features with the label."""
        sources = {feature["name"]: feature.get("source", "") for feature in self.features}
        classes = [name for name, source in sources.items() if "image/class/" in source]
        return frozenset([self.build.config.get("label") or "", *classes])

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards, by split."""
        return tuple(shard for split in self.splits.values() for shard in split.shards)

    @property
    def files(self) -> tuple[str, ...]:
        """File names of all shards, by split."""
        return tuple(shard.file for shard in self.shards)

    @property
    def catalogs(self) -> tuple[CatalogFile, ...]:
        """The catalogs of all shards, by split."""
        return tuple(shard.catalog for shard in self.shards if shard.catalog is not None)

    def folder(self, base: str) -> str:
        """Return the folder of the dataset's files.

        Args:
            base: Folder of the manifest.
        """
        if self.generation:
            return join(base, self.generation)
        return base

    def is_dataset(self, config_id: str, input_id: str) -> bool:
        """Return whether the dataset was built from this config and these inputs."""
        return self.build.config_id == config_id and self.build.input_id == input_id


def _parse_fields(kind: type[T], body: Mapping[str, Any]) -> T:
    """Return a value of its fields, lists as tuples; fields of later releases are ignored."""
    given: dict[str, Any] = {}
    types = {column.name: str(column.type) for column in fields(kind)}  # type: ignore[arg-type]
    for name, type_name in types.items():
        if name not in body:
            continue
        value = body[name]
        if type_name == "int":
            _check_numbers(name, [value])
        elif type_name == "dict[str, int]":
            _check_numbers(name, value.values())
        elif type_name == "bool" and type(value) is not bool:
            raise TypeError(f"{name} is neither true nor false")
        elif type_name.startswith("dict") and not isinstance(value, dict):
            raise TypeError(f"{name} is not an object")
        if type_name.startswith("tuple"):
            value = tuple(value)
        given[name] = value
    return kind(**given)


def _check_numbers(name: str, numbers: Iterable[Any]) -> None:
    for number in numbers:
        if type(number) is not int or number < 0:
            raise FormatError(f"its {name} is not a number, 0 or more")
        if number > _MAX_NUMBER:
            raise FormatError(f"its {name} is {number}, and 2**63 or more cannot be read")


def _check_checksums(body: Mapping[str, Any]) -> None:
    for name in body.get("checksums", {}):
        _file(name, "")
    for name in body.get("manifests", {}):
        _checked_generation(name)
    texts = (*body.get("checksums", {}).values(), *body.get("manifests", {}).values())
    "".join(texts)  # a TypeError unless all are texts


def _check_root(manifest: Manifest) -> None:
    """Check that only the manifest of a count has a root, which may be any folder.

    Raises:
        FormatError: A root would lead readers of a dataset to the files of another folder.
    """
    root = manifest.root
    if not root and isinstance(root, str):
        return
    counted = manifest.build.config.get("pipeline") == COUNT_PIPELINE
    if not isinstance(root, str) or manifest.generation or not counted:
        raise FormatError(
            f"its root is {root!r:.99}, and only the manifest of `shardmill count` has one: the "
            "files of a dataset are next to its manifest"
        )


def _without_empty(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value or name not in names}


def _split(body: dict[str, Any], prefix: str) -> Split:
    statistics = body.get("statistics")
    parsed: dict[str, Any] = {
        "label_counts": dict(body["label_counts"]),
        "shards": [_shard(shard, prefix) for shard in body["shards"]],
    }
    if statistics is not None:
        parsed["statistics"] = Statistics.from_json(statistics)
    return _parse_fields(Split, body | parsed)


def _shard(body: dict[str, Any], prefix: str) -> Shard:
    catalog = body.get("catalog")
    if catalog is not None:
        file = _file(catalog["file"], prefix)
        _check_numbers("bytes", [catalog["bytes"]])
        catalog = CatalogFile(file, catalog["bytes"], str(catalog["crc32c"]))
    shard = _parse_fields(Shard, {**body, "file": _file(body["file"], prefix), "catalog": catalog})
    if not isinstance(shard.label, str | None):
        raise FormatError(f"the shard {shard.file!r} has the label {shard.label!r}, not a text")
    return shard


def _checked_generation(name: Any) -> str:
    if not isinstance(name, str) or not is_generation(name):
        raise FormatError(f"the manifest names {name!r}, which is not the name of a version")
    return name


def _file(file: Any, prefix: str) -> str:
    # File names of an untrusted manifest must not lead a later command out of the dataset's folder.
    name = file.removeprefix(prefix) if isinstance(file, str) else ""
    if not name or name.startswith("/") or {"\\", "\0"} & {*name} or ".." in name.split("/"):
        raise FormatError(f"the manifest names the file {file!r}, which is outside its folder")
    return name


def missing_dataset(file: object) -> InputError:
    """Return the error for a path without a dataset."""
    return InputError(
        f"{file} does not exist: give a dataset or its manifest.json, or count TFRecord files by "
        "`shardmill count`."
    )
