"""Tables: the rows of one range, typed, placed and put in order. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.dataset.splits import SPLIT_FOLDERS, check_split_name
from shardmill.schemas.errors import UsageError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import Reject
from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.build.placement import PlaceSpec, Series
from shardmill.transforms.build.planning import Plan
from shardmill.transforms.columnar.row_hash import (
    Hashes,
    hash_offsets,
    hash_texts,
    part_numbers,
    split_numbers,
)
from shardmill.transforms.columnar.typed_column import TypedColumn
from shardmill.transforms.match.labels import has_control
from shardmill.transforms.rows.csv.cells import Cells, RowReject
from shardmill.transforms.rows.csv.dialect import shown
from shardmill.transforms.rows.row_rejects import Refusals
from shardmill.transforms.rows.runs.segments import NO_LABEL
from shardmill.transforms.rows.types.typed import (
    Nulls,
    describe,
    reasons_of,
    type_cells,
)

Mask = npt.NDArray[np.bool_]
MAX_LABELS = 1_000
MAX_SPLITS = 100  # that rows may name in one range
MAX_SPLIT_NAME = 64
MANY = "\0"  # stands for more labels than that


@dataclass(frozen=True)
class TableSpec:
    """What rows are, and how they find their places.

    Attributes:
        columns: The schema.
        place: Splits and seed.
        nulls: Which cells are missing.
        label: Column whose values are counted as labels, or empty.
        key: Column that tells rows apart, or empty: then their places in files do.
        group_by: Column whose equal cells stay in one split, or empty.
        split_by: Column that names the split, or empty.
    """

    columns: tuple[Column, ...]
    place: PlaceSpec
    nulls: Nulls = field(default_factory=Nulls)
    label: str = ""
    key: str = ""
    group_by: str = ""
    split_by: str = ""


class Labels(NamedTuple):
    """Labels of rows: a number for each, and the texts that the numbers mean."""

    numbers: npt.NDArray[np.uint32]
    names: tuple[str, ...]


class Table(NamedTuple):
    """The rows of one range in their final order: by split, part and position.

    Attributes:
        columns: Their values, in the order of the file.
        order: Numbers of the rows that fit, in their final order; int64, shape [rows].
        split: Split of each, a number into ``splits``; int32, shape [rows].
        part: Part of each; int64, shape [rows].
        position: Place of each in the global order; uint64, shape [rows].
        keys: Second hash of each key, or None; uint64, shape [rows].
        labels: Label of each, or None.
        splits: Names of splits.
        rejects: Rows that do not fit, in the order of the file.
    """

    columns: list[TypedColumn]
    order: npt.NDArray[np.int64]
    split: npt.NDArray[np.int32]
    part: npt.NDArray[np.int64]
    position: npt.NDArray[np.uint64]
    keys: npt.NDArray[np.uint64] | None
    labels: Labels | None
    splits: tuple[str, ...]
    rejects: list[Reject]

    def segments(self) -> Iterator[tuple[str, int, int, int]]:
        """Yields (split, part, first row, row behind the last) of each part's rows."""
        if not len(self.order):
            return
        new = np.flatnonzero((np.diff(self.split) != 0) | (np.diff(self.part) != 0)) + 1
        bounds = [0, *new.tolist(), len(self.order)]
        for first, after in itertools.pairwise(bounds):
            yield self.splits[self.split[first]], int(self.part[first]), first, after


def make_table(spec: TableSpec, ref: InputRef, cells: Cells, plan: Plan) -> Table:
    """Returns the rows of one range, typed and placed.

    Args:
        spec: What rows are.
        ref: Their file.
        cells: Their cells.
        plan: How many parts there are.
    """
    rows = len(cells.offsets)
    refusals = Refusals(rows)
    columns = [_typed(column, spec.nulls, cells, refusals) for column in spec.columns]
    labels = _labels(spec.label, columns, refusals)
    hashes = _hashes(spec, ref, cells, refusals)
    splits, split = _splits(spec, ref, cells, hashes, refusals)
    kept = np.flatnonzero(~refusals.bad)
    split, position = split[kept], hashes.position[kept]
    part = np.zeros(len(kept), np.int64)
    for number, name in enumerate(splits):
        mine = split == number
        part[mine] = part_numbers(position[mine], plan.parts_of(Series(name, "")))
    order = np.lexsort((position, part, split))
    final = kept[order]
    return Table(
        columns,
        final,
        split[order],
        part[order],
        position[order],
        hashes.check[final] if hashes.check is not None else None,
        None if labels is None else Labels(labels.numbers[final], labels.names),
        splits,
        [to_reject(ref, reject) for reject in refusals.rejects(cells)],
    )


def _typed(column: Column, nulls: Nulls, cells: Cells, refusals: Refusals) -> TypedColumn:
    texts = cells.columns.get(column.name)
    if texts is None:
        texts = _absent(column, nulls, len(cells.offsets))
    typed = type_cells(column, texts, nulls)
    if typed.bad is not None:
        misfits = typed.misfits
        if misfits is None:
            raise AssertionError("rows do not fit, but no text is wrong")
        reasons = reasons_of(texts, misfits)
        refusals.add(typed.bad, reasons, lambda row: describe(column, texts, misfits, row))
    return typed.column


def _absent(column: Column, nulls: Nulls, rows: int) -> pa.DictionaryArray:
    """Returns the cells of a column that a file does not have: all of them missing."""
    known = nulls.texts if column.kind == "bytes" else nulls.numbers
    text = min(known, default=b"")
    return pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int32)), pa.array([text], pa.binary())
    )


def _labels(name: str, columns: Sequence[TypedColumn], refusals: Refusals) -> Labels | None:
    column = next((column for column in columns if column.name == name), None)
    if column is None or column.kind == "float32" or column.indices is None:
        return None
    indices = column.indices
    if len(column.values) > MAX_LABELS:  # nobody's classes: identities, or amounts
        return Labels(np.zeros(len(indices), np.uint32), (MANY,))
    values = column.values.to_pylist()
    names = tuple(
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
        for value in values
    )
    odd = np.array([has_control(name) for name in names] + [False], bool)
    if odd.any():
        refusals.add(
            odd[indices],
            "label_text",
            lambda row: f"{name!r}: the label {names[indices[row]]!r} has a control character",
        )
    numbers = np.where(indices < 0, NO_LABEL, indices).astype(np.uint32)
    return Labels(numbers, names)


class _RowHashes(NamedTuple):
    """What places rows; ``check`` is a second hash of keys, where rows have some."""

    split: npt.NDArray[np.uint64]
    position: npt.NDArray[np.uint64]
    check: npt.NDArray[np.uint64] | None


def _hashes(spec: TableSpec, ref: InputRef, cells: Cells, refusals: Refusals) -> _RowHashes:
    seed = spec.place.seed
    own: Hashes
    if spec.key:
        keys = cells.columns[spec.key]
        refusals.add(_empty(keys), "missing", lambda _: f"{spec.key!r}: the --key is missing")
        own = hash_texts(seed, keys)
    else:
        own = hash_offsets(seed, ref.key, cells.offsets)
    split = own.split
    if spec.group_by:
        groups = cells.columns[spec.group_by]
        # A row without a group goes by itself, as an image does.
        split = np.where(_empty(groups), own.split, hash_texts(seed, groups).split)
    return _RowHashes(split, own.position, own.split if spec.key else None)


def _empty(cells: pa.DictionaryArray) -> Mask:
    sizes = pc.binary_length(cells.dictionary).to_numpy(zero_copy_only=False)
    empty: Mask = (sizes == 0)[cells.indices.to_numpy()]
    return empty


def _splits(
    spec: TableSpec, ref: InputRef, cells: Cells, hashes: _RowHashes, refusals: Refusals
) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
    """Returns names of splits, and the number of each row's."""
    if spec.split_by:
        return _named_splits(cells.columns[spec.split_by], spec.split_by, refusals)
    if spec.place.splits.mode != "fractions":
        return (ref.split,), np.zeros(len(cells.offsets), np.int32)
    return spec.place.splits.names, split_numbers(spec.place.splits, hashes.split)


def _named_splits(
    cells: pa.DictionaryArray, column: str, refusals: Refusals
) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
    texts = [text.decode("utf-8", "backslashreplace") for text in cells.dictionary.to_pylist()]
    found = [SPLIT_FOLDERS.get(text.strip().lower(), text.strip()) for text in texts]
    problems = [_split_problem(name) for name in found]
    names = tuple(
        sorted({name for name, bad in zip(found, problems, strict=True) if not bad}, key=str.encode)
    )
    if len(names) > MAX_SPLITS:
        # Each would be shards of its own: whoever names so many took the wrong column.
        raise UsageError(
            f"--split_by={column} names more than {MAX_SPLITS} splits, such as "
            f"{', '.join(map(shown, names[:3]))}: "
            "name a column that holds train, validation, test and the like."
        )
    ids: Mapping[str, int] = {name: number for number, name in enumerate(names)}
    table = np.array([ids.get(name, -1) for name in found], np.int32)
    rows = cells.indices.to_numpy()
    numbers: npt.NDArray[np.int32] = table[rows] if len(table) else np.zeros(0, np.int32)
    refusals.add(numbers < 0, "no_split", lambda row: f"{column!r}: {problems[rows[row]]}")
    return names, numbers


def _split_problem(name: str) -> str | None:
    if len(name) > MAX_SPLIT_NAME:
        return f"the split name {shown(name)} has more than {MAX_SPLIT_NAME} letters"
    return check_split_name(name)


def to_reject(ref: InputRef, reject: RowReject) -> Reject:
    """Returns a bad row as the reject of a file."""
    key = f"{ref.key}:{reject.line}"
    return Reject(key, ref.uri, "decode", reject.error, reject.message, reject.rows)
