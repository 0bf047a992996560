"""What every storage promises, the same cases on a local disk, Google Cloud Storage and S3."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import google_crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.schemas.errors import ChangedError, StorageError, UsageError
from shardmill.schemas.storage import Storage, join, open_storage
from shardmill.schemas.storage.gcs import GcsStorage, split_uri
from shardmill.schemas.storage.local import LocalStorage
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
]


class Place(NamedTuple):
    """A storage and an empty folder of it that may be filled."""

    storage: Storage
    root: str

    def path(self, *parts: str) -> str:
        return join(self.root, *parts)

    def names(self) -> list[str]:
        """Names of all files below the root."""
        return [entry.path[len(self.root) + 1 :] for entry in self._walk(self.root)]

    def tree(self) -> dict[str, bytes]:
        """All files below the root."""
        return {name: self.storage.read(self.path(name)) for name in self.names()}

    def _walk(self, folder: str):
        for entry in self.storage.list_dir(folder):
            if entry.kind == "dir":
                yield from self._walk(entry.path)
            else:
                yield entry


@pytest.fixture(params=["local", "emulator", "strict", "s3"])
def place(request, tmp_path) -> Place:
    if request.param == "local":
        (tmp_path / "root").mkdir()
        return Place(LocalStorage(), str(tmp_path / "root"))
    if request.param == "s3":
        bucket = request.getfixturevalue("s3_bucket")
        return Place(request.getfixturevalue("s3_storage"), f"{bucket}/root")
    bucket = request.getfixturevalue("bucket" if request.param == "emulator" else "strict_bucket")
    return Place(GcsStorage(), f"{bucket}/root")


class BrokenError(Exception):
    """Something that goes wrong while a file is being written."""


def write(place: Place, path: str, data: bytes) -> None:
    with place.storage.open_write(path) as file:
        for start in range(0, len(data), 1000):
            assert file.write(data[start : start + 1000]) == len(data[start : start + 1000])


def write_half(place: Place, path: str) -> None:
    with place.storage.open_write(path) as file:
        file.write(b"half")
        raise BrokenError


def test_missing_things_are_none_empty_or_an_error(place):
    storage, missing = place.storage, place.path("no", "such")
    assert storage.stat(missing) is None
    assert list(storage.list_dir(missing)) == []
    storage.delete(missing)
    storage.delete_tree(missing)
    for call in (storage.read, storage.checksum):
        with pytest.raises(FileNotFoundError):
            call(missing)
    with pytest.raises(FileNotFoundError):
        storage.read_unchanged(missing, 0, "1")
    with pytest.raises(FileNotFoundError), storage.open_read(missing):
        pass
    with pytest.raises(FileNotFoundError):
        storage.move(missing, place.path("nowhere"))


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_001])
def test_what_is_written_is_read(place, size):
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


def test_a_folder_is_what_has_files_below(place):
    place.storage.replace(place.path("a", "b", "c"), b"x")
    for folder in (place.root, place.path("a"), place.path("a", "b")):
        assert place.storage.stat(folder).kind == "dir"
    assert place.storage.stat(place.path("a", "b", "c")).kind == "file"
    # The beginning of a name is no folder.
    assert place.storage.stat(place.path("a", "b", "c", "d")) is None
    place.storage.replace(place.path("abc"), b"")
    assert place.storage.stat(place.path("ab")) is None


def test_nothing_appears_when_the_block_raises(place):
    path = place.path("file")
    with pytest.raises(BrokenError):
        write_half(place, path)
    assert place.storage.stat(path) is None
    assert place.tree() == {}


def test_the_old_file_stays_when_the_block_raises(place):
    path = place.path("file")
    place.storage.replace(path, b"old")
    with pytest.raises(BrokenError):
        write_half(place, path)
    assert place.tree() == {"file": b"old"}
    write(place, path, b"new")
    assert place.tree() == {"file": b"new"}


def test_a_file_missing_inside_the_block_is_not_the_file_that_is_written(place):
    with pytest.raises(FileNotFoundError, match="other"), place.storage.open_write(place.path("f")):
        place.storage.read(place.path("other"))
    assert place.tree() == {}


def test_a_changed_file_is_told(place):
    path = place.path("file")
    place.storage.replace(path, b"first")
    before = place.storage.stat(path)
    place.storage.replace(path, b"other")
    with pytest.raises(ChangedError):
        place.storage.read_unchanged(path, before.size, before.version)
    now = place.storage.stat(path)
    assert now.version != before.version
    assert place.storage.read_unchanged(path, now.size, now.version) == b"other"


def test_a_file_is_read_at_any_place(place):
    data = random.Random(7).randbytes(300_001)
    path = place.path("deep", "file.bin")
    write(place, path, data)
    with place.storage.open_at(path) as reader:
        assert reader.size == len(data)
        assert reader.version == place.storage.stat(path).version
        assert reader.chunk > reader.gap > 0
        for offset, length in (
            (0, 1), (0, 300_001), (0, 1 << 20), (5, 0), (299_999, 2), (299_999, 9), (300_000, 1),
            (300_001, 1), (400_000, 10), (123_456, 70_000), (0, 0),
        ):  # fmt: skip
            found = reader.read_at(offset, length)
            assert found == data[offset : offset + length]
            assert type(found) is bytes
        with ThreadPoolExecutor(8) as pool:
            places = [(at, 7_000) for at in range(0, 300_000, 7_000)]
            pieces = pool.map(lambda each: reader.read_at(*each), places)
            assert b"".join(pieces) == data


def test_an_empty_file_is_read_at_any_place(place):
    place.storage.replace(place.path("empty"), b"")
    with place.storage.open_at(place.path("empty")) as reader:
        assert reader.size == 0
        assert reader.read_at(0, 100) == reader.read_at(5, 1) == b""


def test_what_is_no_file_is_not_opened(place):
    place.storage.replace(place.path("folder", "x"), b"x")
    with pytest.raises(FileNotFoundError), place.storage.open_at(place.path("no", "such")):
        pass
    with (
        pytest.raises((FileNotFoundError, ChangedError)),
        place.storage.open_at(place.path("folder")),
    ):
        pass


def test_what_goes_wrong_while_a_file_is_open_is_left_as_it_is(place):
    place.storage.replace(place.path("x"), b"data")
    for error in (OSError("mine"), FileNotFoundError("mine"), BrokenError("mine")):
        with pytest.raises(type(error)) as caught, place.storage.open_at(place.path("x")):
            raise error
        assert caught.value is error


@pytest.mark.parametrize(
    ("place", "gone"),
    [
        ("local", False),
        ("local", True),
        ("strict", True),
        ("strict", False),
        ("s3", True),
        ("s3", False),
    ],
    indirect=["place"],
)  # fmt: skip
def test_an_open_file_never_gives_the_bytes_of_another(place, gone):
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


def test_create_writes_once(place):
    path = place.path("dir", "file")
    assert place.storage.create(path, b"one")
    assert not place.storage.create(path, b"two")
    assert not place.storage.create(path, b"one")
    assert place.tree() == {"dir/file": b"one"}
    place.storage.delete(path)
    assert place.storage.create(path, b"three")
    assert place.tree() == {"dir/file": b"three"}


@pytest.mark.parametrize("same", [False, True], ids=["different bytes", "same bytes"])
def test_exactly_one_of_many_racing_creates_wins(place, same):
    threads = 12
    for turn in range(5):
        path = place.path(f"file{turn}")
        ready = threading.Barrier(threads)

        def create(number, path=path, ready=ready):
            ready.wait()
            return place.storage.create(path, b"x" if same else b"%d" % number)

        with ThreadPoolExecutor(threads) as pool:
            won = list(pool.map(create, range(threads)))
        assert sum(won) == 1
        assert place.storage.read(path) == (b"x" if same else b"%d" % won.index(True))


def test_replace_if_replaces_the_version_that_was_read(place):
    path = place.path("dir", "file")
    place.storage.replace(path, b"one")
    data, first = place.storage.read_version(path)
    assert (data, first) == (b"one", place.storage.stat(path).version)
    assert place.storage.replace_if(path, b"two", first)
    assert not place.storage.replace_if(path, b"three", first)
    assert place.tree() == {"dir/file": b"two"}
    data, second = place.storage.read_version(path)
    assert data == b"two"
    assert place.storage.replace_if(path, b"", second)
    assert place.tree() == {"dir/file": b""}


def test_replace_if_creates_nothing(place):
    path = place.path("file")
    place.storage.replace(path, b"one")
    version = place.storage.read_version(path)[1]
    place.storage.delete(path)
    assert not place.storage.replace_if(path, b"two", version)
    assert place.tree() == {}


def test_versions_that_follow_each_other_at_once_differ(place):
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


def test_the_version_of_a_local_file_grows_whatever_the_clock_says(tmp_path):
    storage, path = LocalStorage(), str(tmp_path / "file")
    storage.replace(path, b"one")
    late = time.time_ns() + 3_600_000_000_000
    os.utime(path, ns=(late, late))
    storage.replace(path, b"two")
    assert int(storage.read_version(path)[1]) > late
    assert storage.replace_if(path, b"three", storage.read_version(path)[1])
    assert int(storage.read_version(path)[1]) > late + 1


def test_an_unreadable_local_file_is_replaced_and_deleted(tmp_path):
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


def test_exactly_one_of_many_racing_replacements_wins(place):
    threads = 12
    for turn in range(5):
        path = place.path(f"file{turn}")
        place.storage.replace(path, b"old")
        version = place.storage.read_version(path)[1]
        ready = threading.Barrier(threads)

        def replace(number, path=path, version=version, ready=ready):
            ready.wait()
            return place.storage.replace_if(path, b"%d" % number, version)

        with ThreadPoolExecutor(threads) as pool:
            won = list(pool.map(replace, range(threads)))
        assert sum(won) == 1
        assert place.storage.read(path) == b"%d" % won.index(True)


def test_no_update_is_lost_when_many_replace_what_they_read(place):
    path = place.path("counter")
    place.storage.replace(path, b"0")

    def add(times):
        done = 0
        while done < times:
            data, version = place.storage.read_version(path)
            done += place.storage.replace_if(path, b"%d" % (int(data) + 1), version)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, [5] * 4))
    assert place.storage.read(path) == b"20"


def test_replace_writes_over(place):
    path = place.path("file")
    for data in (b"one", b"", b"longer than before"):
        place.storage.replace(path, data)
        assert place.tree() == {"file": data}


def test_racing_replaces_leave_one_whole_file(place):
    path, texts = place.path("file"), [bytes([n]) * 50_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: place.storage.replace(path, text), texts))
    assert place.storage.read(path) in texts
    assert place.names() == ["file"]


@pytest.mark.parametrize(
    ("count", "tail"),
    [
        (0, {}),
        (0, {0: b"only an index"}),
        (1, {}),
        (1, {0: b"before", 1: b"after"}),
        (2, {1: b"between"}),
        (31, {31: b"end"}),
        (32, {}),
        (32, {32: b"end"}),
        (33, {}),
        (70, {0: b"before", 31: b"i1", 32: b"i2", 64: b"i3", 70: b"end"}),
    ],
)  # fmt: skip
def test_concat_joins_in_order(place, count, tail):
    if isinstance(place.storage, S3Storage) and count == 70:
        pytest.skip("there is no limit of 32 there, and it takes as long as all others together")
    check_concat(place, count, tail)


def check_concat(place: Place, count: int, tail: dict[int, bytes]) -> None:
    pieces = [b"%d," % number * (number % 5) for number in range(count)]
    sources = [place.path("parts", f"{number}.part") for number in range(count)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(place.storage.replace, sources, pieces))
    before = place.names()
    place.storage.concat(sources, sorted(tail.items()), place.path("shards", "joined"))
    expected = b"".join(
        tail.get(number, b"") + (pieces[number] if number < count else b"")
        for number in range(count + 1)
    )
    # Whatever lay between is gone again and the sources stay.
    assert place.names() == [*before, "shards/joined"]
    assert place.storage.read(place.path("shards", "joined")) == expected
    crc = google_crc32c.value(expected)
    assert place.storage.checksum(place.path("shards", "joined")) == crc


@pytest.mark.parametrize("place", ["local", "emulator"], indirect=True)
def test_concat_of_more_than_two_levels(place):
    check_concat(place, 1100, {0: b"before", 500: b"middle", 1024: b"late", 1100: b"end"})


# The emulator alone answers with 500 here, and the client tries for two minutes.
@pytest.mark.parametrize("place", ["local", "strict", "s3"], indirect=True)
def test_concat_of_a_missing_source_leaves_nothing(place):
    place.storage.replace(place.path("there"), b"x")
    sources = [place.path("there"), place.path("missing")] * 20
    with pytest.raises(FileNotFoundError):
        place.storage.concat(sources, [(1, b"index")], place.path("joined"))
    assert place.tree() == {"there": b"x"}


def test_move_is_idempotent_and_writes_over(place):
    source, target = place.path("build", "x"), place.path("final")
    place.storage.replace(source, b"new")
    place.storage.replace(target, b"old")
    for _ in range(3):
        place.storage.move(source, target)
        assert place.tree() == {"final": b"new"}
    place.storage.move(target, target)
    assert place.tree() == {"final": b"new"}


def test_racing_moves_all_succeed(place):
    for turn in range(5):
        source, target = place.path(f"build{turn}", "x"), place.path(f"final{turn}")
        place.storage.replace(source, b"new")
        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(place.storage.move, source, target) for _ in range(6)]:
                done.result()
        assert place.storage.read(target) == b"new"
        assert place.storage.stat(source) is None


def test_delete_and_delete_tree(place):
    for name in ("a/1", "a/2", "a/b/3", "ab/4", "a.txt"):
        place.storage.replace(place.path(*name.split("/")), b"")
    place.storage.delete(place.path("a", "1"))
    place.storage.delete(place.path("a", "1"))
    assert set(place.tree()) == {"a/2", "a/b/3", "ab/4", "a.txt"}
    place.storage.delete_tree(place.path("a"))
    place.storage.delete_tree(place.path("a"))
    assert set(place.tree()) == {"ab/4", "a.txt"}
    assert place.storage.stat(place.path("a")) is None


# The emulator alone ignores the condition of a deletion.
@pytest.mark.parametrize("place", ["local", "strict", "s3"], indirect=True)
def test_a_version_that_was_replaced_is_not_deleted(place):
    path = place.path("file")
    place.storage.replace(path, b"old")
    old = place.storage.read_version(path)[1]
    place.storage.replace(path, b"new")
    place.storage.delete(path, old)
    assert place.tree() == {"file": b"new"}
    place.storage.delete(path, place.storage.stat(path).version)
    assert place.tree() == {}
    place.storage.delete(path, old)


def test_delete_tree_asks_once_the_folder_is_listed(place):
    for name in ("a", "b/c"):
        place.storage.replace(place.path("build", *name.split("/")), b"x")
    asked = []
    place.storage.delete_tree(place.path("build"), lambda: bool(asked.append(1)))
    assert asked == [1]
    assert set(place.tree()) == {"build/a", "build/b/c"}
    place.storage.delete_tree(place.path("build"), lambda: True)
    assert place.tree() == {}


@pytest.mark.parametrize("place", ["strict", "s3"], indirect=True)
def test_delete_tree_spares_what_was_replaced_after_the_listing(place):
    for name in ("a", "b"):
        place.storage.replace(place.path("build", name), b"old")

    def still():
        place.storage.replace(place.path("build", "b"), b"new")
        place.storage.replace(place.path("build", "c"), b"new")
        return True

    place.storage.delete_tree(place.path("build"), still)
    assert place.tree() == {"build/b": b"new", "build/c": b"new"}


def test_delete_tree_of_many(place):
    paths = [place.path("build", "parts", str(number)) for number in range(60)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: place.storage.replace(path, b""), paths))
    place.storage.replace(place.path("kept"), b"")
    place.storage.delete_tree(place.path("build"))
    assert place.tree() == {"kept": b""}


def test_list_dir_shows_one_level_by_name(place):
    for name in ("b", "a/x", "a-b", "a.b", "c/d/e", "Z"):
        place.storage.replace(place.path(*name.split("/")), b"12")
    found = [(e.path[len(place.root) + 1 :], e.kind) for e in place.storage.list_dir(place.root)]
    assert found == [
        ("Z", "file"), ("a", "dir"), ("a-b", "file"), ("a.b", "file"), ("b", "file"), ("c", "dir"),
    ]  # fmt: skip
    for entry in place.storage.list_dir(place.root):
        if entry.kind == "file":
            assert entry == place.storage.stat(entry.path)
    assert list(place.storage.list_dir(place.root + "/")) == list(
        place.storage.list_dir(place.root)
    )


@pytest.mark.parametrize("name", NAMES)
def test_any_name_works_everywhere(place, name):
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
    storage.concat([path, place.path(name, "b" + name)], [(1, b"-")], place.path(name + "c"))
    assert storage.read(place.path(name + "c")) == b"three-four"
    assert storage.checksum(path) == google_crc32c.value(b"three")
    storage.move(path, place.path(name, name + "moved"))
    storage.move(path, place.path(name, name + "moved"))
    storage.delete(place.path(name + "c"))
    assert place.tree() == {f"{name}/{name}moved": b"three", f"{name}/b{name}": b"four"}
    storage.delete_tree(place.path(name))
    assert place.tree() == {}


# Random sequences of calls: both must give the same answers and end with the same files. Folders
# are never compared themselves, for an empty one exists on a disk only.
_FILES = st.builds(
    "{}/{}".format, st.sampled_from(["d", "d 2", "d%#"]), st.sampled_from(["f", "f?", "fü"])
)
_DATA = st.binary(max_size=8)
_CALLS = st.one_of(
    st.tuples(
        st.sampled_from(["replace", "create", "write", "broken", "replace_if"]), _FILES, _DATA
    ),
    st.tuples(
        st.sampled_from(["read", "stat", "delete", "checksum", "unchanged", "stream"]), _FILES
    ),
    st.tuples(st.just("move"), _FILES, _FILES),
    st.tuples(st.just("concat"), st.lists(_FILES, max_size=3), _DATA, _FILES),
    st.tuples(st.sampled_from(["list", "delete_tree"]), st.sampled_from(["d", "d 2", "d%#", "no"])),
)


def perform(place: Place, call: tuple) -> object:
    """Returns what a call gives, or the kind of error that it raises."""
    kind, *arguments = call
    try:
        return getattr(_Calls(place), kind)(*arguments)
    except (FileNotFoundError, ChangedError, StorageError, BrokenError) as error:
        return type(error).__name__


class _Calls:
    """Storage calls whose results do not tell which storage it was."""

    def __init__(self, place: Place) -> None:
        self.path = place.path
        self.storage = place.storage
        self.place = place

    def replace(self, name, data):
        self.storage.replace(self.path(name), data)

    def create(self, name, data):
        return self.storage.create(self.path(name), data)

    def replace_if(self, name, data):
        _, version = self.storage.read_version(self.path(name))
        return (
            self.storage.replace_if(self.path(name), data + b"!", version),
            self.storage.replace_if(self.path(name), data + b"?", version),
        )

    def write(self, name, data):
        write(self.place, self.path(name), data)

    def broken(self, name, data):
        with self.storage.open_write(self.path(name)) as file:
            file.write(data)
            raise BrokenError

    def read(self, name):
        return self.storage.read(self.path(name))

    def stream(self, name):
        with self.storage.open_read(self.path(name)) as chunks:
            return b"".join(chunks)

    def stat(self, name):
        entry = self.storage.stat(self.path(name))
        return entry and (entry.size, entry.kind)

    def unchanged(self, name):
        entry = self.storage.stat(self.path(name))
        return entry and self.storage.read_unchanged(entry.path, entry.size, entry.version)

    def delete(self, name):
        self.storage.delete(self.path(name))

    def delete_tree(self, name):
        self.storage.delete_tree(self.path(name))

    def checksum(self, name):
        return self.storage.checksum(self.path(name))

    def move(self, source, target):
        self.storage.move(self.path(source), self.path(target))

    def concat(self, sources, tail, target):
        self.storage.concat(
            [self.path(s) for s in sources], [(1, tail)] if sources else [], self.path(target)
        )

    def list(self, name):
        return [
            (entry.path.rsplit("/", 1)[1], entry.size)
            for entry in self.storage.list_dir(self.path(name))
        ]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(calls=st.lists(_CALLS, max_size=14))
def test_both_behave_alike(calls, strict_bucket, tmp_path):
    local = Place(LocalStorage(), str(tmp_path / uuid.uuid4().hex))
    remote = Place(open_storage(strict_bucket), f"{strict_bucket}/{uuid.uuid4().hex}")
    for call in calls:
        assert perform(local, call) == perform(remote, call), call
    assert local.tree() == remote.tree()


@pytest.mark.parametrize("uri", ["gs://", "gs:///x", "gs://-x/y", "gs://x_/y"])
def test_a_uri_must_name_a_bucket(uri):
    with pytest.raises(UsageError, match="gs://BUCKET/PATH"):
        split_uri(uri)


def test_a_uri_splits_into_bucket_and_name():
    assert split_uri("gs://b/a/b c#?%20") == ("b", "a/b c#?%20")
    assert split_uri("gs://b") == ("b", "")
    assert split_uri("GS://b/x") == ("b", "x")


def test_other_schemes_are_refused():
    with pytest.raises(UsageError, match=r"ftp:// is not supported: use a local path, gs://"):
        open_storage("ftp://b/x")


# What servers of other storages are asked for too, by tests of their own.
PROMISES = [
    test_missing_things_are_none_empty_or_an_error,
    test_a_folder_is_what_has_files_below,
    test_nothing_appears_when_the_block_raises,
    test_the_old_file_stays_when_the_block_raises,
    test_a_changed_file_is_told,
    test_a_file_is_read_at_any_place,
    test_an_empty_file_is_read_at_any_place,
    test_what_is_no_file_is_not_opened,
    test_create_writes_once,
    test_replace_if_replaces_the_version_that_was_read,
    test_replace_if_creates_nothing,
    test_versions_that_follow_each_other_at_once_differ,
    test_exactly_one_of_many_racing_replacements_wins,
    test_no_update_is_lost_when_many_replace_what_they_read,
    test_a_version_that_was_replaced_is_not_deleted,
    test_delete_tree_asks_once_the_folder_is_listed,
    test_delete_tree_spares_what_was_replaced_after_the_listing,
    test_replace_writes_over,
    test_concat_of_a_missing_source_leaves_nothing,
    test_move_is_idempotent_and_writes_over,
    test_delete_and_delete_tree,
    test_list_dir_shows_one_level_by_name,
]
