"""The contract of ``Storage``: the same tests on a local disk, Google Cloud Storage and S3."""

import errno
import inspect
import itertools
import multiprocessing
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import google_crc32c
import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.schemas.errors import ChangedError, StorageError, UsageError
from shardmill.schemas.storage import Storage, join, open_storage
from shardmill.schemas.storage.gcs import GcsStorage
from shardmill.schemas.storage.local import LocalStorage
from shardmill.schemas.storage.objects import split_uri
from shardmill.schemas.storage.s3 import S3Storage

pytest_plugins = ["tests.support.gcs_server", "tests.support.s3_server"]

NAMES = [
    "plain.txt",
    "with space",
    "ünïcode-é",
    "u\u0308 decomposed",
    "日本語",
    "emoji 🐈",
    "hash#tag",
    "question?mark",
    "50%25 percent %2F",
    "plus+and&equals=",
    "star*[bracket]{brace}",
    "quote'\"back\\slash",
    "semi;colon:comma,",
    "~tilde-$dollar@at!",
    ".hidden",
    "trailing dot.",
    "🐈" * 60,
]


class Place(NamedTuple):
    """A storage and an empty folder in it."""

    storage: Storage
    root: str

    def path(self, *parts: str) -> str:
        return join(self.root, *parts)

    def fill(self, *names: str, data: bytes = b"") -> None:
        """Write files concurrently."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: self.storage.replace(self.path(name), data), names))

    def names(self) -> list[str]:
        """Return the names of all files below the root."""
        return [entry.path[len(self.root) + 1 :] for entry in self._walk(self.root)]

    def tree(self) -> dict[str, bytes]:
        """Return all files below the root."""
        return {name: self.storage.read(self.path(name)) for name in self.names()}

    def _walk(self, folder: str):
        for entry in self.storage.list_dir(folder):
            if entry.kind == "dir":
                yield from self._walk(entry.path)
            else:
                yield entry


@pytest.fixture(params=["local", "strict", "s3"])
def place(request, tmp_path) -> Place:
    if request.param == "local":
        (tmp_path / "root").mkdir()
        return Place(LocalStorage(), str(tmp_path / "root"))
    if request.param == "s3":
        bucket = request.getfixturevalue("s3_bucket")
        return Place(request.getfixturevalue("s3_storage"), f"{bucket}/root")
    bucket = request.getfixturevalue("bucket" if request.param == "emulator" else "strict_bucket")
    return Place(GcsStorage(), f"{bucket}/root")


object_stores = pytest.mark.parametrize("place", ["strict", "s3"], indirect=True)


class BrokenError(Exception):
    """A failure of the caller while it writes a file."""


def write(place: Place, path: str, data: bytes, error: type[Exception] | None = None) -> None:
    """Write a file in pieces, and raise an error at its end if one is given."""
    with place.storage.open_write(path) as file:
        for start in range(0, len(data), 1000):
            assert file.write(data[start : start + 1000]) == len(data[start : start + 1000])
        if error:
            raise error


# Reading and writing


def test_missing_files(place):
    storage, missing = place.storage, place.path("no", "such")
    assert storage.stat(missing) is None
    assert list(storage.list_dir(missing)) == []
    storage.delete(missing)
    storage.delete_tree(missing)
    for call in (
        storage.read,
        storage.checksum,
        lambda path: storage.read_unchanged(path, 0, "1"),
        lambda path: storage.open_read(path).__enter__(),
        lambda path: storage.open_at(path).__enter__(),
        lambda path: storage.copy(path, place.path("nowhere")),
    ):
        with pytest.raises(FileNotFoundError):
            call(missing)


def test_time_of_change_is_exact_to_the_second(place):
    before = time.time()
    place.fill("sub/x")
    found = place.storage.stat(place.path("sub/x"))
    (listed,) = place.storage.list_dir(place.path("sub"))
    for entry in (found, listed):
        assert before - 1.5 <= entry.changed_ns / 1e9 <= time.time() + 0.5


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_001])
def test_reads_what_was_written(place, size):
    data = random.Random(size).randbytes(size)
    path = place.path("deep", "er", "file.bin")
    write(place, path, data)
    entry = place.storage.stat(path)
    assert (entry.path, entry.size, entry.kind) == (path, size, "file")
    assert entry.version
    assert place.storage.read(path) == data
    assert place.storage.read_unchanged(path, size, entry.version) == data
    with place.storage.open_read(path) as chunks:
        assert b"".join(chunks) == data
    assert place.storage.checksum(path) == google_crc32c.value(data)
    assert place.tree() == {"deep/er/file.bin": data}


def test_folder_exists_while_it_has_files(place):
    place.fill("a/b/c", "abc")
    for folder in (place.root, place.path("a"), place.path("a", "b")):
        assert place.storage.stat(folder).kind == "dir"
    assert place.storage.stat(place.path("a", "b", "c")).kind == "file"
    assert place.storage.stat(place.path("a", "b", "c", "d")) is None
    assert place.storage.stat(place.path("ab")) is None  # only the beginning of a name
    with pytest.raises((FileNotFoundError, ChangedError)), place.storage.open_at(place.path("a")):
        pass


def test_failed_write_leaves_the_old_file(place):
    for old in ({}, {"file": b"old"}):
        for name, data in old.items():
            place.storage.replace(place.path(name), data)
        with pytest.raises(BrokenError):
            write(place, place.path("file"), b"half", BrokenError)
        assert place.tree() == old
        # A missing source is not reported as the file that is written.
        new = place.storage.open_write(place.path("file"))
        with pytest.raises(FileNotFoundError, match="other"), new:
            place.storage.read(place.path("other"))
        assert place.tree() == old


def test_reads_at_any_offset(place):
    data = random.Random(7).randbytes(300_001)
    path = place.path("deep", "file.bin")
    write(place, path, data)
    with place.storage.open_at(path) as reader:
        assert reader.size == len(data)
        assert reader.version == place.storage.stat(path).version
        assert reader.chunk > reader.gap > 0
        for offset, length in (
            (0, 1),
            (0, 300_001),
            (0, 1 << 20),
            (5, 0),
            (299_999, 2),
            (299_999, 9),
            (300_000, 1),
            (300_001, 1),
            (400_000, 10),
            (123_456, 70_000),
            (0, 0),
        ):
            piece = reader.read_at(offset, length)
            assert piece == data[offset : offset + length]
            assert type(piece) is bytes
        with ThreadPoolExecutor(8) as pool:
            ranges = [(at, 7_000) for at in range(0, 300_000, 7_000)]
            pieces = pool.map(lambda each: reader.read_at(*each), ranges)
            assert b"".join(pieces) == data
    place.fill("empty")
    with place.storage.open_at(place.path("empty")) as reader:
        assert reader.size == 0
        assert reader.read_at(0, 100) == reader.read_at(5, 1) == b""


def test_open_at_passes_errors_of_its_block(place):
    place.fill("x")
    for error in (OSError("mine"), FileNotFoundError("mine"), BrokenError("mine")):
        with pytest.raises(type(error)) as caught, place.storage.open_at(place.path("x")):
            raise error
        assert caught.value is error


@pytest.mark.parametrize(
    ("call", "number"), [("open", 0), ("fstat", 0), ("fstat", 1), ("pread", 0), ("pread", 1)]
)
def test_a_failure_of_a_disk_at_any_call_is_one_of_the_storage(tmp_path, monkeypatch, call, number):
    """Such as ESTALE of NFS, also after a file was opened; that was a traceback."""
    (tmp_path / "x").write_bytes(b"abc")
    storage, real, calls = open_storage(str(tmp_path)), getattr(os, call), itertools.count()

    def fail(*args):
        if next(calls) == number:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(*args)

    def read():
        with storage.open_at(str(tmp_path / "x")) as reader:
            reader.read_at(0, 5)

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StorageError, match="Stale file handle"):
            read()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("gone", [False, True])
def test_open_file_never_returns_bytes_of_another_version(place, gone):
    path = place.path("x")
    place.storage.replace(path, b"a" * 1000)
    with place.storage.open_at(path) as reader:
        assert reader.read_at(0, 10) == b"a" * 10
        if gone:
            place.storage.delete(path)
        else:
            place.storage.replace(path, b"b" * 1000)
        if isinstance(place.storage, LocalStorage):
            assert reader.read_at(10, 10) == b"a" * 10
        else:
            with pytest.raises(FileNotFoundError if gone else ChangedError):
                reader.read_at(10, 10)


def read_in_child(storage: Storage, path: str, parents_client: object) -> None:
    assert storage.read(path) == b"data"
    assert storage._client() is not parents_client


@object_stores
def test_forked_child_makes_its_own_client(place):
    """Also while a thread of the parent makes one, whose lock the child inherits."""
    place.storage.replace(place.path("x"), b"data")
    storage = type(place.storage)()
    client = storage._client()
    with storage._lock:
        child = multiprocessing.get_context("fork").Process(
            target=read_in_child, args=(storage, place.path("x"), client)
        )
        child.start()
        child.join(60)
    code = child.exitcode
    child.kill()
    assert code == 0


@object_stores
def test_every_call_reports_a_missing_bucket(place):
    storage, path = place.storage, place.root.partition("//")[0] + "//no-such-bucket-here/x"
    for call in (
        storage.stat,
        storage.delete_tree,
        lambda path: list(storage.walk(path)),
        lambda path: list(storage.list_dir(path)),
        lambda path: storage.replace(path, b""),
        lambda path: storage.create(path, b""),
        lambda path: write(place, path, b"x"),
    ):
        with pytest.raises(StorageError, match="the bucket 'no-such-bucket-here' does not exist; "):
            call(path)


# Conditional writes


def test_replace_if_replaces_one_version(place):
    path = place.path("dir", "file")
    place.storage.replace(path, b"one")
    data, first = place.storage.read_version(path)
    assert (data, first) == (b"one", place.storage.stat(path).version)
    assert place.storage.replace_if(path, b"two", first)
    assert not place.storage.replace_if(path, b"three", first)
    with pytest.raises(ChangedError):
        place.storage.read_unchanged(path, 3, first)
    data, second = place.storage.read_version(path)
    assert data == b"two"
    assert place.storage.replace_if(path, b"", second)
    assert place.tree() == {"dir/file": b""}
    last = place.storage.stat(path).version
    place.storage.delete(path)
    assert not place.storage.replace_if(path, b"four", last)
    assert place.tree() == {}


@pytest.mark.sweep
def test_successive_versions_differ(place):
    path, seen = place.path("file"), set()
    for number in range(20):
        place.storage.replace(path, b"%d" % number)
        seen.add(place.storage.read_version(path)[1])
    for number in range(20, 40):
        version = place.storage.read_version(path)[1]
        assert place.storage.replace_if(path, b"%d" % number, version)
        assert not place.storage.replace_if(path, b"again", version)
        seen.add(place.storage.read_version(path)[1])
    assert len(seen) == 40


@pytest.mark.sweep
@pytest.mark.parametrize("how", ["create", "create the same", "replace_if"])
def test_one_of_several_concurrent_writes_succeeds(place, how):
    threads = 12
    for turn in range(5):
        path = place.path(f"file{turn}")
        version = ""
        if how == "replace_if":
            place.storage.replace(path, b"old")
            version = place.storage.read_version(path)[1]
        ready = threading.Barrier(threads)

        def write_once(number, path=path, version=version, ready=ready):
            ready.wait()
            data = b"x" if how == "create the same" else b"%d" % number
            if version:
                return place.storage.replace_if(path, data, version)
            return place.storage.create(path, data)

        with ThreadPoolExecutor(threads) as pool:
            written = list(pool.map(write_once, range(threads)))
        assert sum(written) == 1
        data = b"x" if how == "create the same" else b"%d" % written.index(True)
        assert place.storage.read(path) == data


def test_concurrent_replaces_leave_one_complete_file(place):
    path, texts = place.path("file"), [bytes([n]) * 50_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: place.storage.replace(path, text), texts))
    assert place.storage.read(path) in texts
    assert place.names() == ["file"]


def test_local_version_increases_if_the_clock_is_behind(tmp_path):
    storage, path = LocalStorage(), str(tmp_path / "file")
    storage.replace(path, b"one")
    late = time.time_ns() + 3_600_000_000_000
    os.utime(path, ns=(late, late))
    storage.replace(path, b"two")
    assert int(storage.read_version(path)[1]) > late
    assert storage.replace_if(path, b"three", storage.read_version(path)[1])
    assert int(storage.read_version(path)[1]) > late + 1


def test_unreadable_local_file_can_be_replaced_and_deleted(tmp_path):
    storage, path = LocalStorage(), str(tmp_path / "file")
    for delete in (False, True):
        storage.replace(path, b"one")
        version = storage.stat(path).version
        os.chmod(path, 0)
        if delete:
            storage.delete(path, version)
            assert storage.stat(path) is None
        else:
            assert storage.replace_if(path, b"two", version)
            assert storage.read(path) == b"two"


# Concatenating, moving and deleting


def check_concat(place: Place, count: int) -> None:
    """Concatenate ``count`` files."""
    data = [b"%d," % number * (number % 5) for number in range(count)]
    sources = [place.path("parts", f"{number}.part") for number in range(count)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(place.storage.replace, sources, data))
    before = place.names()
    expected = b"".join(data)
    joined = place.path("shards", "joined")
    place.storage.concat(sources, joined)
    assert place.names() == [*before, "shards/joined"]  # and no temporary files
    assert place.storage.read(joined) == expected
    assert place.storage.checksum(joined) == google_crc32c.value(expected)


@pytest.mark.sweep
@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 70])
def test_concat_joins_in_order(place, count):
    if isinstance(place.storage, S3Storage) and count == 70:
        pytest.skip("slow, and S3 has no limit of 32 components")
    check_concat(place, count)


@pytest.mark.heavy
@pytest.mark.parametrize("place", ["local", "emulator"], indirect=True)
def test_concat_composes_in_three_levels(place):
    check_concat(place, 1100)


def test_concat_of_missing_file_leaves_nothing(place):
    place.fill("there", data=b"x")
    there, missing = place.path("there"), place.path("missing")
    with pytest.raises(FileNotFoundError):
        place.storage.concat([there, missing, *[there, missing] * 19], place.path("new"))
    assert place.tree() == {"there": b"x"}


def test_copy_keeps_the_source(place):
    source, target = place.path("build", "x"), place.path("final", "deep", "y")
    place.storage.replace(source, b"new")
    place.storage.copy(source, target)
    assert place.tree() == {"build/x": b"new", "final/deep/y": b"new"}
    place.storage.replace(source, b"other")
    assert place.storage.read(target) == b"new"
    place.storage.sync(place.path("final"))
    with place.storage.lock(place.root) as locked:
        assert locked == isinstance(place.storage, LocalStorage)


def test_local_copy_shares_the_file_where_it_can(tmp_path, monkeypatch):
    storage, source = LocalStorage(), tmp_path / "x"
    source.write_bytes(b"data")
    storage.copy(str(source), f"{tmp_path}/linked")
    assert (tmp_path / "linked").stat().st_ino == source.stat().st_ino

    def reject(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", reject)
    storage.copy(str(source), f"{tmp_path}/copied")
    assert (tmp_path / "copied").read_bytes() == b"data"
    assert (tmp_path / "copied").stat().st_ino != source.stat().st_ino


def test_local_sync_reaches_every_file_and_folder(tmp_path, monkeypatch):
    folder = tmp_path / "gen"
    (folder / "deep").mkdir(parents=True)
    for name in ("a", "deep/b"):
        (folder / name).write_bytes(b"x")
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.readlink(f"/proc/self/fd/{fd}")))
    LocalStorage().sync(str(folder))
    wanted = {tmp_path, folder, folder / "a", folder / "deep", folder / "deep/b"}
    assert {*map(str, wanted)} <= synced
    synced.clear()
    assert LocalStorage().replace_if(f"{folder}/m", b"1", "")
    assert str(folder) in synced
    assert len(synced) >= 2


def test_delete_and_delete_tree(place):
    place.fill("a/1", "a/2", "a/b/3", "ab/4", "a.txt", *(f"a/parts/{n}" for n in range(60)))
    place.storage.delete(place.path("a", "1"))
    place.storage.delete(place.path("a", "1"))
    names = set(place.names())
    assert len(names) == 64
    assert "a/1" not in names
    place.storage.delete_tree(place.path("a"))
    place.storage.delete_tree(place.path("a"))
    assert set(place.tree()) == {"ab/4", "a.txt"}
    assert place.storage.stat(place.path("a")) is None


def test_delete_keeps_another_version(place):
    path = place.path("file")
    place.storage.replace(path, b"old")
    old = place.storage.read_version(path)[1]
    place.storage.replace(path, b"new")
    place.storage.delete(path, old)
    assert place.tree() == {"file": b"new"}
    place.storage.delete(path, place.storage.stat(path).version)
    assert place.tree() == {}
    place.storage.delete(path, old)


# Listings and names


def test_list_dir_yields_one_level_sorted_by_name(place):
    place.fill("b", "a/x", "a-b", "a.b", "c/d/e", "Z", data=b"12")
    entries = list(place.storage.list_dir(place.root))
    assert [(entry.path[len(place.root) + 1 :], entry.kind) for entry in entries] == [
        ("Z", "file"),
        ("a", "dir"),
        ("a-b", "file"),
        ("a.b", "file"),
        ("b", "file"),
        ("c", "dir"),
    ]
    for entry in entries:
        if entry.kind == "file":
            assert entry == place.storage.stat(entry.path)
    assert list(place.storage.list_dir(place.root + "/")) == entries


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_accepts_any_name(place, name):
    storage, path = place.storage, place.path(name, name)
    assert storage.create(path, b"one")
    assert not storage.create(path, b"two")
    entry = storage.stat(path)
    assert list(storage.list_dir(place.path(name))) == [entry]
    assert entry.path == path
    assert [e.path for e in storage.list_dir(place.root)] == [place.path(name)]
    assert storage.read_unchanged(path, 3, entry.version) == b"one"
    with storage.open_read(path) as chunks:
        assert b"".join(chunks) == b"one"
    storage.replace(path, b"three")
    write(place, place.path(name, "b" + name), b"four")
    storage.concat([path, place.path(name, "b" + name)], place.path(name + "c"))
    assert storage.read(place.path(name + "c")) == b"threefour"
    assert storage.checksum(path) == google_crc32c.value(b"three")
    storage.copy(path, place.path(name, name + "copy"))
    for each in (path, place.path(name + "c")):
        storage.delete(each)
    assert place.tree() == {f"{name}/{name}copy": b"three", f"{name}/b{name}": b"four"}
    storage.delete_tree(place.path(name))
    assert place.tree() == {}


@object_stores
def test_folder_markers_of_other_programs_are_not_files(place):
    """Other programs create empty objects whose names end with a slash."""
    storage, root = place.storage, place.root
    for name in ("a/", "a/b/", "a/b/x.jpg", "empty/"):
        put_marker(place, f"{root}/{name}")
    assert storage.stat(f"{root}/a").kind == storage.stat(f"{root}/empty").kind == "dir"
    assert [(e.path, e.kind) for e in storage.list_dir(f"{root}/a/")] == [(f"{root}/a/b", "dir")]
    assert [e.path for e in storage.walk(root)] == [f"{root}/a/b/x.jpg"]
    storage.delete_tree(root)
    assert storage.stat(root) is None


def put_marker(place: Place, uri: str) -> None:
    bucket, name = split_uri(uri)
    if isinstance(place.storage, S3Storage):
        place.storage._client().put_object(Bucket=bucket, Key=name, Body=b"")
    else:
        place.storage.replace(uri, b"")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("gs://", "write gs://BUCKET/PATH"),
        ("gs:///x", "write gs://BUCKET/PATH"),
        ("gs://-x/y", "'-x' is not a valid bucket name; write gs://BUCKET/PATH"),
        ("gs://x_/y", "'x_' is not a valid bucket name; write gs://BUCKET/PATH"),
        ("s3://", "write s3://BUCKET/PATH"),
        ("S3:///x", "write s3://BUCKET/PATH"),
    ],
)
def test_rejects_uri_without_valid_bucket(uri, words):
    with pytest.raises(UsageError, match=words):
        split_uri(uri)


def test_splits_uri_into_bucket_and_name():
    assert split_uri("gs://b/a/b c#?%20") == ("b", "a/b c#?%20")
    assert split_uri("s3://b") == ("b", "")
    assert split_uri("GS://b/x") == ("b", "x")


def test_rejects_other_schemes():
    with pytest.raises(UsageError, match=r"ftp:// is not supported: use a local path, gs://"):
        open_storage("ftp://b/x")


# Random sequences of calls have the same results and leave the same files on all storages. Folders
# are not compared: only a disk has empty ones.

_FILES = st.builds(
    "{}/{}".format, st.sampled_from(["d", "d 2", "d%#"]), st.sampled_from(["f", "f?", "fü"])
)
_DATA = st.binary(max_size=8)
CALLS = st.one_of(
    st.tuples(st.sampled_from(["replace", "create", "write"]), _FILES, _DATA),
    st.tuples(st.sampled_from(["read", "stat", "delete", "checksum"]), _FILES),
    st.tuples(st.just("concat"), st.lists(_FILES, min_size=1, max_size=4), _FILES),
    st.tuples(st.sampled_from(["list", "delete_tree"]), st.sampled_from(["d", "d 2", "d%#", "no"])),
)


def perform(place: Place, call: tuple) -> object:
    """Return the result of a call, or the name of the error that it raises."""
    storage, (kind, name, *more) = place.storage, call
    try:
        if kind == "write":
            return write(place, place.path(name), *more)
        if kind == "stat":
            entry = storage.stat(place.path(name))
            return entry and (entry.size, entry.kind)
        if kind == "concat":
            return storage.concat(list(map(place.path, name)), place.path(*more))
        if kind == "list":
            entries = storage.list_dir(place.path(name))
            return [(entry.path.rsplit("/", 1)[1], entry.size) for entry in entries]
        return getattr(storage, kind)(place.path(name), *more)
    except (FileNotFoundError, StorageError) as error:
        return type(error).__name__


def check_same_results(calls: list, remote: Place, folder) -> None:
    """Perform calls on a storage and on a local disk, and compare their results."""
    local = Place(LocalStorage(), str(folder / uuid.uuid4().hex))
    remote = Place(remote.storage, f"{remote.root}/{uuid.uuid4().hex}")
    for call in calls:
        assert perform(local, call) == perform(remote, call), call
    assert local.tree() == remote.tree()


@pytest.mark.heavy
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(calls=st.lists(CALLS, max_size=14))
def test_random_calls_have_the_same_results(calls, strict_bucket, tmp_path):
    check_same_results(calls, Place(open_storage(strict_bucket), strict_bucket), tmp_path)


def contract() -> Iterator[ParameterSet]:
    """Yield the tests of a place with their arguments; tests/cluster runs them on another server."""
    for name, test in list(globals().items()):
        taken = list(inspect.signature(test).parameters) if name.startswith("test_") else []
        marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        values = {mark.args[0]: mark.args[1] for mark in marks}
        if taken == ["place"]:
            yield pytest.param(test, {}, id=name[5:])
        elif taken[:1] == ["place"] and len(taken) == 2:
            for value in values[taken[1]]:
                yield pytest.param(test, {taken[1]: value}, id=f"{name[5:]}-{value}")
