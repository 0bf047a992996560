"""``shardmill rows``."""

from __future__ import annotations

import contextlib
import itertools
import os

from shardmill.pipelines.commands import build_flags
from shardmill.pipelines.commands.build import BuildOptions, parse_build, run_build
from shardmill.pipelines.commands.parser import Group, Parser
from shardmill.pipelines.report.quiet import quiet_import, quiet_stderr
from shardmill.schemas.errors import UsageError

_EXAMPLE = """\
example, with the column survived as the label:
  shardmill rows --input=titanic.csv --output=ds --label=survived"""


def main(argv: list[str]) -> int:
    """Build and publish a dataset of rows; return the exit code."""
    options = parse(argv)
    with quiet_import():
        if options.config.preprocessing and not options.answer.debug:
            _import_tensorflow(options.config.preprocessing)
        from shardmill.transforms.rows.tft.analysis import analysis_error
    return run_build("rows", *options, explain=analysis_error)


def parse(argv: list[str]) -> BuildOptions:
    """Return the options of a command line.

    Raises:
        UsageError: A flag is unknown, missing or malformed.
    """
    options = parse_build("rows", argv)
    for label in _job_labels(options.beam_flags):
        if "=" not in label:
            raise UsageError(
                f"--labels={label} would label a job on Dataflow, where it is KEY=VALUE; did you "
                "mean --label?"
            )
    return options


def _job_labels(beam_flags: list[str]) -> list[str]:
    """Return the values of Beam's flag ``--labels``, in both spellings."""
    joined = [flag.partition("=")[2] for flag in beam_flags if flag.startswith("--labels=")]
    pairs = itertools.pairwise(beam_flags)
    return joined + [value for flag, value in pairs if flag == "--labels"]


def _import_tensorflow(path: str) -> None:
    """Import what --preprocessing needs, without TensorFlow's remarks about drivers."""
    from shardmill.transforms.rows.tft.preprocessing import load_preprocessing

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with quiet_stderr():
        load_preprocessing(path)  # first, so that a mistake in it is reported without the import
        with contextlib.suppress(ImportError):  # resolving the options reports it
            import tensorflow_transform.beam  # noqa: F401


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = build_flags.build_parser(
        "rows", "Build a GZIP TFRecord dataset from CSV files.", _EXAMPLE
    )
    build_flags.add_paths(
        parser.add_argument_group("input and output"),
        "a folder, glob, CSV file (.gz, .bz2, .xz, .zst too), or list of files (.txt)",
    )
    _add_columns(parser.add_argument_group("columns"))
    _add_dialect(parser.add_argument_group("CSV dialect"))
    splits = parser.add_argument_group("splits")
    add = splits.add_argument
    add("--splits", metavar="SHARES",
        help="directory (default if all folders are named like splits), or shares "
        "(default: train:0.9,validation:0.1)")  # fmt: skip
    add("--split_by", metavar="COLUMN", help="names the split of each row; not in the records")
    add("--group_by", metavar="COLUMN", help="rows with equal cells stay in one split")
    build_flags.add_seed(splits)
    build_flags.add_shards(parser.add_argument_group("records and shards"))
    running = parser.add_argument_group("running")
    running.add_argument("--max_rejected_files", type=int, metavar="N",
        help="fail if more files are rejected as a whole (default: 0)")  # fmt: skip
    build_flags.add_running(running, "concurrent ranges per worker")
    parser.suggestions = {
        **build_flags.SHARED_SUGGESTIONS,
        "--header": ("first", "none"),
        "--encoding": ("utf-8", "utf-16", "latin-1"),
        "--splits": ("directory", "train:0.9,validation:0.1"),
    }
    return parser


def _add_columns(group: Group) -> None:
    add = group.add_argument
    add("--schema", metavar="FILE", help="a schema.pbtxt (default: inferred and written)")
    add("--label", metavar="COLUMN", help="required in each row; its values are counted")
    add("--key", metavar="COLUMN", help="identifies a row; duplicates are detected")
    add("--null_values", metavar="LIST",
        help="texts that mean null in all columns (default: empty cells, and in numeric columns "
        "NA, NaN, null, ? and the like)")  # fmt: skip
    add("--sample_bytes", metavar="SIZE",
        help="bytes of each file that are read to infer the schema (default: 16MiB)")  # fmt: skip
    add("--preprocessing", metavar="FILE",
        help="a .py file with a TensorFlow Transform preprocessing_fn")  # fmt: skip


def _add_dialect(group: Group) -> None:
    add = group.add_argument
    add("--delimiter", metavar="TEXT", help="between cells (default: a comma; in .tsv files a tab)")
    add("--quote", metavar="CHAR", help='around cells (default: "); empty for none')
    add("--encoding", metavar="NAME", help="utf-8 (default), utf-16, latin-1, ...")
    add("--header", metavar="WHERE", help="first (default: the first row) or none")
    add("--columns", metavar="LIST", help="names of the columns, for files without a header")
    add("--skip_lines", type=int, metavar="N", help="number of lines before the header")
    add("--strip", action="store_true", help="strip white space around cells")
