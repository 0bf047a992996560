"""Parts: slices of a shard, each written by one worker to a file with a unique name.

A part is finished when its sidecar exists (see ``sidecar``).
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from shardmill.schemas.dataset.catalog import CatalogRow
from shardmill.schemas.refs import InputRef, Reference
from shardmill.schemas.rejects import TRANSIENT, Reject
from shardmill.schemas.storage import Storage, join
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.build.encoder import Block, Example, Item
from shardmill.transforms.build.placement import PartKey, PlacedRef
from shardmill.transforms.build.record_writer import MemberWriter
from shardmill.transforms.build.sidecar import create_sidecar, find_sidecar, seal, unseal
from shardmill.transforms.statistics.sums import Summary, merge_summaries, sum_rows

FORMAT_VERSION = 2  # of shards and sidecars; part of every config_id
_SUMMARIES = 256  # merged at a time


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
    """A finished part, as its sidecar describes it.

    Attributes:
        key: The part as (split, label, part).
        payload: File name of its bytes in the folder of parts; empty if it has none.
        num_bytes: Size of the payload.
        crc32c: CRC-32C of the payload.
        records: Number of records.
        label_counts: Number of records by label.
        rejects: Number of rejected inputs by reason.
        duplicates: Number of references that repeat the key of another.
        multi_frame: Number of records from files with several frames.
        versions: Versions of the codecs that made it.
        summary: Sums over the records' values, for the manifest.
        sidecar: File name of the sidecar.
        catalogued: Whether the sidecar has a row of the catalog for each record.
        taken: Number of records that were taken from the published dataset.
        failure: Why the part could not be made; a sentence, or empty.
        reused: Whether it existed before.
    """

    key: tuple[str, str, int]
    payload: str = ""
    num_bytes: int = 0
    crc32c: int = 0
    records: int = 0
    label_counts: dict[str, int] = field(default_factory=dict)
    rejects: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    multi_frame: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    summary: Summary = field(default_factory=Summary)
    sidecar: str = ""
    catalogued: bool = False
    taken: int = 0
    failure: str = ""
    reused: bool = False

    @property
    def file(self) -> PartFile:
        """The fields that assembling needs."""
        rejects = self.sidecar if self.rejects else ""
        catalog = self.sidecar if self.catalogued else ""
        return PartFile(
            self.key[2], self.payload, self.num_bytes, self.crc32c, self.records, rejects, catalog
        )

    def to_json(self, rejects: Sequence[Reject], rows: Sequence[CatalogRow] = ()) -> str:
        """Return the text of the sidecar with its seal."""
        body: dict[str, Any] = {**vars(self)}  # asdict copies each value
        del body["reused"], body["failure"]
        body["reject_list"] = [list(reject) for reject in rejects]
        body["rows"] = [list(row) for row in rows]
        return seal(body)


class Sidecar(NamedTuple):
    """What a sidecar describes.

    Attributes:
        part: The part.
        rejects: Its rejects.
        rows: Fields of the ``CatalogRow`` of each record, if the part is catalogued.
    """

    part: Part
    rejects: list[Reject]
    rows: list[list[Any]]


def parse_sidecar(data: bytes) -> Sidecar | None:
    """Return what a sidecar describes, or None if it is damaged."""
    body = unseal(data)
    try:
        return None if body is None else _load_part(body)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _load_part(body: dict[str, Any]) -> Sidecar:
    rows = body.pop("rows")
    rejects = [Reject(*values) for values in body.pop("reject_list")]
    split, label, part = body.pop("key")
    summary = Summary.from_json(body.pop("summary"))
    return Sidecar(Part(key=(split, label, part), summary=summary, **body), rejects, rows)


def order_refs(placed: Iterable[PlacedRef]) -> tuple[list[Reference], int]:
    """Return a part's references in their final order, and how many repeat another.

    Another file with the same key, which differs in the form of Unicode text only, is rejected.
    """
    refs: list[Reference] = []
    duplicates = 0
    for _, ref in sorted(placed, key=lambda item: (item.order, item.ref.key, item.ref.uri)):
        if not refs or refs[-1].key != ref.key:
            refs.append(ref)
        elif (
            isinstance(ref, InputRef)
            and isinstance(refs[-1], InputRef)
            and not (ref.error or ref.uri == refs[-1].uri)
        ):
            refs.append(ref.rejected("key_conflict", f"{refs[-1].uri!r} has the same key"))
        else:
            duplicates += 1
    return refs, duplicates


def part_id(config_id: str, key: PartKey, refs: Sequence[Reference], labels: Sequence[str]) -> str:
    """Return the identity of a part: 32 hexadecimal digits over all that decides its bytes."""
    ids = {label: number for number, label in enumerate(labels)}
    state = hashlib.blake2b(digest_size=16, person=b"shardmill-part4")
    state.update(json.dumps([config_id, *key]).encode())
    for ref in refs:
        number = -1
        if isinstance(ref, InputRef) and ref.label is not None:
            number = ids.get(ref.label, -1)
        state.update(ref.digest().to_bytes(16, "big") + number.to_bytes(4, "big", signed=True))
    return state.hexdigest()


@dataclass
class _Tally:
    labels: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    rejects: list[Reject] = field(default_factory=list)
    records: int = 0
    taken: int = 0
    duplicates: int = 0
    summaries: list[Summary] = field(default_factory=list)
    rows: list[CatalogRow] = field(default_factory=list)

    def reject(self, reject: Reject) -> None:
        self.rejects.append(reject)
        self.reasons[reject.error] += reject.inputs

    def example(self, example: Example) -> None:
        self.records += 1
        self.taken += example.taken
        if example.label is not None:
            self.labels[example.label] += 1
        if example.row is not None:
            self.rows.append(example.row)

    def block(self, block: Block) -> None:
        self.records += len(block.lengths)
        self.duplicates += block.duplicates
        self.labels.update(block.labels)
        if block.summary is not None:
            self.summaries.append(block.summary)
        if len(self.summaries) >= _SUMMARIES:
            self.summaries = [merge_summaries(self.summaries)]

    def summary(self) -> Summary:
        return sum_rows(self.rows) if self.rows else merge_summaries(self.summaries)


def find_part(storage: Storage, folder: str, name: str) -> Part | None:
    """Return the finished part of an id, or None if it must be made.

    Args:
        storage: Storage of the build folder.
        folder: Folder of parts.
        name: Id of the part.
    """

    def load(body: dict[str, Any]) -> Part | None:
        part = _load_part(body).part
        whole = not part.payload or storage.checksum(join(folder, part.payload)) == part.crc32c
        return replace(part, reused=True) if whole and part.sidecar == f"{name}.json" else None

    return find_sidecar(storage, join(folder, f"{name}.json"), load)


@dataclass(frozen=True)
class PartJob:
    """A part to write.

    Attributes:
        key: The part.
        name: Its id.
        folder: Folder of parts in the build folder.
        packing: Compression of the members.
        versions: Versions of the codecs in this process.
    """

    key: PartKey
    name: str
    folder: str
    packing: Packing
    versions: dict[str, str]


def write_part(storage: Storage, job: PartJob, items: Iterable[Item]) -> Part:
    """Write the payload and the sidecar of a part, unless another worker was first.

    The sidecar of a part with transient rejects has a unique name, so that no other attempt and no
    later run uses the part: its inputs are read again.

    Args:
        storage: Storage of the build folder.
        job: The part.
        items: Examples, blocks of records and rejects in their final order.

    Returns:
        The part whose sidecar exists: this one, or that of the other worker.
    """
    tally = _Tally()
    attempt = f"{job.name}-{uuid.uuid4().hex[:12]}"
    payload = f"{attempt}.part"
    with storage.open_write(join(job.folder, payload)) as target:
        writer = MemberWriter(target, job.packing)
        for item in items:
            if isinstance(item, Reject):
                tally.reject(item)
            elif isinstance(item, Block):
                tally.block(item)
                writer.add_frames(item.frames, item.lengths)
            else:
                tally.example(item)
                writer.add(item.record)
        writer.close()
    if not tally.records:
        storage.delete(join(job.folder, payload))
        payload = ""
    part = Part(
        key=(job.key.split, job.key.label, job.key.part),
        payload=payload,
        num_bytes=writer.num_bytes,
        crc32c=writer.crc,
        records=tally.records,
        taken=tally.taken,
        label_counts=dict(tally.labels),
        rejects=dict(tally.reasons),
        duplicates=tally.duplicates,
        multi_frame=sum(row.multi_frame for row in tally.rows),
        versions=job.versions,
        summary=tally.summary(),
        sidecar=f"{attempt if TRANSIENT & tally.reasons.keys() else job.name}.json",
        catalogued=0 < tally.records == len(tally.rows),
    )
    return create_sidecar(
        storage, join(job.folder, part.sidecar), part.to_json(tally.rejects, tally.rows), part,
        lambda: find_part(storage, job.folder, job.name),
        payload and join(job.folder, payload),
    )  # fmt: skip
