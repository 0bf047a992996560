"""``shardmill report``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.pipelines.commands.parser import Parser, command_parser
from shardmill.schemas import option_types as of

_EPILOG = "example:\n  shardmill report ds --output=ds.html"


@dataclass(kw_only=True)
class ReportOptions:
    """Options of ``shardmill report``.

    Attributes:
        dataset: ``DIR``: folder of a dataset, or a manifest of shardmill count
        output: ``FILE``: the page (default: ./DIR-report.html)
    """

    dataset: str
    output: of.Option[str | None, str | None] = of.text(None)


def make_parser() -> Parser:
    """Return the parser of the command."""
    description = "Write a page about a dataset: one HTML file, without scripts or links."
    return command_parser("report", "DIR [FLAGS]", description, _EPILOG, ReportOptions)


def main(argv: list[str]) -> int:
    """Write the page; return the exit code."""
    flags, answer = make_parser().parse(argv, ReportOptions)
    from shardmill.loaders.report import write_report  # imports NumPy

    path = write_report(flags.dataset, flags.output)
    answer.say(f"Wrote {path}")
    answer.give({"status": "written", "report": path})
    return 0
