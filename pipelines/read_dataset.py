"""ReadDataset: a PTransform that reads a split of a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import apache_beam as beam

from shardmill.loaders.shards import Caches, ShardFiles
from shardmill.loaders.source import open_source
from shardmill.schemas.arguments import check_arguments
from shardmill.schemas.option_types import Path, parse_path

_Part = tuple[int, int, int]  # a shard, and the numbers of its first record and after the last


class ReadDataset(beam.PTransform):
    """Reads the examples of a split: ``pipeline | ReadDataset("ds", split="train")``.

    Gives pairs of a key and a serialized ``tf.train.Example``, in no order. The key is that of the
    image, or of rows with ``--key``; of other rows it is the shard and the number in it, as in
    ``open_dataset(..., ids=True)``. The version that is current when the pipeline is made is read
    to its end. Workers read members, which runners distribute.

    Args:
        path: The dataset's folder or its manifest.json, on any storage.
        split: A split, several as in ``train+validation``, or a slice as in ``train[:10%]``.

    Raises:
        InputError: The manifest or schema cannot be read, or a shard is missing.
        UsageError: The split is unknown.
    """

    @check_arguments()
    def __init__(self, path: Path, split: str = "train") -> None:
        super().__init__()
        source = open_source(parse_path("path", path), split)
        self._reader = _MemberReader(source.folder, split)
        self._parts = [
            (number, part.first, part.stop) for number, part in enumerate(source.selection.parts)
        ]

    def expand(self, root: beam.Pipeline | beam.pvalue.PBegin) -> beam.PCollection:
        """Wire the reading."""
        return (
            root
            | "ListParts" >> beam.Create(self._parts)
            | "SpreadParts" >> beam.Reshuffle()
            | "ListMembers" >> beam.FlatMap(self._reader.members).with_output_types(_Part)
            | "SpreadMembers" >> beam.Reshuffle()
            | "ReadMembers" >> beam.FlatMap(self._reader.read).with_output_types(tuple[str, bytes])
        )


@dataclass(frozen=True)
class _MemberReader:
    """Reads records of the shards of a split.

    Attributes:
        folder: Folder of one version of the dataset.
        split: The split.
    """

    folder: str
    split: str

    @cached_property
    def _files(self) -> ShardFiles:
        """The shards, which a worker opens once."""
        return ShardFiles(open_source(self.folder, self.split), Caches(0))

    def members(self, part: _Part) -> Iterator[_Part]:
        """Yield the members of a part, as parts."""
        shard, first, stop = part
        for begin, end in pairwise(self._files.member_bounds(shard)):
            if max(begin, first) < min(end, stop):
                yield shard, max(begin, first), min(end, stop)

    def read(self, part: _Part) -> Iterator[tuple[str, bytes]]:
        """Yield the keys and payloads of the records of a member."""
        shard, first, stop = part
        for number, payload in enumerate(self._files.payloads(shard, first, stop), first):
            yield self._files.id_of(shard, number, payload), payload
