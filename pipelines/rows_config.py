"""RowsConfig: every option of the rows pipeline as one frozen value, checked when made."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, cast

from shardmill.pipelines.build_config import BuildConfig
from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.columns import Column, parse_schema
from shardmill.schemas.storage import open_storage
from shardmill.transforms.build.placement import PlaceSpec
from shardmill.transforms.build.planning import parse_bytes
from shardmill.transforms.rows.csv.dialect import Dialect, HeaderMode
from shardmill.transforms.rows.types.typed_cells import Nulls


@dataclass(frozen=True)
class RowsConfig(BuildConfig):
    """Options of ``shardmill rows``; docs/rows.md explains each.

    Raises:
        UsageError: A value breaks a rule, or two do not go together.
    """

    not_identity: ClassVar[frozenset[str]] = BuildConfig.not_identity | {
        "schema",
        "sample_bytes",
        "preprocessing",
    }

    noun: ClassVar[str] = "rows"

    schema: str = ""
    label: str = ""
    key: str = ""
    group_by: str = ""
    split_by: str = ""
    delimiter: str = ","
    quote: str = '"'
    encoding: str = "utf-8"
    header: str = ""
    columns: str = ""
    skip_lines: int = 0
    strip: bool = False
    null_values: str | None = None
    preprocessing: str = ""
    sample_bytes: str = "16MiB"

    def __post_init__(self) -> None:
        super().__post_init__()
        # Each part checks its own values.
        _ = self.dialect, self.place_spec, self.shard_spec
        if self.splits == "listing":
            raise UsageError(
                "--splits=listing is for images: use --split_by=COLUMN for rows that name theirs."
            )
        if self.split_by and self.splits != type(self).splits:
            raise UsageError(
                f"--split_by={self.split_by} and --splits={self.splits} exclude each other."
            )
        if self.split_by and self.group_by:
            raise UsageError(
                f"--group_by={self.group_by} has no use with --split_by={self.split_by}: leave it."
            )
        if parse_bytes(self.sample_bytes, "sample_bytes") < 1:
            raise UsageError(f"--sample_bytes={self.sample_bytes} must be 1 or more.")

    @cached_property
    def place_spec(self) -> PlaceSpec:
        """How rows find their places; where a column names the splits there are no shares."""
        splits = Splits.parse("directory") if self.split_by else Splits.parse(self.splits)
        return PlaceSpec(splits, self.seed)

    @property
    def one_split(self) -> bool:
        """Whether there can be one split only."""
        return super().one_split and not self.split_by

    @cached_property
    def dialect(self) -> Dialect:
        """How the files are written."""
        columns = tuple(self.columns.split(",")) if self.columns else ()
        header = self.header or ("none" if columns else "first")
        return Dialect(
            self.delimiter,
            self.quote,
            self.encoding,
            cast("HeaderMode", header),
            columns,
            self.skip_lines,
            self.strip,
        )

    @cached_property
    def nulls(self) -> Nulls:
        """Which cells are missing."""
        return Nulls() if self.null_values is None else Nulls.of(self.null_values.split(","))

    def read_schema(self) -> tuple[Column, ...] | None:
        """Returns the columns of the schema file; None where there is none to read.

        Raises:
            UsageError: The file is missing or no schema.
        """
        if not self.schema:
            return None
        flag = f"--schema={self.schema}"
        storage = open_storage(self.schema)
        entry = storage.stat(self.schema)
        if entry is None or entry.kind == "dir":
            what = "does not exist" if entry is None else "is a folder"
            raise UsageError(f"{flag} {what}: give a schema.pbtxt.")
        try:
            text = storage.read(self.schema).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{flag} is not UTF-8: give a schema.pbtxt in text form.") from error
        return parse_schema(text, flag)

    def identity_of(self, schema: str, preprocessing: str) -> dict[str, Any]:
        """Returns the options that decide what is written, and nothing else.

        Args:
            schema: Text of the schema, wherever it came from.
            preprocessing: Digest of the preprocessing file, or empty.
        """
        found = {**self.identity(), "schema": schema}
        return {**found, "preprocessing": preprocessing} if preprocessing else found


def check_named(config: RowsConfig, schema: Sequence[Column], columns: Sequence[str]) -> None:
    """Refuses options and schemas that name columns which are not there.

    Args:
        config: The options.
        schema: The columns of records.
        columns: The columns of the files.

    Raises:
        UsageError: One is not there.
    """
    for flag in ("key", "group_by", "split_by"):
        name = getattr(config, flag)
        if name and name not in columns:
            raise UsageError(_no_column(flag, name, "the input has", columns))
    if not config.label:
        return
    names = [column.name for column in schema]
    if config.label not in names:
        have = "the input has" if config.label not in columns else "the schema has"
        raise UsageError(_no_column("label", config.label, have, names))
    if next(column for column in schema if column.name == config.label).separator:
        raise UsageError(
            f"--label={config.label} has several values a cell by the schema: a label is one."
        )


def _no_column(flag: str, name: str, have: str, columns: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, columns, 1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"--{flag}={name} is no column: {have} {_listed(columns)}{hint}"


def _listed(columns: Sequence[str]) -> str:
    from shardmill.transforms.rows.probe import format_names

    alone = columns[0] if len(columns) == 1 else ""
    near = next((mark for mark in (";", "\t", "|", ",") if mark in alone), "")
    hint = f"; its one column holds {near!r}, so --delimiter={near!r} may be right" if near else ""
    return format_names(columns) + hint
