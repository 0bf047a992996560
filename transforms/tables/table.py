"""Convert the rows of a range to typed columns and sort them by split and position."""

from __future__ import annotations

import itertools
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
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
from shardmill.transforms.match.labels import has_control
from shardmill.transforms.sink.placement import PlaceSpec
from shardmill.transforms.sources.csv import typed_cells
from shardmill.transforms.sources.csv.cells import Cells, RowReject
from shardmill.transforms.sources.csv.dialect import shown
from shardmill.transforms.tables import row_hash
from shardmill.transforms.tables.label_limit import MAX_LABELS, TOO_MANY_LABELS
from shardmill.transforms.tables.row_rejects import RejectCollector
from shardmill.transforms.tables.typed_column import TypedColumn

Mask = npt.NDArray[np.bool_]
MAX_SPLITS = 100  # distinct split names in one range
MAX_SPLIT_NAME = 64


@dataclass(frozen=True)
class TableSpec:
    """The schema of rows, and the columns that decide their placement.

    Attributes:
        columns: The schema.
        place: Splits and seed.
        nulls: Texts of missing cells.
        label: Column whose values are counted as labels, or empty.
        key: Column that identifies rows, or empty: then file and offset do.
        group_by: Rows with equal cells in this column stay in one split; or empty.
        split_by: Column that names the split, or empty.
        base: Inferred schema: the columns of most files.
        exact: Inferred schema: float32 columns that must not round an integer.
    """

    columns: tuple[Column, ...]
    place: PlaceSpec
    nulls: typed_cells.Nulls = field(default_factory=typed_cells.Nulls)
    label: str = ""
    key: str = ""
    group_by: str = ""
    split_by: str = ""
    base: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Callable[[bytes], TableSpec], tuple[bytes]]:
        """Pickle the columns once, not for each step of a pipeline: there may be many."""
        return _load_spec, (self._pickled,)

    @cached_property
    def _pickled(self) -> bytes:
        values = [getattr(self, each.name) for each in fields(self)]
        return zlib.compress(pickle.dumps(values), 1)

    @property
    def named(self) -> list[str]:
        """Columns that each file must have because an option names them."""
        return [name for name in (self.key, self.group_by, self.split_by) if name]


@lru_cache(maxsize=4)
def _load_spec(data: bytes) -> TableSpec:
    return TableSpec(*pickle.loads(zlib.decompress(data)))  # noqa: S301 - of this job


class Table(NamedTuple):
    """The rows of a range, ordered by split and position.

    Attributes:
        columns: Values of all rows, in file order.
        order: int64[rows], indices of the valid rows in final order; the arrays below follow it.
        split: int32[rows], index into ``splits``.
        position: uint64[rows], position in the global order.
        keys: uint64[rows], second hash of the keys; None without ``TableSpec.key``.
        labels: Labels of the rows as strings, null where there is none; or None.
        splits: Names of splits.
        rejects: Rejected rows, in file order.
    """

    columns: list[TypedColumn]
    order: npt.NDArray[np.int64]
    split: npt.NDArray[np.int32]
    position: npt.NDArray[np.uint64]
    keys: npt.NDArray[np.uint64] | None
    labels: pa.StringArray | None
    splits: tuple[str, ...]
    rejects: list[Reject]

    def split_bounds(self) -> Iterator[tuple[str, int, int]]:
        """Yield (split, start, stop) of each split with rows; start and stop index ``order``."""
        if not len(self.order):
            return
        new = np.flatnonzero(np.diff(self.split)) + 1
        for first, after in itertools.pairwise([0, *new.tolist(), len(self.order)]):
            yield self.splits[self.split[first]], first, after


def make_table(spec: TableSpec, ref: InputRef, cells: Cells) -> Table:
    """Return the rows of a range, typed, placed and sorted.

    Args:
        spec: Schema and placement.
        ref: The file.
        cells: Cells of the range.
    """
    rejects = RejectCollector(len(cells.offsets))
    exact = {*spec.exact}
    texts = [_texts_of(column, spec, cells) for column in spec.columns]
    columns = [
        _typed_column(column, each, typed, rejects, exact=column.name in exact)
        for column, each, typed in zip(
            spec.columns,
            texts,
            typed_cells.type_columns(spec.columns, texts, spec.nulls),
            strict=True,
        )
    ]
    labels = _labels(spec.label, columns, rejects)
    hashes = _hash_rows(spec, ref, cells, rejects)
    splits, split = _assign_splits(spec, ref, cells, hashes.split, rejects)
    kept = np.flatnonzero(~rejects.bad)
    split, position = split[kept], hashes.position[kept]
    order = np.lexsort((position, split))
    final = kept[order]
    return Table(
        columns,
        final,
        split[order],
        position[order],
        hashes.split[final] if spec.key else None,
        None if labels is None else labels.take(pa.array(final)),
        splits,
        [to_reject(ref, reject) for reject in rejects.rejects(cells)],
    )


def _texts_of(column: Column, spec: TableSpec, cells: Cells) -> pa.DictionaryArray:
    """Return the cells of a column; all of them are missing if the file lacks it."""
    found = cells.columns.get(column.name)
    if found is not None:
        return found
    texts = spec.nulls.texts if column.kind == "bytes" else spec.nulls.numbers
    return pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(cells.offsets), np.int32)),
        pa.array([min(texts, default=b"")], pa.binary()),
    )


def _typed_column(
    column: Column, texts: pa.DictionaryArray, typed: typed_cells.TypedCells,
    rejects: RejectCollector, *, exact: bool,
) -> TypedColumn:  # fmt: skip
    """Return the values of a column; reject the rows that do not fit."""
    misfits = typed.misfits
    if misfits is not None:
        reasons = typed_cells.reject_reasons(texts, misfits)
        rejects.add(
            reasons != "",
            reasons,
            column.name,
            lambda row: typed_cells.describe_misfit(column, texts, misfits, row),
        )
    if exact:
        rejects.add(
            typed_cells.find_rounded(typed.column, texts),
            "range",
            column.name,
            lambda row: (
                f"{shown(texts[row].as_py())} is rounded by float32: make it BYTES in the "
                "schema, or FLOAT there if it may be rounded"
            ),
        )
    return typed.column


def _labels(
    name: str, columns: Sequence[TypedColumn], rejects: RejectCollector
) -> pa.StringArray | None:
    column = next((column for column in columns if column.name == name), None)
    if column is None or column.kind == "float32" or column.indices is None:
        return None
    indices = column.indices
    if len(column.values) > MAX_LABELS:  # probably not classes but ids or amounts
        return pa.repeat(TOO_MANY_LABELS, len(indices))
    names = [
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
        for value in column.values.to_pylist()
    ]
    invalid = np.array([has_control(name) for name in names] + [False], bool)
    if invalid.any():
        rejects.add(
            invalid[indices],
            "label_text",
            name,
            lambda row: f"the label {names[indices[row]]!r} has a control character",
        )
    return pa.array(names, pa.string()).take(pa.array(indices, mask=indices < 0))


def _hash_rows(
    spec: TableSpec, ref: InputRef, cells: Cells, rejects: RejectCollector
) -> row_hash.Hashes:
    if not spec.key:
        return row_hash.hash_offsets(spec.place.seed, ref.key, cells.offsets)
    keys = cells.columns[spec.key]
    rejects.add(_is_empty(keys), "missing", spec.key, lambda _: "the --key is missing")
    return row_hash.hash_texts(spec.place.seed, keys)


def _is_empty(cells: pa.DictionaryArray) -> Mask:
    sizes = pc.binary_length(cells.dictionary).to_numpy(zero_copy_only=False)
    empty: Mask = (sizes == 0)[cells.indices.to_numpy()]
    return empty


def _assign_splits(
    spec: TableSpec, ref: InputRef, cells: Cells, hashes: npt.NDArray[np.uint64],
    rejects: RejectCollector,
) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:  # fmt: skip
    """Return the names of splits, and the index of each row's split, int32[rows].

    Args:
        spec: Schema and placement.
        ref: The file.
        cells: Cells of the range.
        hashes: First hash of each row's key; uint64[rows].
        rejects: Collects rows whose split is not valid.
    """
    if spec.split_by:
        return _named_splits(cells.columns[spec.split_by], spec.split_by, rejects)
    if spec.place.splits.mode != "fractions":
        return (ref.split,), np.zeros(len(cells.offsets), np.int32)
    if spec.group_by:
        groups = cells.columns[spec.group_by]
        # A row without a group is placed alone, like an image.
        of_groups = row_hash.hash_texts(spec.place.seed, groups).split
        hashes = np.where(_is_empty(groups), hashes, of_groups)
    return spec.place.splits.names, row_hash.split_numbers(spec.place.splits, hashes)


def _named_splits(
    cells: pa.DictionaryArray, column: str, rejects: RejectCollector
) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
    texts = [text.decode("utf-8", "backslashreplace") for text in cells.dictionary.to_pylist()]
    of_texts = [SPLIT_FOLDERS.get(text.strip().lower(), text.strip()) for text in texts]
    problems = [_split_problem(name) for name in of_texts]
    valid = {name for name, problem in zip(of_texts, problems, strict=True) if not problem}
    names = tuple(sorted(valid, key=str.encode))
    if len(names) > MAX_SPLITS:  # each split has at least one shard
        raise UsageError(
            f"--split_by={column} names more than {MAX_SPLITS} splits, such as "
            f"{', '.join(map(shown, names[:3]))}: "
            "name a column with values such as train, validation and test."
        )
    ids: Mapping[str, int] = {name: number for number, name in enumerate(names)}
    id_of_text = np.array([ids.get(name, -1) for name in of_texts], np.int32)
    rows = cells.indices.to_numpy()
    numbers: npt.NDArray[np.int32] = id_of_text[rows] if texts else np.zeros(0, np.int32)
    rejects.add(numbers < 0, "no_split", column, lambda row: str(problems[rows[row]]))
    return names, numbers


def _split_problem(name: str) -> str | None:
    if len(name) > MAX_SPLIT_NAME:
        return f"the split name {shown(name)} has more than {MAX_SPLIT_NAME} characters"
    return check_split_name(name)


def to_reject(ref: InputRef, reject: RowReject) -> Reject:
    """Return the reject of a row of a file."""
    # The rest of a compressed file is lost, not one row.
    return Reject(
        f"{ref.key}:{reject.line}",
        ref.uri,
        "read" if reject.error == "compressed" else "decode",
        reject.error,
        reject.message,
        reject.rows,
        reject.line,
        reject.column or None,
    )
