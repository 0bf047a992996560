"""For PyTorch: a stream that ``torch.utils.data.DataLoader`` takes as an iterable dataset.

``open_dataset`` alone is enough for a map-style DataLoader; this is for reading in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardmill.loaders.frameworks import need
from shardmill.loaders.records import Records
from shardmill.loaders.stream import Stream

need("torch")
from torch.utils.data import IterableDataset  # noqa: E402 - said plainly where it is missing


class TorchStream(Stream, IterableDataset):  # type: ignore[type-arg]
    """A ``Stream`` that is a torch ``IterableDataset``; each DataLoader worker reads its share."""

    def __iter__(self) -> Iterator[Any]:
        """Yields this worker's examples of the epoch."""
        return Stream.__iter__(self)


def torch_stream(records: Records, **options: Any) -> TorchStream:
    """Returns a stream for a DataLoader.

    With ``num_workers`` the DataLoader copies it when an epoch begins (with ``persistent_workers``,
    once), so call ``set_epoch`` before.

    Args:
        records: What ``open_dataset`` gave.
        options: Those of ``Stream``.

    Raises:
        UsageError: A number breaks its rule.
    """
    return TorchStream(records, **options)
