"""``shardmill clean``."""

from __future__ import annotations


def main(argv: list[str]) -> int:
    """Removes what unfinished builds left behind; returns the exit code."""
    raise NotImplementedError(argv)
