"""The class of ``torch_dataset``, in a module that needs PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from shardmill.loaders.hosts import find_loader
from shardmill.loaders.position import Position
from shardmill.loaders.records import Records
from shardmill.loaders.stream import Stream
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.errors import UsageError

_NOT_ASKED = -1


class TorchStream(Stream, IterableDataset):  # type: ignore[type-arg]
    """A ``Stream`` that is a torch ``IterableDataset``; each DataLoader worker reads a share.

    Worker processes see ``set_epoch`` of this one, and with one host each pass over the DataLoader
    is a new epoch, with ``persistent_workers`` or without. Each copy counts separately, and so does
    each process that is not a worker.
    """

    @check_arguments(Stream)
    def __init__(self, records: Records, **options: Any) -> None:
        self._is_unused = False
        Stream.__init__(self, records, **options)

    def __iter__(self) -> Iterator[Any]:
        """Returns the examples of this worker in the next epoch.

        Raises:
            UsageError: ``at`` was called after this worker started.
        """
        unused, self._is_unused = self._is_unused, False
        if unused:
            return iter(())
        return Stream.__iter__(self)

    def state_dict(self) -> dict[str, Any]:
        """Returns where this worker is; see ``Stream``.

        Raises:
            UsageError: This is the main process, and workers of a DataLoader read.
        """
        if get_worker_info() is None and self._log.is_read_by_workers():
            raise UsageError(
                "the workers of the DataLoader read this stream, and each has another position: "
                "use the state_dict of torchdata's StatefulDataLoader, or count the examples and "
                "continue with at()."
            )
        return Stream.state_dict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue after a state; see ``Stream``.

        torchdata loads states when an iteration begins: an epoch that was set before counts more.

        Raises:
            UsageError: Another epoch was set, and torchdata will not begin it.
        """
        loader = find_loader()
        is_restored = get_worker_info() is not None or loader.batch_size > 0
        asked = self._log.asked_of_next() if is_restored else _NOT_ASKED
        Stream.load_state_dict(self, state)
        if asked == _NOT_ASKED:
            return
        # torchdata drops an iteration that is restored from a state of an ended one.
        self._is_unused = loader.state.get("_iterator_finished", False)
        fetcher = loader.state.get("fetcher_state") or {}
        ended = not self._is_unused and fetcher.get("fetcher_ended")
        if ended and asked != self.epoch:
            raise UsageError(
                f"set_epoch({asked}): torchdata reads nothing after a state of the last batch of "
                f"an epoch with num_workers=0; call set_epoch({self.epoch}) before the first pass, "
                "which is then empty."
            )
        if self._is_unused:
            self._begin_at(Position(asked))
        Stream.set_epoch(self, asked)
