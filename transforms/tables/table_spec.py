"""TableSpec: the schema of rows, and the columns that decide their placement."""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

from shardmill.schemas.schema_pbtxt.columns import Column
from shardmill.transforms.sink.placement import PlaceSpec
from shardmill.transforms.tables.label_limit import MAX_LABELS


class PickledOnce:
    """A frozen dataclass that is pickled once, not for each step: it may name many columns."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (type(self), self._pickled)

    @cached_property
    def _pickled(self) -> bytes:
        values = [getattr(self, each.name) for each in fields(self)]  # type: ignore[arg-type]
        return zlib.compress(pickle.dumps(values), 1)


@lru_cache(maxsize=8)
def _load(kind: type[Any], data: bytes) -> Any:
    return kind(*pickle.loads(zlib.decompress(data)))  # noqa: S301 - of this job


@dataclass(frozen=True)
class TableSpec(PickledOnce):
    """The schema of rows, and the columns that decide their placement.

    Attributes:
        columns: The schema.
        place: Splits and seed.
        label: Column whose values are counted as labels, or empty.
        key: Column that identifies rows, or empty: then input and place in it do.
        group_by: Rows with equal texts in this column stay in one split; or empty.
        split_by: Column that names the split, or empty.
        max_labels: Number of distinct labels of a batch from which they are not counted.
    """

    columns: tuple[Column, ...]
    place: PlaceSpec
    label: str = ""
    key: str = ""
    group_by: str = ""
    split_by: str = ""
    max_labels: int = MAX_LABELS

    @property
    def named(self) -> list[str]:
        """Columns that each input must have because an option names them."""
        return [name for name in (self.key, self.group_by, self.split_by) if name]
