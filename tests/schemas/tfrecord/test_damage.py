"""Damaged files: the first fault is exact, and files without one are read like tf.data reads them."""

import os
from pathlib import Path

import google_crc32c
import pytest

from shardmill.schemas.storage.gcs import GcsStorage
from shardmill.schemas.storage.local import LocalReader
from shardmill.schemas.tfrecord.gzip_member import INDEX_BYTES
from shardmill.schemas.tfrecord.reader import count_file, open_records
from shardmill.schemas.tfrecord.scanner import DamagedError, FileFault
from tests.conftest import SOAK
from tests.support.record_tools import (
    all_kinds,
    deflated_member,
    flip,
    framed,
    indexed,
    make_payloads,
    read_all,
    tf_reads,
)

pytest_plugins = ["tests.support.gcs_server"]


# tests/golden/transcripts/tfrecord_faults.txt has each fault.

GROUPS = [[b"abc", b"de"], [b"fgh", b"", b"ijkl"]]
RAW = framed(GROUPS[0] + GROUPS[1])  # records at 0, 19, 37, 56, 72; 92 bytes


# Missing, unreadable and changed files


def fault(path: object, check: str = "records") -> FileFault:
    found = count_file(str(path), check).fault
    with pytest.raises(DamagedError) as caught, open_records(str(path)) as records:
        list(records)
    assert caught.value.fault == found
    return found


def test_files_that_cannot_be_opened(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(RAW)
    for path in ("missing", "no/such", "file/below"):
        assert fault(tmp_path / path) == ("not_found", 0, 0, "the file does not exist")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("folder", "pipe"):
        assert fault(tmp_path / name).reason == "changed"
        assert "is not one now" in str(fault(tmp_path / name))

    def deny(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", deny)
    assert fault(tmp_path / "file") == ("unreadable", 0, 0, "reading it is not allowed")


OTHER = "the file changed since it was listed"


@pytest.mark.parametrize("kind", all_kinds([b""] * 8))
@pytest.mark.parametrize("check", ["records", "index"])
def test_a_file_replaced_before_the_scan_is_changed(kind, check, tmp_path):
    path = tmp_path / "file"
    data = all_kinds(make_payloads(24))[kind]
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    assert count_file(str(path), check, version="1").records == 24
    assert count_file(str(path), check, version="2").fault == ("changed", 0, 0, OTHER)


SHORTER = "the file became shorter while it was read"


@pytest.mark.sweep
@pytest.mark.parametrize("kind", all_kinds([b""] * 8))
@pytest.mark.parametrize("check", ["records", "index"])
@pytest.mark.timeout(60)
def test_a_file_truncated_during_the_scan_is_changed(kind, check, tmp_path, monkeypatch):
    # Must not loop forever at any size and after any number of reads.
    monkeypatch.setattr(LocalReader, "chunk", 64)
    monkeypatch.setattr(LocalReader, "gap", 16)
    payloads = make_payloads(24)
    data = all_kinds(payloads)[kind]
    path = tmp_path / "file"
    honest = LocalReader.read_at
    for size in range(0, len(data), 19 if len(data) < 1500 else 97):
        for after in (0, 1, 2, 5):
            path.write_bytes(data)
            calls = iter(range(10_000))

            def read_at(self, offset, length, size=size, after=after, calls=calls):
                if next(calls) == after:
                    os.truncate(path, size)
                return honest(self, offset, length)

            monkeypatch.setattr(LocalReader, "read_at", read_at)
            count = count_file(str(path), check)
            if count.fault is None:  # everything needed had been read
                assert count.records == 24
            else:
                assert count.fault[0::3] in (("changed", SHORTER), ("changed", OTHER))
            monkeypatch.setattr(LocalReader, "read_at", honest)


# Files with random damage: no fault is reported only if tf.data reads the same

MUTABLE = {
    **all_kinds(make_payloads(12, 5)),
    "long groups": indexed([make_payloads(40, 1), make_payloads(40, 2)], deflated_member),
}
WHOLE = {name: 80 if name == "long groups" else 12 for name in MUTABLE}


def judge(path: Path, name: str, data: bytes) -> None:
    """Check a possibly damaged file; compare with tf.data if no fault is found."""
    path.write_bytes(data)
    counts = {check: count_file(str(path), check) for check in ("records", "index")}
    records, cheap = counts["records"], counts["index"]
    wanted = None
    if records.fault is None or (cheap.fault is None and cheap.records != WHOLE[name]):
        wanted = tf_reads(path, records.compression)
    if records.fault is None:
        payloads = read_all(path)
        assert payloads == wanted
        assert records.records == len(payloads)
        assert records.crc32c == f"{google_crc32c.value(data):08x}"
    if cheap.fault is None and cheap.records != WHOLE[name]:
        assert wanted is not None
        assert cheap.records == len(wanted)


@pytest.mark.sweep
@pytest.mark.parametrize("name", MUTABLE)
def test_every_damaged_byte_and_every_truncation(name, tmp_path):
    data, small = MUTABLE[name], name in ("none", "one member")
    step = 1 if small or name in ("stored", "deflated") else 11
    for at in range(0, len(data), step if SOAK else 3 * step):
        if small or not 40 <= at < INDEX_BYTES:  # else within the index
            judge(tmp_path / "file", name, flip(data, at, 1 + at * 7 % 255))
            judge(tmp_path / "file", name, data[:at])


# On gs://


def put(uri: str, data: bytes) -> str:
    GcsStorage().replace(uri, data)
    return uri


def test_few_requests_on_gs(strict_bucket, front):
    members = [make_payloads(9, seed, 3000) for seed in range(9)]
    shard = put(f"{strict_bucket}/a", indexed(members))
    two = put(f"{strict_bucket}/b", indexed(members) * 2)
    plain = put(f"{strict_bucket}/c", framed(make_payloads(500)))
    for uri, check, calls in (
        (shard, "index", {"get": 1, "download": 1}),  # the first read contains the index
        (two, "index", {"get": 1, "download": 2}),
        (shard, "records", {"get": 1, "download": 2}),
        (plain, "index", {"get": 1, "download": 2}),
        (plain, "records", {"get": 1, "download": 2}),
    ):
        front.reset()
        assert count_file(uri, check).fault is None
        assert front.counts() == calls, (uri, check)


@pytest.mark.parametrize("gone", [False, True])
def test_an_object_that_changes_during_the_scan(gone, strict_bucket, front):
    uri = put(f"{strict_bucket}/x", framed(make_payloads(500)))
    downloads = iter(range(1, 100))

    def change(call):
        if call.kind == "download" and next(downloads) == 2:
            GcsStorage().delete(uri) if gone else put(uri, b"new")

    front.hook = change
    count = count_file(uri)
    front.hook = lambda call: None
    assert count.fault.reason == ("not_found" if gone else "changed")


def test_missing_objects_on_gs(strict_bucket):
    put(f"{strict_bucket}/folder/x", b"x")
    for name in ("missing", "folder"):
        assert fault(f"{strict_bucket}/{name}") == ("not_found", 0, 0, "the file does not exist")
