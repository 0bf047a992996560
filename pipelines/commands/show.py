"""``shardmill show``: what is in a dataset, a folder or a file. Loads no Beam and no TensorFlow.

``--json`` prints one object. ``kind`` says of what: ``dataset``, ``folder`` or ``file``.

A dataset has ``path``, ``manifest`` (its path), ``version``, ``root`` (the folder of files that
``shardmill count`` counted; null for a dataset of our own), ``finished``, ``runner``,
``compression``, ``num_examples``, ``num_bytes``, ``num_shards``; ``splits`` ({name:
``num_examples``, ``num_bytes``, ``share`` of all examples, ``shards``}); ``labels`` (``class_id``
or null, ``label``, ``total``, ``splits``: counts, in the order of class ids); ``features``,
``inputs`` and ``warnings`` as in the manifest; ``rejects`` (the first lines of rejects.jsonl) and
``damaged`` (files that a count found so).

A folder without a manifest has ``path``, ``files`` (the first: ``file``, ``bytes``,
``compression``) and ``more_files``. A file has ``path``, ``bytes`` and ``compression``.

All have ``records``, null where none are asked for or there are none: ``split`` or null, ``file``
(where the first is), ``first`` (see ``transforms.show.describe_record``) and ``damage`` (why there
are no more, or an empty text).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import Any

from shardmill.pipelines.commands.parser import Parser, add_debug, command_parser
from shardmill.pipelines.report.terminal import BLOCKS, Style, plain

_PIPE_WIDTH = 100

_EPILOG = """\
examples:
  shardmill show ds
  shardmill show ds/train-00000-of-00008.tfrecord.gz --records=10"""


def make_parser() -> Parser:
    """Return the parser of the command."""
    description = "Show what is in a dataset, a folder of TFRecord files, or one of them."
    parser = command_parser("show", "PATH [FLAGS]", description, _EPILOG)
    add = parser.add_argument
    add("path", metavar="PATH",
        help="a dataset, its manifest, a folder, or any TFRecord file")  # fmt: skip
    add("--records", type=number, default=3, metavar="N",
        help="number of records to show (default: 3)")  # fmt: skip
    add("--split", default="", metavar="SPLIT", help="split whose records are shown")
    add("--json", action="store_true", help="print everything as JSON")
    add_debug(parser)
    return parser


def number(text: str) -> int:
    """Return a number of records; argparse names the type by this function's name."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative: give 0 or more")
    return value


def main(argv: list[str]) -> int:
    """Print what is at the path; return the exit code."""
    flags = make_parser().parse_args(argv)
    from shardmill.pipelines.report.show_data import look
    from shardmill.pipelines.report.show_text import render

    found = look(flags.path, records=flags.records, split=flags.split)
    # Data may hold characters that the terminal's encoding does not have.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    if flags.json:
        print(json.dumps(found, indent=1))
    elif sys.stdout.isatty():
        _print_pretty(found)
    else:
        style = Style(_PIPE_WIDTH, blocks=_has_blocks())
        print("\n".join(plain(line) for line in render(found, style)))
    return 0


def _has_blocks() -> bool:
    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _print_pretty(found: dict[str, Any]) -> None:
    # Only terminals need it, and it takes 50 ms to load.
    from rich.console import Console
    from rich.text import Text

    from shardmill.pipelines.report.show_text import render

    width = shutil.get_terminal_size().columns
    console = Console(highlight=False, soft_wrap=True, width=width)
    for line in render(found, Style(width, blocks=_has_blocks())):
        console.print(Text.assemble(*line), no_wrap=True, overflow="ignore", crop=False)
