"""Shardmill's pieces in a pipeline of one's own: text files become a published dataset.

usage: python examples/own_pipeline.py FOLDER_OF_TEXTS OUTPUT

``MatchFiles`` finds the files, an encoder of our own turns them into records, and ``WriteShards``
does the rest: splits, order, shards, checksums, resume, manifest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from shardmill.schemas.dataset.shard_names import DEFAULT_TEMPLATE, ShardTemplate
from shardmill.schemas.dataset.splits import Splits
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import Reject, RejectedError
from shardmill.schemas.tfrecord.gzip_member import Packing
from shardmill.transforms.build.encoder import Example
from shardmill.transforms.build.outcome import Outcome, RaiseIfFailed
from shardmill.transforms.build.placement import PlaceSpec
from shardmill.transforms.build.planning import ShardSpec
from shardmill.transforms.build.spec import SinkSpec
from shardmill.transforms.build.transform import WriteShards
from shardmill.transforms.images.encoder import read_input
from shardmill.transforms.match.labels import LabelSpec
from shardmill.transforms.match.transform import MatchFiles, absolute, find_input

SCHEMA = """\
feature { name: "class" type: INT shape { dim { size: 1 } } }
feature { name: "text" type: BYTES shape { dim { size: 1 } } }
"""


@dataclass(frozen=True)
class TextEncoder:
    """Turns text files into records with the features ``text`` and ``class``."""

    packing: Packing = "deflated"
    expected_bytes: int | None = None

    def encode(self, refs: Sequence[InputRef], labels: Sequence[str]) -> Iterator[Example | Reject]:
        """Yields an example or reject for each ref, in their order."""
        for ref in refs:
            try:
                text = read_input(ref).decode()
            except RejectedError as refused:
                yield Reject(ref.key, ref.uri, refused.stage, refused.error, refused.message)
            except UnicodeDecodeError as error:
                yield Reject(ref.key, ref.uri, "decode", "decode", str(error))
            else:
                number = labels.index(ref.label or "")
                yield Example(encode_example({"text": text.encode(), "class": number}), ref.label)

    def versions(self) -> dict[str, str]:
        """Returns what decides the records' bytes."""
        return {"text_encoder": "1"}

    def schema(self, labels: Sequence[str]) -> str:  # noqa: ARG002 - the protocol's
        """Returns the text of schema.pbtxt."""
        return SCHEMA

    def features(self) -> list[dict[str, str]]:
        """Returns the features for the manifest."""
        return [{"name": "class", "type": "int64"}, {"name": "text", "type": "bytes"}]


def main(source: str, output: str) -> None:
    """Builds the dataset."""
    match = find_input(f"{absolute(source)}/**/*.text")
    sink = SinkSpec(
        output=absolute(output),
        config_id="00000000000c0de5",  # change it when the encoder or the options change
        place=PlaceSpec(Splits.parse("train:0.8,test:0.2")),
        shards=ShardSpec(ShardTemplate(DEFAULT_TEMPLATE), num_shards=2),
        root=match.root,
    )
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | MatchFiles(match, LabelSpec("directory"))
            | WriteShards(sink, TextEncoder())
            | RaiseIfFailed()
            | beam.Map(lambda outcome: print(f"{output}: {Outcome.check(outcome).status}"))
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
