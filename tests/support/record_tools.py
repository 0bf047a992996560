"""Build TFRecord files byte by byte, and read them."""

import gzip
import itertools
import random
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from shardmill.schemas.tfrecord.framing import frame, masked_crc
from shardmill.schemas.tfrecord.gzip_member import (
    HEADER,
    INDEX_BYTES,
    Member,
    build_index,
    pack_body,
)
from shardmill.schemas.tfrecord.reader import open_records
from tests.support.readers import tf_records

TF_COMPRESSION = {"none": "", "gzip": "GZIP"}


def stored_member(data: bytes) -> bytes:
    """Return data as one gzip member of stored deflate blocks."""
    return HEADER + b"".join(pack_body([data], "stored"))


def deflated_member(data: bytes) -> bytes:
    """Return data as one gzip member compressed by libdeflate."""
    return HEADER + b"".join(pack_body([data], "deflated"))


def framed(payloads: Sequence[bytes]) -> bytes:
    return b"".join(map(frame, payloads))


def make_payloads(count: int, seed: int = 0, longest: int = 60) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([0, 1, 12, longest])) for _ in range(count)]


def write_records(path: Path, payloads: Sequence[bytes], packing: str = "none") -> Path:
    """Write a TFRecord file with the compression ``none`` or ``gzip``."""
    packed = {"none": bytes, "gzip": gzip.compress}[packing]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(framed(payloads)))
    return path


def header(length: int) -> bytes:
    """Return the header of a record of any length, with a valid CRC."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc(packed))


def flip(data: bytes, at: int, mask: int = 1) -> bytes:
    """Return data with some bits of one byte flipped."""
    damaged = bytearray(data)
    damaged[at] ^= mask
    return bytes(damaged)


def pieces(data: bytes, steps: Sequence[int]) -> list[bytes]:
    """Return data in pieces of these sizes, which may be 0, and the rest."""
    ends = list(itertools.accumulate(steps, initial=0))
    return [data[at:end] for at, end in itertools.pairwise(ends)] + [data[ends[-1] :]]


def listed(members: Sequence[bytes], entries: Sequence[tuple[int, int]]) -> bytes:
    """Return an index with any entries, then members; sizes exclude the index."""
    (first, *others), records = [size for size, _ in entries], [count for _, count in entries]
    sizes = [first - len(HEADER) + INDEX_BYTES, *others]
    index = build_index([Member(*entry) for entry in zip(sizes, records, strict=True)])
    return index + b"".join(members)[len(HEADER) :]


def indexed(groups: Sequence[Sequence[bytes]], pack: Callable = stored_member) -> bytes:
    """Return a valid indexed shard with one member for each group of payloads."""
    members = [pack(framed(group)) for group in groups]
    return listed(members, [(len(m), len(g)) for m, g in zip(members, groups, strict=True)])


def in_groups(payloads: list[bytes], size: int) -> list[list[bytes]]:
    return [payloads[at : at + size] for at in range(0, len(payloads), size)]


def all_kinds(payloads: list[bytes]) -> dict[str, bytes]:
    """Return a file of each kind, all with the same records."""
    raw = framed(payloads)
    groups = in_groups(payloads, 4)
    half = len(groups) // 2
    return {
        "none": raw,
        "one member": gzip.compress(raw),
        "many members": b"".join(gzip.compress(raw[at : at + 50]) for at in range(0, len(raw), 50)),
        "stored": indexed(groups),
        "deflated": indexed(groups, deflated_member),
        "cat of indexed": indexed(groups[:half]) + indexed(groups[half:], deflated_member),
        "gzip -c >> indexed": indexed(groups[:half])
        + b"".join(gzip.compress(framed(group)) for group in groups[half:]),
        "indexed >> gzip": gzip.compress(framed(payloads[: 4 * half])) + indexed(groups[half:]),
    }


def read_all(path: Path | str) -> list[bytes]:
    with open_records(str(path)) as records:
        return list(records)


def tf_reads(path: Path | str, compression: str) -> list[bytes] | None:
    """Return the payloads that tf.data reads, or None if it reports data loss."""
    import tensorflow as tf

    try:
        return tf_records(path, TF_COMPRESSION[compression])
    except tf.errors.DataLossError:
        return None
