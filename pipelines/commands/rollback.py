"""``shardmill rollback``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

from shardmill.pipelines.commands.parser import Parser, add_common, command_parser
from shardmill.schemas.errors import InputError
from shardmill.schemas.storage import open_storage

_DESCRIPTION = """\
Publish an earlier version of a dataset again. The current version is kept, so
that a second rollback returns to it."""
_EPILOG = """\
example:
  shardmill rollback ds"""


def make_parser() -> Parser:
    """Return the parser of the command."""
    parser = command_parser("rollback", "DIR [FLAGS]", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("directory", metavar="DIR", help="folder of a dataset")
    add("--to", default="", metavar="NAME",
        help="name of the version, such as gen-20261122T101500Z-0123456789ab (default: the "
        "latest one)")  # fmt: skip
    add_common(add)
    return parser


def main(argv: list[str]) -> int:
    """Publish an earlier version; return the exit code."""
    flags, answer = make_parser().parse(argv)
    from shardmill.schemas.storage import absolute
    from shardmill.transforms.publish.publish import roll_back

    output = absolute(flags.directory) if flags.directory else ""
    entry = open_storage(output).stat(output) if output else None
    if entry is None or entry.kind != "dir":
        raise InputError(f"{flags.directory!r} is not a folder: give the folder of a dataset.")
    manifest = roll_back(open_storage(output), output, flags.to)
    answer.say(
        f"Published {manifest.generation} at {output}: {manifest.written:,} examples, "
        f"finished {manifest.build.finished}."
    )
    body = {"generation": manifest.generation, "written": manifest.written}
    answer.give({"status": "published", "output": output, **body})
    return 0
