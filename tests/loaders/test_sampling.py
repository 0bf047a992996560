"""Filters of the catalog, and as many examples of each label: known lengths, resumable."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shardmill.loaders import Stream, balanced, open_dataset
from shardmill.schemas.dataset.catalog import format_catalog
from shardmill.schemas.errors import InputError, UsageError
from tests.support.loader_tools import write_numbered
from tests.support.rows_tools import build_rows

pytest_plugins = ["tests.support.loader_data"]


def opened(images, kind="jpeg"):
    return open_dataset(images(kind), features=["image/class/text"])


def texts(stream) -> list[str]:
    return [row["image/class/text"].decode() for row in stream]


@pytest.mark.parametrize("kind", ["jpeg", "bylabel", "png"])
@pytest.mark.parametrize("order", ["records", "blocks"])
def test_labels_have_equal_shares(kind, order, images):
    records = opened(images, kind)
    counts = Counter(texts(records))
    assert len(set(counts.values())) > 1
    stream = Stream(records, shuffle=True, order=order, balance="label")
    epochs = [texts(stream) for _ in range(4)]
    for each in epochs:
        assert len(each) == len(stream) == len(records)
        found = Counter(each).values()
        assert max(found) - min(found) <= 1
    assert len(set(map(tuple, epochs))) == 4


def test_the_examples_of_a_large_label_take_turns(images):
    """Over some epochs, each is read as often as the others of its label."""
    records = open_dataset(images("jpeg"), decode=False)
    own = Counter(texts(records))
    label, size = own.most_common(1)[0]
    stream = Stream(records, shuffle=True, balance="label")
    read = Counter()
    for _ in range(size):
        rows = [row for row in stream if row["image/class/text"].decode() == label]
        read.update(row["image/encoded"] for row in rows)
    assert len(read) == size
    assert max(read.values()) - min(read.values()) <= 1


def test_weights_leave_labels_out(images):
    stream = Stream(opened(images), shuffle=True, balance={"ant": 3, "cow": 1})
    found = Counter(texts(stream))
    assert set(found) == {"ant", "cow"}
    assert abs(found["ant"] - 0.75 * found.total()) <= 1
    assert len(stream) == found.total() < len(opened(images))


def test_a_label_of_weight_zero_is_left_out(images):
    """Its records do not count, and weights of NumPy make a state of JSON."""
    records = opened(images)
    stream = Stream(records, balance={"ant": np.float32(1), "cow": np.int64(0)})
    ants = [text for text in texts(records) if text == "ant"]
    assert len(stream) == len(ants) > 0
    assert texts(stream) == ants
    assert json.loads(json.dumps(stream.state_dict()))["reads"]["balance"] == {"ant": 1.0}


@pytest.mark.parametrize("order", ["records", "blocks"])
def test_balanced_epochs_continue_on_other_hosts(order, images):
    options = {"shuffle": True, "order": order, "balance": "label", "remainder": "keep"}
    records = opened(images)
    whole = Counter(texts(Stream(records, epoch=2, **options)))
    first, each = [], 7
    for host in range(2):
        rows = iter(Stream(records, epoch=2, host=(host, 2), **options))
        first += [next(rows)["image/class/text"].decode() for _ in range(each)]
    rest = []
    for host in range(3):
        stream = Stream(records, host=(host, 3), **options).at(2, 2 * each, hosts=2)
        rest += texts(stream)
    assert Counter(first + rest) == whole


def test_random_access_has_the_same_balance(images):
    """The records of each epoch are those of a stream."""
    records = open_dataset(images("jpeg"), decode=False, ids=True)
    for balance in ("label", {"ant": 3, "cow": 1}):
        for epoch in range(3):
            stream = Stream(records, shuffle=True, balance=balance, epoch=epoch)
            chosen = balanced(records, balance, epoch)
            both = ([row["sample_id"] for row in each] for each in (chosen, stream))
            assert len({tuple(sorted(each)) for each in both}) == 1


# Weights of records.

WEIGHTS = {
    "equal": [1.0] * 40,
    "whole": [0.0, *range(1, 20), *[0.0] * 20],
    "one": [0.0] * 39 + [0.25],
    "huge": [1e30, *[1.0] * 39],
    "random": np.random.default_rng(1).exponential(size=40).tolist(),
}


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    """Return the records, by name of their weights, and these by id."""
    folder = tmp_path_factory.mktemp("weighted")
    opened = {}
    for name, weights in WEIGHTS.items():
        table = folder / f"{name}.csv"
        lines = [f"{number},{weight}" for number, weight in enumerate(weights)]
        table.write_text("\n".join(["id,weight", *lines]))
        options = {"splits": "train:1", "num_shards": 3, "types": "weight:float", "key": "id"}
        build_rows(input=table, output=folder / name, **options)
        opened[name] = open_dataset(folder / name, features=["id"])
    return opened


def ids(stream) -> Counter:
    return Counter(int(row["id"]) for row in stream)


@pytest.mark.sweep
@pytest.mark.parametrize("order", ["records", "blocks", None])
@pytest.mark.parametrize("name", WEIGHTS)
def test_records_are_read_as_often_as_their_weights_say(weighted, name, order):
    """In each epoch at most one time more or less, and on average exactly."""
    weights = np.array(WEIGHTS[name])
    size = np.count_nonzero(weights)
    expected = weights / weights.sum() * size
    options = {"shuffle": order is not None, "order": order, "record_weight": "weight"}
    stream = Stream(weighted[name], **options)
    total = np.zeros(len(weights))
    for _ in range(50):
        found = ids(stream)
        counts = np.array([found[number] for number in range(len(weights))])
        assert counts.sum() == len(stream) == size
        assert (np.abs(counts - expected) <= 1).all()
        total += counts
    assert (np.abs(total - 50 * expected) < 3).all()
    assert not total[weights == 0].any()


@pytest.mark.parametrize("order", ["records", "blocks"])
def test_weighted_epochs_continue_on_other_hosts(weighted, order):
    options = {"shuffle": True, "order": order, "record_weight": "weight", "remainder": "keep"}
    records = weighted["random"]
    for epoch in range(3):
        whole = ids(Stream(records, epoch=epoch, **options))
        first, each = Counter(), 7
        for host in range(2):
            rows = iter(Stream(records, epoch=epoch, host=(host, 2), **options))
            first += ids(next(rows) for _ in range(each))
        rest = Counter()
        for host in range(3):
            stream = Stream(records, host=(host, 3), **options).at(epoch, 2 * each, hosts=2)
            rest += ids(stream)
        assert first + rest == whole
    stream = Stream(records, **options)
    begun = iter(stream)
    read = ids(next(begun) for _ in range(9))
    state = json.loads(json.dumps(stream.state_dict()))
    again = Stream(records, **options)
    again.load_state_dict(state)
    assert read + ids(again) == ids(Stream(records, **options))
    for other in ({}, {"balance": "label"}):
        with pytest.raises(UsageError):
            Stream(records, shuffle=True, order=order, **other).load_state_dict(state)


def test_weights_of_a_selection(weighted):
    """Filters, slices and picked records have the weights of what is left."""
    records, weights = weighted["whole"], WEIGHTS["whole"]
    row_ids = [int(row["id"]) for row in records]
    kept = Stream(records, where={"id": lambda number: number < 9}, record_weight="weight")
    assert set(ids(kept)) <= set(range(1, 9))
    assert len(kept) == 8
    part = Stream(records[10:30], record_weight="weight")
    assert set(ids(part)) <= {number for number in row_ids[10:30] if weights[number]}
    assert len(part) == sum(weights[number] > 0 for number in row_ids[10:30])


# Ids.


@pytest.mark.parametrize("order", ["records", "blocks", None])
def test_each_example_has_the_key_of_its_image(order, images):
    """As the features of records have them, at any number of hosts, with filters and selections."""
    records = open_dataset(images("jpeg"), ids=True, decode=False)
    found = []
    for host in range(3):
        options = {"shuffle": order is not None, "order": order, "host": (host, 3)}
        for row in Stream(records, remainder="keep", **options):
            assert row["sample_id"] == row["image/key"].decode()
            found.append(row["sample_id"])
    assert len(set(found)) == len(found) == len(records)
    kept = Stream(records, where={"label": "ant"})
    assert {row["sample_id"].partition("/")[0] for row in kept} == {"ant"}
    assert records[3]["sample_id"] == records[:9][3]["sample_id"] == records[[3, 1]][0]["sample_id"]


def test_rows_have_ids_too(tmp_path):
    ds = write_numbered(tmp_path / "ds", [3, 4], 2)
    found = [row["sample_id"] for row in open_dataset(ds, ids=True)]
    assert found == [
        f"train-{shard}.tfrecord:{n}" for shard, size in ((0, 3), (1, 4)) for n in range(size)
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("key", ["name", "number", "ratio"])
def test_rows_with_a_key_have_it_as_id(key, tmp_path):
    """The same in each build, also if the records are in other places; a missing one has none."""
    lines = [f"k{n},{n},{n / 4}" for n in range(40)]
    found = []
    for build, seed in enumerate((1, 2)):
        table = tmp_path / f"{build}.csv"
        table.write_text("\n".join(["name,number,ratio", *(lines if build else lines[::-1])]))
        ds = tmp_path / f"ds{build}"
        build_rows(input=table, output=ds, key=key, seed=seed, splits="train:1", num_shards=2)
        some = {row["sample_id"] for row in open_dataset(ds, ids=True, features=["number"])}
        rows = list(Stream(open_dataset(ds, ids=True, text=True), shuffle=True))
        assert all(row["sample_id"] == str(row[key]) for row in rows)
        assert len({row["sample_id"] for row in rows} & some) == 40
        found.append([row["sample_id"] for row in rows])
    assert sorted(found[0]) == sorted(found[1])
    assert found[0] != found[1]


def test_a_filter_of_the_catalog_has_a_length(images):
    records = open_dataset(images("jpeg"), features=["image/class/text"])
    chosen = {"label": ["ant", "cow"], "height": lambda height: height % 2 == 0}
    parts = [Stream(records, where=chosen, host=(host, 2), remainder="keep") for host in range(2)]
    assert abs(len(parts[0]) - len(parts[1])) <= 1
    found = texts(parts[0]) + texts(parts[1])
    assert len(found) == len(parts[0]) + len(parts[1]) > 0
    assert set(found) <= {"ant", "cow"}
    ants = Stream(records, where={"label": "ant"})
    assert texts(ants) == [text for text in texts(records) if text == "ant"]
    shuffled = Stream(records, shuffle=True, order="blocks", where={"label": "ant"})
    assert texts(shuffled) == ["ant"] * len(ants)


def test_a_catalog_of_another_shard_is_rejected(images, tmp_path):
    ds = shutil.copytree(Path(images("jpeg")), tmp_path / "ds", symlinks=True)
    for file in (ds / "current" / "catalog").iterdir():
        file.write_bytes(format_catalog([], "id", None))
    with pytest.raises(InputError, match="cannot be read: it has 0 records and the manifest says"):
        Stream(open_dataset(ds), where={"label": "ant"})


def test_a_filter_of_picked_records(images):
    records = opened(images)
    half = Stream(records[::2], where={"label": "ant"})
    assert texts(half) == [text for text in texts(records)[::2] if text == "ant"]
    mask = np.arange(len(records)) % 3 == 0
    assert texts(Stream(records[mask])) == texts(records)[::3]
