"""The loaders on gs://: the same records, with few requests."""

import re
import time

import pytest

from shardmill.loaders import Stream, mix, open_dataset, torch_dataset
from shardmill.schemas.errors import InputError, StorageError
from shardmill.schemas.storage import open_storage
from tests.support.gcs_builds import upload
from tests.support.loader_tools import PACKS, write_numbered

pytest_plugins = ["tests.support.gcs_server"]
pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("transform")]  # TensorFlow starts once

TOTAL, SHARDS = 60, 3
MEMBERS = 4  # in each shard
LONG = 700


@pytest.fixture(params=PACKS)
def uri(request, strict_bucket, front, tmp_path) -> str:
    """60 records in 3 shards of 4 members; the requests of the upload are not counted."""
    ds = write_numbered(tmp_path / "ds", [20] * SHARDS, 5, PACKS[request.param])
    upload(ds, f"{strict_bucket}/a/ds")
    front.calls.clear()
    return f"{strict_bucket}/a/ds"


@pytest.mark.nightly
def test_random_access_takes_few_requests(uri, front):
    records = open_dataset(uri)
    assert front.counts().total() == 3  # the manifest, the schema, the list of shards
    assert [int(records[n]["id"]) for n in range(TOTAL)] == list(range(TOTAL))
    indexes, members = SHARDS, SHARDS * MEMBERS
    assert front.counts().total() <= 3 + indexes + members
    front.calls.clear()
    assert [int(records[n]["id"]) for n in (59, 3, 30)] == [59, 3, 30]
    assert front.counts().total() == 0  # cached


def test_one_record_reads_one_member(uri, front):
    records = open_dataset(uri)
    front.calls.clear()
    assert int(records[33]["id"]) == 33
    assert front.counts().total() <= 2  # the index, the member
    assert int(records[34]["id"]) == 34
    assert front.counts().total() <= 2


def test_stream_reads_each_member_once(uri, front):
    records = open_dataset(uri)
    front.calls.clear()
    for shuffle in (False, True):
        numbers = [int(row["id"]) for row in Stream(records, shuffle=shuffle)]
        assert sorted(numbers) == list(range(TOTAL))
    # Two epochs: indexes and the size of the first member once, members twice.
    assert front.counts().total() <= SHARDS + 1 + 2 * SHARDS * MEMBERS


@pytest.mark.sweep
@pytest.mark.parametrize("mixed", [False, True])
def test_the_first_example_takes_few_round_trips(mixed, uri, front, tmp_path):
    """Requests that do not depend on each other are sent at the same time."""
    calls, dataset = [], uri
    if mixed:
        other = f"{uri.removesuffix('/a/ds')}/b"
        upload(write_numbered(tmp_path / "b", [20] * SHARDS, 5), other)
        dataset = mix({uri: 1, other: 1}, until="all")

    def answer_late(_) -> None:
        begin = time.monotonic()
        time.sleep(1)  # longer than threads of a busy machine need to begin
        calls.append((time.monotonic(), begin))

    front.hook = answer_late
    next(iter(Stream(open_dataset(dataset), shuffle=True, order="blocks")))
    trips, end = 0, 0.0
    for stop, begin in sorted(calls):
        if begin >= end:  # it could not begin before the last counted one was answered
            trips, end = trips + 1, stop
    # Manifest; schema and list; indexes; size of the first member; members.
    assert trips <= 5


def test_workers_do_not_list_shards_again(uri, front):
    from torch.utils.data import DataLoader

    loader = DataLoader(torch_dataset(uri, shuffle=True), 10, num_workers=2)
    assert sorted(int(number) for batch in loader for number in batch["id"]) == [*range(TOTAL)]
    kinds = front.counts()
    assert kinds["list"] == 1
    assert kinds["get"] == 0


@pytest.fixture
def long_shards(strict_bucket, tmp_path) -> str:
    """Shards with more records than a stream reads ahead."""
    ds = write_numbered(tmp_path / "long", [LONG] * SHARDS, 100)
    upload(ds, f"{strict_bucket}/long")
    return f"{strict_bucket}/long"


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_next_shard_is_copied_while_one_is_read(shuffle, long_shards, front, tmp_path):
    """Each shard but the first is on the disk before a slow reader gets to it."""
    records = open_dataset(long_shards, cache_dir=tmp_path / "cache")
    front.hook = lambda call: time.sleep(0.1)
    for number, _ in enumerate(Stream(records, shuffle=shuffle, buffer=1)):
        wanted, end = min(2 + number // LONG, SHARDS), time.monotonic() + 30
        while len(list((tmp_path / "cache").glob("*.copy"))) < wanted:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_shard_that_cannot_be_copied_ahead_fails_when_it_is_read(long_shards, tmp_path):
    records = open_dataset(long_shards, cache_dir=tmp_path / "cache")
    open_storage(long_shards).delete(records.source.paths[1])
    rows = iter(Stream(records))
    assert int(next(rows)["id"]) == 0
    with pytest.raises(InputError, match=r"train-1.*the file does not exist"):
        list(rows)


def test_a_shard_that_is_replaced_is_not_read(uri):
    records = open_dataset(uri)
    path = records.source.paths[1]
    storage = open_storage(path)
    storage.replace(path, storage.read(path))
    with pytest.raises(InputError, match=r"train-1.*was replaced after .*: open the dataset again"):
        list(Stream(records))
    assert len(list(Stream(open_dataset(uri)))) == TOTAL


def test_copies_on_disk_need_no_requests(uri, front, tmp_path):
    options = {"cache_dir": tmp_path / "cache"}
    records = open_dataset(uri, **options)
    front.calls.clear()
    numbers = [int(row["id"]) for row in Stream(records, shuffle=True)]
    assert sorted(numbers) == list(range(TOTAL))
    assert front.counts().total() <= 2 * SHARDS  # each is looked at, and read once
    again = open_dataset(uri, **options)
    front.calls.clear()
    assert [int(again[n]["id"]) for n in (59, 3, 30)] == [59, 3, 30]
    assert sorted(int(row["id"]) for row in Stream(again)) == list(range(TOTAL))
    assert front.counts().total() == 0


def test_stats_count_requests(uri, front):
    records = open_dataset(uri)
    front.calls.clear()
    stream = Stream(records, shuffle=True)
    for _ in range(2):
        assert len(list(stream)) == TOTAL
        assert stream.stats().requests == front.counts().total() > SHARDS


def test_stats_count_copies_on_disk(uri, front, tmp_path):
    options = {"cache_dir": tmp_path / "cache"}
    records = open_dataset(uri, **options)
    front.calls.clear()
    stream = Stream(records, shuffle=True)
    assert len(list(stream)) == TOTAL
    stats = stream.stats()
    assert stats.requests == front.counts().total() > 0
    assert stats.bytes_read == sum(shard.bytes for shard in records.source.shards)
    assert (stats.disk_hits, stats.disk_misses) == (0, SHARDS)
    records = open_dataset(uri, **options)
    front.calls.clear()
    stream = Stream(records, shuffle=True)
    assert len(list(stream)) == TOTAL
    stats = stream.stats()
    assert stats.requests == stats.bytes_read == front.counts().total() == 0
    assert (stats.disk_hits, stats.disk_misses) == (SHARDS, 0)


@pytest.mark.parametrize("order", ["records", "blocks"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_mix_reads_the_same_as_from_the_disk(cached, order, strict_bucket, front, tmp_path):
    """Also when one of its datasets is on the disk."""
    for name, base in (("a", 0), ("b", 100)):

        def example(number, base=base):
            return {"id": base + number}

        ds = write_numbered(tmp_path / name, [20, 7, 13], 5, example=example)
        upload(ds, f"{strict_bucket}/{name}")
    here, there = tmp_path, strict_bucket
    places = [(here, here), (there, there), (here, there)]
    options = {"cache_dir": tmp_path / "cache"} if cached else {}
    epochs = []
    for first, second in places:
        records = open_dataset(mix({f"{first}/a": 2, f"{second}/b": 1}, until="all"), **options)
        stream = Stream(records, shuffle=True, seed=3, order=order)
        epochs.append([[int(row["id"]) for row in stream] for _ in range(2)])
    assert epochs[0] == epochs[1] == epochs[2]
    front.calls.clear()
    assert [int(row["id"]) for row in stream.at(0, 0)] == epochs[0][0]
    if cached:
        assert front.counts().total() == 0


DAMAGES = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"x",
    "zeros": lambda data: bytes(len(data)),
    "zeros at the end": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "a flipped byte": lambda data: data[:200] + bytes([data[200] ^ 255]) + data[201:],
}


READS = {
    "records": lambda records: records,
    "blocks": lambda records: Stream(records, shuffle=True, order="blocks"),
}


@pytest.mark.sweep
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_copy_on_disk_that_is_damaged_is_made_again(damage, read, uri, tmp_path):
    """As after a crash of the machine; the shard itself is sound."""
    options = {"cache_dir": tmp_path / "cache"}
    list(open_dataset(uri, **options))
    copies = {copy: copy.read_bytes() for copy in (tmp_path / "cache").glob("*.copy")}
    assert len(copies) == SHARDS
    for copy, data in copies.items():
        copy.write_bytes(DAMAGES[damage](data))
    records, messages = open_dataset(uri, **options), []
    for _ in range(SHARDS):
        try:
            assert sorted(int(row["id"]) for row in READS[read](records)) == list(range(TOTAL))
        except InputError as error:
            messages.append(str(error))
    assert all(re.search("the copy of gs://.*, was damaged", each) for each in messages)
    assert bool(messages) == (damage not in ("empty", "half", "longer"))
    assert [int(row["id"]) for row in records] == list(range(TOTAL))
    assert [int(row["id"]) for row in open_dataset(uri, **options)] == list(range(TOTAL))
    assert {copy: copy.read_bytes() for copy in copies} == copies


def test_all_readers_of_a_damaged_copy_say_so(long_shards, tmp_path):
    """Also those that have it open while another one deletes it, as workers of a DataLoader do."""
    readers = [open_dataset(long_shards, cache_dir=tmp_path / "cache") for _ in range(3)]
    assert [int(reader[LONG - 1]["id"]) for reader in readers] == [LONG - 1] * 3
    (copy,) = (tmp_path / "cache").glob("*.copy")
    with copy.open("r+b") as file:
        file.seek(copy.stat().st_size // 4)
        file.write(bytes(copy.stat().st_size // 2))
    for reader in readers:
        with pytest.raises(InputError, match=r"the copy of gs://.*, was damaged"):
            reader[LONG // 2]
    assert [int(reader[LONG // 2]["id"]) for reader in readers] == [LONG // 2] * 3


def test_rejects_missing_files(uri, front):
    with pytest.raises(InputError, match=r"a/manifest\.json does not exist|a does not exist"):
        open_dataset(uri.rpartition("/")[0])
    open_storage(uri).delete(f"{uri}/train-1.tfrecord")
    with pytest.raises(InputError, match=r"train-1\.tfrecord is missing"):
        open_dataset(uri)


def test_shard_that_is_replaced_during_reading_is_found(uri):
    records = open_dataset(uri, cache_bytes=0)
    records[0]
    path = f"{uri}/train-0.tfrecord"
    open_storage(uri).replace(path, open_storage(uri).read(path))
    if records.manifest.compression == "none":
        assert int(records[19]["id"]) == 19  # a file this small is cached whole
        return
    with pytest.raises((InputError, StorageError), match=r"train-0\.tfrecord") as error:
        [records[n] for n in range(20)]
    assert str(error.value).endswith(".")
