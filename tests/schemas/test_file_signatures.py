"""Signatures: tests/golden/transcripts/file_signatures.txt has the formats, and text like them."""

from shardmill.schemas.file_signatures import (
    is_heic,
)


def test_heic_is_recognised_by_any_of_its_brands():
    assert is_heic(b"\0\0\0\x20ftypmif1\0\0\0\0mif1miafheic")
    assert is_heic(b"\0\0\0\x18ftyphevc\0\0\0\0msf1hevc")
    assert not is_heic(b"\0\0\0\x1cftypmif1\0\0\0\0mif1miafavif")
    assert not is_heic(b"\0\0\0\x1cftypisom\0\0\0\0heic")
