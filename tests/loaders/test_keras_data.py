"""keras_dataset: how many batches come, which examples, what is in them; Pillow, CSV and counts judge."""

from __future__ import annotations

import gc
import io
import shutil
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shardmill.loaders import augmentation, keras_dataset, open_dataset, steps_per_epoch
from shardmill.loaders.steps import load_manifest
from shardmill.schemas.errors import InputError, UsageError
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.tfrecord.gzip_member import deflated_member
from tests.support.loader_tools import (
    CELLS,
    PHOTOS,
    ROWS,
    cells,
    judged,
    make_dataset,
    make_shard,
    small,
)

pytest_plugins = ["tests.support.loader_data"]
pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("transform")]  # TensorFlow starts once

IDS = """
feature { name: "id" type: INT presence { min_fraction: 1 } shape { dim { size: 1 } } }
feature { name: "many" type: INT value_count { min: 0 } }
"""
SIZES = [7, 0, 9, 5, 1, 12]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module")
def ids(tmp_path_factory) -> Path:
    """34 records that hold their number, in shards of different sizes."""
    numbers = iter(range(TOTAL))
    shards = [
        [
            [encode_example({"id": n, "many": list(range(n % 4))})]
            for n in (next(numbers) for _ in range(size))
        ]
        for size in SIZES
    ]
    return small(tmp_path_factory.mktemp("ids") / "ds", shards, IDS, deflated_member)


def epoch(dataset) -> list[int]:
    """Returns the numbers of the examples of an epoch, in their order."""
    return [int(n) for batch in dataset for n in batch["id"].numpy().ravel()]


def read(path: Path, **options) -> list[int]:
    return epoch(keras_dataset(path, label=None, **options))


# How many batches.


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 17, 33, 34, 35, 1000])
def test_the_cardinality_is_the_number_of_batches(batch_size, drop, ids):
    options = {"batch_size": batch_size, "drop_remainder": drop, "label": None}
    if drop and batch_size > TOTAL:
        with pytest.raises(
            UsageError, match=r"0 steps: use a smaller batch_size, or drop"
        ) as caught:
            keras_dataset(ids, **options)
        assert str(caught.value).count(".") == 1
        return
    dataset = keras_dataset(ids, **options)
    batches = [batch["id"].shape[0] for batch in dataset]
    assert int(dataset.cardinality()) == len(batches) == len(dataset)
    assert len(batches) == steps_per_epoch(ids, "train", batch_size, drop_remainder=drop)
    assert sum(batches) == (TOTAL // batch_size * batch_size if drop else TOTAL)
    assert set(batches[:-1]) <= {batch_size}
    assert dataset.element_spec["id"].shape.as_list() == [batch_size if drop else None, 1]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"cache": True}, {"cache": True, "shuffle": True}], ids=str)  # fmt: skip
@pytest.mark.parametrize(("hosts", "batch_size"), [(2, 2), (2, 8), (3, 3), (6, 6)])
def test_hosts_take_the_same_number_of_steps(hosts, batch_size, options, ids):
    if hosts == 6:  # one has an empty shard
        with pytest.raises(
            UsageError, match=r"on each of 6 hosts.*0 steps: use a smaller batch_size\."
        ):
            keras_dataset(ids, batch_size=6, hosts=6, label=None)
        return
    steps = steps_per_epoch(ids, "train", batch_size, replicas=hosts)
    found: list[int] = []
    for host in range(hosts):
        dataset = keras_dataset(
            ids, batch_size=batch_size, host=host, hosts=hosts, label=None, **options
        )
        for _ in range(2):
            batches = [batch["id"].numpy().ravel() for batch in dataset]
            assert len(batches) == steps == int(dataset.cardinality()) > 0
            assert {len(batch) for batch in batches} == {batch_size // hosts}
        found += np.concatenate(batches).tolist()
    assert len(found) == len(set(found)) == steps * batch_size


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"batch_size": 5, "hosts": 2}, "cannot be shared by 2 hosts: give a multiple of 2"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number, 1 or more"),
        ({"batch_size": 32.5}, "batch_size=32.5 must be a whole number"),
        ({"batch_size": "32"}, "batch_size='32' must be a whole number"),
        ({"host": 2, "hosts": 2}, "host=2 of hosts=2"),
        ({"batch_size": 7, "hosts": 7}, "use fewer, or build"),
        ({"shuffle": -1}, "shuffle=-1"),
        ({"repeat": -2}, "repeat=-2"),
        ({"reader": "c"}, "reader='c' is unknown"),
        ({"label": "x"}, "label"),
        ({"label": "id"}, "the records have no label: give label=None"),
        ({"mix": {"a": 1.0}}, "no label 'a'"),
        ({"fill": {"id": 3}}, "never a single missing value"),
        ({"image_size": (3, 3), "features": ["x"]}, "no feature 'x'"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options, part, ids):
    with pytest.raises(UsageError) as caught:
        keras_dataset(ids, **{"label": None, **options})
    assert part in str(caught.value)
    assert str(caught.value).endswith(".")


def test_fit_shows_the_steps(images, capsys):
    import keras

    train = keras_dataset(images("jpeg"), batch_size=8, shuffle=True, augment=augmentation(flip="horizontal", seed=2))  # fmt: skip
    test = keras_dataset(images("jpeg"), "validation", batch_size=8)
    model = keras.Sequential([keras.Input((16, 24, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])  # fmt: skip
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(train, validation_data=test, epochs=2)
    steps = steps_per_epoch(images("jpeg"), "train", 8)
    assert not [str(each.message) for each in said if "ran out of data" in str(each.message)]
    out = capsys.readouterr().out
    assert f"{steps}/{steps}" in out
    assert "1/Unknown" not in out


# Which examples, in which order.


@pytest.mark.parametrize("reader", ["tensorflow", "python"])
@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": True}, {"shuffle": 5}, {"deterministic": False}, {"shuffle": True, "deterministic": False}, {"cache": True}, {"cache": True, "shuffle": 9}],
    ids=str,
)  # fmt: skip
def test_each_record_comes_once(options, reader, ids):
    dataset = keras_dataset(ids, label=None, batch_size=4, reader=reader, **options)
    first, second = epoch(dataset), epoch(dataset)
    assert sorted(first) == sorted(second) == list(range(TOTAL))
    if options.get("shuffle"):
        assert first != second
        assert first != sorted(first)
    if options.get("deterministic", True):
        again = keras_dataset(ids, label=None, batch_size=4, reader=reader, **options)
        assert [epoch(again), epoch(again)] == [first, second]
        if options.get("shuffle"):
            assert read(ids, batch_size=4, reader=reader, seed=1, **options) != first


def test_both_readers_read_the_same(dataset):
    for kind, fill in (("raw", None), ("none", None), ("rows", {"count": 0})):
        label = {"label": "text" if kind == "rows" else "id"}
        if kind != "rows":
            label["features"] = ["image/key"]
        found = [
            [
                (inputs, labels.numpy().tolist())
                for inputs, labels in keras_dataset(
                    dataset(kind),
                    "train+validation",
                    reader=reader,
                    fill=fill,
                    shuffle=True,
                    **label,
                )
            ]
            for reader in ("tensorflow", "python")
        ]
        assert [labels for _, labels in found[0]] == [labels for _, labels in found[1]]
        name = "number" if kind == "rows" else "image/key"
        a, b = ([inputs[name].numpy().tolist() for inputs, _ in one] for one in found)
        assert a == b


def test_repeat(ids):
    assert int(keras_dataset(ids, label=None, repeat=True).cardinality()) == -1
    twice = keras_dataset(ids, label=None, batch_size=10, repeat=2, shuffle=True)
    assert int(twice.cardinality()) == 8
    found = epoch(twice)
    assert sorted(found[:TOTAL]) == sorted(found[TOTAL:]) == list(range(TOTAL))
    assert found[:TOTAL] != found[TOTAL:]
    forever = keras_dataset(ids, label=None, batch_size=TOTAL, repeat=True, cache=True)
    assert len(epoch(forever.take(3))) == 3 * TOTAL


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("where_to", ["memory", "file"])
def test_a_cache_reads_the_files_once(where_to, hosts, shuffle, ids, tmp_path):
    folder = shutil.copytree(ids, tmp_path / "ds")
    cache = True if where_to == "memory" else str(tmp_path / "cache")
    dataset = keras_dataset(
        folder, label=None, batch_size=8, hosts=hosts, cache=cache, shuffle=shuffle
    )
    first = epoch(dataset)
    for path in folder.glob("train-*"):
        path.unlink()
    second = epoch(dataset)
    assert len(first) == len(second)
    assert len(set(second)) == len(second) == (TOTAL if hosts == 1 else 16)
    if not shuffle:
        assert first == second
    elif hosts == 1:
        assert first != second
    if where_to == "file":
        assert list(tmp_path.glob("cache*"))


def test_a_shuffled_cache_leaves_out_others_each_time(ids):
    dataset = keras_dataset(ids, label=None, batch_size=20, drop_remainder=True, cache=True, shuffle=True)  # fmt: skip
    seen = {n for _ in range(12) for n in epoch(dataset)}
    assert seen == set(range(TOTAL))


def test_a_filter_makes_the_number_unknown(ids, table, images):
    dataset = keras_dataset(ids, label=None, batch_size=4, where=lambda row: row["id"] % 3 == 0)
    assert int(dataset.cardinality()) == -2
    assert epoch(dataset) == list(range(0, TOTAL, 3))
    (first, *_) = keras_dataset(ids, label=None, batch_size=4, where=lambda row: row["id"] > 9)
    assert first["many"].to_list() == [list(range(n % 4)) for n in range(10, 14)]
    few = keras_dataset(
        ids, label=None, batch_size=4, where=lambda row: row["id"] > 28, drop_remainder=True
    )
    assert epoch(few) == [29, 30, 31, 32]
    odd = keras_dataset(
        table, features=["number"], label="text", fill={"count": 0},
        where=lambda row: row["kind"] == "odd",
    )  # fmt: skip
    assert {text for _, labels in odd for text in labels.numpy()} == {b"odd"}
    cows = keras_dataset(images("jpeg"), where=lambda row: row["image/class/text"] == "cow")
    pictures = sum(len(batch) for batch, _ in cows)
    assert pictures == load_manifest(images("jpeg")).splits["train"].label_counts["cow"] > 5
    assert {int(n) for _, labels in cows for n in labels} == {2}


# What is in a batch.


@pytest.mark.parametrize(("kind", "channels"), [("jpeg", 3), ("png", 4), ("raw", 1), ("none", 3)])
def test_pixels_are_those_of_pillow(kind, channels, images):
    import tensorflow as tf

    found = list(keras_dataset(images(kind), "train+validation", batch_size=16))
    pictures = np.concatenate([batch.numpy() for batch, _ in found])
    labels = np.concatenate([labels.numpy() for _, labels in found])
    assert (pictures.dtype, pictures.shape) == (np.uint8, (90, 16, 24, channels))
    assert labels.dtype == np.int64
    seen = Counter()
    for payload in judged(images(kind), "train+validation"):
        features = tf.train.Example.FromString(payload).features.feature
        data = features["image/encoded"].bytes_list.value[0]
        if kind == "raw":
            pixels = np.frombuffer(data, np.uint8)
        else:
            pixels = np.asarray(Image.open(io.BytesIO(data)))
        seen[pixels.tobytes(), features["image/class/label"].int64_list.value[0]] += 1
    assert seen == Counter(zip(map(bytes, pictures), labels.tolist(), strict=True))
    spec = keras_dataset(images(kind), batch_size=4, drop_remainder=True).element_spec
    assert spec[0].shape.as_list() == [4, 16, 24, channels]
    assert spec[1].shape.as_list() == [4]


def test_pictures_of_different_sizes(images):
    with pytest.raises(UsageError, match=r"different sizes.*image_size=\(height, width\)"):
        keras_dataset(images("mixed"))
    dataset = keras_dataset(images("mixed"), image_size=(20, 30), batch_size=7)
    assert dataset.element_spec[0].shape.as_list() == [None, 20, 30, 3]
    pictures = np.concatenate([batch.numpy() for batch, _ in dataset])
    records = {row["image/key"]: row["image/encoded"] for row in open_dataset(images("mixed"))}
    assert {picture.shape for picture in records.values()} == {(30, 40, 3), (47, 33, 3)}
    wanted = [
        np.asarray(Image.fromarray(p).resize((30, 20), Image.Resampling.BILINEAR), int)
        for p in records.values()
    ]
    # Both resize with antialiasing; they round in other places.
    nearest = [min(abs(picture.astype(int) - w).max() for w in wanted) for picture in pictures]
    assert max(nearest) <= 2
    for size in (64, (0, 3), (3, 3.5), (1, 2, 3)):
        with pytest.raises(UsageError, match=r"is no size: give \(height, width\)"):
            keras_dataset(images("mixed"), image_size=size)
    with pytest.raises(UsageError, match="image_size is for JPEG and PNG"):
        keras_dataset(images("raw"), image_size=(3, 3))


def test_labels_of_pictures(images):
    def labels(form: str) -> list:
        found = keras_dataset(images("jpeg"), label=form)
        return np.concatenate([labels.numpy() for _, labels in found]).tolist()

    texts, numbers, hot = labels("text"), labels("id"), labels("one_hot")
    names = load_manifest(images("jpeg")).labels
    assert [names[n].encode() for n in numbers] == texts
    assert np.argmax(hot, 1).tolist() == numbers
    assert np.sum(hot, 1).tolist() == [1] * len(numbers)
    assert {len(row) for row in hot} == {3}
    assert {text.decode(): count for text, count in Counter(texts).items()} == load_manifest(images("jpeg")).splits["train"].label_counts  # fmt: skip
    spec = keras_dataset(images("jpeg"), label=None).element_spec
    assert spec.shape.as_list() == [None, 16, 24, 3]


def test_some_features(images):
    names = ["image/key", "image/height", "image/encoded"]
    inputs, labels = next(iter(keras_dataset(images("jpeg"), features=names, batch_size=5)))
    assert set(inputs) == set(names)
    assert inputs["image/encoded"].shape == (5, 16, 24, 3)
    assert inputs["image/height"].numpy().tolist() == [[16]] * 5
    assert len(labels) == 5


def test_rows(table):
    fill = {"count": -1, "ratio": -0.5, "name": "nobody"}
    dataset = keras_dataset(table, "train+validation", fill=fill, label="text", batch_size=20)
    assert set(dataset.element_spec[0]) == set(CELLS) - {"kind"}
    found = {}
    for inputs, labels in dataset:
        for row in range(len(labels)):
            values = {name: batch[row].numpy() for name, batch in inputs.items()}
            found[int(values["number"][0]) + 40] = values, labels[row].numpy()
    assert len(found) == ROWS
    for number, (values, label) in found.items():
        cell = dict(zip(CELLS, map(str, cells(number)), strict=True))
        assert label == (cell["kind"] or "plain").encode()
        assert values["count"].tolist() == [int(cell["count"] or -1)]
        assert values["ratio"].tolist() == [float(cell["ratio"] or -0.5)]
        assert values["name"].tolist() == [(cell["name"] or "nobody").encode()]
        assert values["price"].tolist() == [float(cell["price"])]
        assert values["tags"].tolist() == [tag.encode() for tag in cell["tags"].split("|") if tag]
        assert values["sizes"].tolist() == [int(size) for size in cell["sizes"].split("|") if size]
    with pytest.raises(UsageError, match="'count' may be missing"):
        keras_dataset(table, label="text")


def labelled(folder: Path, kind: str, values: list, counts: dict, labels=()) -> Path:
    """A dataset of rows whose label column holds some values."""
    payloads = [encode_example({"id": n, "y": value}) for n, value in enumerate(values)]
    ds = make_dataset(
        folder, {"train-0.gz": make_shard([payloads])}, {"train-0.gz": len(values)}, IDS + f'feature {{ name: "y" type: {kind} presence {{ min_fraction: 1 }} shape {{ dim {{ size: 1 }} }} }}',
        build={"config_id": "", "input_id": "", "config": {"label": "y"}, "versions": {}, "runner": "", "finished": ""},
        labels=list(labels),
    )  # fmt: skip
    body = (ds / "manifest.json").read_text().replace('"label_counts": {}', f'"label_counts": {counts}'.replace("'", '"'))  # fmt: skip
    (ds / "manifest.json").write_text(body)
    return ds


def test_labels_of_rows(tmp_path):
    def of(ds, form):
        ((inputs, labels),) = keras_dataset(ds, label=form)
        assert "y" not in inputs
        gc.collect()
        return labels.numpy().tolist()

    ints = labelled(tmp_path / "ints", "INT", [2, 0, 2], {"2": 2, "0": 1})
    assert of(ints, "id") == [2, 0, 2]
    assert of(ints, "one_hot") == [[0, 0, 1], [1, 0, 0], [0, 0, 1]]
    with pytest.raises(UsageError, match="numbers without texts: use label='id'"):
        of(ints, "text")
    floats = labelled(tmp_path / "floats", "FLOAT", [1.5, -2.0], {"1.5": 1, "-2.0": 1})
    assert of(floats, "id") == [1.5, -2.0]
    with pytest.raises(UsageError, match="use label='id'"):
        of(floats, "one_hot")
    with pytest.raises(UsageError, match="use label='id'"):
        of(floats, "text")
    texts = labelled(tmp_path / "texts", "BYTES", [b"no", b"yes"], {"no": 1, "yes": 1})
    assert of(texts, "text") == [b"no", b"yes"]
    with pytest.raises(UsageError, match="were not listed: use label='text'"):
        of(texts, "id")
    listed = labelled(tmp_path / "listed", "BYTES", [b"no", b"yes"], {"no": 1, "yes": 1}, ["yes", "no"])  # fmt: skip
    assert of(listed, "id") == [1, 0]
    assert of(listed, "one_hot") == [[0, 1], [1, 0]]


# One set a category.


def test_chosen_labels(images):
    counts = load_manifest(images("bylabel")).splits["train"].label_counts
    dataset = keras_dataset(images("bylabel"), labels=["cow", "ant"], label="text", batch_size=4)
    found = Counter(text.decode() for _, labels in dataset for text in labels.numpy())
    assert found == {"cow": counts["cow"], "ant": counts["ant"]}
    assert int(dataset.cardinality()) == -(-found.total() // 4)
    records = open_dataset(images("bylabel"), labels=["bee"])
    assert len(records) == counts["bee"]
    assert {row["image/class/text"] for row in records} == {b"bee"}
    with pytest.raises(UsageError, match="no label 'dog': it has 'ant', 'bee', 'cow'"):
        keras_dataset(images("bylabel"), labels=["dog"])
    with pytest.raises(UsageError, match="named twice"):
        keras_dataset(images("bylabel"), labels=["cow", "cow"])
    with pytest.raises(UsageError, match="needs shards by label"):
        keras_dataset(images("jpeg"), labels=["cow"])


@pytest.mark.parametrize("hosts", [1, 2])
def test_labels_are_mixed_by_weight(hosts, images):
    counts = load_manifest(images("bylabel")).splits["train"].label_counts
    total = counts["ant"] + counts["cow"]
    mix = {"ant": 3, "cow": 1, "bee": 0}
    options = {"mix": mix, "batch_size": 4, "label": "text", "hosts": hosts, "host": hosts - 1}
    dataset = keras_dataset(images("bylabel"), **options)
    epochs = [[text for _, labels in dataset for text in labels.numpy()] for _ in range(12)]
    steps = int(dataset.cardinality())
    if hosts == 1:
        assert steps == -(-(total + counts["bee"]) // 4)
    assert {len(one) for one in epochs} == {steps * 4 // hosts if hosts > 1 else total + counts["bee"]}  # fmt: skip
    drawn = Counter(text.decode() for one in epochs for text in one)
    assert set(drawn) == {"ant", "cow"}
    # Twelve epochs draw hundreds: four standard deviations around three quarters.
    spread = 4 * (0.75 * 0.25 / drawn.total()) ** 0.5
    assert abs(drawn["ant"] / drawn.total() - 0.75) < spread
    assert epochs[0] != epochs[1]
    again = keras_dataset(images("bylabel"), **options)
    assert [text for _, labels in again for text in labels.numpy()] == epochs[0]


@pytest.mark.parametrize("mix", [{}, {"ant": -1.0}, {"ant": 0.0}, {"ant": float("nan")}, {"ant": float("inf")}], ids=str)  # fmt: skip
def test_weights_that_are_none(mix, images):
    with pytest.raises(UsageError) as caught:
        keras_dataset(images("bylabel"), mix=mix)
    assert str(caught.value).endswith(".")


# Augmentation.

CHANGES = {
    "flip": {"flip": "horizontal"},
    "crop": {"crop": (8, 8), "noise": 0.1},
    "others": {"rotate": 0.2, "zoom": 0.3, "brightness": 0.4, "contrast": 0.5},
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_augmentation_changes_pictures_and_repeats(change, images):
    def pictures(seed: int) -> np.ndarray:
        layer = augmentation(seed=seed, **CHANGES[change])
        found = keras_dataset(images("jpeg"), batch_size=3, augment=layer)
        return np.concatenate([batch.numpy() for batch, _ in found])

    plain = np.concatenate([batch.numpy() for batch, _ in keras_dataset(images("jpeg"))])
    first = pictures(1)
    assert first.dtype == np.float32
    assert first.min() >= 0
    assert first.max() <= 255
    np.testing.assert_array_equal(first, pictures(1))
    assert not np.array_equal(first, pictures(2))
    if change == "crop":
        assert first.shape == (len(plain), 8, 8, 3)
    else:
        changed = np.abs(first - plain).reshape(len(plain), -1).max(1) > 0.5
        assert changed.mean() > 0.25


def test_augmentation_leaves_the_data_untouched(images):
    before = {path: path.read_bytes() for path in images("jpeg").iterdir() if path.is_file()}
    dataset = keras_dataset(images("jpeg"), augment=augmentation(flip="vertical", noise=0.2), cache=True)  # fmt: skip
    assert int(dataset.cardinality()) == len(list(dataset))
    assert {path: path.read_bytes() for path in before} == before
    # What is cached is not augmented: each epoch changes it anew.
    first, second = (np.concatenate([batch.numpy() for batch, _ in dataset]) for _ in range(2))
    assert not np.array_equal(first, second)


def test_a_function_augments_too(ids):
    dataset = keras_dataset(ids, label=None, augment=lambda row: {"id": -row["id"]})
    assert epoch(dataset) == [-n for n in read(ids)]


@pytest.mark.parametrize(
    "options", [{}, {"noise": 2.0}, {"rotate": -0.1}, {"flip": "sideways"}], ids=str
)
def test_augmentations_that_are_none(options):
    with pytest.raises(UsageError) as caught:
        augmentation(**options)
    assert str(caught.value).endswith(".")


# Class weights.


def test_class_weights_are_those_of_scikit_learn(images, tmp_path):
    from sklearn.utils.class_weight import compute_class_weight

    from shardmill.loaders import class_weights

    y = [row["image/class/label"] for row in open_dataset(images("jpeg"))]
    classes = np.unique(y)
    assert len(classes) == len(PHOTOS)
    wanted = dict(zip(classes.tolist(), compute_class_weight("balanced", classes=classes, y=y), strict=True))  # fmt: skip
    assert class_weights(images("jpeg")) == pytest.approx(wanted)
    ints = labelled(tmp_path / "ints", "INT", [2, 0, 2], {"2": 2, "0": 1, "7": 0})
    assert class_weights(ints) == pytest.approx({2: 0.75, 0: 1.5})
    texts = labelled(tmp_path / "texts", "BYTES", [b"no", b"yes"], {"no": 1, "yes": 1})
    with pytest.raises(UsageError, match="'no' is not listed"):
        class_weights(texts)


def test_missing_files_are_told_before_training(ids, tmp_path):
    folder = shutil.copytree(ids, tmp_path / "ds")
    (folder / "train-3.tfrecord").unlink()
    with pytest.raises(InputError, match=r"train-3\.tfrecord is missing"):
        keras_dataset(folder, label=None)
