"""The ``shardmill`` command: runs the module of a command, and turns errors into exit codes."""

from __future__ import annotations

import gc
import io
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from json import dumps
from typing import Any

from shardmill.pipelines.commands import COMMANDS, INPUT_KINDS, find_parser, load_command
from shardmill.pipelines.report.terminal import (
    close_stderr_if_threads_remain,
    logged,
    write_log,
)
from shardmill.schemas.errors import (
    LimitError,
    OutputError,
    ResourceError,
    ShardmillError,
    UsageError,
)
from shardmill.schemas.numbers import plural, printable

_ADDRESS_SPACE = 3 << 30  # bytes; a build of three images takes 2.4 GB
# Objects after which garbage is looked for: with 700, Python spends a quarter of the time of
# this process on it, since references and rows of catalogs are many small objects that stay.
_GARBAGE = (100_000, 50, 100)
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
    arguments = sys.argv[1:] if argv is None else argv
    json, debug = "--json" in arguments, "--debug" in arguments
    run = lambda: report_errors(lambda: _dispatch(arguments), json=json, debug=debug)  # noqa: E731
    if not re.search(r"--log[-_]format[= ]json( |$)", " ".join(arguments)):
        return run()
    return logged(run)


def report_errors(run: Callable[[], int], *, json: bool, debug: bool = False) -> int:
    """Run a command; print an error as a sentence, and return the exit code.

    Args:
        run: Returns the exit code of the command.
        json: Whether to print an error as an object, too.
        debug: Whether to raise the error instead.
    """
    gc.set_threshold(*_GARBAGE)
    if isinstance(sys.stdout, io.TextIOWrapper):  # whose encoding may lack characters of the data
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _with_resources(run)
    except ShardmillError as error:
        if debug:
            raise
        _print_error(error, json=json)
        code = error.exit_code
    except BrokenPipeError:
        _drop_stdout()
        sys.stderr.close()
        code = 1
    except KeyboardInterrupt:
        print("shardmill: interrupted.", file=sys.stderr)
        code = 128 + signal.SIGINT
    close_stderr_if_threads_remain()
    return code


def _print_error(error: ShardmillError, *, json: bool) -> None:
    text = printable(str(error))
    body: dict[str, Any] = {"status": "failed", "type": type(error).__name__}
    more = {"findings": error.findings} if isinstance(error, LimitError) else {}
    if json:
        try:
            print(dumps({**body, "error": str(error), **more}), flush=True)
        except OSError:  # the sentence still goes to standard error
            _drop_stdout()
    if not write_log("error", text, **body):
        print(f"shardmill: {text}", file=sys.stderr)


def _with_resources(run: Callable[[], int]) -> int:
    try:
        code = run()
        print(end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        _check_stdout()
        raise
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
            raise
        raise ResourceError(
            "This process cannot have more memory or threads: raise its limits (ulimit -v and "
            "ulimit -u, or those of its container), or use a machine with more memory."
        ) from error
    return code


def _check_stdout() -> None:
    """Fail if nothing can be written to standard output."""
    try:
        print(flush=True)
    except OSError as error:
        _drop_stdout()
        raise OutputError(
            f"Standard output cannot be written ({error.strerror}), so the answer is incomplete: "
            "send it to a disk with free space, and run again."
        ) from error


def _drop_stdout() -> None:
    """Discard what standard output cannot take: Python would fail to write it when it exits."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def check_process(command: str) -> None:
    """Fail before a pipeline starts where this process cannot run it.

    Apache Beam reads docstrings. Python waits forever for a new thread whose memory ran out:
    ``threading.Thread.start`` waits for an event that a thread does not set if it fails before.

    Raises:
        UsageError: Python runs without docstrings, or decodes the names of files by another
            encoding than other machines: a file would have other keys here.
        ResourceError: The limit of this process is too small.
    """
    if command not in (*INPUT_KINDS, "count", "verify"):
        return
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        raise UsageError(
            f"Python reads names of files as {encoding} here, not as UTF-8, which would change "
            "keys: set PYTHONUTF8=1."
        )
    if command in INPUT_KINDS and sys.flags.optimize > 1:
        raise UsageError(
            "Apache Beam does not run without docstrings: omit -OO and PYTHONOPTIMIZE=2 (-O works)."
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _ADDRESS_SPACE:
        raise ResourceError(
            f"Processes are limited to {plural(limit, 'byte')} of address space (ulimit -v), "
            "builds take up to 3 GiB: raise that limit, and limit the memory of a container "
            "instead."
        )


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_USAGE)
        if argv:
            return 0
        return UsageError.exit_code
    if argv[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(version("shardmill"))
        return 0
    if argv[0] not in COMMANDS:
        names = ", ".join(COMMANDS)
        raise UsageError(f"The command {argv[0]!r} is unknown: use one of {names}.")
    if not {"-h", "--help"} & {*argv}:
        check_process(argv[0])
    if argv[0] in INPUT_KINDS:
        from shardmill.pipelines.commands.build import parse_build, run_build  # slow to import

        return run_build(argv[0], parse_build(argv[0], argv[1:]))
    if argv[0] in ("count", "verify"):  # they accept Beam's flags too
        from shardmill.pipelines.commands.parser import parse_flags

        values, beam_flags, answer = parse_flags(parser := find_parser(argv[0]), argv[1:])
        return int(load_command(argv[0]).run(parser.table(**values), answer, beam_flags))
    return int(load_command(argv[0]).run(*find_parser(argv[0]).parse(argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
