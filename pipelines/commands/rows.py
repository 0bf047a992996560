"""``shardmill rows``."""

from __future__ import annotations

import contextlib
import itertools
import os

from shardmill.pipelines.commands import build_flags
from shardmill.pipelines.commands.build import BuildOptions, parse_build, run_build
from shardmill.pipelines.commands.parser import Parser
from shardmill.pipelines.dataset_options import RowsOptions
from shardmill.pipelines.report.quiet import quiet_import, quiet_stderr
from shardmill.schemas.errors import UsageError

_EXAMPLE = """\
example, with the column survived as the label:
  shardmill rows --input=titanic.csv --output=ds --label=survived"""

_GROUPS = {
    "input and output": build_flags.PLACES,
    "columns": "schema label key null_values sample_bytes preprocessing",
    "CSV dialect": "delimiter quote encoding header columns skip_lines strip",
    "splits": "splits split_by group_by seed",
    "records and shards": build_flags.SHARDS,
    "running": "max_rejected_files max_reject_fraction threads",
}


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
        "rows", "Build a GZIP TFRecord dataset from CSV files.", _EXAMPLE, RowsOptions, _GROUPS
    )
    parser.suggestions = {
        **build_flags.SHARED_SUGGESTIONS,
        "--header": ("first", "none"),
        "--encoding": ("utf-8", "utf-16", "latin-1"),
        "--splits": ("directory", "train:0.9,validation:0.1"),
    }
    return parser
