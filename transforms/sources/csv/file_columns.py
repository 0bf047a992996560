"""Compare the columns of a file with those of a schema, or of the other files."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence

from shardmill.schemas.errors import format_names
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.sources.csv.dialect import HeaderMode


def missing_columns(schema: Sequence[Column], columns: Sequence[str]) -> list[str]:
    """Return the required columns of a schema that a file lacks."""
    present = {*columns}
    required = [column.name for column in schema if column.required and not column.default]
    return [name for name in required if name not in present]


def check_columns(
    columns: Sequence[str], known: Collection[str], needed: Iterable[str], base: Sequence[str],
    header: HeaderMode,
) -> None:  # fmt: skip
    """Check that the columns of a file are those of the table.

    Args:
        columns: Columns of the file.
        known: Columns of the table.
        needed: Columns that each file must have.
        base: Inferred schema: the columns of most files. Each file must have half of them, or as
            many if files have no header.
        header: Whether files have a header.

    Raises:
        RejectedError: A column is missing, or has nearly the name of a column of the table.
    """
    if base and header == "none" and len(columns) != len(base):
        message = f"it has {len(columns)} columns, and most files have {len(base)}"
        raise RejectedError("read", "columns", message)
    present = {*columns}
    missing = [name for name in dict.fromkeys(needed) if name not in present]
    others = {_fold(name): name for name in known if name not in present}
    extra = [name for name in columns if name not in known]
    near = [(name, others[_fold(name)]) for name in extra if _fold(name) in others]
    lacks_half = 2 * len(present & {*base}) < len(base)
    if not (missing or near or lacks_half):
        return
    if near:
        message = (
            f"its column {near[0][0]!r} differs from {near[0][1]!r} only in case, spaces or "
            "Unicode form: rename it"
        )
    else:
        missing = [name for name in base if name not in present] if lacks_half else missing
        instead = f"but {format_names(extra)}" if extra else f"only {format_names(columns)}"
        fit = "most files" if base else "the schema, or make them optional there"
        message = f"it has no column {format_names(missing)}, {instead}: give it those of {fit}"
    raise RejectedError("read", "columns", message)


def _fold(name: str) -> str:
    """Return a name without the differences that people overlook."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())
