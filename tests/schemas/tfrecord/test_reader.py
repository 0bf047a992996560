"""Counting and reading TFRecord files, as tf.data does."""

import gzip
import random
from pathlib import Path

import google_crc32c
import pytest

from shardmill.schemas.storage.local import LocalReader
from shardmill.schemas.tfrecord import gzip_member
from shardmill.schemas.tfrecord import reader as counting
from shardmill.schemas.tfrecord.framing import frame
from shardmill.schemas.tfrecord.gzip_member import build_index, empty_shard, read_index
from shardmill.schemas.tfrecord.inflate import empty_member_warning
from shardmill.schemas.tfrecord.reader import FileCount, count_file, open_records
from shardmill.schemas.tfrecord.scanner import DamagedError
from tests.support.record_tools import (
    all_kinds,
    flip,
    framed,
    header,
    indexed,
    listed,
    make_payloads,
    read_all,
    stored_member,
    tf_reads,
)


def crc(data: bytes) -> str:
    return f"{google_crc32c.value(data):08x}"


def valid(data: bytes, records: int, compression: str, *warnings: str) -> FileCount:
    return FileCount(records, len(data), crc(data), compression, None, warnings)


def check_valid(path: Path, records: int, compression: str, *warnings: str) -> None:
    """Check that both counting modes find the records and no fault."""
    data = path.read_bytes()
    wanted = valid(data, records, compression, *warnings)
    assert count_file(str(path)) == wanted
    cheap = count_file(str(path), "index")
    assert (cheap.records, cheap.num_bytes, cheap.fault) == (records, len(data), None)


# Files of other programs


def facts(shared_data: Path) -> list[dict[str, str]]:
    names, *rows = (shared_data / "tfrecord" / "facts.tsv").read_text().splitlines()
    return [dict(zip(names.split("\t"), row.split("\t"), strict=False)) for row in rows]


def test_files_of_other_projects(shared_data):
    seen = {"none": 0, "GZIP": 0}
    for fact in facts(shared_data):
        path = shared_data / fact["path"]
        if fact["framing"] != "ok":
            assert count_file(str(path)).fault.reason == "not_tfrecord"
            continue
        check_valid(path, int(fact["records"]), fact["compression"].lower())
        payloads = read_all(path)
        assert len(payloads) == int(fact["records"])
        assert min(map(len, payloads)) == int(fact["min_len"])
        assert max(map(len, payloads)) == int(fact["max_len"])
        seen[fact["compression"]] += 1
    assert seen == {"none": 10, "GZIP": 17}


# Every compression


@pytest.mark.parametrize("kind", all_kinds([b""] * 8))
def test_every_kind_of_file(kind, tmp_path):
    payloads = make_payloads(40)
    path = tmp_path / "file"
    path.write_bytes(all_kinds(payloads)[kind])
    compression = "none" if kind == "none" else "gzip"
    check_valid(path, 40, compression)
    assert read_all(path) == payloads == tf_reads(path, compression)
    taken = []
    count_file(str(path), take=taken.append)
    assert taken == payloads
    assert {type(payload) for payload in taken} == {bytes}


@pytest.mark.parametrize(
    ("payloads", "data", "compression"),
    [
        ([], b"", "none"),
        ([], gzip.compress(b""), "gzip"),
        ([], gzip.compress(b"") * 3, "gzip"),
        ([], empty_shard(), "gzip"),
        ([], empty_shard() * 2, "gzip"),
        ([b""], frame(b""), "none"),
        ([b""] * 99, frame(b"") * 99, "none"),
        ([b""] * 99, gzip.compress(frame(b"") * 99), "gzip"),
        ([b"a", b""], gzip.compress(frame(b"a")) + gzip.compress(frame(b"")), "gzip"),
    ],
    ids=[
        "nothing",
        "gzip",
        "3 gzip",
        "indexed",
        "2 indexed",
        "one",
        "many",
        "many in gzip",
        "the last is empty",
    ],
)
def test_tiny_files(payloads, data, compression, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(data)
    check_valid(path, len(payloads), compression)
    assert read_all(path) == payloads == tf_reads(path, compression)


# Records inside payloads


@pytest.mark.parametrize("chunk", [30, 1 << 20])
@pytest.mark.parametrize("check", ["records", "index"])
def test_record_like_payloads_do_not_change_the_count(check, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(LocalReader, "chunk", chunk)
    inner = framed(make_payloads(9, seed=3))
    cut = framed(make_payloads(3, seed=4)) + header(70) + b"its payload is not there"
    false = header(0) * 40 + header(90) * 2 + frame(b"valid")[:-4] + b"oops"
    payloads = [b"a", inner, b"", cut, inner + cut, b"b", false, frame(frame(inner)), b"", false]
    path = tmp_path / "file"
    path.write_bytes(framed(payloads))
    found = count_file(str(path), check)
    assert (found.records, found.fault) == (len(payloads), None)


def test_reports_an_indexed_file_that_is_not_tfrecord(tmp_path):
    path = tmp_path / "file"
    for data, content in ((bytes(300), "only zeros: copy"), (b"text " * 60, "but text")):
        members = [stored_member(data)] * 2
        path.write_bytes(listed(members, [(len(members[0]), 3)] * 2))
        fault = count_file(str(path)).fault
        assert fault.reason == "not_tfrecord"
        assert content in str(fault)


# A wrong index

MISMATCH = "its index does not match its records, so the whole file was scanned"
GROUPS = [[b"a", b"bb"], [b"ccc"], [b"a", b"bb"], [b"a", b"bb"]]
PAYLOADS = [payload for group in GROUPS for payload in group]
STORED = [stored_member(framed(group)) for group in GROUPS]
SIZES = [len(member) for member in STORED]
ONE, TWO, THREE, FOUR = SIZES
WRONG_INDEXES = {
    "too few records": [(ONE, 1), (TWO, 1), (THREE, 2), (FOUR, 2)],
    "too many records": [(ONE, 2), (TWO, 1), (THREE, 2), (FOUR, 9)],
    "records of the wrong member": [(ONE, 1), (TWO, 2), (THREE, 2), (FOUR, 2)],
    "cut a byte early": [(ONE - 1, 2), (TWO + 1, 1), (THREE, 2), (FOUR, 2)],
    "cut a byte late": [(ONE, 2), (TWO, 1), (THREE + 1, 2), (FOUR - 1, 2)],
    "cut in the middle": [(ONE + TWO - 20, 2), (20, 1), (THREE + FOUR, 4)],
    "two as one, with one's records": [(ONE, 2), (TWO, 1), (THREE + FOUR, 2)],
    "all as one, with the last one's": [(sum(SIZES), 2)],
}


@pytest.mark.parametrize("wrong", WRONG_INDEXES)
def test_a_wrong_index_is_detected(wrong, tmp_path):
    path = tmp_path / "file"
    data = listed(STORED, WRONG_INDEXES[wrong])
    path.write_bytes(data)
    assert len(tf_reads(path, "gzip")) == 7
    assert count_file(str(path)) == valid(data, 7, "gzip", MISMATCH)
    assert read_all(path) == PAYLOADS


@pytest.mark.parametrize("check", ["records", "index"])
@pytest.mark.parametrize("at", [1, 4])
def test_rejects_an_index_with_empty_members(at, check, tmp_path):
    entries = [(ONE, 2), (TWO, 1), (THREE, 2), (FOUR, 2)]
    data = listed(STORED, [*entries[:at], (0, 3), *entries[at:]])
    (tmp_path / "file").write_bytes(data)
    found = count_file(str(tmp_path / "file"), check)
    assert (found.records, found.fault, found.warnings) == (7, None, ())
    endless = build_index([gzip_member.Member(0, 5)])  # must not loop forever
    assert read_index(lambda at, n: endless[at : at + n], 1 << 30) is None
    (tmp_path / "file").write_bytes(endless + STORED[0][10:])
    count = count_file(str(tmp_path / "file"), check)
    assert (count.records, count.fault) == (2, None)


def test_counts_records_that_span_listed_members(tmp_path):
    raw = framed([b"abc" * 10, b"def" * 10])
    members = [stored_member(raw[:30]), stored_member(raw[30:])]
    for records in ((1, 1), (0, 2)):
        data = listed(members, list(zip(map(len, members), records, strict=True)))
        (tmp_path / "file").write_bytes(data)
        assert count_file(str(tmp_path / "file")) == valid(data, 2, "gzip", MISMATCH)


# Empty members


SMALL, EMPTY = indexed([[b"a"], [b"b"]]), empty_shard()
PLAIN, NOTHING = gzip.compress(framed([b"c", b"d"])), gzip.compress(b"")


@pytest.mark.parametrize(
    ("pieces", "read", "at"),
    [
        ([SMALL, EMPTY], 2, None),
        ([PLAIN, NOTHING], 2, None),
        ([PLAIN, NOTHING, NOTHING], 2, None),
        ([SMALL, EMPTY, SMALL], 2, len(SMALL)),
        ([EMPTY, SMALL], 0, 0),
        ([PLAIN, NOTHING, PLAIN], 2, len(PLAIN)),
        ([PLAIN, NOTHING, NOTHING, PLAIN], 2, len(PLAIN + NOTHING)),
        ([SMALL, NOTHING, SMALL], 2, len(SMALL)),
    ],
)
def test_warns_of_an_empty_member_if_tensorflow_loses_records(pieces, read, at, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"".join(pieces))
    records = sum(2 for piece in pieces if piece in (SMALL, PLAIN))
    assert len(tf_reads(path, "gzip")) == read
    assert (read == records) == (at is None)
    warnings = () if at is None else (empty_member_warning(at),)
    check_valid(path, records, "gzip", *warnings)
    assert count_file(str(path), "index").warnings == warnings
    assert len(read_all(path)) == records


# Large files and members


def test_members_inflated_as_a_stream_give_the_same_count(tmp_path, monkeypatch):
    data = all_kinds(make_payloads(24))["deflated"]
    path = tmp_path / "file"
    path.write_bytes(data)
    for whole, inflated in ((10, 1 << 30), (1 << 30, 0), (560, 100)):
        monkeypatch.setattr(counting, "_WHOLE_MEMBER", whole)
        monkeypatch.setattr("shardmill.schemas.tfrecord.inflate._MAX_WHOLE", inflated)
        assert count_file(str(path)) == valid(data, 24, "gzip")


@pytest.mark.parametrize("chunk", [1, 13, 100, 600, 2000])
def test_the_size_of_reads_does_not_change_the_count(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(LocalReader, "chunk", max(chunk, 12))
    for gap in (1, 40):
        monkeypatch.setattr(LocalReader, "gap", gap)
        for kind, data in all_kinds(make_payloads(24)).items():
            (tmp_path / "file").write_bytes(data)
            assert count_file(str(tmp_path / "file")).records == 24, kind
            assert count_file(str(tmp_path / "file"), "index").records == 24, kind
            assert len(read_all(tmp_path / "file")) == 24


def test_small_members_are_read_with_one_call(tmp_path, monkeypatch):
    groups = [[random.Random(i).randbytes(50)] for i in range(60)]
    path = tmp_path / "file"
    path.write_bytes(indexed(groups))
    reads = count_reads(monkeypatch)
    assert count_file(str(path)).records == 60
    assert reads[-1] == (0, path.stat().st_size)
    assert sum(length for _, length in reads[:-1]) < 10_000  # the head and the index


def count_reads(monkeypatch) -> list[tuple[int, int]]:
    """Return a list that collects offset and size of all reads of local files."""
    reads: list[tuple[int, int]] = []
    honest = LocalReader.read_at

    def read_at(self, offset, length):
        data = honest(self, offset, length)
        reads.append((offset, len(data)))
        return data

    monkeypatch.setattr(LocalReader, "read_at", read_at)
    return reads


def sparse_file(path: Path, sizes: list[int]) -> None:
    """Write a sparse file with records of zeros; the CRCs of the payloads are wrong."""
    with path.open("wb") as file:
        for size in sizes:
            file.write(header(size))
            file.seek(size, 1)
            file.write(b"\1\2\3\4")


def test_counts_five_gigabytes_with_few_reads(tmp_path, monkeypatch):
    sizes = [2**31 - 1, 2**31, 3, 0, 2**30 + 5, 7]
    sparse_file(tmp_path / "file", sizes)
    reads = count_reads(monkeypatch)
    assert (tmp_path / "file").stat().st_size > 5 << 30
    count = count_file(str(tmp_path / "file"), "index")
    assert (count.records, count.fault) == (6, None)
    assert sum(length for _, length in reads) < 10 << 20


def test_a_forged_length_does_not_cause_more_reads(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(frame(b"abc") + header(2**40) + bytes(9 << 20))
    reads = count_reads(monkeypatch)
    assert count_file(str(path)).fault.reason == "truncated"
    assert sum(length for _, length in reads) == (1 << 20) + 4096


# Reading


def test_open_records_yields_the_payloads_before_the_damage(tmp_path):
    path = tmp_path / "file"
    for pack in ("none", "stored", "deflated"):
        damaged = flip(framed([b"abc", b"de", b"fgh"]), -1)
        header = b"" if pack == "none" else gzip_member.HEADER
        path.write_bytes(header + b"".join(gzip_member.pack_body([damaged], pack)))
        payloads = []
        with pytest.raises(DamagedError) as caught, open_records(str(path)) as records:
            payloads.extend(records)
        assert caught.value.fault[:3] == ("payload_crc", 2, 37)
        assert payloads == [b"abc", b"de"]


def test_errors_of_the_caller_are_not_faults_of_the_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(frame(b"abc"))
    for error in (FileNotFoundError("labels.txt"), PermissionError("labels.txt")):
        with pytest.raises(type(error), match="labels"), open_records(str(path)):
            raise error

        def take(payload, error=error):
            raise error

        with pytest.raises(type(error), match="labels"):
            count_file(str(path), take=take)
