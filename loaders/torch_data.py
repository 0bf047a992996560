"""A ``Stream`` as a torch ``IterableDataset``, for sequential reading by a DataLoader.

A map-style DataLoader needs ``open_dataset`` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardmill.loaders.frameworks import require_framework
from shardmill.loaders.records import Records
from shardmill.loaders.stream import Stream

require_framework("torch")
from torch.utils.data import IterableDataset  # noqa: E402 - after the check, whose message has the fix


class TorchStream(Stream, IterableDataset):  # type: ignore[type-arg]
    """A ``Stream`` that is a torch ``IterableDataset``; each DataLoader worker reads a share."""

    def __iter__(self) -> Iterator[Any]:
        """Yields this worker's examples of the epoch."""
        return Stream.__iter__(self)


def torch_stream(records: Records, **options: Any) -> TorchStream:
    """Returns a stream for a DataLoader.

    A DataLoader with ``num_workers`` copies the stream when an epoch begins (once, with
    ``persistent_workers``), so call ``set_epoch`` before.

    Args:
        records: The result of ``open_dataset``.
        options: Options of ``Stream``.

    Raises:
        UsageError: An option is invalid.
    """
    return TorchStream(records, **options)
