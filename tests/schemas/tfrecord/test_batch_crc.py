"""Vectorised CRC checks: equal to those of single records."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas.tfrecord import framing
from shardmill.schemas.tfrecord.framing import combine_crc32c, frame, mask

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
        for flip in (1, 128, 255):
            wrong = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
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
