"""A ``Stream`` as a torch ``IterableDataset``, for sequential reading by a DataLoader.

A map-style DataLoader needs ``open_dataset`` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from shardmill.loaders.frameworks import require_framework
from shardmill.loaders.mixes import Dataset
from shardmill.loaders.opening import open_dataset
from shardmill.loaders.records import Records
from shardmill.loaders.sampling import Weights
from shardmill.loaders.steps import Remainder
from shardmill.loaders.stream import Order, Stream, Where
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.errors import UsageError
from shardmill.schemas.user_warnings import warn_deprecated

if TYPE_CHECKING:
    from shardmill.loaders.torch_stream import TorchStream


@check_arguments(open_dataset)
def torch_dataset(  # noqa: PLR0913 - all but two are keyword-only
    dataset: Dataset | Records,
    split: str = "train",
    *,
    shuffle: bool = False,
    order: Order | None = None,
    seed: int = 0,
    buffer: int | None = None,
    host: tuple[int, int] | None = None,
    remainder: Remainder | None = None,
    where: Where | None = None,
    limit: int | None = None,
    workers: int = 0,
    epoch: int = 0,
    balance: Literal["label"] | Weights | None = None,
    record_weight: str | None = None,
    **options: Any,
) -> TorchStream:
    """Returns a dataset for a DataLoader, which reads shards sequentially.

    Args:
        dataset: The dataset's folder or its manifest.json, on any storage; or a ``mix``. Or the
            result of ``open_dataset``, which has a split and its options.
        split: A split, or several as in ``train+validation``, or slices as in ``train[:10%]``.
        shuffle: Whether to shuffle; each pass over the DataLoader has another order.
        order: ``records`` or ``blocks``; see ``Stream``.
        seed: Seed of the order.
        buffer: Number of examples in a window of ``blocks``; see ``Stream``.
        host: Number of this host, and number of hosts; None to ask torch.distributed.
        remainder: The rule for examples that hosts cannot divide evenly; see ``Stream``.
        where: Which examples to read: columns of the catalog, or a predicate on an example after
            its transform; see ``Stream``.
        limit: Number of examples of a predicate ``where`` that each host gets in an epoch.
        workers: Number of threads that decode; see ``Stream``.
        epoch: Number of the first epoch.
        balance: ``label`` to read as many examples of each label, or their weights; see ``Stream``.
        record_weight: A column of weights by which records are read; see ``Stream``.
        options: Options of ``open_dataset``, such as ``transform`` and ``as_supervised``.

    Raises:
        InputError: The manifest or schema cannot be read, or a shard is missing or of another size.
        UsageError: An option is invalid.
    """
    if isinstance(dataset, Records):
        given = [*options, *(["split"] if split != "train" else [])]
        if given:
            raise UsageError(
                f"the records were opened without {', '.join(given)}: give it to open_dataset."
            )
        records = dataset
    else:
        records = open_dataset(dataset, split, **options)
    require_framework("torch")
    from shardmill.loaders.torch_stream import TorchStream

    return TorchStream(
        records,
        shuffle=shuffle,
        order=order,
        seed=seed,
        buffer=buffer,
        host=host,
        remainder=remainder,
        where=where,
        limit=limit,
        workers=workers,
        epoch=epoch,
        balance=balance,
        record_weight=record_weight,
    )


@check_arguments(Stream)
def torch_stream(records: Records, **options: Any) -> TorchStream:
    """Returns a stream for a DataLoader.

    Args:
        records: The result of ``open_dataset``.
        options: Options of ``Stream``.

    Raises:
        UsageError: An option is invalid.
    """
    warn_deprecated("torch_stream", instead="torch_dataset", removed_in="0.5.0")
    require_framework("torch")
    from shardmill.loaders.torch_stream import TorchStream

    return TorchStream(records, **options)
