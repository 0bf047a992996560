"""Workers are killed, caches are full, datasets are published while they are read: never a silent loss.

Each example is counted by its key; a pass ends with all examples, or with an error.
"""

import os
import random
import subprocess
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import shardmill
from shardmill.loaders import Stream, open_dataset
from shardmill.loaders.caches import DiskCache
from shardmill.pipelines.cli import main
from shardmill.schemas.dataset.read_manifest import load_manifest
from shardmill.schemas.errors import InputError, UsageError
from tests.support.loader_tools import write_numbered

SIZES = [70, 0, 33, 100]
TOTAL = sum(SIZES)


@pytest.fixture
def ds(tmp_path) -> Path:
    return write_numbered(tmp_path / "ds", SIZES, 6)


# Workers of a DataLoader.


KILLS = """
import os, random, signal, sys
import psutil
from torch.utils.data import DataLoader
from shardmill.loaders.torch_data import torch_dataset

folder, dataset, total, seeds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def read(rng, result):
    order = rng.choice(["records", "blocks", None])
    stream = torch_dataset(dataset, shuffle=rng.random() < 0.5, order=order)
    options = {"num_workers": rng.choice([1, 2, 3]), "persistent_workers": rng.random() < 0.5}
    loader = DataLoader(stream, 10, **options, multiprocessing_context="fork")
    after = rng.randint(0, total // 10)
    for number, batch in enumerate(loader):
        os.write(result, "".join(f"{number}\\n" for number in batch["id"].tolist()).encode())
        if number == after:
            workers = [child.pid for child in psutil.Process().children()]
            if workers:
                os.kill(rng.choice(sorted(workers)), signal.SIGKILL)

for seed in range(seeds):
    child = os.fork()
    if not child:
        result = os.open(os.path.join(folder, f"{seed}.txt"), os.O_WRONLY | os.O_CREAT)
        read(random.Random(seed), result)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.nightly
def test_killed_workers_are_errors(ds, tmp_path):
    """Each in a separate process: torch raises the error from a handler of a signal, anywhere."""
    arguments = [str(tmp_path), str(ds), str(TOTAL), "8"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", KILLS, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    codes = [int(line) for line in done.stdout.splitlines()]
    assert len(codes) == 8, done.stderr[-2000:]
    for seed, code in enumerate(codes):
        ids = (tmp_path / f"{seed}.txt").read_text().splitlines()
        assert len(ids) == len(set(ids)), seed
        assert code == 1 or len(ids) == TOTAL, seed
    assert sum(codes) > 3, done.stderr[-2000:]


# Publications.


def publish(folder: Path, version: int) -> Path:
    table = folder / "table.csv"
    lines = [f"{number},{version}" for number in range(TOTAL)]
    table.write_text("\n".join(["number,version", *lines]))
    options = {"update": True, "keep": 1} if version else {"keep": 1}
    shardmill.rows(table, folder / "ds", splits="train:1", num_shards=3, **options)
    return folder / "ds"


def check_publications(folder: Path, seeds: range) -> None:
    """While builds and rollbacks publish, a reader gives one version, all of it or an error."""
    ds, version, complete = publish(folder, 0), 0, 0
    for seed in seeds:
        rng = random.Random(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            records = open_dataset(ds)
            stream = Stream(records, shuffle=rng.random() < 0.5, workers=rng.choice([0, 2]))
        at, read, versions, error = rng.randint(0, TOTAL), Counter(), set(), None
        try:
            for number, row in enumerate(stream):
                read[int(row["number"])] += 1
                versions.add(int(row["version"]))
                if number == at:
                    for _ in range(rng.choice([1, 1, 2])):
                        version += 1
                        publish(folder, version)
                    if rng.random() < 0.3:
                        main(["rollback", str(ds)])
                    if rng.random() < 0.3:
                        main(["clean", str(ds)])
        except InputError as caught:
            error = caught
        assert set(read.values()) <= {1}, seed
        assert len(versions) <= 1, seed
        assert error is not None or len(read) == TOTAL, seed
        complete += error is None
    assert complete


@pytest.mark.nightly
def test_publications_while_a_reader_reads(tmp_path):
    check_publications(tmp_path, range(2))


# Caches.


def shards_of(ds: Path) -> list:
    return [(str(ds / shard.file), shard) for shard in load_manifest(ds).splits["train"].shards]


@pytest.fixture
def small_disk(tmp_path):
    """Returns a folder on a disk of 16 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_cache_is_an_error_and_leaves_no_part(tmp_path, small_disk):
    ds = write_numbered(tmp_path / "big", [100, 3000, 20], 20)
    cache = DiskCache(small_disk / "cache", 1 << 30)
    first, large, last = shards_of(ds)
    assert Path(cache.path_of(*first)).read_bytes() == Path(first[0]).read_bytes()
    for _ in range(2):
        with pytest.raises(InputError, match="No space left on device; free space, or give"):
            cache.path_of(*large)
        assert not list((small_disk / "cache").glob("*.part"))
    assert Path(cache.path_of(*last)).read_bytes() == Path(last[0]).read_bytes()


def test_a_read_only_cache_gives_its_copies(tmp_path, small_disk, ds):
    first, _, other, _ = shards_of(ds)
    copy = DiskCache(small_disk / "cache", 1 << 30).path_of(*first)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    cache = DiskCache(small_disk / "cache", 1 << 30)
    assert cache.path_of(*first) == copy
    with pytest.raises(InputError, match="Read-only file system; free space, or give"):
        cache.path_of(*other)
    with pytest.raises(UsageError, match="cannot be made: Read-only file system"):
        DiskCache(small_disk / "new", 1 << 30)


SHARING = """
import random, sys
from pathlib import Path
from shardmill.loaders.caches import DiskCache
from shardmill.schemas.dataset.read_manifest import load_manifest

ds, folder, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rng = random.Random(seed)
shards = load_manifest(ds).splits["train"].shards
cache = DiskCache(folder, 2 * max(shard.bytes for shard in shards))
for _ in range(150):
    shard = rng.choice(shards)
    path = str(ds / shard.file)
    try:
        data = Path(cache.path_of(path, shard)).read_bytes()
    except FileNotFoundError:
        continue  # the other process deleted it again, for which readers ask the cache again
    assert data == Path(path).read_bytes(), shard.file
    if rng.random() < 0.05:
        copies = sorted(Path(folder).glob("*.copy"))
        if copies:
            copies[0].unlink(missing_ok=True)
"""


@pytest.mark.heavy
def test_processes_that_share_a_small_cache(tmp_path):
    """Each deletes copies of the others, and all read the bytes of the shards."""
    ds = write_numbered(tmp_path / "ds", [300, 500, 0, 200, 700, 100], 50)
    command = [sys.executable, "-c", SHARING, str(ds), str(tmp_path / "cache")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(seed: int) -> subprocess.CompletedProcess:
        return subprocess.run([*command, str(seed)], env=env, capture_output=True, check=False)

    with ThreadPoolExecutor(3) as pool:
        for done in pool.map(run, range(3)):
            assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert not list((tmp_path / "cache").glob("*.part"))
