"""EncodeImages: refs become examples in a pipeline of your own, with any sink behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import apache_beam as beam

import shardmill.transforms.build.coders  # noqa: F401 - registers the coders
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import Reject
from shardmill.transforms.build.encoder import Block, Encoder, Example, Item, encode_refs

EXAMPLES, REJECTS = "examples", "rejects"
_BATCH = 64


def split_results(
    results: Iterator[Item],
) -> Iterator[Example | Block | beam.pvalue.TaggedOutput]:
    """Yields examples as they are, and rejects for the output of their own."""
    for result in results:
        if isinstance(result, Reject):
            yield beam.pvalue.TaggedOutput(REJECTS, result)
        else:
            yield result


@dataclass(eq=False)
class EncodeImages(beam.PTransform):
    """Encodes references: ``done = matched.refs | EncodeImages(encoder, labels)``.

    Gives two outputs: ``done.examples`` (``Example``: the serialized tf.train.Example and its
    label) and ``done.rejects`` (``Reject``). ``WriteShards`` does this itself, without moving the
    payload; use this where another sink follows.

    Args:
        encoder: How refs become records, such as ``ImagesConfig(...).encoder``.
        labels: All labels in the order of their class ids.
    """

    encoder: Encoder[InputRef]
    labels: Sequence[str] = ()

    def expand(self, pcoll: beam.PCollection[InputRef]) -> beam.pvalue.DoOutputsTuple:
        """Wires batching and encoding."""
        encoder, labels = self.encoder, tuple(self.labels)
        return (
            pcoll
            | "Batch" >> beam.BatchElements(min_batch_size=1, max_batch_size=_BATCH)
            | "Encode"
            >> beam.FlatMap(
                lambda refs: split_results(encode_refs(encoder, refs, labels))
            ).with_outputs(REJECTS, main=EXAMPLES)
        )
