"""``shardmill rollback``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import option_types as of
from shardmill.schemas.numbers import plural
from shardmill.schemas.option_types import useless_option
from shardmill.schemas.storage import open_storage


@dataclass(kw_only=True)
class RollbackOptions:
    """Options of ``shardmill rollback``.

    Attributes:
        directory: ``DIR``: folder of a dataset
        to: ``NAME``: name of the version, such as gen-20261122T101500Z-0123456789ab (default: the
            latest one)
        hold: builds, also with --update, do not replace the version until --release
        release: let builds replace the version that is published, and change nothing else
    """

    usage = "DIR [FLAGS]"
    summary = """\
Publish an earlier version of a dataset again. The current version is kept, so
that a second rollback returns to it; with --hold or --to, a repeated command
changes nothing. The next build with --update publishes what the inputs give
then: --hold prevents that."""
    example = """\
example:
  shardmill rollback ds --hold"""
    directory: str
    to: of.Text = of.text()
    hold: of.Switch = of.switch()
    release: of.Switch = of.switch()


def run(flags: RollbackOptions, answer: Answer) -> int:
    """Publish an earlier version; return the exit code."""
    from shardmill.pipelines.commands.clean import find_output
    from shardmill.transforms.publish.publish import release, roll_back

    for name, value in (("to", flags.to), ("hold", flags.hold)):
        if value and flags.release:
            raise useless_option(flag=name, value=value, why="with --release")
    output = find_output(flags.directory)
    storage = open_storage(output)
    if flags.release:
        manifest = release(storage, output)
        answer.say(f"Released {manifest.generation} at {output}: builds may replace it.")
    else:
        manifest = roll_back(storage, output, flags.to, hold=flags.hold)
        answer.say(
            f"Published {manifest.generation} at {output}: {plural(manifest.written, 'example')}, "
            f"finished {manifest.build.finished}."
        )
        answer.say(
            f"Builds do not replace it until `shardmill rollback {output} --release`."
            if manifest.held
            else "The next build with --update may replace it: --hold prevents that."
        )
    body = {
        "generation": manifest.generation,
        "written": manifest.written,
        "held": manifest.held,
    }
    answer.give({"status": "published", "output": output, **body})
    return 0
