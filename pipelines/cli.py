"""The ``shardmill`` command."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

from shardmill.schemas.errors import (
    FormatError,
    InputError,
    ShardmillError,
    UsageError,
)

_USAGE = """\
usage: shardmill COMMAND [FLAGS]

Turns raw images into training-ready GZIP TFRecord datasets with exact counts.

commands:
  images   a folder of images becomes a published dataset
  steps    how many steps an epoch takes, from the manifest

shardmill COMMAND --help lists the flags of a command."""
EXIT_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _dispatch(arguments)
    except ShardmillError as error:
        if "--debug" in arguments:
            raise
        print(f"shardmill: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        print("shardmill: interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED


def _dispatch(argv: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {"images": images, "steps": steps}
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_USAGE)
        return 0 if argv else UsageError.exit_code
    if argv[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(version("shardmill"))
        return 0
    if argv[0] not in commands:
        known = ", ".join(commands)
        raise UsageError(f"The command {argv[0]!r} is unknown: use one of {known}.")
    return commands[argv[0]](argv[1:])


def images(argv: list[str]) -> int:
    """Runs ``shardmill images``."""
    from shardmill.pipelines import run

    with run.quiet_import():
        from shardmill.pipelines import summary
        from shardmill.pipelines.options import parse_images

        config, rest, debug = parse_images(argv)
        from shardmill.pipelines.images import outcomes, resolve
        from shardmill.pipelines.preflight import check_writable
    # Beam logs whole tracebacks of errors that end here as one sentence.
    logging.getLogger().setLevel(logging.INFO if debug else logging.CRITICAL)
    started = time.monotonic()
    runner, rest = run.take_runner(rest)
    if config.dry_run:
        runner = run.IN_MEMORY
    invocation = run.new_invocation()
    job = resolve(config, runner=runner, invocation=invocation)
    output = job.sink.output
    if not config.dry_run:
        check_writable(output)
    try:
        outcome = run.run_pipeline(
            lambda pipeline: outcomes(pipeline, job), runner, rest, invocation, output
        )
    except run.Interrupted:
        print("shardmill: interrupted; run again to resume.", file=sys.stderr)
        return EXIT_INTERRUPTED
    seconds = time.monotonic() - started
    print("\n".join(summary.lines(outcome, output, seconds)))
    return 0


def steps(argv: list[str]) -> int:
    """Runs ``shardmill steps``; loads neither Apache Beam nor TensorFlow."""
    import json

    from shardmill.loaders.steps import steps_per_epoch
    from shardmill.pipelines.parser import Parser
    from shardmill.schemas.manifest import Manifest
    from shardmill.schemas.names import MANIFEST
    from shardmill.schemas.storage import join, open_storage

    parser = Parser(
        prog="shardmill steps",
        description="Steps per epoch, from the manifest.",
        allow_abbrev=False,
    )
    parser.add_argument("manifest", help="manifest.json, or the folder that holds it")
    parser.add_argument("--split", default="train")
    parser.add_argument("--batch_size", type=int, required=True, help="the global batch")
    parser.add_argument("--drop_remainder", action="store_true")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args(argv)
    path = flags.manifest
    storage = open_storage(path)
    entry = storage.stat(path)
    if entry is not None and entry.kind == "dir":
        path = join(path, MANIFEST)
    try:
        manifest = Manifest.from_json(storage.read(path))
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist: give a dataset or its {MANIFEST}.") from error
    except FormatError as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    number = steps_per_epoch(
        manifest,
        flags.split,
        flags.batch_size,
        drop_remainder=flags.drop_remainder,
        replicas=flags.replicas,
    )
    if flags.json:
        body = {
            **vars(flags),
            "steps": number,
            "examples": manifest.splits[flags.split].num_examples,
        }
        del body["json"]
        print(json.dumps(body))
    else:
        print(number)
    return 0


if __name__ == "__main__":
    sys.exit(main())
