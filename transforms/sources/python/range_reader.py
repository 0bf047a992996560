"""Read ranges of an indexable Python source in processes, in the order of its records.

The first records are read in the calling process. They show whether other processes would save
time, and each of those must read the same values. A process receives the source through a pipe:
pickled, and with the classes of ``__main__``, whose script it never runs. The calling process reads
what a process fails to read, and so raises the errors itself.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import multiprocessing
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, ClassVar

import cloudpickle
from blake3 import blake3

from shardmill.schemas.errors import ShardmillError
from shardmill.schemas.storage.base import map_ordered
from shardmill.transforms.runtime.lifeline import end_with_parent
from shardmill.transforms.runtime.process_pool import uninterrupted, usable_cores
from shardmill.transforms.sources.python.records import Measure, Piece, iterate

TRIAL_SECONDS = 0.5  # of reading, before processes may be started
WORTH_SECONDS = 8.0  # of reading that remains; a process takes 1 to 5 to import what it needs
_FEWEST, _CHECKED = 8, 32  # first records, which each process reads too
_SOURCE_BYTES = 256 << 20  # of a pickled source; each process has a copy
_WAITING_BYTES = 128 << 20  # of records of all processes that wait for their turn
_RANGE_SECONDS, _WINDOW = 0.1, 4  # ranges of each process that are read or wait
_serving = False  # whether this process reads for another one
_RATE, _RECORD_SECONDS = 5e8, 4e-5  # of the transfer, which must be cheap next to reading


class RangeReader:
    """Reads one source, in processes if that saves time.

    Args:
        processes: Largest number of processes; 0 for one per core.

    Raises:
        RuntimeError: A process that reads for another one imported a module that reads a source.
    """

    def __init__(self, processes: int) -> None:
        if _serving:  # the calling process will read the source alone
            raise RuntimeError("the module of the source reads it when it is imported")
        is_daemon = multiprocessing.current_process().daemon  # which may have no processes
        self._processes = 1 if is_daemon else processes or usable_cores()
        self._reply_bytes = max(1 << 20, _WAITING_BYTES // (_WINDOW * self._processes))
        self._children: list[subprocess.Popen[bytes]] = []
        self._lifeline: Connection | None = None
        self._idle: SimpleQueue[Connection] = SimpleQueue()

    def close(self) -> None:
        """End the processes at once, also one that an interrupt kept from being listed."""
        if self._lifeline is not None:
            self._lifeline.close()
        for child in self._children:
            child.kill()
            child.wait()

    def read(self, source: Any, measure: Measure) -> Iterator[Piece]:
        """Apply a function to each record of a source; yield the results.

        Args:
            source: The source.
            measure: The function; processes import its module.
        """
        pieces = itertools.starmap(measure, enumerate(iterate(source)))
        left = range(len(source) if self._processes > 1 and _is_indexable(source) else 0)
        first: list[bytes] = []
        seconds, num_bytes, remaining = 0.0, 0, 0.0
        while left and (
            left.start < _FEWEST or seconds < TRIAL_SECONDS or remaining < WORTH_SECONDS
        ):
            started = time.perf_counter()
            piece = next(pieces, None)
            seconds += time.perf_counter() - started
            if piece is None:
                return
            yield piece
            left = left[1:]
            if len(first) < _CHECKED:
                with contextlib.suppress(Exception):  # a value may be one that cannot be pickled
                    first.append(_digest(piece))
            num_bytes += piece[2]
            remaining = len(left) * ((seconds - num_bytes / _RATE) / left.start - _RECORD_SECONDS)
        if not (left and first and self._start(source, measure, first)):
            self.close()
            yield from pieces
            return
        rate = min(_RANGE_SECONDS / seconds, self._reply_bytes / 2 / (num_bytes or 1))
        length = max(1, int(left.start * rate))
        ranges = (left[start : start + length] for start in range(0, len(left), length))
        window = _WINDOW * self._processes
        replies = map_ordered(self._request, ranges, self._processes, window=window, wait=False)
        for records, measured in replies:
            yield from measured
            for index in records[len(measured) :]:  # too large for one reply, or an error
                yield measure(index, source[index])

    def _start(self, source: Any, measure: Measure, first: list[bytes]) -> bool:
        """Start the processes; return whether each reads the first records as this process did.

        Args:
            source: The source.
            measure: See ``read``.
            first: Digests of the first records.
        """
        file = _LimitedFile()
        code = f"import sys; sys.path[:] = {[*map(str, sys.path)]}; from {__name__} import serve; "

        def check(connection: Connection) -> bool:
            connection.send_bytes(file.getbuffer())
            self._idle.put(connection)
            return connection.recv_bytes() == b"".join(first)

        with contextlib.suppress(Exception):  # a class may raise any if it cannot be pickled
            _Pickler(file).dump((source, measure, len(first), self._reply_bytes))
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
        """Return a range and the records that a process read of it: none after an error."""
        connection = self._idle.get()
        try:
            connection.send(records)
            data = connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise ShardmillError(
                f"A process that read records {records[0]} to {records[-1]} of the source was "
                "killed, perhaps because memory ran out: run again, with fewer workers if so; "
                "workers=1 reads them in this process."
            ) from error
        finally:
            self._idle.put(connection)
        with contextlib.suppress(Exception):  # a value may be pickled, but not unpickled
            return records, pickle.loads(data)  # noqa: S301 - of a process that this one started
        return records, []


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
    """Return whether the values of a source are those of its indices, made when they are asked.

    An iterator may give others, and what ``iterate`` gives is right. A source with
    ``__getitems__``, by which PyTorch asks for a batch of indices, states that they are equal.
    """
    by_index = not hasattr(source, "__iter__") or hasattr(source, "__getitems__")
    return by_index and hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _dump(pieces: list[Piece]) -> bytes:
    """Return pieces as bytes, which depend on their values only."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True  # else the bytes depend on which values are one object
    pickler.dump(pieces)
    return file.getvalue()


def _digest(piece: Piece) -> bytes:
    digest: bytes = blake3(_dump([piece])).digest()
    return digest


def serve(requests: int, lifeline: int) -> None:
    """Run a reader process: read ranges until the calling process closes the pipe or dies.

    Args:
        requests: File descriptor of the source, the requests and their replies.
        lifeline: One that is closed when this process must end.
    """
    global _serving  # noqa: PLW0603 - of a process that does nothing else
    _serving = True
    end_with_parent(lifeline)
    with Connection(requests) as connection, contextlib.suppress(Exception):
        source, measure, number, most = pickle.loads(connection.recv_bytes())  # noqa: S301 - of the caller
        first = (measure(index, source[index]) for index in range(number))
        connection.send_bytes(b"".join(map(_digest, first)))
        while True:
            connection.send_bytes(_read_range(source, measure, connection.recv(), most))


def _read_range(source: Any, measure: Measure, records: range, most: int) -> bytes:
    """Return the pieces of records, of about as many bytes; none if there is an error.

    The calling process reads what is left: an image that fails to load here may load there, where
    the user's script has run.
    """
    pieces: list[Piece] = []
    with contextlib.suppress(BaseException):  # the calling process meets it again
        for index in records:
            piece = measure(index, source[index])
            if piece[0].get(measure.image) == b"":
                break
            pieces.append(piece)
            most -= piece[2]
            if most <= 0:
                break
        return _dump(pieces)
    return _dump([])
