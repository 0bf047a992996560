"""Convert one range of a CSV file to a run: read, type, place, encode and write its rows."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from shardmill.schemas.errors import ChangedError
from shardmill.schemas.refs import InputRef, SegmentRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.build import placement
from shardmill.transforms.build.planning import Plan
from shardmill.transforms.build.sidecar import create_sidecar, seal
from shardmill.transforms.columnar.encode import encode_rows, prepare
from shardmill.transforms.rows.csv.cells import Cells
from shardmill.transforms.rows.csv.dialect import Dialect
from shardmill.transforms.rows.csv.row_ranges import RANGE_BYTES, RowRange, read_range
from shardmill.transforms.rows.runs import run_store
from shardmill.transforms.rows.runs.record_values import take_values
from shardmill.transforms.rows.runs.segments import NO_LABEL, Segment, pack_lines, slices
from shardmill.transforms.rows.table import Labels, Table, TableSpec, make_table

_TRANSFORM_ROWS = 1 << 16  # per call of the TensorFlow Transform graph
_SLICE_BYTES = 16 << 20  # of records per call of encode_rows


class CsvFile(NamedTuple):
    """An inspected file.

    Attributes:
        ref: The file; rejected if it cannot be read as rows.
        columns: Names of its columns, in file order.
        text_bytes: Estimated size of its text in bytes.
    """

    ref: InputRef
    columns: tuple[str, ...] = ()
    text_bytes: int = 0


@dataclass(frozen=True)
class RunSpec:
    """How ranges become runs; a small picklable value that every worker receives.

    Attributes:
        table: Schema and placement of rows.
        dialect: Dialect of the files.
        config_id: Identity of all options that decide bytes.
        build: The build folder.
        versions: Versions of all code that decides bytes.
        range_bytes: Bytes of text per run.
    """

    table: TableSpec
    dialect: Dialect
    config_id: str
    build: str
    versions: Mapping[str, str]
    range_bytes: int = RANGE_BYTES

    @property
    def folder(self) -> str:
        """Path of the folder of runs."""
        return join(self.build, run_store.FOLDER)

    def size_of(self, part: RowRange) -> int:
        """Return the approximate bytes of text of a range, or of one piece of it."""
        return part.end - part.start if part.end >= 0 else self.range_bytes

    def dialect_of(self, ref: InputRef) -> Dialect:
        """Return the dialect of a file: TSV files have tabs instead of commas."""
        return self.dialect.for_name(ref.key)


def run_id(
    spec: RunSpec, plan: Plan, ref: InputRef, place: tuple[int, int, int], extra: str
) -> str:
    """Return the identity of a run: a digest of all that decides its bytes, 32 hex digits.

    Args:
        spec: How ranges become runs.
        plan: Number of parts of each split.
        ref: The file.
        place: Start and end of the range, and the number of the piece in it.
        extra: Identity of a further step, such as a TensorFlow Transform graph.
    """
    parts = sorted((*series, number) for series, number in plan.parts.items())
    body = [spec.config_id, f"{ref.digest():032x}", place, spec.range_bytes, parts]
    text = json.dumps([*body, plan.default_parts, extra])
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"shardmill-run3").hexdigest()


def check_unchanged(ref: InputRef) -> None:
    """Check that a file still is the one that was matched.

    Raises:
        RejectedError: The file changed or does not exist any more.
    """
    entry = open_storage(ref.uri).stat(ref.uri)
    if entry is None:
        raise RejectedError("read", "not_found", "the file is gone")
    if (entry.size, entry.version) != (ref.size, ref.version):
        raise RejectedError(
            "read", "changed", "the file changed between listing and reading: run again"
        )


def read_cells(spec: RunSpec, file: CsvFile, part: RowRange) -> Iterator[Cells]:
    """Yield the cells of a range, or of each piece of a file that cannot be split.

    Raises:
        RejectedError: The file cannot be read as rows.
    """
    ref = file.ref
    dialect = spec.dialect_of(ref)
    check_unchanged(ref)
    try:
        for cells in read_range(ref.uri, dialect, file.columns, part, spec.range_bytes):
            check_unchanged(ref)  # before use: callers take one piece of a range that has an end
            yield cells
    except (FileNotFoundError, ChangedError) as error:
        raise RejectedError("read", "changed", "the file changed while it was read") from error


def make_run(
    spec: RunSpec, plan: Plan, file: CsvFile, name: str, cells: Cells, graph: str = ""
) -> run_store.Run:
    """Write the run of some cells; return it, or the run of a worker that was first.

    Args:
        spec: How ranges become runs.
        plan: Number of parts of each split.
        file: The file of the cells.
        name: Id of the run.
        cells: The cells.
        graph: Folder of a TensorFlow Transform graph in the build folder, or empty.
    """
    storage = open_storage(spec.build)
    table = make_table(spec.table, file.ref, cells, plan)
    if graph:
        table = _apply_graph(table, join(spec.build, graph))
    payload = f"{name}-{uuid.uuid4().hex[:12]}.run"  # unique to this attempt
    with storage.open_write(join(spec.folder, payload)) as target:
        writer = run_store.RunWriter(target)
        for split, part, segment in encode_segments(table):
            writer.write(split, part, len(segment.positions), segment.pack())
        if table.rejects:
            lines = [reject.to_json() for reject in table.rejects]
            writer.write("", 0, len(lines), pack_lines(lines))
    reasons: Counter[str] = Counter()
    for reject in table.rejects:
        reasons[reject.error] += reject.inputs
    run = run_store.Run(
        payload, writer.num_bytes, writer.crc, cells.rows, dict(sorted(reasons.items())),
        tuple(writer.places),
    )  # fmt: skip
    return create_sidecar(
        storage, join(spec.folder, f"{name}.json"), seal(asdict(run)), run,
        lambda: run_store.find_run(storage, spec.folder, name), join(spec.folder, payload),
    )  # fmt: skip


def _apply_graph(table: Table, folder: str) -> Table:
    """Return a table of the transformed rows, in final order.

    Args:
        table: The rows.
        folder: Folder of a TensorFlow Transform graph.
    """
    from shardmill.transforms.rows.tft.transformer import transformer_of

    apply = transformer_of(folder).apply
    batches = [
        apply(table.columns, table.order[start : start + _TRANSFORM_ROWS])
        for start in range(0, max(1, len(table.order)), _TRANSFORM_ROWS)
    ]
    columns = [
        first._replace(values=pa.concat_arrays([batch[number].values for batch in batches]))
        for number, first in enumerate(batches[0])
    ]
    return table._replace(columns=columns, order=np.arange(len(table.order)))


def encode_segments(table: Table) -> Iterator[tuple[str, int, Segment]]:
    """Encode the rows of a table; yield (split, part, segment) of each part that has rows."""
    if not len(table.order):
        return
    prepared = prepare(table.columns, table.order)
    values = take_values(table.columns, table.order)
    for split, part, first, after in table.segments():
        lengths = prepared.lengths[first:after]
        frames = [
            memoryview(encode_rows(prepared, first + start, first + stop))
            for start, stop in slices(lengths, _SLICE_BYTES)
        ]
        data = frames[0] if len(frames) == 1 else memoryview(b"".join(frames))
        keys = None if table.keys is None else table.keys[first:after]
        labels, names = _own_labels(table.labels, first, after)
        yield split, part, Segment(
            table.position[first:after], lengths, data, keys, labels, names,
            values.pack(first, after),
        )  # fmt: skip


def _own_labels(
    labels: Labels | None, first: int, after: int
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return the labels of some rows, renumbered, and the texts of only these labels."""
    if labels is None:
        return None, ()
    numbers = labels.numbers[first:after]
    used, own = np.unique(numbers, return_inverse=True)
    names = tuple(labels.names[number] for number in used.tolist() if number != NO_LABEL)
    # NO_LABEL is the largest number and sorts last.
    return np.where(numbers == NO_LABEL, NO_LABEL, own).astype(np.uint32), names


def place_segments(
    spec: RunSpec, plan: Plan, ref: InputRef, place: tuple[int, int], run: run_store.Run
) -> Iterator[placement.Placed]:
    """Yield the segments of a run, each with its part.

    Args:
        spec: How ranges become runs.
        plan: Number of parts of each split.
        ref: The file.
        place: Start of the range, and the number of the piece in it.
        run: The run.
    """
    path = join(spec.folder, run.payload)
    for segment in run.places:
        found = SegmentRef(
            ref.key, ref.uri, *place, path, segment.offset, segment.length, segment.size,
            segment.crc32c, segment.records, segment.split,
        )  # fmt: skip
        if segment.split:
            yield (
                placement.PartKey(segment.split, "", segment.part),
                placement.PlacedRef(b"", found),
            )
        else:
            yield place_rejects(plan, found)


def place_rejects(plan: Plan, ref: InputRef | SegmentRef) -> placement.Placed:
    """Return the part of a rejected input or of a segment of rejects.

    Rejects of one file follow each other in a part.
    """
    number = placement.part_of(
        placement.hash_key(0, ref.key).position, plan.parts_of(placement.REJECTED) or 1
    )
    file = ref.source if isinstance(ref, SegmentRef) else ref.key.rpartition("#")[0] or ref.key
    order = placement.hash_key(0, file).position.to_bytes(8, "big")
    return placement.PartKey(*placement.REJECTED, number), placement.PlacedRef(order, ref)
