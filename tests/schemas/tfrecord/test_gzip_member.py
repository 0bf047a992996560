"""Ranges of records in stored members, and the member index."""

import gzip
import random
import shutil
import subprocess

import google_crc32c
import pytest
from hypothesis import strategies as st

from shardmill.schemas.tfrecord import gzip_member
from shardmill.schemas.tfrecord.framing import frame, record_offsets
from shardmill.schemas.tfrecord.gzip_member import (
    HEADER,
    Member,
    find_blocks,
    stored_range,
    strip_block_headers,
)
from shardmill.transforms.sink import record_writer
from shardmill.transforms.sink.record_writer import MemberWriter
from tests.support.readers import tf_records
from tests.support.record_tools import deflated_member, indexed, stored_member


def test_finds_blocks_of_our_layout_only():
    content = bytes(65_535 + 10)
    long, short = b"\xff\xff\x00\x00" + content[:65_535], b"\x0a\x00\xf5\xff" + content[:10]
    head, trailer = HEADER, stored_member(content)[-8:]
    ours = head + b"\0" + long + b"\1" + short + trailer
    assert ours == stored_member(content)
    assert find_blocks(ours, len(content)) == 10
    swapped = head + b"\0" + short + b"\1" + long + trailer
    named = head[:3] + b"\x08" + ours[4:]  # a flag that announces a file name
    for other in (swapped, named, ours + b"\0", deflated_member(content)):
        assert find_blocks(other, len(content)) == -1


def test_records_that_end_with_a_block():
    sizes = [65_519, 131_054, 0, 65_503, 9]
    framed = [frame(bytes([65 + n]) * size) for n, size in enumerate(sizes)]
    content = b"".join(framed)
    member, starts = stored_member(content), record_offsets(content)
    assert [at % 65_535 for at in starts[:3]] == [starts[4] % 65_535, 0, 0] == [0, 0, 0]
    ranges = zip(starts, starts[1:], framed, [1, 2, 1, 1, 1], strict=False)
    for start, end, expected, blocks in ranges:
        low, high = stored_range(start, end)
        assert high - low == end - start + 5 * (blocks - 1)  # only the record is read
        assert strip_block_headers(member[10 + low : 10 + high], start) == expected


TOOLS = [["gzip", "-dc"], ["pigz", "-dc"], ["busybox", "gunzip", "-c"], ["bsdcat"]]


def reader(data: bytes):
    return lambda offset, length: data[offset : offset + length]


def make_shard(counts: list[int], pack=stored_member) -> bytes:
    """Return one group of members with these numbers of records."""
    groups = [[b"%d/%d" % (number, i) for i in range(count)] for number, count in enumerate(counts)]
    return indexed(groups, pack)


members = st.lists(
    st.builds(Member, st.integers(18, 1 << 34), st.integers(0, 1 << 21)), min_size=1, max_size=50
)


@pytest.mark.parametrize("pack", [stored_member, deflated_member])
def test_concatenated_shards_are_complete_and_indexed(tmp_path, pack) -> None:
    # Small shards: a reader that stops at an empty member would lose the rest.
    a, b = make_shard([2, 3], pack), make_shard([5], pack)
    for joined, counts in ((a + b, [2, 3, 5]), (b + a + b, [5, 2, 3, 5])):
        found = gzip_member.read_index(reader(joined), len(joined))
        assert [m.records for m in found or []] == counts
        path = tmp_path / "joined.gz"
        path.write_bytes(joined)
        assert len(tf_records(path)) == sum(counts)


def test_rejects_more_members_than_fit() -> None:
    with pytest.raises(ValueError, match="2000 members do not fit"):
        gzip_member.build_index([Member(1 << 40, 1 << 40)] * 2_000)
    with pytest.raises(ValueError, match="0 members do not fit"):
        gzip_member.build_index([])


@pytest.mark.parametrize("packing", ["stored", "deflated", "none"])
def test_writer_splits_groups_and_members(tmp_path, packing, monkeypatch) -> None:
    monkeypatch.setattr(record_writer, "MEMBER_BYTES", 1_000)
    # Each payload is a member, so several groups are needed. See ``find_early_stop`` for the seed.
    big = random.Random(3).randbytes(1_000)
    payloads = [big + bytes(i) for i in range(400)] + [b"", b"tail"]
    path = tmp_path / "shard"
    with path.open("wb") as file:
        writer = MemberWriter(file, packing)
        for payload in payloads:
            writer.add(payload)
        writer.close()
    data = path.read_bytes()
    assert writer.num_bytes == len(data)
    assert writer.crc == google_crc32c.value(data)
    assert tf_records(path, "" if packing == "none" else "GZIP") == payloads
    if packing == "none":
        assert data == b"".join(map(frame, payloads))
        return
    found = gzip_member.read_index(reader(data), len(data))
    assert found is not None
    assert len(found) == 401
    assert sum(m.records for m in found) == 402
    assert data.count(b"SM\xf0\x01\x01") > 1  # more than one index


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool[0])
def test_command_line_tools_skip_the_index(tmp_path, tool) -> None:
    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed")
    data = make_shard([3, 200]) + make_shard([7], deflated_member) + gzip_member.empty_shard()
    path = tmp_path / "a.gz"
    path.write_bytes(data)
    done = subprocess.run([*tool, str(path)], capture_output=True, check=True)
    assert done.stdout == gzip.decompress(data)
