"""``shardmill arrays``."""

from __future__ import annotations

from shardmill.pipelines.commands import build_flags
from shardmill.pipelines.commands.build import parse_build, run_build
from shardmill.pipelines.commands.parser import Parser
from shardmill.pipelines.dataset_options import ArraysOptions

_EXAMPLE = """\
example, an archive with the arrays x and y:
  shardmill arrays --input=mnist.npz --output=ds"""

_GROUPS = {
    "input and output": build_flags.PLACES.replace(" follow_links", ""),
    "labels and features": "labels label arrays",
    "splits": "splits seed",
    "records and shards": build_flags.SHARDS,
    "running": "max_reject_fraction threads",
}


def main(argv: list[str]) -> int:
    """Build and publish a dataset of arrays; return the exit code."""
    return run_build("arrays", *parse_build("arrays", argv))


def make_parser() -> Parser:
    """Return the parser of the command."""
    what = "Build a GZIP TFRecord dataset from NumPy arrays."
    parser = build_flags.build_parser("arrays", what, _EXAMPLE, ArraysOptions, _GROUPS)
    parser.suggestions = {
        **build_flags.SHARED_SUGGESTIONS,
        "--splits": ("train:0.9,validation:0.1",),
    }
    return parser
