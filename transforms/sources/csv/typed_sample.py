"""TypedSample: what the first rows of a file whose columns have types say of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardmill.schemas.errors import InputError, shown
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.sources.csv import arrow_values, text_parser
from shardmill.transforms.sources.csv.sample import Sample


class TypedProfile(NamedTuple):
    """The type of a column.

    Attributes:
        path: Name of the column, or names of the structs around it and of its field.
        kind: Its Arrow type.
        full: Whether no value is missing in the rows that were examined.
        rounding: An example of an integer that float32 rounds, as a clause, or empty.
        example: A value and the type, for people; empty if all are missing.
    """

    path: tuple[str, ...]
    kind: pa.DataType
    full: bool = False
    rounding: str = ""
    example: str = ""

    @property
    def is_text(self) -> bool:
        """Whether a cell is a text that could be a number."""
        return False


def same_type(first: pa.DataType, second: pa.DataType) -> bool:
    """Return whether values of two types have the same meaning in records."""
    if pa.types.is_null(first) or pa.types.is_null(second):
        return True
    return _meaning(first) == _meaning(second)


def _meaning(kind: pa.DataType) -> object:
    return arrow_values.find_type(kind), kind if pa.types.is_temporal(kind) else None


def profile_rows(profiles: Mapping[str, TypedProfile], table: pa.Table) -> dict[str, TypedProfile]:
    """Return profiles with what some rows say of their columns."""
    usable = {name for name, each in profiles.items() if arrow_values.find_type(each.kind)}
    cells = arrow_values.flatten_columns(table, usable)
    return {
        name: _profile_cells(each, cells[name]) if name in cells else each
        for name, each in profiles.items()
    }


def _profile_cells(profile: TypedProfile, cells: pa.DictionaryArray) -> TypedProfile:
    """Return a profile with what some cells of its column say.

    Args:
        profile: The profile.
        cells: The cells, as from ``encode_cells``.
    """
    found = cells.dictionary.drop_null()
    full = not text_parser.find_missing(cells.dictionary).any()
    if not len(found):
        return profile
    value = found[0].as_py()
    text = value if isinstance(value, str | bytes) else str(value)
    rounding = ""
    if pa.types.is_floating(found.type) or pa.types.is_integer(found.type):
        doubles = found.cast(pa.float64(), safe=False).to_numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            floats = doubles.astype(np.float32)
        bad = np.flatnonzero(
            (doubles == np.trunc(doubles)) & np.isfinite(floats) & (floats != doubles)
        )
        if len(bad):
            rounding = f"{int(doubles[bad[0]])} becomes {int(floats[bad[0]])}"
    return profile._replace(full=full, rounding=rounding, example=f"{shown(text)} ({profile.kind})")


@dataclass(frozen=True)
class TypedSample(Sample):
    """The sample of files whose columns have types; ``profiles`` has a ``TypedProfile`` of each."""

    @staticmethod
    def infer_column(name: str, profile: Any, given: Column | None = None) -> Column:
        """Return the column of a type, or of a given type that replaces it.

        Raises:
            InputError: Records cannot hold such values.
        """
        found = arrow_values.find_type(profile.kind)
        if found is None:
            raise InputError("column-unsupported", name=name, type=profile.kind)
        kind, several = found
        column = given or Column(name, kind)
        required = profile.full and not several
        return replace(column, name=name, required=required, several=several)

    @staticmethod
    def merge_profiles(first: Any, second: Any) -> Any:
        """Return the profile of a column of two files.

        Raises:
            RejectedError: They have different types.
        """
        if not same_type(first.kind, second.kind):
            raise RejectedError(
                "read",
                "columns",
                f"its column {'.'.join(second.path)!r} is {second.kind}, and {first.kind} in "
                "other files: give them one type, or state it with --schema",
            )
        kept = second if pa.types.is_null(first.kind) else first
        return kept._replace(
            full=first.full and second.full,
            rounding=first.rounding or second.rounding,
            example=first.example or second.example,
        )

    def describe(self, column: Column, *, missing: bool) -> str:  # noqa: ARG002 - not counted
        """See ``Sample.describe``."""
        profile = self.profiles.get(column.name)
        example = profile.example if profile else ""
        return f"{column.kind}, such as: {example}" if example else column.kind

    def list_findings(self, columns: Sequence[Column]) -> Iterable[str]:  # noqa: ARG002
        """Return nothing: no type was guessed."""
        return ()

    def exact(self, columns: Sequence[Column]) -> tuple[str, ...]:  # noqa: ARG002
        """Return nothing: that decimals become float32 is the rule of their type."""
        return ()


def profiles_of(fields: Iterable[pa.Field]) -> dict[str, TypedProfile]:
    """Return the profile of each column of a schema by its name.

    Raises:
        RejectedError: Two columns have one name.
    """
    profiles: dict[str, TypedProfile] = {}
    for path, kind in arrow_values.flatten_fields(fields):
        name = ".".join(path)
        if name in profiles:
            message = f"it has two columns named {shown(name)}: rename one of them"
            raise RejectedError("read", "columns", message)
        profiles[name] = TypedProfile(path, kind)
    return profiles
