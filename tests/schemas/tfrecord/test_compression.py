"""Detection of compression, and decompression in bounded memory with exact reports of damage."""

import gzip
import struct
import subprocess
import sys
import time
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.schemas.tfrecord import framing, inflate
from shardmill.schemas.tfrecord.gzip_member import HEADER
from shardmill.schemas.tfrecord.reader import (
    describe_other_content,
)
from tests.conftest import examples
from tests.support.record_tools import (
    deflated_member,
    framed,
    header,
    pieces,
    stored_member,
)

RECORDS = framed([b"abc", b"", bytes(100)])


class Bytes:
    """Bytes as a ``RandomReader``."""

    chunk, gap, version = 1000, 100, "1"

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@given(st.binary(min_size=1, max_size=300), st.binary(max_size=50), st.integers(0, 50))
@settings(max_examples=examples(200))
def test_a_file_with_a_record_inside_may_be_damaged(noise, payload, short):
    """Alone, data of bytes that no text has is not a TFRecord file."""
    noise = b"\xfe" * 70 + noise
    data = noise + framing.frame(payload)
    assert describe_other_content(data, len(data)) == ""
    other = "binary data that does not begin with the header of a record"
    assert describe_other_content(data[: len(noise) + 11], len(data)) == other
    # A record that does not fit the file is none.
    assert describe_other_content(data, len(data) - 1 - short) == other


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\1\0\0\0\0\0\0\0", b"text "])
@pytest.mark.parametrize("place", [1, (1 << 19) + 3])
def test_finds_a_record_in_any_content(fill, place):
    noise = (fill * (place + 1))[:place]
    data = noise + framing.frame(b"here") + noise
    assert describe_other_content(data, len(data)) == ""
    many = (noise * 99)[: 1 << 20]
    assert describe_other_content(many, len(many)) != ""


def inflate_all(data: bytes, steps=(), start=0, warn=None) -> bytes:
    return b"".join(inflate.gzip_chunks(iter(pieces(data, steps)), start, warn))


packs = st.sampled_from([gzip.compress, stored_member, deflated_member])


@given(st.lists(st.tuples(st.binary(max_size=300), packs)), st.lists(st.integers(0, 200)))
def test_inflates_members_in_chunks_of_any_size(members, steps):
    data = b"".join(pack(content) for content, pack in members)
    assert inflate_all(data, steps) == b"".join(content for content, _ in members)


def with_flags(flags: int, extra: bytes, content: bytes) -> bytes:
    return HEADER[:3] + bytes([flags]) + HEADER[4:] + extra + deflated_member(content)[10:]


def with_crc(content: bytes, crc: int = 0) -> bytes:
    crc ^= zlib.crc32(HEADER[:3] + b"\2" + HEADER[4:])
    return with_flags(2, struct.pack("<H", crc & 0xFFFF), content)


def test_reads_all_header_fields_and_checks_their_crc():
    fields = {1: b"", 4: b"\3\0abc", 8: b"name\0", 16: b"words\0", 12: b"\0\0n\0"}
    for flags, extra in fields.items():
        member = with_flags(flags, extra, RECORDS)
        assert b"".join(inflate.inflate_member(member, 0)) == RECORDS == inflate_all(member)
    assert b"".join(inflate.inflate_member(with_crc(RECORDS), 0)) == RECORDS
    with pytest.raises(inflate.InflateError, match="header crc mismatch"):
        list(inflate.inflate_member(with_crc(RECORDS, 1), 0))
    with pytest.raises(inflate.InflateError, match="unknown header flags set"):
        list(inflate.inflate_member(with_flags(0x20, b"", RECORDS), 0))


def test_many_small_members_take_linear_time():
    # zlib copies the data after a member: for 200,000 members in one chunk that took 50 s.
    data = gzip.compress(b"some record, and more of it") * 200_000
    begun = time.process_time()
    assert len(inflate_all(data)) == 27 * 200_000
    assert time.process_time() - begun < 5


BOMB = """
import re, sys
from shardmill.schemas.tfrecord.reader import count_file
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
count_file(sys.executable)
before = peak()
count = count_file(sys.argv[1], "records")
print(count.records, count.fault and count.fault.reason, (peak() - before) >> 10)
"""


def bomb(path, size: int, frame_it: bool) -> None:
    """Write compressed zeros, optionally framed as one record, in bounded memory."""
    stream = zlib.compressobj(1, zlib.DEFLATED, 31)
    step = 1 << 20
    zeros, crc, one = bytes(step), 0, framing.crc32c(bytes(step))
    with path.open("wb") as file:
        file.write(stream.compress(header(size) if frame_it else b""))
        for _ in range(size // step):
            file.write(stream.compress(zeros))
            crc = framing.combine_crc32c(crc, one, step)
        footer = struct.pack("<I", framing.mask(crc)) if frame_it else b""
        file.write(stream.compress(footer) + stream.flush())


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("size", "frame_it", "printed"),
    [(400 << 20, True, "1 None"), (200 << 20, False, "0 not_tfrecord")],
    ids=["gzip", "zeros"],
)
def test_counts_a_decompression_bomb_in_bounded_memory(tmp_path, size, frame_it, printed):
    path = tmp_path / "bomb"
    bomb(path, size, frame_it)
    assert path.stat().st_size < size / 200
    command = [sys.executable, "-c", BOMB, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *words, grown = done.stdout.split()
    assert " ".join(words) == printed
    assert int(grown) < 20, done.stdout  # MiB
