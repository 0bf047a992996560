"""Store runs: the encoded records of one range of a CSV file, in a file written by one worker.

Like a part, a run is finished when its sidecar exists, which is written last, create-if-absent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import google_crc32c

from shardmill.schemas.storage import Storage, WritableFile, join
from shardmill.transforms.build.sidecar import find_sidecar

FOLDER = "runs"


class Place(NamedTuple):
    """Location and content of a segment of a run file.

    Attributes:
        split: Split of its records; empty for rejects.
        part: Part of its records; 0 for rejects.
        offset: Offset in the run file.
        length: Bytes in the run file.
        records: Number of records, or of rejects.
        size: Bytes of the uncompressed content.
        crc32c: CRC-32C of the uncompressed content.
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
        num_bytes: Size of the run file.
        crc32c: CRC-32C of the run file.
        rows: Number of rows that were read, rejected ones included.
        rejects: Number of rejected rows by reason.
        places: The segments, in the order of the run file.
    """

    payload: str
    num_bytes: int
    crc32c: int
    rows: int
    rejects: dict[str, int] = field(default_factory=dict)
    places: tuple[Place, ...] = ()


def find_run(storage: Storage, folder: str, name: str) -> Run | None:
    """Return the finished run of an id, or None if it must be made.

    Args:
        storage: Storage of the build folder.
        folder: Folder of runs.
        name: Id of the run.
    """

    def load(body: dict[str, Any]) -> Run | None:
        places = tuple(Place(*place) for place in body.pop("places"))
        run = Run(places=places, **body)
        whole = storage.checksum(join(folder, run.payload)) == run.crc32c
        return run if whole and run.payload.startswith(f"{name}-") else None

    return find_sidecar(storage, join(folder, f"{name}.json"), load)


class RunWriter:
    """Writes segments to a run file."""

    def __init__(self, target: WritableFile) -> None:
        self._target = target
        self.places: list[Place] = []
        self.crc = 0
        self.num_bytes = 0

    def write(self, split: str, part: int, records: int, packed: tuple[bytes, int, int]) -> None:
        """Append a segment.

        Args:
            split: Split of its records; empty for rejects.
            part: Part of its records; 0 for rejects.
            records: Number of records, or of rejects.
            packed: The segment, as ``Segment.pack`` or ``pack_lines`` returns it.
        """
        data, size, crc = packed
        self._target.write(data)
        self.places.append(Place(split, part, self.num_bytes, len(data), records, size, crc))
        self.crc = google_crc32c.extend(self.crc, data)
        self.num_bytes += len(data)
