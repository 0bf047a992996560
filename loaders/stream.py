"""Stream: sequential or shuffled reading of a split, divided exactly among hosts and workers."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, SupportsIndex, get_args

from shardmill.loaders.chunk_loader import ChunkLoader, Payloads, PlacedRecord
from shardmill.loaders.hosts import (
    Share,
    divide,
    find_host,
    is_divided_by_accelerate,
    parse_share,
)
from shardmill.loaders.map_ahead import map_ahead
from shardmill.loaders.order import Order
from shardmill.loaders.records import Records
from shardmill.loaders.steps import Remainder, is_positive_int
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import scheme_of

BUFFER_BYTES = 64 << 20
_RECORD_OVERHEAD = 250  # bytes of Python objects for a record in the buffer
_REMOTE_THREADS = 8
# Once a block of this size was freed, glibc returns less free memory to the system (mallopt(3),
# M_MMAP_THRESHOLD). Else each member, of 2 MiB, faults its pages in again: 10 us a record.
KEPT_BYTES = 8 << 20
_SAME_EPOCH = (
    "epoch {} is read again, in the same order: with several hosts, call set_epoch before each "
    "pass, with the same number on all hosts."
)


class _UnknownHostError(UsageError):
    """A launcher started several processes, and the number of this one is not known yet."""


class Stream:
    """Reads the examples of a split sequentially, each exactly once in an epoch.

    The examples are divided evenly among hosts, and those of a host among its workers. Inside a
    torch ``DataLoader`` the stream gets its worker number from torch (see
    ``torch_data.torch_stream``). Each iteration is a new epoch. With several hosts it is not,
    since a host that looked at a batch would be ahead of the others: call ``set_epoch`` before each
    iteration, with the same number on all hosts.

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
            training framework when an iteration begins (see ``hosts.find_host``).
        worker: Number of this worker, and number of workers that divide the share of the host;
            None to ask torch.
        remainder: What happens to examples that cannot be divided evenly among hosts: ``keep``
            them, so that some hosts get one more; ``drop`` them (others in each epoch, if
            shuffled), or ``pad`` the other hosts with examples whose feature ``weight`` is 0; it is
            1 elsewhere. None for ``drop`` with several hosts.
        where: Predicate on the values of an example; the others are left out, and the number of
            examples is then unknown. Not with several hosts, which would get different numbers.
        epoch: Number of the first epoch.
        workers: Number of threads that decode, transform and filter examples, in the order of the
            stream; 0 for none. They work at one time on images and in functions that release the
            lock of the interpreter, as NumPy's do; processes of a DataLoader do so on all others.

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
        workers: int = 0,
        epoch: int = 0,
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
        if remainder not in (None, *get_args(Remainder)):
            raise UsageError(f"remainder={remainder!r} is unknown: use keep, drop or pad.")
        if where is not None and not callable(where):
            raise UsageError(f"where={where!r} must be a function of an example.")
        if not isinstance(workers, int) or workers < 0:
            raise UsageError(f"workers={workers!r} must be a number of threads, 0 or more.")
        self.records, self.where, self.buffer = records, where, buffer
        self.workers = workers
        self._remainder = remainder
        self._given = None if host is None else parse_share("host", host)
        self._job: Share | None = None  # as found in the process that made or pickled the stream
        self._whole = False  # whether a prepared loader divides what is read
        self.worker = None if worker is None else parse_share("worker", worker)
        parts, files = records.source.selection.parts, records.files
        self._order = Order(
            parts, shuffle, seed, self._buffer_size, files.member_bounds, files.open_ahead
        )
        # Records that were read before, and the epoch that has them.
        self._skip = self._sought = 0
        self._reading: tuple[int, int] | None = None  # epoch and position of the last iteration
        self._passes = 0  # iterations of the epoch
        self.set_epoch(epoch)
        with contextlib.suppress(_UnknownHostError):  # perhaps known when an iteration begins
            self._check_host()

    @property
    def host(self) -> Share:
        """This host: the given one, else that of the training job as it is now.

        Raises:
            UsageError: It is unknown; see ``hosts.find_host``.
        """
        if not self._whole and is_divided_by_accelerate():
            self._whole = True
        if self._whole and self._given is not None and self._given.count > 1:
            raise UsageError(
                "Accelerate divides the batches of a prepared DataLoader among the processes, and "
                f"host=({self._given.index}, {self._given.count}) does it too: omit host, or do "
                "not prepare the DataLoader."
            )
        if self._given is not None or self._whole:
            return self._given or Share(0, 1)
        if self._job is not None and self._worker_info() is not None:
            return self._job  # a spawned worker is not in the job
        try:
            found = find_host(None)
        except UsageError as error:
            raise _UnknownHostError(str(error)) from error
        self._job = found if found.count > 1 else None
        return found

    @property
    def remainder(self) -> Remainder:
        """What happens to examples that cannot be divided evenly among hosts."""
        return self._remainder or ("drop" if self.host.count > 1 else "keep")

    def _check_host(self) -> Share:
        """Returns this host.

        Raises:
            UsageError: It is unknown, or the options do not work with this number of hosts.
        """
        host = self.host
        if self.remainder == "drop" and 0 < len(self.records) < host.count:
            raise UsageError(
                f"the split has {len(self.records)} examples, fewer than {host.count} hosts, which "
                "would read none: use fewer hosts, or remainder='pad'."
            )
        if self.where is not None and host.count > 1:
            raise UsageError(
                f"where with {host.count} hosts would give them different numbers of "
                "examples, and the hosts would wait for each other: build a dataset of what "
                "you keep, or read all of it."
            )
        return host

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes, after asking for the host, which a worker may not know."""
        with contextlib.suppress(UsageError):
            _ = self.host
        return self.__dict__.copy()

    @property
    def begins_inside(self) -> bool:
        """Whether the next iteration begins in the middle of an epoch."""
        return self._skip > 0 and self.epoch == self._sought

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, which changes the order of a shuffled stream.

        The position of a state or of ``seek`` stays if it is in this epoch.

        Raises:
            UsageError: The epoch is not a number, or it is negative.
        """
        if is_divided_by_accelerate():
            self._whole = True
        if not isinstance(epoch, SupportsIndex) or operator.index(epoch) < 0:
            raise UsageError(f"epoch={epoch!r} must be the number of an epoch, 0 or more.")
        if not self.begins_inside or epoch != self.epoch:
            self.seek(operator.index(epoch), 0)

    def seek(self, epoch: int, position: int) -> None:
        """Makes the next iteration begin in an epoch, after some of the records of this worker.

        Raises:
            UsageError: A number is negative.
        """
        if epoch < 0 or position < 0:
            raise UsageError(f"epoch {epoch!r} and position {position!r} must be 0 or more.")
        self.epoch, self._skip, self._reading, self._passes = epoch, position, None, 0
        self._sought = epoch

    def state_dict(self) -> dict[str, Any]:
        """Returns where this worker is: the next record that an iteration would yield.

        In a worker of a DataLoader it is the state of that worker, as torchdata's
        ``StatefulDataLoader`` needs it.
        """
        skip = self._skip if self.begins_inside else 0
        epoch, position = self._reading or (self.epoch, skip)
        host, worker = self.host, self._share()
        shares = {
            "worker": [worker.index, worker.count],
            "host": [host.index, host.count],
        }
        return {"epoch": epoch, "position": position, **shares, "reads": self._reads()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue after a state of the same worker.

        Raises:
            UsageError: It is of another host or worker, of another number of them, or of a stream
                that reads other records or in another order.
        """
        ours = self.state_dict()
        if not isinstance(state, dict) or state.keys() != ours.keys():
            raise UsageError(f"{state!r:.99} is not the state of a stream: give its state_dict().")
        theirs = {**state, **state["reads"]}
        fixed = {name: ours[name] for name in ("host", "worker")} | ours["reads"]
        split = fixed.pop("split")
        for name, value in fixed.items():
            if theirs.get(name) == value:
                continue
            both = f"{name}={theirs.get(name)!r}, and this stream has {name}={value!r}"
            if name == "records":
                both = f"other records ({theirs['split']}) than those of this stream ({split})"
            raise UsageError(
                f"the state is of {both}: continue with the same version of the dataset, "
                "options, hosts and workers, or from the next epoch."
            )
        self.seek(int(state["epoch"]), int(state["position"]))

    def _reads(self) -> dict[str, Any]:
        """Returns what is read and how, as far as it decides what is at a position."""
        order = self._order
        digest = hashlib.blake2b(digest_size=8)
        for part in order.parts:
            if not part.records:
                continue
            shard = part.shard
            digest.update(f"{shard.file} {shard.crc32c} {part.first} {part.stop}\n".encode())
        return {
            "split": self.records.source.selection.split,
            "records": digest.hexdigest(),
            "shuffle": order.shuffle,
            "seed": order.seed,
            "buffer": self.buffer,
            "remainder": self._remainder,
            "where": self.where is not None,
        }

    def __len__(self) -> int:
        """Returns the number of examples of this host in an epoch, over all of its workers.

        Raises:
            TypeError: The stream has a predicate.
        """
        if self.where is not None:
            raise TypeError("the number of examples that where keeps is unknown before reading")
        start, stop = self._host_range(self._check_host())
        return stop - start

    def __iter__(self) -> Iterator[Any]:
        """Returns the examples of this worker in the next epoch."""
        return self._examples(*self._begin_epoch())

    def _examples(self, epoch: int, skip: int) -> Iterator[Any]:
        decode = partial(self._decode, self.remainder == "pad")
        made = map_ahead(decode, self._read(epoch, skip), self.workers)
        for position, (example, kept) in enumerate(made, skip + 1):
            self._reading = epoch, position  # not that of a record that is decoded ahead
            if kept:
                yield example

    def _decode(self, padded: bool, item: tuple[PlacedRecord, bytes]) -> tuple[Any, bool]:
        """Returns the example of a payload, and whether the predicate keeps it."""
        place, payload = item
        weight = place.weight if padded else None
        example = self.records.decode(place.chunk.part, place.record, payload, weight)
        return example, self.where is None or bool(self.where(example))

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
            loader = ChunkLoader(self.records, pool)
            for item in loader.load(self._places(epoch), skip):
                self._reading = epoch, loader.position
                yield item

    def _begin_epoch(self) -> tuple[int, int]:
        """Returns the epoch that an iteration reads, and how many of its records to skip.

        With one host the next iteration is the next epoch. With several, hosts that looked at
        different numbers of batches would then be in different epochs.
        """
        epoch, passes = self.epoch, self._passes
        # Workers that read the epoch of a position have not reset it in the main process.
        skip = self._skip if epoch == self._sought else 0
        start, stop = self._range(self._check_host())
        # A state of the end of an epoch is one of all hosts, which then begin the next one.
        self.epoch = epoch + (self.host.count == 1 or 0 < stop - start <= skip)
        if passes and self.epoch == epoch and self._order.shuffle:
            warnings.warn(_SAME_EPOCH.format(epoch), stacklevel=3)
        self._skip, self._reading, self._passes = 0, (epoch, skip), passes + 1
        return epoch, skip

    def _places(self, epoch: int) -> Iterator[PlacedRecord]:
        start, stop = self._range(self.host)
        total = len(self.records)
        for chunk, record in self._order.records(epoch, start, min(stop, total)):
            yield PlacedRecord(chunk, record)
        padding = stop - max(start, total)
        if padding > 0:
            ((chunk, record),) = self._order.records(epoch, 0, 1)
            yield from itertools.repeat(PlacedRecord(chunk, record, 0.0), padding)

    def _buffer_size(self) -> int:
        if self.buffer is not None:
            return self.buffer
        return max(1, BUFFER_BYTES // (self.records.files.record_bytes + _RECORD_OVERHEAD))

    def _range(self, host: Share) -> tuple[int, int]:
        """Returns the first and the last position of this worker, in the order of all hosts."""
        return divide(*self._host_range(host), self._share())

    def _host_range(self, host: Share) -> tuple[int, int]:
        total = len(self.records)
        if self.remainder == "keep":
            return divide(0, total, host)
        each = -(-total // host.count) if self.remainder == "pad" else total // host.count
        return host.index * each, (host.index + 1) * each

    def _share(self) -> Share:
        if self.worker is not None:
            return self.worker
        info = self._worker_info()
        return Share(0, 1) if info is None else Share(info.id, info.num_workers)

    @staticmethod
    def _worker_info() -> Any:
        """Returns what torch says about this process if it is a worker of a DataLoader."""
        torch = sys.modules.get("torch.utils.data")  # every DataLoader worker has imported it
        return None if torch is None else torch.get_worker_info()
