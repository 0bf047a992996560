"""Record framing, gzip members and CRC-32C, compared with tf.data, gzip and google_crc32c."""

import gzip
import random
import zlib

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas.errors import FormatError
from shardmill.schemas.tfrecord import framing
from shardmill.schemas.tfrecord.framing import combine_crc32c, frame, mask
from tests.support.record_tools import deflated_member, flip, stored_member

SIZES = [0, 1, 65_534, 65_535, 65_536, 131_070, 131_071, 200_000]


lengths = st.integers(0, 300) | st.integers(0, 1 << 20)


@given(st.binary(max_size=300), st.binary(max_size=300) | lengths.map(bytes))
def test_combined_crc_equals_that_of_the_joined_bytes(first: bytes, second: bytes) -> None:
    combined = framing.combine_crc32c(framing.crc32c(first), framing.crc32c(second), len(second))
    assert combined == google_crc32c.value(first + second)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pack", [stored_member, deflated_member])
def test_members_have_a_constant_header(size: int, pack) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    member = pack(data)
    assert gzip.decompress(member) == data
    assert zlib.decompress(member, 31) == data
    assert member[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


def test_golden_bytes() -> None:
    assert framing.crc32c(b"123456789") == 0xE3069283  # RFC 3720 section B.4
    # The frame was written by tf.io.TFRecordWriter; the rest follows RFC 1951 and RFC 1952.
    framed = framing.frame(b"shardmill")
    assert framed.hex() == "090000000000000037f9713973686172646d696c6c0d30dd73"
    assert stored_member(framed).hex() == (
        "1f8b08000000000000ff"  # header
        "011900e6ff"  # one last stored block
        "090000000000000037f9713973686172646d696c6c0d30dd73"
        "98b94e8b19000000"  # CRC-32 and size
    )


def test_damaged_records_are_found() -> None:
    content = b"".join(map(framing.frame, [b"abc", b"", b"defg"]))
    assert framing.record_offsets(content) == [0, 19, 35, 55]
    for cut in {*range(1, len(content))} - {19, 35}:
        with pytest.raises(FormatError, match=r"record \d is truncated"):
            framing.record_offsets(content[:cut])
    for at in (0, 8, 19, 35, 46):
        with pytest.raises(FormatError, match=r"the CRC of the length of record \d"):
            framing.record_offsets(flip(content, at))
    good = framing.frame(b"abc")
    assert framing.unframe(good) == b"abc"
    for at in range(len(good)):
        with pytest.raises(FormatError, match="its length" if at < 12 else "its payload"):
            framing.unframe(flip(good, at))
    for wrong in (b"", good[:11], good[:15], good[:-1], good + b"\0"):
        with pytest.raises(FormatError):
            framing.unframe(wrong)


words = st.integers(0, (1 << 32) - 1)


def offsets_of(payloads: list[bytes], at: int = 0) -> np.ndarray:
    begins = [at]
    for payload in payloads:
        begins.append(begins[-1] + len(payload) + 16)
    return np.array(begins)


@given(
    st.lists(st.tuples(words, st.integers(0, framing.MAX_DISTANCE - 1)), min_size=1, max_size=20)
)
def test_advance_equals_combine_crc32c(pairs) -> None:
    values, distances = np.array([p[0] for p in pairs], np.uint32), np.array([p[1] for p in pairs])
    wanted = [combine_crc32c(value, 0, distance) for value, distance in pairs]
    assert framing.advance(values, distances).tolist() == wanted
    assert framing.unmask(mask(values)).tolist() == values.tolist()


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=30), st.binary(max_size=20))
def test_valid_records_match(payloads, before) -> None:
    data = before + b"".join(map(frame, payloads)) + b"behind"
    assert framing.all_payloads_match(data, offsets_of(payloads, len(before)))


def test_detects_every_damaged_byte_of_payloads_and_their_crcs() -> None:
    rng = random.Random(5)
    payloads = [rng.randbytes(rng.randrange(40)) for _ in range(40)]
    data, begins = b"".join(map(frame, payloads)), offsets_of(payloads)
    headers = {at + n for at in begins[:-1].tolist() for n in range(12)}
    for at in sorted(set(range(len(data))) - headers):
        for bits in (1, 128, 255):
            wrong = data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
            assert not framing.all_payloads_match(wrong, begins), at


def test_finds_the_first_damaged_length() -> None:
    payloads = [bytes(n) for n in range(100)]
    data, begins = b"".join(map(frame, payloads)), offsets_of(payloads)[:-1]
    assert framing.find_damaged_length(data, begins) == -1
    for number in (0, 41, 99):
        for byte in range(12):
            wrong = bytearray(data)
            wrong[begins[number] + byte] ^= 4
            wrong[begins[-1] + byte] ^= 8
            assert framing.find_damaged_length(bytes(wrong), begins) == number


def test_too_many_bytes_are_not_checked(monkeypatch) -> None:
    payloads = [b"abc"] * 8
    data = b"".join(map(frame, payloads))
    monkeypatch.setattr(framing, "MAX_DISTANCE", len(data))
    assert not framing.all_payloads_match(data, offsets_of(payloads))
    monkeypatch.setattr(framing, "MAX_DISTANCE", len(data) + 1)
    assert framing.all_payloads_match(data, offsets_of(payloads))
