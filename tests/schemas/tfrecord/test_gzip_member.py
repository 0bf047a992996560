"""Byte ranges of records in stored members, compared with framed records at known offsets."""

from shardmill.schemas.tfrecord.framing import frame, record_offsets
from shardmill.schemas.tfrecord.gzip_member import (
    HEADER,
    deflated_member,
    find_blocks,
    stored_member,
    stored_range,
    strip_block_headers,
)


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
