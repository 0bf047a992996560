"""``shardmill arrays``."""

from __future__ import annotations

from shardmill.pipelines import run
from shardmill.pipelines.flags.arrays import arrays_parser


def main(argv: list[str]) -> int:
    """Builds and publishes a dataset of arrays; returns the exit code."""
    arrays_parser().parse_known_args(argv)  # what it can tell needs no Beam
    with run.quiet_import():
        from shardmill.pipelines.arrays_options import parse_arrays

        config, rest, debug = parse_arrays(argv)
        from shardmill.pipelines import arrays
        from shardmill.pipelines.run_build import run_build
    return run_build(arrays, config, rest, debug=debug, unit="MiB")
