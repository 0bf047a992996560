"""The reader on the page on the format: at most 60 lines, compared with TensorFlow."""

import ast
import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType

import pytest

from shardmill.schemas.tfrecord.gzip_member import read_index
from shardmill.transforms.sink.record_writer import MemberWriter
from tests.conftest import ROOT, build_dataset
from tests.support.readers import tf_examples, tf_records
from tests.support.rows_tools import build_rows

READER = ROOT / "examples" / "read_by_hand.py"


@pytest.fixture(scope="module")
def by_hand() -> ModuleType:
    spec = importlib.util.spec_from_file_location("read_by_hand", READER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare_records(by_hand: ModuleType, shard: Path, numbers: list[int] | None = None) -> int:
    """Compare records with those that TensorFlow reads; return their number."""
    data, payloads, examples = shard.read_bytes(), tf_records(shard), tf_examples(shard)
    for number in range(len(payloads)) if numbers is None else numbers:
        payload = by_hand.read_record(data, number)
        assert payload == payloads[number]
        found = dict(by_hand.features(payload))
        assert found == {name: values for name, values in examples[number].items() if values}
    with pytest.raises(IndexError):
        by_hand.read_record(data, len(payloads))
    return len(payloads)


def test_the_reader_is_short_and_uses_only_the_standard_library() -> None:
    text = READER.read_text()
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 60
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module] if isinstance(node, ast.ImportFrom) else [n.name for n in node.names]
            )
            assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.heavy
def test_reads_images_and_concatenated_shards(photos, by_hand, tmp_path) -> None:
    build_dataset(
        input=photos, output=tmp_path / "ds", image_size=8, num_shards=2, splits="train:1"
    )
    shards = sorted((tmp_path / "ds/current").glob("*.gz"))
    counts = [compare_records(by_hand, shard) for shard in shards]
    assert sum(counts) == 21
    assert len(counts) == 2
    both = tmp_path / "both.tfrecord.gz"
    both.write_bytes(b"".join(shard.read_bytes() for shard in shards))
    assert compare_records(by_hand, both) == 21


@pytest.mark.heavy
def test_reads_rows(by_hand, tmp_path) -> None:
    lines = [f"{n - 20},{'' if n % 3 else n / 8},{'né' * (n % 4)}" for n in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["n,x,text", *lines]) + "\n", encoding="utf-8")
    build_rows(input=tmp_path / "t.csv", output=tmp_path / "ds", splits="train:1")
    (shard,) = (tmp_path / "ds/current").glob("*.gz")
    assert compare_records(by_hand, shard) == 40
    read = [dict(by_hand.features(by_hand.read_record(shard.read_bytes(), n))) for n in range(40)]
    assert min(row["n"][0] for row in read) == -20
    assert sum("x" in row for row in read) == 14


@pytest.mark.heavy
@pytest.mark.parametrize("packing", ["stored", "deflated"])
def test_reads_many_members_and_several_indexes(packing, by_hand, tmp_path) -> None:
    path, target = tmp_path / "many.tfrecord.gz", io.BytesIO()
    writer = MemberWriter(target, packing, member_bytes=200)
    for number in range(900):
        writer.add(number.to_bytes(2, "big") * (1 + number % 60))
    writer.close()
    data = target.getvalue()
    path.write_bytes(data)
    payloads = tf_records(path)
    members = read_index(lambda offset, length: data[offset : offset + length], len(data))
    assert len(members) > 150
    assert data.count(bytes.fromhex("fff401534df001")) > 1
    for number in (*range(0, 900, 37), 899):
        assert by_hand.read_record(data, number) == payloads[number]


def test_detects_changed_bytes(photos, by_hand, tmp_path) -> None:
    build_dataset(input=photos, output=tmp_path / "ds", image_size=1, splits="train:1", limit=2)
    (shard,) = (tmp_path / "ds/current").glob("*.gz")
    data = bytearray(shard.read_bytes())
    for offset in range(0, len(data), 7):
        data[offset] ^= 16
        with pytest.raises(Exception):  # noqa: B017 - of zlib, struct or the reader
            by_hand.read_record(bytes(data), 1)
        data[offset] ^= 16
    with pytest.raises(AssertionError, match="damaged record"):
        by_hand.payload_of(b"\x01" + bytes(40), 0)
    assert by_hand.read_record(bytes(data), 1)
