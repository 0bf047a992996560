"""Flags of ``shardmill rows``."""

from __future__ import annotations

from shardmill.pipelines.flags.building import (
    SHARED_WORDS,
    add_places,
    add_running,
    add_shards,
    build_parser,
)
from shardmill.pipelines.flags.parser import Group, Parser

_EXAMPLE = """\
example, a column named survived as the label:
  shardmill rows --input=titanic.csv --output=ds --label=survived"""


def rows_parser() -> Parser:
    """Returns the parser of ``shardmill rows``."""
    parser = build_parser(
        "rows", "Turns CSV files into a published GZIP TFRecord dataset.", _EXAMPLE
    )
    add_places(
        parser.add_argument_group("what is read and written"),
        "a folder, glob, CSV file (.gz, .bz2, .xz, .zst too), or list of files (.txt)",
    )
    _add_columns(parser.add_argument_group("columns"))
    _add_dialect(parser.add_argument_group("how the files are written"))
    _add_splits(parser.add_argument_group("splits"))
    add_shards(parser.add_argument_group("records and shards"))
    add_running(parser.add_argument_group("running"), "ranges a worker works on at a time")
    parser.words = {
        **SHARED_WORDS,
        "--header": ("first", "none"),
        "--encoding": ("utf-8", "utf-16", "latin-1"),
        "--splits": ("directory", "train:0.9,validation:0.1"),
    }
    return parser


def _add_columns(group: Group) -> None:
    add = group.add_argument
    add("--schema", metavar="FILE", help="a schema.pbtxt (default: inferred and written)")
    add("--label", metavar="COLUMN", help="must be there in each row; its values are counted")
    add("--key", metavar="COLUMN", help="tells rows apart; repeated ones are found")
    add("--null_values", metavar="LIST",
        help="texts that mean missing in all columns (default: empty cells, and in columns of "
        "numbers NA, NaN, null, ? and the like)")  # fmt: skip
    add("--sample_bytes", metavar="SIZE",
        help="how much of each file is looked at to infer the schema (default: 16MiB)")  # fmt: skip
    add("--preprocessing", metavar="FILE",
        help="a .py file with a TensorFlow Transform preprocessing_fn")  # fmt: skip


def _add_dialect(group: Group) -> None:
    add = group.add_argument
    add("--delimiter", metavar="TEXT", help="between cells (default: a comma; in .tsv files a tab)")
    add("--quote", metavar="CHAR", help='around cells (default: "); empty for none')
    add("--encoding", metavar="NAME", help="utf-8 (default), utf-16, latin-1, ...")
    add("--header", metavar="WHERE", help="first (default: the first row) or none")
    add("--columns", metavar="LIST", help="names of the columns, for files without a header")
    add("--skip_lines", type=int, metavar="N", help="lines before the header")
    add("--strip", action="store_true", help="drop white space around cells")


def _add_splits(group: Group) -> None:
    add = group.add_argument
    add("--splits", metavar="SHARES", help="train:0.9,validation:0.1 (default), or directory")
    add("--split_by", metavar="COLUMN", help="names the split of each row; left out of records")
    add("--group_by", metavar="COLUMN", help="rows with equal cells stay in one split")
    add("--seed", type=int, metavar="N", help="another shuffle and other splits (default: 0)")
