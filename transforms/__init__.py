"""Pure functions that process data, and the PTransforms that wire them.

The public PTransforms and their specs are exported here and loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardmill.schemas.lazy import attach

if TYPE_CHECKING:
    from shardmill.transforms.arrays.transform import ArraysSpec as ArraysSpec
    from shardmill.transforms.arrays.transform import WriteArrays as WriteArrays
    from shardmill.transforms.build.encoder import Encoder as Encoder
    from shardmill.transforms.build.encoder import Example as Example
    from shardmill.transforms.build.outcome import Outcome as Outcome
    from shardmill.transforms.build.outcome import RaiseIfFailed as RaiseIfFailed
    from shardmill.transforms.build.placement import PlaceSpec as PlaceSpec
    from shardmill.transforms.build.planning import ShardSpec as ShardSpec
    from shardmill.transforms.build.spec import SinkSpec as SinkSpec
    from shardmill.transforms.build.transform import WriteShards as WriteShards
    from shardmill.transforms.count.manifest import CountSpec as CountSpec
    from shardmill.transforms.count.transform import CountRecords as CountRecords
    from shardmill.transforms.images.convert import ImageSpec as ImageSpec
    from shardmill.transforms.images.encoder import ImageEncoder as ImageEncoder
    from shardmill.transforms.images.encoder import read_input as read_input
    from shardmill.transforms.images.resize import ResizeSpec as ResizeSpec
    from shardmill.transforms.images.transform import EncodeImages as EncodeImages
    from shardmill.transforms.match.labels import LabelSpec as LabelSpec
    from shardmill.transforms.match.transform import MatchFiles as MatchFiles
    from shardmill.transforms.match.transform import absolute as absolute
    from shardmill.transforms.match.transform import find_input as find_input
    from shardmill.transforms.rows.transform import RowsSpec as RowsSpec
    from shardmill.transforms.rows.transform import WriteRows as WriteRows

_MODULES = {
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
}
__all__ = list(_MODULES)
__getattr__, __dir__ = attach(__name__, _MODULES)
