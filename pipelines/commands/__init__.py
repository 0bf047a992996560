"""The commands of ``shardmill``, and the kinds of input that it builds datasets from.

Each module has a table of options, which states the flags of a command and their help, and
``run(options, answer)``. Those of kinds of input are in ``build.py``. The parameters of the
Dataflow template, the settings of Airflow's DAGs and tests of the docs are derived from
``INPUT_KINDS``, the only list of kinds; docs/add-an-input-kind.md walks through adding one.

A command imports what is slow to import, such as Apache Beam, inside ``run``: ``--help`` and a
mistyped flag answer at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from shardmill.transforms.runtime.progress import Progress

if TYPE_CHECKING:
    from shardmill.pipelines.build_config import BuildConfig
    from shardmill.pipelines.commands.parser import Parser

NewProgress = Callable[[], Progress]  # of a run that has not begun
IMAGES: NewProgress = partial(Progress, unit="images")
MEBIBYTES: NewProgress = partial(Progress, unit="MiB", per_unit=1 << 20, rejects_name="damaged")


@dataclass(frozen=True)
class InputKind:
    """A kind of input.

    Its name decides where its code is: ``pipelines/<name>.py`` wires the pipeline,
    ``pipelines/<name>_config.py`` defines ``<Name>Config``.

    Attributes:
        name: Of the command, in lower case.
        help: What the command does, for the list of commands.
        inputs: What inputs are called in summaries.
        new_progress: Returns the progress of a run, with the unit in which it is shown.
        options: Module of ``pipelines`` that defines ``<Name>Options``, its flags.
        arrow_pool: Memory pool of Arrow; empty for its own choice, which takes less memory for
            tables, and 30 to 90 MiB more where Arrow holds catalogs alone.
        parallelism: Option with the number of decoders or threads of a worker process.
        has_columns: Whether its jobs describe ``columns`` for summaries.
    """

    name: str
    help: str
    inputs: str
    new_progress: NewProgress
    options: str = "dataset_options"
    arrow_pool: str = ""
    parallelism: str = "threads"
    has_columns: bool = False

    def load_pipeline(self) -> Any:
        """Return the module that wires the pipeline; imports Apache Beam."""
        return import_module(f"shardmill.pipelines.{self.name}")

    def load_config(self) -> type[BuildConfig]:
        """Return the class of its options."""
        return cast("type[BuildConfig]", self._load(f"{self.name}_config", "Config"))

    def load_options(self) -> Any:
        """Return the table of its options, which is faster to import."""
        return self._load(self.options, "Options")

    def _load(self, module: str, suffix: str) -> Any:
        imported_module = import_module(f"shardmill.pipelines.{module}")
        return getattr(imported_module, f"{self.name.capitalize()}{suffix}")


INPUT_KINDS = {
    kind.name: kind
    for kind in (
        InputKind(
            "images",
            "build a dataset from a folder of images",
            "images",
            IMAGES,
            arrow_pool="system",
            parallelism="workers",
        ),
        InputKind(
            "rows",
            "build a dataset from CSV, Parquet or JSON Lines files",
            "rows",
            partial(Progress, unit="MiB of rows", per_unit=1 << 20),
            has_columns=True,
        ),
        InputKind("arrays", "build a dataset from NumPy arrays", "rows", MEBIBYTES),
    )
}

COMMANDS = {kind.name: kind.help for kind in INPUT_KINDS.values()} | {
    "demo": "write small data to try the commands with",
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
    "completion": "print a script that completes flags in bash, zsh or fish",
}


def load_command(name: str) -> Any:
    """Return the module of a command."""
    return import_module(f"shardmill.pipelines.commands.{name}")


def find_parser(command: str) -> Parser:
    """Return the parser of a command."""
    from shardmill.pipelines.commands.parser import make_parser

    if command in INPUT_KINDS:
        parser = make_parser(command, INPUT_KINDS[command].load_options())
        parser.add_config()
        return parser
    return make_parser(command, getattr(load_command(command), f"{command.capitalize()}Options"))
