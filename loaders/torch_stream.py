"""The class of ``torch_stream``, in a module that needs PyTorch."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardmill.loaders.hosts import find_loader
from shardmill.loaders.pieces import Reader
from shardmill.loaders.position import Position
from shardmill.loaders.records import Records
from shardmill.loaders.stream import Stream
from shardmill.schemas.errors import UsageError

# torch shares more than 32 KiB by threads of OpenMP, for which a forked process waits forever.
_MAX_WORKERS = 512
_NOT_ASKED = -1
_streams: weakref.WeakSet[TorchStream] = weakref.WeakSet()
_positions = itertools.count(1)


def _number(row: int) -> property:
    """Returns a property: a number that is shared with the workers of a DataLoader."""

    def get(stream: TorchStream) -> int:
        info = get_worker_info()
        return int(stream.numbers()[row, 0 if info is None else info.id])

    def change(stream: TorchStream, number: int) -> None:
        info = get_worker_info()
        # Also the numbers of workers that another DataLoader may have.
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        stream.numbers()[row, first::step] = number

    return property(get, change)


class TorchStream(Stream, IterableDataset):  # type: ignore[type-arg]
    """A ``Stream`` that is a torch ``IterableDataset``; each DataLoader worker reads a share.

    Worker processes share the number of their next epoch with this one. So they see ``set_epoch``,
    and with one host each pass over the DataLoader is a new epoch, with ``persistent_workers`` or
    without. Each copy counts separately, and so does each process that is not a worker.
    """

    def __init__(self, records: Records, **options: Any) -> None:
        # By worker: its next epoch, its iterations since the epoch was set, the epoch that was set
        # since its last iteration, the number of the position where it begins, one more than the
        # last epoch of which ``where`` kept nothing, and whether a warning was given.
        self._shared = torch.zeros((6, _MAX_WORKERS), dtype=torch.int64)
        self._owner = 0, 0
        _streams.add(self)
        Stream.__init__(self, records, **options)
        self._asked, self._is_unused = _NOT_ASKED, False

    epoch = _number(0)
    _passes = _number(1)
    _asked = _number(2)
    _position = _number(3)
    _empty = _number(4)

    @property
    def _reported(self) -> bool:
        return bool(self.numbers()[5].any())

    @_reported.setter
    def _reported(self, reported: bool) -> None:
        self.numbers()[5] = int(reported)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes, with numbers that the workers of this process share."""
        self.numbers()
        return Stream.__getstate__(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy, or the stream of a worker."""
        self.__dict__.update(state)
        _streams.add(self)

    def numbers(self) -> torch.Tensor:
        """Returns the numbers that this process and its workers share, shape [6, workers]."""
        # A copy, and a process that is not a worker, have the numbers of another stream at first.
        owner = os.getpid(), id(self)
        if get_worker_info() is None and self._owner != owner:
            self._shared, self._owner = self._shared.clone().share_memory_(), owner
        return self._shared

    def __iter__(self) -> Iterator[Any]:
        """Returns the examples of this worker in the next epoch.

        Raises:
            UsageError: ``at`` was called after this worker started.
        """
        missed = self._position not in (0, self._own_position)
        unused, self._is_unused = self._is_unused, False
        return self._begun(None if missed else iter(()) if unused else Stream.__iter__(self))

    def _begun(self, examples: Iterator[Any] | None) -> Iterator[Any]:
        if examples is None:
            raise UsageError("stream-at-of-workers")
        self._asked = _NOT_ASKED  # only now: torchdata begins an iteration before it loads a state
        yield from examples

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch; see ``Stream``."""
        Stream.set_epoch(self, epoch)
        self._asked = self.epoch

    def _begin_at(self, start: Position) -> None:
        Stream._begin_at(self, start)  # noqa: SLF001 - of the same class
        if get_worker_info() is None:
            self._position = next(_positions) if start.deals else 0
        self._own_position, self._asked = self._position, _NOT_ASKED

    def _is_last_empty(self, reader: Reader, epoch: int) -> bool:
        self._empty = epoch + 1
        return bool((self.numbers()[4, : reader.worker.count] == epoch + 1).all())

    def state_dict(self) -> dict[str, Any]:
        """Returns where this worker is; see ``Stream``.

        Raises:
            UsageError: This is the main process, and workers of a DataLoader read.
        """
        if self._reading is None and self._passes and get_worker_info() is None:
            raise UsageError("stream-state-of-workers")
        return Stream.state_dict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue after a state; see ``Stream``.

        torchdata loads states when an iteration begins: an epoch that was set before counts more.

        Raises:
            UsageError: Another epoch was set, and torchdata will not begin it.
        """
        _, batch, restored = find_loader()
        asked = self._asked if get_worker_info() or batch else _NOT_ASKED
        Stream.load_state_dict(self, state)
        if asked == _NOT_ASKED:
            return
        # torchdata drops an iteration that is restored from a state of an ended one.
        self._is_unused = restored.get("_iterator_finished", False)
        ended = not self._is_unused and (restored.get("fetcher_state") or {}).get("fetcher_ended")
        if ended and asked != self.epoch:
            raise UsageError("stream-epoch-of-ended-state", asked=asked, epoch=self.epoch)
        if self._is_unused:
            self._begin_at(Position(asked))
        Stream.set_epoch(self, asked)


# Before this process starts workers, so that they share its numbers and not those of others.
os.register_at_fork(before=lambda: [stream.numbers() for stream in list(_streams)])
