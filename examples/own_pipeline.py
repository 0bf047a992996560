"""A dataset from your own Beam pipeline: text files become examples.

usage: python examples/own_pipeline.py FOLDER_OF_TEXTS OUTPUT

The pipeline makes elements in any way; ``WriteDataset`` does the rest: splits, order, shards,
checksums, rejects, manifest.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

import shardmill


class Text(NamedTuple):
    """One example; the types of its fields are the schema."""

    key: str
    text: str
    words: int
    label: str


def read_text(path: str) -> Text:
    """Return the example of a file in a folder named like its label."""
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    label, name = Path(path).parts[-2:]
    return Text(f"{label}/{name}", text, len(text.split()), label)


def main(source: str, output: str) -> None:
    """Build the dataset."""
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | beam.Create(map(str, Path(source).glob("*/*.text")))
            | beam.Map(read_text).with_output_types(Text)
            | shardmill.WriteDataset(
                output, key="key", label="label", splits="train:0.8,test:0.2", num_shards=2
            )
            | beam.Map(lambda outcome: print(f"{output}: {outcome.status}"))
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
