"""What the loaders say of a dataset that is not what its manifest says: one sentence each."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import zlib
from pathlib import Path

import pytest

from shardmill.loaders import (
    Stream,
    class_weights,
    keras_dataset,
    open_dataset,
    steps_per_epoch,
)
from shardmill.loaders.source import open_source
from shardmill.schemas.errors import InputError, ShardmillError, UsageError
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.tfrecord.framing import frame
from shardmill.schemas.tfrecord.gzip_member import HEADER, Member, deflated_member, stored_member
from shardmill.schemas.tfrecord.member_index import INDEX_BYTES, build_index
from tests.support.loader_tools import make_dataset, make_shard, small
from tests.support.record_tools import framed, in_groups

DATA = 'feature { name: "x" type: BYTES presence { min_fraction: 1 } shape { dim { size: 1 } } }'
PACKS = {"stored": stored_member, "deflated": deflated_member, "none": None}
PAYLOADS = [encode_example({"x": random.Random(i).randbytes(900)}) for i in range(40)]


@pytest.fixture(params=PACKS)
def ds(request, tmp_path) -> Path:
    groups = in_groups(PAYLOADS, 5)
    return small(tmp_path / "ds", [groups[:4], groups[4:]], DATA, PACKS[request.param])


def sentence(error: BaseException, *parts: object) -> None:
    """Checks that an error is one sentence that says certain things."""
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    assert ". " not in text
    for part in parts:
        assert str(part) in text


def refused(path: Path, *parts: object, kind: type = InputError, split: str = "train") -> None:
    """Checks that every way in refuses a dataset, before anything is read of it."""
    for way in (open_dataset, open_source, keras_dataset):
        with pytest.raises(kind) as caught:
            way(path, split)
        sentence(caught.value, *parts)


@pytest.fixture
def one(tmp_path) -> Path:
    """The same, stored, where it does not matter how."""
    groups = in_groups(PAYLOADS, 5)
    return small(tmp_path / "ds", [groups[:4], groups[4:]], DATA)


def test_a_sound_one_is_read(ds):
    assert [encode_example(row) for row in open_dataset(ds)] == PAYLOADS


# Before training starts.


@pytest.mark.parametrize("change", [-1, 1, -10_000, 512])
def test_a_shard_that_is_shorter_or_longer(change, ds):
    shard = ds / "train-1.tfrecord"
    data = shard.read_bytes()
    shard.write_bytes(data + bytes(change) if change > 0 else data[:change])
    said = f"{len(data) + change:,} bytes", f"{len(data):,}", "shardmill verify", "copy the dataset"
    refused(ds, shard, *said)


def test_a_shard_that_is_missing(ds):
    (ds / "train-1.tfrecord").unlink()
    refused(ds, ds / "train-1.tfrecord", "is missing", "shardmill verify", "build or copy")


def test_a_folder_in_the_place_of_a_shard(one):
    (one / "train-1.tfrecord").unlink()
    (one / "train-1.tfrecord").mkdir()
    refused(one, one / "train-1.tfrecord", "is no file", "shardmill verify")


def test_no_manifest(one, tmp_path):
    (one / "manifest.json").unlink()
    refused(one, one / "manifest.json", "does not exist", "give a dataset or its manifest.json")
    refused(tmp_path / "nowhere", "nowhere does not exist", "give a dataset")


def test_a_newer_manifest(one):
    body = json.loads((one / "manifest.json").read_text())
    (one / "manifest.json").write_text(json.dumps({**body, "version": 2}))
    refused(one, one / "manifest.json", "version 2 is not 1", "use the Shardmill that wrote it")


def test_an_unknown_split(one):
    refused(one, "no split 'test'", "it has train", kind=UsageError, split="test")
    refused(one, "slice", "--splits", kind=UsageError, split="train[:50%]")


def test_no_schema(one):
    (one / "schema.pbtxt").unlink()
    refused(one, one / "schema.pbtxt", "does not exist", "build the dataset again")
    (one / "schema.pbtxt").mkdir()
    with pytest.raises(ShardmillError) as caught:
        open_dataset(one)
    sentence(caught.value, one / "schema.pbtxt")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"nonsense", "is not a schema"),
        (b"\xff\xfe", "cannot be read"),
        (b'feature { name: "x" }', "does not give the feature 'x' a type"),
        (b'feature { name: "x" type: BYTES\n\n annotation { tag: "', "is not a schema"),
        (b'feature { name: "x" type: STRUCT }', "'x'"),
    ],
    ids=["nonsense", "encoding", "typeless", "cut", "struct"],
)
def test_a_damaged_schema(text, part, one):
    (one / "schema.pbtxt").write_bytes(text)
    refused(one, one / "schema.pbtxt", part, "build the dataset again")


def test_an_empty_split_has_a_length(tmp_path):
    folder = small(tmp_path / "ds", [[], []], DATA)
    assert len(open_dataset(folder)) == 0
    assert list(open_dataset(folder)) == list(Stream(open_dataset(folder))) == []
    with pytest.raises(IndexError):
        open_dataset(folder)[0]
    with pytest.raises(InputError, match="has no examples in train") as caught:
        keras_dataset(folder)
    sentence(caught.value)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"features": ["x", "y"]}, "no feature 'y': they have 'x'"),
        ({"features": "x"}, "give a list, as in ['x']"),
        ({"features": []}, "leave features away"),
        ({"fill": {"y": 1}}, "fill names 'y', which is none of the features"),
        ({"fill": {"x": b""}}, "fill names 'x', which is never"),
        ({"labels": ["a"]}, "no label 'a': it has none"),
        ({"labels": "a"}, "give a list, as in ['a']"),
        ({"labels": []}, "leave labels away"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options, part, one):
    for way in (open_dataset, keras_dataset):
        with pytest.raises(UsageError) as caught:
            way(one, **({"label": None} if way is keras_dataset else {}), **options)
        sentence(caught.value, part)


# What only reading tells.


def read_all(ds: Path) -> list[str]:
    """Returns what is said of each record that cannot be read; all others must be right."""
    records = open_dataset(ds)
    said = []
    for number, payload in enumerate(PAYLOADS):
        try:
            assert records.payload(number) == payload
        except InputError as error:
            sentence(error, "shardmill verify")
            said.append(str(error))
    return said


def test_each_flipped_bit_is_found(ds):
    shard, rng = ds / "train-1.tfrecord", random.Random(4)
    data = shard.read_bytes()
    for at in [0, 3, INDEX_BYTES - 1, len(data) - 1, *rng.sample(range(len(data)), 30)]:
        spoiled = bytearray(data)
        spoiled[at] ^= 1 << rng.randrange(8)
        shard.write_bytes(spoiled)
        said = read_all(ds)
        assert said, at
        assert all(text.startswith(f"{shard}") for text in said)


@pytest.mark.parametrize("pack", ["stored", "none"])
def test_a_record_that_is_spoiled_after_the_first_look_is_named(pack, tmp_path):
    ds = small(tmp_path / "ds", [[PAYLOADS]], DATA, PACKS[pack])
    shard = ds / "train-0.tfrecord"
    records = open_dataset(ds)
    records.payload(0)
    data = bytearray(shard.read_bytes())
    data[data.index(PAYLOADS[17]) + 500] ^= 4
    shard.write_bytes(data)
    for number, payload in enumerate(PAYLOADS):
        if number != 17:
            assert records.payload(number) == payload
    with pytest.raises(InputError, match="CRC-32C") as caught:
        records[17]
    sentence(caught.value, f"{shard}, record 17: ", "shardmill verify", "build or copy")
    with pytest.raises(InputError, match="record 17"):
        list(Stream(open_dataset(ds))) if pack == "none" else records[17]


def test_a_spoiled_record_of_an_uncompressed_file_is_the_only_one_lost(tmp_path):
    ds = small(tmp_path / "ds", [[PAYLOADS]], DATA, None)
    shard = ds / "train-0.tfrecord"
    data = bytearray(shard.read_bytes())
    data[data.index(PAYLOADS[17]) + 500] ^= 4
    shard.write_bytes(data)
    (said,) = read_all(ds)
    assert said.startswith(f"{shard}, record 17: its bytes do not have the CRC-32C")
    with pytest.raises(InputError) as caught:
        list(open_dataset(ds))
    assert str(caught.value).startswith(f"{shard}, record 17: ")


def lying(groups: list[list[bytes]], sizes: list[int], records: list[int], pack) -> bytes:
    """Returns a shard whose index says what it likes; sizes are changes of the right ones."""
    members = [pack(framed(group)) for group in groups]
    right = [len(member) for member in members]
    right[0] += INDEX_BYTES - len(HEADER)
    entries = [Member(a + b, n) for a, b, n in zip(right, sizes, records, strict=True)]
    return build_index(entries) + b"".join(members)[len(HEADER) :]


LIES = {
    "counts that sum up": ([0, 0, 0], [6, 4, 5], "the index lies"),
    "a record too many": ([0, 0, 0], [5, 5, 6], "it has 16 records and the manifest says 15"),
    "a record too few": ([0, 0, 0], [5, 4, 5], "it has 14 records and the manifest says 15"),
    "all in one": ([0, 0, 0], [15, 0, 0], "the index lies"),
    "sizes that sum up": ([3, -3, 0], [5, 5, 5], "gzip"),
    "sizes that do not": ([0, 0, 7], [5, 5, 5], "its index is damaged"),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("pack", ["stored", "deflated"])
def test_an_index_that_lies(lie, pack, tmp_path):
    sizes, counts, part = LIES[lie]
    groups = in_groups(PAYLOADS[:15], 5)
    assert lying(groups, [0] * 3, [5] * 3, PACKS[pack]) == make_shard(groups, PACKS[pack])
    shard = {"train-0.gz": lying(groups, sizes, counts, PACKS[pack])}
    ds = make_dataset(tmp_path / "ds", shard, {"train-0.gz": 15}, DATA)
    wrong = 0
    records = open_dataset(ds)
    for number in range(15):
        try:
            assert records.payload(number) == PAYLOADS[number]
        except InputError as error:
            sentence(error, ds / "train-0.gz")
            wrong += part in str(error)
    assert wrong
    for way in (lambda: list(records), lambda: list(Stream(records))):
        with pytest.raises(InputError) as caught:
            way()
        sentence(caught.value, ds / "train-0.gz")


@pytest.mark.parametrize("pack", PACKS)
def test_a_shard_with_another_number_of_records(pack, tmp_path):
    shard = {"train-0": make_shard([PAYLOADS], PACKS[pack])}
    packing = "none" if pack == "none" else "gzip"
    ds = make_dataset(tmp_path / "ds", shard, {"train-0": 20}, DATA, compression=packing)
    with pytest.raises(InputError, match="it has 40 records and the manifest says 20") as caught:
        open_dataset(ds)[0]
    sentence(caught.value, ds / "train-0")


@pytest.mark.parametrize("foreign", ["gzip", "many"])
def test_files_without_an_index_are_for_tensorflow(foreign, tmp_path):
    data = {
        "gzip": gzip.compress(framed(PAYLOADS), mtime=0),
        "many": b"".join(gzip.compress(frame(payload), mtime=0) for payload in PAYLOADS),
    }[foreign]
    ds = make_dataset(tmp_path / "ds", {"train-0.gz": data}, {"train-0.gz": 40}, DATA)
    records = open_dataset(ds)
    for way in (lambda: records[3], lambda: list(records), lambda: list(Stream(records))):
        with pytest.raises(InputError, match="has no index") as caught:
            way()
        sentence(caught.value, ds / "train-0.gz", "build the dataset with Shardmill")
    batches = keras_dataset(ds, label=None, batch_size=7)
    found = [value for batch in batches for value in batch["x"].numpy().ravel()]
    assert [encode_example({"x": value}) for value in found] == PAYLOADS


def test_a_file_that_holds_no_records(tmp_path):
    data = b"a,b,c\n" * 100
    ds = make_dataset(tmp_path / "ds", {"train-0.gz": data}, {"train-0.gz": 40}, DATA)
    with pytest.raises(InputError, match="or this is no shard") as caught:
        open_dataset(ds)[0]
    sentence(caught.value, ds / "train-0.gz", "build or copy")


def test_a_counted_dataset_says_what_is_missing(tmp_path, ds, capsys):
    from shardmill.pipelines import cli

    shutil.copytree(ds, tmp_path / "data", ignore=shutil.ignore_patterns("*.json", "*.pbtxt"))
    listed = tmp_path / "counted.json"
    assert cli.main(["count", f"--input={tmp_path / 'data'}", f"--manifest={listed}"]) == 0
    capsys.readouterr()
    (split,) = json.loads(listed.read_text())["splits"]
    assert steps_per_epoch(listed, split, 4) == 10
    refused(listed, "schema.pbtxt does not exist", "only counted", "feature spec", split=split)
    (tmp_path / "data" / "schema.pbtxt").write_text(DATA)
    assert [encode_example(row) for row in open_dataset(listed, split)] == PAYLOADS


@pytest.mark.parametrize("compression", ["zlib", "mixed"])
def test_other_peoples_compression(compression, tmp_path):
    shard = {"train-0": zlib.compress(framed(PAYLOADS))}
    ds = make_dataset(tmp_path / "ds", shard, {"train-0": 40}, DATA, compression=compression)
    if compression == "mixed":
        with pytest.raises(InputError, match="of mixed compression") as caught:
            keras_dataset(ds, label=None)
        sentence(caught.value, ds, "count each kind")
    else:
        batches = keras_dataset(ds, label=None, batch_size=7)
        found = [value for batch in batches for value in batch["x"].numpy().ravel()]
        assert [encode_example({"x": value}) for value in found] == PAYLOADS
    with pytest.raises(InputError, match="or this is no shard"):
        open_dataset(ds)[0]


def test_a_record_that_is_no_example(tmp_path):
    good, bad = PAYLOADS[0], b"\xff\xff no example"
    other = [encode_example({"x": 7}), encode_example({"x": [b"a", b"b"]}), encode_example({})]
    ds = small(tmp_path / "ds", [[[good, bad, *other]]], DATA)
    records = open_dataset(ds)
    assert records[0]["x"]
    for number, part in enumerate(
        ["no tf.train.Example", "is int64 and not bytes", "2 values and not one", "0 values"], 1
    ):
        with pytest.raises(InputError) as caught:
            records[number]
        sentence(caught.value, f"train-0.tfrecord, record {number}: ", part, "shardmill verify")


def test_weights_without_labels(one):
    with pytest.raises(UsageError, match="no counts by label") as caught:
        class_weights(one)
    sentence(caught.value)
    with pytest.raises(UsageError, match="no split 'test'") as caught:
        class_weights(one, "test")
    sentence(caught.value)
