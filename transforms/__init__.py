"""Pure functions that process data, and the PTransforms that wire them.

The public PTransforms and their specs are exported here and loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardmill.schemas.lazy import attach

if TYPE_CHECKING:
    from shardmill.transforms.arrays.transform import ArraysSpec, WriteArrays
    from shardmill.transforms.build.encoder import Encoder, Example
    from shardmill.transforms.build.outcome import Outcome, RaiseIfFailed
    from shardmill.transforms.build.placement import PlaceSpec
    from shardmill.transforms.build.planning import ShardSpec
    from shardmill.transforms.build.spec import SinkSpec
    from shardmill.transforms.build.transform import WriteShards
    from shardmill.transforms.count.manifest import CountSpec
    from shardmill.transforms.count.transform import CountRecords
    from shardmill.transforms.images.convert import ImageSpec
    from shardmill.transforms.images.encoder import ImageEncoder, read_input
    from shardmill.transforms.images.resize import ResizeSpec
    from shardmill.transforms.images.transform import EncodeImages
    from shardmill.transforms.match.labels import LabelSpec
    from shardmill.transforms.match.transform import MatchFiles, absolute, find_input
    from shardmill.transforms.rows.transform import RowsSpec, WriteRows

__all__ = [
    "ArraysSpec",
    "CountRecords",
    "CountSpec",
    "EncodeImages",
    "Encoder",
    "Example",
    "ImageEncoder",
    "ImageSpec",
    "LabelSpec",
    "MatchFiles",
    "Outcome",
    "PlaceSpec",
    "RaiseIfFailed",
    "ResizeSpec",
    "RowsSpec",
    "ShardSpec",
    "SinkSpec",
    "WriteArrays",
    "WriteRows",
    "WriteShards",
    "absolute",
    "find_input",
    "read_input",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "ArraysSpec": "shardmill.transforms.arrays.transform",
        "CountRecords": "shardmill.transforms.count.transform",
        "CountSpec": "shardmill.transforms.count.manifest",
        "EncodeImages": "shardmill.transforms.images.transform",
        "Encoder": "shardmill.transforms.build.encoder",
        "Example": "shardmill.transforms.build.encoder",
        "ImageEncoder": "shardmill.transforms.images.encoder",
        "ImageSpec": "shardmill.transforms.images.convert",
        "LabelSpec": "shardmill.transforms.match.labels",
        "MatchFiles": "shardmill.transforms.match.transform",
        "Outcome": "shardmill.transforms.build.outcome",
        "PlaceSpec": "shardmill.transforms.build.placement",
        "RaiseIfFailed": "shardmill.transforms.build.outcome",
        "ResizeSpec": "shardmill.transforms.images.resize",
        "RowsSpec": "shardmill.transforms.rows.transform",
        "ShardSpec": "shardmill.transforms.build.planning",
        "SinkSpec": "shardmill.transforms.build.spec",
        "WriteArrays": "shardmill.transforms.arrays.transform",
        "WriteRows": "shardmill.transforms.rows.transform",
        "WriteShards": "shardmill.transforms.build.transform",
        "absolute": "shardmill.transforms.match.transform",
        "find_input": "shardmill.transforms.match.transform",
        "read_input": "shardmill.transforms.images.encoder",
    },
)
