"""``shardmill completion``: prints what a shell must read to complete flags."""

from __future__ import annotations

from shardmill.pipelines.flags.completion import completion_parser


def main(argv: list[str]) -> int:
    """Prints the script of a shell; returns the exit code."""
    flags = completion_parser().parse_args(argv)
    from shardmill.pipelines.completion import script

    print(script(flags.shell))
    return 0
