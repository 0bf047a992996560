"""Byte ranges of records in stored members, compared with framed records at known offsets."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.schemas.tfrecord.framing import frame, record_offsets, unframe
from shardmill.schemas.tfrecord.gzip_member import HEADER, Member, deflated_member, stored_member
from shardmill.schemas.tfrecord.member_index import INDEX_BYTES, build_index
from shardmill.schemas.tfrecord.stored_blocks import find_blocks, stored_range, strip_block_headers
from tests.conftest import examples


@settings(max_examples=examples(150))
@given(st.lists(st.integers(0, 150_000), min_size=1, max_size=8), st.booleans(), st.data())
def test_range_of_a_record_among_block_headers(sizes, first, data):
    rng = random.Random(str(sizes))
    framed = [frame(rng.randbytes(size)) for size in sizes]
    content = b"".join(framed)
    starts = record_offsets(content)
    assert starts == [sum(map(len, framed[:i])) for i in range(len(framed) + 1)]
    member = stored_member(content)
    if first:
        size = len(member) - len(HEADER) + INDEX_BYTES
        member = build_index([Member(size, len(sizes))]) + member[len(HEADER) :]
    blocks = find_blocks(member, len(content))
    assert blocks == (INDEX_BYTES if first else len(HEADER))
    number = data.draw(st.integers(0, len(sizes) - 1))
    start, end = starts[number], starts[number + 1]
    low, high = stored_range(start, end)
    read = strip_block_headers(member[blocks + low : blocks + high], start)
    assert read == framed[number]
    assert unframe(read) == framed[number][12:-4]


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
    framed = [
        frame(bytes([65 + n]) * size) for n, size in enumerate([65_519, 131_054, 0, 65_503, 9])
    ]
    content = b"".join(framed)
    member, starts = stored_member(content), record_offsets(content)
    assert [at % 65_535 for at in starts[:3]] == [starts[4] % 65_535, 0, 0] == [0, 0, 0]
    for start, end, expected, blocks in zip(
        starts, starts[1:], framed, [1, 2, 1, 1, 1], strict=False
    ):
        low, high = stored_range(start, end)
        assert high - low == end - start + 5 * (blocks - 1)  # only the record is read
        assert strip_block_headers(member[10 + low : 10 + high], start) == expected
