"""The record scanner: chunks of any size give the same records and faults."""

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardmill.schemas.tfrecord.scanner import (
    FAULTS,
    DamagedError,
    FileFault,
    RecordScanner,
)
from tests.conftest import examples
from tests.support.record_tools import flip, framed, header, pieces

payloads = st.lists(st.binary(max_size=40) | st.integers(0, 3000).map(bytes), max_size=12)
cuts = st.lists(st.integers(0, 2000), max_size=30)


def fault_of(data: bytes, steps: list[int] = (), **options) -> FileFault | None:
    scanner = RecordScanner(**options)
    try:
        for piece in pieces(data, steps):
            scanner.feed(piece)
        scanner.close()
    except DamagedError as error:
        return error.fault
    return None


@given(payloads, cuts, st.integers(0, 99))
def test_pieces_of_any_size_give_the_same_records(payloads, steps, start):
    taken = []
    data = framed(payloads)
    scanner = RecordScanner(start, take=taken.append)
    for piece in pieces(data, steps):
        scanner.feed(piece)
    scanner.close()
    assert taken == payloads
    assert all(type(payload) is bytes for payload in taken)
    assert (scanner.records, scanner.offset) == (len(payloads), start + len(data))
    assert scanner.is_between_records


@pytest.mark.parametrize("many", [1, 1 << 60], ids=["vectorised", "single"])
@pytest.mark.parametrize("take", [False, True])
@given(payloads, cuts, st.integers(0, 5000), st.integers(0, 255), st.booleans())
@settings(max_examples=examples(150))
def test_reports_the_exact_fault_in_pieces_of_any_size(
    many, take, payloads, steps, at, mask, check
):
    """One byte is damaged, or the data is cut there."""
    payloads = [b"abc", *payloads, b"more"]
    data = framed(payloads)
    at %= len(data)
    taken: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardmill.schemas.tfrecord.scanner._MANY", many)
        damaged = flip(data, at, mask) if mask else data[:at]
        fault = fault_of(damaged, steps, check=check, take=taken.append if take else None)
    ends = np.cumsum([len(payload) + 16 for payload in payloads])
    number = int(np.searchsorted(ends, at, "right"))
    begin = int(ends[number - 1]) if number else 0
    damage = "length_crc" if at - begin < 12 else "payload_crc"
    reason = damage if mask else "truncated"
    if (reason == "payload_crc" and not check) or (not mask and at == begin):
        assert fault is None
    else:
        assert fault[:3] == (reason, number, begin)
        assert taken == payloads[: number * take]


def test_a_forged_length_does_not_allocate_memory():
    tracemalloc.start()
    scanner = RecordScanner(take=print)
    scanner.feed(framed([b"abc"]) + header(2**60))
    scanner.feed(b"a few bytes")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000
    assert scanner.pending_end == 19 + 2**60 + 16
    with pytest.raises(DamagedError, match="ends after 23 of its 1,152,921,504,606,846,992 bytes"):
        scanner.close()


@pytest.mark.parametrize("cut", range(1, 20))
def test_the_end_of_an_incomplete_record_is_known_after_its_header(cut):
    scanner = RecordScanner()
    scanner.feed(framed([b"abcd"])[:cut])
    assert scanner.pending_end == (20 if cut >= 12 else 0)


@given(st.binary(max_size=200), cuts)
@example(header(2**64 - 1), [])
def test_random_bytes_are_a_fault(data, steps):
    fault = fault_of(data, steps)
    assert (fault is None) == (data == b"") or data[:12] == header(len(data) - 16)
    assert fault == fault_of(data)


def test_damaged_errors_can_be_pickled():
    for reason in FAULTS:
        error = DamagedError(FileFault(reason, 3, 1234, "what exactly"))
        again = pickle.loads(pickle.dumps(error))
        assert (again.fault, str(again)) == (error.fault, str(error))
    assert str(DamagedError(FileFault("length_crc", 1000, 123_456, "why"))) == (
        "record 1,000 at byte 123,456: why"
    )
    assert str(FileFault("changed", 3, 1234, "the file is new")) == "the file is new"
