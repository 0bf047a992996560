"""The exact sums of rows, segment by segment, as they go from runs to parts.

A run has a segment for each part, so there may be many more segments than runs or parts: their
sums are made, stored and added up by NumPy, a column at a time.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.schema_pbtxt.schema_text import Kind as ColumnKind
from shardmill.schemas.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES
from shardmill.transforms.columnar.typed_column import TypedColumn
from shardmill.transforms.statistics.exact import (
    Floats,
    Ints,
    Kind,
    cut_sums,
    exact_columns,
    in_units,
)
from shardmill.transforms.statistics.sums import Summary, Sums, merged, sums_of_array

_KINDS: dict[ColumnKind, Kind] = {"int64": "integer", "float32": "float32", "bytes": "bytes"}
_DTYPES: dict[Kind, type[Any]] = {"integer": np.int64, "float32": np.float32}
_HEAD = struct.Struct("<I")  # bytes of the description
# Whole numbers that each column has in each segment.
_EXAMPLES, _VALUES, _NAN, _INFINITE, _LOW, _HIGH = range(6)
_WHOLE = 6
_ROWS = 4_096  # records that are parsed at a time


class _Flat(NamedTuple):
    """The values of a column, row after row.

    Attributes:
        values: Without missing ones; None for bytes.
        ends: Values up to the end of each row; None where each has one; int64, shape [rows].
        present: Rows with a value, up to each; None where all have; int64, shape [rows].
    """

    values: npt.NDArray[Any] | None
    ends: Ints | None = None
    present: Ints | None = None


class TableSums(NamedTuple):
    """The sums of all segments of a table.

    Attributes:
        about: Names and kinds of columns, and the layers of their sums, as JSON.
        whole: Shape [segments, columns, 6]; bounds of floats are the bits of doubles.
        layers: The layers of all columns; shape [segments, layers].
    """

    about: bytes
    whole: Ints
    layers: Floats

    def packed(self, number: int) -> bytes:
        """Returns the sums of one segment."""
        head = _HEAD.pack(len(self.about)) + self.about
        return b"".join([head, self.whole[number].tobytes(), self.layers[number].tobytes()])


def sum_table(columns: Sequence[TypedColumn], order: Ints, starts: Ints) -> TableSums:
    """Returns the sums of rows.

    Args:
        columns: The columns.
        order: Numbers of the rows in the order of segments; shape [rows], at least one.
        starts: First row of each segment, as places in the order; ascending, none is empty.
    """
    whole = np.zeros((len(starts), len(columns), _WHOLE), np.int64)
    about, layers = [], []
    for number, column in enumerate(columns):
        kind = _KINDS[column.kind]
        found = _sum_column(kind, _flat(column, order), starts, len(order), whole[:, number])
        about.append((column.name, kind, *map(len, found)))
        layers += [layer for power in found for layer in power]
    text = json.dumps(about, ensure_ascii=False).encode()
    stacked = np.stack(layers, axis=1) if layers else np.zeros((len(starts), 0))
    return TableSums(text, whole, stacked)


def _sum_column(
    kind: Kind, flat: _Flat, starts: Ints, rows: int, whole: Ints
) -> tuple[list[Floats], list[Floats]]:
    """Fills in the whole numbers of a column and returns the layers of sums and squares."""
    after = np.append(starts[1:], rows) - 1
    sizes = np.diff(starts, append=rows)
    whole[:, _EXAMPLES] = sizes if flat.present is None else _steps(flat.present[after])
    counts = sizes if flat.ends is None else _steps(flat.ends[after])
    whole[:, _VALUES] = counts
    if flat.values is None:
        return [], []
    sums = cut_sums(kind, flat.values, np.cumsum(counts) - counts)
    bounds = np.int64 if kind == "integer" else np.float64
    whole[:, _NAN], whole[:, _INFINITE] = sums.nan, sums.infinite
    whole[:, _LOW] = sums.low.astype(bounds).view(np.int64)
    whole[:, _HIGH] = sums.high.astype(bounds).view(np.int64)
    # Whole numbers of 64 bits: their shifts stay far from the limits of a double.
    return (
        [np.ldexp(layer, shift) for layer, shift in sums.total],
        [np.ldexp(layer, shift) for layer, shift in sums.squares],
    )


def _steps(ends: Ints) -> Ints:
    return np.diff(ends, prepend=0)


def _flat(column: TypedColumn, order: Ints) -> _Flat:
    values = column.values
    rows: npt.NDArray[Any] = order
    present: npt.NDArray[np.bool_] | None = None
    if column.indices is not None:
        rows = np.take(column.indices, order)
        present = rows >= 0
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        taken = values.take(pa.array(rows, mask=None if present is None else ~present))
        lengths = pc.fill_null(pc.list_value_length(taken), 0).to_numpy(zero_copy_only=False)
        numbers = None if column.kind == "bytes" else taken.flatten().to_numpy()
        return _Flat(numbers, np.cumsum(lengths, dtype=np.int64), _counted(lengths > 0))
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        present = valid[rows] if present is None else present & valid[rows]
        values = values.fill_null(b"" if column.kind == "bytes" else 0)
    ends: Ints | None = None
    if present is not None and not present.all():
        rows, ends = rows[present], _counted(present)
    numbers = None if column.kind == "bytes" else np.take(values.to_numpy(), rows)
    return _Flat(numbers, ends, ends)


def _counted(flags: npt.NDArray[np.bool_]) -> Ints:
    return np.cumsum(flags, dtype=np.int64)


def unpack_sums(packed: Iterable[bytes]) -> dict[str, Sums]:
    """Returns the sums of segments, added up.

    Args:
        packed: As ``TableSums.packed`` gives them, of the same columns.
    """
    groups: dict[bytes, list[bytes]] = {}
    for each in packed:
        (size,) = _HEAD.unpack_from(each)
        about = bytes(each[_HEAD.size : _HEAD.size + size])
        groups.setdefault(about, []).append(bytes(each[_HEAD.size + size :]))
    summaries = [Summary(_unpack_group(about, group)) for about, group in groups.items()]
    return dict(merged(summaries).features)


def _unpack_group(about: bytes, group: Sequence[bytes]) -> dict[str, Sums]:
    columns = json.loads(about)
    words = np.frombuffer(b"".join(group), np.int64).reshape(len(group), -1)
    split = _WHOLE * len(columns)
    whole = words[:, :split].reshape(len(group), len(columns), _WHOLE)
    numbers = whole[:, :, :_LOW].sum(axis=0).tolist()
    finite = whole[:, :, _VALUES] > whole[:, :, _NAN] + whole[:, :, _INFINITE]
    bounds = {
        "integer": _bounds_of(whole, finite, np.iinfo(np.int64)),
        "float32": _bounds_of(whole.view(np.float64), finite, np.finfo(np.float64)),
    }
    layers = exact_columns(words[:, split:].view(np.float64)).T.tolist()
    features = {}
    at = 0
    for number, (name, kind, *depths) in enumerate(columns):
        exact = []
        for power, depth in enumerate(depths, 1):
            floats = itertools.chain.from_iterable(layers[at : at + depth])
            exact.append(in_units(floats, kind, power))
            at += depth
        known = kind in bounds and finite[:, number].any()
        low, high = bounds[kind][number] if known else (None, None)
        some, values, nan, infinite = numbers[number]
        total, squares = exact
        features[name] = Sums(kind, some, values, nan, infinite, low, high, total, squares)
    return features


def _bounds_of(whole: npt.NDArray[Any], finite: npt.NDArray[np.bool_], limits: Any) -> list[Any]:
    """Returns the least and greatest value of each column, of segments that have finite ones."""
    with np.errstate(invalid="ignore"):  # integers, read as floats, which nobody looks at
        low = np.where(finite, whole[:, :, _LOW], limits.max).min(axis=0)
        high = np.where(finite, whole[:, :, _HIGH], limits.min).max(axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def sums_of_frames(
    frames: pa.LargeBinaryArray, rows: Sequence[int], kinds: Mapping[str, Kind]
) -> dict[str, Sums]:
    """Returns the sums of some records, which are parsed for it: slow, for a few of them.

    Args:
        frames: Records in their frames.
        rows: Numbers of frames.
        kinds: Of the features, by name.
    """
    summaries = [Summary({name: Sums(kind) for name, kind in kinds.items()})]
    for first in range(0, len(rows), _ROWS):
        found: dict[str, list[Any]] = {name: [] for name in kinds}
        examples = dict.fromkeys(kinds, 0)
        for row in rows[first : first + _ROWS]:
            payload = frames[row].as_py()[HEADER_BYTES:-FOOTER_BYTES]
            for name, feature in parse_example(payload).items():
                found[name] += feature.values
                examples[name] += bool(feature.values)
        summaries.append(
            Summary({n: _sums_of_list(k, found[n], examples[n]) for n, k in kinds.items()})
        )
    return dict(merged(summaries).features)


def _sums_of_list(kind: Kind, values: Sequence[Any], examples: int) -> Sums:
    if kind == "bytes":
        return Sums(kind, examples, len(values))
    return sums_of_array(np.array(values, _DTYPES[kind]), examples)


def without(
    sums: Mapping[str, Sums], frames: pa.LargeBinaryArray, dropped: Sequence[int],
    differing: Sequence[int], kept: Sequence[int],
) -> dict[str, Sums]:  # fmt: skip
    """Returns the sums of a part's records without those that were left out.

    Args:
        sums: Of all records.
        frames: All records in their frames.
        dropped: Numbers of those that were left out.
        differing: Those among them that are not the same as one that stays.
        kept: Numbers of those that stay.
    """
    kinds = {name: each.kind for name, each in sums.items()}
    odd = sums_of_frames(frames, differing, kinds)
    if any(_bounds(each, odd[name]) for name, each in sums.items()):
        return sums_of_frames(frames, kept, kinds)
    gone = sums_of_frames(frames, dropped, kinds)
    return {name: each.minus(gone[name]) for name, each in sums.items()}


def _bounds(all_of_them: Sums, some: Sums) -> bool:
    """Tells whether the least or greatest of all values may be among some of them."""
    return some.finite > 0 and (some.low == all_of_them.low or some.high == all_of_them.high)
