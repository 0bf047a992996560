"""The ``shardmill`` command: finds the module of a command, and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from shardmill.schemas.errors import ShardmillError, UsageError

# Each is a module of this package with ``main(argv) -> exit code``, loaded only when it is wanted.
COMMANDS = {
    "images": "a folder of images becomes a published dataset",
    "rows": "CSV files become a published dataset",
    "arrays": "NumPy arrays become a published dataset",
    "count": "how many records TFRecord files have, anybody's, each CRC checked",
    "show": "what is in a dataset, a folder or any TFRecord file",
    "steps": "how many steps an epoch takes, from the manifest",
    "verify": "whether a dataset is what its manifest and schema say",
    "check": "whether a dataset is fresh and large enough, from the manifest",
    "clean": "remove what unfinished builds left behind",
    "completion": "make a shell complete commands and flags",
}
_COMPLETING = "_ARGCOMPLETE"  # set by a shell that asks what may come next
_LIST = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
_USAGE = f"""\
usage: shardmill COMMAND [FLAGS]

Turns images, CSV rows and NumPy arrays into training-ready GZIP TFRecords,
exactly counted.

commands:
{_LIST}

example:
  shardmill images --input=flower_photos --output=ds --image_size=224

shardmill COMMAND --help lists the flags of a command."""


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    if _COMPLETING in os.environ:
        from shardmill.pipelines import completion

        completion.answer(COMMANDS)
    code = _checked(sys.argv[1:] if argv is None else argv)
    console = sys.modules.get(
        "shardmill.pipelines.report.progress_display"
    )  # not loaded by small commands
    if console is not None:
        console.last_words_said()
    return code


def _checked(arguments: list[str]) -> int:
    try:
        return _dispatch(arguments)
    except ShardmillError as error:
        if "--debug" in arguments:
            raise
        from shardmill.pipelines.report.terminal import clean  # names of files may hold anything

        print(f"shardmill: {clean(str(error))}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        from shardmill.pipelines.run import EXIT_INTERRUPTED  # loads what small commands need not

        print("shardmill: interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_USAGE)
        return 0 if argv else UsageError.exit_code
    if argv[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(version("shardmill"))
        return 0
    if argv[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise UsageError(f"The command {argv[0]!r} is unknown: use one of {known}.")
    command = import_module(f"shardmill.pipelines.commands.{argv[0]}")
    code: int = command.main(argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())
