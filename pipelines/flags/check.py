"""Flags of ``shardmill check``."""

from __future__ import annotations

from shardmill.pipelines.flags.parser import Parser, add_debug

_DESCRIPTION = """\
Says whether a dataset is fit to be built on: large enough, fresh, with few
rejects, as it was counted. Reads manifests only, so it answers at once."""
_EPILOG = """\
examples:
  shardmill check ds --min_examples=train:1000,validation:100 --max_age=26h
  shardmill check ds --counted=counted.json

Exit codes: 0 all rules are kept, 1 one is not, 2 usage."""


def check_parser() -> Parser:
    """Returns the parser of ``shardmill check``."""
    parser = Parser("check", "DIR [FLAGS]", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("dataset", metavar="DIR", help="a dataset's folder, or a manifest")
    add("--min_examples", default="", metavar="N",
        help="examples there must be: of all splits together, or by split as in "
        "train:1000,validation:100")  # fmt: skip
    add("--max_age", default="", metavar="TIME",
        help="how long ago it may have been finished: 90s, 15m, 26h, 2d")  # fmt: skip
    add("--finished_after", default="", metavar="MOMENT",
        help="before which it may not have been finished: 2026-11-20T00:00:00Z")  # fmt: skip
    add("--max_reject_fraction", default="", metavar="SHARE",
        help="how many inputs may have been rejected, such as 0.02; one always may")  # fmt: skip
    add("--counted", default="", metavar="FILE",
        help="the manifest that shardmill count wrote of the same folder: all files and "
        "records must agree")  # fmt: skip
    add_debug(parser)
    return parser
