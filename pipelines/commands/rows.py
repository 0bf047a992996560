"""``shardmill rows``."""

from __future__ import annotations

import contextlib
import os

from shardmill.pipelines import run
from shardmill.pipelines.flags.rows import rows_parser


def main(argv: list[str]) -> int:
    """Builds and publishes a dataset of rows; returns the exit code."""
    rows_parser().parse_known_args(argv)  # what it can tell needs no Beam
    with run.quiet_import():
        from shardmill.pipelines.rows_options import parse_rows

        config, rest, debug = parse_rows(argv)
        if config.preprocessing and not debug:
            _load_tensorflow(config.preprocessing)
        from shardmill.pipelines import rows
        from shardmill.pipelines.run_build import run_build
        from shardmill.transforms.rows.tft.analyze import analysis_error
    return run_build(rows, config, rest, debug=debug, unit="MiB of CSV", explain=analysis_error)


def _load_tensorflow(path: str) -> None:
    """Loads what --preprocessing needs without the remarks on drivers that nobody asked for."""
    from shardmill.transforms.rows.tft.preprocessing import load_preprocessing

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with run.quiet_library():
        load_preprocessing(path)  # a mistake in it shows before TensorFlow has started
        with contextlib.suppress(ImportError):  # resolving the options says so
            import tensorflow_transform.beam  # noqa: F401
