"""RowsSpec: a build of rows, its plan by sizes of files; and how rows are placed and sampled.

For ``--limit``, each row has a rank, a hash of its position. The sample is the rows of the smallest
ranks: it depends on keys and seed only, rows are in the split and the order that they have in the
whole table, and a larger sample contains a smaller one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.schemas.dataset.splits import SPLIT_FOLDERS, check_split_name
from shardmill.schemas.errors import InputError, UsageError, format_value
from shardmill.schemas.numbers import plural
from shardmill.schemas.refs import Reject, RejectedError
from shardmill.transforms.match.labels import has_control
from shardmill.transforms.runtime import progress
from shardmill.transforms.sink.census import MAX_FILES, Census, input_warnings, why_unusable
from shardmill.transforms.sink.placement import REJECTED, Series, ShardSpec, count_parts
from shardmill.transforms.sink.plan import Plan, decide_status
from shardmill.transforms.sink.spec import SinkSpec
from shardmill.transforms.tables import byte_arrays
from shardmill.transforms.tables.table_source import (
    MAX_LABELS,
    TOO_MANY_LABELS,
    RejectCollector,
    TableInput,
    TableSource,
    TableSpec,
    TypedBatch,
    TypedColumn,
    Unit,
    decode,
    describe_lost_files,
    to_reject,
)
from shardmill.transforms.tables.tft.preprocessing import Preprocessing

Mask = npt.NDArray[np.bool_]
MAX_SPLITS = 100  # distinct split names in one range
MAX_SPLIT_NAME = 64
Ranks = npt.NDArray[np.uint64]
_EVERY = (1 << 63) - 1
PART_BYTES = 64 << 20  # of uncompressed records; a part is merged in memory
_COMPRESSION_RATIO = 6  # of deflate on rows, with a margin
_REJECT_BYTES = 64 << 20  # of text per part of rejects
_MAX_PARTS = 1 << 16
UNPLACED = Series("*", "")  # files whose rows are in different splits


@dataclass(frozen=True)
class RowsSpec:
    """All options of a build of rows; a small picklable value that every worker receives.

    Attributes:
        sink: Output and options of the build.
        source: The source of the rows.
        versions: Versions of all code that decides bytes.
        growth: Estimated bytes of records per byte of text.
        row_bytes: Estimated bytes of text per row.
        threads: Ranges that a worker processes in parallel; 0 for one per core.
        max_rejected_files: Largest accepted number of files that are rejected as a whole.
        preprocessing: The preprocessing_fn of TensorFlow Transform, if any.
        parts: Number of parts of each split; if empty, it follows from the sizes above.
        labels: Labels in the order of their class ids, if records have ids.
        limit: Number of rows of a random sample; None for all rows.
    """

    sink: SinkSpec
    source: TableSource
    versions: Mapping[str, str]
    growth: float
    row_bytes: float
    threads: int
    max_rejected_files: int = 0
    preprocessing: Preprocessing | None = None
    parts: tuple[tuple[str, int], ...] = ()
    labels: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def table(self) -> TableSpec:
        """Schema and placement of rows."""
        return self.source.table


def count_file(census: Census, file: TableInput) -> None:
    """Add an inspected file to a census with the size of its rows."""
    series = Series(file.ref.split, "") if file.ref.split else UNPLACED
    series = REJECTED if file.ref.error else series
    census.add(file.ref, series, file.num_bytes)
    if len(census.files) <= MAX_FILES:
        census.files[file.ref.key] = f"{file.ref.digest():032x}"


def why_files_lost(census: Census, limit: int) -> str:
    """Return why the matched files are unacceptable if too many are rejected, or an empty text.

    A file without bytes loses no rows and is not counted.
    """
    lost = census.errors - Counter(empty=census.errors["empty"])
    if lost.total() <= limit:
        return ""
    key, message = min(census.examples[error][0] for error in lost)
    return describe_lost_files(lost.total(), limit, key, message) + "."


def plan_rows(census: Census, spec: RowsSpec) -> Plan:
    """Return the plan for the matched files, after checking the output."""
    problem = why_unusable(census, spec.sink.hooks, spec.sink.input or spec.sink.root)
    problem = problem or why_files_lost(census, spec.max_rejected_files)
    if problem:
        return Plan("failed", problem)
    parts, default_parts = _plan_parts(spec, census)
    warnings = (*spec.sink.warnings, *input_warnings(census, spec.sink.hooks))
    plan = Plan(
        "build",
        "",
        parts,
        spec.labels,
        census.input_id,
        default_parts,
        warnings,
        ctime_id=census.ctime_id,
    )
    return decide_status(spec.sink, plan, files=census.file_ids)


def _plan_parts(spec: RowsSpec, census: Census) -> tuple[dict[Series, int], int]:
    """Return the number of parts of each series, and of each split that only rows name."""
    if spec.parts:
        return {Series(name, ""): count for name, count in spec.parts}, 0
    splits = spec.sink.place.splits
    parts_of = partial(count_row_parts, spec.sink.shards, spec.growth, spec.row_bytes)
    sizes = {name: size for name, (_, size) in census.series.items() if name != REJECTED}
    total = sum(sizes.values())
    one_shard = ShardSpec(spec.sink.shards.template, num_shards=1)
    rejected = {REJECTED: count_parts(total, 0, one_shard, _REJECT_BYTES, _MAX_PARTS)}
    if spec.limit is not None and total:
        share = min(Fraction(1), spec.limit * Fraction(spec.row_bytes) / total)
        sizes = {name: int(share * size) for name, size in sizes.items()}
    if spec.table.split_by:
        return rejected, parts_of(sum(sizes.values()))
    unplaced = sizes.pop(UNPLACED, 0)
    for name, share in splits.shares:
        if share:
            sizes[Series(name, "")] = sizes.get(Series(name, ""), 0) + int(share * unplaced)
    return {name: parts_of(size) for name, size in sizes.items()} | rejected, 0


def count_row_parts(shards: ShardSpec, growth: float, row_bytes: float, text_bytes: int) -> int:
    """Return the number of parts of some text.

    Args:
        shards: Number or size of the shards.
        growth: See ``RowsSpec``.
        row_bytes: See ``RowsSpec``.
        text_bytes: Bytes of the text.
    """
    rows = text_bytes / Fraction(row_bytes)
    record_bytes = Fraction(growth) * Fraction(row_bytes)
    return count_parts(
        rows,
        rows * record_bytes / _COMPRESSION_RATIO,
        shards,
        part_refs=PART_BYTES / record_bytes,
        max_parts=_MAX_PARTS * (shards.num_shards or 1),
    )


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


def place_batch(spec: TableSpec, batch: TypedBatch) -> Table:
    """Return the rows of a batch, placed and sorted.

    Args:
        spec: Schema and placement.
        batch: The rows.
    """
    rejects = batch.rows
    hashes = hash_rows(spec, batch)
    splits, split = _assign_splits(spec, batch, hashes.split)
    if spec.place.unlabeled:
        unlabeled = [n for n, name in enumerate(splits) if name in spec.place.unlabeled]
        batch = _without_labels(spec.label, batch, ~np.isin(split, unlabeled))
    labels = _labels(spec, batch.columns, rejects)
    # kept: rows of the batch that become records, in file order. order: sorts these by split and
    # position. final: rows of the batch in that order. Arrays over rows are indexed by kept and
    # order, or by final at once.
    kept = np.flatnonzero(~(rejects.bad | rejects.left_out))
    split, position = split[kept], hashes.position[kept]
    order = np.lexsort((position, split))
    final = kept[order]
    keys = hashes.split[final] if spec.key else None
    if labels is not None:
        labels = labels.take(pa.array(final))
    names = dict(spec.rename)
    return Table(
        [column._replace(name=names.get(column.name, column.name)) for column in batch.columns],
        final,
        split[order],
        position[order],
        keys,
        labels,
        splits,
        [to_reject(batch.ref, reject) for reject in rejects.rejects()],
    )


def _labels(
    spec: TableSpec, columns: Sequence[TypedColumn], rejects: RejectCollector
) -> pa.StringArray | None:
    name = spec.label
    column = next((column for column in columns if column.name == name), None)
    if column is None or column.kind == "float32" or column.has_lists:
        return None
    labels, invalid = _label_texts(column.values, spec.max_labels)
    rejects.add(
        pc.is_in(labels, pa.array(invalid, pa.string())).to_numpy(zero_copy_only=False),
        "label_text",
        name,
        lambda row: f"the label {labels[row].as_py()!r} has a control character",
    )
    return labels


def _label_texts(values: pa.Array, most: int) -> tuple[pa.StringArray, list[str]]:
    """Return the label of each row, and the labels with a control character.

    Args:
        values: The values of the label's column.
        most: Number of distinct labels up to which they are counted.
    """
    encoded = decode(values).dictionary_encode()
    if len(encoded.dictionary) > most:  # probably not classes but ids or amounts
        return pa.repeat(TOO_MANY_LABELS, len(values)), []
    names = _to_texts(encoded.dictionary)
    return pa.array(names, pa.string()).take(encoded.indices), [*filter(has_control, names)]


def _to_texts(values: pa.Array) -> list[str]:
    return list(map(_to_text, values.to_pylist()))


def _to_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def transformed_labels(values: pa.Array) -> pa.StringArray:
    """Return the labels of transformed rows, given one text or integer a row.

    Raises:
        InputError: One has a control character, which labels.txt cannot hold.
    """
    labels, invalid = _label_texts(values, MAX_LABELS)
    for name in invalid:
        raise InputError(
            f"preprocessing_fn returns the label {name!r}, which has a control character: remove "
            "such characters with tf.strings.regex_replace."
        )
    return labels


def _without_labels(label: str, batch: TypedBatch, labeled: Mask) -> TypedBatch:
    """Return a batch without the labels of some rows; reject the others that lack one."""
    columns = [*batch.columns]
    number = [column.name for column in columns].index(label)
    values = decode(columns[number].values)
    missing = values.is_null().to_numpy(zero_copy_only=False)
    message = "the label is missing: name the split in --unlabeled_splits if its rows have none"
    batch.rows.add(labeled & missing, "missing", label, lambda _: message)
    kept = pc.if_else(pa.array(labeled), values, pa.scalar(None, values.type))
    columns[number] = columns[number]._replace(values=kept)
    return batch._replace(columns=columns)


def hash_rows(spec: TableSpec, batch: TypedBatch) -> byte_arrays.Hashes:
    """Return the hashes of all rows of a batch; rows without a key are rejected."""
    if not spec.key:
        return byte_arrays.hash_offsets(spec.place.seed, batch.ref.key, batch.rows.ids)
    keys = batch.texts[spec.key]
    batch.rows.add(_are_empty(keys), "missing", spec.key, lambda _: "the --key is missing")
    return byte_arrays.hash_texts(spec.place.seed, keys)


def _are_empty(texts: pa.BinaryArray) -> Mask:
    empty: Mask = byte_arrays.ByteStrings.of_arrow(texts).sizes == 0
    return empty


def _assign_splits(
    spec: TableSpec, batch: TypedBatch, hashes: npt.NDArray[np.uint64]
) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
    """Return the names of splits, and the index of each row's split, int32[rows].

    Args:
        spec: Schema and placement.
        batch: The rows; rows with an invalid split are rejected.
        hashes: First hash of each row's key; uint64[rows].
    """
    if spec.split_by:
        return _named_splits(batch.texts[spec.split_by], spec.split_by, batch.rows)
    if batch.ref.split or spec.place.splits.mode != "fractions":
        return (batch.ref.split,), np.zeros(len(hashes), np.int32)
    if spec.group_by:
        groups = batch.texts[spec.group_by]
        # A row without a group is placed alone, like an image.
        of_groups = byte_arrays.hash_texts(spec.place.seed, groups).split
        hashes = np.where(_are_empty(groups), hashes, of_groups)
    return spec.place.splits.names, byte_arrays.split_numbers(spec.place.splits, hashes)


def _named_splits(
    cells: pa.BinaryArray, column: str, rejects: RejectCollector
) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
    encoded = cells.dictionary_encode()
    texts = _to_texts(encoded.dictionary)
    of_texts = [SPLIT_FOLDERS.get(text.strip().lower(), text.strip()) for text in texts]
    problems = [_split_problem(name) for name in of_texts]
    valid = {name for name, problem in zip(of_texts, problems, strict=True) if not problem}
    names = tuple(sorted(valid, key=str.encode))
    if len(names) > MAX_SPLITS:  # each split has at least one shard
        listed = ", ".join(map(format_value, names[:3]))
        raise UsageError(
            f"--split_by={column} names more than {plural(MAX_SPLITS, 'split')}, such as "
            f"{listed}: name a column with values such as train, validation and test."
        )
    ids: Mapping[str, int] = {name: number for number, name in enumerate(names)}
    id_of_text = np.array([ids.get(name, -1) for name in of_texts], np.int32)
    rows = encoded.indices.to_numpy()
    numbers: npt.NDArray[np.int32] = id_of_text[rows]
    rejects.add(numbers < 0, "no_split", column, lambda row: str(problems[rows[row]]))
    return names, numbers


def _split_problem(name: str) -> str | None:
    if len(name) > MAX_SPLIT_NAME:
        return f"the split name {format_value(name)} has more than {MAX_SPLIT_NAME} characters"
    return check_split_name(name)


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
    if len(every) <= limit:
        return every
    return np.partition(every, limit - 1)[:limit]


def last_rank(ranks: Ranks) -> int:
    """Return the last of the smallest ranks, or one that no rank exceeds if there are none."""
    if len(ranks):
        return int(ranks.max())
    return _EVERY


def sample_batch(spec: TableSpec, batch: TypedBatch, last: int) -> TypedBatch:
    """Leave out the rows of a batch after the last rank of the sample.

    Args:
        spec: Schema and placement.
        batch: The rows.
        last: The last rank of the sample; see ``last_rank``.
    """
    of_rows, of_rejects = _ranks(spec, batch)
    left_out = batch.rows.leave_out(of_rows > last, of_rejects > last)
    return batch._replace(number=batch.number - left_out)


def _ranks(spec: TableSpec, batch: TypedBatch) -> tuple[Ranks, Ranks]:
    """Return the ranks of the rows, and of rejects without cells, by their ids."""
    positions = hash_rows(spec, batch).position
    ids = np.array([reject.offset for reject in batch.rows.without_cells], np.int64)
    rejected = byte_arrays.hash_offsets(spec.place.seed, batch.ref.key, ids).position
    return byte_arrays.rank(positions), byte_arrays.rank(rejected)
