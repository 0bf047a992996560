"""WriteDataset: a PTransform that writes the elements of a PCollection as a dataset."""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import apache_beam as beam
import deflate
import numpy as np
from apache_beam.typehints.native_type_compatibility import convert_to_python_type
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.typehints import AnyTypeConstraint, UnionConstraint

from shardmill.pipelines.build_config import BuildConfig
from shardmill.pipelines.option_file import read_option_file
from shardmill.pipelines.rows_config import check_label, split_by_and_splits
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.errors import UsageError
from shardmill.schemas.option_types import Path, parse_path, unknown_option, value_not_text
from shardmill.schemas.schema_pbtxt.columns import Column, format_schema, parse_schema
from shardmill.schemas.schema_pbtxt.schema_text import Kind
from shardmill.transforms.elements.transform import ElementsHooks, ElementsSpec, WriteElements
from shardmill.transforms.elements.typed_elements import ElementReader, Getter, without_schema
from shardmill.transforms.publish.generation import config_id
from shardmill.transforms.runtime.beam_steps import RaiseIfFailed
from shardmill.transforms.sink.placement import PlaceSpec
from shardmill.transforms.sink.spec import Outcome
from shardmill.transforms.sources.csv.typed_cells import check_default
from shardmill.transforms.tables.column_options import unknown_column
from shardmill.transforms.tables.table_source import TableSpec

ELEMENTS_VERSION = "1"  # of the conversion from elements to bytes
_OPTIONS = (
    "splits",
    "seed",
    "num_shards",
    "shard_bytes",
    "shard_examples",
    "shard_name",
    "compression",
    "max_reject_fraction",
    "update",
    "overwrite",
    "keep",
    "limits",
)
_KINDS: dict[Kind, tuple[type, ...]] = {
    "int64": (int, np.integer, np.bool_),
    "float32": (float, np.floating),
    "bytes": (str, bytes),
}


class WriteDataset(beam.PTransform):
    """Writes elements as a published dataset: ``examples | WriteDataset("ds", key="id")``.

    An element is a ``tf.train.Example``, its bytes, a dict, a NamedTuple or a ``beam.Row``. Gives
    one ``Outcome``; the pipeline fails if nothing can be published. Placement depends on the keys,
    and bytes on the elements: not on bundles, their order, the runner or retries.

    Args:
        output: Folder of the dataset, on any storage.
        key: Name of the feature or field that identifies an element, or a function of the element
            that returns a text, bytes or an integer.
        schema: A schema.pbtxt: its text, or its path. By default that of the type of the elements,
            if it is a NamedTuple or a row; or that of all elements, if they are examples.
        split: Name of the field with the name of the split, or a function of the element; by
            default ``splits`` divides the elements.
        label: Name of the feature whose values are counted.
        duplicates: ``error``: equal keys fail the build; ``drop``: of equal elements one is kept,
            and other elements with its key are rejects.
        options: ``splits``, ``seed``, ``num_shards``, ``shard_bytes``, ``shard_examples``,
            ``shard_name``, ``compression``, ``max_reject_fraction``, ``update``, ``overwrite``,
            ``keep`` and ``limits``, as of ``shardmill rows``.

    Raises:
        UsageError: An option breaks a rule.
    """

    @check_arguments()
    def __init__(
        self,
        output: Path,
        *,
        key: Getter,
        schema: Path = "",
        split: Getter = "",
        label: str = "",
        duplicates: Literal["error", "drop"] = "error",
        **options: Any,
    ) -> None:
        super().__init__()
        for name in options.keys() - {*_OPTIONS}:
            hint = f"it has {', '.join(_OPTIONS)}."
            raise unknown_option(command="WriteDataset", name=name, hint=hint)
        if duplicates not in ("error", "drop"):
            raise UsageError(f"duplicates={duplicates!r}: must be 'error' or 'drop'.")
        for name, value in (("key", key), ("split", split), ("label", label)):
            if not (isinstance(value, str) or (callable(value) and name != "label")):
                kind = type(value).__name__
                raise value_not_text(flag=name, value=value, kind=kind)
        self._config = config = BuildConfig((), output, **options)
        if split and config.splits is not None:
            raise split_by_and_splits(split_by=split, splits=config.splits)
        if config.shares.mode != "fractions" or config.shares.named:
            raise UsageError(
                f"splits={config.splits} does not work for elements, which have no folders: use "
                "shares such as train:0.9,validation:0.1, or name a field with split=."
            )
        self._key, self._split, self._label = key, split, label
        self._duplicates = duplicates
        self._columns = _read_schema(schema) if schema else ()

    def expand(self, pcoll: beam.PCollection[Any]) -> beam.PCollection[Outcome]:
        """Wire the build.

        Raises:
            UsageError: There is no schema, or a name is not in it.
        """
        if not pcoll.is_bounded:
            raise UsageError(
                "The collection is unbounded: a dataset is finite; give a bounded one."
            )
        columns = self._columns
        if not columns and not _may_be_examples(pcoll.element_type):
            columns = tuple(columns_of(pcoll.element_type))
        fields = [column.name for column in columns]
        for flag, name in (("key", self._key), ("split", self._split)):
            if fields and not self._columns and isinstance(name, str) and name not in ("", *fields):
                raise unknown_column(flag, name, "the elements have", fields)
        spec = self._spec(columns, type(pcoll.pipeline.runner).__name__)
        return pcoll | "WriteElements" >> WriteElements(spec) | RaiseIfFailed()

    def _spec(self, columns: tuple[Column, ...], runner: str) -> ElementsSpec:
        """Return what to write, where, and how."""
        config, label, split = self._config, self._label, self._split
        for column in columns:
            check_default(column)
        if label and columns:
            check_label(label, columns, "the schema has")
        columns = tuple(replace(e, required=e.required or e.name == label) for e in columns)
        splits = Splits("directory") if split else config.shares
        place = PlaceSpec(splits, config.seed)
        names = {"key": self._key, "split": split}
        options = config.identity() | {
            name: "(a function)" if callable(value) else value for name, value in names.items()
        }
        options |= {"label": label, "duplicates": self._duplicates}
        versions = {"elements": ELEMENTS_VERSION, "deflate": deflate.__version__}
        schema = format_schema(columns) if columns else ""  # else the elements decide it
        identity = config_id("elements", versions, options | {"schema": schema})
        unique = self._duplicates == "error"
        hooks = ElementsHooks(label, label=label, unique=unique, untyped=not columns)
        sink = config.sink_spec(identity, "", config=options, runner=runner, hooks=hooks)
        key_name, split_name = (  # of a function one that no feature has
            f"{name}()" if callable(value) or not value else value for name, value in names.items()
        )
        table = TableSpec(columns, place, label, key_name, split_by=split_name if split else "")
        reader = ElementReader(table, self._key, split)
        return ElementsSpec(replace(sink, place=place), reader, versions, unique)


def _read_schema(schema: Path) -> tuple[Column, ...]:
    """Return the columns of a schema.pbtxt, given as text or as a path."""
    text = parse_path("schema", schema)
    if "{" in text:
        return parse_schema(text, "the schema")
    schema_text = read_option_file("schema", text, "a schema.pbtxt in text form")
    return parse_schema(schema_text, f"schema={text}")


def _may_be_examples(element_type: Any) -> bool:
    """Return whether elements may be ``tf.train.Example``s or bytes, whose features have types."""
    if isinstance(element_type, UnionConstraint):
        return all(map(_may_be_examples, element_type.union_types))
    untyped = element_type is bytes or isinstance(element_type, AnyTypeConstraint)
    return untyped or element_type is Any or hasattr(element_type, "SerializeToString")


def columns_of(element_type: Any) -> Iterator[Column]:
    """Yield the columns of a type of elements.

    Args:
        element_type: A NamedTuple or the type of rows.

    Raises:
        UsageError: It is another type, or a field is not a number, a text or a list of them.
    """
    is_row_type = isinstance(element_type, RowTypeConstraint)
    row = element_type if is_row_type else RowTypeConstraint.from_user_type(element_type)
    if row is None:
        raise without_schema(element_type)
    hints = get_type_hints(row.user_type)  # else annotations may be texts
    for name, hint in row._fields:
        yield _column_of(name, convert_to_python_type(hints.get(name, hint)))


def _column_of(name: str, hint: Any) -> Column:
    inner, several, optional = hint, False, False
    if get_origin(hint) in (Union, types.UnionType):
        others = {*get_args(hint)} - {type(None)}
        optional = len(others) == 1 < len(get_args(hint))
        inner = others.pop() if optional else hint
    if get_origin(inner) in (list, tuple, collections.abc.Sequence):
        kinds = {*get_args(inner)} - {...}
        inner, several = (kinds.pop(), True) if len(kinds) == 1 else (hint, False)
    for kind, classes in _KINDS.items():
        if isinstance(inner, type) and issubclass(inner, classes):
            return Column(name, kind, required=not (optional or several), several=several)
    raise UsageError(
        f"The field {name!r} has the type {hint}: must be int, float, bool, str or bytes, a list "
        "of one of these, or Optional; or give schema=."
    )
