"""The ``shardmill`` command: runs the module of a command, and turns errors into exit codes."""

from __future__ import annotations

import sys

from shardmill.pipelines.commands import COMMANDS, load_command
from shardmill.schemas.errors import ResourceError, ShardmillError, UsageError

_LIST = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
_USAGE = f"""\
usage: shardmill COMMAND [FLAGS]

Build training-ready GZIP TFRecord datasets from images, CSV rows and NumPy
arrays, with exact record counts.

commands:
{_LIST}

example:
  shardmill images flower_photos ds --image_size=224

shardmill COMMAND --help lists the flags of a command."""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    code = _run(sys.argv[1:] if argv is None else argv)
    quiet = sys.modules.get("shardmill.pipelines.report.quiet")  # only if a command imported it
    if quiet is not None:
        quiet.close_stderr_after_failure()
    return code


def _run(arguments: list[str]) -> int:
    try:
        return _dispatch(arguments)
    except ShardmillError as error:
        if "--debug" in arguments:
            raise
        from shardmill.pipelines.report.error_address import address_of
        from shardmill.schemas.printable import printable

        message, address = str(error), address_of(str(error))
        if "--json" in arguments:
            import json

            body = {"status": "failed", "type": type(error).__name__, "error": message}
            print(json.dumps({**body, "address": address}))
        print(f"shardmill: {printable(message)}\nSee {address}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        from shardmill.pipelines.run import EXIT_INTERRUPTED  # slow to import

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
    try:
        code: int = load_command(argv[0]).main(argv[1:])
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
            raise
        raise ResourceError(
            "This process cannot have more memory or threads: raise its limits (ulimit -v and "
            "ulimit -u, or those of its container), or use a machine with more memory."
        ) from error
    return code


if __name__ == "__main__":
    sys.exit(main())
