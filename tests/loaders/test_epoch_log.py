"""The log of epochs is right wherever a signal handler raises.

torch's handler of SIGCHLD raises in any code that runs when a worker was killed, and so does Ctrl-C.
"""

import contextlib
import copy
import gc
import multiprocessing
import os
import pickle
import sys
import tempfile
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from shardmill.loaders import Stream, epoch_log, open_dataset
from tests.loaders.test_passes import ids_of, loader_of, stream_of
from tests.support.loader_tools import write_numbered

SIZES = [4, 3]


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return write_numbered(tmp_path_factory.mktemp("log") / "ds", SIZES, 6)


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files, whose name is short: torch makes sockets in it."""
    with tempfile.TemporaryDirectory(prefix="e") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def ignore(_value: str, _worker: int) -> None:
    """Does nothing in a worker that starts."""


class Raiser:
    """Raises once, at a line of the module of the log; counts its lines."""

    def __init__(self, line: int, error: type[BaseException]) -> None:
        self.lines, self._line, self._error = 0, line, error

    def __enter__(self):
        self._process = os.getpid()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    @property
    def has_raised(self) -> bool:
        return self.lines > self._line

    def _trace(self, frame, event, _argument):
        if frame.f_code.co_filename != epoch_log.__file__ or os.getpid() != self._process:
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self._line + 1:
                raise self._error("killed by signal")
        return self._trace


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_start_with_the_log_wherever_a_handler_raises(ds) -> None:
    for line in range(30):
        stream = stream_of(ds)
        stream.set_epoch(3)
        loader = loader_of(stream, 1)
        with Raiser(line, RuntimeError) as raiser:
            batches = iter(loader)
        assert raiser.has_raised or line > 20
        assert sorted(ids_of(batches)) == list(range(7))
        assert stream.epoch == 4


def test_an_interrupted_call_can_be_repeated(ds) -> None:
    for line in range(1000):
        stream = Stream(open_dataset(ds), shuffle=True, seed=4)
        with Raiser(line, KeyboardInterrupt) as raiser:
            try:
                stream.set_epoch(5)
            except KeyboardInterrupt:
                stream.set_epoch(5)
        read = [int(row["id"]) for row in stream]
        again = Stream(open_dataset(ds), shuffle=True, seed=4)
        again.set_epoch(5)
        assert read == [int(row["id"]) for row in again]
        assert stream.epoch == 6
        if not raiser.has_raised:
            return


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_logs_whose_files_were_cleaned_go_on(ds, temporary) -> None:
    """Something may clean the folder of temporary files while a process trains for weeks."""
    first, second = stream_of(ds), stream_of(ds)
    orders = {0: ids_of(loader_of(first, 1))}
    for file in temporary.glob("shardmill-epochs-*"):
        file.unlink()
    assert ids_of(loader_of(second, 1)) == orders[0]
    for stream in (first, second):
        assert sorted(ids_of(loader_of(stream, 2))) == list(range(7))


@pytest.mark.nightly
def test_copies_have_separate_files(ds) -> None:
    """Also those that are made while workers start, as to send them to a new interpreter."""
    stream = stream_of(ds)
    copies = []

    class Copied:
        """Is copied and pickled when it is sent to a worker."""

        def __reduce__(self):
            copies.extend([copy.copy(stream), pickle.loads(pickle.dumps(stream))])
            return str, ("",)

    loader = loader_of(stream, 1, "spawn", worker_init_fn=partial(ignore, Copied()))
    whole = ids_of(loader)
    assert len(copies) == 2
    before = [copied.epoch for copied in copies]
    assert len(ids_of(loader)) == len(whole)
    assert [copied.epoch for copied in copies[:2]] == before


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("method", "stateful"),
    [
        ("fork", False),
        ("fork", True),
        pytest.param("spawn", False, marks=pytest.mark.heavy),
        pytest.param("forkserver", True, marks=pytest.mark.heavy),
    ],
)
def test_workers_end_with_their_iterator(ds, method, stateful) -> None:
    """Without the collector, although the log looks for the iterator when its workers start."""
    stream = stream_of(ds)
    for source in (stream, range(20)):
        loader = loader_of(source, 2, method, stateful=stateful)
        before = {*multiprocessing.active_children()}
        with without_collector():
            batches = iter(loader)
            workers = {*multiprocessing.active_children()} - before
            assert len(workers) == 2  # none ends before its first batch is taken
            next(batches)
            del batches, loader  # a StatefulDataLoader keeps its iterator
            for worker in workers:
                worker.join(60)  # torch waits 5 s, and not for those that it then terminates
            assert not any(worker.is_alive() for worker in workers)


def test_a_fork_keeps_no_values(ds) -> None:
    """What a function drops after another process was started is freed."""
    stream = stream_of(ds)
    value = {1, 2, 3}
    freed = weakref.ref(value)
    process = multiprocessing.get_context("fork").Process(target=str)
    process.start()
    process.join()
    with without_collector():
        del value
        assert freed() is None
    assert stream.epoch == 0
