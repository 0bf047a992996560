"""Rewrite a shard that TensorFlow would not read to its end.

TensorFlow stops where its last read of a gzip file begins inside the trailer of a member
(``inflate.find_early_stop``); about one shard in 200,000 is affected. Such a shard is written again
from the records of its parts, with members of another size, which its bytes alone decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage import Storage
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.schemas.tfrecord.inflate import TENSORFLOW_READS, find_early_stop
from shardmill.schemas.tfrecord.member_index import INDEX_BYTES, read_index
from shardmill.schemas.tfrecord.reader import open_records
from shardmill.schemas.tfrecord.scanner import DamagedError
from shardmill.transforms.sink.record_writer import MEMBER_BYTES, MemberWriter

_STEP = 64 << 10  # bytes added to a member; doubled on each attempt
_FARTHEST = TENSORFLOW_READS + INDEX_BYTES


def loses_records(storage: Storage, sources: Sequence[str], size: int) -> bool:
    """Return whether TensorFlow would stop before the end of the concatenation of parts.

    Args:
        storage: Storage of the parts.
        sources: Paths of the parts, in order.
        size: Total bytes.
    """
    if size <= TENSORFLOW_READS:
        return False
    ends: list[int] = []
    at = size
    # Only the last reads of TensorFlow matter, so the parts are opened from the end.
    for source in reversed(sources):
        with storage.open_at(source) as reader:
            at -= reader.size
            members = read_index(reader.read_at, reader.size)
        if members is None:
            raise OutputError("part-damaged", path=source)
        ends += [at + member.offset + member.num_bytes for member in members]
        if at < size - _FARTHEST:
            break
    return find_early_stop(ends, size) >= 0


def repack(
    storage: Storage, sources: Sequence[str], path: str, packing: Packing
) -> tuple[int, int]:
    """Write the records of parts to one file that TensorFlow reads to its end.

    Args:
        storage: Storage of the parts.
        sources: Paths of the parts, in order.
        path: The new file.
        packing: Compression of the parts.

    Returns:
        Size and CRC-32C of the file.

    Raises:
        OutputError: A part is damaged.
    """
    # A member of another size moves all later ends; steps double, so that a search that fails
    # for one size does not fail for the same reason again.
    for attempt in itertools.count():
        with storage.open_write(path) as target:
            writer = MemberWriter(target, packing, MEMBER_BYTES + (_STEP << attempt))
            try:
                for source in sources:
                    with open_records(source) as records:
                        for record in records:
                            writer.add(record)
            except DamagedError as error:
                raise OutputError("part-damaged-detail", source=source, error=error) from error
            writer.close()
        if not loses_records(storage, [path], writer.num_bytes):
            return writer.num_bytes, writer.crc
    raise AssertionError("unreachable")
