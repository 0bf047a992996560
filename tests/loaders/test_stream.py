"""Stream: hosts and workers together read each record once, in an order set by seed and epoch."""

import itertools
import os
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.loaders import Stream, open_dataset
from shardmill.schemas.errors import UsageError
from shardmill.schemas.example.serialize import encode_example
from tests.conftest import examples
from tests.support.loader_tools import ID, PACKS, write_dataset, write_numbered
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
    tmp_path_factory, sizes, member, hosts, workers, shuffle, buffer, seed, epoch, pack
):
    records = open_dataset(make(tmp_path_factory.mktemp("ds"), sizes, member, pack))
    total = sum(sizes)
    options = {"shuffle": shuffle, "buffer": buffer, "seed": seed}
    parts: list[list[list[int]]] = []
    for host in range(hosts):
        shares = [
            read(records, epoch=epoch, host=(host, hosts), worker=(worker, workers), **options)
            for worker in range(workers)
        ]
        lengths = [len(share) for share in shares]
        assert len(Stream(records, host=(host, hosts), **options)) == sum(lengths)
        assert max(lengths) - min(lengths) <= 1
        parts.append(shares)
    found = [n for shares in parts for share in shares for n in share]
    assert sorted(found) == list(range(total))
    if not shuffle:
        assert found == list(range(total))
    lengths = [sum(map(len, shares)) for shares in parts]
    assert max(lengths) - min(lengths) <= 1
    equal = [
        read(records, epoch=epoch, host=(host, hosts), equal=True, **options)
        for host in range(hosts)
    ]
    assert [len(part) for part in equal] == [total // hosts] * hosts
    assert len(Stream(records, equal=True, host=(0, hosts), **options)) == total // hosts
    drawn = [n for part in equal for n in part]
    assert len(set(drawn)) == len(drawn)


def test_order_depends_on_seed_and_epoch(records, tmp_path):
    orders = {
        (seed, epoch): tuple(read(records, shuffle=True, seed=seed, epoch=epoch))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(orders.values())) == 9
    for (seed, epoch), order in orders.items():
        assert tuple(read(records, shuffle=True, seed=seed, epoch=epoch)) == order
        assert sorted(order) == list(range(132))
    assert read(records, epoch=1) == read(records) == list(range(132))
    single = open_dataset(make(tmp_path / "ds", [30], 30))  # members
    orders = [tuple(read(single, shuffle=True, epoch=epoch)) for epoch in range(3)]
    assert len({*orders, tuple(range(30))}) == 4


def test_order_is_the_same_in_another_process(records):
    code = (
        "from shardmill.loaders import open_dataset, Stream\n"
        f"stream = Stream(open_dataset({records.source.folder!r}), shuffle=True, seed=5, host=(0, 2))\n"
        "stream.set_epoch(3)\n"
        "print(*(int(row['id']) for row in stream))\n"
    )
    done = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                       env={**os.environ, "PYTHONHASHSEED": str(seed)}).stdout
        for seed in (1, 2)
    ]  # fmt: skip
    expected = read(records, shuffle=True, seed=5, host=(0, 2), epoch=3)
    assert [list(map(int, text.split())) for text in done] == [expected, expected]


def test_shuffle_moves_examples_far(tmp_path):
    records = open_dataset(make(tmp_path / "ds", [500] * 8, 50))
    order = read(records, shuffle=True, buffer=1000)
    far = sum(abs(place - number) for place, number in enumerate(order)) / 4000
    assert far > 800  # a uniform shuffle gives a third of the length
    near = sum(abs(a - b) == 1 for a, b in itertools.pairwise(order))
    assert near < 400
    shards = [set(range(at, at + 500)) for at in range(0, 4000, 500)]
    first = set(order[:1000])
    assert sum(bool(first & shard) for shard in shards) >= 3


def test_equal_leaves_out_others_in_each_epoch(records):
    left = Counter()
    for epoch in range(20):
        parts = [
            read(records, shuffle=True, equal=True, host=(h, 5), epoch=epoch) for h in range(5)
        ]
        left.update(set(range(132)) - {n for part in parts for n in part})
    assert left.total() == 40
    assert len(left) > 20


def test_where_keeps_matching_examples(records):
    stream = Stream(records, where=lambda row: row["id"] % 5 == 0)
    assert [int(row["id"]) for row in stream] == list(range(0, 132, 5))
    with pytest.raises(TypeError, match="is unknown"):
        len(stream)
    assert [int(row["id"]) for row in stream] == list(range(0, 132, 5))  # again


def test_opens_only_the_shards_of_its_share(tmp_path):
    folder = make(tmp_path / "ds", [10] * 6)
    records = open_dataset(folder)
    for number in (0, 1, 2):
        (folder / f"train-{number}.tfrecord").unlink()
    assert read(records, host=(1, 2)) == list(range(30, 60))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"host": 1}, "host=1 must be (index, count)"),
        ({"host": (1, 1)}, "host=(1, 1) must be (index, count)"),
        ({"host": (-1, 2)}, "host=(-1, 2) must be (index, count)"),
        ({"host": (0, 0)}, "host=(0, 0) must be (index, count)"),
        ({"host": (0, 1.5)}, "host=(0, 1.5) must be (index, count)"),
        ({"worker": (2, 2)}, "worker=(2, 2) must be (index, count)"),
        ({"buffer": 0}, "buffer=0 must be"),
    ],
    ids=str,
)
def test_rejects_invalid_options(options, part, records):
    with pytest.raises(UsageError) as caught:
        Stream(records, **options)
    assert part in str(caught.value)
    assert str(caught.value).endswith(".")


def test_memory_is_bounded_by_buffer_and_member(tmp_path):
    payload = encode_example({"id": 1, "x": random.Random(0).randbytes(20_000)})
    folder = write_dataset(tmp_path / "ds", [in_groups([payload] * 1000, 50)] * 2, ID)  # 40 MB
    stream = Stream(open_dataset(folder), shuffle=True, buffer=100)  # 2 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream) == 2000
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
