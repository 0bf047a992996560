"""``shardmill rows``."""

from __future__ import annotations

import contextlib
import os

from shardmill.pipelines.commands.build import BuildOptions
from shardmill.pipelines.commands.parser import PLACES, SHARDS, Parser, build_parser
from shardmill.pipelines.dataset_options import RowsOptions
from shardmill.pipelines.report.quiet import quiet_import, quiet_stderr

_EXAMPLE = """\
example, with the column survived as the label:
  shardmill rows --input=titanic.csv --output=ds --label=survived"""

_GROUPS = {
    "input and output": f"{PLACES} follow_links",
    "columns": "schema label key null_values sample_bytes preprocessing",
    "CSV dialect": "delimiter quote encoding header columns skip_lines strip",
    "splits": "splits split_by group_by seed",
    "records and shards": SHARDS,
    "running": "max_rejected_files max_reject_fraction threads beam_options",
}


def start(options: BuildOptions) -> None:
    """Import what --preprocessing needs, without TensorFlow's remarks about drivers."""
    if not options.config.preprocessing or options.answer.debug:
        return
    with quiet_import():
        from shardmill.transforms.tables.tft.preprocessing import load_preprocessing

        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        with quiet_stderr():
            # First, so that a mistake in it is reported without the import.
            load_preprocessing(options.config.preprocessing)
            with contextlib.suppress(ImportError):  # resolving the options reports it
                import tensorflow_transform.beam  # noqa: F401


def explain(error: BaseException) -> Exception | None:
    """Return the error to report for an exception of TensorFlow Transform, or None."""
    from shardmill.transforms.tables.tft.build_graph import analysis_error

    return analysis_error(error)


def make_parser() -> Parser:
    """Return the parser of the command."""
    what = "Build a GZIP TFRecord dataset from CSV files."
    return build_parser("rows", what, _EXAMPLE, RowsOptions, _GROUPS)
