"""Tables with types as Parquet and JSON Lines; the records that pyarrow says they should give."""

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


def expected(table: pa.Table) -> Counter:
    """Return the records of a table, which pyarrow and Python convert value by value."""
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    columns = {name: table[name] for name in table.column_names}
    values = {name: _numbers(column).to_pylist() for name, column in columns.items()}
    rows = (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))
    return Counter(map(frozen, rows))


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as integers in their unit."""
    kind = column.type
    if pa.types.is_temporal(kind):
        return column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return column


def frozen(row: dict[str, Any]) -> frozenset:
    """Return a row as a hashable record: a tuple of values for each feature that it has."""
    values = {name: _values(value) for name, value in row.items()}
    return frozenset((name, value) for name, value in values.items() if value)


def _values(value: Any) -> tuple:
    listed = value if isinstance(value, list | tuple | np.ndarray) else [value]
    return tuple(_plain(each) for each in listed if not _is_missing(each))


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _plain(value: Any) -> Any:
    if isinstance(value, float | Decimal) and not (
        isinstance(value, Decimal)
        and value == value.to_integral_value()
        and value.as_tuple()[2] >= 0
    ):
        with np.errstate(over="ignore"):
            return float(np.float32(float(value)))
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else int(value)


def counted(examples: list[dict]) -> Counter:
    """Return the records of a dataset, as ``expected`` does."""
    return Counter(map(frozen, examples))


def write_lines(path: Path, rows: list[dict]) -> Path:
    """Write rows as JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
