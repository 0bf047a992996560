"""Copies of shards: made once, checked, safe for several threads and processes, limited in size."""

import errno
import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from shardmill.loaders.caches import DiskCache
from shardmill.schemas.dataset.read_manifest import load_manifest
from shardmill.schemas.errors import DeniedError, InputError, UsageError
from shardmill.schemas.storage.local import LocalStorage
from shardmill.schemas.tfrecord.scanner import DamagedError
from tests.support.loader_tools import write_numbered


@pytest.fixture
def ds(tmp_path) -> Path:
    return write_numbered(tmp_path / "ds", [20, 30, 40], 5)


def shards(ds: Path) -> list:
    return [(str(ds / shard.file), shard) for shard in load_manifest(ds).splits["train"].shards]


def test_a_copy_is_made_once(ds, tmp_path):
    cache = DiskCache(tmp_path / "new" / "cache", 1 << 30)
    (path, shard), *_ = shards(ds)
    copy = cache.path_of(path, shard)
    assert Path(copy).read_bytes() == Path(path).read_bytes()
    Path(path).unlink()
    assert cache.path_of(path, shard) == copy


def test_a_copy_that_cannot_be_marked_as_used_is_read(ds, tmp_path, monkeypatch):
    """As on a read-only disk, or if another user made it."""
    cache = DiskCache(tmp_path / "cache", 1 << 30)
    (path, shard), *_ = shards(ds)
    copy = cache.path_of(path, shard)
    for number in (errno.EROFS, errno.EPERM):
        monkeypatch.setattr(os, "utime", Mock(side_effect=OSError(number, "")))
        assert cache.path_of(path, shard) == copy


def test_a_shard_with_a_long_name_is_copied(ds, tmp_path):
    (path, shard), *_ = shards(ds)
    long = replace(shard, file=f"train-{'%E4%B8%AD' * 25}-00000-of-00001.gz")
    (tmp_path / long.file).write_bytes(Path(path).read_bytes())
    copy = DiskCache(tmp_path / "cache", 1 << 30).path_of(str(tmp_path / long.file), long)
    assert Path(copy).read_bytes() == Path(path).read_bytes()


def test_many_threads_and_processes_copy_one_shard(ds, tmp_path):
    (path, shard), *_ = shards(ds)
    cache = DiskCache(tmp_path / "cache", 1 << 30)
    code = (
        "import sys\n"
        "from shardmill.loaders.caches import DiskCache\n"
        "from shardmill.schemas.dataset.read_manifest import load_manifest\n"
        "shard = load_manifest(sys.argv[1]).splits['train'].shards[0]\n"
        "print(DiskCache(sys.argv[2], 1 << 30).path_of(sys.argv[1] + '/' + shard.file, shard))\n"
    )
    command = [sys.executable, "-c", code, str(ds), str(tmp_path / "cache")]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    with ThreadPoolExecutor(8) as pool:
        copies = set(pool.map(lambda _: cache.path_of(path, shard), range(50)))
    copies |= {other.communicate(timeout=60)[0].strip() for other in others}
    (copy,) = copies
    assert Path(copy).read_bytes() == Path(path).read_bytes()


def test_a_partial_copy_of_a_killed_process_is_replaced(ds, tmp_path):
    (path, shard), *_ = shards(ds)
    cache = DiskCache(tmp_path / "cache", 1 << 30)
    copy = Path(cache.path_of(path, shard))
    copy.unlink()
    copy.with_suffix(".part").write_bytes(b"x" * 5000)
    assert Path(cache.path_of(path, shard)).read_bytes() == Path(path).read_bytes()


def test_a_copy_that_another_process_made_and_dropped_is_made_again(ds, tmp_path, monkeypatch):
    """While this process waits for the lock, and a reader has the dropped copy open."""
    (path, shard), *_ = shards(ds)
    cache = DiskCache(tmp_path / "cache", 1 << 30)
    real, readers = fcntl.flock, []

    def flock(file, operation):
        monkeypatch.setattr(fcntl, "flock", real)
        copy = Path(cache.path_of(path, shard))
        readers.append(copy.open("rb"))
        copy.unlink()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    expected = Path(path).read_bytes()
    assert Path(cache.path_of(path, shard)).read_bytes() == expected
    with readers[0]:
        assert readers[0].read() == expected


def test_the_oldest_copies_are_dropped(ds, tmp_path):
    files = shards(ds)
    sizes = [shard.bytes for _, shard in files]
    cache = DiskCache(tmp_path / "cache", sizes[0] + sizes[2])
    copies = [Path(cache.path_of(*files[number])) for number in (0, 1)]
    for age, copy in enumerate(copies):
        os.utime(copy, (100 - age, 100 - age))
    assert cache.path_of(*files[0]) == str(copies[0])  # used again
    third = Path(cache.path_of(*files[2]))
    assert [copy.exists() for copy in (*copies, third)] == [True, False, True]
    tiny = DiskCache(tmp_path / "cache", 0)
    assert Path(tiny.path_of(*files[1])).exists()  # the newest one is kept
    assert not third.exists()


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"\xff"])
def test_a_damaged_shard_is_not_copied(damage, ds, tmp_path):
    (path, shard), *_ = shards(ds)
    Path(path).write_bytes(damage(Path(path).read_bytes()))
    with pytest.raises(InputError, match="and the manifest says"):
        DiskCache(tmp_path / "cache", 1 << 30).path_of(path, shard)
    assert not list((tmp_path / "cache").glob("*.copy"))
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) == 0


def test_a_copy_that_fails_leaves_no_file(ds, tmp_path):
    (path, shard), *_ = shards(ds)
    Path(path).unlink()
    with pytest.raises(DamagedError, match="does not exist"):
        DiskCache(tmp_path / "cache", 1 << 30).path_of(path, shard)
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_shard_that_may_not_be_read_is_an_error_of_the_storage(ds, tmp_path, monkeypatch):
    (path, shard), *_ = shards(ds)
    denied = DeniedError(f"Cannot read {path}: Access Denied")
    monkeypatch.setattr(LocalStorage, "open_at", Mock(side_effect=denied))
    with pytest.raises(DeniedError, match="Access Denied"):
        DiskCache(tmp_path / "cache", 1 << 30).path_of(path, shard)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made: Not a directory"):
        DiskCache(tmp_path / "file" / "cache", 1 << 30)
