"""Reading inputs: what is retried, and what becomes a reject."""

import os
import resource
import threading
import time

import pytest

from shardmill.schemas import InputRef, RejectedError
from shardmill.schemas.errors import StorageError
from shardmill.schemas.refs import REASONS, TRANSIENT
from shardmill.transforms import read_input
from shardmill.transforms.match.read_input import read_inputs


def ref_of(path) -> InputRef:
    status = os.stat(path)
    return InputRef("key", str(path), status.st_size, str(status.st_mtime_ns))


def rejection(ref: InputRef) -> tuple[str, float]:
    started = time.monotonic()
    with pytest.raises(RejectedError) as caught:
        read_input(ref)
    assert caught.value.stage == "read"
    assert caught.value.error in TRANSIENT <= REASONS.keys()
    return caught.value.error, time.monotonic() - started


def test_a_file_that_is_back_after_a_moment_is_read(tmp_path):
    for away in ("missing", "other"):
        path = tmp_path / away
        path.write_bytes(b"content")
        ref = ref_of(path)
        path.rename(tmp_path / "kept")
        if away == "other":
            path.write_bytes(b"another content")
        back = threading.Timer(0.05, lambda path=path: (tmp_path / "kept").rename(path))
        back.start()
        assert read_input(ref) == b"content"
        back.join()


def test_each_failure_is_tried_three_times(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    ref = ref_of(path)
    os.utime(path, ns=(1, 1))
    reason, seconds = rejection(ref)
    assert (reason, seconds >= 0.5) == ("changed", True)
    path.unlink()
    reason, seconds = rejection(ref)
    assert (reason, seconds >= 0.5) == ("not_found", True)


def test_missing_files_of_a_request_wait_together(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    missing = [InputRef(str(number), str(tmp_path / f"{number}"), 1, "1") for number in range(15)]
    started = time.monotonic()
    results = read_inputs([*missing[:7], ref_of(path), *missing[7:]])
    seconds = time.monotonic() - started
    assert results.pop(7) == b"content"
    assert [getattr(result, "error", result) for result in results] == ["not_found"] * 15
    assert 0.5 <= seconds < 1.5  # waiting for each one in turn takes 7.5 seconds


def test_a_disk_error_is_a_property_of_the_file():
    reason, _ = rejection(InputRef("key", "/proc/self/mem", 1, "0"))  # EIO
    assert reason == "unreadable"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_a_file_of_another_user_is_unreadable(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    ref = ref_of(path)
    path.chmod(0o600)
    os.seteuid(65534)
    try:
        reason, _ = rejection(ref)
    finally:
        os.seteuid(0)
    assert reason == "unreadable"


def test_too_many_open_files_are_no_property_of_the_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    ref = ref_of(path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(StorageError, match="Too many open files"):
            read_input(ref)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
