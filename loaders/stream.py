"""Stream: sequential or shuffled reading of a split, divided exactly among hosts and workers."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, get_args

from shardmill.loaders.hosts import Share, divide, find_host, parse_share
from shardmill.loaders.order import Chunk, Order
from shardmill.loaders.records import Records
from shardmill.loaders.steps import Remainder, is_positive_int
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import scheme_of

BUFFER_BYTES = 64 << 20
_RECORD_OVERHEAD = 250  # bytes of Python objects for a record in the buffer
_REMOTE_THREADS = 8
_READ_AHEAD = 512  # records of a remote storage
# Once a block of this size was freed, glibc returns less free memory to the system (mallopt(3),
# M_MMAP_THRESHOLD). Else each member, of 2 MiB, faults its pages in again: 10 us a record.
KEPT_BYTES = 8 << 20


class _Place(NamedTuple):
    """A record in the order of an epoch.

    Attributes:
        chunk: The chunk that has it.
        record: Number of the record in its shard.
        weight: 0 for one that only pads the share of a host, else 1.
    """

    chunk: Chunk
    record: int
    weight: float = 1.0


Payloads = Iterator[tuple[_Place, bytes]]


class Stream:
    """Reads the examples of a split sequentially, each exactly once in an epoch.

    The examples are divided evenly among hosts, and those of a host among its workers. Inside a
    torch ``DataLoader`` the stream gets its worker number from torch (see
    ``torch_data.torch_stream``). Each iteration is a new epoch.

    With ``shuffle`` the order depends on the seed, the epoch and the share of this worker: shards
    and members are read in random order, and examples are drawn from a buffer. All hosts must be
    in the same epoch. The shards of different labels (``--shard_by=label``) are interleaved, and
    drawn from the buffer in any case.

    Args:
        records: The result of ``open_dataset``.
        shuffle: Whether to shuffle.
        seed: Seed of the order.
        buffer: Number of examples in the shuffle buffer of each worker; None for as many as fit
            64 MiB, not compressed.
        host: Number of this host, and number of hosts that divide the split; None to ask the
            training framework (see ``hosts.find_host``).
        worker: Number of this worker, and number of workers that divide the share of the host;
            None to ask torch.
        remainder: What happens to examples that cannot be divided evenly among hosts: ``keep``
            them, so that some hosts get one more; ``drop`` them (others in each epoch, if
            shuffled), or ``pad`` the other hosts with examples whose feature ``weight`` is 0; it is
            1 elsewhere. None for ``drop`` with several hosts.
        where: Predicate on the values of an example; the others are left out, and the number of
            examples is then unknown. Not with several hosts, which would get different numbers.

    Raises:
        UsageError: An option is invalid.
    """

    def __init__(  # noqa: PLR0913 - all but one are keyword-only
        self,
        records: Records,
        *,
        shuffle: bool = False,
        seed: int = 0,
        buffer: int | None = None,
        host: tuple[int, int] | None = None,
        worker: tuple[int, int] | None = None,
        remainder: Remainder | None = None,
        where: Callable[[Any], bool] | None = None,
    ) -> None:
        if not isinstance(records, Records):
            raise UsageError(f"records={records!r:.60} must be what open_dataset returns.")
        if records.picks is not None:
            raise UsageError(
                "a Stream reads consecutive records: give it slices with the step 1, or read "
                "picked records by number, as a DataLoader of them does."
            )
        if not isinstance(shuffle, bool):
            raise UsageError(f"shuffle={shuffle!r} must be True or False; see also buffer.")
        if buffer is not None and not is_positive_int(buffer):
            raise UsageError(f"buffer={buffer!r} must be a number of examples, 1 or more.")
        self.records = records
        self.host = find_host(host)
        self.worker = None if worker is None else parse_share("worker", worker)
        several = self.host.count > 1
        self.remainder: Remainder = remainder or ("drop" if several else "keep")
        if self.remainder not in get_args(Remainder):
            raise UsageError(f"remainder={remainder!r} is unknown: use keep, drop or pad.")
        if self.remainder == "drop" and 0 < len(records) < self.host.count:
            raise UsageError(
                f"the split has {len(records)} examples, fewer than {self.host.count} hosts, which "
                "would read none: use fewer hosts, or remainder='pad'."
            )
        if where is not None and not callable(where):
            raise UsageError(f"where={where!r} must be a function of an example.")
        if where is not None and several:
            raise UsageError(
                f"where with {self.host.count} hosts would give them different numbers of "
                "examples, and the hosts would wait for each other: build a dataset of what "
                "you keep, or read all of it."
            )
        self.where, self.epoch = where, 0
        self.buffer = buffer
        parts, files = records.source.selection.parts, records.files
        self._order = Order(
            parts, shuffle, seed, self._buffer_size, files.member_bounds, files.open_ahead
        )
        self._skip = 0  # records of the next epoch that were read before
        self._reading: tuple[int, int] | None = None  # epoch and position of the last iteration

    @property
    def begins_inside(self) -> bool:
        """Whether the next iteration begins in the middle of an epoch."""
        return self._skip > 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, which changes the order of a shuffled stream."""
        self.epoch, self._skip, self._reading = epoch, 0, None

    def seek(self, epoch: int, position: int) -> None:
        """Makes the next iteration begin in an epoch, after some of the records of this worker.

        Raises:
            UsageError: A number is negative.
        """
        if epoch < 0 or position < 0:
            raise UsageError(f"epoch {epoch!r} and position {position!r} must be 0 or more.")
        self.set_epoch(epoch)
        self._skip = position

    def state_dict(self) -> dict[str, Any]:
        """Returns where this worker is: the next record that an iteration would yield.

        In a worker of a DataLoader it is the state of that worker, as torchdata's
        ``StatefulDataLoader`` needs it.
        """
        epoch, position = self._reading or (self.epoch, self._skip)
        return {"epoch": epoch, "position": position, **self._shares()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue after a state of the same worker.

        Raises:
            UsageError: It is of another host or worker, of another number of them, or of a stream
                with other options.
        """
        ours = self._shares()
        theirs = {name: list(state.get(name, ())) for name in ours}
        if ours != theirs:
            raise UsageError(
                f"the state is of {theirs}, and this is {ours}: continue with the same options, "
                "hosts and workers, or from the next epoch."
            )
        self.seek(int(state["epoch"]), int(state["position"]))

    def __len__(self) -> int:
        """Returns the number of examples of this host in an epoch, over all of its workers.

        Raises:
            TypeError: The stream has a predicate.
        """
        if self.where is not None:
            raise TypeError("the number of examples that where keeps is unknown before reading")
        start, stop = self._host_range()
        return stop - start

    def __iter__(self) -> Iterator[Any]:
        """Returns the examples of this worker in the next epoch."""
        return self._examples(self.payloads())

    def _examples(self, payloads: Payloads) -> Iterator[Any]:
        decode = self.records.decode
        for place, payload in payloads:
            chunk = place.chunk
            weight = place.weight if self.remainder == "pad" else None
            example = decode(chunk.part, place.record, payload, weight)
            if self.where is None or self.where(example):
                yield example

    def payloads(self) -> Payloads:
        """Returns the serialized examples of this worker in the next epoch, with their places."""
        # Now, not with the first one: a DataLoader may end before each of its workers was read.
        return self._read(*self._begin_epoch())

    def _read(self, epoch: int, skip: int) -> Payloads:
        bytes(KEPT_BYTES)
        remote = any(map(scheme_of, self.records.source.paths[:1]))
        with contextlib.ExitStack() as stack:
            pool = None
            if remote:
                pool = ThreadPoolExecutor(_REMOTE_THREADS)
                stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            loader = _Loader(self.records, pool)
            for item in loader.load(self._places(epoch), skip):
                self._reading = epoch, loader.position
                yield item
        self._reading = None

    def _begin_epoch(self) -> tuple[int, int]:
        """Returns the epoch that an iteration reads, and how many of its records to skip."""
        epoch, skip = self.epoch, self._skip
        self.epoch, self._skip, self._reading = epoch + 1, 0, (epoch, skip)
        return epoch, skip

    def _places(self, epoch: int) -> Iterator[_Place]:
        start, stop = divide(*self._host_range(), self._share())
        total = len(self.records)
        for chunk, record in self._order.records(epoch, start, min(stop, total)):
            yield _Place(chunk, record)
        padding = stop - max(start, total)
        if padding > 0:
            ((chunk, record),) = self._order.records(epoch, 0, 1)
            yield from itertools.repeat(_Place(chunk, record, 0.0), padding)

    def _buffer_size(self) -> int:
        if self.buffer is not None:
            return self.buffer
        return max(1, BUFFER_BYTES // (self.records.files.record_bytes + _RECORD_OVERHEAD))

    def _host_range(self) -> tuple[int, int]:
        total, hosts = len(self.records), self.host.count
        if self.remainder == "keep":
            return divide(0, total, self.host)
        each = -(-total // hosts) if self.remainder == "pad" else total // hosts
        return self.host.index * each, (self.host.index + 1) * each

    def _shares(self) -> dict[str, list[Any]]:
        share = self._share()
        order = [self._order.shuffle, self._order.seed, self.buffer, len(self.records)]
        worker, host = [share.index, share.count], [self.host.index, self.host.count]
        return {"worker": worker, "host": host, "order": order}

    def _share(self) -> Share:
        if self.worker is not None:
            return self.worker
        torch = sys.modules.get("torch.utils.data")  # every DataLoader worker has imported it
        info = None if torch is None else torch.get_worker_info()
        return Share(0, 1) if info is None else Share(info.id, info.num_workers)


class _Loader:
    """Loads chunks when their first record is needed, and keeps them until the last one was.

    Args:
        records: The records.
        pool: Loads the chunks of the next records ahead; None to load none ahead.

    Attributes:
        position: Number of records that were yielded or skipped.
    """

    def __init__(self, records: Records, pool: ThreadPoolExecutor | None) -> None:
        self._files, self._pool = records.files, pool
        self._chunks: dict[Chunk, Future[list[bytes]] | list[bytes]] = {}
        self._left: dict[Chunk, int] = {}
        self.position = 0

    def load(self, places: Iterator[_Place], skip: int) -> Payloads:
        """Yields each place with its payload, except for the first ones, which are skipped."""
        for place in itertools.islice(places, skip):
            self._count(place)
        self.position = skip
        ahead: deque[_Place] = deque()
        depth = _READ_AHEAD if self._pool else 1
        for place in places:
            if place.weight:
                self._start(place.chunk)
            ahead.append(place)
            if len(ahead) >= depth:
                yield self._take(ahead.popleft())
        while ahead:
            yield self._take(ahead.popleft())

    def _start(self, chunk: Chunk) -> None:
        if chunk not in self._chunks:
            load = self._files.payloads
            self._chunks[chunk] = self._pool.submit(load, *chunk) if self._pool else load(*chunk)

    def _take(self, place: _Place) -> tuple[_Place, bytes]:
        part, first, _ = chunk = place.chunk
        self.position += 1
        if not place.weight:  # a copy, whose chunk may be gone
            return place, self._files.payloads(part, place.record, place.record + 1)[0]
        found = self._chunks[chunk]
        payloads = found.result() if isinstance(found, Future) else found
        payload, payloads[place.record - first] = payloads[place.record - first], b""
        self._count(place)
        return place, payload

    def _count(self, place: _Place) -> None:
        """Drops the chunk of a place with the last of its records."""
        chunk = place.chunk
        left = self._left.pop(chunk, chunk.stop - chunk.first) - 1
        if left > 0:
            self._left[chunk] = left
        else:
            self._chunks.pop(chunk, None)
