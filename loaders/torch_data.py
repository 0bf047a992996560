"""A ``Stream`` as a torch ``IterableDataset``, for sequential reading by a DataLoader.

A map-style DataLoader needs ``open_dataset`` only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from shardmill.loaders.frameworks import require_framework
from shardmill.loaders.records import Records, open_dataset
from shardmill.loaders.steps import Remainder
from shardmill.loaders.stream import Stream

require_framework("torch")
import torch  # noqa: E402 - after the check, whose message has the fix
from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402

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


def torch_dataset(
    dataset: str | os.PathLike[str], split: str = "train", *, shuffle: bool = False, seed: int = 0,
    host: tuple[int, int] | None = None, remainder: Remainder | None = None,
    where: Callable[[Any], bool] | None = None, **options: Any,
) -> TorchStream:  # fmt: skip
    """Returns a dataset for a DataLoader, which reads shards sequentially.

    Args:
        dataset: The dataset's folder or its manifest.json, on any storage.
        split: A split, or several as in ``train+validation``, or slices as in ``train[:10%]``.
        shuffle: Whether to shuffle; each pass over the DataLoader has another order.
        seed: Seed of the order.
        host: Number of this host, and number of hosts; None to ask torch.distributed.
        remainder: What happens to examples that the hosts cannot divide evenly; see ``Stream``.
        where: Predicate on an example after its transform; the others are left out. See ``Stream``.
        options: Options of ``open_dataset``, such as ``transform`` and ``as_supervised``.

    Raises:
        InputError: The manifest or schema cannot be read, or a shard is missing or of another size.
        UsageError: An option is invalid.
    """
    records = open_dataset(dataset, split, **options)
    order = {"shuffle": shuffle, "seed": seed, "host": host, "remainder": remainder, "where": where}
    return TorchStream(records, **order)


def torch_stream(records: Records, **options: Any) -> TorchStream:
    """Returns a stream for a DataLoader.

    Args:
        records: The result of ``open_dataset``.
        options: Options of ``Stream``.

    Raises:
        UsageError: An option is invalid.
    """
    return TorchStream(records, **options)
