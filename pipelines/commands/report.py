"""``shardmill report``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

from shardmill.pipelines.commands.parser import Parser, add_common, command_parser

_EPILOG = "example:\n  shardmill report ds --output=ds.html"


def make_parser() -> Parser:
    """Return the parser of the command."""
    description = "Write a page about a dataset: one HTML file, without scripts or links."
    parser = command_parser("report", "DIR [FLAGS]", description, _EPILOG)
    add = parser.add_argument
    add("dataset", metavar="DIR", help="folder of a dataset, or a manifest of shardmill count")
    add("--output", metavar="FILE", help="the page (default: ./DIR-report.html)")
    add_common(add)
    return parser


def main(argv: list[str]) -> int:
    """Write the page; return the exit code."""
    flags, answer = make_parser().parse(argv)
    from shardmill.loaders.report.page import write_report  # imports NumPy

    path = write_report(flags.dataset, flags.output)
    answer.say(f"Wrote {path}")
    answer.give({"status": "written", "report": path})
    return 0
