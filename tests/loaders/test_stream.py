"""Stream: hosts and workers together read each record once, in an order set by seed and epoch."""

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.loaders import Stream, epoch_reader, open_dataset
from shardmill.loaders import stream as stream_module
from shardmill.loaders.shards import ShardFiles
from shardmill.schemas import encode_example
from shardmill.schemas.errors import InputError, UsageError
from tests.conftest import examples
from tests.support.loader_tools import DATA, ID, PACKS, write_dataset, write_numbered
from tests.support.record_tools import flip as flip_byte
from tests.support.record_tools import in_groups


def make(folder: Path, sizes: list[int], member: int = 3, pack: str = "stored") -> Path:
    return write_numbered(folder, sizes, member, PACKS[pack])


def read(records, **options) -> list[int]:
    epoch = options.pop("epoch", 0)
    stream = Stream(records, **options)
    stream.set_epoch(epoch)
    return [int(row["id"]) for row in stream]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return open_dataset(make(tmp_path_factory.mktemp("ids") / "ds", [40, 0, 25, 7, 60], 6))


@settings(max_examples=examples(150))
@given(
    order=st.sampled_from(["records", "blocks"]),
    sizes=st.lists(st.integers(0, 14), min_size=1, max_size=6),
    member=st.integers(1, 6),
    hosts=st.integers(1, 5),
    workers=st.integers(1, 4),
    shuffle=st.booleans(),
    buffer=st.sampled_from([1, 2, 7, 4096]),
    seed=st.integers(0, 3),
    epoch=st.integers(0, 3),
    pack=st.sampled_from(list(PACKS)),
)
def test_all_hosts_and_workers_read_each_record_once(  # noqa: PLR0917
    tmp_path_factory, sizes, member, hosts, workers, shuffle, buffer, seed, epoch, pack, order
):
    records = open_dataset(make(tmp_path_factory.mktemp("ds"), sizes, member, pack))
    total = sum(sizes)
    options = {"shuffle": shuffle, "buffer": buffer, "seed": seed, "order": order}
    parts: list[list[list[int]]] = []
    for host in range(hosts):
        keep = {"epoch": epoch, "host": (host, hosts), "remainder": "keep", **options}
        shares = [read(records, worker=(worker, workers), **keep) for worker in range(workers)]
        lengths = [len(share) for share in shares]
        stream = Stream(records, host=(host, hosts), remainder="keep", **options)
        assert len(stream) == sum(lengths)
        assert max(lengths) - min(lengths) <= 1
        parts.append(shares)
    found = [n for shares in parts for share in shares for n in share]
    assert sorted(found) == list(range(total))
    if not shuffle:
        assert found == list(range(total))
    lengths = [sum(map(len, shares)) for shares in parts]
    assert max(lengths) - min(lengths) <= 1
    for remainder, each in (("drop", total // hosts), ("pad", -(-total // hosts))):
        options["remainder"] = remainder
        if remainder == "drop" and 0 < total < hosts:
            with pytest.raises(UsageError, match="which would read none"):
                Stream(records, host=(0, hosts), **options)
            continue
        weighed = []
        for host in range(hosts):
            stream = Stream(records, host=(host, hosts), **options)
            stream.set_epoch(epoch)
            rows = list(stream)
            assert len(rows) == len(stream) == each
            weighed += [(int(row["id"]), row.get("weight", 1)) for row in rows]
        real = [number for number, weight in weighed if weight]
        assert len(set(real)) == len(real) == (total if remainder == "pad" else each * hosts)


def test_order_is_the_same_in_another_process(records):
    code = (
        "from shardmill.loaders import open_dataset, Stream\n"
        f"stream = Stream(open_dataset({records.source.folder!r}), shuffle=True, seed=5, host=(0, 2))\n"
        "stream.set_epoch(3)\n"
        "print(*(int(row['id']) for row in stream))\n"
    )
    done = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in (1, 2)
    ]
    expected = read(records, shuffle=True, seed=5, host=(0, 2), epoch=3)
    assert [list(map(int, text.split())) for text in done] == [expected, expected]


def test_shuffle_moves_examples_far(tmp_path):
    records = open_dataset(make(tmp_path / "ds", [500] * 8, 50))
    order = read(records, shuffle=True, order="blocks", buffer=1000)
    far = sum(abs(place - number) for place, number in enumerate(order)) / 4000
    assert far > 800  # a uniform shuffle gives a third of the length
    near = sum(abs(a - b) == 1 for a, b in itertools.pairwise(order))
    assert near < 400
    shards = [set(range(at, at + 500)) for at in range(0, 4000, 500)]
    first = set(order[:1000])
    assert sum(bool(first & shard) for shard in shards) >= 3


def test_drop_leaves_out_others_in_each_epoch(records):
    left = Counter()
    for epoch in range(20):
        parts = [
            read(records, shuffle=True, remainder="drop", host=(h, 5), epoch=epoch)
            for h in range(5)
        ]
        left.update(set(range(132)) - {n for part in parts for n in part})
    assert left.total() == 40
    assert len(left) > 20


def test_memory_is_bounded_by_buffer_and_member(tmp_path):
    payload = encode_example({"id": 1, "x": random.Random(0).randbytes(20_000)})
    folder = write_dataset(tmp_path / "ds", [in_groups([payload] * 1000, 50)] * 2, ID)  # 40 MB
    stream = Stream(open_dataset(folder), shuffle=True, order="blocks", buffer=100)  # 2 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream) == 2000
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


# Epochs, and reading on in the middle of one.


def test_each_iteration_is_another_epoch(records):
    stream = Stream(records, shuffle=True, seed=2)
    orders = [[int(row["id"]) for row in stream] for _ in range(3)]
    assert orders == [read(records, shuffle=True, seed=2, epoch=epoch) for epoch in range(3)]
    stream.set_epoch(1)
    assert [int(row["id"]) for row in stream] == orders[1]


def test_numbers_of_numpy_make_states_of_json(records):
    """As those of a restored optimizer, or of a generator of seeds."""
    seed, workers = np.int64(5), np.int64(2)
    stream = Stream(records, shuffle=True, seed=seed, workers=workers, epoch=np.int64(1))
    assert json.loads(json.dumps(stream.state_dict()))["reads"]["seed"] == 5
    stream.at(np.int64(1), np.int32(48), hosts=np.int64(1))
    state = json.loads(json.dumps(stream.state_dict()))
    assert (state["epoch"], state["examples"]) == (1, 48)
    rest = [row["id"] for row in Stream(records, shuffle=True, seed=5).at(1, 48)]
    assert [row["id"] for row in stream] == rest


def test_a_state_fits_another_expression_of_the_same_records(records):
    state = Stream(records).state_dict()
    Stream(open_dataset(records.source.folder, "train[:50%]+train[50%:]"))
    Stream(open_dataset(records.source.folder, "train[:100%]")).load_state_dict(state)


def test_set_epoch_keeps_the_position_in_this_epoch(records):
    """Trainers call it before each pass, also before the first one after a state was loaded."""
    stream = Stream(records, shuffle=True, epoch=3)
    order = [int(row["id"]) for row in stream]
    stream.at(3, 100)
    stream.set_epoch(3)
    assert [int(row["id"]) for row in stream] == order[100:]
    stream.at(3, 100)
    stream.set_epoch(4)
    assert len(list(stream)) == len(order)


# Labels with separate shards.

LABELS = {"ant": 400, "bee": 250, "cat": 50}


@pytest.fixture(scope="module")
def by_label(tmp_path_factory):
    """Records whose text is their label, in two shards for each label."""
    folder = tmp_path_factory.mktemp("labels") / "ds"
    texts = [label for label, number in LABELS.items() for _ in range(number)]
    sizes = [number // 2 for number in LABELS.values() for _ in range(2)]
    write_numbered(
        folder,
        sizes,
        10,
        schema=f"{ID}\n{DATA}",
        example=lambda n: {"id": n, "x": texts[n].encode()},
    )
    path = folder / "manifest.json"
    body = json.loads(path.read_text())
    for number, shard in enumerate(body["splits"]["train"]["shards"]):
        shard["label"] = list(LABELS)[number // 2]
    path.write_text(json.dumps({**body, "labels": list(LABELS)}))
    return open_dataset(folder)


@pytest.mark.parametrize("hosts", [1, 2, 3, 7])
@pytest.mark.parametrize("shuffle", [False, True])
def test_hosts_and_batches_have_all_labels(hosts, shuffle, by_label):
    """Chi-square of each host, and of the windows of each host, against a random division."""
    from scipy import stats

    total = sum(LABELS.values())
    for epoch in range(3):
        for host in range(hosts):
            stream = Stream(by_label, shuffle=shuffle, host=(host, hosts))
            stream.set_epoch(epoch)
            texts = [row["x"].decode() for row in stream]
            assert chi_square(texts, total) < 13.8  # 2 degrees of freedom: p = 0.001
            windows = [texts[at : at + 35] for at in range(0, len(texts) - 34, 35)]
            statistic = sum(chi_square(window, total) for window in windows)
            assert statistic < stats.chi2.ppf(0.9999, 2 * len(windows))


def chi_square(texts: list[str], total: int) -> float:
    found = Counter(texts)
    expected = {label: len(texts) * number / total for label, number in LABELS.items()}
    return sum((found[label] - each) ** 2 / each for label, each in expected.items())


def test_slices_of_labels_are_percentages_of_each(by_label):
    folder = by_label.source.folder
    first, rest = (open_dataset(folder, split) for split in ("train[:10%]", "train[10%:]"))
    assert Counter(row["x"].decode() for row in first) == {"ant": 40, "bee": 25, "cat": 5}
    ids = [int(row["id"]) for row in [*first, *rest]]
    assert sorted(ids) == list(range(700))
    with pytest.raises(UsageError, match="use percentages"):
        open_dataset(folder, "train[:100]")


# Memory.


@pytest.mark.heavy
def test_the_buffer_is_bounded_in_decompressed_bytes(tmp_path):
    """Masks of 256 KiB that compress to 300 bytes: About half of a window of 64 MiB is in memory."""
    payload = encode_example({"id": 1, "x": bytes(256 << 10)})
    folder = write_dataset(
        tmp_path / "ds", [in_groups([payload] * 500, 5)] * 2, f"{ID}\n{DATA}", PACKS["deflated"]
    )
    stream = Stream(open_dataset(folder, features=["id"]), shuffle=True)
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream) == 1000
        assert 30 << 20 < tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """4,000 records of 100 bytes in two members, then 100 of 500 kB in 25 members."""
    sizes = [100] * 4000 + [500_000] * 100
    payloads = [
        encode_example({"id": n, "x": bytes([n % 251]) * size}) for n, size in enumerate(sizes)
    ]
    groups = [in_groups(payloads[:4000], 2000) + in_groups(payloads[4000:], 4)]
    return write_dataset(tmp_path_factory.mktemp("uneven") / "ds", groups, f"{ID}\n{DATA}")


@pytest.mark.sweep
@pytest.mark.parametrize("remote", [False, True])
def test_windows_hold_a_limited_number_of_bytes(remote, uneven, monkeypatch):
    """Of the records that they have, not of average ones; the order stays the same."""
    monkeypatch.setattr(ShardFiles, "is_remote", remote)
    monkeypatch.setattr(stream_module, "BUFFER_BYTES", 4 << 20)
    records = open_dataset(uneven, decode=False)
    stream = Stream(records, shuffle=True, order="blocks")
    tracemalloc.start()
    try:
        found = [int(row["id"]) for row in stream]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sorted(found) == list(range(4100))
    assert peak < (24 if remote else 16) << 20
    assert found == read(records, shuffle=True, order="blocks", buffer=stream._window())
    window = stream._window()
    largest = max(sum(n >= 4000 for n in found[at:][:window]) for at in range(0, 4100, window))
    assert largest * 500_000 > 30 << 20, "no window is too large to be held"


def test_few_large_records_are_read_ahead(tmp_path, monkeypatch):
    """Of remote shards: a window and a half, not a number of records."""
    monkeypatch.setattr(ShardFiles, "is_remote", True)
    monkeypatch.setattr(stream_module, "BUFFER_BYTES", 4 << 20)
    monkeypatch.setattr(epoch_reader, "_AHEAD_BYTES", 2 << 20)
    payloads = [encode_example({"id": n, "x": bytes(500_000)}) for n in range(200)]
    groups = [in_groups(payloads, 4)]
    records = open_dataset(write_dataset(tmp_path / "ds", groups, f"{ID}\n{DATA}"), decode=False)
    loaded, real = [], ShardFiles.payloads

    def payloads_of(files, shard, first, stop):
        loaded.append(stop - first)
        return real(files, shard, first, stop)

    monkeypatch.setattr(ShardFiles, "payloads", payloads_of)
    stream = Stream(records, shuffle=True, order="blocks")
    most = max(sum(loaded) - number for number, _ in enumerate(stream))
    assert most <= 3 * stream._window() < 40


# Threads.


def test_threads_give_the_same_examples_and_states(records):
    """With those of the first, also where a predicate leaves out some and a host is padded."""
    where = {"where": lambda row: int(row["id"]) % 3 > 0}
    for options in ({"shuffle": True}, where, {"host": (1, 3), "remainder": "pad"}):
        alone, several = (Stream(records, **options, workers=n) for n in (0, 3))
        for _ in range(2):
            for one, other in zip(alone, several, strict=True):
                assert one == other
                assert alone.state_dict() == several.state_dict()


def test_threads_work_on_few_examples_at_one_time(tmp_path):
    begun, together = [], threading.Barrier(3, timeout=60)

    def transform(row):
        begun.append(int(row["id"]))
        if len(begun) <= 3:
            together.wait()  # all three threads are here
        return int(row["id"])

    ids = open_dataset(make(tmp_path / "ds", [90], 9), transform=transform)
    for number, found in enumerate(Stream(ids, workers=3)):
        assert found == number
        assert len(begun) <= number + 8
    stopped = iter(Stream(ids, workers=3))
    assert next(stopped) == 0
    stopped.close()


def test_an_exception_of_a_thread_is_raised_in_its_place(tmp_path):
    def flip(row):
        return int(row["id"]) if row["id"] != 41 else {}["colour"]

    folder = make(tmp_path / "ds", [90], 9)
    rows, found = iter(Stream(open_dataset(folder, transform=flip), workers=2)), []
    with pytest.raises(KeyError, match="colour") as error:
        found.extend(rows)
    assert found == list(range(41))
    assert error.traceback[-1].name == "flip"
    path = folder / "train-0.tfrecord"
    path.write_bytes(flip_byte(path.read_bytes(), -100))
    rows, found = Stream(open_dataset(folder, transform=lambda row: row["id"]), workers=2), []
    with pytest.raises(InputError, match="record 8"):
        found.extend(rows)
    assert found == list(range(81))
