"""The record scanner: chunks of any size give the same records and faults."""

import pickle

from shardmill.schemas.tfrecord.scanner import (
    FAULTS,
    DamagedError,
    FileFault,
)


def test_damaged_errors_can_be_pickled():
    for reason in FAULTS:
        error = DamagedError(FileFault(reason, 3, 1234, "what exactly"))
        again = pickle.loads(pickle.dumps(error))
        assert (again.fault, str(again)) == (error.fault, str(error))
    assert str(DamagedError(FileFault("length_crc", 1000, 123_456, "why"))) == (
        "record 1,000 at byte 123,456: why"
    )
    assert str(FileFault("changed", 3, 1234, "the file is new")) == "the file is new"
