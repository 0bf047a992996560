"""ColumnOptions: which columns of a table become features, with which names and types."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardmill.schemas.errors import UsageError, format_names
from shardmill.schemas.schema_pbtxt.columns import Column

_TYPES: dict[str, dict[str, Any]] = {
    "bytes": {"kind": "bytes"},
    "text": {"kind": "bytes"},
    "int": {"kind": "int64"},
    "int64": {"kind": "int64"},
    "float": {"kind": "float32"},
    "float32": {"kind": "float32"},
    "datetime": {"kind": "int64", "time": "datetime"},
    "date": {"kind": "int64", "time": "date"},
}


@dataclass(frozen=True)
class ColumnOptions:
    """Options that apply to the columns of any ``TableSource``, with their names in the files.

    Attributes:
        rename: New names of columns.
        select: Columns that become features, besides the label; all if empty.
        drop: Columns that do not become features.
        types: Columns whose types are given.
        defaults: Texts that replace missing cells.
    """

    rename: Mapping[str, str]
    select: tuple[str, ...]
    drop: tuple[str, ...]
    types: Mapping[str, Column]
    defaults: Mapping[str, str]

    @classmethod
    def of(
        cls,
        rename: Sequence[str],
        select: Iterable[str],
        drop: Iterable[str],
        types: Iterable[str],
        defaults: Iterable[str],
    ) -> ColumnOptions:
        """Build from flags; all but ``--rename`` use the new names.

        Raises:
            UsageError: A type is unknown, or two columns get the same name.
        """
        new_names = dict(pair.partition(":")[::2] for pair in rename)
        original = {new: old for old, new in new_names.items()}
        if len(original) < len(rename):
            rename_text = ",".join(rename)
            raise UsageError(
                f"--rename={rename_text} gives two columns the same name: choose different names."
            )

        def split(texts: Iterable[str]) -> dict[str, str]:
            pairs = (text.partition(":")[::2] for text in texts)
            return {original.get(name, name): value for name, value in pairs}

        columns = {name: _typed_column(name, text) for name, text in split(types).items()}
        selected = tuple(original.get(name, name) for name in select)
        dropped = tuple(original.get(name, name) for name in drop)
        return cls(new_names, selected, dropped, columns, split(defaults))

    @property
    def original_names(self) -> dict[str, str]:
        """The names in the files by the new ones."""
        return {new: old for old, new in self.rename.items()}

    def original(self, name: str) -> str:
        """Return the name of a column in the files, given its new name."""
        return self.original_names.get(name, name)

    def check(self, columns: Sequence[str]) -> list[str]:
        """Return the new names of all columns, after checking that the options name columns.

        Args:
            columns: Names of the columns of the files.

        Raises:
            UsageError: A column does not exist, or has the new name of another one.
        """
        for flag in ("rename", "select", "drop", "types", "defaults"):
            for name in getattr(self, flag):
                if name not in columns:
                    raise unknown_column(flag, name, "the input has", columns)
        names = [self.rename.get(name, name) for name in columns]
        for old, new in self.rename.items():
            if names.count(new) > 1:
                raise UsageError(
                    f"--rename={old}:{new}: the input has another column {new!r}: choose another "
                    "name, or rename that one too."
                )
        return names

    def keeps(self, name: str, label: str) -> bool:
        """Return whether a column becomes a feature, given the label."""
        return name not in self.drop and (not self.select or name in (*self.select, label or None))

    def apply(self, columns: Iterable[Column], label: str) -> tuple[Column, ...]:
        """Return the columns that become features, with types and defaults.

        A label is required even if a schema says otherwise.
        """
        return tuple(
            replace(
                self.types.get(column.name, column),
                required=column.required or column.name == label,
                default=self.defaults.get(column.name, column.default),
            )
            for column in columns
            if self.keeps(column.name, label)
        )


def _typed_column(name: str, text: str) -> Column:
    word, _, form = text.partition(":")
    arguments = _TYPES.get(word, {})
    if "time" in arguments:
        return Column(name, time_format=form, **arguments)
    if not arguments or form.startswith("%"):
        types_text = ", ".join(_TYPES)
        raise UsageError(
            f"--types={name}:{text}: must be {types_text}; a format may follow the last two, as in "
            f"{name}:date:%d.%m.%Y, and the text between several values the others, as in "
            f"{name}:text:;."
        )
    return Column(name, separator=form, **arguments)


def unknown_column(flag: str, name: str, have: str, columns: Sequence[str]) -> UsageError:
    """Return the error of an option that names a column which does not exist.

    Args:
        flag: The option.
        name: The column.
        have: Subject and verb of the columns, as in ``the input has``.
        columns: Names of the columns.
    """
    near = difflib.get_close_matches(name, columns, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    names = format_names(columns) or "none"
    return UsageError(f"--{flag}={name} is not a column: {have} {names}{hint}")
