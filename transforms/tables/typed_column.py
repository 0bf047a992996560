"""TypedColumn: the values of one column of a table or array."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.schemas.schema_pbtxt.schema_text import Kind

ARROW_TYPES: dict[Kind, pa.DataType] = {
    "int64": pa.int64(),
    "float32": pa.float32(),
    "bytes": pa.binary(),
}


_MANIFEST_TYPES = {"int64": "int64", "float32": "float", "bytes": "bytes"}


def list_features(features: Iterable[tuple[str, Kind]]) -> list[dict[str, Any]]:
    """Return the manifest's list of features with these names and kinds, sorted by name."""
    ordered = sorted(features, key=lambda feature: feature[0].encode())
    return [{"name": name, "type": _MANIFEST_TYPES[kind]} for name, kind in ordered]


class TypedColumn(NamedTuple):
    """The values of one column.

    Attributes:
        name: Feature name.
        kind: Value type of the feature.
        values: int64, float32 or binary, or lists of them (0 to n values per row). May contain
            duplicates, and values that no row refers to.
        indices: int32[rows], indices into ``values``, or -1 where the feature is absent. If None,
            ``values`` has one entry per row.
    """

    name: str
    kind: Kind
    values: pa.Array
    indices: npt.NDArray[np.int32] | None

    def take(self, order: npt.NDArray[np.int64]) -> pa.Array:
        """Return the values of rows; null where the feature is absent.

        Args:
            order: Numbers of the rows; shape [n].
        """
        if self.indices is None:
            return self.values.take(pa.array(order))
        indices = np.take(self.indices, order)
        return self.values.take(pa.array(indices, mask=indices < 0))


def has_lists(values: pa.Array) -> bool:
    """Return whether the values of a column are lists."""
    return bool(pa.types.is_list(values.type) or pa.types.is_large_list(values.type))
