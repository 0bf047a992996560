"""The commands of ``shardmill``: each module has a table of options and ``run(options, answer)``.

Those of kinds of input are in ``build.py``. A table states the flags of a command, and their help.

A command imports what is slow to import, such as Apache Beam, inside ``run``: ``--help`` and a
mistyped flag answer at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardmill.pipelines.input_kinds import INPUT_KINDS

if TYPE_CHECKING:
    from shardmill.pipelines.commands.parser import Parser

COMMANDS = {kind.name: kind.help for kind in INPUT_KINDS.values()} | {
    "demo": "write a small folder of photos and a table to try the commands with",
    "count": "count the records of TFRecord files and check each CRC",
    "show": "show what is in a dataset or a TFRecord file",
    "diff": "compare two versions of a dataset",
    "steps": "print the number of steps per epoch",
    "report": "write an HTML page about a dataset: pictures, statistics, rejects",
    "verify": "check a dataset against its manifest and schema",
    "check": "check that a dataset is fresh and large enough",
    "files": "print the paths of the current shards",
    "rollback": "publish an earlier version of a dataset again",
    "clean": "delete what unfinished builds left behind",
}


def load_command(name: str) -> Any:
    """Return the module of a command."""
    return import_module(f"shardmill.pipelines.commands.{name}")


def find_parser(command: str) -> Parser:
    """Return the parser of a command."""
    from shardmill.pipelines.commands.parser import make_parser

    if command in INPUT_KINDS:
        return make_parser(command, INPUT_KINDS[command].load_options())
    return make_parser(command, getattr(load_command(command), f"{command.capitalize()}Options"))
