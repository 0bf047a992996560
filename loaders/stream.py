"""Stream: sequential or shuffled reading of a split, divided exactly among hosts and workers."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
from typing_extensions import Self

from shardmill.loaders.epoch_log import NO_POSITION, OWN_POSITION, EpochLog, PassKey
from shardmill.loaders.epoch_reader import EpochReader, Payloads, PlacedRecord
from shardmill.loaders.epochs import MixedEpochs, Shuffling
from shardmill.loaders.filters import filter_records, warn_of_none
from shardmill.loaders.hosts import (
    HostFinder,
    Share,
    UnknownHostError,
    find_loader,
    find_worker,
    parse_share,
)
from shardmill.loaders.pieces import Deal, Reader, count, size_of
from shardmill.loaders.position import (
    COUNTS,
    Position,
    parse_state,
    resume_position,
    uneven_position,
)
from shardmill.loaders.records import Records
from shardmill.loaders.sampling import Weights, epochs_of, not_records
from shardmill.loaders.stats import DROPPED, RECORDS, Counters, StreamStats, TimedBatches
from shardmill.loaders.steps import Remainder, check_word, to_int
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.storage.base import map_ordered
from shardmill.schemas.user_warnings import warn_user

Order = Literal["records", "blocks"]
Where = Callable[[Any], bool] | Mapping[str, Any]
T = TypeVar("T")
BUFFER_BYTES = 64 << 20
_RECORD_OVERHEAD = 250  # bytes of Python objects for a record in the buffer
_MOST_RECORDS = 50_000_000  # that are read singly: each worker caches 4 bytes for each
_positions = itertools.count(1)
_SAME_EPOCH = (
    "epoch {} is read again, in the same order: with several hosts, call set_epoch before each "
    "pass, with the same number on all hosts."
)

_REST = (
    "{} hosts leave out {:,} of the examples in each pass, since all get as many: "
    "remainder='pad' reads all, with padding of weight 0."
)


class Stream:
    """Reads the examples of a split, each exactly once in an epoch.

    The order of an epoch is a function of the dataset, the seed and the epoch. The hosts take from
    it, and the workers of each host. In a torch ``DataLoader`` the stream gets its worker number
    and batch size from torch: only the last batch of all workers may not be full. Each iteration is
    a new epoch. With several hosts it is not, since a host that looked at a batch would be ahead of
    the others: call ``set_epoch`` before each iteration, with the same number on all hosts.

    ``records`` is a random permutation of all records, each read alone: all hosts together read the
    same examples in a step, however many hosts there are. ``blocks`` reads whole members of about
    2 MiB: each host and worker gets consecutive members of a random order, and mixes their examples
    in windows of ``buffer``. Without ``shuffle`` each gets consecutive examples, but shards of
    different labels (``--shard_by=label``) are mixed as in the first epoch.

    Args:
        records: The result of ``open_dataset``.
        shuffle: Whether to shuffle.
        order: ``records`` or ``blocks``; None for ``records`` on a local disk if up to 50 million
            records can be read alone, as in uncompressed files or of JPEG and PNG images.
        seed: Seed of the order.
        buffer: Number of examples in a window of ``blocks``; None for as many as fit 64 MiB, not
            compressed.
        host: Number of this host, and number of hosts that divide the split; None to ask the
            training framework when an iteration begins (see ``hosts.find_host``).
        worker: Number of this worker, and number of workers that divide the share of the host;
            None to ask torch.
        remainder: The rule for examples that cannot be divided evenly among hosts: ``keep``
            them, so that some hosts get one more; ``drop`` them (others in each epoch, if
            shuffled), or ``pad`` the other hosts with examples whose feature ``weight`` is 0; it is
            1 elsewhere. None for ``drop`` with several hosts.
        where: Which examples to read: by column of the catalog of images, of a listing or a table a
            value, several values or a predicate on the value, which is None where there is none, as
            in ``{"width": lambda w: w > 300}``. Or a predicate on an example: their number is then
            unknown, and several hosts need a ``limit``.
        limit: Number of examples of a predicate ``where`` that each host gets in an epoch, the
            first ones of its share; a host that has fewer raises an error after them.
        epoch: Number of the first epoch.
        workers: Number of threads that decode, transform and filter examples, in the order of the
            stream, or 0. They work at one time on images and in functions that release the
            lock of the interpreter, as NumPy's do; processes of a DataLoader do so on all others.
        balance: ``label`` to read as many examples of each label, or a mapping with the weight of
            each label: labels without a weight, or with weight 0, are left out. An epoch has as
            many examples as these labels have records. Small labels repeat their records; large
            labels take turns over the epochs.
        record_weight: A column of weights, as ``where`` names it: a record with twice the weight is
            read twice as often. An epoch has as many examples as records have a weight above 0.

    Raises:
        UsageError: An option is invalid.
    """

    @check_arguments()
    def __init__(  # noqa: PLR0913 - all but one are keyword-only
        self,
        records: Records,
        *,
        shuffle: bool = False,
        order: Order | None = None,
        seed: int = 0,
        buffer: int | None = None,
        host: tuple[int, int] | None = None,
        worker: tuple[int, int] | None = None,
        remainder: Remainder | None = None,
        where: Where | None = None,
        limit: int | None = None,
        workers: int = 0,
        epoch: int = 0,
        balance: Literal["label"] | Weights | None = None,
        record_weight: str | None = None,
    ) -> None:
        if not isinstance(records, Records):
            raise not_records(records)
        if not isinstance(shuffle, bool):
            raise UsageError(f"shuffle={shuffle!r} must be True or False; see also buffer.")
        check_word("remainder", remainder, Remainder)
        check_word("order", order, Order)
        if isinstance(where, Mapping):
            records, where = filter_records(records, where), None
        if where is not None and not callable(where):
            raise UsageError(
                f"where={where!r:.99} must be a function of an example, or values by column."
            )
        if limit is not None and where is None:
            raise UsageError(
                f"limit={limit} counts the examples that a function where keeps: take a slice of "
                "the split, as in train[:1000]."
            )
        self._log = EpochLog()
        self._counters = Counters(self._log)
        self.records = _count_reads(records, self._counters)
        self.where, self.workers = where, to_int("workers", workers)
        self.limit = None if limit is None else to_int("limit", limit, 1)
        self.buffer = None if buffer is None else to_int("buffer", buffer, 1)
        self._remainder = remainder
        self._job = HostFinder(host)
        self.worker = None if worker is None else parse_share("worker", worker)
        if records.source.mix is not None and records.picks is not None:
            raise UsageError(
                "a Stream reads a whole mix: take slices of its datasets, as in split='train[:9%]'."
            )
        if records.picks is not None and (np.diff(records.picks) < 0).any():
            raise UsageError(
                "a Stream reads records in their order: sort the numbers of picked records, or "
                "read them by number, as a DataLoader of them does."
            )
        self._epochs = epochs_of(records, balance, record_weight)
        self.shuffle, self.seed, self._order = shuffle, to_int("seed", seed, -1 << 63), order
        if isinstance(self._epochs, MixedEpochs):
            self._check_mix(self._epochs)
        self._batch, self._in_order = 0, True  # of the DataLoader that started this process
        self._begin_at(Position(to_int("epoch", epoch)))
        with contextlib.suppress(UnknownHostError):  # perhaps known when an iteration begins
            self._check_host()

    def _check_mix(self, epochs: MixedEpochs) -> None:
        """Checks that an epoch reads each dataset, and that a state that is continued fits.

        Raises:
            UsageError: One is not read, or was read in another order.
        """
        epochs.check()
        if epochs.continues is None:
            return
        ours = {"shuffle": self.shuffle, "order": self.order, "seed": self.seed}
        for name, value in ours.items():
            theirs = epochs.continues[name]
            if theirs != value and (self.shuffle or name == "shuffle"):
                raise UsageError(
                    f"{name}={value!r} has another order than the state that the mix continues, "
                    f"which has {name}={theirs!r}: give the stream the same, so that no example "
                    "repeats."
                )

    @property
    def host(self) -> Share:
        """This host; a ``UsageError`` if it is unknown."""
        return self._job.find_host()

    @property
    def remainder(self) -> Remainder:
        """The rule for examples that cannot be divided evenly among hosts."""
        return self._remainder_of(self.host.count)

    def _remainder_of(self, hosts: int) -> Remainder:
        return self._remainder or ("drop" if hosts > 1 else "keep")

    def _check_host(self) -> Share:
        """Returns this host.

        Raises:
            UsageError: It is unknown, or the options do not work with this number of hosts.
        """
        host = self.host
        if self.remainder == "drop" and 0 < len(self._epochs) < host.count:
            raise UsageError(
                f"the split has {plural(len(self._epochs), 'example')}, fewer than "
                f"{plural(host.count, 'host')}, which would read none: use fewer hosts, or "
                "remainder='pad'."
            )
        if self.where is not None and self.limit is None and host.count > 1:
            raise UsageError(
                f"where with {plural(host.count, 'host')} would give them different numbers of "
                "examples, and the hosts would wait for each other: give each the same number, as "
                'in limit=1000, or name columns of the catalog, as in where={"label": "roses"}.'
            )
        return host

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes, after finding the host, which a worker cannot find."""
        with contextlib.suppress(UsageError):
            _ = self.host
        loader = find_loader()
        return {
            **self.__dict__,
            "_batch": loader.batch_size or self._batch,
            "_in_order": self._in_order and loader.in_order,
        }

    def __copy__(self) -> Self:
        """Returns a copy, which counts its epochs separately."""
        made = self.__new__(type(self))
        log = copy.copy(self._log)
        counters = Counters(log)
        records = _count_reads(self.records, counters)
        made.__dict__.update(self.__getstate__(), _log=log, _counters=counters, records=records)
        return made

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        if self._is_restored:
            return self._start.epoch
        return self._log.state.epoch

    @property
    def begins_inside(self) -> bool:
        """Whether the next iteration begins in the middle of an epoch."""
        is_next = self._is_restored or self._log.state.position == self._position
        return is_next and self._position != NO_POSITION

    @check_arguments()
    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch; the position of a state or ``at`` in it stays.

        An iteration that has not yielded an example yet reads this epoch too.

        Raises:
            UsageError: The epoch is not a number of 0 or more.
        """
        with contextlib.suppress(UsageError):  # notices a prepared loader
            _ = self.host
        number = to_int("epoch", epoch)
        if self._log.is_unread_in(number):
            return
        if self.begins_inside and number == self.epoch:
            self._set_next(is_asked=True)
        else:
            self._begin_at(Position(number), is_asked=True)
        with contextlib.suppress(UsageError):
            self._log.apply_to_unread(advances=self.host.count == 1)

    @check_arguments()
    def at(
        self, epoch: int, examples: int, *, hosts: int = 0, workers: int = 0, batch_size: int = 0
    ) -> Self:
        """Makes the next iteration begin in an epoch after some examples; returns the stream.

        Hosts and workers may be others than before: together they read each of the other examples
        once. In ``records`` the number of examples says which ones were read. In ``blocks``, and
        without ``shuffle``, this depends on who read them: the former numbers are needed too, if
        they change. If they have changed before in the epoch, call ``then`` for the later ones.

        Args:
            epoch: Number of the epoch.
            examples: Number of examples that all hosts have read in it: steps times the batch size
                over all hosts, but not more than the epoch has.
            hosts: Number of hosts that read them; 0 for as many as now.
            workers: Number of workers of each host, 1 for none; 0 for as many as now.
            batch_size: Examples in a batch of each host's DataLoader; 0 for the current size.

        Raises:
            UsageError: A number is invalid, hosts cannot have read as many, or the stream has a
                predicate, which leaves out an unknown number of them.
        """
        self._begin_at(Position(to_int("epoch", epoch)))
        return self.then(examples, hosts=hosts, workers=workers, batch_size=batch_size)

    @check_arguments()
    def resume(self, state: dict[str, Any]) -> Self:
        """Makes the next iteration continue after a state, in any topology; returns the stream.

        Hosts, workers and the batch size may be others than before.

        Args:
            state: The state of this stream, of one of its workers, or of the StatefulDataLoader of
                torchdata that read it.

        Raises:
            UsageError: It is not such a state; or of a stream that reads other records or in
                another order, or with a predicate, which leaves out an unknown number of examples.
        """
        self._begin_at(resume_position(state, self._reader(self.host), self._reads()))
        return self

    @check_arguments()
    def then(self, examples: int, *, hosts: int = 0, workers: int = 0, batch_size: int = 0) -> Self:
        """Makes the next iteration begin after more examples than ``at`` said; see there."""
        epoch, deals = self._start[:2]
        deal = Deal(*map(to_int, Deal._fields, (examples, hosts, workers, batch_size)))
        if hosts and examples % hosts:
            raise uneven_position(examples=examples, hosts=hosts)
        if deal.examples and self.where is not None:
            raise UsageError(
                f"examples={examples} are not the records that were read, of which where left some "
                "out: continue with state_dict, or name columns of the catalog, as in "
                'where={"label": "roses"}.'
            )
        read, most = sum(dealt.examples for dealt in (*deals, deal)), self.num_examples
        # A last batch that was not full counts as one.
        if read - most >= max(1, hosts) * max(1, batch_size):
            raise UsageError(
                f"{plural(read, 'example')} are more than the {most:,} of epoch {epoch}: give "
                "those that all hosts have read in it, or begin the next one with at(epoch + 1, 0)."
            )
        if deal.examples:
            deals = (*deals, deal)
        self._begin_at(Position(epoch, deals))
        return self

    def _begin_at(self, start: Position, *, is_asked: bool = False) -> None:
        self._start = start
        self._position = next(_positions) if start.deals or start.taken else NO_POSITION
        self._reading: Position | None = None  # where the last iteration began
        self._iteration: PassKey | None = None  # the last one
        self._is_interleaved = False  # whether an earlier one went on after it began
        self.read_ahead = False  # whether more is read than was used, as by keras_dataset
        self._taken = self._kept = 0  # records this worker has read since, and has kept
        self._set_next(is_asked=is_asked)

    def _set_next(self, *, is_asked: bool) -> None:
        """Makes the next iteration begin at ``_start``."""
        self._is_restored = find_worker() is not None  # the worker alone continues from there
        if not self._is_restored:
            self._log.set_epoch(self._start.epoch, self._position, is_asked=is_asked)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the epoch, which is the same on all hosts.

        In a worker of a DataLoader, and with a ``limit``, it is the state of that worker.
        """
        if self.read_ahead and self._reading is not None:
            raise UsageError(
                "keras_dataset reads this stream ahead, so its state is not that of the model: "
                "count the steps of the optimizer, and continue with at()."
            )
        if self._is_interleaved:
            raise UsageError(
                "an earlier iteration of this stream went on after a later one began, so it has no "
                "single position: use one stream for each iteration."
            )
        reader = self._reader(self.host)
        at = self._start if self.begins_inside else Position(self.epoch)
        if self._reading is not None:
            at = self._reading._replace(taken=self._taken, kept=self._kept)
        state = at.to_state(reader, self._reads())
        is_alone = all(deal[1:3] == [1, 1] for deal in state["deals"])
        if isinstance(self._epochs, MixedEpochs) and is_alone:
            # Of the workers of a DataLoader, each has read others since. In blocks, several have
            # not read the first examples of the epoch.
            counts = self._epochs.counts(state["epoch"], state["examples"])
            state[COUNTS] = dict(zip(self._epochs.names, counts, strict=True))
        return state

    @check_arguments()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue after a state, on any number of hosts.

        Raises:
            UsageError: It is of a stream that reads other records or in another order, or of a
                worker with another number, or of another number of workers.
        """
        self._begin_at(parse_state(state, self._reader(self.host), self._reads()))

    def _reads(self) -> dict[str, Any]:
        """Returns the options that determine record order; saved in the state."""
        reads = {
            "split": self.records.source.selection.split,
            "records": self._epochs.digest,
            "shuffle": self.shuffle,
            "order": self.order,
            "seed": self.seed,
            "buffer": self.buffer,
            "remainder": self._remainder,
            "where": self.where is not None,
            "limit": self.limit,
            "balance": None,
        }
        if isinstance(self._epochs, MixedEpochs):
            window = self._window() if self.order == "blocks" else 1
            reads["mix"] = {**self._epochs.describe(), "window": window}
        elif self._epochs.draws is not None:
            reads["balance"] = self._epochs.draws.describe()
        return reads

    def stats(self) -> StreamStats:
        """Returns what was read since the stream was made, by this process and by all workers.

        Not counted is what ``open_dataset`` and a ``where`` by column read before. A copy, also one
        that is pickled, and a fork that is not a worker count from 0.
        """
        return self._counters.read()

    def timed(self, batches: Iterable[T]) -> TimedBatches[T]:
        """Returns the batches of a loader that reads this stream, and measures how long each takes.

        In ``for batch in stream.timed(loader)``, the time until the loop has a batch is a wait, and
        the time until it asks for the next one is not. Both are in ``stats()``. Each pass that
        ends is logged in one line of the level INFO.

        Args:
            batches: A DataLoader or a tf.data.Dataset that reads this stream, or the stream itself.
        """
        return TimedBatches(batches, self._counters)

    def __len__(self) -> int:
        """Returns the number of examples of this host in an epoch, over all of its workers.

        Raises:
            TypeError: The stream has a predicate, and no limit.
        """
        if self.where is not None and self.limit is None:
            raise TypeError("the number of examples that where keeps is unknown before reading")
        return size_of(self.num_examples, self._check_host(), self.remainder)

    @property
    def num_left(self) -> int:
        """Number of examples of this host in the rest of the epoch in which the stream begins."""
        reader = self._reader(self.host)
        if self.limit is not None:
            return self.limit - self._start.kept
        return self._open(self._start, reader._replace(worker=Share(0, 1))).left

    @property
    def num_examples(self) -> int:
        """Number of examples of all hosts in an epoch."""
        if self.limit is not None:
            return self.limit * self.host.count
        return len(self._epochs)

    def __iter__(self) -> Iterator[Any]:
        """Returns the examples of this worker in the next epoch."""
        return self._read(partial(self._decode, self.remainder == "pad"), self.workers)

    def _decode(self, padded: bool, item: tuple[PlacedRecord, bytes]) -> tuple[Any, bool]:
        """Returns the example of a payload, and whether the predicate keeps it."""
        (part, record, weight), payload = item
        example = self.records.decode(part, record, payload, weight if padded else None)
        if self.where is None:
            return example, True
        return example, weight > 0 and bool(self.where(example))

    def payloads(self, keeps: Callable[[PlacedRecord, bytes], bool]) -> Payloads:
        """Returns the serialized examples of this worker in the next epoch, with their places.

        Args:
            keeps: Returns whether a record is kept.
        """
        return self._read(lambda item: (item, keeps(*item)), 0)

    def _read(self, decode: Callable[[Any], tuple[Any, bool]], workers: int) -> Iterator[Any]:
        """Returns the decoded examples of the next epoch that are kept.

        A worker begins the epoch at once: torchdata asks for its state before the first example.
        Elsewhere it begins with the first example, so that ``set_epoch`` may be called before. But
        torchdata asks for no example after a state of the end of an epoch.
        """
        host = self._check_host()
        begins_now = find_worker() is not None or (self.begins_inside and not self._left(host))
        begun = None
        if begins_now:
            try:
                begun = self._begin()
            except UsageError as error:
                # torch handles errors of a worker only when an example is asked for.
                return _raise_later(error)
        return self._examples(begun, decode, workers)

    def _left(self, host: Share) -> int:
        """Returns the number of examples that are left of an epoch that was begun."""
        reader = self._reader(host)
        if self.limit is not None:
            return count(self.limit, reader.worker, reader.batch) - self._start.kept
        return self._open(self._start, reader).left

    def _begin(self) -> tuple[EpochReader, Reader]:
        """Begins the next epoch.

        With one host the next iteration is the next epoch. With several, hosts that looked at
        different numbers of batches would then be in different epochs.

        Raises:
            UsageError: Workers were started before ``at`` was called.
        """
        self._counters.enter()
        host, own = self._check_host(), self._start
        reader = self._reader(host)
        ends = False
        if self._position != NO_POSITION:
            # A state of the end of an epoch is one of all hosts, which then begin the next one.
            ends = self._open(own, reader).is_over
        # Checked before, since a pass that has begun uses up the position.
        self._check_position(self._log.position_of_next())
        begun = self._log.begin(
            restored=own.epoch if self._is_restored else None,
            advances=host.count == 1,
            ends=ends,
        )
        self._check_position(begun.position)
        starts_at_own = self._is_restored or begun.position == self._position != NO_POSITION
        at = own if starts_at_own else Position(begun.epoch)
        is_in_order = self._in_order and find_loader().in_order
        if at.deals and reader.worker.count > 1 and not is_in_order:
            raise UsageError(
                "DataLoader(in_order=False) yields batches in another order than its workers read "
                "them, so that a number of examples does not say which were read: continue with "
                "in_order=True."
            )
        opened = self._open(at, reader)
        if begun.is_repeated and self.shuffle:
            warn_user(_SAME_EPOCH.format(begun.epoch))
        self._start, self._position, self._is_restored = Position(at.epoch), NO_POSITION, False
        self._reading = opened.position
        self._taken, self._kept = opened.position.taken, opened.position.kept
        self._iteration, self._is_interleaved = begun.key, False
        is_whole = not starts_at_own and self.where is None
        if is_whole and self.remainder == "drop" and host.index == reader.worker.index == 0:
            self.report_rest(self.num_examples % host.count)
        return opened, reader

    def report_rest(self, records: int) -> None:
        """Warns once that the hosts leave out some records of a pass that is not shuffled."""
        if records and not self.shuffle and self._log.begin_warning():
            warn_user(_REST.format(self.host.count, records))

    def _check_position(self, position: int) -> None:
        is_accepted = position in (NO_POSITION, OWN_POSITION, self._position)
        if not is_accepted and not self._is_restored:
            raise UsageError(
                "at() was called while persistent workers read, which do not see it: make a new "
                "DataLoader after it."
            )

    def _examples(
        self,
        begun: tuple[EpochReader, Reader] | None,
        decode: Callable[[Any], tuple[Any, bool]],
        workers: int,
    ) -> Iterator[Any]:
        """Yields the examples that are kept, up to this worker's part of the limit.

        Raises:
            UsageError: There are fewer.
        """
        opened, reader = begun or self._begin()
        is_whole = not opened.position.deals and not opened.position.taken
        iteration, taken, kept = self._iteration, opened.position.taken, opened.position.kept
        ahead = 2 * BUFFER_BYTES if self.buffer is None else math.inf
        payloads = opened.payloads(self.records.files, ahead)
        decoded = map_ordered(decode, payloads, workers, wait=False)
        most = -1 if self.limit is None else count(self.limit, reader.worker, reader.batch)
        if kept == most:
            return
        cells = self._counters.cells
        before = self._counters.begin_epoch() if find_worker() is None else None
        for example, is_kept in decoded:
            taken, kept = taken + 1, kept + is_kept
            if iteration is self._iteration:
                self._taken, self._kept = taken, kept
            else:
                self._is_interleaved = True
            if is_kept:
                cells[RECORDS] += 1
                yield example
            else:
                cells[DROPPED] += 1
            if kept == most:
                break
        if kept < most:
            raise UsageError(
                f"where keeps {plural(kept, 'example')} of this worker, which needs {most} for "
                f"limit={self.limit}: use a smaller limit."
            )
        if not self._counters.timers:  # else they log it
            self._counters.log_epoch(before)
        if self.where is None or most >= 0 or kept or not is_whole or iteration is None:
            return
        if self._log.add_empty(iteration, reader.worker):
            warn_of_none(self.records, self.where)

    def _open(self, at: Position, reader: Reader) -> EpochReader:
        files = self.records.files
        order = self._epochs.order(
            at.epoch, Shuffling(self.shuffle, self.seed, self._window, files)
        )
        by_records = self.order == "records"
        return EpochReader(order, at, reader, self._remainder_of, by_records=by_records)

    @property
    def _permuted(self) -> bool:
        return self.shuffle or self._epochs.has_labels

    @cached_property
    def order(self) -> Order:
        """The order of the epochs; ``blocks`` if nothing is shuffled."""
        if not self._permuted:
            return "blocks"
        if self._order is not None:
            return self._order
        records = min(len(self.records), len(self.records.source))
        alone = not self.records.files.is_remote and records <= _MOST_RECORDS
        if alone and self.records.files.reads_alone:
            return "records"
        return "blocks"

    def _window(self) -> int:
        if self.order == "records" or not self._permuted:
            return 1
        if self.buffer is not None:
            return self.buffer
        return max(1, BUFFER_BYTES // (self.records.files.record_bytes + _RECORD_OVERHEAD))

    def _reader(self, host: Share) -> Reader:
        worker = self.worker or find_worker() or Share(0, 1)
        batch = 1 if worker.count == 1 else find_loader().batch_size or self._batch or 1
        return Reader(host, worker, batch)


def _count_reads(records: Records, counters: Counters) -> Records:
    """Returns the same records with the same caches, whose reads are counted."""
    counted = copy.copy(records)
    counted.files = records.files.counting(counters)
    return counted


def _raise_later(error: UsageError) -> Iterator[Any]:
    yield from map(_raise, [error])


def _raise(error: UsageError) -> NoReturn:
    raise error
