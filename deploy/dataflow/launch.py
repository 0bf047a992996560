"""The program that the launcher of a flex template starts: one for all commands.

The launcher passes the template's parameters and its own as ``--name=value``, and with
``--template_location`` where to stage the job. The program runs the command that ``--command``
names:

    launch.py --command=images --input=... --runner=DataflowRunner --template_location=gs://...
"""

from __future__ import annotations

import os
import sys

from shardmill.pipelines.cli import main
from shardmill.pipelines.commands import INPUT_KINDS

COMMANDS = (*INPUT_KINDS, "count")
IMAGE_VARIABLE = "SHARDMILL_SDK_IMAGE"


def translate(argv: list[str]) -> list[str]:
    """Return the arguments of the ``shardmill`` command.

    A parameter that was left out may be empty, and the launcher passes the job's labels as
    ``--labels``, which is also a flag of Shardmill's.
    """
    command = ""
    rest = []
    for argument in argv:
        name, _, value = argument.partition("=")
        if name == "--command":
            command = value
        elif name == "--labels" and value.startswith("{"):
            rest.append(f"--beam_options=labels={value}")
        elif value or "=" not in argument:
            rest.append(argument)
    if command not in COMMANDS:
        return [command, *rest]  # which is reported with a list of the commands
    image = os.environ.get(IMAGE_VARIABLE)
    if image and not any(each.startswith("--sdk_container_image") for each in rest):
        rest.append(f"--sdk_container_image={image}")
    return [command, *rest]


if __name__ == "__main__":
    sys.exit(main(translate(sys.argv[1:])))
