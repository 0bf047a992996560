"""The class of ``torch_stream``, in a module that needs PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from shardmill.loaders.records import Records
from shardmill.loaders.stream import Stream

_MAX_WORKERS = 1024


class TorchStream(Stream, IterableDataset):  # type: ignore[type-arg]
    """A ``Stream`` that is a torch ``IterableDataset``; each DataLoader worker reads a share.

    Worker processes share the number of their next epoch with this one. So each pass over the
    DataLoader is a new epoch, with ``persistent_workers`` or without, and they see ``set_epoch``.
    """

    def __init__(self, records: Records, **options: Any) -> None:
        self._epochs = torch.zeros(_MAX_WORKERS, dtype=torch.int64).share_memory_()
        Stream.__init__(self, records, **options)

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        info = get_worker_info()
        return int(self._epochs[0 if info is None else info.id])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        info = get_worker_info()
        if info is None:
            self._epochs[:] = epoch
        else:  # also of workers that another DataLoader may have
            self._epochs[info.id :: info.num_workers] = epoch

    def __iter__(self) -> Iterator[Any]:
        """Returns this worker's examples of the next epoch."""
        return Stream.__iter__(self)
