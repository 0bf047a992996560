"""The options of the commands, stated once: ``option_types.py`` lists what follows from them.

The docstrings are the help: after the name of an option comes the placeholder of its value. The
help of a flag adds its default. This module is imported for ``--help``, so it imports nothing that
is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

from shardmill.pipelines import option_types as of
from shardmill.pipelines.option_types import (
    Bytes,
    Choice,
    File,
    Float,
    Int,
    MaybeInt,
    Names,
    Option,
    Path,
    Switch,
    Text,
)
from shardmill.schemas.dataset.splits import DEFAULT_SPLITS, Splits
from shardmill.schemas.schema_pbtxt.image_features import ENCODINGS, Encoding
from shardmill.transforms.images.resize import (
    INTERPOLATIONS,
    RESIZES,
    Interpolation,
    Resize,
    Size,
    parse_image_size,
)
from shardmill.transforms.match.labels import LABEL_FROM, LabelFrom
from shardmill.transforms.sink.division import MAX_SHARDS
from shardmill.transforms.sink.placement import DUPLICATES, DuplicatesMode

if TYPE_CHECKING:
    from shardmill.schemas.tfrecord.ranges import Check

BeamOptions = Option[tuple[str, ...], Mapping[str, Any] | Sequence[str]]
SplitShares = Option[Splits | None, str | Mapping[str, float | str] | Splits | None]
ImageSize = Option[Size, int | str | tuple[int, int]]
Update = Option[bool | Literal["content"], bool | Literal["content"]]
Features = Option[str, str | Sequence[str] | Mapping[str, str]]
_DAY = 86_400  # seconds


def _splits(*words: str) -> Any:
    pairs = of.pairs(None, ":", Splits.parse, choices=(*words, DEFAULT_SPLITS))
    parse = pairs.parse
    pairs.parse = lambda flag, value: value if isinstance(value, Splits) else parse(flag, value)
    return pairs


def _parse_size(_: str, value: Any) -> Size:
    whole = isinstance(value, str | Size) or not hasattr(value, "__iter__")
    return parse_image_size(value if whole else tuple(value))


@dataclass
class DatasetOptions:
    """Options of the input, the output, the splits and the shards.

    Attributes:
        input: ``PATH``: a folder, glob or file
        output: ``DIR``: folder of the new dataset
        root: ``DIR``: keys are paths relative to it (default: the input's folder)
        splits: ``SHARES``: directory (default if all folders are named like splits), or shares
            (default: train:0.9,validation:0.1)
        num_shards: ``N``: exact number of shards in each split; their record counts differ by at
            most one
        shard_bytes: ``SIZE``: target size of a shard
        shard_examples: ``N``: target number of examples per shard
        shard_name: ``PATTERN``: fields {split} {index:05d} {total:05d} {records} {label}
        compression: ``TYPE``: gzip or none
        seed: ``N``: seed of the shuffle and the splits
        max_reject_fraction: ``X``: fail if a larger fraction of inputs is rejected
        update: publish a new version if inputs or options changed, else do nothing
        overwrite: build from scratch and replace the dataset
        keep: ``N``: earlier versions to keep, for readers and rollback
        dry_run: print what would be built, write nothing
        beam_options: ``NAME=VALUE``: an option of Apache Beam whose name is a flag of Shardmill,
            as in labels=team=vision; may be repeated
    """

    input: Path
    output: Path
    _: KW_ONLY
    root: File = of.file(decides=False)
    splits: SplitShares = _splits("directory")
    num_shards: MaybeInt = of.whole(None, 1, MAX_SHARDS)
    shard_bytes: Bytes = of.size("128MiB", least="1KiB")
    shard_examples: MaybeInt = of.whole(None, 1)
    shard_name: Text = of.text()
    compression: Choice[Literal["gzip", "none"]] = of.choice(("gzip", "none"), "gzip")
    seed: Int = of.whole(0, 0, (1 << 64) - 1)
    max_reject_fraction: Float = of.real(
        0.05, lambda share: 0 <= share <= 1, "between 0 and 1", decides=False,
        pattern=r"0(\.[0-9]+)?|1(\.0+)?",
    )  # fmt: skip
    update: Update = of.switch(decides=False)
    overwrite: Switch = of.switch(decides=False)
    keep: Int = of.whole(1, decides=False)
    dry_run: Switch = of.switch(decides=False)
    beam_options: BeamOptions = of.beam_options()

    def __post_init__(self) -> None:
        self.input = of.parse_path("input", self.input)
        self.output = of.parse_path("output", self.output)


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

    splits: SplitShares = _splits()
    labels: File = of.file(decides=False)
    label: Option[str | None, str | None] = of.text(None)
    arrays: Names = of.names()
    threads: Int = of.whole(0, decides=False)


@dataclass(kw_only=True)
class ImagesOptions(DatasetOptions):
    """Options of ``shardmill images``, besides those of every build.

    Attributes:
        input: ``PATH``: a folder, glob, listing (.csv) or image
        splits: ``SHARES``: directory (default if all folders are named like splits), or listing, or
            shares (default: train:0.9,validation:0.1)
        label_from: ``WHERE``: directory, filename, listing, none
        label_pattern: ``REGEX``: has a group (?P<label>...)
        labels: ``FILE``: one label per line; the first line is class 0
        group_pattern: ``REGEX``: keys with the same match stay in one split
        image_size: ``SIZE``: 224 (default) or 180x320 (height x width)
        resize: ``HOW``: stretch, fit, pad, crop, none
        interpolation: ``FILTER``: nearest, box, bilinear, hamming, bicubic, lanczos
        only_shrink: never enlarge an image
        reducing_gap: ``X``: decode JPEGs at a reduced scale that stays at least X times larger than
            the target (0: always full size)
        icc: ``HOW``: ignore colour profiles (default) or convert to srgb
        encoding: ``TYPE``: jpeg, png, raw
        quality: ``Q``: JPEG quality, 1 to 100
        channels: ``N``: 3 (default), 1 (grey) or 4 (with alpha)
        shard_by: ``WHAT``: label: separate shards for each label
        duplicates: ``HOW``: of files with the same content: keep all (default), drop all but one,
            or same_split; the latter two read all files twice
        features: ``LIST``: NAME=SOURCE,... chooses and renames features
        limit: ``N``: take a random sample of N images
        max_pixels: ``N``: reject images with more pixels, by their headers
        decoder_memory: ``SIZE``: reject images whose decoding needs more memory
        decoder_seconds: ``X``: reject images whose decoding takes more CPU time
        workers: ``N``: decoder processes per worker (default: one per core)
        follow_links: follow links that lead outside the root
        update: publish a new version if inputs or options changed, else do nothing;
            --update=content reads all inputs instead of trusting their sizes and times
    """

    splits: SplitShares = _splits("directory", "listing")
    label_from: Choice[LabelFrom] = of.choice(LABEL_FROM, "directory")
    label_pattern: Text = of.text()
    labels: File = of.file(decides=False)
    group_pattern: Text = of.text()
    image_size: ImageSize = Option("text", _parse_size, "224", pattern="[0-9]+(x[0-9]+)?")
    resize: Choice[Resize] = of.choice(RESIZES, "stretch")
    interpolation: Choice[Interpolation] = of.choice(INTERPOLATIONS, "bilinear")
    only_shrink: Switch = of.switch()
    reducing_gap: Float = of.real(
        3.0, lambda gap: gap == 0 or 1 <= gap < float("inf"),
        "1 or more, or 0 to decode every JPEG in full",
    )  # fmt: skip
    icc: Choice[Literal["ignore", "srgb"]] = of.choice(("ignore", "srgb"), "ignore")
    encoding: Choice[Encoding] = of.choice(ENCODINGS, "jpeg", {"jpg": "jpeg"})
    quality: Int = of.whole(95, 1, 100, pattern="[1-9][0-9]?|100")
    channels: Int = of.whole(3, 1, 4, choices=("1", "3", "4"), pattern="1|3|4")
    shard_by: Choice[Literal["", "label"]] = of.choice(("label",), "")
    duplicates: Choice[DuplicatesMode] = of.choice(DUPLICATES, "keep")
    features: Features = of.pairs("", "=", str)
    limit: MaybeInt = of.whole(None, 1, decides=False)
    max_pixels: Int = of.whole(178_956_970, 1)  # decode.MAX_PIXELS, whose module is slow to import
    decoder_memory: Bytes = of.size("6GiB", least="1GiB")  # twice the largest file that is read
    decoder_seconds: Float = of.real(
        180.0, lambda seconds: 0 < seconds <= _DAY, f"above 0, and at most {_DAY}"
    )
    workers: Int = of.whole(0, decides=False)
    follow_links: Switch = of.switch(decides=False)
    update: Update = of.switch(("content",), decides=False)


@dataclass(kw_only=True)
class RowsOptions(DatasetOptions):
    """Options of ``shardmill rows``, besides those of every build.

    Attributes:
        input: ``PATH``: a folder, glob, CSV file (.gz, .bz2, .xz, .zst too), or list of files
            (.txt)
        schema: ``FILE``: a schema.pbtxt (default: inferred and written)
        label: ``COLUMN``: required in each row; its values are counted
        key: ``COLUMN``: identifies a row; duplicates are detected
        group_by: ``COLUMN``: rows with equal cells stay in one split
        split_by: ``COLUMN``: names the split of each row; not in the records
        delimiter: ``TEXT``: between cells (default: a comma; in .tsv files a tab)
        quote: ``CHAR``: around cells (default: "); empty for none
        encoding: ``NAME``: utf-8 (default), utf-16, latin-1, ...
        header: ``WHERE``: first (default: the first row) or none
        columns: ``LIST``: names of the columns, for files without a header
        skip_lines: ``N``: number of lines before the header
        strip: strip white space around cells
        null_values: ``LIST``: texts that mean null in all columns (default: empty cells, and in
            numeric columns NA, NaN, null, ? and the like)
        preprocessing: ``FILE``: a .py file with a TensorFlow Transform preprocessing_fn
        sample_bytes: ``SIZE``: bytes of each file that are read to infer the schema
        max_rejected_files: ``N``: fail if more files are rejected as a whole
        threads: ``N``: concurrent ranges per worker (default: one per core)
        follow_links: follow links that lead outside the root
    """

    schema: File = of.file(decides=False)
    label: Text = of.text()
    key: Text = of.text()
    group_by: Text = of.text()
    split_by: Text = of.text()
    delimiter: Text = of.text(",")
    quote: Text = of.text('"')
    encoding: Text = of.text("utf-8", ("utf-8", "utf-16", "latin-1"))
    header: Choice[Literal["", "first", "none"]] = of.choice(("first", "none"), "")
    columns: Names = of.names()
    skip_lines: Int = of.whole(0)
    strip: Switch = of.switch()
    null_values: Option[tuple[str, ...] | None, str | Sequence[str] | None] = of.names(None)
    preprocessing: File = of.file(decides=False)
    sample_bytes: Bytes = of.size("16MiB", least="1", decides=False)
    max_rejected_files: Int = of.whole(0, decides=False)
    threads: Int = of.whole(0, decides=False)
    follow_links: Switch = of.switch(decides=False)


@dataclass
class CountOptions:
    """Options of ``shardmill count``.

    Attributes:
        input: ``PATH``: folders, globs, files, or lists of paths (.txt, .csv)
        manifest: ``FILE``: write a manifest to this file
        check: ``HOW``: records: read all and check every CRC (default); index: trust sound member
            indexes, read as little as counting needs
        root: ``DIR``: names are relative to it (default: the input's folder)
        follow_links: follow links that lead outside the root
        processes: ``N``: concurrent readers per worker (default: one per core)
        beam_options: ``NAME=VALUE``: an option of Apache Beam whose name a flag of Shardmill has;
            may be repeated
    """

    input: Path | Sequence[Path]
    _: KW_ONLY
    manifest: File = of.file()
    check: Choice[Check] = of.choice(("records", "index"), "records")
    root: File = of.file()
    follow_links: Switch = of.switch()
    processes: MaybeInt = of.whole(None, 1)
    beam_options: BeamOptions = of.beam_options()

    def __post_init__(self) -> None:
        listed = self.input if isinstance(self.input, (list, tuple)) else [self.input]
        self.input = tuple(of.parse_path("input", each) for each in listed)


@dataclass
class VerifyOptions:
    """Options of ``shardmill verify``.

    Attributes:
        dataset: ``DIR``: folder of a dataset, or a manifest of shardmill count
        processes: ``N``: concurrent readers (default: one per core)
    """

    dataset: Path
    _: KW_ONLY
    processes: MaybeInt = of.whole(None, 1)

    def __post_init__(self) -> None:
        self.dataset = of.parse_path("dataset", self.dataset)
