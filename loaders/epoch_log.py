"""EpochLog: which epoch each pass over a stream reads, agreed by all processes that read it."""

from __future__ import annotations

import contextlib
import copy
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from shardmill.loaders.data_loader import (
    is_reading,
    is_unread,
    number_starting_loader,
    restart,
)
from shardmill.loaders.hosts import Share, find_worker
from shardmill.schemas.errors import UsageError
from shardmill.schemas.user_warnings import warn_user

NO_POSITION = 0
OWN_POSITION = -1  # of a worker that restored a state
_NOT_SET = -1
_MAX_PASSES = 1024  # that are remembered, for workers that begin late
_MAX_RAISED = 8  # by signal handlers while one log moves
_SET, _BEGIN, _EMPTY, _WARN, _COUNTS = range(5)


class PassKey(NamedTuple):
    """Names one pass over a stream, equally in all workers that take part in it.

    Attributes:
        loader: Number of the iterator of a DataLoader; 0 for a pass in the stream's own process.
        number: Number of the pass of this iterator.
    """

    loader: int
    number: int


class Pass(NamedTuple):
    """The epoch and position that a pass reads.

    Attributes:
        key: Its name.
        epoch: Number of the epoch.
        position: Number of the position where it begins: NO_POSITION for the start of the epoch.
        is_repeated: Whether an earlier pass read this epoch.
        asked: The epoch that the user set since the pass before; -1 if none was set.
        order: Number of the entry that decided it.
    """

    key: PassKey
    epoch: int
    position: int
    is_repeated: bool
    asked: int
    order: int


class LogEntry(NamedTuple):
    """One entry of the log; all fields are integers of 64 bits.

    Attributes:
        kind: An epoch is set, a pass begins, a worker has kept no example, a warning is given, or
            a worker counts: it then changes all other fields, which are its counters.
        loader: See ``PassKey``.
        number: See ``PassKey``.
        epoch: The epoch that is set. Of a pass: the epoch of a restored state, or -1.
        position: Number of the position that is set.
        is_asked: Whether the user set the epoch.
        advances: Whether the epoch after the pass is the next one.
        ends: The same for a pass that begins at a position.
        worker: Number of a worker that has kept no example.
        workers: Number of workers of its pass.
    """

    kind: int
    loader: int = 0
    number: int = 0
    epoch: int = _NOT_SET
    position: int = NO_POSITION
    is_asked: int = 0
    advances: int = 0
    ends: int = 0
    worker: int = 0
    workers: int = 0


COUNTERS = len(LogEntry._fields) - 1
_FORMAT = struct.Struct(f"<{len(LogEntry._fields)}q")


class LogState:
    """The sum of the entries of a log so far.

    Attributes:
        epoch: The epoch of the next pass.
        position: Number of the position where it begins.
        asked: The epoch that the user set since the last pass; -1 if none was set.
        last: The last pass that began.
        set_order: Number of the last entry that set an epoch.
        passes: The passes that began, by their names.
        entries: Number of entries.
        empty: The workers that kept no example, by the pass.
        last_empty: The pass and the worker that were the last to keep no example.
        has_warned: Whether a warning was given.
    """

    def __init__(self) -> None:
        self.epoch, self.position, self.asked = 0, NO_POSITION, _NOT_SET
        self.last: PassKey | None = None
        self.set_order = 0
        self.passes: dict[PassKey, Pass] = {}
        self.entries = 0
        self.last_empty: tuple[PassKey, int] | None = None
        self.has_warned = False
        self._is_repeated = False
        self.empty: dict[PassKey, set[int]] = {}

    def copy(self) -> LogState:
        """Return a copy that does not change when entries are added to this state."""
        state = copy.copy(self)
        state.passes = dict(self.passes)
        state.empty = {key: set(workers) for key, workers in self.empty.items()}
        return state

    def add(self, entry: LogEntry) -> None:
        """Add the next entry."""
        self.entries += 1
        key = PassKey(entry.loader, entry.number)
        if entry.kind == _SET:
            self.epoch, self.position = entry.epoch, entry.position
            self.asked = entry.epoch if entry.is_asked else _NOT_SET
            self._is_repeated, self.set_order = False, self.entries
        elif entry.kind == _WARN:
            self.has_warned = True
        elif entry.kind == _EMPTY:
            workers = self.empty.setdefault(key, set())
            workers.add(entry.worker)
            if len(workers) == entry.workers:
                self.last_empty = key, entry.worker
        elif entry.kind == _BEGIN and key not in self.passes:
            self._begin(key, entry)

    def _begin(self, key: PassKey, entry: LogEntry) -> None:
        epoch, position = self.epoch, self.position
        if entry.epoch != _NOT_SET:
            epoch, position = entry.epoch, OWN_POSITION
        advances = entry.advances or (position != NO_POSITION and entry.ends)
        is_repeated = self._is_repeated and epoch == self.epoch and not advances
        self.passes[key] = Pass(key, epoch, position, is_repeated, self.asked, self.entries)
        if len(self.passes) > _MAX_PASSES:
            oldest = next(iter(self.passes))
            del self.passes[oldest]
            self.empty.pop(oldest, None)
        self.epoch, self.position = epoch + bool(advances), NO_POSITION
        self.asked, self.last, self._is_repeated = _NOT_SET, key, True


class EpochLog:
    """Decides the epoch of each pass.

    Setting an epoch and beginning a pass are entries of one log, and the first entry of a pass
    decides its epoch: workers that begin it later, or after another epoch was set, find the entry
    and read the same one. Counters in each worker would differ: torch ends a worker that is slow to
    start. Before workers are started the log moves to a file. Appending to a file is
    atomic, and needs no lock that a killed worker could hold.

    The handler that torch installs for ended workers raises in any code that runs, as does
    Ctrl-C. So a state is never changed: a new one takes its place when it is complete.
    """

    def __init__(self) -> None:
        self._read = _ReadState(LogState(), 0)
        self._loader = 0
        self._path = ""
        self._process: int | None = os.getpid()  # that made the stream; None in a pickled copy
        _logs.add(self)

    @property
    def last_epoch(self) -> int | None:
        """The epoch of the last pass that began; None before the first one."""
        state = self.state
        if state.last is None:
            return None
        return state.passes[state.last].epoch

    @property
    def state(self) -> LogState:
        """The state after all entries so far."""
        self.update()
        return self._read.state

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which counts separately unless it is for a worker."""
        self.share_with_workers()
        self.update()
        if self.is_of_worker or number_starting_loader():
            return dict(self.__dict__)
        return {**self.__dict__, "_process": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy; in the process of the original it counts separately."""
        self.__dict__.update(state)
        if self._process in (None, os.getpid()):
            self._process = os.getpid()
            self._leave_file()
        _logs.add(self)

    def _leave_file(self) -> None:
        self._path = ""
        self._read = _ReadState(self._read.state, 0)

    def share_with_workers(self) -> None:
        """Move to a file if a DataLoader is starting workers."""
        loader = number_starting_loader()
        if not loader or self.is_of_worker:
            return
        self._loader = loader
        self.update()
        if not self._path:
            file, path = tempfile.mkstemp(prefix="shardmill-epochs-")
            weakref.finalize(self, _remove, path, os.getpid())
            os.close(file)
            self._read = _ReadState(self._read.state, 0)
            self._path = path

    @property
    def is_of_worker(self) -> bool:
        """Whether this process is a worker, and the stream was made by the process before it.

        Raises:
            UsageError: That process could not write the file of the log.
        """
        if self._process == os.getpid() or find_worker() is None:
            return False
        if not self._path:
            raise _workers_without_log()
        return True

    def _next_key(self) -> PassKey:
        """Return the key of the pass that begins next in this process."""
        if self.is_of_worker:
            return PassKey(self._loader, _begun.get((self._path, self._loader), 0))
        return PassKey(0, self._read.state.entries)

    def asked_of_next(self) -> int:
        """Return the epoch that the user set for the pass that begins next; -1 if none was set."""
        state = self.state
        begun = state.passes.get(self._next_key())
        if begun is None:
            return state.asked
        return begun.asked

    def position_of_next(self) -> int:
        """Return the number of the position where the pass that begins next begins."""
        state = self.state
        begun = state.passes.get(self._next_key())
        if begun is None:
            return state.position
        return begun.position

    def is_unread_in(self, epoch: int) -> bool:
        """Return whether workers have begun an epoch, and no batch of it was taken yet."""
        unread = _find_unread(self.state)
        return unread is not None and unread.epoch == epoch

    def apply_to_unread(self, *, advances: bool) -> None:
        """Let workers that began just before an epoch was set read that epoch.

        Args:
            advances: Whether the epoch after a pass is the next one.
        """
        state = self.state
        unread = _find_unread(state)
        if unread is None or unread.order > state.set_order:
            return
        if unread.epoch == state.epoch and state.position == NO_POSITION:
            self.set_epoch(state.epoch + int(advances), NO_POSITION, is_asked=False)
        else:
            restart(unread.key.loader)

    def is_read_by_workers(self) -> bool:
        """Return whether workers read, or have read the last pass since an epoch was set."""
        state = self.state
        if is_reading(self._loader) and any(key.loader == self._loader for key in state.passes):
            return True
        if state.last is None or state.passes[state.last].order < state.set_order:
            return False
        return state.last.loader != 0

    def set_epoch(self, epoch: int, position: int, *, is_asked: bool) -> None:
        """Set the epoch and position of the next pass."""
        self._append(LogEntry(_SET, epoch=epoch, position=position, is_asked=int(is_asked)))

    def begin(self, *, restored: int | None, advances: bool, ends: bool) -> Pass:
        """Begin a pass, or take part in one that another worker began.

        Args:
            restored: The epoch of a state that this worker restored, or None.
            advances: Whether the epoch after the pass is the next one.
            ends: The same for a pass that begins at a position.
        """
        self.update()
        key = self._next_key()
        if self.is_of_worker:
            _begun[self._path, self._loader] = key.number + 1
        epoch = _NOT_SET if restored is None else restored
        self._append(LogEntry(_BEGIN, *key, epoch=epoch, advances=int(advances), ends=int(ends)))
        return self._read.state.passes[key]

    def add_empty(self, key: PassKey, worker: Share) -> bool:
        """Record that a worker has kept no example of a pass.

        Returns:
            Whether to warn: no worker has kept one, and this process is the first to know.
        """
        self._append(LogEntry(_EMPTY, *key, worker=worker.index, workers=worker.count))
        is_last = self._read.state.last_empty == (key, worker.index)
        return is_last and self.begin_warning()

    def begin_warning(self) -> bool:
        """Return whether to warn that examples are left out; once for all processes."""
        if self.state.has_warned:
            return False
        self._append(LogEntry(_WARN))
        return True

    def open_counters(self) -> memoryview | None:
        """Return the counters of this worker, which are 0 now; None if it is not a worker.

        They are in the memory of the file, which stays if the worker is killed.
        """
        self.update()
        if not self.is_of_worker:
            return None
        file = os.open(self._path, os.O_RDWR | os.O_APPEND)
        try:
            os.write(file, _FORMAT.pack(_COUNTS, *[0] * COUNTERS))
            end = os.lseek(file, 0, os.SEEK_CUR)  # of this entry, also if others were appended
            begin = end - 8 * COUNTERS
            page = begin - begin % mmap.ALLOCATIONGRANULARITY
            memory = mmap.mmap(file, end - page, offset=page)
        except OSError as error:  # reading is possible without
            warn_user(
                f"stats() leaves out worker {os.getpid()}, which cannot share memory: {error}; "
                "set TMPDIR to a folder of a local disk."
            )
            return None
        finally:
            os.close(file)
        return memoryview(memory)[begin - page :].cast("q")

    def sum_counters(self) -> list[int]:
        """Return the sums of the counters of all workers so far."""
        self.update()
        data = b""
        if self._path:
            with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
                data = file.read()
        size = len(data) // _FORMAT.size * _FORMAT.size
        entries = np.frombuffer(data[:size], "<i8").reshape(-1, COUNTERS + 1)
        sums: list[int] = entries[entries[:, 0] == _COUNTS, 1:].sum(axis=0).tolist()
        return sums

    def update(self) -> None:
        """Read entries that other processes have appended."""
        if not self.is_of_worker and self._process != os.getpid():
            # A fork that is not a worker counts separately from its parent.
            self._process = os.getpid()
            self._leave_file()
        if not self._path:
            return
        offset = self._read.offset
        try:
            with open(self._path, "rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:  # something cleans the folder of temporary files
            if self.is_of_worker:
                raise _workers_without_log() from None
            self._leave_file()
            return
        size = len(data) // _FORMAT.size * _FORMAT.size
        if size:
            entries = [LogEntry(*values) for values in _FORMAT.iter_unpack(data[:size])]
            self._add(entries, offset + size)

    def _add(self, entries: Iterable[LogEntry], offset: int) -> None:
        state = self._read.state.copy()
        for entry in entries:
            state.add(entry)
        self._read = _ReadState(state, offset)

    def _append(self, entry: LogEntry) -> None:
        if not self._path:
            self._add([entry], 0)
            return
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, _FORMAT.pack(*entry))
        finally:
            os.close(file)
        self.update()


def _workers_without_log() -> UsageError:
    return UsageError(
        "workers cannot agree on an epoch, since their file in the folder for temporary files is "
        "missing: set TMPDIR to a folder with space that nothing cleans."
    )


class _ReadState(NamedTuple):
    """The state after the entries up to an offset of the file."""

    state: LogState
    offset: int


def _find_unread(state: LogState) -> Pass | None:
    """Return the last pass, if workers have begun it and none of its batches was taken yet."""
    if state.last is None or not is_unread(state.last.loader):
        return None
    return state.passes[state.last]


_logs: weakref.WeakSet[EpochLog] = weakref.WeakSet()
_begun: dict[tuple[str, int], int] = {}
"""Passes that this worker has begun, by log and DataLoader; copies of a stream share them."""


def _remove(path: str, process: int) -> None:
    """Remove the file of a log, unless this is a fork of the process that made it."""
    if os.getpid() == process:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _share_logs() -> None:
    """Let all logs move to a file, also if a signal handler raises meanwhile.

    An exception in a hook is printed and lost: the workers would start without the file. torch's
    handler raises once for each DataLoader whose worker was killed.
    """
    errors: list[Exception] = []
    for log in list(_logs):
        for _ in range(_MAX_RAISED):
            try:
                log.share_with_workers()
                break
            except RuntimeError as error:
                errors.append(error)
            except OSError as error:  # this log has no file; others may have one
                errors.append(error)
                break
    if errors:
        raise errors[0]


# Twice, since the handler may also raise where the hook begins.
os.register_at_fork(before=_share_logs)
os.register_at_fork(before=_share_logs)
