"""The class of ``torch_stream``, in a module that needs PyTorch."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardmill.loaders.records import Records
from shardmill.loaders.stream import Stream
from shardmill.schemas.errors import UsageError

_MAX_WORKERS = 1024


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
    without. Each copy counts separately.
    """

    def __init__(self, records: Records, **options: Any) -> None:
        # By worker: its next epoch, and its iterations since the epoch was set.
        self._shared, self._owner = torch.zeros((2, _MAX_WORKERS), dtype=torch.int64), -1
        Stream.__init__(self, records, **options)

    epoch = _number(0)
    _passes = _number(1)

    def numbers(self) -> torch.Tensor:
        """Returns the numbers that this process and its workers share, shape [2, workers]."""
        # torch shares them with all processes that it starts, also with other hosts of mp.spawn.
        owner = os.getpid() if self._shared.is_shared() else 0
        if get_worker_info() is None and self._owner != owner:
            self._shared, self._owner = self._shared.clone().share_memory_(), os.getpid()
        return self._shared

    def state_dict(self) -> dict[str, Any]:
        """Returns where this worker is; see ``Stream``.

        Raises:
            UsageError: This is the main process, and workers of a DataLoader read.
        """
        if self._reading is None and self._passes and get_worker_info() is None:
            raise UsageError("stream-state-of-workers")
        return Stream.state_dict(self)
