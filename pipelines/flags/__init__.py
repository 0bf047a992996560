"""The flags of every command. Light: ``--help``, completion and a mistyped flag need no Beam."""

from __future__ import annotations

from importlib import import_module

from shardmill.pipelines.flags.parser import Parser

__all__ = ["Parser", "find_parser"]


def find_parser(command: str) -> Parser:
    """Returns the parser of a command of ``shardmill``."""
    module = import_module(f"shardmill.pipelines.flags.{command}")
    parser: Parser = getattr(module, f"{command}_parser")()
    return parser
