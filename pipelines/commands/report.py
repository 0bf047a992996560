"""``shardmill report``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas import option_types as of


@dataclass(kw_only=True)
class ReportOptions:
    """Options of ``shardmill report``.

    Attributes:
        dataset: ``DIR``: folder of a dataset, or a manifest of shardmill count
        output: ``FILE``: the page (default: ./DIR-report.html)
        inputs: ``DIR``: local folder of the inputs, to show what can be decoded of rejected images
    """

    usage = "DIR [FLAGS]"
    summary = "Write a page about a dataset: one HTML file, without scripts or links."
    example = "example:\n  shardmill report ds --output=ds.html"
    dataset: str
    output: of.MaybeText = of.text(None)
    inputs: of.MaybeText = of.text(None)


def run(flags: ReportOptions, answer: Answer) -> int:
    """Write the page; return the exit code."""
    from shardmill.pipelines.report.dataset_report import report  # imports NumPy

    path = report(flags.dataset, flags.output, inputs=flags.inputs)
    answer.say(f"Wrote {path}")
    answer.give({"status": "written", "report": path})
    return 0
