"""Find which rows are the random sample that ``--limit`` asks for.

Each row has a rank, a hash of its position. The sample is the rows of the smallest ranks: it
depends on keys and seed only, rows are in the split and the order that they have in the whole
table, and a larger sample contains a smaller one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.schemas.rejects import RejectedError
from shardmill.transforms.runtime import progress
from shardmill.transforms.tables import row_hash
from shardmill.transforms.tables.planning import RowsSpec
from shardmill.transforms.tables.table import hash_rows
from shardmill.transforms.tables.table_source import TableSpec, TypedBatch, Unit

Ranks = npt.NDArray[np.uint64]
_EVERY = (1 << 63) - 1


def rank_rows(values: tuple[Any, ...], spec: RowsSpec) -> Iterator[Ranks]:
    """Yield the smallest ranks of a unit, rejected rows included."""
    unit = Unit(*values)
    try:
        for batch in spec.source.read(unit):
            progress.current().add(unit.num_bytes)
            yield smallest(_ranks(spec.table, batch), spec.limit or 0)
    except RejectedError:  # WriteRuns reports the same error
        return


def smallest(ranks: Iterable[Ranks], limit: int) -> Ranks:
    """Return the smallest of all ranks, up to a number of them; memory is 8 bytes for each."""
    every = np.concatenate([np.zeros(0, np.uint64), *ranks])
    return every if len(every) <= limit else np.partition(every, limit - 1)[:limit]


def last_rank(ranks: Ranks) -> int:
    """Return the last of the smallest ranks, or one that no rank exceeds if there are none."""
    return int(ranks.max()) if len(ranks) else _EVERY


def sample_batch(spec: TableSpec, batch: TypedBatch, last: int) -> TypedBatch:
    """Return a batch of which the rows after the last rank of the sample are left out.

    Args:
        spec: Schema and placement.
        batch: The rows.
        last: The last rank of the sample; see ``last_rank``.
    """
    of_rows, of_rejects = _ranks(spec, batch)
    left_out = batch.rows.leave_out(of_rows > last, of_rejects > last)
    return batch._replace(number=batch.number - left_out)


def _ranks(spec: TableSpec, batch: TypedBatch) -> tuple[Ranks, Ranks]:
    """Return the ranks of the rows, and of those that are rejected without cells, by their ids."""
    positions = hash_rows(spec, batch).position
    ids = np.array([reject.offset for reject in batch.rows.without_cells], np.int64)
    rejected = row_hash.hash_offsets(spec.place.seed, batch.ref.key, ids).position
    return row_hash.rank(positions), row_hash.rank(rejected)
