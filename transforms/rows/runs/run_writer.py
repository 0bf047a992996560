"""Convert one range of a CSV file to a run: read, type, place, encode and write its rows."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from shardmill.schemas.errors import ChangedError
from shardmill.schemas.refs import InputRef, SegmentRef
from shardmill.schemas.rejects import RejectedError
from shardmill.schemas.storage import join, open_storage
from shardmill.transforms.columnar.byte_arrays import ByteStrings, offsets_from_sizes
from shardmill.transforms.columnar.encode import encode_rows, prepare
from shardmill.transforms.rows.csv.cells import Cells
from shardmill.transforms.rows.csv.row_ranges import RowRange, read_range
from shardmill.transforms.rows.rows_spec import RowsSpec
from shardmill.transforms.rows.runs import segments
from shardmill.transforms.rows.runs.record_values import take_values
from shardmill.transforms.rows.table import Table, make_table
from shardmill.transforms.sink import placement
from shardmill.transforms.sink.planning import Plan
from shardmill.transforms.sink.sidecar import create_sidecar, find_sidecar, seal

_TRANSFORM_ROWS = 1 << 16  # per call of the TensorFlow Transform graph
_SLICE_BYTES = 16 << 20  # of records per call of encode_rows


class Place(NamedTuple):
    """Location and content of a segment of a run file.

    Attributes:
        split: Split of its records; empty for rejects.
        part: Part of its records; 0 for rejects.
        offset: Offset in the run file.
        length: Bytes in the run file.
        records: Number of records, or of rejects.
        size: Bytes of the uncompressed content.
        crc32c: CRC-32C of the bytes in the run file.
    """

    split: str
    part: int
    offset: int
    length: int
    records: int
    size: int
    crc32c: int


@dataclass(frozen=True)
class Run:
    """The sidecar of a finished run.

    Attributes:
        payload: Name of the run file in the folder of runs.
        crc32c: CRC-32C of the run file.
        rows: Number of rows that were read, rejected ones included.
        rejects: Number of rejected rows by reason.
        places: The segments, in the order of the run file.
    """

    payload: str
    crc32c: int
    rows: int
    rejects: dict[str, int] = field(default_factory=dict)
    places: tuple[Place, ...] = ()


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


def run_id(
    spec: RowsSpec, plan: Plan, ref: InputRef, place: tuple[int, int, int], extra: str
) -> str:
    """Return the identity of a run: a digest of all that decides its bytes, 32 hex digits.

    Args:
        spec: Options of the build.
        plan: Number of parts of each split.
        ref: The file.
        place: Start and end of the range, and the number of the piece in it.
        extra: Identity of a further step, such as a TensorFlow Transform graph.
    """
    parts = sorted((*series, number) for series, number in plan.parts.items())
    body = [spec.sink.config_id, f"{ref.digest():032x}", place, spec.range_bytes, parts]
    text = json.dumps([*body, plan.default_parts, extra])
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"shardmill-run3").hexdigest()


def find_run(folder: str, name: str) -> Run | None:
    """Return the finished run of an id, or None if it must be made.

    Args:
        folder: Folder of runs.
        name: Id of the run.
    """
    storage = open_storage(folder)

    def load(body: dict[str, Any]) -> Run | None:
        places = tuple(Place(*place) for place in body.pop("places"))
        run = Run(places=places, **body)
        whole = storage.checksum(join(folder, run.payload)) == run.crc32c
        return run if whole and run.payload.startswith(f"{name}-") else None

    return find_sidecar(storage, join(folder, f"{name}.json"), load)


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


def read_cells(spec: RowsSpec, file: CsvFile, part: RowRange) -> Iterator[Cells]:
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
    spec: RowsSpec, plan: Plan, file: CsvFile, name: str, cells: Cells, graph: str = ""
) -> Run:
    """Write the run of some cells; return it, or the run of a worker that was first.

    Args:
        spec: Options of the build.
        plan: Number of parts of each split.
        file: The file of the cells.
        name: Id of the run.
        cells: The cells.
        graph: Folder of a TensorFlow Transform graph in the build folder, or empty.
    """
    storage = open_storage(spec.sink.build)
    table = make_table(spec.table, file.ref, cells, plan)
    if graph:
        table = _apply_graph(table, join(spec.sink.build, graph))
    payload = f"{name}-{uuid.uuid4().hex[:12]}.run"  # unique to this attempt
    places: list[Place] = []
    num_bytes = crc32c = 0
    with storage.open_write(join(spec.runs, payload)) as target:
        for split, part, records, (data, size, crc) in _pack(table):
            target.write(data)
            place = Place(split, part, num_bytes, len(data), records, size, crc)
            places.append(place)
            crc32c = google_crc32c.extend(crc32c, data)
            num_bytes += len(data)
    reasons: Counter[str] = Counter()
    for reject in table.rejects:
        reasons[reject.error] += reject.inputs
    run = Run(payload, crc32c, cells.rows, dict(sorted(reasons.items())), tuple(places))
    return create_sidecar(
        storage, join(spec.runs, f"{name}.json"), seal(asdict(run)), run,
        lambda: find_run(spec.runs, name), join(spec.runs, payload),
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


def _pack(table: Table) -> Iterator[tuple[str, int, int, tuple[bytes, int, int]]]:
    """Yield split, part, number of records (or of rejects) and content of each segment."""
    for split, part, segment in encode_segments(table):
        yield split, part, len(segment), segments.pack_segment(segment)
    if table.rejects:
        lines = [reject.to_json() for reject in table.rejects]
        yield "", 0, len(lines), segments.pack_lines(lines)


def encode_segments(table: Table) -> Iterator[tuple[str, int, pa.Table]]:
    """Encode the rows of a table; yield (split, part, segment) of each part that has rows."""
    if not len(table.order):
        return
    prepared = prepare(table.columns, table.order)
    rows = take_values(table.columns, table.order)
    rows = rows.append_column(segments.POSITION, pa.array(table.position))
    if table.keys is not None:
        rows = rows.append_column(segments.KEY, pa.array(table.keys))
    if table.labels is not None:
        rows = rows.append_column(segments.LABEL, table.labels)
    for split, part, first, after in table.segments():
        lengths = prepared.lengths[first:after]
        frames = [
            _frames(encode_rows(prepared, first + start, first + stop), lengths[start:stop])
            for start, stop in segments.slices(lengths, _SLICE_BYTES)
        ]
        segment = rows.slice(first, after - first)
        yield split, part, segment.append_column(segments.FRAME, pa.chunked_array(frames))


def _frames(data: pa.Buffer, lengths: np.ndarray) -> pa.LargeBinaryArray:
    return ByteStrings(np.frombuffer(data, np.uint8), offsets_from_sizes(lengths)).arrow()


def place_segments(
    spec: RowsSpec, plan: Plan, ref: InputRef, place: tuple[int, int], run: Run
) -> Iterator[placement.Placed]:
    """Yield the segments of a run, each with its part.

    Args:
        spec: Options of the build.
        plan: Number of parts of each split.
        ref: The file.
        place: Start of the range, and the number of the piece in it.
        run: The run.
    """
    path = join(spec.runs, run.payload)
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
