"""What the commands that build a dataset share: the config, the run and its summary."""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from shardmill.pipelines import run
from shardmill.pipelines.commands import INPUT_KINDS, find_parser
from shardmill.pipelines.commands.parser import check_beam_flags, parse_flags
from shardmill.pipelines.limits import render_verdicts
from shardmill.pipelines.quick_start import UNUSED_BY_BUILDS, import_arrow, without
from shardmill.pipelines.report.findings import DatasetFinding
from shardmill.pipelines.report.terminal import Answer, hide_progress, quiet_import, quiet_logs
from shardmill.pipelines.runners.base import IN_MEMORY, find_runner, take_runner
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import open_storage, scheme_of

_NOT_IN_RECIPES = {"dry_run", "beam_options"}
T = TypeVar("T")


class BuildRequest(NamedTuple):
    """A build that a command line describes.

    Attributes:
        config: Options of the pipeline.
        beam_flags: Beam's options.
        answer: How to answer.
        recipe: Options of the command line and its ``--config`` as they were given, by name.
    """

    config: Any
    beam_flags: list[str]
    answer: Answer
    recipe: Mapping[str, Any] = MappingProxyType({})


def parse_build(kind: str, argv: list[str]) -> BuildRequest:
    """Return the options of a command line.

    Args:
        kind: Name of the kind of input, which is its command.
        argv: Arguments after the command.

    Raises:
        UsageError: A flag is unknown, missing or malformed.
    """
    values, beam_flags, answer = parse_flags(find_parser(kind), argv)
    import_arrow(INPUT_KINDS[kind].arrow_pool, with_pandas=bool(values.get("preprocessing")))
    build = configure(kind, values, beam_flags, answer)
    recipe = {name: value for name, value in values.items() if name not in _NOT_IN_RECIPES}
    if build.beam_flags:
        recipe["beam_options"] = build.beam_flags
    return build._replace(recipe=recipe)


def configure(
    kind: str, values: Mapping[str, Any], beam_flags: list[str], answer: Answer
) -> BuildRequest:
    """Return the options of a build.

    Args:
        kind: Name of the kind of input.
        values: Options by name, as texts or parsed.
        beam_flags: Beam's options, besides those in the values.
        answer: How to answer.

    Raises:
        UsageError: A value breaks a rule.
    """
    with quiet_import():
        config = INPUT_KINDS[kind].load_config()(**values)
    check_beam_flags(config.beam_options, find_parser(kind), once=True)
    return BuildRequest(config, [*beam_flags, *config.beam_options], answer)


def run_build(command: str, build: BuildRequest) -> int:
    """Build and publish a dataset; return the exit code.

    Args:
        command: Name of the kind of input, which is its command.
        build: The options.
    """
    config, beam_flags, answer, recipe = build
    runner, beam_flags = take_runner(beam_flags)
    config.start(answer, in_memory=runner == IN_MEMORY and not config.dry_run)
    kind = INPUT_KINDS[command]
    unused = UNUSED_BY_BUILDS if runner == IN_MEMORY else ()
    with quiet_import(), without(*unused):
        pipeline_module = kind.load_pipeline()
        from shardmill.pipelines.report.summary import build_result, log_summary, render_build
    started = time.monotonic()
    build_runner = find_runner(runner)
    if config.dry_run:  # which is made here, for any runner that exists
        runner = IN_MEMORY
        build_runner = find_runner(runner)
    paths = [("--input", path) for path in config.sources]
    build_runner.check_paths([*paths, ("--output", config.output)])
    if build_runner.has_process_per_core(beam_flags) and not getattr(config, kind.parallelism):
        config = replace(config, **{kind.parallelism: 1})  # a decoder or thread for each process
    job = pipeline_module.resolve(config, runner=runner)
    output = config.absolute_output
    if not config.dry_run:
        prepare_output(output)
    try:
        ended = finish_run(
            lambda: run.run_pipeline(
                lambda pipeline: pipeline_module.outcomes(pipeline, job),
                runner,
                beam_flags,
                output,
                new_progress=kind.new_progress,
                build=job.sink.build,
                command=f"{job.sink.build} {job.sink.update} {job.sink.command}",
            ),
            answer,
            remedy="run again to resume",
        )
    except Exception as error:
        plain = config.explain(error)
        if plain is None:
            raise
        raise plain from error
    if isinstance(ended, int):
        return ended
    seconds = time.monotonic() - started
    outcome = ended.outcome
    if config.update and outcome.status == "published":
        from shardmill.pipelines.report.compare import changes_of_update

        changes = changes_of_update(output, Manifest.from_json(outcome.manifest))
        outcome = replace(outcome, changes=(*outcome.changes, *changes))
    if outcome.findings:
        findings = [DatasetFinding(**finding) for finding in outcome.findings]
        answer.show(lambda _: [render_verdicts(findings, [])])
    result = build_result(outcome, output, seconds)
    columns = job.columns if kind.has_columns else {}
    answer.give({**result, "options": recipe} if config.dry_run and recipe else result)
    if answer.quiet or not log_summary(command, result, outcome.manifest, ended):
        answer.show(lambda _: render_build(outcome, output, seconds, kind.inputs, columns))
    return 0


def finish_run(start: Callable[[], T], answer: Answer, *, remedy: str) -> T | int:
    """Run a pipeline, or a function in its place, with the logs of libraries hidden.

    Args:
        start: Runs it.
        answer: Whether to show progress, Beam's log and counters.
        remedy: What an interrupted command says after a semicolon.

    Returns:
        The result, or the exit code if the run was interrupted or only staged.
    """
    try:
        with quiet_logs(debug=answer.debug), hide_progress(answer.quiet):
            ended = start()
    except run.Staged as staged:
        answer.say(str(staged))
        answer.give({"status": "staged", "message": str(staged)})
        return 0
    except run.Interrupted as interrupted:
        remark = f" ({interrupted.remark})" if interrupted.remark else ""
        print(f"shardmill: interrupted{remark}; {remedy}.", file=sys.stderr)
        answer.give({"status": "interrupted"})
        return interrupted.code
    if answer.debug and isinstance(ended, run.RunResult):
        for name, value in sorted(ended.counters().items()):
            text = re.sub(r"[^\w ]", "", str(value))  # a distribution is a dict
            print(f"counter {name}: {text}", file=sys.stderr)
    return ended


def prepare_output(output: str) -> None:
    """Check that a dataset may be built at an output, and repair the link to the current version.

    Creates nothing else that another builder could see, not even for a moment. A published dataset
    that is up to date is not written, so it may be on a read-only file system.

    Raises:
        ShardmillError: The output is not a dataset's, or cannot be written.
    """
    from shardmill.transforms.publish.generation import open_output  # slow to import
    from shardmill.transforms.publish.publish import update_link

    published = open_output(open_storage(output), output).manifest
    if published is None:
        check_accepts_files(output, f"--output={output}")
    else:
        update_link(output, published.generation)


def check_accepts_files(folder: str, flag: str) -> None:
    """Check that files can be written in a local folder, or in one that does not exist yet.

    Args:
        folder: The folder; URIs are not checked.
        flag: The flag that named it, for messages.

    Raises:
        ShardmillError: They cannot.
    """
    if scheme_of(folder):
        return
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    try:
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
        with tempfile.TemporaryFile(dir=folder, prefix=".build-probe-"):
            pass
    except FileNotFoundError as error:  # raised by file systems such as /proc
        raise OutputError(
            f"Cannot write to {flag}: {folder} accepts no files; choose an output on a writable "
            "file system."
        ) from error
    except OSError as error:
        from shardmill.schemas.storage.local import storage_error

        raise OutputError(str(storage_error("write to", flag, error))) from error
