"""Digests of references are pinned: parts and datasets of earlier versions are found by them."""

import pytest

from shardmill.schemas import InputRef
from shardmill.schemas.refs import Reference, SegmentRef

FILE = InputRef(
    "cat/1.jpg", "/data/cat/1.jpg", 1234, "1700000000000000001", "cat", "train", group="g"
)
SEGMENT = SegmentRef(
    "a#b.csv#0000000000001000.00000003", "/o/r.run", 17, 100, 0xABCDEF, "train", 3, 8
)


@pytest.mark.parametrize(
    ("ref", "key", "digest"),
    [
        (FILE, "cat/1.jpg", 0x3E2F96BCEF51233D36A7A62B6B376FE6),
        (
            FILE._replace(label=None, split="", group=""),
            "cat/1.jpg",
            0xA456A967860BE2CB06A466BDAB825099,
        ),
        (FILE.rejected("not_found", "gone"), "cat/1.jpg", 0xF9E393C482E77A439E6FB9071EA4E2D0),
        (SEGMENT, "a#b.csv#0000000000001000.00000003", 0x2AE7FB736FF7F996D20675634D5AB05B),
        (
            SEGMENT._replace(split=""),
            "a#b.csv#0000000000001000.00000003",
            0xD1C779A0F61A560068B9E73946D24EE6,
        ),
    ],
)
def test_digests_are_pinned(ref: Reference, key: str, digest: int) -> None:
    assert (ref.key, ref.digest()) == (key, digest)


def test_a_digest_ignores_where_a_file_is_and_why_it_was_rejected() -> None:
    moved = FILE._replace(uri="gs://b/cat/1.jpg", message="anything")
    assert moved.digest() == FILE.digest()
    assert SEGMENT._replace(uri="/elsewhere", offset=0).digest() == SEGMENT.digest()
