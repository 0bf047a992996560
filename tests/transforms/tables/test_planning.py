"""Number of parts of tables; expected values are computed by hand."""

import hashlib
import json

import pytest

from shardmill.schemas import InputRef, ShardTemplate
from shardmill.transforms import ShardSpec
from shardmill.transforms.tables.table import count_row_parts
from shardmill.transforms.tables.table_source import Unit
from shardmill.transforms.tables.transform import count_content

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text_bytes", "growth", "shards", "parts"),
    [
        (0, 2.0, {}, 1),
        (64 * MIB, 2.0, {}, 2),  # 128 MiB of records in parts of 64 MiB
        (64 * MIB + 1, 2.0, {}, 4),
        (64 * MIB, 2.0, {"shard_bytes": MIB}, 128),  # 4 parts per MiB of 128 / 6 MiB: 85.3
        (64 * MIB, 2.0, {"shard_examples": 1_000}, 8_192),  # 4 parts per 1,000 of 1,048,576 rows
        (64 * MIB, 2.0, {"num_shards": 3}, 3),
        (1024 * MIB, 1.0, {"num_shards": 3}, 24),  # 16 parts are needed: 3 * 8
        (1 << 60, 1.0, {}, 65_536),
        (1 << 60, 1.0, {"num_shards": 3}, 3 * 65_536),
    ],
)
def test_number_of_parts(text_bytes, growth, shards, parts) -> None:
    spec = ShardSpec(ShardTemplate("{split}-{index}-of-{total}"), **shards)
    assert count_row_parts(spec, growth, 64.0, text_bytes) == parts


def test_content_id_is_pinned():
    """Manifests hold it: another one would rebuild every table whose files were only touched."""
    unit = Unit(
        tuple(InputRef("a.csv", "/in/a.csv", 30, "7")), 0, 10, single=True, identity=(0, 10, 2)
    )
    body = json.dumps(["a.csv", [0, 10, 2], "ab12"]).encode()
    digest = hashlib.blake2b(body, digest_size=16, person=b"shardmill-run4").hexdigest()
    assert count_content(unit, "ab12").contents == int(digest, 16)
