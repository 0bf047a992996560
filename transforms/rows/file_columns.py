"""Compare the columns of a file with those of a schema, or of the other files."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence

from shardmill.schemas.errors import format_names
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column


def missing_columns(schema: Sequence[Column], columns: Sequence[str]) -> list[str]:
    """Return the required columns of a schema that a file lacks."""
    required = [column.name for column in schema if column.required and not column.default]
    return [name for name in required if name not in columns]


def check_columns(
    columns: Sequence[str], known: Collection[str], needed: Iterable[str], base: Sequence[str] = ()
) -> None:
    """Check that the columns of a file are those of the table.

    Args:
        columns: Columns of the file.
        known: Columns of the table.
        needed: Columns that each file must have.
        base: The columns of most files: each file must have half of them.

    Raises:
        RejectedError: A column is missing, or has nearly the name of a column of the table.
    """
    missing = [name for name in dict.fromkeys(needed) if name not in columns]
    others = {_fold(name): name for name in known if name not in columns}
    extra = [name for name in columns if name not in known]
    near = [(name, others[_fold(name)]) for name in extra if _fold(name) in others]
    lacks_half = 2 * len({*columns} & {*base}) < len(base)
    if not (missing or near or lacks_half):
        return
    if near:
        message = (
            f"its column {near[0][0]!r} differs from {near[0][1]!r} only in case, spaces or "
            "Unicode form: rename it"
        )
    else:
        missing = [name for name in base if name not in columns] if lacks_half else missing
        instead = f"but {format_names(extra)}" if extra else f"only {format_names(columns)}"
        fit = "most files" if base else "the schema, or make them optional there"
        message = f"it has no column {format_names(missing)}, {instead}: give it those of {fit}"
    raise RejectedError("read", "columns", message)


def _fold(name: str) -> str:
    """Return a name without the differences that people overlook."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())
