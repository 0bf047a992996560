"""Write runs: the typed rows of one range of a table, and the records of small runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from shardmill.schemas.refs import Reject
from shardmill.schemas.storage import join, open_storage
from shardmill.schemas.storage.base import map_ordered, storage_threads
from shardmill.transforms.publish.generation import create_sidecar, find_sidecar, seal
from shardmill.transforms.tables import segments
from shardmill.transforms.tables.byte_arrays import ByteStrings, offsets_from_sizes, part_numbers
from shardmill.transforms.tables.encode import encode_rows, prepare
from shardmill.transforms.tables.segments import Origin, Run, RunBlock, take_values
from shardmill.transforms.tables.table import Table, transformed_labels
from shardmill.transforms.tables.table_source import TypedBatch

RUN_LAYOUT = 2  # of the columns of runs: runs of another layout are made again
_TRANSFORM_ROWS = 1 << 16  # per call of the TensorFlow Transform graph
SLICE_BYTES = 4 << 20  # of records per call of encode_rows, about
MERGE_BYTES = 32 << 20  # of records that are merged at a time


@dataclass(frozen=True)
class RunFile:
    """The sidecar of a finished run.

    Attributes:
        payload: Name of the run file in the folder of runs.
        crc32c: CRC-32C of the run file.
        ctime: That of the input when its rows were read.
        content: See ``TypedBatch``.
        rows: Number of rows that were read, rejected ones included.
        rejects: Number of rejected rows by reason.
        blocks: The blocks, in the order of the run file.
    """

    payload: str
    crc32c: int
    ctime: int = 0
    content: str = ""
    rows: int = 0
    rejects: dict[str, int] = field(default_factory=dict)
    blocks: tuple[RunBlock, ...] = ()


def run_id(*body: Any) -> str:
    """Return the identity of a run: a digest of all that decides its bytes, 32 hex digits."""
    text = json.dumps(body)
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"shardmill-run4").hexdigest()


def find_run(folder: str, name: str, content: str = "") -> RunFile | None:
    """Return the finished run of an id, or None if it must be made.

    Args:
        folder: Folder of runs.
        name: Id of the run.
        content: Content of its input, if that is known; a run of other content is deleted.
    """
    storage = open_storage(folder)

    def load(body: dict[str, Any]) -> RunFile | None:
        blocks = tuple(RunBlock(*block) for block in body.pop("blocks"))
        run = RunFile(blocks=blocks, **body)
        whole = storage.checksum(join(folder, run.payload)) == run.crc32c
        same = run.content == content or not content
        if whole and same and run.payload.startswith(f"{name}-"):
            return run
        return None

    return find_sidecar(storage, join(folder, f"{name}.json"), load)


def make_run(folder: str, name: str, origin: Origin, table: Table, batch: TypedBatch) -> RunFile:
    """Write the run of a table; return it, or the run of a worker that was first.

    Args:
        folder: Folder of runs.
        name: Id of the run.
        origin: Origin of all rows.
        table: The rows.
        batch: Where they are from.
    """
    rejects = [reject._replace(uri=origin.uri) for reject in table.rejects]
    source = {"ctime": batch.ref.ctime, "content": batch.content, "rows": batch.number}
    return write_run(folder, name, encode_splits(table, origin), rejects, **source)


def write_run(
    folder: str,
    name: str,
    splits: Iterable[tuple[str, pa.Table, int]],
    rejects: Sequence[Reject],
    **described: Any,
) -> RunFile:
    """Write the records of splits, and rejects, as a run; return it, or another worker's run.

    Args:
        folder: Folder of runs.
        name: Id of the run.
        splits: Arguments of ``cut_blocks``; the records of each split follow each other.
        rejects: The rejects.
        described: Other attributes of the ``RunFile``.
    """
    reasons: Counter[str] = Counter()
    for reject in rejects:
        reasons[reject.error] += reject.inputs
    blocks = itertools.chain.from_iterable(itertools.starmap(segments.cut_blocks, splits))
    lines = [segments.pack_lines([reject.to_json() for reject in rejects])] if rejects else []
    written = itertools.chain(blocks, lines)
    return write_blocks(folder, name, written, rejects=dict(sorted(reasons.items())), **described)


def write_blocks(
    folder: str, name: str, written: Iterable[tuple[RunBlock, bytes]], **described: Any
) -> RunFile:
    """Write blocks as a run; return it, or the run of a worker that was first.

    Args:
        folder: Folder of runs.
        name: Id of the run.
        written: The blocks and their bytes.
        described: Other attributes of the ``RunFile``.
    """
    storage = open_storage(folder)
    payload = f"{name}-{uuid.uuid4().hex[:12]}.run"  # unique to this attempt
    blocks: list[RunBlock] = []
    crc32c = 0
    with storage.open_write(join(folder, payload)) as target:
        for block, data in written:
            target.write(data)
            blocks.append(block)
            crc32c = google_crc32c.extend(crc32c, data)
    run = RunFile(payload, crc32c, blocks=tuple(blocks), **described)
    return create_sidecar(
        storage,
        join(folder, f"{name}.json"),
        seal(asdict(run)),
        run,
        lambda: find_run(folder, name, run.content),
        join(folder, payload),
    )


def transform_table(table: Table, folder: str, label: str) -> Table:
    """Return a table of the rows as TensorFlow Transform transforms them, in final order.

    Args:
        table: The rows.
        folder: Folder of a TensorFlow Transform graph.
        label: Feature with the labels. The transformed feature has the labels if it is one text or
            integer in each row; otherwise they stay unchanged.

    Raises:
        InputError: The graph fails on a row, or a label has a control character.
    """
    from shardmill.transforms.tables.tft.transformer import transformer_of

    apply = transformer_of(folder).apply
    batches = [
        apply(table.columns, table.order[start : start + _TRANSFORM_ROWS])
        for start in range(0, max(1, len(table.order)), _TRANSFORM_ROWS)
    ]
    columns = []
    for first, *others in zip(*batches, strict=True):
        values = [first.values, *(column.values for column in others)]
        columns.append(first._replace(values=pa.concat_arrays(values)))
    labels = table.labels
    for column in columns:
        if column.name == label and column.kind != "float32" and not column.has_lists:
            labels = transformed_labels(column.values)
    return table._replace(columns=columns, order=np.arange(len(table.order)), labels=labels)


def encode_splits(table: Table, origin: Origin) -> Iterator[tuple[str, pa.Table, int]]:
    """Encode the rows of a table; yield the arguments of ``cut_blocks``, a slice at a time."""
    if not len(table.order):
        return
    # Values are encoded once per column and range; rows are joined from them in slices, as the
    # frames of all rows may take several times the memory of their text.
    prepared = prepare(table.columns, table.order)
    rows = take_values(table.columns, table.order)
    rows = rows.append_column(segments.POSITION, pa.array(table.position))
    if table.keys is not None:
        rows = rows.append_column(segments.KEY, pa.array(table.keys))
        origins = pa.repeat(origin.to_text(), len(rows)).dictionary_encode()
        rows = rows.append_column(segments.ORIGIN, origins)
    if table.labels is not None:
        rows = rows.append_column(segments.LABEL, table.labels)
    for split, first, after in table.split_bounds():
        parts = 1 << int(prepared.lengths[first:after].sum() // SLICE_BYTES).bit_length()
        numbers = part_numbers(table.position[first:after], parts)
        bounds = first + np.flatnonzero(np.diff(numbers)) + 1
        for begin, end in itertools.pairwise([first, *bounds.tolist(), after]):
            data = np.frombuffer(encode_rows(prepared, begin, end), np.uint8)
            frames = ByteStrings(data, offsets_from_sizes(prepared.lengths[begin:end])).arrow()
            yield split, rows.slice(begin, end - begin).append_column(segments.FRAME, frames), parts


def merge_runs(folder: str, group: int, runs: Sequence[Run]) -> Run:
    """Return one run with the records of several, in memory that is bounded.

    Rejects are not merged: the key of their run gives them their order in the list of rejects.

    Args:
        folder: Folder of runs.
        group: Number of the group.
        runs: At least one.
    """
    if len(runs) == 1:
        return runs[0]
    ordered = sorted(runs)
    contents = []
    for run in ordered:
        checksums = [block.crc32c for block in run.blocks]
        contents.append((run.key, checksums))
    name = run_id(contents)
    made = find_run(folder, name) or write_blocks(folder, name, _merged_blocks(ordered))
    return Run(f"merged#{group:016x}", join(folder, made.payload), made.blocks)


def _merged_blocks(runs: Sequence[Run]) -> Iterator[tuple[RunBlock, bytes]]:
    """Yield the blocks of the records of all runs, a slice of the positions at a time."""
    sizes: Counter[str] = Counter()
    for run in runs:
        for block in run.blocks:
            if block.split:
                sizes[block.split] += block.size
    for split in sorted(sizes, key=str.encode):
        slices = 1 << int(sizes[split] // MERGE_BYTES).bit_length()
        # Positions are uniform: a slice of them has about MERGE_BYTES of records of all runs
        # together, which bounds memory. A power of two makes bounds of slices bounds of blocks.
        of_slice = defaultdict(list)
        for run in runs:
            for ref in segments.of_slices(run, split, slices):
                of_slice[ref.part].append(ref)
        for _, refs in sorted(of_slice.items()):
            threads = storage_threads(refs[0].uri)
            read = map_ordered(segments.read_records, refs, threads)
            tables = [table for table in read if len(table)]
            if tables:
                records, order = segments.sort_records(tables)
                yield from segments.cut_blocks(split, records.take(pa.array(order)), slices)
