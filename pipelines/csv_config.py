"""What ``CsvOptions`` say of the text of tables and of listings of images."""

from __future__ import annotations

from collections.abc import Sequence

from shardmill.pipelines.dataset_options import CsvOptions
from shardmill.schemas.errors import UsageError
from shardmill.schemas.option_types import as_text, options_of, useless_option
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.text_parser import CellRules

_KINDS = {"parquet": "Parquet", "jsonl": "JSON Lines"}


def make_dialect(options: CsvOptions, encoding: str = "utf-8") -> Dialect:
    """Return the CSV dialect of files.

    Raises:
        UsageError: A value breaks a rule, or two values conflict.
    """
    header = options.header or ("none" if options.columns else "first")
    return Dialect(
        options.delimiter,
        options.quote,
        encoding,
        header,
        options.columns,
        options.skip_lines,
        options.strip,
        options.comment,
        options.escape,
        options.pad_rows,
    )


def make_rules(options: CsvOptions, null_values: Sequence[str] | None) -> CellRules:
    """Return how cells are read.

    Raises:
        UsageError: A value breaks a rule, or two values conflict.
    """
    texts = None if null_values is None else null_values or [""]
    marks = {"decimal": options.decimal, "thousands": options.thousands}
    return CellRules.of(texts, infinity=options.infinity == "number", **marks)


def given_options(options: CsvOptions) -> dict[str, object]:
    """Return the options of ``CsvOptions`` that differ from their defaults."""
    values = {name: getattr(options, name) for name in options_of(CsvOptions)}
    return {name: value for name, value in values.items() if value != getattr(CsvOptions, name)}


def check_kinds(options: CsvOptions, kinds: Sequence[str], others: Sequence[str] = ()) -> None:
    """Check that no option is given that the files do not have.

    Args:
        options: The options.
        kinds: ``csv``, ``parquet`` or ``jsonl`` of each table; none of images without a listing.
        others: Names of other options that only CSV has and that are given.

    Raises:
        UsageError: One is.
    """
    given = given_options(options)
    if given and not kinds:
        name, value = next(iter(given.items()))
        raise useless_option(
            flag=name, value=as_text(options_of(CsvOptions)[name], value), why="without a listing"
        )
    names = [name for name in (*given, *others) if name != "infinity"]
    for kind in kinds:
        if names and kind in _KINDS:
            raise UsageError(
                f"--{names[0]} is for CSV files, but the input is {_KINDS[kind]}: leave the flag "
                "out."
            )
