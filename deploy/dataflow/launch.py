"""The program that the launcher of a flex template starts: one for all commands.

The launcher passes the template's parameters and its own as ``--name=value``, and with
``--template_location`` where to stage the job. The program runs the command that ``--command``
names:

    launch.py --command=images --input=... --runner=DataflowRunner --template_location=gs://...
"""

from __future__ import annotations

import argparse
import os
import sys

from shardmill.pipelines.cli import main
from shardmill.pipelines.commands import find_parser
from shardmill.pipelines.input_kinds import INPUT_KINDS
from shardmill.pipelines.runners.dataflow import LABELS_VARIABLE

COMMANDS = (*INPUT_KINDS, "count")
IMAGE_VARIABLE = "SHARDMILL_SDK_IMAGE"


def translate(argv: list[str]) -> list[str]:
    """Return the arguments of the ``shardmill`` command.

    All parameters of a template are texts: switches are ``true`` or ``false``, a parameter that was
    left out may be empty, and the launcher passes the job's labels as ``--labels``, which is also a
    flag of Shardmill's.
    """
    command = ""
    rest = []
    for argument in argv:
        name, _, value = argument.partition("=")
        if name == "--command":
            command = value
        elif name == "--labels" and value.startswith("{"):
            os.environ[LABELS_VARIABLE] = value
        elif value or "=" not in argument:
            rest.append(argument)
    if command not in COMMANDS:
        return [command, *rest]  # which is reported with a list of the commands
    switches = {
        name
        for action in find_parser(command)._actions  # noqa: SLF001 - argparse has no other way
        if isinstance(action, argparse._StoreTrueAction)  # noqa: SLF001
        for name in action.option_strings
    }
    image = os.environ.get(IMAGE_VARIABLE)
    if image and not any(each.startswith("--sdk_container_image") for each in rest):
        rest.append(f"--sdk_container_image={image}")
    return [command, *_replace_switches(rest, switches)]


def _replace_switches(argv: list[str], switches: set[str]) -> list[str]:
    """Return the arguments with ``--name=true`` as ``--name``, and without ``--name=false``."""
    replaced = []
    for argument in argv:
        name, _, value = argument.partition("=")
        if name not in switches or value not in ("true", "false"):
            replaced.append(argument)
        elif value == "true":
            replaced.append(name)
    return replaced


if __name__ == "__main__":
    sys.exit(main(translate(sys.argv[1:])))
