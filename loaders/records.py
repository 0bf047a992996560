"""Records: a split as a sequence of dicts of NumPy values, read at any place."""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, SupportsIndex

from shardmill.loaders.shards import CACHE_BYTES, ShardFiles
from shardmill.loaders.source import Source, open_source
from shardmill.loaders.values import Decoder, Fill, MisfitError, chosen, fill_of
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import InputError, UsageError

Transform = Callable[[dict[str, Any]], Any]


class Records:
    """The examples of a split, by number: ``records[12345]`` is a dict, ``len(records)`` exact.

    What ``torch.utils.data.DataLoader`` and ``grain.MapDataset.source`` take as it is: it may be
    pickled, forked, and read by many threads at once. Memory stays bounded however many records
    there are. Made by ``open_dataset``.
    """

    def __init__(
        self, source: Source, decoder: Decoder, transform: Transform | None, cache_bytes: int
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
        """All labels of the dataset in the order of their class ids."""
        return self.source.manifest.labels

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self.source)

    def __repr__(self) -> str:
        """Returns what it is in a line."""
        names = ", ".join(spec.name for spec in self.decoder.specs)
        selection = self.source.selection
        return f"<{len(self):,} examples of {self.source.folder} ({selection.split}): {names}>"

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Returns an example: a dict of NumPy values, or what ``transform`` makes of it.

        Args:
            index: Its number; a negative one counts from the end.

        Raises:
            IndexError: There is no such example.
            InputError: Its shard is not what the manifest says, or damaged there.
        """
        return self.example(*self._place(index))

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> list[Any]:
        """Returns several examples; read in the order of the shards, given in that asked for."""
        places = [self._place(index) for index in indices]
        found: list[Any] = [None] * len(places)
        for number in sorted(range(len(places)), key=places.__getitem__):
            found[number] = self.example(*places[number])
        return found

    def __iter__(self) -> Iterator[Any]:
        """Yields all examples in the order of the shards."""
        for shard in range(len(self._ends)):
            first = 0
            for size in self.files.member_sizes(shard).tolist():
                for number, payload in enumerate(
                    self.files.payloads(shard, first, first + size), first
                ):
                    yield self.decoded(shard, number, payload)
                first += size

    def payload(self, index: SupportsIndex) -> bytes:
        """Returns an example as it was written: a serialized tf.train.Example, CRCs checked."""
        return self.files.payload(*self._place(index))

    def example(self, shard: int, record: int) -> Any:
        """Returns the example that is so many records into a shard."""
        return self.decoded(shard, record, self.files.payload(shard, record))

    def decoded(self, shard: int, record: int, payload: bytes) -> Any:
        """Returns an example whose payload was read.

        Args:
            shard: Number of its shard, for messages.
            record: Its number in the shard, for messages.
            payload: The serialized tf.train.Example.

        Raises:
            InputError: It does not hold what the schema says.
        """
        try:
            values = self.decoder(payload)
        except MisfitError as error:
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
    """Opens a split for reading at any place, without TensorFlow.

    An example is a dict by feature: pictures are uint8 of shape [height, width, channels], raw
    arrays have the dtype and shape they were written with, single numbers are NumPy scalars, texts
    are bytes, and features of several values 1-D arrays.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.
        split: A split, or several as in ``train+validation``.
        features: The features to read; by default all.
        labels: Of a dataset made with ``--shard_by=label``: the only ones to read.
        decode: Whether bytes that hold pictures or raw arrays become arrays; else they stay bytes.
        fill: What stands for the missing value of a feature that may be missing; by default NaN
            for float32 and ``b""`` for bytes.
        transform: What is applied to each example; must be picklable where processes read.
        cache_bytes: How many bytes of inflated members are kept in each process, and as many of
            the places of records.

    Raises:
        InputError: There is no manifest or schema that can be read, or a shard is missing or of
            another size.
        UsageError: A split, label or feature is unknown, or a missing integer has no ``fill``.
    """
    if cache_bytes < 0:
        raise UsageError(f"cache_bytes={cache_bytes} must be 0 or more.")
    source = open_source(path, split, labels)
    specs = chosen(source, features)
    decoder = Decoder(specs, fill_of(specs, fill), decode, source.sides)
    return Records(source, decoder, transform, cache_bytes)
