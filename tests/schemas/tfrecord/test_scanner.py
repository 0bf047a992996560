"""The record scanner: chunks of any size give the same records and faults."""

import pickle

import pytest

from shardmill.schemas.tfrecord.scanner import (
    FAULTS,
    DamagedError,
    FileFault,
    RecordScanner,
)
from tests.support.record_tools import framed


@pytest.mark.parametrize("cut", range(1, 20))
def test_the_end_of_an_incomplete_record_is_known_after_its_header(cut):
    scanner = RecordScanner()
    scanner.feed(framed([b"abcd"])[:cut])
    assert scanner.pending_end == (20 if cut >= 12 else 0)


def test_damaged_errors_can_be_pickled():
    for reason in FAULTS:
        error = DamagedError(FileFault(reason, 3, 1234, "what exactly"))
        again = pickle.loads(pickle.dumps(error))
        assert (again.fault, str(again)) == (error.fault, str(error))
    assert str(DamagedError(FileFault("length_crc", 1000, 123_456, "why"))) == (
        "record 1,000 at byte 123,456: why"
    )
    assert str(FileFault("changed", 3, 1234, "the file is new")) == "the file is new"
