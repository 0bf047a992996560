"""The options of the commands, stated once: ``option_types.py`` lists what follows from them.

The docstrings are the help: after the name of an option comes the placeholder of its value. The
help of a flag adds its default. This module is imported for ``--help``, so it imports nothing that
is slow.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, get_args

from shardmill.pipelines.limits import LimitsOption, limits_option
from shardmill.schemas import option_types as of
from shardmill.schemas.dataset.splits import DEFAULT_SPLITS, Splits
from shardmill.schemas.errors import UsageError
from shardmill.schemas.option_types import as_text, options_of, useless_option
from shardmill.transforms.images.image_options import DecoderLimits, ImageOptions
from shardmill.transforms.match.labels import LabelOptions
from shardmill.transforms.sink.placement import SEED, DuplicatesMode, ShardOptions
from shardmill.transforms.sources.csv.dialect import CellOptions, CsvFormat, Dialect
from shardmill.transforms.tables.column_options import ColumnOptions

BeamOptions = of.Option[tuple[str, ...], Mapping[str, Any] | Sequence[str]]
SplitShares = of.Option[Splits | None, str | Mapping[str, float | of.Path] | Splits | None]
Update = of.Option[bool | Literal["content"], bool | Literal["content"]]
Features = of.Option[str, str | Sequence[str] | Mapping[str, str]]
_KINDS = {"parquet": "Parquet", "jsonl": "JSON Lines"}
_MAX_WORKERS = 1_024  # of more, a machine starts none in a reasonable time


def _splits(*words: str) -> Any:
    pairs = of.pairs(None, ":", Splits.parse, choices=(*words, DEFAULT_SPLITS))
    parse = pairs.parse

    def parse_any(flag: str, value: Any) -> Splits:
        if isinstance(value, list | tuple) and value and all(map(is_pair, value)):
            value = dict(value)
        if isinstance(value, float):
            value = [value]
        if isinstance(value, list | tuple) and {*map(type, value)} & {int, float}:
            value = ",".join(map(str, value))  # the error proposes names
        if isinstance(value, Mapping):
            value = [f"{name}{separate(part)}{part}" for name, part in value.items()]
        return value if isinstance(value, Splits) else parse(flag, value)

    def is_pair(item: Any) -> bool:
        return isinstance(item, list | tuple) and len(item) == 2

    def separate(part: Any) -> str:
        share = isinstance(part, str) and not part.strip("0123456789./ ")
        if isinstance(part, str | os.PathLike) and not share:
            return "="
        return ":"

    pairs.parse = parse_any
    return pairs


# The order of options in manifests and signatures is that of 0.2.0; new ones follow.
OF_BUILDS = """input output root splits num_shards shard_bytes shard_examples shard_name compression
    seed max_reject_fraction update overwrite keep dry_run beam_options"""
OF_CSV = """decimal thousands infinity delimiter quote escape comment pad_rows header columns
    skip_lines strip"""


@dataclass
class DatasetOptions(ShardOptions):
    """Options of the input, the output, the splits and the shards.

    The table of a kind of input has ``summary``, ``example`` and ``groups`` of its help, too: names
    of options by the title of their group. Its bases are the groups of options that components
    take, and ``order`` is that of options in manifests and signatures.

    Attributes:
        input: ``PATH``: a folder, glob or file; may be repeated
        output: ``DIR``: folder of the new dataset
        root: ``DIR``: keys are paths relative to it (default: the input's folder)
        splits: ``SHARES``: directory (default if all folders are named like splits), or shares
            (default: train:0.9,validation:0.1), or files and folders as in train:1,test=test.csv:
            shares divide the others
        shard_name: ``PATTERN``: fields {split} {index:05d} {total:05d} {records} {label}
        compression: ``TYPE``: gzip or none
        seed: ``N``: seed of the shuffle and the splits
        max_reject_fraction: ``X``: fail if a larger fraction of inputs is rejected
        update: publish a new version if inputs or options changed, else do nothing;
            --update=content reads all inputs instead of trusting their sizes and times
        overwrite: build from scratch and replace the dataset
        keep: ``N``: earlier versions to keep, for readers and rollback
        limits: ``FILE``: TOML file with limits, perhaps in a table [limits]: a dataset beyond one
            of them is not published
        dry_run: print what would be built, write nothing
        beam_options: ``NAME=VALUE``: an option of Apache Beam whose name is a flag of Shardmill,
            as in labels=team=vision; may be repeated
    """

    order = OF_BUILDS
    usage = "--input=PATH --output=DIR [FLAGS]"
    notes = """

Flags are written --name=value. Every Apache Beam pipeline option works too
(--runner, --temp_location, ...). Exit codes: 0 built or up to date, 1 failed,
2 usage error, 130 or 143 interrupted."""
    input: of.Path | Sequence[of.Path] = of.required_paths()
    output: of.Path = of.required_path()
    _: KW_ONLY
    root: of.File = of.file(decides=False)
    splits: SplitShares = _splits("directory")
    shard_name: of.Text = of.text()
    compression: of.Choice[Literal["gzip", "none"]] = of.choice(("gzip", "none"), "gzip")
    seed: of.Int = SEED
    max_reject_fraction: of.Float = of.real(
        0.05,
        lambda share: 0 <= share <= 1,
        "between 0 and 1",
        decides=False,
        pattern=r"0(\.[0-9]+)?|1(\.0+)?",
    )
    update: Update = of.switch(("content",), decides=False)
    overwrite: of.Switch = of.switch(decides=False)
    keep: of.Int = of.whole(1, decides=False)
    limits: LimitsOption = limits_option()
    dry_run: of.Switch = of.switch(decides=False)
    beam_options: BeamOptions = of.beam_options()


# Options that every build has, for the groups of its help.
INPUT_OUTPUT = "input output root update overwrite keep limits dry_run"
SHARDS = "num_shards shard_bytes shard_examples shard_name compression"


@dataclass(kw_only=True)
class ArraysOptions(DatasetOptions):
    """Options of ``shardmill arrays``, besides those of every build.

    Attributes:
        input: ``PATH``: a .npy, an .npz, or a folder of .npy files
        splits: ``SHARES``: train:0.9,validation:0.1 (default)
        labels: ``FILE``: a .npy of labels: integers or texts
        label: ``NAME``: the array that is the label (default: the one called y, label or labels;
            empty: none)
        arrays: ``LIST``: names of the arrays to read (default: all)
        threads: ``N``: concurrent reads per worker (default: one per core)
    """

    summary = "Build a GZIP TFRecord dataset from NumPy arrays."
    example = """\
example, an archive with the arrays x and y:
  shardmill arrays --input=mnist.npz --output=ds"""
    groups: ClassVar = {
        "input and output": INPUT_OUTPUT,
        "labels and features": "labels label arrays",
        "splits": "splits seed",
        "records and shards": SHARDS,
        "running": "max_reject_fraction threads beam_options",
    }
    splits: SplitShares = _splits()
    labels: of.File = of.file(decides=False)
    label: of.MaybeText = of.text(None)
    arrays: of.Names = of.names()
    threads: of.Int = of.whole(0, decides=False)


@dataclass(kw_only=True)
class CsvOptions(CsvFormat, CellOptions):
    """How the text of tables and of listings of images is read."""

    cells = "decimal thousands infinity"
    dialect_options = "delimiter quote escape comment header columns skip_lines strip pad_rows"
    null_values: of.Option[tuple[str, ...] | None, str | Sequence[str] | None] = of.names(None)

    @property
    def null_texts(self) -> tuple[str, ...] | None:
        """Texts of missing cells; None for the default, and of an empty list empty cells."""
        if self.null_values is None:
            return None
        return self.null_values or ("",)

    def given_csv_options(self) -> dict[str, object]:
        """Return the options of CSV that differ from their defaults."""
        options = options_of(CellOptions) | options_of(CsvFormat)
        values = {name: getattr(self, name) for name in options}
        return {name: value for name, value in values.items() if value != options[name].default}

    def check_kinds(self, kinds: Sequence[str], others: Sequence[str] = ()) -> None:
        """Check that no option is given that the files do not have.

        Args:
            kinds: ``csv``, ``parquet`` or ``jsonl`` of each table; none of images without a
                listing.
            others: Names of other options that only CSV has and that are given.

        Raises:
            UsageError: One is.
        """
        given = self.given_csv_options()
        if given and not kinds:
            name, value = next(iter(given.items()))
            raise useless_option(
                flag=name,
                value=as_text(options_of(CsvOptions)[name], value),
                why="without a listing",
            )
        names = [name for name in (*given, *others) if name != "infinity"]
        for kind in kinds:
            if names and kind in _KINDS:
                raise UsageError(
                    f"--{names[0]} is for CSV files, but the input is {_KINDS[kind]}: leave the "
                    "flag out."
                )


@dataclass(kw_only=True)
class ImagesOptions(ImageOptions, DecoderLimits, LabelOptions, CsvOptions, DatasetOptions):
    """Options of ``shardmill images``, besides those of every build.

    Attributes:
        input: ``PATH``: a folder, glob, listing (.csv, .jsonl), image or archive (tar, zip,
            Parquet, TFRecord); may be repeated
        splits: ``SHARES``: directory (default if all folders are named like splits), listing,
            imagesets (of PASCAL VOC), or shares (default: train:0.9,validation:0.1), or folders and
            files as in train:1,test=test/: shares divide the others
        image_column: ``NAME``: column of Parquet files, or feature of TFRecords, that holds images
            (default: the only one of images; image/encoded)
        label_column: ``NAME``: column or feature of their labels (default: label;
            image/class/text, else image/class/label), or name in the .json members of tar and zip
        image_suffix: ``LIST``: what follows the first dot in the names of images in tar and zip,
            where samples have several, such as jpg or left.png
        zip_encoding: ``NAME``: encoding of names in zip that are not UTF-8, such as cp932 (default:
            cp437)
        unlabeled_splits: ``NAMES``: splits whose images need no labels, and get none
        label_separator: ``TEXT``: between the labels of an image in a listing, such as ;: images
            may have several labels, or none
        types: ``PAIRS``: types of columns of a listing that become features, as for tables; after
            int, float and bytes the text between the values of a cell may follow, as in tags:text:;
        null_values: ``LIST``: texts that mean null in a listing (default: as for tables)
        annotations: ``LIST``: boxes: voc or yolo (a file per image, in the input or in voc:DIR), or
            coco:FILE; the classes of yolo are the lines of --labels
        coco_ids: keep the ids of COCO's images and categories as features, for its evaluation
        masks: ``DIR``: masks of the images, with the same names: pixels are classes
        boxes_frame: ``FRAME``: boxes and masks refer to the image as stored in the file, or upright
            as its EXIF data ask (default: as their size says)
        group_pattern: ``REGEX``: keys with the same match stay in one split
        shard_by: ``WHAT``: label: separate shards for each label
        duplicates: ``HOW``: of files with the same content: keep all (default); drop all but the
            one whose key sorts first, with its label; or same_split: keep all, in one split. The
            latter two read all files twice
        features: ``LIST``: NAME=SOURCE,... chooses and renames features
        limit: ``N``: take a random sample of N images
        workers: ``N``: decoder processes per worker (default: one per core)
        follow_links: follow links that lead outside the root
    """

    summary = "Build a GZIP TFRecord dataset from images."
    example = """\
example, a folder with one subfolder per label:
  shardmill images --input=flower_photos --output=ds --image_size=224"""
    groups: ClassVar = {
        "input and output": f"{INPUT_OUTPUT} follow_links limit",
        "labels and splits": "label_from label_pattern labels label_order "
        "splits unlabeled_splits group_pattern seed",
        "archives": "image_column label_column image_suffix zip_encoding",
        "listings": f"label_separator types null_values {CsvOptions.cells}",
        "CSV dialect of listings": CsvOptions.dialect_options,
        "boxes and masks": "annotations coco_ids masks boxes_frame",
        "pixels": "image_size resize interpolation only_shrink reducing_gap resizer encoding "
        "quality channels strip_metadata",
        "records and shards": f"features {SHARDS} shard_by duplicates",
        "running": "max_reject_fraction workers beam_options",
        "limits of one image": "max_pixels decoder_memory decoder_seconds",
    }
    order = f"""
        {OF_BUILDS} {OF_CSV}
        label_from label_pattern labels label_order
        image_column label_column image_suffix zip_encoding
        unlabeled_splits label_separator types null_values
        annotations coco_ids masks boxes_frame group_pattern
        image_size resize interpolation only_shrink reducing_gap resizer encoding strip_metadata
        quality channels shard_by duplicates features limit
        max_pixels decoder_memory decoder_seconds workers follow_links"""
    splits: SplitShares = _splits("directory", "imagesets", "listing")
    image_column: of.Text = of.text()
    label_column: of.Text = of.text()
    image_suffix: of.Names = of.names(decides=False)
    zip_encoding: of.Text = of.text(decides=False, choices=("cp932", "cp936", "cp866", "cp850"))
    unlabeled_splits: of.Names = of.names()
    label_separator: of.Text = of.text()
    types: of.Pairs = of.mapping()
    annotations: of.Names = of.names(decides=False)
    coco_ids: of.Switch = of.switch(added=True)
    masks: of.File = of.file(decides=False)
    boxes_frame: of.Choice[Literal["", "stored", "upright"]] = of.choice(("stored", "upright"), "")
    group_pattern: of.Text = of.text()
    shard_by: of.Choice[Literal["", "label"]] = of.choice(("label",), "")
    duplicates: of.Choice[DuplicatesMode] = of.choice(get_args(DuplicatesMode), "keep")
    features: Features = of.pairs("", "=", str)
    limit: of.MaybeInt = of.whole(None, 1, decides=False)
    workers: of.Int = of.whole(0, 0, _MAX_WORKERS, decides=False)
    follow_links: of.Switch = of.switch(decides=False)


@dataclass(kw_only=True)
class RowsOptions(ColumnOptions, Dialect, CsvOptions, DatasetOptions):
    """Options of ``shardmill rows``, besides those of every build.

    Attributes:
        input: ``PATH``: a folder, glob, file (CSV or JSON Lines, .gz, .bz2, .xz, .zst too, or
            Parquet), or list of files (.txt); may be repeated
        schema: ``FILE``: a schema.pbtxt (default: inferred and written)
        label: ``COLUMN``: required in each row; its values are counted
        key: ``COLUMN``: identifies a row; duplicates are detected
        group_by: ``COLUMN``: rows with equal cells stay in one split
        split_by: ``COLUMN``: names the split of each row; not in the records
        unlabeled_splits: ``NAMES``: splits whose rows need no label, and get none
        partitions: folders named NAME=VALUE are columns, as Spark and Hive write them
        null_values: ``LIST``: texts that mean null in all columns (default: empty cells, and in
            numeric columns NA, NaN, null, ? and the like)
        preprocessing: ``FILE``: a .py file with a TensorFlow Transform preprocessing_fn
        sample_bytes: ``SIZE``: bytes of each file that are read to infer the schema
        max_rejected_files: ``N``: fail if more files are rejected as a whole
        threads: ``N``: concurrent ranges per worker (default: one per core)
        limit: ``N``: take a random sample of N rows
        follow_links: follow links that lead outside the root
    """

    summary = "Build a GZIP TFRecord dataset from CSV, Parquet or JSON Lines files."
    example = """\
example, with the column survived as the label:
  shardmill rows --input=titanic.csv --output=ds --label=survived"""
    groups: ClassVar = {
        "input and output": f"{INPUT_OUTPUT} follow_links limit",
        "columns": "schema label key select drop rename types defaults partitions sample_bytes "
        "preprocessing",
        "cells": f"null_values {CsvOptions.cells}",
        "CSV dialect": f"encoding {CsvOptions.dialect_options}",
        "splits": "splits split_by unlabeled_splits group_by seed",
        "records and shards": SHARDS,
        "running": "max_rejected_files max_reject_fraction threads beam_options",
    }
    order = f"""
        {OF_BUILDS} {OF_CSV}
        schema label key group_by split_by unlabeled_splits select drop rename types defaults
        encoding partitions null_values preprocessing sample_bytes max_rejected_files threads limit
        follow_links"""
    schema: of.File = of.file(decides=False)
    label: of.Text = of.text()
    key: of.Text = of.text()
    group_by: of.Text = of.text()
    split_by: of.Text = of.text()
    unlabeled_splits: of.Names = of.names()
    partitions: of.Switch = of.switch()
    preprocessing: of.File = of.file(decides=False)
    sample_bytes: of.Bytes = of.size("16MiB", least="1", decides=False)
    max_rejected_files: of.Int = of.whole(0, decides=False)
    threads: of.Int = of.whole(0, decides=False)
    limit: of.MaybeInt = of.whole(None, 1)
    follow_links: of.Switch = of.switch(decides=False)
