"""``shardmill rollback``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import option_types as of
from shardmill.schemas.numbers import plural
from shardmill.schemas.storage import open_storage


@dataclass(kw_only=True)
class RollbackOptions:
    """Options of ``shardmill rollback``.

    Attributes:
        directory: ``DIR``: folder of a dataset
        to: ``NAME``: name of the version, such as gen-20261122T101500Z-0123456789ab (default: the
            latest one)
    """

    usage: ClassVar = "DIR [FLAGS]"
    summary: ClassVar = """\
Publish an earlier version of a dataset again. The current version is kept, so
that a second rollback returns to it."""
    example: ClassVar = """\
example:
  shardmill rollback ds"""
    directory: str
    to: of.Text = of.text()


def run(flags: RollbackOptions, answer: Answer) -> int:
    """Publish an earlier version; return the exit code."""
    from shardmill.pipelines.commands.clean import find_output
    from shardmill.transforms.publish.publish import roll_back

    output = find_output(flags.directory)
    manifest = roll_back(open_storage(output), output, flags.to)
    answer.say(
        f"Published {manifest.generation} at {output}: {plural(manifest.written, 'example')}, "
        f"finished {manifest.build.finished}."
    )
    body = {"generation": manifest.generation, "written": manifest.written}
    answer.give({"status": "published", "output": output, **body})
    return 0
