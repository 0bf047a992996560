"""``shardmill arrays``."""

from __future__ import annotations

from shardmill.pipelines.commands.parser import PLACES, SHARDS, Parser, build_parser
from shardmill.pipelines.dataset_options import ArraysOptions

_EXAMPLE = """\
example, an archive with the arrays x and y:
  shardmill arrays --input=mnist.npz --output=ds"""

_GROUPS = {
    "input and output": PLACES,
    "labels and features": "labels label arrays",
    "splits": "splits seed",
    "records and shards": SHARDS,
    "running": "max_reject_fraction threads beam_options",
}


def make_parser() -> Parser:
    """Return the parser of the command."""
    what = "Build a GZIP TFRecord dataset from NumPy arrays."
    return build_parser("arrays", what, _EXAMPLE, ArraysOptions, _GROUPS)
