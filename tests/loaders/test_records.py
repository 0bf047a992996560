"""Random access: TensorFlow's reader, Pillow and the CSV itself are the judges."""

from __future__ import annotations

import io
import multiprocessing
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

from shardmill.loaders import open_dataset, shards
from shardmill.loaders.frames import (
    FrameError,
    payload_of,
    stored_at,
    stored_range,
    walk_frames,
    without_headers,
)
from shardmill.schemas.errors import UsageError
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.tfrecord.framing import frame
from shardmill.schemas.tfrecord.gzip_member import HEADER, Member, deflated_member, stored_member
from shardmill.schemas.tfrecord.member_index import INDEX_BYTES, build_index
from tests.conftest import examples
from tests.support.loader_tools import (
    CELLS,
    IMAGES,
    ROWS,
    cells,
    judged,
    make_dataset,
    make_shard,
    small,
)
from tests.support.record_tools import framed, in_groups

pytest_plugins = ["tests.support.loader_data"]

KINDS = [*IMAGES, "rows"]
BOTH = "train+validation"
DATA = 'feature { name: "x" type: BYTES presence { min_fraction: 1 } shape { dim { size: 1 } } }'
PACKS = {"stored": stored_member, "deflated": deflated_member, "none": None}


def x(number: int, size: int) -> bytes:
    """An example of so many random bytes."""
    return encode_example({"x": random.Random(number).randbytes(size)})


# Every record, as others read it.


@pytest.mark.parametrize("kind", KINDS)
def test_each_record_is_what_tf_reads_at_its_place(kind, dataset):
    wanted = judged(dataset(kind), BOTH)
    assert len(wanted) == 90
    fill = {"count": -1} if kind == "rows" else None
    records = open_dataset(dataset(kind), BOTH, fill=fill)
    assert len(records) == 90
    order = random.Random(1).sample(range(90), 90)
    assert [records.payload(i) for i in order] == [wanted[i] for i in order]
    assert [records.payload(i - 90) for i in order] == [wanted[i] for i in order]
    one = len(open_dataset(dataset(kind), "train", fill=fill))
    assert [open_dataset(dataset(kind), "validation", fill=fill).payload(i) for i in range(90 - one)] == wanted[one:]  # fmt: skip


@pytest.mark.parametrize("kind", IMAGES)
def test_pictures_are_what_pillow_decodes(kind, dataset):
    import tensorflow as tf

    channels = IMAGES[kind].get("channels", 3)
    records = open_dataset(dataset(kind), BOTH)
    plain = open_dataset(dataset(kind), BOTH, decode=False)
    for number, payload in enumerate(judged(dataset(kind), BOTH)):
        found = records[number]
        features = tf.train.Example.FromString(payload).features.feature
        encoded = features["image/encoded"].bytes_list.value[0]
        sides = [features[f"image/{side}"].int64_list.value[0] for side in ("height", "width")]
        pixels = np.frombuffer(encoded, np.uint8)
        if kind != "raw":
            pixels = np.asarray(Image.open(io.BytesIO(encoded)))
        picture = found["image/encoded"]
        assert (picture.dtype, picture.shape) == (np.uint8, (*sides, channels))
        np.testing.assert_array_equal(picture, pixels.reshape(*sides, channels))
        assert picture.flags.writeable
        assert plain[number]["image/encoded"] == encoded
        assert found["image/key"] == features["image/key"].bytes_list.value[0]
        label = found["image/class/label"]
        assert isinstance(label, np.int64)
        assert records.labels[label].encode() == found["image/class/text"]
        assert found["image/key"].startswith(found["image/class/text"] + b"/")


def test_rows_are_what_the_table_says(table):
    records = open_dataset(table, BOTH, fill={"count": -1, "name": "nobody"})
    found = {int(row["number"]) + 40: row for row in records}
    assert len(found) == ROWS
    for number, row in found.items():
        cell = dict(zip(CELLS, map(str, cells(number)), strict=True))
        assert list(row) == sorted(CELLS)
        assert row["number"] == int(cell["number"])
        assert row["number"].dtype == np.int64
        assert row["price"] == np.float32(cell["price"])
        assert row["price"].dtype == row["ratio"].dtype == np.float32
        if cell["ratio"]:
            assert row["ratio"] == np.float32(cell["ratio"])
        else:
            assert np.isnan(row["ratio"])
        assert row["count"] == int(cell["count"] or -1)
        assert row["name"] == (cell["name"] or "nobody").encode()
        assert row["kind"] == (cell["kind"] or "plain").encode()
        assert row["tags"].tolist() == [tag.encode() for tag in cell["tags"].split("|") if tag]
        assert row["sizes"].tolist() == [int(size) for size in cell["sizes"].split("|") if size]
        assert (row["tags"].dtype, row["sizes"].dtype) == (object, np.int64)


# Sizes around every boundary: the blocks of stored members, members, files.

EDGES = [0, 1, 65_000, 65_500, 65_519, 65_520, 65_535, 65_536, 131_060, 400_000, 3 << 20]


@pytest.mark.parametrize("pack", PACKS)
def test_records_of_any_size(pack, tmp_path):
    payloads = [x(i, size) for i, size in enumerate([*EDGES, *([3] * 50), *EDGES[::-1]])]
    groups = [[payloads[:30], payloads[30:31]], [], [payloads[31:33]], in_groups(payloads[33:], 1)]
    folder = small(tmp_path / "ds", groups, DATA, PACKS[pack])
    assert judged(folder, "train") == payloads
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
def test_any_layout_is_read_at_any_place(tmp_path_factory, layout, pack, rng):
    content = rng.randbytes(1 << 10) * 140
    payloads = [
        [[encode_example({"x": content[:size]}) for size in group] for group in groups]
        for groups in layout
    ]
    folder = small(tmp_path_factory.mktemp("ds"), payloads, DATA, PACKS[pack])
    wanted = [payload for groups in payloads for group in groups for payload in group]
    records = open_dataset(folder, cache_bytes=rng.choice([0, 100_000, 1 << 30]))
    assert len(records) == len(wanted)
    order = [rng.randrange(len(wanted)) for _ in range(2 * len(wanted))]
    assert [records.payload(i) == wanted[i] for i in order] == [True] * len(order)
    assert [row["x"] for row in records.__getitems__(order)] == [records[i]["x"] for i in order]
    assert [encode_example(row) for row in records] == wanted


@settings(max_examples=examples(150))
@given(st.lists(st.integers(0, 150_000), min_size=1, max_size=8), st.booleans(), st.data())
def test_a_record_is_found_between_the_headers_of_stored_blocks(sizes, first, data):
    rng = random.Random(str(sizes))
    frames = [frame(rng.randbytes(size)) for size in sizes]
    content = b"".join(frames)
    starts = walk_frames(content)
    assert starts.tolist() == [sum(map(len, frames[:i])) for i in range(len(frames) + 1)]
    member = stored_member(content)
    if first:
        size = len(member) - len(HEADER) + INDEX_BYTES
        member = build_index([Member(size, len(sizes))]) + member[len(HEADER) :]
    blocks = stored_at(member, len(content))
    assert blocks == (INDEX_BYTES if first else len(HEADER))
    number = data.draw(st.integers(0, len(sizes) - 1))
    start, end = int(starts[number]), int(starts[number + 1])
    low, high = stored_range(start, end)
    read = without_headers(member[blocks + low : blocks + high], start)
    assert read == frames[number]
    assert payload_of(read) == frames[number][12:-4]
    assert stored_at(deflated_member(bytes(900)), 900) == -1


def test_records_that_end_with_a_block():
    frames = [
        frame(bytes([65 + n]) * size) for n, size in enumerate([65_519, 131_054, 0, 65_503, 9])
    ]
    content = b"".join(frames)
    member, starts = stored_member(content), walk_frames(content).tolist()
    assert [at % 65_535 for at in starts[:3]] == [starts[4] % 65_535, 0, 0] == [0, 0, 0]
    for start, end, wanted, blocks in zip(
        starts, starts[1:], frames, [1, 2, 1, 1, 1], strict=False
    ):
        low, high = stored_range(start, end)
        assert high - low == end - start + 5 * (blocks - 1)  # nothing is read but the record
        assert without_headers(member[10 + low : 10 + high], start) == wanted


def test_frames_that_are_none():
    content = framed([b"abc", b"", b"defg"])
    for cut in range(1, len(content)):
        if cut not in (19, 35):
            with pytest.raises(FrameError, match=r"record \d is cut"):
                walk_frames(content[:cut])
    for at in (0, 8, 19, 35, 46):
        spoiled = bytearray(content)
        spoiled[at] ^= 1
        with pytest.raises(FrameError, match="length of record"):
            walk_frames(bytes(spoiled))
    good = frame(b"abc")
    for at in range(len(good)):
        spoiled = bytearray(good)
        spoiled[at] ^= 1
        with pytest.raises(FrameError, match=r"length is damaged" if at < 12 else "CRC-32C"):
            payload_of(bytes(spoiled))
    for short in (b"", good[:11], good[:15], good[:-1], good + b"\0"):
        with pytest.raises(FrameError):
            payload_of(short)


# What a sequence is.


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """120 records in 12 shards, stored and deflated by turns."""
    payloads = [x(i, 50 + i * 700) for i in range(120)]
    folder, names = tmp_path_factory.mktemp("many"), [f"train-{i:02d}.gz" for i in range(12)]
    groups = in_groups(payloads, 10)
    packs = (stored_member, deflated_member)
    shards = {
        name: make_shard(in_groups(group, 4), packs[number % 2])
        for number, (name, group) in enumerate(zip(names, groups, strict=True))
    }
    return make_dataset(folder, shards, dict.fromkeys(names, 10), DATA)


def test_indexing_is_that_of_a_sequence(many):
    records = open_dataset(many)
    wanted = [row["x"] for row in records]
    assert len(records) == len(wanted) == 120
    for index in (0, 119, -1, -120, np.int64(7), np.uint8(9), np.int32(-3), True):
        assert records[index]["x"] == wanted[int(index)]
    for index in (120, -121, 10**20, np.int64(120)):
        with pytest.raises(IndexError, match="of 120"):
            records[index]
        with pytest.raises(IndexError):
            records.payload(index)
    for index in (1.0, "1", None, slice(3)):
        with pytest.raises(TypeError):
            records[index]
    order = [5, -1, 5, 119, 0, np.int64(60)]
    rows = records.__getitems__(order)
    assert [row["x"] for row in rows] == [wanted[int(i)] for i in order]
    assert rows[0] is not rows[2]  # whoever takes them may change them
    assert records.__getitems__([]) == []
    assert str(many) in repr(records)
    assert "120 examples" in repr(records)


def test_a_transform_is_applied_to_each(many):
    records = open_dataset(many, transform=lambda row: len(row["x"]))
    assert records[3] == 50 + 3 * 700
    assert list(records) == [50 + i * 700 for i in range(120)]
    assert records.__getitems__([4, 2]) == [50 + 4 * 700, 50 + 2 * 700]


def lengths(records, numbers, results=None) -> list[int]:
    found = [len(records[i]["x"]) for i in numbers]
    if results is not None:
        results.put(found)
    return found


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_reads_the_same(method, many):
    records = open_dataset(many)
    numbers = [0, 119, 60, 61]
    wanted = lengths(records, numbers)  # files are open, members are held
    context = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=lengths, args=(records, numbers, results))
    process.start()
    assert results.get(timeout=60) == wanted == [50 + i * 700 for i in numbers]
    process.join()
    assert lengths(records, numbers) == wanted


def test_a_fork_while_a_thread_holds_the_locks(many):
    records = open_dataset(many)
    lengths(records, range(120))
    caches = (records.files._files, records.files._contents, records.files._layouts)
    locks = [cache._lock for cache in (*caches, records.files._tables)]
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
        process.kill()  # it would wait for ever, and this process for it
        process.join()


def test_a_pickle_is_small_and_reads_the_same(many):
    records = open_dataset(many)
    before = len(pickle.dumps(records))
    lengths(records, range(120))
    data = pickle.dumps(records)
    assert len(data) < before + 200 < 20_000
    again = pickle.loads(data)
    assert lengths(again, range(120)) == [50 + i * 700 for i in range(120)]


@pytest.mark.parametrize("cache_bytes", [0, 64 << 20])
def test_sixteen_threads_at_once(cache_bytes, many, monkeypatch):
    # So few that a file is often let go of by one thread while another reads it.
    monkeypatch.setattr(shards, "_OPEN_FILES", 1)
    records = open_dataset(many, cache_bytes=cache_bytes)
    start = threading.Barrier(16)

    def work(seed: int) -> bool:
        rng = random.Random(seed)
        start.wait()
        numbers = [rng.randrange(120) for _ in range(100)]
        return lengths(records, numbers) == [50 + i * 700 for i in numbers]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


# How much is read and held.


class Counting:
    """Counts the bytes that are read through it."""

    def __init__(self, reader) -> None:
        self._reader, self.size, self.version = reader, reader.size, reader.version
        self.chunk, self.gap = reader.chunk, reader.gap

    def read_at(self, offset: int, length: int) -> bytes:
        data = self._reader.read_at(offset, length)
        reads.append(len(data))
        return data


reads: list[int] = []


@pytest.fixture
def counted(monkeypatch):
    """The sizes of all reads from here on."""
    import contextlib

    real = shards.open_file

    @contextlib.contextmanager
    def opened(*args):
        with real(*args) as reader:
            yield Counting(reader)

    monkeypatch.setattr(shards, "open_file", opened)
    reads.clear()
    return reads


def read_by(counted: list[int], records, number: int) -> tuple[int, int]:
    counted.clear()
    records.payload(number)
    return len(counted), sum(counted)


def test_only_what_is_needed_is_read(tmp_path, counted):
    groups = in_groups([x(i, 10_000) for i in range(400)], 100)  # 4 members of 1 MB
    member = 100 * len(frame(x(0, 10_000)))
    for pack, packed in PACKS.items():
        folder = small(tmp_path / pack, [groups, groups], DATA, packed)
        records = open_dataset(folder)
        counted.clear()
        assert len(records) == 800
        assert counted == []  # nothing until a record is asked for
        calls, size = read_by(counted, records, 150)
        if pack == "none":
            assert size < 400 * 4096 + 2.5 * member  # the headers, and an extent of 2 MiB
        else:
            assert calls <= 3
            assert size < 1.02 * member + INDEX_BYTES + 11_000
        calls, size = read_by(counted, records, 151)
        if pack == "deflated":
            assert (calls, size) == (0, 0)  # it is held
        else:
            assert calls == 1
            assert 10_000 < size < 10_100
        assert read_by(counted, records, 150)[1] < 10_100
        if pack != "none":
            assert read_by(counted, records, 399)[1] < 1.02 * member + 11_000


def test_in_order_each_byte_is_read_once(tmp_path, counted):
    groups = in_groups([x(i, 10_000) for i in range(400)], 100)
    for pack in ("stored", "deflated"):
        folder = small(tmp_path / pack, [groups, groups], DATA, PACKS[pack])
        counted.clear()
        assert len(list(open_dataset(folder))) == 800
        total = sum(path.stat().st_size for path in folder.glob("train*"))
        assert total <= sum(counted) <= total + 2 * INDEX_BYTES


@pytest.mark.parametrize("pack", PACKS)
def test_memory_is_bounded(pack, tmp_path):
    zeros = encode_example({"x": bytes(100_000)})
    groups = [[zeros] * 10] * 60  # 60 MB, inflated
    folder = small(tmp_path / "ds", [groups], DATA, PACKS[pack])
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
