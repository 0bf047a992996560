"""What the launcher of a flex template starts: one program for all commands.

The launcher calls it with the template's parameters and its own as ``--name=value``, and with
``--template_location``, where it wants the job to be put. It runs what ``--command`` names:

    launch.py --command=images --input=... --runner=DataflowRunner --template_location=gs://...
"""

from __future__ import annotations

import argparse
import os
import sys

from shardmill.pipelines.cli import main
from shardmill.pipelines.flags.arrays import arrays_parser
from shardmill.pipelines.flags.count import count_parser
from shardmill.pipelines.flags.images import images_parser
from shardmill.pipelines.flags.rows import rows_parser
from shardmill.pipelines.runners.dataflow import LABELS_VARIABLE

PARSERS = {
    "images": images_parser, "rows": rows_parser, "arrays": arrays_parser, "count": count_parser,
}  # fmt: skip
IMAGE_VARIABLE = "SHARDMILL_SDK_IMAGE"


def translate(argv: list[str]) -> list[str]:
    """Returns the arguments of the ``shardmill`` command.

    A template has texts only: switches come as ``true`` or ``false``, what was left out may come
    empty, and the labels of the job are called as a flag of ours is.
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
    if command not in PARSERS:
        return [command, *rest]  # which says what commands there are
    switches = {
        name
        for action in PARSERS[command]()._actions  # noqa: SLF001 - argparse has no other way
        if isinstance(action, argparse._StoreTrueAction)  # noqa: SLF001
        for name in action.option_strings
    }
    image = os.environ.get(IMAGE_VARIABLE)
    if image and not any(each.startswith("--sdk_container_image") for each in rest):
        rest.append(f"--sdk_container_image={image}")
    return [command, *_switched(rest, switches)]


def _switched(argv: list[str], switches: set[str]) -> list[str]:
    found = []
    for argument in argv:
        name, _, value = argument.partition("=")
        if name not in switches or value not in ("true", "false"):
            found.append(argument)
        elif value == "true":
            found.append(name)
    return found


if __name__ == "__main__":
    sys.exit(main(translate(sys.argv[1:])))
