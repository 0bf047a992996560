"""Damaged, incomplete and foreign datasets: the loaders report one sentence for each fault."""

import dataclasses
import json
import os
import random
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from shardmill.loaders import Stream, keras_dataset, open_dataset, steps_per_epoch
from shardmill.loaders.source import _check_shards, open_source
from shardmill.schemas import Manifest, encode_example
from shardmill.schemas.dataset.shard_names import new_generation
from shardmill.schemas.errors import InputError
from shardmill.schemas.tfrecord.framing import frame
from shardmill.schemas.tfrecord.gzip_member import INDEX_BYTES
from tests.support.loader_tools import (
    DATA,
    PACKS,
    make_dataset,
    make_shard,
    write_dataset,
    write_numbered,
)
from tests.support.record_tools import flip, framed, in_groups, listed

PAYLOADS = [encode_example({"x": random.Random(i).randbytes(900)}) for i in range(40)]
GROUPS = in_groups(PAYLOADS, 5)


def check_sentence(error: BaseException, *parts: object) -> None:
    """Checks that an error is one sentence with certain parts."""
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    assert ". " not in text
    for part in parts:
        assert str(part) in text


def check_rejected(path: Path, *parts: object, kind: type = InputError, split="train") -> None:
    """Checks that every loader rejects a dataset when it opens it."""
    for opener in (open_dataset, open_source, keras_dataset):
        with pytest.raises(kind) as error:
            opener(path, split)
        check_sentence(error.value, *parts)


def flip_bit(path: Path, at: int, bit: int = 2) -> None:
    path.write_bytes(flip(path.read_bytes(), at, 1 << bit))


@pytest.fixture(params=PACKS)
def ds(request, tmp_path) -> Path:
    return write_dataset(tmp_path / "ds", [GROUPS[:4], GROUPS[4:]], DATA, PACKS[request.param])


@pytest.fixture
def stored(tmp_path) -> Path:
    return write_dataset(tmp_path / "ds", [GROUPS[:4], GROUPS[4:]], DATA)


def test_undamaged_dataset_is_read(ds):
    assert [encode_example(row) for row in open_dataset(ds)] == PAYLOADS


# Faults that opening finds.


@pytest.mark.parametrize("change", [-1, 1, -10_000, 512])
def test_rejects_shard_of_wrong_size(change, ds):
    shard = ds / "train-1.tfrecord"
    data = shard.read_bytes()
    shard.write_bytes(data + bytes(change) if change > 0 else data[:change])
    sizes = f"{len(data) + change:,} bytes", f"{len(data):,}"
    check_rejected(ds, shard, *sizes, "shardmill verify", "copy the dataset")


def test_a_damaged_length_names_its_record(tmp_path):
    """Of any chunk of an uncompressed shard, which has several."""
    payloads = [encode_example({"x": bytes(16_384)})] * 400
    folder = write_dataset(tmp_path / "ds", [[payloads]], DATA, PACKS["none"])
    shard = folder / "train-0.tfrecord"
    data, size = shard.read_bytes(), len(frame(payloads[0]))
    for number in (1, 127, 128, 129, 399, *random.Random(1).sample(range(1, 400), 10)):
        shard.write_bytes(flip(data, number * size, 1))
        with pytest.raises(InputError, match=rf"length of record {number} does not match"):
            open_dataset(folder)[0]


def test_rejects_missing_shard(ds):
    shard = ds / "train-1.tfrecord"
    shard.unlink()
    check_rejected(ds, shard, "is missing", "shardmill verify", "build or copy")
    shard.mkdir()
    check_rejected(ds, shard, "is not a file", "shardmill verify")


def test_empty_split_has_length_0(tmp_path):
    folder = write_dataset(tmp_path / "ds", [[], []], DATA)
    records = open_dataset(folder)
    assert len(records) == 0
    assert list(records) == list(Stream(records)) == []
    with pytest.raises(IndexError):
        records[0]
    with pytest.raises(InputError, match="has no examples in train") as error:
        keras_dataset(folder)
    check_sentence(error.value)


# Versions.


def publish(folder: Path, numbers: range, name: str, previous: tuple[str, ...] = ()) -> None:
    """Publish a generation of two shards, and delete those that are not kept."""
    write_numbered(folder / name, [len(numbers) // 2] * 2, 5, example=lambda n: {"id": numbers[n]})
    own = Manifest.from_json((folder / name / "manifest.json").read_bytes())
    published = dataclasses.replace(own, generation=name, previous=previous)
    (folder / "manifest.json").write_text(published.to_json())
    (folder / "current").unlink(missing_ok=True)
    (folder / "current").symlink_to(name)
    for path in folder.glob("gen-*"):
        if path.name not in (name, *previous):
            shutil.rmtree(path)


@pytest.mark.heavy
def test_a_reader_of_a_deleted_version_says_that_the_dataset_was_published_again(tmp_path):
    folder, names = tmp_path / "ds", [new_generation() for _ in range(3)]
    publish(folder, range(20), names[0])
    readers = [open_dataset(path, cache_bytes=0) for path in (folder, folder / "current")]
    ids = [iter(Stream(records)) for records in readers]
    batches = keras_dataset(folder, label=None, batch_size=1)
    publish(folder, range(20, 40), names[1], (names[0],))
    assert [[int(row["id"]) for row in records] for records in readers] == [list(range(20))] * 2
    for records in readers:
        records.close()  # as the limit of open files does
    (folder / names[0] / "train-1.tfrecord").rename(tmp_path / "lost")
    with pytest.raises(InputError, match="shardmill verify"):  # the version is kept, but damaged
        readers[0].payload(19)
    publish(folder, range(40, 60), names[2], (names[1],))
    words = f"{folder} was published again, and its version {names[0]} was deleted", "--keep"
    for failing in (
        *(partial(each.payload, 19) for each in readers),
        *(partial(list, i) for i in ids),
    ):
        with pytest.raises(InputError) as error:
            failing()
        check_sentence(error.value, *words)
    with pytest.raises(Exception, match=re.escape(words[0])):
        list(batches)
    with pytest.raises(InputError) as error:  # the manifest was read just before the publication
        _check_shards(readers[0].source)
    check_sentence(error.value, *words)
    assert [int(row["id"]) for row in open_dataset(folder)] == list(range(40, 60))


# Faults that reading finds.


def read_errors(ds: Path) -> list[str]:
    """Returns the error of each record that cannot be read; the others must be correct."""
    records = open_dataset(ds)
    errors = []
    for number, payload in enumerate(PAYLOADS):
        try:
            assert records.payload(number) == payload
        except InputError as error:
            check_sentence(error, "shardmill verify")
            errors.append(str(error))
    return errors


def test_each_flipped_bit_is_found(ds):
    shard, rng = ds / "train-1.tfrecord", random.Random(4)
    data = shard.read_bytes()
    for at in [0, 3, INDEX_BYTES - 1, len(data) - 1, *rng.sample(range(len(data)), 30)]:
        flip_bit(shard, at, rng.randrange(8))
        errors = read_errors(ds)
        assert errors, at
        assert all(text.startswith(f"{shard}") for text in errors)
        shard.write_bytes(data)


@pytest.mark.parametrize("pack", ["stored", "none"])
def test_record_that_is_damaged_after_opening_is_named(pack, tmp_path):
    ds = write_dataset(tmp_path / "ds", [[PAYLOADS]], DATA, PACKS[pack])
    shard = ds / "train-0.tfrecord"
    records = open_dataset(ds)
    records.payload(0)
    flip_bit(shard, shard.read_bytes().index(PAYLOADS[17]) + 500)
    for number, payload in enumerate(PAYLOADS):
        if number != 17:
            assert records.payload(number) == payload
    with pytest.raises(InputError, match="the CRC of its payload does not match") as error:
        records[17]
    check_sentence(error.value, f"{shard}, record 17: ", "shardmill verify", "build or copy")
    with pytest.raises(InputError, match="record 17"):
        list(Stream(open_dataset(ds))) if pack == "none" else records[17]
    if pack == "none":  # the other records of an uncompressed file can be read
        (only,) = read_errors(ds)
        assert only.startswith(f"{shard}, record 17: the CRC of its payload does not match")
        with pytest.raises(InputError) as error:
            list(open_dataset(ds))
        assert str(error.value).startswith(f"{shard}, record 17: ")


def shard_with_index(groups, changes: list[int], records: list[int], pack) -> bytes:
    """Returns a shard whose index states sizes with some changes, and certain record counts."""
    members = [pack(framed(group)) for group in groups]
    sizes = [len(member) + change for member, change in zip(members, changes, strict=True)]
    return listed(members, list(zip(sizes, records, strict=True)))


WRONG = {
    "counts with the right sum": ([0, 0, 0], [6, 4, 5], "its member index is wrong"),
    "a record too many": ([0, 0, 0], [5, 5, 6], "it has 16 records and the manifest says 15"),
    "a record too few": ([0, 0, 0], [5, 4, 5], "it has 14 records and the manifest says 15"),
    "all in one member": ([0, 0, 0], [15, 0, 0], "its member index is wrong"),
    "sizes with the right sum": ([3, -3, 0], [5, 5, 5], "gzip"),
    "sizes with a wrong sum": ([0, 0, 7], [5, 5, 5], "its member index is damaged"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("pack", ["stored", "deflated"])
def test_wrong_index_is_found(wrong, pack, tmp_path):
    changes, counts, part = WRONG[wrong]
    groups = GROUPS[:3]
    assert shard_with_index(groups, [0] * 3, [5] * 3, PACKS[pack]) == make_shard(
        groups, PACKS[pack]
    )
    shard = {"train-0.gz": shard_with_index(groups, changes, counts, PACKS[pack])}
    ds = make_dataset(tmp_path / "ds", shard, {"train-0.gz": 15}, DATA)
    found = 0
    records = open_dataset(ds)
    for number in range(15):
        try:
            assert records.payload(number) == PAYLOADS[number]
        except InputError as error:
            check_sentence(error, ds / "train-0.gz")
            found += part in str(error)
    assert found
    for read in (lambda: list(records), lambda: list(Stream(records))):
        with pytest.raises(InputError) as error:
            read()
        check_sentence(error.value, ds / "train-0.gz")


# Files of other programs.


def test_counted_dataset_without_schema(tmp_path, ds, capsys):
    from shardmill.pipelines import cli

    shutil.copytree(ds, tmp_path / "data", ignore=shutil.ignore_patterns("*.json", "*.pbtxt"))
    counted = tmp_path / "counted.json"
    assert cli.main(["count", f"--input={tmp_path / 'data'}", f"--manifest={counted}"]) == 0
    capsys.readouterr()
    (split,) = json.loads(counted.read_text())["splits"]
    assert steps_per_epoch(counted, split, 4) == 10
    check_rejected(
        counted, "schema.pbtxt does not exist", "counted, not built", "feature spec", split=split
    )
    (tmp_path / "data" / "schema.pbtxt").write_text(DATA)
    assert [encode_example(row) for row in open_dataset(counted, split)] == PAYLOADS


@pytest.mark.skipif(os.geteuid() != 0, reason="acts for another user")
def test_a_shard_that_may_not_be_read_is_not_called_damaged(ds) -> None:
    assert len(list(open_dataset(ds, "train"))) == len(PAYLOADS)  # imports what it needs
    for path in ds.rglob("train*"):
        path.chmod(0)
    for folder in (ds, *ds.parents):
        folder.chmod(folder.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        for read in (lambda records: records[0], list, lambda records: list(Stream(records))):
            with pytest.raises(InputError, match="may not be read by this process"):
                read(open_dataset(ds, "train"))
    finally:
        os.seteuid(0)
