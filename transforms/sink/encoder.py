"""Encoder: the interface by which a pipeline encodes the references of a part as records."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from shardmill.schemas.dataset.catalog import CatalogRow
from shardmill.schemas.refs import InputRef, Reference
from shardmill.schemas.rejects import Reject
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.statistics.sums import Totals


class Example(NamedTuple):
    """One record to write.

    Attributes:
        record: The payload: a serialized tf.train.Example, or other bytes of the encoder.
        labels: Texts of its labels for the counts in the manifest: several, one or none.
        row: Row of the catalog, from which statistics are computed; all records have one, or none.
        taken: Whether it was taken from the published dataset.
    """

    record: bytes
    labels: tuple[str, ...] = ()
    row: CatalogRow | None = None
    taken: bool = False


class Block(NamedTuple):
    """Many records to write at once.

    Attributes:
        frames: The records, framed as in a TFRecord file, one after another.
        lengths: Bytes of each frame; int64, shape [records].
        totals: Counts and sums of these records, and of the records of the blocks that follow it
            as far as their totals lack these sums.
    """

    frames: memoryview
    lengths: npt.NDArray[np.int64]
    totals: Totals


Item = Example | Reject | Block
RefT_contra = TypeVar("RefT_contra", bound=Reference, contravariant=True)


class Encoder(Protocol[RefT_contra]):
    """Encodes references as records; a small picklable value that is sent to every worker.

    The same references must give the same records in the same order on every machine, or datasets
    are not reproducible. Inputs that were rejected while matching are never given to it.
    """

    @property
    def packing(self) -> Packing:
        """Compression of the members of a gzip shard."""

    @property
    def expected_bytes(self) -> int | None:
        """Expected bytes of a record; None for as many as its input."""

    def encode(self, refs: Sequence[RefT_contra], labels: Sequence[str]) -> Iterator[Item]:
        """Yield the records and rejects of references, in an order that these alone decide.

        Args:
            refs: References of one part in their final order.
            labels: All labels in the order of their class ids.
        """

    def versions(self) -> dict[str, str]:
        """Return the versions of all code that decides the bytes of records."""

    def schema(self, labels: Sequence[str]) -> str:
        """Return the text of ``schema.pbtxt``."""

    def features(self) -> list[dict[str, Any]]:
        """Return the features as the manifest lists them."""


def encode_refs(
    encoder: Encoder[Any], refs: Iterable[Reference], labels: Sequence[str]
) -> Iterator[Item]:
    """Yield the records and rejects of references, those rejected while matching included.

    Args:
        encoder: Encodes the others.
        refs: References in their final order.
        labels: All labels in the order of their class ids.
    """
    for rejected, group in itertools.groupby(
        refs, lambda ref: isinstance(ref, InputRef) and bool(ref.error)
    ):
        if rejected:
            yield from (ref.to_reject() for ref in group if isinstance(ref, InputRef))
        else:
            yield from encoder.encode(list(group), labels)
