"""Mixes of datasets: the turns, each example counted, states and changes of weights."""

import itertools
import json
import pickle
import random
from collections import Counter
from fractions import Fraction

import pytest

from shardmill.loaders import (
    Stream,
    keras_dataset,
    mix,
    open_dataset,
    steps_per_epoch,
    torch_dataset,
)
from shardmill.schemas import encode_example
from shardmill.schemas.errors import UsageError
from tests.conftest import SOAK, build_dataset, make_photos
from tests.support.loader_tools import (
    DATA,
    ID,
    import_for_workers,
    make_dataset,
    make_shard,
    write_numbered,
)
from tests.support.training_jobs import Job

APART = 10_000  # ids of a dataset begin at a multiple
SHARDS = {"a": [40, 0, 25, 7], "b": [9, 4], "c": [1], "d": [30, 30, 30]}
IDS_AND_TEXT = f"{ID}\n{DATA}"
SIZES = {name: sum(shards) for name, shards in SHARDS.items()}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mix")
    for number, (name, shards) in enumerate(SHARDS.items()):
        base = number * APART

        def example(row, base=base):
            return {"id": base + row}

        write_numbered(folder / name, shards, 6, example=example)
    return folder


def name_of(number: int) -> str:
    return list(SHARDS)[number // APART]


def turns_of(weights: dict[str, int]):
    """Yield the name of the dataset of each example: a loop over debts, without the package."""
    names, total = list(weights), sum(weights.values())
    slack = Fraction(1, max(1, 2 * len(names) - 2)) if len(names) > 1 else Fraction(0)
    counts = Counter()
    for number in itertools.count(1):
        debts = {name: Fraction(number * weights[name], total) - counts[name] for name in names}
        due = [name for name in names if debts[name] >= slack]
        # The time until the debt reaches its limit; of equal times the first.
        chosen = min(due, key=lambda name: (1 - slack - debts[name]) * total / weights[name])
        counts[chosen] += 1
        yield chosen


def epoch_of(weights: dict[str, int], until) -> list[str]:
    """Return the names of the datasets of the examples of an epoch."""
    names, counts = [], Counter()
    for name in turns_of(weights):
        if until == "first" and counts[name] == SIZES[name]:
            return names
        counts[name] += 1
        names.append(name)
        if until == "all" and all(counts[each] >= SIZES[each] for each in weights):
            return names
        if len(names) == until:
            return names
    raise AssertionError


def check_counts(read: Counter, drawn: Counter) -> None:
    """Check that each example was read as often as its dataset was read, and the rest again."""
    by_name = Counter()
    for number, count in read.items():
        name = name_of(number)
        whole = drawn[name] // SIZES[name]
        assert count in (whole, whole + 1), (number, count)
        by_name[name] += count
    assert by_name == +drawn
    for name, number in drawn.items():
        assert number < SIZES[name] or sum(name_of(key) == name for key in read) == SIZES[name]


def opened(root, weights, **options):
    return open_dataset(mix({root / name: weight for name, weight in weights.items()}, **options))


def ids_of(stream) -> list[int]:
    return [int(row["id"]) for row in stream]


def choose(rng: random.Random):
    names = rng.sample(list(SHARDS), rng.randint(1, 4))
    weights = {name: rng.choice([1, 1, 2, 3, 7]) for name in names}
    until = rng.choice(["first", "all", rng.randint(sum(weights.values()), 120)])
    return weights, until


def run_epoch(records, epoch: int, names: list[str], rng: random.Random, options) -> list[int]:
    """Read an epoch in several runs of other hosts and workers; check the turns after each run."""
    read, deals = [], []
    dealt = 0  # also those that "pad" repeats for hosts that have none left
    for leg in range(4):
        hosts, workers, batch = rng.randint(1, 5), rng.randint(1, 3), rng.randint(1, 4)
        job = Job(records, hosts, workers, batch, **options)
        for stream in itertools.chain(*job.streams):
            stream.at(epoch, 0)
            for deal in deals:
                stream.then(deal["examples"], **deal["layout"])
        whole = (len(names) - dealt) // (hosts * batch)
        steps = None if leg == 3 else rng.randint(0, whole)
        taken = 0
        for numbers in itertools.islice(job.steps(), steps):
            read += numbers
            taken += 1
        if options["order"] == "records" and options["shuffle"]:
            assert Counter(map(name_of, read)) == Counter(names[: len(read)])
        deals.append({"examples": taken * hosts * batch, "layout": job.layout})
        dealt += taken * hosts * batch
    return read


def check_passes(root, seed: int) -> None:
    """Read epochs in order, each with interruptions; judge what was read by counting."""
    rng = random.Random(seed)
    weights, until = choose(rng)
    options = {
        "shuffle": rng.random() < 0.8,
        "order": rng.choice(["records", "blocks"]),
        "seed": seed,
        "buffer": rng.choice([1, 7, 40, 1000]),
        "remainder": rng.choice(["keep", "pad"]),
    }
    records = opened(root, weights, until=until)
    names = epoch_of(weights, until)
    if set(names) < set(weights):
        with pytest.raises(UsageError, match="has none of"):
            Stream(records)
        return
    assert len(records) == len(names)
    read, drawn = Counter(), Counter()
    for epoch in range(3):
        numbers = run_epoch(records, epoch, names, rng, options)
        read.update(numbers)
        drawn.update(names)
        check_counts(read, drawn)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(12))
def test_each_example_is_read_as_often_as_its_turn_comes(seed, root) -> None:
    check_passes(root, seed)


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(12, 2000 if SOAK else 100))
def test_more_mixes(seed, root) -> None:
    check_passes(root, seed)


# Other readers.


def loader_of(stream, workers: int, batch: int = 4, *, stateful: bool = False):
    from torch.utils.data import DataLoader
    from torchdata.stateful_dataloader import StatefulDataLoader

    import_for_workers()
    kind = StatefulDataLoader if stateful else DataLoader
    context = "fork" if workers else None
    return kind(stream, batch, num_workers=workers, multiprocessing_context=context)


def ids_of_batches(batches) -> list[int]:
    return [number for batch in batches for number in batch["id"].flatten().tolist()]


@pytest.mark.sweep
@pytest.mark.parametrize("order", ["records", "blocks"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_is_stopped_and_resumed_with_other_workers(order, workers, root) -> None:
    weights = {"a": 3, "b": 1}

    def stream():
        paths = {root / name: weight for name, weight in weights.items()}
        return torch_dataset(mix(paths), shuffle=True, order=order, seed=2)

    names = epoch_of(weights, "first")
    loader = loader_of(stream(), workers, stateful=True)
    drawn, read = Counter(), Counter(ids_of_batches(loader))
    drawn.update(names)
    check_counts(read, drawn)
    read.update(ids_of_batches(itertools.islice(iter(loader), 5)))
    state = json.loads(json.dumps(loader.state_dict()))
    read.update(ids_of_batches(loader_of(stream().resume(state), 3)))
    drawn.update(names)
    check_counts(read, drawn)
    after = stream().resume(state)
    assert sorted(ids_of_batches(loader_of(after, 0))) == sorted(
        ids_of_batches(loader_of(stream().resume(state), 1))
    )


def test_each_epoch_can_be_set_and_continues_the_datasets(root) -> None:
    records = opened(root, {"a": 1, "b": 2}, until=40)
    passes = Stream(records, shuffle=True)
    read = [ids_of(passes) for _ in range(4)]
    for epoch in (3, 0, 2):
        stream = Stream(records, shuffle=True)
        stream.set_epoch(epoch)
        assert ids_of(stream) == read[epoch]


def test_each_dataset_keeps_its_own_order(root) -> None:
    """The order of a dataset in a mix is the one that it has alone, epoch after epoch."""
    mixed = Stream(opened(root, {"a": 1, "b": 2}, until=100), shuffle=True, order="records", seed=5)
    of_b = [number for number in ids_of(mixed) if name_of(number) == "b"]
    alone = Stream(open_dataset(root / "b"), shuffle=True, order="records", seed=5)
    expected = [number for _ in range(7) for number in ids_of(alone)]
    assert of_b == expected[: len(of_b)]
    assert len(of_b) > 5 * SIZES["b"]


@pytest.mark.parametrize("until", ["first", "all", 33])
def test_random_access(until, root) -> None:
    weights = {"b": 2, "a": 3, "c": 1}
    records = opened(root, weights, until=until)
    names = epoch_of(weights, until)
    rows = [int(row["id"]) for row in records]
    counts, expected = Counter(), []
    for name in names:
        first = list(SHARDS).index(name) * APART
        expected.append(first + counts[name] % SIZES[name])
        counts[name] += 1
    assert rows == expected
    assert len(records) == len(rows)
    assert [int(records[at]["id"]) for at in range(-5, 0)] == rows[-5:]
    assert [int(row["id"]) for row in records[3:9:2]] == rows[3:9:2]
    assert [int(row["id"]) for row in records.__getitems__([5, 1])] == [rows[5], rows[1]]
    assert [int(row["id"]) for row in pickle.loads(pickle.dumps(records))] == rows
    assert ids_of(Stream(records)) == rows


@pytest.mark.heavy
@pytest.mark.xdist_group("transform")
@pytest.mark.parametrize("shuffle", [False, True])
def test_keras(shuffle, root) -> None:
    weights = {"a": 3, "b": 1}
    paths = {root / name: weight for name, weight in weights.items()}
    dataset = keras_dataset(mix(paths), batch_size=6, label=None, shuffle=shuffle, seed=1)
    names = epoch_of(weights, "first")
    assert (
        int(dataset.cardinality()) == -(-len(names) // 6) == steps_per_epoch(mix(paths), "train", 6)
    )
    read, drawn = Counter(), Counter()
    for _ in range(2):
        numbers = [int(n) for batch in dataset for n in batch["id"].numpy().ravel()]
        read.update(numbers)
        drawn.update(names)
        check_counts(read, drawn)
    stream = Stream(opened(root, weights), shuffle=True).at(0, 10)
    rest = keras_dataset(stream, batch_size=4, label=None)
    numbers = [int(n) for batch in rest for n in batch["id"].numpy().ravel()]
    assert len(numbers) == len(names) - 10


# Files.


def test_a_toml_file(root) -> None:
    text = """
until = "all"
[[dataset]]
path = "a"
weight = 3
[[dataset]]
path = "b"
weight = 1
split = "train[:5]"
[[dataset]]
path = "d"
weight = 2
where = {id = [30001, 30003]}
"""
    (root / "mix.toml").write_text(text)
    stream = Stream(open_dataset(root / "mix.toml"))
    counts = Counter(map(name_of, ids_of(stream)))
    assert counts == {"a": 72, "b": 24, "d": 48}
    read = Counter(ids_of(Stream(open_dataset(str(root / "mix.toml")))))
    assert {number for number in read if name_of(number) == "b"} == set(range(10000, 10005))
    assert {number: count for number, count in read.items() if name_of(number) == "d"} == {
        30001: 24,
        30003: 24,
    }
    assert steps_per_epoch(root / "mix.toml", "train", 12) == 12
    rows = itertools.islice(iter(stream), 100)
    before = Counter(int(row["id"]) for row in rows)
    assert before.total() == 100
    after = Stream(open_dataset(mix(root / "mix.toml", after=stream.state_dict())))
    assert int(next(iter(after))["id"]) == (72 + 50) % SIZES["a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("until = ", "is not a mix in TOML"),
        ("lengt = 3", "unknown name 'lengt'"),
        ("[dataset]\npath = 'a'", "two brackets"),
    ],
)
def test_invalid_files_are_errors(text, words, root) -> None:
    (root / "bad.toml").write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        open_dataset(root / "bad.toml")
    assert "bad.toml" in str(caught.value)


# Filters and balance.


def test_where_around_and_inside(root) -> None:
    weights = {"a": 1, "b": 1}
    keeps = {"id": lambda number: number % 2 == 0}
    stream = Stream(opened(root, weights), where=keeps, shuffle=True)
    numbers = ids_of(stream)
    assert len(numbers) == 15 == len(stream)
    assert all(number % 2 == 0 for number in numbers)
    assert sorted(n for n in numbers if n >= APART) == list(range(APART, APART + 13, 2))
    tables = [
        {"path": root / "a", "weight": 1, "where": keeps},
        {"path": root / "b", "weight": 1},
    ]
    numbers = ids_of(Stream(open_dataset(mix(tables, until="all")), shuffle=True))
    assert {n for n in numbers if n < APART} == set(range(0, 72, 2))
    assert {n for n in numbers if n >= APART} == set(range(APART, APART + 13))
    predicate = Stream(opened(root, weights), where=lambda row: int(row["id"]) % 2 == 0)
    assert sorted(ids_of(predicate)) == sorted(
        n for n in ids_of(Stream(opened(root, weights))) if n % 2 == 0
    )


@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize("order", ["records", "blocks"])
def test_remainders(hosts, order, root) -> None:
    options = {"shuffle": True, "order": order, "buffer": 7}
    records = opened(root, {"a": 3, "b": 1})
    expected = sorted(ids_of(Stream(records, **options)))
    padded = [
        list(Stream(records, host=(host, hosts), remainder="pad", **options))
        for host in range(hosts)
    ]
    assert len(set(map(len, padded))) == 1
    real = [int(row["id"]) for rows in padded for row in rows if row["weight"]]
    assert sorted(real) == expected
    dropped = [
        ids_of(Stream(records, host=(host, hosts), remainder="drop", **options))
        for host in range(hosts)
    ]
    numbers = list(itertools.chain(*dropped))
    assert len(numbers) == len(expected) // hosts * hosts
    assert not Counter(numbers) - Counter(expected)


# Changes.


def check_changes(root, seed: int) -> None:
    """What was read before a change is not repeated before its dataset is read whole."""
    rng = random.Random(seed)
    options = {
        "shuffle": rng.random() < 0.8,
        "order": rng.choice(["records", "blocks"]),
        "seed": seed,
        "buffer": rng.choice([1, 7, 40, 1000]),
    }
    read, drawn, state, any_left = Counter(), Counter(), None, False
    for _ in range(6):
        weights, until = choose(rng)
        names = epoch_of(weights, until)
        if set(names) < set(weights):
            continue
        paths = {root / name: weight for name, weight in weights.items()}
        records = open_dataset(mix(paths, until=until, after=state))
        assert len(records) == len(names)
        epoch, hosts = rng.randrange(3), rng.choice([1, 1, 2, 5])
        for before in range(epoch):
            numbers = [int(row["id"]) for row in Stream(records, epoch=before, **options)]
            read.update(numbers)
            drawn.update(names)
        job = Job(records, hosts, 1, 1, remainder="keep", **options)
        job.each(lambda stream, epoch=epoch: stream.at(epoch, 0))
        most = len(names) // hosts
        steps = rng.choice([0, min(1, most), rng.randint(0, most), most])
        numbers = list(itertools.chain(*itertools.islice(job.steps(), steps)))
        states = [json.loads(json.dumps(stream.state_dict())) for (stream,) in job.streams]
        assert all(each == states[0] for each in states)
        (state, *_) = states
        read.update(numbers)
        begun = Counter(map(name_of, numbers))
        if hosts == 1 or (options["order"] == "records" and options["shuffle"]):
            assert begun == Counter(names[: len(numbers)])
            counts = {str(root / name): (drawn + begun)[name] for name in weights}
            assert state["counts"] == counts
        drawn.update(begun)
        # Examples that several hosts have not read yet come first in the next mix.
        # A window of blocks may have examples of several epochs of a small dataset.
        any_left = any_left or (options["order"] == "blocks" and options["shuffle"]) or hosts > 1
        if not any_left:
            check_counts(read, drawn)
    weights = dict.fromkeys(SHARDS, 1)
    paths = {root / name: 1 for name in SHARDS}
    components = open_dataset(mix(paths, after=state)).source.mix.epochs.components
    unread = [component.left.start - component.left.num_read for component in components]
    until = 4 * max(unread) + 40
    options["buffer"] = 1  # examples come in the order of each dataset
    records = open_dataset(mix(paths, until=until, after=state))
    read.update(ids_of(Stream(records, **options)))
    drawn.update(epoch_of(weights, until))
    check_counts(read, drawn)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(8))
def test_weights_and_datasets_change_at_a_state(seed, root) -> None:
    check_changes(root, seed)


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(8, 1000 if SOAK else 60))
def test_more_changes(seed, root) -> None:
    check_changes(root, seed)


@pytest.mark.parametrize("order", ["records", "blocks"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_change_after_a_state_of_torchdata(workers, order, root) -> None:
    paths = {root / "a": 3, root / "b": 1}
    stream = torch_dataset(mix(paths), shuffle=True, order=order)
    batches = iter(loader := loader_of(stream, workers, stateful=True))
    read = Counter(ids_of_batches(itertools.islice(batches, 5)))
    drawn = Counter(map(name_of, read))
    state = json.loads(json.dumps(loader.state_dict()))
    changed = open_dataset(mix({root / "a": 1, root / "b": 2}, after=state, until=300))
    read.update(ids_of(Stream(changed, shuffle=True, order=order, buffer=1)))
    drawn.update(epoch_of({"a": 1, "b": 2}, 300))
    check_counts(read, drawn)


def test_a_mix_of_other_datasets_continues_after_an_epoch(root) -> None:
    paths = {root / "a": 3, root / "b": 1}
    ended = Stream(open_dataset(mix(paths)), shuffle=True, order="blocks")
    read = Counter(ids_of(ended))
    drawn = Counter(epoch_of({"a": 3, "b": 1}, "first"))
    changed = mix({root / "b": 1}, until=13, after=ended.state_dict())
    read.update(ids_of(Stream(open_dataset(changed), shuffle=True, order="blocks")))
    drawn["b"] += 13
    check_counts(read, drawn)


# Labels.


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Datasets of photos with different labels, one with a separate shard of each label."""
    folder = tmp_path_factory.mktemp("labels")
    classes = {
        "pets": {"cat": 6, "dog": 3},
        "zoo": {"ant": 2, "dog": 5, "emu": 4},
        "wild": {"ant": 3, "wolf": 3},
    }
    for name, counts in classes.items():
        make_photos(folder / f"{name}-photos", counts)
        outcome, _ = build_dataset(
            input=folder / f"{name}-photos",
            output=folder / name,
            image_size="16x24",
            splits="train:1",
            shard_by="label" if name == "zoo" else None,
        )
        assert outcome.status == "published"
    return folder


UNION = ("ant", "cat", "dog", "emu", "wolf")


@pytest.mark.heavy
def test_equal_class_names_share_an_id(photos) -> None:
    paths = {photos / "pets": 1, photos / "zoo": 2, photos / "wild": 1}
    with pytest.raises(UsageError, match=r"different labels .*labels='union'"):
        open_dataset(mix(paths))
    joined = mix(paths, until="all", labels="union")
    records = open_dataset(joined)
    assert records.labels == UNION
    for rows in (records, Stream(records, shuffle=True), Stream(records, order="blocks")):
        for row in rows:
            assert UNION[row["label"]] == row["image/class/text"].decode()
    vectors = open_dataset(joined, as_supervised=True, label="one_hot")
    assert {label.shape for _, label in vectors} == {(5,)}
    only_images = mix(paths, features=["image"])
    assert {row["image"].shape for row in open_dataset(only_images)} == {(16, 24, 3)}
    dogs = Stream(open_dataset(mix({photos / "pets": 1, photos / "zoo": 1}, labels="union")))
    kept = Stream(dogs.records, where={"label": "dog"})
    assert {row["image/class/text"] for row in kept} == {b"dog"}
    assert len(kept) == 6


@pytest.mark.heavy
def test_balance_of_labels_inside_and_around(photos) -> None:
    paths = {photos / "pets": 1, photos / "zoo": 1}
    around = Stream(open_dataset(mix(paths, labels="union", until=66)), balance="label")
    tables = [{"path": path, "weight": 1, "balance": "label"} for path in paths]
    inside = Stream(open_dataset(mix(tables, labels="union", until=66)))
    for stream in (around, inside):
        labels = Counter(row["image/class/text"].decode() for row in stream)
        # 33 examples of each dataset: 9 a round of pets, 11 of zoo, in equal shares.
        assert labels.total() == 66 == len(stream)
        assert abs(labels["cat"] - 33 / 2) <= 3
        assert abs(labels["ant"] - 11) <= 1
        assert abs(labels["emu"] - 11) <= 1
    with pytest.raises(UsageError, match="the mix balances"):
        Stream(open_dataset(mix(tables, labels="union")), balance="label")


@pytest.mark.heavy
@pytest.mark.xdist_group("transform")
@pytest.mark.parametrize("form", ["id", "one_hot", "text"])
def test_keras_has_the_class_ids_of_the_mix(form, photos) -> None:
    paths = {photos / "pets": 1, photos / "zoo": 1}
    dataset = keras_dataset(mix(paths, labels="union"), batch_size=4, label=form)
    assert dataset.class_names == list(UNION[:4])
    numbers = [value for _, labels in dataset for value in labels.numpy()]
    if form == "one_hot":
        numbers = [value.argmax() for value in numbers]
    names = [value.decode() if form == "text" else UNION[value] for value in numbers]
    expected = open_dataset(mix(paths, labels="union"))
    assert Counter(names) == Counter(row["image/class/text"].decode() for row in expected)


def test_random_access_feeds_a_data_loader(photos) -> None:
    from torch.utils.data import DataLoader

    import_for_workers()
    records = open_dataset(
        mix({photos / "pets": 3, photos / "zoo": 1}, labels="union"), as_supervised=True
    )
    loader = DataLoader(records, 4, shuffle=True, num_workers=2, multiprocessing_context="fork")
    assert sum(len(labels) for _, labels in loader) == len(records) == 12


def test_class_ids_of_boxes_are_those_of_the_mix(tmp_path) -> None:
    """Datasets by hand, whose records have a class and any number of boxes."""
    one, boxes = "image/class/label", "image/object/class/label"
    schema = (
        ID.replace('"id"', f'"{one}"')
        + f'\nfeature {{ name: "{boxes}" type: INT value_count {{ min: 0 }} }}'
    )
    labels = {"first": ["cat", "dog"], "second": ["ant", "cat"]}
    records = [(0, []), (1, [1, 0, 1]), (0, [0])]
    for name, own in labels.items():
        payloads = [
            encode_example({one: class_id, boxes: class_ids}) for class_id, class_ids in records
        ]
        shard = make_shard([payloads])
        make_dataset(
            tmp_path / name,
            {"train-0.tfrecord": shard},
            {"train-0.tfrecord": len(records)},
            schema,
            labels=own,
            features=[{"name": key, "type": "int64", "source": key} for key in (one, boxes)],
        )
    paths = {tmp_path / name: 1 for name in labels}
    mixed = open_dataset(mix(paths, labels="union"), features=[one, boxes])
    assert mixed.labels == ("ant", "cat", "dog")
    expected = [
        (own[class_id], [own[box] for box in class_ids])
        for class_id, class_ids in records
        for own in labels.values()
    ]
    for rows in (mixed, Stream(mixed)):
        names = [
            (mixed.labels[row[one]], [mixed.labels[box] for box in row[boxes]]) for row in rows
        ]
        assert names == expected
