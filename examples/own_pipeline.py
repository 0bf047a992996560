"""Shardmill's transforms in your own pipeline: build a dataset of text files.

usage: python examples/own_pipeline.py FOLDER_OF_TEXTS OUTPUT

``MatchFiles`` finds the files, a custom encoder turns them into records, and ``WriteShards`` does
the rest: splits, order, shards, checksums, resume, manifest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from shardmill.schemas import (
    InputRef,
    Packing,
    Reject,
    RejectedError,
    Splits,
    absolute,
    encode_example,
)
from shardmill.transforms import (
    Example,
    LabelSpec,
    MatchFiles,
    Outcome,
    PlaceSpec,
    RaiseIfFailed,
    ShardSpec,
    SinkSpec,
    WriteShards,
    find_input,
    read_input,
)

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
        """Yield an example or a reject for each reference, in their order."""
        for ref in refs:
            try:
                text = read_input(ref).decode()
            except RejectedError as rejected:
                yield Reject(ref.key, ref.uri, rejected.stage, rejected.error, rejected.message)
            except UnicodeDecodeError as error:
                yield Reject(ref.key, ref.uri, "decode", "decode", str(error))
            else:
                number = labels.index(ref.label or "")
                yield Example(encode_example({"text": text.encode(), "class": number}), ref.label)

    def versions(self) -> dict[str, str]:
        """Return the versions that decide the bytes of records."""
        return {"text_encoder": "1"}

    def schema(self, labels: Sequence[str]) -> str:  # noqa: ARG002 - the protocol's
        """Return the text of schema.pbtxt."""
        return SCHEMA

    def features(self) -> list[dict[str, str]]:
        """Return the features for the manifest."""
        return [{"name": "class", "type": "int64"}, {"name": "text", "type": "bytes"}]


def main(source: str, output: str) -> None:
    """Build the dataset."""
    match = find_input(f"{absolute(source)}/**/*.text")
    sink = SinkSpec(
        output=absolute(output),
        config_id="00000000000c0de5",  # change it when the encoder or the options change
        place=PlaceSpec(Splits.parse("train:0.8,test:0.2")),
        shards=ShardSpec(num_shards=2),
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
