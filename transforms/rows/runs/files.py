"""Runs: what one range of a CSV file became, each written by one worker under a name of its own.

As with parts, a run is done when its sidecar exists, which is written last and create-if-absent.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import google_crc32c

from shardmill.schemas.storage import Storage, Written, join
from shardmill.transforms.build.sidecar import seal, unseal
from shardmill.transforms.rows.runs.segments import Segment, pack_lines

FOLDER = "runs"


class Place(NamedTuple):
    """Where a segment lies, and what it holds.

    Attributes:
        split: Split of its records; empty for rejects.
        part: Part of its records; 0 for rejects.
        offset: In the run's file.
        length: Bytes in the run's file.
        records: Records, or rejects.
        size: Bytes of the content.
        crc32c: CRC-32C of the content.
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
    """What a sidecar says of a finished run.

    Attributes:
        payload: File name of its segments in the folder of runs.
        num_bytes: Size of the payload.
        crc32c: CRC-32C of the payload.
        rows: Rows that were read, bad ones included.
        rejects: Bad rows by reason.
        places: The segments, in the order of the payload.
        versions: Of all code that decides the bytes.
        found: Whether it was there before.
    """

    payload: str
    num_bytes: int
    crc32c: int
    rows: int
    rejects: dict[str, int] = field(default_factory=dict)
    places: tuple[Place, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    found: bool = False

    def to_json(self) -> bytes:
        """Returns the sidecar's text, sealed."""
        body = asdict(self)
        del body["found"]
        body["places"] = [list(place) for place in self.places]
        return seal(body).encode()


def find_run(storage: Storage, folder: str, name: str) -> Run | None:
    """Returns the finished run of an id, or None when it must be made.

    A sidecar whose payload is missing or damaged is taken away, so that it can be made anew.
    """
    path = join(folder, f"{name}.json")
    try:
        body = unseal(storage.read(path))
    except FileNotFoundError:
        return None
    run = None if body is None else _parse_run(body)
    if run is not None and run.payload.startswith(f"{name}-"):
        try:
            if storage.checksum(join(folder, run.payload)) == run.crc32c:
                return run
        except FileNotFoundError:
            pass
    storage.delete(path)
    return None


def _parse_run(body: dict[str, Any]) -> Run | None:
    """Returns the run of a sidecar's body, or None when it is the sidecar of something else."""
    try:
        places = tuple(Place(*place) for place in body.pop("places"))
        return Run(places=places, found=True, **body)
    except (TypeError, KeyError):
        return None


class RunWriter:
    """Writes segments one after the other."""

    def __init__(self, target: Written) -> None:
        self._target = target
        self.places: list[Place] = []
        self.crc = 0
        self.num_bytes = 0

    def add(self, split: str, part: int, segment: Segment) -> None:
        """Appends a segment."""
        self._write(split, part, len(segment.positions), segment.pack())

    def add_rejects(self, lines: Sequence[str]) -> None:
        """Appends rejects, each as one line of JSON."""
        if lines:
            self._write("", 0, len(lines), pack_lines(lines))

    def _write(self, split: str, part: int, records: int, packed: tuple[bytes, int, int]) -> None:
        data, size, crc = packed
        self._target.write(data)
        self.places.append(Place(split, part, self.num_bytes, len(data), records, size, crc))
        self.crc = google_crc32c.extend(self.crc, data)
        self.num_bytes += len(data)


def new_payload(name: str) -> str:
    """Returns a file name for an attempt to write a run."""
    return f"{name}-{uuid.uuid4().hex[:12]}.run"


def settle_run(storage: Storage, folder: str, name: str, run: Run) -> Run:
    """Writes a run's sidecar, or returns the run of a worker who was there before."""
    path = join(folder, f"{name}.json")
    winner: Run | None = None
    try:
        winner = run if storage.create(path, run.to_json()) else find_run(storage, folder, name)
        if winner is None:  # the other's payload is gone: ours stands
            storage.create(path, run.to_json())
            winner = run
    finally:
        if winner is not run:
            storage.delete(join(folder, run.payload))
    return replace(winner, found=winner is not run)
