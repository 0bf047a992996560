"""RowsConfig: every option of the rows pipeline as one frozen value, checked when made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import deflate

from shardmill.pipelines.build_config import BuildConfig, useless_unlabeled_splits
from shardmill.pipelines.dataset_options import RowsOptions
from shardmill.pipelines.option_file import read_option_file
from shardmill.pipelines.report.terminal import Answer, quiet_import, quiet_stderr
from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.errors import UsageError
from shardmill.schemas.option_types import useless_option
from shardmill.schemas.schema_pbtxt.columns import Column, parse_schema
from shardmill.transforms.sink.placement import PlaceSpec, check_unlabeled
from shardmill.transforms.sources.csv.dialect import CellOptions, Dialect
from shardmill.transforms.sources.csv.text_parser import CellRules
from shardmill.transforms.sources.csv.typed_cells import check_default
from shardmill.transforms.tables.column_options import (
    ColumnOptions,
    unknown_column,
)
from shardmill.transforms.tables.table_source import TableSpec, with_names

if TYPE_CHECKING:
    from shardmill.transforms.tables.tft.preprocessing import Preprocessing

ROWS_VERSION = "2"  # of the conversion from cells to values to bytes


def codec_versions() -> dict[str, str]:
    """Return the versions of the code that decides bytes, without that of preprocessing."""
    return {"rows": ROWS_VERSION, "deflate": deflate.__version__}


@dataclass(kw_only=True)
class RowsConfig(RowsOptions, BuildConfig):
    """``RowsOptions``, checked.

    Raises:
        UsageError: A value breaks a rule, or two values conflict.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares.mode == "listing":
            raise UsageError(
                "--splits=listing is for images: use --split_by=COLUMN for a column of split names."
            )
        has_splits = self.splits is not None or self.source_id  # else folders may name them
        if has_splits and not self.split_by:
            check_unlabeled(self.unlabeled_splits, self.shares)
        if self.split_by and self.splits is not None:
            raise split_by_and_splits(split_by=self.split_by, splits=self.splits)
        if self.unlabeled_splits and not self.label:
            raise useless_unlabeled_splits()
        if self.unlabeled_splits and self.preprocessing:
            raise UsageError(
                "--unlabeled_splits and --preprocessing cannot be combined: preprocess labelled "
                "rows, or leave the label out."
            )
        if self.split_by and self.group_by:
            why = f"with --split_by={self.split_by}"
            raise useless_option(flag="group_by", value=self.group_by, why=why)

    @cached_property
    def place_spec(self) -> PlaceSpec:
        """How rows are assigned to positions, and to splits unless a column names them."""
        splits = Splits("directory") if self.split_by else self.shares
        return PlaceSpec(splits, self.seed, unlabeled=self.unlabeled_splits)

    @property
    def one_split(self) -> bool:
        """Whether at most one split can have examples."""
        return super().one_split and not self.split_by

    @cached_property
    def dialect(self) -> Dialect:
        """The CSV dialect of the files."""
        return self.pick(Dialect)

    @cached_property
    def cell_rules(self) -> CellRules:
        """How cells are read."""
        return CellRules.of(self.null_texts, self.pick(CellOptions))

    @cached_property
    def column_options(self) -> ColumnOptions:
        """Which columns become features, and how."""
        return self.pick(ColumnOptions)

    @property
    def named(self) -> list[str]:
        """Names in the files of the columns of the label, the key, the group and the split."""
        names = self.label, self.key, self.group_by, self.split_by
        return [*map(self.column_options.original, names)]

    def table(self, columns: Sequence[Column]) -> TableSpec:
        """Return the table of columns that are named as in the input."""
        chosen, (label, key, group, split) = self.column_options, self.named
        return TableSpec(
            chosen.apply(columns, label),
            self.place_spec,
            label,
            key,
            group,
            split,
            rename=tuple(chosen.new_names.items()),
        )

    def read_schema(self) -> tuple[Column, ...] | None:
        """Return the columns of the schema file, named as in the input; None without ``--schema``.

        Raises:
            UsageError: The file is missing or not a schema.
        """
        if not self.schema:
            return None
        text = read_option_file("schema", self.schema, "a schema.pbtxt in text form")
        columns = parse_schema(text, f"--schema={self.schema}")
        return with_names(columns, self.column_options.original_names)

    def read_preprocessing(self) -> Preprocessing | None:
        """Return the preprocessing_fn, whose file is executed once to check it; None without one.

        Raises:
            UsageError: The file is missing, is not Python, fails to run, or has no such function.
        """
        if not self.preprocessing:
            return None
        from shardmill.transforms.tables.tft.preprocessing import Preprocessing

        remedy = "a Python file with a preprocessing_fn"
        text = read_option_file("preprocessing", self.preprocessing, remedy)
        preprocessing = Preprocessing(self.preprocessing, text)
        _ = preprocessing.function
        return preprocessing

    def start(self, answer: Answer, *, in_memory: bool) -> None:  # noqa: ARG002
        """Import what --preprocessing needs, without TensorFlow's remarks about drivers."""
        if not self.preprocessing or answer.debug:
            return
        with quiet_import():
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
            with quiet_stderr():
                # First, so that a mistake in it is reported without the import.
                self.read_preprocessing()
                with contextlib.suppress(ImportError):  # resolving the options reports it
                    import tensorflow_transform.beam  # noqa: F401

    def explain(self, error: Exception) -> Exception | None:
        """Return the error to report for an exception of TensorFlow Transform, or None."""
        from shardmill.transforms.tables.tft.build_graph import analysis_error

        return analysis_error(error)

    def identity_of(self, schema: str, preprocessing: Preprocessing | None) -> dict[str, Any]:
        """Return the options that decide the content of the dataset.

        Args:
            schema: Text of the schema, given or inferred.
            preprocessing: The preprocessing_fn, if there is one.
        """
        options = {**self.identity(), "schema": schema}
        if preprocessing:
            return {**options, "preprocessing": preprocessing.digest}
        return options


def split_by_and_splits(split_by: object, splits: object) -> UsageError:
    """Return the error for two ways to divide the rows into splits."""
    return UsageError(
        f"--split_by={split_by} and --splits={splits} cannot be combined: leave one of them out."
    )


def check_options(config: RowsConfig, kind: str) -> None:
    """Check that no option is given that files of a kind do not have.

    Raises:
        UsageError: One is.
    """
    has_encoding = kind == "parquet" and config.encoding != RowsOptions.encoding
    config.check_kinds([kind], ["encoding"] if has_encoding else [])


def check_named(config: RowsConfig, schema: Sequence[Column], columns: Sequence[str]) -> None:
    """Check that the columns that options name exist.

    Args:
        config: The options.
        schema: The columns of records.
        columns: The columns of the files.

    Raises:
        UsageError: A column does not exist, the label has several values per cell, or a default is
            not a valid cell.
    """
    for column in schema:
        check_default(column)
    for flag in ("key", "group_by", "split_by"):
        name = getattr(config, flag)
        if name and name not in columns:
            raise unknown_column(flag, name, "the input has", columns)
    if config.label:
        have = "the input has" if config.label not in columns else "the schema has"
        check_label(config.label, schema, have)


def check_label(label: str, columns: Sequence[Column], have: str) -> None:
    """Check that the label is a column with one value; ``have`` says whose the columns are."""
    names = [column.name for column in columns]
    if label not in names:
        raise unknown_column("label", label, have, names)
    column = columns[names.index(label)]
    if column.separator or column.several:
        raise UsageError(
            f"--label={label} has several values per cell in the schema: choose a column with one "
            "value per cell."
        )
