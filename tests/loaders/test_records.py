"""Random access, compared with TensorFlow's reader, Pillow and the cells of the table."""

import io
import itertools
import multiprocessing
import os
import pickle
import random
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardmill.loaders import Stream, caches, open_dataset, shards
from shardmill.schemas import encode_example
from shardmill.schemas.errors import UsageError
from shardmill.schemas.tfrecord.framing import frame
from shardmill.schemas.tfrecord.gzip_member import INDEX_BYTES
from tests.conftest import examples
from tests.support.loader_tools import (
    CELLS,
    DATA,
    ID,
    IMAGES,
    PACKS,
    ROWS,
    cells,
    expected_cells,
    make_dataset,
    make_shard,
    tf_payloads,
    write_dataset,
)
from tests.support.record_tools import deflated_member, in_groups, stored_member

pytest_plugins = ["tests.support.loader_data"]

KINDS = [*IMAGES, "rows"]
BOTH = "train+validation"


def random_example(number: int, size: int) -> bytes:
    """Returns a serialized example with random bytes."""
    return encode_example({"x": random.Random(number).randbytes(size)})


# Content.


def test_columns_named_weight_and_sample_id_keep_their_values(tmp_path):
    """Only padding makes a triple, whose weight is not a column."""
    schema = ID + ID.replace('"id"', '"weight"') + ID.replace('"id"', '"sample_id"')
    payload = encode_example({"id": 3, "weight": 7, "sample_id": 5})
    folder = make_dataset(
        tmp_path / "ds",
        {"train-0": make_shard([[payload] * 3])},
        {"train-0": 3},
        schema,
        config={"label": "id"},
    )
    records = open_dataset(folder, as_supervised=True)
    assert records[2] == ({"weight": 7, "sample_id": 5}, 3)
    padded = [list(Stream(records, remainder="pad", host=(host, 2))) for host in range(2)]
    assert [weight for host in padded for _, _, weight in host] == [1, 1, 1, 0]
    assert padded[1][1][:2] == records[2]
    assert open_dataset(folder)[0] == {"id": 3, "weight": 7, "sample_id": 5}
    named = open_dataset(folder, features=["id"], ids=True)
    found = list(Stream(named, remainder="pad", host=(1, 2)))
    assert [row["weight"] for row in found] == [1, 0]
    assert {row["sample_id"] for row in found} <= {f"train-0:{n}" for n in range(3)}


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_payloads_equal_those_of_tf_data(kind, dataset):
    expected = tf_payloads(dataset(kind), BOTH)
    assert len(expected) == 90
    fill = {"count": -1} if kind == "rows" else None
    records = open_dataset(dataset(kind), BOTH, fill=fill)
    assert len(records) == 90
    order = random.Random(1).sample(range(90), 90)
    assert [records.payload(i) for i in order] == [expected[i] for i in order]
    assert [records.payload(i - 90) for i in order] == [expected[i] for i in order]
    first = len(open_dataset(dataset(kind), "train", fill=fill))
    validation = open_dataset(dataset(kind), "validation", fill=fill)
    assert [validation.payload(i) for i in range(90 - first)] == expected[first:]


@pytest.mark.parametrize("kind", IMAGES)
def test_pixels_equal_those_of_pillow(kind, dataset):
    import tensorflow as tf

    channels = IMAGES[kind].get("channels", 3)
    records = open_dataset(dataset(kind), BOTH)
    plain = open_dataset(dataset(kind), BOTH, decode=False)
    for number, payload in enumerate(tf_payloads(dataset(kind), BOTH)):
        found = records[number]
        features = tf.train.Example.FromString(payload).features.feature
        encoded = features["image/encoded"].bytes_list.value[0]
        sides = [features[f"image/{side}"].int64_list.value[0] for side in ("height", "width")]
        pixels = np.frombuffer(encoded, np.uint8)
        if kind != "raw":
            pixels = np.asarray(Image.open(io.BytesIO(encoded)))
        image = found["image"]
        assert (image.dtype, image.shape) == (np.uint8, (*sides, channels))
        np.testing.assert_array_equal(image, pixels.reshape(*sides, channels))
        assert image.flags.writeable
        assert plain[number]["image/encoded"] == encoded
        assert found["image/key"] == features["image/key"].bytes_list.value[0]
        label = found["label"]
        assert isinstance(label, np.int64)
        assert records.labels[label].encode() == found["image/class/text"]
        assert found["image/key"].startswith(found["image/class/text"] + b"/")


def test_rows_equal_the_table(table):
    fill = {"count": -1, "name": "unknown"}
    found = {int(row["number"]) + 40: row for row in open_dataset(table, BOTH, fill=fill)}
    assert len(found) == ROWS
    for number, row in found.items():
        expected = expected_cells(cells(number), {**fill, "ratio": "nan"})
        assert list(row) == sorted(CELLS)
        for name, value in expected.items():
            np.testing.assert_equal(row[name].tolist() if name in NUMPY else row[name], value)
        assert {name: row[name].dtype for name in NUMPY} == NUMPY


NUMPY = {
    "number": np.int64,
    "count": np.int64,
    "sizes": np.int64,
    "price": np.float32,
    "ratio": np.float32,
    "tags": object,
}


def test_records_with_missing_floats_are_joined(table):
    """NaN is not equal to itself."""
    train, rest = (open_dataset(table, split, fill={"count": -1}) for split in BOTH.split("+"))
    whole = train[:-3] + pickle.loads(pickle.dumps(train))[-3:] + rest
    assert sorted(int(row["number"]) for row in whole) == list(range(-40, ROWS - 40))
    with pytest.raises(UsageError, match="cannot be joined"):
        train + open_dataset(table, "validation", fill={"count": -2})


# Sizes around the boundaries of stored blocks, members and files.

EDGES = [0, 1, 65_000, 65_500, 65_519, 65_520, 65_535, 65_536, 131_060, 400_000, 3 << 20]


@pytest.mark.parametrize("pack", PACKS)
def test_records_of_boundary_sizes(pack, tmp_path):
    payloads = [
        random_example(i, size) for i, size in enumerate([*EDGES, *([3] * 50), *EDGES[::-1]])
    ]
    groups = [[payloads[:30], payloads[30:31]], [], [payloads[31:33]], in_groups(payloads[33:], 1)]
    folder = write_dataset(tmp_path / "ds", groups, DATA, PACKS[pack])
    assert tf_payloads(folder, "train") == payloads
    records = open_dataset(folder)
    order = random.Random(2).sample(range(len(payloads)), len(payloads))
    for number in order:
        assert records.payload(number) == payloads[number]
        assert encode_example({"x": records[number]["x"]}) == payloads[number]
    assert [encode_example(row) for row in records] == payloads


@settings(max_examples=examples(90))
@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 140_000), max_size=4), max_size=3), min_size=1, max_size=4
    ),
    st.sampled_from(list(PACKS)),
    st.randoms(use_true_random=False),
)
def test_random_access_to_any_layout(tmp_path_factory, layout, pack, rng):
    content = rng.randbytes(1 << 10) * 140
    payloads = [
        [[encode_example({"x": content[:size]}) for size in group] for group in groups]
        for groups in layout
    ]
    folder = write_dataset(tmp_path_factory.mktemp("ds"), payloads, DATA, PACKS[pack])
    expected = [payload for groups in payloads for group in groups for payload in group]
    records = open_dataset(folder, cache_bytes=rng.choice([0, 100_000, 1 << 30]))
    assert len(records) == len(expected)
    order = [rng.randrange(len(expected)) for _ in range(2 * len(expected))]
    assert [records.payload(i) == expected[i] for i in order] == [True] * len(order)
    assert [row["x"] for row in records.__getitems__(order)] == [records[i]["x"] for i in order]
    assert [encode_example(row) for row in records] == expected


# The sequence.


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """120 records in 12 shards, alternately stored and deflated."""
    payloads = [random_example(i, 50 + i * 700) for i in range(120)]
    folder, names = tmp_path_factory.mktemp("many"), [f"train-{i:02d}.gz" for i in range(12)]
    groups = in_groups(payloads, 10)
    packs = (stored_member, deflated_member)
    shards = {
        name: make_shard(in_groups(group, 4), packs[number % 2])
        for number, (name, group) in enumerate(zip(names, groups, strict=True))
    }
    return make_dataset(folder, shards, dict.fromkeys(names, 10), DATA)


def test_indexes_like_a_sequence(many):
    records = open_dataset(many)
    expected = [row["x"] for row in records]
    assert len(records) == len(expected) == 120
    for index in (0, 119, -1, -120, np.int64(7), np.uint8(9), np.int32(-3), True):
        assert records[index]["x"] == expected[int(index)]
    for index in (120, -121, 10**20, np.int64(120)):
        with pytest.raises(IndexError, match="there are 120"):
            records[index]
        with pytest.raises(IndexError):
            records.payload(index)
    for index in (1.0, "1", None):
        with pytest.raises(TypeError):
            records[index]
    order = [5, -1, 5, 119, 0, np.int64(60)]
    rows = records.__getitems__(order)
    assert [row["x"] for row in rows] == [expected[int(i)] for i in order]
    assert rows[0] is not rows[2]  # the caller may change one of them
    assert records.__getitems__([]) == []
    assert str(many) in repr(records)
    assert "120 examples" in repr(records)
    sizes = open_dataset(many, transform=lambda row: len(row["x"]))
    assert sizes[3] == 50 + 3 * 700
    assert list(sizes) == [50 + i * 700 for i in range(120)]
    assert sizes.__getitems__([4, 2]) == [50 + 4 * 700, 50 + 2 * 700]


@pytest.mark.parametrize("workers", [0, 1, 3, None])
def test_reads_ahead_in_the_order_of_indices(workers, many):
    chance = random.Random(str(workers))
    order = [chance.randrange(-120, 120) for _ in range(500)]
    records = open_dataset(many, transform=lambda row: len(row["x"]))
    expected = [50 + index % 120 * 700 for index in order]
    assert list(records.read(order, workers=workers)) == expected
    assert list(records[::-1].read(np.array(order), workers=workers)) == [
        50 + (119 - index % 120) * 700 for index in order
    ]
    assert list(records.read([], workers=workers)) == []


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_indices_without_an_end_are_read_as_they_are_needed(workers, many):
    taken = []
    endless = (taken.append(number) or number % 120 for number in itertools.count())
    reading = open_dataset(many).read(endless, workers=workers)
    for number, row in enumerate(itertools.islice(reading, 300)):
        assert len(row["x"]) == 50 + number % 120 * 700
        assert len(taken) <= number + 2 + 32 * workers + 16 * bool(workers)
    reading.close()
    assert len(taken) <= 302 + 32 * workers + 16 * bool(workers)


@pytest.mark.parametrize("workers", [0, 4])
def test_an_error_comes_in_place_of_its_example(workers, many):
    records = open_dataset(many, transform=lambda row: len(row["x"]))

    def broken():
        yield from (0, 1)
        raise KeyError("of the sampler")

    for indices, error in (
        ([0, 1, 120, 2], IndexError),
        (broken(), KeyError),
        ([0, 1, "2"], TypeError),
    ):
        reading = records.read(indices, workers=workers)
        assert [next(reading), next(reading)] == [50, 750]
        with pytest.raises(error):
            next(reading)
    with pytest.raises(UsageError, match="workers=-1"):
        records.read([0], workers=-1)


def picks(total: int) -> st.SearchStrategy:
    """Slices, lists, arrays and masks of some records, as NumPy takes them."""
    numbers = st.lists(st.integers(-total, total - 1), max_size=9) if total else st.just([])
    masks = st.lists(st.booleans(), min_size=total, max_size=total)
    listed = st.one_of(numbers, numbers.map(lambda found: np.array(found, np.int16)))
    return st.one_of(st.slices(total), listed, masks.map(lambda mask: np.array(mask, bool)))


@settings(max_examples=examples(150))
@given(st.data())
def test_records_are_picked_as_by_numpy(many, data):
    records, expected = open_dataset(many), np.arange(120)
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(picks(len(expected)))
        records = records[index]
        expected = expected[np.array(index, int) if isinstance(index, list) else index]
        if data.draw(st.booleans()):
            records += open_dataset(many)[100:]
            expected = np.append(expected, range(100, 120))
    assert len(records) == len(expected)
    records = pickle.loads(pickle.dumps(records)) if data.draw(st.booleans()) else records
    wanted = [50 + 700 * number for number in expected]
    assert lengths(records, range(len(records))) == wanted == [len(row["x"]) for row in records]
    assert [len(row["x"]) for row in records.__getitems__(range(-len(wanted), 0))] == wanted


def test_picked_records_share_files_and_take_no_memory_for_each(many):
    records = open_dataset(many)
    tracemalloc.start()
    picked = records[::-2]
    assert tracemalloc.get_traced_memory()[0] < 10_000
    tracemalloc.stop()
    assert picked.files is records.files
    assert repr(picked) == f"<60 examples of {many} (picked from train): x>"
    assert picked.picks == range(119, -1, -2)


def lengths(records, numbers, results=None) -> list[int]:
    found = [len(records[i]["x"]) for i in numbers]
    if results is not None:
        results.put(found)
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_reads_the_same_in_another_process(method, many):
    records = open_dataset(many)
    numbers = [0, 119, 60, 61]
    expected = lengths(records, numbers)  # files are open, members are cached
    context = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=lengths, args=(records, numbers, results))
    process.start()
    assert results.get(timeout=60) == expected == [50 + i * 700 for i in numbers]
    process.join()
    assert lengths(records, numbers) == expected


def test_fork_while_a_thread_holds_the_locks(many):
    records = open_dataset(many)
    lengths(records, range(120))
    caches = records.files._caches
    kinds = (caches.files, caches.contents, caches.layouts, caches.tables)
    locks = {cache._lock for cache in kinds}  # the caches of one bound share theirs
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=lengths, args=(records, [3, 99], results))
    for lock in locks:
        lock.acquire()
    try:
        process.start()
        assert results.get(timeout=30) == [50 + 3 * 700, 50 + 99 * 700]
    finally:
        for lock in locks:
            lock.release()
        process.kill()  # else both processes would wait forever
        process.join()


def test_pickle_is_small_and_reads_the_same(many):
    records = open_dataset(many)
    before = len(pickle.dumps(records))
    lengths(records, range(120))
    data = pickle.dumps(records)
    assert len(data) < before + 200 < 20_000
    again = pickle.loads(data)
    assert lengths(again, range(120)) == [50 + i * 700 for i in range(120)]


def test_a_relative_path_is_that_of_the_folder_in_which_it_was_opened(many, tmp_path, monkeypatch):
    monkeypatch.chdir(many)
    records = pickle.loads(pickle.dumps(open_dataset(".")))
    monkeypatch.chdir(tmp_path)
    assert lengths(records, range(120)) == [50 + i * 700 for i in range(120)]


@pytest.mark.parametrize("cache_bytes", [0, 64 << 20])
def test_sixteen_threads_read_concurrently(cache_bytes, many, monkeypatch):
    # With one open file, a thread often evicts a file that another thread reads.
    monkeypatch.setattr(shards, "_MAX_OPEN_FILES", 1)
    records = open_dataset(many, cache_bytes=cache_bytes)
    start = threading.Barrier(16)

    def work(seed: int) -> bool:
        rng = random.Random(seed)
        start.wait()
        numbers = [rng.randrange(120) for _ in range(100)]
        return lengths(records, numbers) == [50 + i * 700 for i in numbers]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


# Bytes read, memory used.


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """A list that receives the size of each read."""
    reads, real = [], shards.OpenFile.read_at

    def read_at(self, offset: int, length: int) -> bytes:
        data = real(self, offset, length)
        reads.append(len(data))
        return data

    monkeypatch.setattr(shards.OpenFile, "read_at", read_at)
    return reads


def read_by(counted: list[int], records, number: int) -> tuple[int, int]:
    counted.clear()
    records.payload(number)
    return len(counted), sum(counted)


def test_reads_only_the_member_or_record(tmp_path, counted):
    groups = in_groups([random_example(i, 10_000) for i in range(400)], 100)  # 4 members of 1 MB
    member = 100 * len(frame(random_example(0, 10_000)))
    for pack, packed in PACKS.items():
        folder = write_dataset(tmp_path / pack, [groups, groups], DATA, packed)
        records = open_dataset(folder)
        counted.clear()
        assert len(records) == 800
        assert counted == []  # the first access reads
        calls, size = read_by(counted, records, 150)
        if pack == "none":
            assert size < 400 * 4096 + 2.5 * member  # the headers, and a chunk of 2 MiB
        else:
            assert calls <= 3
            assert size < 1.02 * member + INDEX_BYTES + 11_000
        calls, size = read_by(counted, records, 151)
        if pack == "deflated":
            assert (calls, size) == (0, 0)  # cached
        else:
            assert calls == 1
            assert 10_000 < size < 10_100
        assert read_by(counted, records, 150)[1] < 10_100
        if pack != "none":
            assert read_by(counted, records, 399)[1] < 1.02 * member + 11_000


def test_sequential_reading_reads_each_byte_once(tmp_path, counted):
    groups = in_groups([random_example(i, 10_000) for i in range(400)], 100)
    for pack in ("stored", "deflated"):
        folder = write_dataset(tmp_path / pack, [groups, groups], DATA, PACKS[pack])
        counted.clear()
        assert len(list(open_dataset(folder))) == 800
        total = sum(path.stat().st_size for path in folder.glob("train*"))
        assert total <= sum(counted) <= total + 2 * INDEX_BYTES


@pytest.mark.parametrize("pack", PACKS)
def test_memory_is_bounded(pack, tmp_path):
    zeros = encode_example({"x": bytes(100_000)})
    groups = [[zeros] * 10] * 60  # 60 MB when inflated
    folder = write_dataset(tmp_path / "ds", [groups], DATA, PACKS[pack])
    records = open_dataset(folder, cache_bytes=4 << 20)
    order = random.Random(3).sample(range(600), 200)
    for number in order[:5]:
        records.payload(number)
    tracemalloc.start()
    try:
        for number in order:
            assert len(records.payload(number)) == len(zeros)
        held, peak = tracemalloc.get_traced_memory()
        assert held < 5 << 20
        assert peak < 14 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(UsageError, match="cache_bytes=-1 must be"):
        open_dataset(folder, cache_bytes=-1)


def test_the_cache_grows_with_members_that_are_used_again(tmp_path, counted, monkeypatch):
    groups = in_groups([random_example(i, 10_000) for i in range(200)], 10)  # 20 members of 100 kB
    folder = write_dataset(tmp_path / "ds", [groups], DATA, deflated_member)
    monkeypatch.setattr(shards, "_CACHE_BYTES", 300_000)
    order = random.Random(4).sample(range(200), 200)

    def read(most: int | None, numbers: list[int]) -> tuple[int, int]:
        """Returns the bytes that are held after three passes, and those the last one read."""
        monkeypatch.setattr(shards, "spare_bytes", lambda: most)
        records = open_dataset(folder, cache_bytes=300_000 if most is None else None)
        tracemalloc.start()
        for _ in range(3):
            counted.clear()
            for number in numbers:
                assert len(records.payload(number)) > 10_000
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return held, sum(counted)

    held, again = read(10 << 20, order)
    assert (held > 2_000_000, again) == (True, 0)  # all of them
    held, again = read(1_000_000, order)
    assert held < 1_300_000 < again
    held, again = read(None, order)  # the size that the caller gave is kept
    assert held < 500_000 < again
    held, _ = read(10 << 20, list(range(200))[:20])
    assert held < 500_000  # what is used fits


def test_caches_grow_by_one_bound():
    """All values that are used again fit one cache, or parts of them several."""
    for sizes in ([500], [500, 500], [300, 900, 10]):
        spare = caches.Spare(600)
        of_sizes = [caches.LruCache(100, spare) for _ in sizes]
        for _ in range(3):
            for cache, size in zip(of_sizes, sizes, strict=True):
                for key in range(size):
                    assert cache.get(key, lambda key=key: key, lambda _: 1) == key
        held = [len(cache._entries) for cache in of_sizes]
        assert sum(held) <= 600 + 100 * len(of_sizes)
        assert spare.left == 600 - sum(max(0, size - 100) for size in held) >= 0
        assert sum(held) == min(sum(sizes), sum(min(100, size) for size in sizes) + 600)


def test_caches_share_a_quarter_of_the_memory_of_a_container(tmp_path, monkeypatch):
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("4000000000\n")
    paths = [str(tmp_path / name) for name in ("max", "limit", "missing")]
    monkeypatch.setattr(caches, "_MEMORY_LIMITS", paths[:1])
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert caches.spare_bytes() == machine // 4
    monkeypatch.setattr(caches, "_MEMORY_LIMITS", paths)
    assert caches.spare_bytes() == min(1_000_000_000, machine // 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert caches.spare_bytes() == min(1_000_000_000, machine // 4) // 8
