"""Parts: slices of a shard, each written by one worker to a file with a unique name.

A part is finished when its sidecar exists (see ``publish.generation``).
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardmill.schemas.dataset.catalog import CatalogRow
from shardmill.schemas.refs import TRANSIENT, InputRef, Reference, Reject
from shardmill.schemas.storage import Storage, from_relative, join, to_relative
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.publish.generation import create_sidecar, find_sidecar, seal, unseal
from shardmill.transforms.sink.compare import hash_inputs
from shardmill.transforms.sink.placement import PartKey, PlacedRef
from shardmill.transforms.sink.record_writer import MemberWriter
from shardmill.transforms.sink.spec import Block, EncoderOutput
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
