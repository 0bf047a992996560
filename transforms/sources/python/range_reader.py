"""Read ranges of an indexable Python source in processes, in the order of its records.

The first records are read in the calling process. They show whether other processes would save
time, and each of those must read the same values. A process receives the source through a pipe:
pickled, and with the classes of ``__main__``, whose script it never runs. The calling process reads
what a process fails to read, and so raises the errors itself.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, ClassVar

import cloudpickle

from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.map_ordered import map_ordered
from shardmill.transforms.runtime.process_pool import exit_with_parent, uninterrupted, usable_cores
from shardmill.transforms.sources.python.records import Measure, Piece, iterate

TRIAL_SECONDS = 0.5  # of reading, before processes may be started
WORTH_SECONDS = 8.0  # of reading that remains; a process takes 1 to 5 to import what it needs
_CHECKED = 32  # first records, which each process reads too
_SOURCE_BYTES = 256 << 20  # of a pickled source, of which each process has a copy
_WAITING_BYTES = 128 << 20  # of records of all processes that wait for their turn
_RANGE_SECONDS, _WINDOW = 0.1, 4  # ranges of each process that are read or wait
_RATE, _RECORD_SECONDS = 5e8, 4e-5  # of the transfer, which must be cheap next to reading


class RangeReader:
    """Reads one source, in processes if that saves time.

    Args:
        processes: Largest number of processes; 0 for one per core.
    """

    def __init__(self, processes: int) -> None:
        is_daemon = multiprocessing.current_process().daemon  # which may have no processes
        self._processes = 1 if is_daemon else processes or usable_cores()
        self._reply_bytes = max(1 << 20, _WAITING_BYTES // (_WINDOW * self._processes))
        self._children: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[Connection] = SimpleQueue()

    def close(self) -> None:
        """End the processes at once."""
        for child in self._children:
            child.kill()
            child.wait()

    def read(self, source: Any, measure: Measure) -> Iterator[Piece]:
        """Yield what a function makes of each record of a source.

        Args:
            source: The source.
            measure: The function; processes import its module.
        """
        pieces = chain.from_iterable(map(measure, enumerate(iterate(source))))
        left = range(len(source) if self._processes > 1 and _is_indexable(source) else 0)
        first: list[Piece] = []
        seconds, num_bytes, remaining = 0.0, 0, 0.0
        while left and (seconds < TRIAL_SECONDS or remaining < WORTH_SECONDS):
            started = time.perf_counter()
            piece = next(pieces, None)
            seconds += time.perf_counter() - started
            if piece is None:
                return
            yield piece
            left = left[1:]
            if len(first) < _CHECKED and num_bytes < self._reply_bytes:
                first.append(piece)
            num_bytes += piece[2]
            remaining = len(left) * ((seconds - num_bytes / _RATE) / left.start - _RECORD_SECONDS)
        if not left or not self._start(source, measure, first):
            self.close()
            yield from pieces
            return
        rate = min(_RANGE_SECONDS / seconds, self._reply_bytes / 2 / (num_bytes or 1))
        length = max(1, int(left.start * rate))
        ranges = (left[start : start + length] for start in range(0, len(left), length))
        window = _WINDOW * self._processes
        replies = map_ordered(self._request, ranges, self._processes, window=window, wait=False)
        for records, found in replies:
            yield from found
            for index in records[len(found) :]:  # too large for one reply, or an error
                yield from measure((index, source[index]))

    def _start(self, source: Any, measure: Measure, first: list[Piece]) -> bool:
        """Start the processes; return whether each reads the first records as this process did."""
        file = _LimitedFile()
        code = f"import sys; sys.path[:] = {[*map(str, sys.path)]}; from {__name__} import serve; "

        def check(connection: Connection) -> bool:
            connection.send_bytes(file.getbuffer())
            self._idle.put(connection)
            return connection.recv_bytes() == wanted

        with contextlib.suppress(Exception):  # a class may raise any if it cannot be pickled
            _Pickler(file).dump((source, measure, len(first), self._reply_bytes))
            wanted = _dump(first)
            connections = []
            end, self._lifeline = multiprocessing.Pipe(duplex=False)
            # The terminal sends Ctrl-C to all processes; this one ends its children itself.
            with end, uninterrupted(signal.SIGINT):
                for _ in range(self._processes):
                    ours, theirs = multiprocessing.Pipe()
                    with theirs:
                        ends = theirs.fileno(), end.fileno()
                        command = [sys.executable, "-u", "-c", f"{code}serve{ends}"]
                        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=ends)  # noqa: S603
                    self._children.append(child)
                    connections.append(ours)
            return all(map_ordered(check, connections, self._processes, wait=False))
        return False

    def _request(self, records: range) -> tuple[range, list[Piece]]:
        """Return a range, and what a process read of it: nothing if there was an error."""
        connection = self._idle.get()
        try:
            connection.send(records)
            return records, connection.recv()
        except (EOFError, OSError) as error:
            raise ShardmillError(
                "source-process-killed", first=records[0], last=records[-1]
            ) from error
        finally:
            self._idle.put(connection)


class _Pickler(cloudpickle.Pickler):
    """Fails for an open file, which cloudpickle would copy."""

    dispatch_table: ClassVar = {**cloudpickle.Pickler.dispatch_table}
    del dispatch_table[io.TextIOWrapper]


class _LimitedFile(io.BytesIO):
    """A file in memory that becomes no larger than a pickled source may be."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > _SOURCE_BYTES:
            raise OverflowError
        return super().write(data)


def _is_indexable(source: Any) -> bool:
    """Return whether the values of a source are those of its indices, made when they are asked."""
    by_index = isinstance(source, Sequence) or not hasattr(source, "__iter__")
    has_index = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return by_index and has_index and not isinstance(source, list | tuple | Mapping)


def _dump(pieces: list[Piece]) -> bytes:
    """Return pieces as bytes, which depend on their values only."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True  # else the bytes depend on which values are one object
    pickler.dump(pieces)
    return file.getvalue()


def serve(requests: int, lifeline: int) -> None:
    """Read ranges until the calling process closes the pipe or dies; what a process executes.

    Args:
        requests: File descriptor of the source, the requests and their replies.
        lifeline: One that is closed when this process must end.
    """
    exit_with_parent(Connection(lifeline))
    with Connection(requests) as connection, contextlib.suppress(Exception):
        source, measure, number, most = pickle.loads(connection.recv_bytes())  # noqa: S301 - of the caller
        records = range(number)
        while True:
            connection.send_bytes(_read_range(source, measure, records, most))
            records = connection.recv()


def _read_range(source: Any, measure: Measure, records: range, most: int) -> bytes:
    """Return the pieces of records, of about as many bytes; none if there is an error."""
    pieces: list[Piece] = []
    with contextlib.suppress(BaseException):  # the calling process meets it again
        for index in records:
            pieces += measure((index, source[index]))
            most -= pieces[-1][2]
            if most <= 0:
                break
        return _dump(pieces)
    return _dump([])
