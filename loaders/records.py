"""Records: a split as a sequence of dicts of NumPy values, with random access."""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, SupportsIndex

from shardmill.loaders.record_decoder import (
    Fill,
    RecordDecoder,
    SchemaMismatchError,
    default_values,
    select_features,
)
from shardmill.loaders.shards import CACHE_BYTES, ShardFiles
from shardmill.loaders.source import Source, open_source
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import InputError, UsageError

Transform = Callable[[dict[str, Any]], Any]


class Records:
    """The examples of a split by number; ``records[12345]`` is a dict.

    A data source for ``torch.utils.data.DataLoader`` and ``grain.MapDataset.source``: it may be
    pickled, forked and read by several threads. Memory use does not depend on the number of
    records. Made by ``open_dataset``.
    """

    def __init__(
        self, source: Source, decoder: RecordDecoder, transform: Transform | None, cache_bytes: int
    ) -> None:
        self.source = source
        self.decoder = decoder
        self._transform = transform
        self.files = ShardFiles(source.folder, source.paths, source.shards, cache_bytes)
        self._ends = list(accumulate(shard.records for shard in source.shards))

    @property
    def manifest(self) -> Manifest:
        """The dataset's manifest."""
        return self.source.manifest

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of the dataset in the order of class ids."""
        return self.source.manifest.labels

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self.source)

    def __repr__(self) -> str:
        """Returns the number of examples, the folder, the split and the features."""
        names = ", ".join(spec.name for spec in self.decoder.specs)
        selection = self.source.selection
        return f"<{len(self):,} examples of {self.source.folder} ({selection.split}): {names}>"

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Returns an example: a dict of NumPy values, or the result of ``transform``.

        Args:
            index: Number of the example; negative numbers count from the end.

        Raises:
            IndexError: The index is out of range.
            InputError: The shard does not match the manifest, or the record is damaged.
        """
        return self._example(*self._place(index))

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> list[Any]:
        """Returns several examples in the requested order; reads them in the order of shards."""
        places = [self._place(index) for index in indices]
        examples: list[Any] = [None] * len(places)
        for number in sorted(range(len(places)), key=places.__getitem__):
            examples[number] = self._example(*places[number])
        return examples

    def __iter__(self) -> Iterator[Any]:
        """Yields all examples in the order of shards."""
        for shard in range(len(self._ends)):
            for first, payloads in self.files.members(shard):
                for number, payload in enumerate(payloads, first):
                    yield self.decode(shard, number, payload)

    def payload(self, index: SupportsIndex) -> bytes:
        """Returns the serialized tf.train.Example of an example after checking its CRCs."""
        return self.files.payload(*self._place(index))

    def _example(self, shard: int, record: int) -> Any:
        return self.decode(shard, record, self.files.payload(shard, record))

    def decode(self, shard: int, record: int, payload: bytes) -> Any:
        """Returns the example of a payload.

        Args:
            shard: Number of the shard, for messages.
            record: Number of the record in the shard, for messages.
            payload: The serialized tf.train.Example.

        Raises:
            InputError: The payload does not match the schema.
        """
        try:
            values = self.decoder(payload)
        except SchemaMismatchError as error:
            raise InputError(
                f"{self.source.paths[shard]}, record {record:,}: {error}; run `shardmill verify "
                f"{self.source.folder}` to see what else is wrong."
            ) from error
        return values if self._transform is None else self._transform(values)

    def _place(self, index: SupportsIndex) -> tuple[int, int]:
        number = operator.index(index)
        total = len(self)
        if number < 0:
            number += total
        if not 0 <= number < total:
            raise IndexError(f"example {operator.index(index):,} of {total:,}")
        shard = bisect_right(self._ends, number)
        return shard, number - (self._ends[shard - 1] if shard else 0)


def open_dataset(  # noqa: PLR0913 - all but two are named
    path: str | os.PathLike[str],
    split: str = "train",
    *,
    features: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    decode: bool = True,
    fill: Fill | None = None,
    transform: Transform | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> Records:
    """Opens a split for random access, without TensorFlow.

    An example is a dict by feature: images are uint8 of shape [height, width, channels], raw arrays
    have the dtype and shape they were written with, single numbers are NumPy scalars, texts are
    bytes, and features with several values are 1-D arrays.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.
        split: A split, or several as in ``train+validation``.
        features: The features to read; None for all.
        labels: The labels to read, for datasets built with ``--shard_by=label``; None for all.
        decode: Whether bytes that hold images or raw arrays become arrays.
        fill: Values by feature that replace missing ones; the default is NaN for float32 and
            ``b""`` for bytes.
        transform: Function that is applied to each example; must be picklable for worker processes.
        cache_bytes: Maximum bytes of inflated members that each process caches, and of record
            offsets.

    Raises:
        InputError: The manifest or schema cannot be read, or a shard is missing or of another size.
        UsageError: A split, label or feature is unknown, or a missing integer has no ``fill``.
    """
    if cache_bytes < 0:
        raise UsageError(f"cache_bytes={cache_bytes} must be 0 or more.")
    source = open_source(path, split, labels)
    specs = select_features(source, features)
    decoder = RecordDecoder(specs, default_values(specs, fill), decode, source.sides)
    return Records(source, decoder, transform, cache_bytes)
