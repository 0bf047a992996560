"""EncodeImages: the transform that encodes images in a custom pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import apache_beam as beam

import shardmill.transforms.match.transform  # noqa: F401 - registers the coders
from shardmill.schemas.refs import InputRef, Reject
from shardmill.transforms.sink.spec import Encoder, EncoderOutput, encode_refs

EXAMPLES, REJECTS = "examples", "rejects"
_BATCH_SIZE = 64


@dataclass(eq=False)
class EncodeImages(beam.PTransform):
    """Encodes images: ``encoded = matched.refs | EncodeImages(encoder, labels)``.

    There are two outputs: ``encoded.examples`` (``Example``: the serialized tf.train.Example and
    its label) and ``encoded.rejects`` (``Reject``). Use this transform with a sink other than
    ``WriteShards``, which encodes images itself and does not shuffle their bytes.

    Args:
        encoder: Encoder of the images, such as ``ImagesConfig(...).encoder``.
        labels: All labels in the order of their class IDs.
    """

    encoder: Encoder[InputRef]
    labels: Sequence[str] = ()

    def expand(self, pcoll: beam.PCollection[InputRef]) -> beam.pvalue.DoOutputsTuple:
        """Batch and encode the references."""
        encoder, labels = self.encoder, tuple(self.labels)

        def encode(refs: Sequence[InputRef]) -> Iterator[EncoderOutput | beam.pvalue.TaggedOutput]:
            for item in encode_refs(encoder, refs, labels):
                if isinstance(item, Reject):
                    yield beam.pvalue.TaggedOutput(REJECTS, item)
                else:
                    yield item

        return (
            pcoll
            | "BatchReferences" >> beam.BatchElements(min_batch_size=1, max_batch_size=_BATCH_SIZE)
            | "EncodeBatches" >> beam.FlatMap(encode).with_outputs(REJECTS, main=EXAMPLES)
        )
