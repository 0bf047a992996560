"""From the flags of ``shardmill rows`` to its config."""

from __future__ import annotations

import itertools

from shardmill.pipelines.flags.rows import rows_parser
from shardmill.pipelines.options import parse_build
from shardmill.pipelines.rows_config import RowsConfig
from shardmill.schemas.errors import UsageError


def given_labels(rest: list[str]) -> list[str]:
    """Returns the values of Beam's flag ``--labels``."""
    found = [flag.partition("=")[2] for flag in rest if flag.startswith("--labels=")]
    pairs = itertools.pairwise(rest)
    return found + [value for flag, value in pairs if flag == "--labels"]


def parse_rows(argv: list[str]) -> tuple[RowsConfig, list[str], bool]:
    """Returns the config, the Beam options, and whether to debug.

    Raises:
        UsageError: A flag is unknown, missing or malformed.
    """
    values, rest, debug = parse_build(rows_parser(), RowsConfig, argv)
    for name in given_labels(rest):
        if "=" not in name:
            raise UsageError(
                f"--labels={name} would label a job on Dataflow, where it is KEY=VALUE; did you "
                "mean --label?"
            )
    return RowsConfig(**values), rest, debug
