"""Cutting a shard anew where TensorFlow would lose its end.

Where the last of TensorFlow's reads of a gzip file begins inside the trailer of a member, it stops
there (``inflate.find_early_stop``): by arithmetic, one shard in some 200,000. Such a shard is
written again from the records of its parts, with members of another size; its bytes alone decide
which.
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
from shardmill.transforms.build.record_writer import MEMBER_BYTES, MemberWriter

_STEP = 64 << 10  # by which members are larger at first, and then twice as much each time
_FARTHEST = TENSORFLOW_READS + INDEX_BYTES


def loses_records(storage: Storage, sources: Sequence[str], size: int) -> bool:
    """Tells whether TensorFlow would stop before the end of the file that parts are joined to.

    Args:
        storage: Where they lie.
        sources: The parts, in order.
        size: Bytes of all.
    """
    if size <= TENSORFLOW_READS:
        return False
    ends: list[int] = []
    at = size
    for source in reversed(sources):
        with storage.open_at(source) as reader:
            at -= reader.size
            members = read_index(reader.read_at, reader.size)
        if members is None:
            raise OutputError(f"{source} is damaged: run again.")
        ends += [at + member.offset + member.num_bytes for member in members]
        if at < size - _FARTHEST:
            break
    return find_early_stop(ends, size) >= 0


def repack(storage: Storage, sources: Sequence[str], path: str) -> tuple[int, int]:
    """Writes the records of some parts to one file that TensorFlow reads to its end.

    Args:
        storage: Where they lie.
        sources: The parts, in order.
        path: The new file.

    Returns:
        Its size and CRC-32C.

    Raises:
        OutputError: A part is damaged.
    """
    packing = _packing_of(storage, sources[0])
    for turn in itertools.count():
        with storage.open_write(path) as target:
            writer = MemberWriter(target, packing, MEMBER_BYTES + (_STEP << turn))
            try:
                for source in sources:
                    with open_records(source) as records:
                        for record in records:
                            writer.add(record)
            except DamagedError as error:
                raise OutputError(f"{source} is damaged ({error}): run again.") from error
            writer.close()
        if not loses_records(storage, [path], writer.num_bytes):
            return writer.num_bytes, writer.crc
    raise AssertionError("unreachable")


def _packing_of(storage: Storage, source: str) -> Packing:
    with storage.open_at(source) as reader:
        (first,) = reader.read_at(INDEX_BYTES, 1)
    # The type of the first deflate block.
    return "deflated" if first & 6 else "stored"
