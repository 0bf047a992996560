"""ColumnOptions: which columns of a table become features, with which names and types."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from shardmill.schemas import option_types as of
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


@dataclass(kw_only=True)
class ColumnOptions(of.Options):
    """Options that apply to the columns of any ``TableSource``.

    Attributes:
        select: ``COLUMNS``: become features, with the label (default: all)
        drop: ``COLUMNS``: do not become features
        rename: ``PAIRS``: new names of columns, as in old:new; all other options have the new names
        types: ``PAIRS``: types of columns, as in zip:bytes,price:float,day:date:%d.%m.%Y: int,
            float, bytes, datetime (seconds since 1970) or date (days); the latter two are ISO 8601
            unless a format follows, and after the others the text between the values of a cell may
            follow, as in tags:text:;
        defaults: ``PAIRS``: texts that replace missing cells, as in age:0

    Raises:
        UsageError: A type is unknown, or two columns get the same name.
    """

    select: of.Names = of.names()
    drop: of.Names = of.names()
    rename: of.Pairs = of.mapping()
    types: of.Pairs = of.mapping()
    defaults: of.Pairs = of.mapping()

    def __post_init__(self) -> None:
        super().__post_init__()
        original = {new: old for old, new in _pairs(self.rename)}
        if len(original) < len(self.rename):
            rename_text = ",".join(self.rename)
            raise UsageError(
                f"--rename={rename_text} gives two columns the same name: choose different names."
            )
        for name, text in _pairs(self.types):
            typed_column(original.get(name, name), text)

    @cached_property
    def new_names(self) -> dict[str, str]:
        """The new names by those in the files."""
        return dict(_pairs(self.rename))

    @cached_property
    def original_names(self) -> dict[str, str]:
        """The names in the files by the new ones."""
        return {new: old for old, new in _pairs(self.rename)}

    @cached_property
    def selected_names(self) -> frozenset[str]:
        """The names in the files of the columns of ``--select``."""
        return frozenset(map(self.original, self.select))

    @cached_property
    def dropped_names(self) -> frozenset[str]:
        """The names in the files of the columns of ``--drop``."""
        return frozenset(map(self.original, self.drop))

    @cached_property
    def typed_columns(self) -> dict[str, Column]:
        """The columns of given types, by their names in the files."""
        columns = [typed_column(self.original(name), text) for name, text in _pairs(self.types)]
        return {column.name: column for column in columns}

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
        named = {
            "select": self.select,
            "drop": self.drop,
            "types": [name for name, _ in _pairs(self.types)],
            "defaults": [name for name, _ in _pairs(self.defaults)],
        }
        by_flag = {"rename": [*self.new_names]}
        for flag, new_names in named.items():
            by_flag[flag] = [self.original(name) for name in new_names]
        for flag, names in by_flag.items():
            for name in names:
                if name not in columns:
                    raise unknown_column(flag, name, "the input has", columns)
        renamed = [self.new_names.get(name, name) for name in columns]
        for old, new in self.new_names.items():
            if renamed.count(new) > 1:
                raise UsageError(
                    f"--rename={old}:{new}: the input has another column {new!r}: choose another "
                    "name, or rename that one too."
                )
        return renamed

    def keeps(self, name: str, label: str) -> bool:
        """Return whether a column becomes a feature.

        Args:
            name: Its name in the files.
            label: That of the label.
        """
        if name in self.dropped_names:
            return False
        return not self.select or name == (label or None) or name in self.selected_names

    def apply(self, columns: Iterable[Column], label: str) -> tuple[Column, ...]:
        """Return the columns that become features, with types and defaults.

        A label is required even if a schema says otherwise.
        """
        types = self.typed_columns
        defaults = {self.original(name): text for name, text in _pairs(self.defaults)}
        return tuple(
            replace(
                types.get(column.name, column),
                required=column.required or column.name == label,
                default=defaults.get(column.name, column.default),
            )
            for column in columns
            if self.keeps(column.name, label)
        )


def _pairs(items: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names and values of items such as ``zip:bytes``."""
    parts = [item.partition(":") for item in items]
    return [(name, value) for name, _, value in parts]


def typed_columns(types: Iterable[str]) -> dict[str, Column]:
    """Return the columns of ``--types`` by name.

    Raises:
        UsageError: A type is unknown.
    """
    return {name: typed_column(name, text) for name, text in _pairs(types)}


def typed_column(name: str, text: str) -> Column:
    """Return a column of a type such as ``date:%d.%m.%Y``.

    Raises:
        UsageError: The type is unknown.
    """
    word, _, form = text.partition(":")
    arguments = _TYPES.get(word, {})
    if "time" in arguments:
        return Column(name, time_format=form, **arguments)
    if not arguments or form.startswith("%"):
        choices = ", ".join(_TYPES)
        raise UsageError(
            f"--types={name}:{text}: must be {choices}; a format may follow the last two, as in "
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
    names = format_names(columns) or "no other columns"
    return UsageError(f"--{flag}={name} is not a column: {have} {names}{hint}")
