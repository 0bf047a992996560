"""From the flags of ``shardmill arrays`` to its config."""

from __future__ import annotations

from shardmill.pipelines.arrays_config import ArraysConfig
from shardmill.pipelines.flags.arrays import arrays_parser
from shardmill.pipelines.options import parse_build


def parse_arrays(argv: list[str]) -> tuple[ArraysConfig, list[str], bool]:
    """Returns the config, the Beam options, and whether to debug.

    Raises:
        UsageError: A flag is unknown, missing or malformed.
    """
    values, rest, debug = parse_build(arrays_parser(), ArraysConfig, argv)
    return ArraysConfig(**values), rest, debug
