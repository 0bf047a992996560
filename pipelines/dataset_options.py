"""The options of the commands that build a dataset: types, defaults and the help of each flag.

The docstrings are the help: after the name of an option comes the placeholder of its value.
This module is imported for ``--help``, so it imports nothing that is slow.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

_OPTION = re.compile(r"^ {4}(\w+): (?:``(\w+)``: )?(.+(?:\n {8}.+)*)", re.MULTILINE)


@dataclass(frozen=True)
class DatasetOptions:
    """Options of the input, the output, the splits and the shards.

    Attributes:
        input: ``PATH``: a folder, glob or file
        output: ``DIR``: folder of the new dataset
        root: ``DIR``: keys are paths relative to it (default: the input's folder)
        follow_links: follow links that lead outside the root
        splits: ``SHARES``: directory (default if all folders are named like splits), or shares
            (default: train:0.9,validation:0.1)
        num_shards: ``N``: exact number of shards in each split, even to one record
        shard_bytes: ``SIZE``: target size of a shard (default: 128MiB)
        shard_examples: ``N``: target number of examples per shard
        shard_name: ``PATTERN``: fields {split} {index:05d} {total:05d} {records} {label}
        compression: ``TYPE``: gzip or none (default: gzip)
        seed: ``N``: seed of the shuffle and the splits (default: 0)
        max_reject_fraction: ``X``: fail if a larger fraction of inputs is rejected (default: 0.05)
        update: publish a new version if inputs or options changed, else do nothing
        overwrite: build from scratch and replace the dataset
        keep: ``N``: earlier versions to keep, for readers and rollback (default: 1)
        dry_run: print what would be built, write nothing
        threads: ``N``: concurrent reads per worker (default: one per core)
    """

    input: str
    output: str
    root: str = ""
    follow_links: bool = False
    splits: str | None = None
    num_shards: int | None = None
    shard_bytes: str = "128MiB"
    shard_examples: int | None = None
    shard_name: str = ""
    compression: str = "gzip"
    seed: int = 0
    max_reject_fraction: float = 0.05
    update: bool = False
    overwrite: bool = False
    keep: int = 1
    dry_run: bool = False
    threads: int = 0


@dataclass(frozen=True)
class ArraysOptions(DatasetOptions):
    """Options of ``shardmill arrays``, besides those of every build.

    Attributes:
        input: ``PATH``: a .npy, an .npz, or a folder of .npy files
        splits: ``SHARES``: train:0.9,validation:0.1 (default)
        labels: ``FILE``: a .npy of labels: integers or texts
        label: ``NAME``: the array that is the label (default: the one called y, label or labels;
            empty: none)
        arrays: ``LIST``: names of the arrays to read (default: all)
    """

    labels: str = ""
    label: str | None = None
    arrays: str = ""


@dataclass(frozen=True)
class ImagesOptions(DatasetOptions):
    """Options of ``shardmill images``, besides those of every build.

    Attributes:
        input: ``PATH``: a folder, glob, listing (.csv) or image
        splits: ``SHARES``: directory (default if all folders are named like splits), or listing, or
            shares (default: train:0.9,validation:0.1)
        label_from: ``WHERE``: directory, filename, listing, none (default: directory)
        label_pattern: ``REGEX``: has a group (?P<label>...)
        labels: ``FILE``: one label per line, line number = class id
        group_pattern: ``REGEX``: keys with the same match stay in one split
        image_size: ``SIZE``: 224 (default) or 180x320 (height x width)
        resize: ``HOW``: stretch, fit, pad, crop, none (default: stretch)
        interpolation: ``FILTER``: nearest, box, bilinear, hamming, bicubic, lanczos (default:
            bilinear)
        only_shrink: never enlarge an image
        reducing_gap: ``X``: decode JPEGs at a reduced scale that stays at least X times larger than
            the target (default: 3; 0: always full size)
        icc: ``HOW``: ignore colour profiles (default) or convert to srgb
        encoding: ``TYPE``: jpeg, png, raw (default: jpeg)
        quality: ``Q``: JPEG quality, 1 to 100 (default: 95)
        channels: ``N``: 3 (default), 1 (grey) or 4 (with alpha)
        shard_by: ``WHAT``: label: separate shards for each label
        duplicates: ``HOW``: of files with the same content: keep all (default), drop all but one,
            or same_split; the latter two read all files twice
        features: ``LIST``: NAME=SOURCE,... chooses and renames features
        limit: ``N``: take a random sample of N images
        max_pixels: ``N``: reject images with more pixels, by their headers (default: 178956970)
        decoder_memory: ``SIZE``: reject images whose decoding needs more memory (default: 6GiB)
        decoder_seconds: ``X``: reject images whose decoding takes more CPU time (default: 180)
        workers: ``N``: decoder processes per worker (default: one per core)
    """

    label_from: str = "directory"
    label_pattern: str = ""
    labels: str = ""
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
    shard_by: str = ""
    duplicates: str = "keep"
    features: str = ""
    limit: int | None = None
    max_pixels: int = 178_956_970  # that of decode.MAX_PIXELS, whose module is slow to import
    decoder_memory: str = "6GiB"
    decoder_seconds: float = 180.0
    workers: int = 0


@dataclass(frozen=True)
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
        sample_bytes: ``SIZE``: bytes of each file that are read to infer the schema (default:
            16MiB)
        max_rejected_files: ``N``: fail if more files are rejected as a whole (default: 0)
        threads: ``N``: concurrent ranges per worker (default: one per core)
    """

    schema: str = ""
    label: str = ""
    key: str = ""
    group_by: str = ""
    split_by: str = ""
    delimiter: str = ","
    quote: str = '"'
    encoding: str = "utf-8"
    header: str = ""
    columns: str = ""
    skip_lines: int = 0
    strip: bool = False
    null_values: str | None = None
    preprocessing: str = ""
    sample_bytes: str = "16MiB"
    max_rejected_files: int = 0


def describe_options(options: type[DatasetOptions]) -> dict[str, tuple[str, str]]:
    """Return the placeholder and the help of each option, by its name."""
    texts = (inspect.cleandoc(each.__dict__.get("__doc__") or "") for each in options.__mro__[::-1])
    found = {}
    for text in texts:
        for name, placeholder, help_text in _OPTION.findall(text):
            found[name] = placeholder, " ".join(help_text.split())
    return found
