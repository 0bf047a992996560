"""Parts: slices of a shard, each written by one worker to a file with a unique name.

A part is finished when its sidecar exists (see ``publish.generation``). Shards are assembled from
finished parts or pieces of them; the parts are not deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shardmill.schemas.dataset.catalog import CatalogRow, format_catalog
from shardmill.schemas.dataset.manifest import CatalogFile, Shard
from shardmill.schemas.dataset.shard_names import catalog_name
from shardmill.schemas.errors import StaleBuildError
from shardmill.schemas.refs import TRANSIENT, InputRef, Reference, Reject
from shardmill.schemas.storage import (
    Storage,
    from_relative,
    join,
    map_ordered,
    storage_threads,
    to_relative,
)
from shardmill.schemas.tfrecord.framing import combine_crc32c, crc32c
from shardmill.schemas.tfrecord.gzip_member import Packing, empty_shard
from shardmill.transforms.publish.generation import create_sidecar, find_sidecar, seal, unseal
from shardmill.transforms.publish.publish import FinalFile
from shardmill.transforms.sink.compare import hash_inputs
from shardmill.transforms.sink.placement import (
    REJECTED,
    PartKey,
    PlacedRef,
    Series,
    ShardSpec,
    count_shards,
    deal_parts,
    deal_records,
)
from shardmill.transforms.sink.record_writer import MemberWriter, cut_part, loses_records, repack
from shardmill.transforms.sink.spec import (
    SHARDS_FOLDER,
    Block,
    EncoderOutput,
    SinkSpec,
    damaged_part,
)
from shardmill.transforms.statistics.sums import Totals, sum_rows

_SOURCE = CatalogRow._fields.index("source")


class PartFile(NamedTuple):
    """The fields of a finished part that assembling needs.

    Attributes:
        number: Number of the part in its series.
        payload: See ``Part``.
        num_bytes: See ``Part``.
        crc32c: See ``Part``.
        records: See ``Part``.
        rejects: File name of the sidecar if it lists rejects, else empty.
        catalog: File name of the sidecar if it has rows of the catalog, else empty.
    """

    number: int
    payload: str = ""
    num_bytes: int = 0
    crc32c: int = 0
    records: int = 0
    rejects: str = ""
    catalog: str = ""


@dataclass(frozen=True)
class Part:
    """A part, as the sidecar of a finished one describes it.

    Attributes:
        key: The part.
        payload: File name of its bytes in the folder of parts, or empty.
        num_bytes: Size of the payload.
        crc32c: CRC-32C of the payload.
        sidecar: File name of the sidecar.
        catalogued: Whether the sidecar has a row of the catalog for each record.
        totals: Counts and sums of its records and rejects, and why it could not be made.
    """

    key: PartKey
    payload: str = ""
    num_bytes: int = 0
    crc32c: int = 0
    sidecar: str = ""
    catalogued: bool = False
    totals: Totals = field(default_factory=Totals)

    @property
    def file(self) -> PartFile:
        """The fields that assembling needs."""
        rejects = self.sidecar if self.totals.rejects else ""
        catalog = self.sidecar if self.catalogued else ""
        records = self.totals.records
        return PartFile(
            self.key.part, self.payload, self.num_bytes, self.crc32c, records, rejects, catalog
        )

    def to_json(
        self, rejects: Sequence[Reject], rows: Sequence[CatalogRow] = (), root: str = ""
    ) -> bytes:
        """Return the content of the sidecar with its seal; paths are relative to the root."""
        body = {**vars(self), "totals": self.totals.to_json()}  # asdict copies each value
        body["reject_list"] = [
            reject._replace(uri=to_relative(reject.uri, root)) for reject in rejects
        ]
        body["rows"] = [row._replace(source=to_relative(row.source, root)) for row in rows]
        return seal(body)


class Sidecar(NamedTuple):
    """The content of a sidecar.

    Attributes:
        part: The part.
        rejects: Its rejects.
        rows: Fields of the ``CatalogRow`` of each record, if the part is catalogued.
    """

    part: Part
    rejects: list[Reject]
    rows: list[list[Any]]


def parse_sidecar(data: bytes, root: str) -> Sidecar | None:
    """Parse a sidecar; None if it is damaged.

    Args:
        data: Content of the sidecar.
        root: Folder that keys are relative to; the input may have been moved since.
    """
    return unseal(data, lambda body: _load_part(body, root))


def _load_part(body: dict[str, Any], root: str = "") -> Sidecar:
    rows = body.pop("rows")
    for row in rows:
        row[_SOURCE] = from_relative(row[_SOURCE], root)
    rejects = [Reject(*values) for values in body.pop("reject_list")]
    rejects = [reject._replace(uri=from_relative(reject.uri, root)) for reject in rejects]
    key = PartKey(*body.pop("key"))
    totals = Totals.from_json(body.pop("totals"))
    return Sidecar(Part(key=key, totals=totals, **body), rejects, rows)


def order_refs(placed: Iterable[PlacedRef]) -> tuple[list[Reference], int]:
    """Return a part's references in their final order, and the number of repeated ones.

    Another file with the same key, which differs in the form of Unicode text only, is rejected. Of
    members of an archive with the same name, the last one is used, as if they were extracted.
    """
    refs: list[Reference] = []
    duplicates = 0
    for _, ref in sorted(
        placed, key=lambda item: (item.order, item.ref.key, item.ref.uri, -item.ref.offset)
    ):
        if not refs or refs[-1].key != ref.key:
            refs.append(ref)
        elif (
            isinstance(ref, InputRef)
            and isinstance(refs[-1], InputRef)
            and not (ref.error or ref.uri == refs[-1].uri)
        ):
            # The end of the path that the key normalises, with escapes for other than ASCII.
            name = ascii("/".join(refs[-1].uri.split("/")[-1 - ref.key.count("/") :]))
            refs.append(ref.rejected("key_conflict", f"{name} has the same key"))
        else:
            duplicates += 1
    return refs, duplicates


def part_id(config_id: str, key: PartKey, refs: Sequence[Reference], labels: Sequence[str]) -> str:
    """Return the identity of a part: 32 hexadecimal digits of everything that decides its bytes."""
    ids = {label: number for number, label in enumerate(labels)}
    state = hashlib.blake2b(digest_size=16, person=b"shardmill-part5")
    state.update(json.dumps([config_id, *key]).encode())
    for ref in refs:
        state.update(ref.digest().to_bytes(16, "big"))
        named = ref.labels if isinstance(ref, InputRef) else ()
        for label in named or ("",):
            state.update(ids.get(label, -1).to_bytes(4, "big", signed=True))
    return state.hexdigest()


def find_part(
    storage: Storage,
    folder: str,
    name: str,
    refs: Sequence[Reference] = (),
    *,
    content: bool = False,
) -> Part | None:
    """Return the finished part of an id, or None if it must be made.

    Args:
        storage: Storage of the build folder.
        folder: Folder of parts.
        name: Id of the part.
        refs: Its references. Inputs whose ctime changed are hashed.
        content: Whether all inputs are hashed.

    Raises:
        StorageError: An input cannot be read.
    """

    def load(body: dict[str, Any]) -> Part | None:
        part, _, rows = _load_part(body)
        whole = not part.payload or storage.checksum(join(folder, part.payload)) == part.crc32c
        whole = whole and part.sidecar == f"{name}.json"
        if whole and is_current(map(CatalogRow._make, rows)):
            return part
        return None

    def is_current(rows: Iterable[CatalogRow]) -> bool:
        made = {row.key: row for row in rows}
        recorded = [ref for ref in refs if isinstance(ref, InputRef) and ref.key in made]
        doubted = [ref for ref in recorded if content or ref.ctime != made[ref.key].input_ctime]
        return all(made[ref.key].content_hash == digest for digest, ref in hash_inputs(doubted))

    return find_sidecar(storage, join(folder, f"{name}.json"), load)


@dataclass(frozen=True)
class PlannedPart:
    """A part to write.

    Attributes:
        key: The part.
        name: Its id.
        folder: Folder of parts in the build folder.
        packing: Compression of the members.
        versions: Versions of the codecs in this process.
        root: Folder that keys are relative to.
    """

    key: PartKey
    name: str
    folder: str
    packing: Packing
    versions: dict[str, str]
    root: str = ""


def write_part(storage: Storage, job: PlannedPart, items: Iterable[EncoderOutput]) -> Part:
    """Write the payload and the sidecar of a part, unless another worker was first.

    The sidecar of a part with transient rejects has a unique name, so that no other attempt and no
    later run uses the part: its inputs are read again.

    Args:
        storage: Storage of the build folder.
        job: The part.
        items: Examples, blocks of records and rejects in their final order.

    Returns:
        The part whose sidecar exists: this one, or the other worker's.
    """
    attempt = f"{job.name}-{uuid.uuid4().hex[:12]}"
    payload = f"{attempt}.part"
    with storage.open_write(join(job.folder, payload)) as target:
        writer = MemberWriter(target, job.packing)
        totals, rejects, rows = _write_items(writer, items)
        writer.close()
    totals.made = 1
    totals.versions = {tuple(sorted(job.versions.items()))}
    if not totals.records:
        storage.delete(join(job.folder, payload))
        payload = ""
    name = attempt if TRANSIENT & totals.rejects.keys() else job.name
    catalogued = 0 < totals.records == len(rows)
    part = Part(job.key, payload, writer.num_bytes, writer.crc, f"{name}.json", catalogued, totals)
    return create_sidecar(
        storage,
        join(job.folder, part.sidecar),
        part.to_json(rejects, rows, job.root),
        part,
        lambda: find_part(storage, job.folder, job.name),
        payload and join(job.folder, payload),
    )


def _write_items(
    writer: MemberWriter, items: Iterable[EncoderOutput]
) -> tuple[Totals, list[Reject], list[CatalogRow]]:
    """Write records; return their totals, the rejects, and the rows of the catalog."""
    totals = Totals()
    rejects: list[Reject] = []
    rows: list[CatalogRow] = []
    for item in items:
        if isinstance(item, Reject):
            rejects.append(item)
            totals.rejects[item.error] += item.inputs
        elif isinstance(item, Block):
            writer.add_frames(item.frames, item.lengths)
            totals.merge(item.totals)
        else:
            writer.add(item.record)
            totals.records += 1
            totals.taken += item.taken
            totals.label_counts.update(item.labels)
            if item.row is not None:
                rows.append(item.row)
                totals.multi_frame += item.row.multi_frame
                totals.counts.update(item.row.counts)
    if rows:
        totals.summary = sum_rows((row.pixels, row.pixel_sums, row.pixel_squares) for row in rows)
    return totals, rejects, rows


class PartSlice(NamedTuple):
    """The records ``first`` to ``stop - 1`` of a part."""

    part: PartFile
    first: int
    stop: int


@dataclass(frozen=True)
class PlannedShard:
    """A shard to assemble from slices of consecutive parts; no shard if ``total`` is 0."""

    series: Series
    index: int
    total: int
    slices: tuple[PartSlice, ...]


@dataclass(frozen=True)
class BuiltShard:
    """A temporary shard. The publishing worker holds all of them in memory, so it is small.

    Attributes:
        series: Series that it belongs to.
        index: Its number in the series.
        shard: Its entry in the manifest; None for inputs that were rejected while matching.
        files: The shard, and its catalog if it has one.
        rejects: File names of the sidecars of its parts with rejects, in the order of parts. A part
            belongs to the shard with its first record.
        failure: Why it could not be assembled; a sentence, or empty.
    """

    series: Series
    index: int
    shard: Shard | None = None
    files: tuple[FinalFile, ...] = ()
    rejects: tuple[str, ...] = ()
    failure: str = ""


def plan_shards(
    spec: ShardSpec, series: Series, parts: int, part_files: Sequence[PartFile]
) -> Iterator[PlannedShard]:
    """Yield the shards of a series.

    Args:
        spec: Number or size of the shards.
        series: The series.
        parts: Number of parts in the plan.
        part_files: The parts that have references.
    """
    all_slices = tuple(PartSlice(part, 0, part.records) for part in sorted(part_files))
    if series == REJECTED:
        yield PlannedShard(series, 0, 0, all_slices)
        return
    by_number = {part.number: part for part in part_files}
    # A part that no reference was placed in was never written; it counts as empty, so that
    # the others keep their numbers.
    ordered = [by_number.get(number) or PartFile(number) for number in range(parts)]
    records = [part.records for part in ordered]
    dealt: Iterable[list[tuple[int, int, int]]]
    if spec.num_shards is not None:
        total, dealt = spec.num_shards, deal_records(records, spec.num_shards)
    elif not any(records):
        yield PlannedShard(series, 0, 0, all_slices)
        return
    else:
        num_bytes = [part.num_bytes for part in ordered]
        shards = count_shards(spec, sum(records), sum(num_bytes), parts)
        sizes = num_bytes if spec.shard_examples is None else records
        ranges = deal_parts(sizes, shards)
        # Whole parts: no record is packed again.
        total = len(ranges)
        whole = [(number, 0, count) for number, count in enumerate(records)]
        dealt = (whole[numbers.start : numbers.stop] for numbers in ranges)
    # Only numbers are dealt; parts that were never written have no file to read from.
    for index, slices in enumerate(dealt):
        mine = (PartSlice(ordered[n], *bounds) for n, *bounds in slices if n in by_number)
        yield PlannedShard(series, index, total, tuple(mine))


def assemble_shard(
    storage: Storage, spec: SinkSpec, job: PlannedShard, packing: Packing
) -> BuiltShard:
    """Concatenate the slices of a shard to a file with a temporary name.

    Args:
        storage: Storage of the output.
        spec: Output and options of the build.
        job: The shard to assemble.
        packing: Compression of the parts. A gzip shard without records is an empty member.

    Raises:
        FileNotFoundError: A part was deleted.
    """
    rejects = tuple(
        part_slice.part.rejects
        for part_slice in job.slices
        if part_slice.part.rejects and not part_slice.first
    )
    if not job.total:
        return BuiltShard(job.series, 0, rejects=rejects)
    full = [part_slice for part_slice in job.slices if part_slice.part.payload]
    records = sum(part_slice.stop - part_slice.first for part_slice in full)
    names = spec.shards.template
    name = names.format(job.series.split, job.index, job.total, records, job.series.label)
    # Not the final name: attempts with other parts must not write to one file.
    source = f"{spec.build_name}/{SHARDS_FOLDER}/{_content_id(job, full)}"
    path = join(spec.output, source)
    size, crc = 0, 0
    if not full:
        empty = b"" if packing == "none" else empty_shard()
        with storage.open_write(path) as target:
            size, crc = target.write(empty), crc32c(empty)
    with _open_slices(storage, spec.parts, full, path, packing) as pieces:
        for _, num_bytes, piece_crc in pieces:
            # gzip members may be concatenated (RFC 1952 section 2.2), so the shard's checksum
            # follows from its parts' checksums, and the bytes are not read.
            crc = combine_crc32c(crc, piece_crc, num_bytes)
            size += num_bytes
        sources = [piece for piece, *_ in pieces]
        # Decided by the sizes of members, so each run and runner repacks the same shards.
        if packing != "none" and loses_records(storage, sources, size):
            size, crc = repack(storage, sources, path, packing)
        elif sources:
            storage.concat(sources, path)
    shard = Shard(name, records, size, f"{crc:08x}", job.series.label or None)
    files = (FinalFile(source, name, size),)
    return BuiltShard(job.series, job.index, shard, files, rejects)


@contextlib.contextmanager
def _open_slices(
    storage: Storage, folder: str, slices: Sequence[PartSlice], path: str, packing: Packing
) -> Iterator[list[tuple[str, int, int]]]:
    """Return files with the records of slices as (path, size, CRC-32C); delete pieces at the end.

    Pieces have unique names, since another builder of this output may cut the same parts.
    """
    pieces: list[str] = []
    files = []
    try:
        for part, first, stop in slices:
            source = join(folder, part.payload)
            # A whole part is used unchanged: its members keep their bytes.
            if stop - first == part.records:
                files.append((source, part.num_bytes, part.crc32c))
                continue
            pieces.append(f"{path}.{uuid.uuid4().hex}.piece")
            cut = cut_part(storage, source, first, stop, pieces[-1], packing)
            files.append((pieces[-1], *cut))
        yield files
    finally:  # also after a failure: a rerun cuts pieces under new names
        for piece in pieces:
            storage.delete(piece)


def _content_id(job: PlannedShard, slices: Sequence[PartSlice]) -> str:
    """Return a name for a temporary shard that depends on its content alone.

    Killed attempts do not accumulate files: the next one replaces theirs.
    """
    contents = [
        (part_slice.part.payload, part_slice.first, part_slice.stop) for part_slice in slices
    ]
    text = repr((tuple(job.series), job.index, job.total, contents))
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"shardmill-shard").hexdigest()


def add_catalog(
    storage: Storage, spec: SinkSpec, job: PlannedShard, built: BuiltShard
) -> BuiltShard:
    """Write the catalog of a shard, and return the shard with it.

    A shard without records, or of tables and arrays, has none.

    Raises:
        FileNotFoundError: A part was deleted.
        OutputError: A sidecar is damaged.
    """
    slices = [part_slice for part_slice in job.slices if part_slice.stop > part_slice.first]
    if (
        built.shard is None
        or not slices
        or not all(part_slice.part.catalog for part_slice in slices)
    ):
        return built
    data = format_catalog(_rows(storage, spec, slices), spec.record_id, built.shard.crc32c)
    crc, name = crc32c(data), catalog_name(built.shard.file)
    # Named by its content: workers with different releases of Arrow write different bytes.
    source = f"{spec.build_name}/{SHARDS_FOLDER}/{crc:08x}-{len(data)}.parquet"
    storage.replace(join(spec.output, source), data)
    shard = replace(built.shard, catalog=CatalogFile(name, len(data), f"{crc:08x}"))
    return replace(built, shard=shard, files=(*built.files, FinalFile(source, name, len(data))))


def _rows(storage: Storage, spec: SinkSpec, slices: Sequence[PartSlice]) -> Iterator[list[Any]]:
    paths = [join(spec.parts, part_slice.part.catalog) for part_slice in slices]
    texts = map_ordered(storage.read, paths, storage_threads(spec.parts))
    for path, data, part_slice in zip(paths, texts, slices, strict=True):
        sidecar = parse_sidecar(data, spec.root)
        if sidecar is None:
            raise damaged_part(path)
        # A sidecar has a row for each record of its part, in order, so a cut divides both alike.
        yield from sidecar.rows[part_slice.first : part_slice.stop]


@contextlib.contextmanager
def raise_if_stale() -> Iterator[None]:
    """Raise ``StaleBuildError`` if a file of the build is missing."""
    try:
        yield
    except FileNotFoundError as error:
        path = error.filename or error
        raise StaleBuildError(
            f"{path} is gone: another command published or cleaned this output; run again."
        ) from error
