"""Numbers of a stream equal what transforms, the storage and the loop have seen.

The judges count by themselves: a transform writes the number of each record that a process decodes
to a file, and the local storage writes the size of each read.
"""

import copy
import errno
import itertools
import logging
import mmap
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shardmill.loaders import Stream, StreamStats, keras_dataset, mix, open_dataset, torch_dataset
from shardmill.loaders.stats import RECORDS, Counters
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage.local import LocalReader
from tests.loaders.test_passes import ids_of, loader_of
from tests.support.loader_tools import DATA, ID, PACKS, write_numbered

SIZES = [40, 0, 25, 7, 31]
TOTAL, MEMBER = sum(SIZES), 6
MEMBERS = sum(-(-size // MEMBER) for size in SIZES)
FILLED = sum(map(bool, SIZES))


@pytest.fixture(scope="module")
def ds(tmp_path_factory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("stats") / "ds", SIZES, MEMBER)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A dataset whose members are larger than the first bytes of a file, which stay in memory."""
    return write_numbered(
        tmp_path_factory.mktemp("stats") / "large",
        SIZES,
        MEMBER,
        schema=f"{ID}\n{DATA}",
        example=lambda number: {"id": number, "x": bytes(5000)},
    )


@pytest.fixture
def judge(tmp_path):
    """Counts the reads of this process and its forks; a spawned one calls ``start``."""
    judge = Judge(tmp_path / "judge")
    judge.folder.mkdir()
    originals = LocalReader.__init__, LocalReader.read_at
    judge.start(0)
    yield judge
    LocalReader.__init__, LocalReader.read_at = originals


class Judge:
    """What processes decode and read, one number a line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, number: int) -> None:
        file = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b"%d\n" % number)
        os.close(file)

    def numbers(self, name: str) -> list[int]:
        file = self.folder / name
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def transform(self, row: dict) -> dict:
        self.write("decoded", int(row["id"]))
        return row

    def start(self, _worker: int) -> None:
        """Let readers of local files write to the judge."""
        begin, read = LocalReader.__init__, LocalReader.read_at
        if begin.__name__ == "counted_open":  # inherited by a fork
            return

        def counted_open(reader, path, descriptor):
            self.write("requests", 1)
            begin(reader, path, descriptor)

        def counted_read(reader, offset, length):
            data = read(reader, offset, length)
            self.write("requests", 1)
            self.write("bytes", len(data))
            return data

        LocalReader.__init__, LocalReader.read_at = counted_open, counted_read

    def forget(self) -> None:
        for file in self.folder.iterdir():
            file.unlink()

    def wait_until_idle(self) -> None:
        """Wait until no worker decodes, since all have read as much ahead as they may."""
        last, end = -1, time.monotonic() + 60
        while last != (last := len(self.numbers("decoded"))):
            assert time.monotonic() < end
            time.sleep(1)

    def check(self, stats: StreamStats, keeps=lambda number: True) -> None:
        decoded = self.numbers("decoded")
        assert decoded
        assert stats.records == sum(map(keeps, decoded))
        assert stats.dropped == len(decoded) - stats.records
        assert stats.bytes_read == sum(self.numbers("bytes")) > 0
        assert stats.requests == len(self.numbers("requests")) > 0


def is_third(number: int) -> bool:
    return number % 3 == 0


def keep_third(row: dict) -> bool:
    return is_third(int(row["id"]))


def read_whole(stream, loader, judge) -> None:
    ids_of(loader)


def leave(stream, loader, judge) -> None:
    for _ in itertools.islice(loader, 2):
        pass


def read_slowly(batches) -> None:
    for _ in batches:
        time.sleep(0.2)


def kill_a_worker(stream, loader, judge) -> None:
    batches = iter(loader)
    next(batches)
    judge.wait_until_idle()
    worker = batches._workers[-1]
    before = stream.stats()
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert stream.stats() == before
    with pytest.raises((RuntimeError, ConnectionError), match=r"killed|exited|reset by peer"):
        read_slowly(batches)
    loader._iterator = None  # of persistent workers


def read_two_loaders(stream, loader, judge) -> None:
    second = loader_of(stream, 1, worker_init_fn=judge.start)
    ids_of(itertools.chain(*zip(loader, second, strict=False)))


def check_workers(ds, judge, disturb, workers, method, *, persistent, where) -> None:
    records = open_dataset(ds, transform=judge.transform)
    judge.forget()
    stream = torch_dataset(records, shuffle=True, seed=4, where=keep_third if where else None)
    loader = loader_of(
        stream,
        workers,
        method,
        worker_init_fn=judge.start,
        persistent_workers=persistent,
    )
    disturb(stream, loader, judge)
    read = ids_of(loader)
    expected = [number for number in range(TOTAL) if is_third(number) or not where]
    assert sorted(read) == expected
    judge.check(stream.stats(), is_third if where else lambda number: True)
    if disturb is read_whole:
        assert stream.stats().records == 2 * len(expected)


DISTURBANCES = [read_whole, leave, kill_a_worker, read_two_loaders]
QUICK = [
    (leave, 0, False, True),
    (read_whole, 1, True, False),
    (kill_a_worker, 2, False, True),
]
SLOW = [
    pytest.param(
        disturb,
        workers,
        method,
        persistent,
        persistent != (workers == 3),  # a predicate in half of the cases
        marks=pytest.mark.heavy,
        id=f"{disturb.__name__}-{workers}-{method}-{persistent}",
    )
    for disturb in DISTURBANCES
    for workers in (0, 1, 3)
    for method in ("fork", "spawn", "forkserver")
    for persistent in (False, True)
    if workers or (method == "fork" and not persistent and disturb is not kill_a_worker)
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("disturb", "workers", "persistent", "where"), QUICK)
def test_numbers_are_summed_over_workers(ds, judge, disturb, workers, persistent, where) -> None:
    check_workers(ds, judge, disturb, workers, "fork", persistent=persistent, where=where)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("disturb", "workers", "method", "persistent", "where"), SLOW)
def test_numbers_are_summed_however_workers_start_and_end(
    ds, judge, disturb, workers, method, persistent, where
) -> None:
    check_workers(ds, judge, disturb, workers, method, persistent=persistent, where=where)


@pytest.mark.parametrize("order", ["records", "blocks"])
@pytest.mark.parametrize("pack", PACKS)
def test_a_stream_alone(tmp_path, judge, pack, order) -> None:
    ds = write_numbered(tmp_path / "ds", SIZES, MEMBER, PACKS[pack])
    records = open_dataset(ds, transform=judge.transform)
    judge.forget()
    stream = Stream(records, shuffle=True, order=order, where=keep_third)
    for _ in range(2):
        assert sorted(int(row["id"]) for row in stream) == [*filter(is_third, range(TOTAL))]
        judge.check(stream.stats(), is_third)
    next(iter(stream))
    judge.check(stream.stats(), is_third)


def test_blocks_read_the_files_once(large) -> None:
    stream = Stream(open_dataset(large))
    list(stream)
    first = stream.stats()
    list(stream)
    second = stream.stats() - first
    size = sum(file.stat().st_size for file in large.glob("*.tfrecord"))
    assert second.requests == MEMBERS
    assert 0.98 * size < second.bytes_read <= first.bytes_read < 1.02 * size


def test_a_mix(tmp_path, judge) -> None:
    for name, base in (("a", 0), ("b", 1000)):
        example = lambda number, base=base: {"id": base + number}  # noqa: E731
        write_numbered(tmp_path / name, [20, 9], MEMBER, example=example)
    mixed = mix({tmp_path / "a": 2, tmp_path / "b": 1}, until=300)
    records = open_dataset(mixed, transform=judge.transform)
    judge.forget()
    stream = torch_dataset(records, shuffle=True)
    read = ids_of(loader_of(stream, 2))
    assert len(read) == 300
    judge.check(stream.stats())
    assert stream.stats().records == 300


def test_keras(ds, judge) -> None:
    records = open_dataset(ds)
    judge.forget()
    stream = Stream(records, shuffle=True, where=keep_third)
    kept = sum(len(labels["id"]) for labels in keras_dataset(stream, label=None, batch_size=4))
    assert stream.stats().records == kept == sum(map(is_third, range(TOTAL)))
    assert stream.stats().dropped == TOTAL - kept
    assert stream.stats().bytes_read == sum(judge.numbers("bytes"))


def runs_of(members: list) -> int:
    return sum(1 for _ in itertools.groupby(members))


@pytest.mark.parametrize("size", [None, 1])
def test_the_cache_of_members(tmp_path, size) -> None:
    ds = write_numbered(tmp_path / "ds", [60], MEMBER, PACKS["deflated"])
    stream = Stream(open_dataset(ds, cache_bytes=size), shuffle=True, order="records")
    members = [int(row["id"]) // MEMBER for _ in range(2) for row in stream]
    # The smallest cache has only the last member.
    misses = len(set(members)) if size is None else runs_of(members)
    assert stream.stats().memory_misses == misses
    assert stream.stats().memory_hits == len(members) - misses
    assert 0 < misses < len(members)


def test_other_streams_of_the_records_are_not_counted(ds, judge) -> None:
    records = open_dataset(ds, transform=judge.transform)
    others = [Stream(records, shuffle=True) for _ in range(2)]
    for other in others:
        list(other)
    records[3]
    stream = Stream(records, shuffle=True)
    assert stream.stats() == StreamStats()
    before = [other.stats() for other in others]
    judge.forget()
    for _ in zip(stream, *others, strict=True):
        pass
    assert stream.stats().records == TOTAL
    assert [other.stats().records for other in others] == [2 * TOTAL] * 2
    read = [stream.stats(), *(o.stats() - b for o, b in zip(others, before, strict=True))]
    assert sum(stats.bytes_read for stats in read) == sum(judge.numbers("bytes"))
    assert all(stats.bytes_read for stats in read)


def test_files_and_caches_are_shared_with_the_records(large) -> None:
    records = open_dataset(large)
    list(records)
    stream = Stream(records)
    list(stream)
    assert stream.stats().requests == MEMBERS  # nothing was opened again
    records.close()
    before = stream.stats()
    list(stream)
    assert (stream.stats() - before).requests >= 2 * FILLED + MEMBERS


def test_copies_and_forks_count_from_zero(ds) -> None:
    stream = torch_dataset(open_dataset(ds))
    list(stream)
    total = stream.stats()
    copies = [copy.copy(stream), copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))]
    for copied in copies:
        assert copied.stats() == StreamStats()
        list(copied)
        assert copied.stats().records == TOTAL
    assert stream.stats() == total
    if not os.fork():
        is_right = stream.stats() == StreamStats() and len(list(stream)) == TOTAL
        os._exit(0 if is_right and stream.stats().records == TOTAL else 1)
    assert os.wait()[1] == 0
    assert stream.stats() == total


def test_threads_lose_no_count() -> None:
    """No lock is needed: a new version of Python that switches threads elsewhere fails here."""
    counters, interval = Counters(), sys.getswitchinterval()

    def count() -> None:
        for _ in range(100_000):
            counters.cells[RECORDS] += 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    finally:
        sys.setswitchinterval(interval)
    assert counters.read().records == 400_000


def test_training_goes_on_without_the_file(ds, monkeypatch) -> None:
    with tempfile.TemporaryDirectory(prefix="e") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        stream = torch_dataset(open_dataset(ds))
        loader = loader_of(stream, 1)
        ids_of(loader)
        for file in Path(folder).glob("shardmill-epochs-*"):
            file.unlink()
        assert stream.stats() == StreamStats()  # the numbers of workers were in the file
        ids_of(loader)
        assert stream.stats().records == TOTAL


def break_mapping(_worker: int) -> None:
    def fail(*_, **__) -> None:
        raise OSError(errno.ENODEV, "No such device")

    mmap.mmap = fail


def test_training_goes_on_without_shared_memory(ds) -> None:
    stream = torch_dataset(open_dataset(ds))
    assert sorted(ids_of(loader_of(stream, 1, worker_init_fn=break_mapping))) == [*range(TOTAL)]
    assert stream.stats() == StreamStats()


# Waiting.


def slow(row: dict, seconds: float) -> dict:
    time.sleep(seconds)
    return row


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_reader_lets_the_loop_wait(ds, workers) -> None:
    records = open_dataset(ds, transform=partial(slow, seconds=0.02))[:40]
    stream = torch_dataset(records)
    begin = time.monotonic()
    batches = stream.timed(loader_of(stream, workers))
    assert len(batches) == 8
    assert sorted(ids_of(batches)) == list(range(40))
    whole, stats = time.monotonic() - begin, stream.stats()
    assert 0.8 <= stats.wait_seconds <= whole
    assert stats.wait_share > 0.8


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_loop_does_not_wait(ds, workers) -> None:
    stream = torch_dataset(open_dataset(ds)[:40])
    begin = time.monotonic()
    batches = iter(stream.timed(loader_of(stream, workers)))
    next(batches)
    first = stream.stats()  # a worker had to start
    for _ in batches:
        time.sleep(0.1)
    whole, stats = time.monotonic() - begin, stream.stats()
    assert 0.7 <= stats.busy_seconds <= whole
    assert whole * 0.9 <= stats.busy_seconds + stats.wait_seconds <= whole
    assert (stats - first).wait_share < 0.5


def test_a_loop_that_ends_early_is_timed(ds) -> None:
    stream = Stream(open_dataset(ds))
    for _ in stream.timed(stream):
        time.sleep(0.1)
        break
    assert stream.stats().busy_seconds >= 0.1
    assert Stream(open_dataset(ds)).stats().wait_share is None


@pytest.mark.heavy
@pytest.mark.xdist_group("transform")
def test_a_loop_over_keras_is_timed(ds) -> None:
    stream = Stream(open_dataset(ds))
    begin = time.monotonic()
    batches = stream.timed(keras_dataset(stream, label=None, batch_size=100))
    count = 0
    for _ in batches:
        count += 1
        time.sleep(0.05)
    whole, stats = time.monotonic() - begin, stream.stats()
    assert count == len(batches) == -(-TOTAL // 100)
    assert 0.05 * count <= stats.busy_seconds <= whole
    assert 0 < stats.wait_seconds <= whole - stats.busy_seconds
    assert stats.records == TOTAL


# The line of an epoch.


def lines_of(caplog) -> list[str]:
    records = [record for record in caplog.records if record.name.startswith("shardmill")]
    assert all(record.levelno == logging.INFO for record in records)
    return [record.getMessage() for record in records]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_one_line_is_logged_for_each_epoch(ds, caplog, workers, persistent) -> None:
    caplog.set_level(logging.INFO, "shardmill")
    stream = torch_dataset(open_dataset(ds), shuffle=True)
    stream.set_epoch(7)
    batches = stream.timed(loader_of(stream, workers, persistent_workers=persistent and workers))
    [ids_of(batches) for _ in range(2)]
    next(iter(batches))  # has no line
    assert len(lines_of(caplog)) == 2
    for epoch, line in zip((7, 8), lines_of(caplog), strict=True):
        assert re.fullmatch(
            rf"epoch {epoch}: {TOTAL} records, [\d.]+ KiB in \d+ requests; "
            r"waited [\d.]+ of [\d.]+ s \(\d+%\)",
            line,
        )


def test_a_stream_without_a_loader_logs_its_epochs(ds, caplog) -> None:
    stream = Stream(open_dataset(ds), where=keep_third)
    list(stream)
    assert lines_of(caplog) == []
    caplog.set_level(logging.INFO, "shardmill")
    list(stream)
    list(stream)
    next(iter(stream))
    first, second = lines_of(caplog)
    assert first.startswith("epoch 1: 35 records, ")
    assert second.startswith("epoch 2: 35 records, ")
    assert second.endswith("; 68 dropped by where")
    list(keras_dataset(stream, label=None))
    assert len(lines_of(caplog)) == 3


# Prometheus.


def samples_of(text: str) -> dict:
    families = list(text_string_to_metric_families(text))
    assert all(family.type == "counter" and family.documentation for family in families)
    names = Counter(family.name for family in families)
    assert set(names.values()) == {1}
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_reads_the_text() -> None:
    stats = StreamStats(359, 12, 1 << 60, 24, 5, 6, 7, 8, 1.25, 1e-7)
    prefix, memory, disk = "shardmill_", ("cache", "memory"), ("cache", "disk")
    assert samples_of(stats.prometheus()) == {
        (f"{prefix}records_total",): 359,
        (f"{prefix}dropped_records_total",): 12,
        (f"{prefix}read_bytes_total",): 1 << 60,
        (f"{prefix}requests_total",): 24,
        (f"{prefix}cache_hits_total", memory): 5,
        (f"{prefix}cache_misses_total", memory): 6,
        (f"{prefix}cache_hits_total", disk): 7,
        (f"{prefix}cache_misses_total", disk): 8,
        (f"{prefix}wait_seconds_total",): 1.25,
        (f"{prefix}busy_seconds_total",): 1e-7,
    }


def test_labels_of_prometheus() -> None:
    value = 'a "quoted"\nname \\n'
    samples = samples_of(StreamStats().prometheus(dataset=value, split="train"))
    assert all(("dataset", value) in key and ("split", "train") in key for key in samples)
    for name in ("cache", "größe", "__name"):
        with pytest.raises(UsageError, match="cannot be a label"):
            StreamStats().prometheus(**{name: "x"})
