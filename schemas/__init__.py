"""Data types and formats: records, manifests, schemas, file names and storage.

Importing it loads neither apache_beam nor tensorflow: training jobs import it on machines that
have only one of them, or none. The types that a custom encoder needs are exported here and loaded
on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardmill.schemas.lazy import attach

if TYPE_CHECKING:
    from shardmill.schemas.dataset.manifest import Manifest
    from shardmill.schemas.dataset.shard_names import ShardTemplate
    from shardmill.schemas.dataset.splits import Splits
    from shardmill.schemas.errors import ShardmillError
    from shardmill.schemas.example.serialize import encode_example
    from shardmill.schemas.refs import InputRef
    from shardmill.schemas.rejects import Reject, RejectedError
    from shardmill.schemas.tfrecord.gzip_member import Packing

__all__ = [
    "InputRef",
    "Manifest",
    "Packing",
    "Reject",
    "RejectedError",
    "ShardTemplate",
    "ShardmillError",
    "Splits",
    "encode_example",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "InputRef": "shardmill.schemas.refs",
        "Manifest": "shardmill.schemas.dataset.manifest",
        "Packing": "shardmill.schemas.tfrecord.gzip_member",
        "Reject": "shardmill.schemas.rejects",
        "RejectedError": "shardmill.schemas.rejects",
        "ShardTemplate": "shardmill.schemas.dataset.shard_names",
        "ShardmillError": "shardmill.schemas.errors",
        "Splits": "shardmill.schemas.dataset.splits",
        "encode_example": "shardmill.schemas.example.serialize",
    },
)
