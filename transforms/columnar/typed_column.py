"""TypedColumn: the values of one column of a table or array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shardmill.schemas.schema_pbtxt.schema_text import Kind


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
