"""keras_dataset: length, order and content of the batches, compared with Pillow, CSV and counts."""

import gc
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shardmill.loaders import Stream, keras_dataset, open_dataset, steps_per_epoch
from shardmill.loaders.shards import ShardFiles
from shardmill.schemas import encode_example
from shardmill.schemas.dataset.read_manifest import load_manifest
from shardmill.schemas.errors import UsageError
from tests.support.loader_tools import (
    make_dataset,
    make_shard,
    write_numbered,
)
from tests.support.record_tools import deflated_member

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
    return write_numbered(
        tmp_path_factory.mktemp("ids") / "ds",
        SIZES,
        1,
        deflated_member,
        IDS,
        lambda n: {"id": n, "many": list(range(n % 4))},
    )


@pytest.fixture(params=["local", "remote"])
def storage(request, monkeypatch) -> None:
    """Whether records are read ahead by threads, as from a remote storage."""
    if request.param == "remote":
        monkeypatch.setattr(ShardFiles, "is_remote", True)


def epoch(dataset) -> list[int]:
    """Returns the numbers of the examples of an epoch, in their order."""
    return [int(n) for element in dataset for n in element["id"].numpy().ravel()]


def images_of(dataset) -> np.ndarray:
    """Returns the images of all batches."""
    return np.concatenate([batch.numpy() for batch, _ in dataset])


def labels_of(dataset) -> list:
    """Returns the labels of all batches."""
    return np.concatenate([labels.numpy() for _, labels in dataset]).tolist()


# Length.


@pytest.mark.parametrize("batch_size", [4, None])
def test_functions_are_not_converted(batch_size, ids, monkeypatch):
    """AutoGraph would take longer than the first batch."""
    from tensorflow.python.autograph.impl import api

    converted = []
    plain = api._convert_actual
    monkeypatch.setattr(api, "_convert_actual", lambda f, *a: converted.append(f) or plain(f, *a))
    next(iter(keras_dataset(ids, batch_size=batch_size, label=None)))
    assert [f for f in converted if "shardmill" in f.__module__] == []


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 17, 33, 34, 35, 1000])
def test_cardinality_is_the_number_of_batches(batch_size, drop, ids):
    remainder = "drop" if drop else None
    options = {"batch_size": batch_size, "remainder": remainder, "label": None}
    if drop and batch_size > TOTAL:
        with pytest.raises(UsageError, match="0 steps: use a smaller batch_size, or rem") as error:
            keras_dataset(ids, **options)
        assert str(error.value).count(".") == 1
        return
    dataset = keras_dataset(ids, **options)
    batches = [batch["id"].shape[0] for batch in dataset]
    assert int(dataset.cardinality()) == len(batches) == len(dataset)
    assert len(batches) == steps_per_epoch(ids, "train", batch_size, remainder=remainder)
    assert sum(batches) == (TOTAL // batch_size * batch_size if drop else TOTAL)
    assert set(batches[:-1]) <= {batch_size}
    assert dataset.element_spec["id"].shape.as_list() == [batch_size if drop else None, 1]


# Order.


@pytest.mark.parametrize("taken", [0, 3, 8, 11])
def test_a_stream_continues_in_the_middle_of_an_epoch(taken, ids):
    """As after a crash: the number of steps that were taken gives epoch and position."""
    import tensorflow as tf

    train = keras_dataset(ids, batch_size=4, shuffle=True, seed=3, label=None)
    expected = [epoch(train) for _ in range(3)]
    stream = Stream(open_dataset(ids, decode=False), shuffle=True, seed=3)
    number, step = divmod(taken, len(train))
    stream.at(number, 4 * step)
    again = keras_dataset(stream, batch_size=4, label=None)
    assert int(again.cardinality()) == len(train) - step
    for _ in range(2 if step == 0 else 1):
        assert epoch(again) == expected[number][4 * step :]
        number += 1
    if step:
        with pytest.raises(tf.errors.UnknownError, match="whole epochs do not follow"):
            epoch(again)
    following = Stream(open_dataset(ids, decode=False), shuffle=True, seed=3, epoch=number)
    assert epoch(keras_dataset(following, batch_size=4, label=None)) == expected[number]


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("examples", [0, 8, 24, 32])
def test_fit_continues_as_documented(examples, hosts, ids):
    """Keras ends each epoch of a call of fit after as many batches as its first one has."""
    import keras

    read: list[list[int]] = []

    class Recorder(keras.Model):
        def train_step(self, data):
            read[-1] += data["id"].numpy().ravel().tolist()
            return {"loss": 0.0}

    begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda number, logs: read.append([]))
    options = {"verbose": 0, "callbacks": [begin], "shuffle": False}

    def make(epoch: int, host: int) -> Stream:
        records = open_dataset(ids, decode=False)
        return Stream(records, shuffle=True, seed=3, epoch=epoch, host=(host, hosts))

    def fit(stream: Stream, first: int, epochs: int, set_epoch: bool = True) -> None:
        model = Recorder()
        model.compile(run_eagerly=True)
        called = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda number, logs: stream.set_epoch(number) if set_epoch else None
        )
        data = keras_dataset(stream, batch_size=8, label=None)
        own = {**options, "callbacks": [*options["callbacks"], called]}
        model.fit(data, initial_epoch=first, epochs=epochs, **own)

    for host in range(hosts):
        read.clear()
        whole = [[int(row["id"]) for row in make(epoch, host)] for epoch in range(4)]
        rest = make(0, host).at(1, examples)
        fit(rest, 1, 2)
        fit(make(2, host), 2, 4)
        each = len(whole[0]) if hosts == 1 else len(whole[0]) // 4 * 4  # in full batches
        rest_of = whole[1][:each] if examples == 0 else whole[1][examples // hosts :]
        assert [sorted(epoch) for epoch in read[1:]] == [sorted(w[:each]) for w in whole[2:]]
        assert read[0] == rest_of[: each - examples // hosts]
        if examples:
            with pytest.raises(Exception, match="whole epochs do not follow"):
                fit(make(0, host).at(1, examples), 1, 4)


def test_a_stream_that_keras_reads_ahead_has_no_state(ids):
    stream = Stream(open_dataset(ids, decode=False), shuffle=True)
    stream.state_dict()
    next(iter(keras_dataset(stream, batch_size=4, label=None)))
    with pytest.raises(UsageError, match="count the steps of the optimizer"):
        stream.state_dict()
    assert stream.at(2, 8).state_dict()["examples"] == 8


def test_tensorflow_rejects_a_checkpoint_of_an_iterator(ids, tmp_path):
    import tensorflow as tf

    made = keras_dataset(ids, label=None, batch_size=4)
    for dataset in (made, made.map(lambda row: row["id"]).repeat(), made.take(3).prefetch(1)):
        iterator = iter(dataset)
        next(iterator)
        with pytest.raises(tf.errors.FailedPreconditionError, match="PyFunc is stateful"):
            tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))


def test_tf_data_calls_replace_options(ids, tmp_path):
    import tensorflow as tf

    shuffled = keras_dataset(ids, label=None, batch_size=10, shuffle=True)
    assert int(shuffled.repeat().cardinality()) == -1
    assert len(shuffled.repeat(2)) == 8
    options = tf.data.Options()
    options.deterministic = False
    unordered = shuffled.with_options(options)
    assert len(unordered) == 4
    assert sorted(epoch(unordered)) == list(range(TOTAL))

    folder = shutil.copytree(ids, tmp_path / "ds")
    cached = keras_dataset(folder, label=None, batch_size=None).cache()
    batches = cached.shuffle(TOTAL, seed=1).batch(8, drop_remainder=True)
    assert len(batches) == 4
    assert batches.element_spec["many"].shape.as_list() == [8, None]
    first = epoch(batches)
    for path in folder.glob("train-*"):
        path.unlink()
    epochs = [first, *(epoch(batches) for _ in range(11))]
    assert {len(set(each)) for each in epochs} == {32}
    assert {n for each in epochs for n in each} == set(range(TOTAL))  # others are left out


def test_where_keeps_matching_records(ids):
    def select(**options):
        return keras_dataset(ids, label=None, **{"batch_size": 4, **options})

    dataset = select(where=lambda row: row["id"] % 3 == 0)
    assert int(dataset.cardinality()) == -2
    assert epoch(dataset) == list(range(0, TOTAL, 3))
    assert epoch(select(where=lambda row: row["id"] > 28, batch_size=None)) == [*range(29, TOTAL)]
    (first, *_) = select(where=lambda row: row["id"] > 9)
    assert first["many"].to_list() == [list(range(n % 4)) for n in range(10, 14)]
    full = select(where=lambda row: row["id"] > 28, remainder="drop")
    assert epoch(full) == [29, 30, 31, 32]


# Content.


def test_images_of_different_sizes_are_not_batched(images):
    import tensorflow as tf

    with pytest.raises(UsageError, match=r"different sizes.*batch_size=None and map"):
        keras_dataset(images("mixed"))
    dataset = keras_dataset(images("mixed"), batch_size=None)
    assert dataset.element_spec[0].shape.as_list() == [None, None, 3]
    found = Counter(image.numpy().tobytes() for image, _ in dataset)
    expected = [row["image"] for row in open_dataset(images("mixed"))]
    assert {image.shape for image in expected} == {(30, 40, 3), (47, 33, 3)}
    assert found == Counter(image.tobytes() for image in expected)
    resized = dataset.map(lambda image, label: (tf.image.resize(image, (20, 30)), label)).batch(7)
    assert len(resized) == -(-len(expected) // 7)
    assert resized.element_spec[0].shape.as_list() == [None, 20, 30, 3]


def test_forms_of_image_labels(images):
    texts, numbers, hot = (
        labels_of(keras_dataset(images("jpeg"), label=form)) for form in ("text", "id", "one_hot")
    )
    manifest = load_manifest(images("jpeg"))
    assert [manifest.labels[n].encode() for n in numbers] == texts
    assert np.argmax(hot, 1).tolist() == numbers
    assert np.sum(hot, 1).tolist() == [1] * len(numbers)
    assert {len(row) for row in hot} == {3}
    counts = Counter(text.decode() for text in texts)
    assert counts == manifest.splits["train"].label_counts
    assert keras_dataset(images("jpeg"), batch_size=None).class_names == ["ant", "bee", "cow"]
    spec = keras_dataset(images("jpeg"), label=None).element_spec
    assert spec.shape.as_list() == [None, 16, 24, 3]
    for form, shape in (("text", []), ("one_hot", [3])):
        single = keras_dataset(images("jpeg"), label=form, batch_size=None)
        assert single.element_spec[1].shape.as_list() == shape


def test_features_selects_inputs(images):
    names = ["image/key", "image/height", "image/encoded"]
    inputs, labels = next(iter(keras_dataset(images("jpeg"), features=names, batch_size=5)))
    assert set(inputs) == set(names)
    assert inputs["image/encoded"].shape == (5, 16, 24, 3)
    assert inputs["image/height"].numpy().tolist() == [[16]] * 5
    assert len(labels) == 5


def labelled(folder: Path, kind: str, values: list, counts: dict, labels=()) -> Path:
    """Writes a dataset of rows with a label column of some values."""
    payloads = [encode_example({"id": n, "y": value}) for n, value in enumerate(values)]
    column = (
        IDS
        + f'feature {{ name: "y" type: {kind} presence {{ min_fraction: 1 }} shape {{ dim {{ size: 1 }} }} }}'
    )
    return make_dataset(
        folder,
        {"train-0.gz": make_shard([payloads])},
        {"train-0.gz": len(values)},
        column,
        label_counts=counts,
        config={"label": "y"},
        labels=list(labels),
    )


@pytest.mark.parametrize(
    ("kind", "values", "listed", "expected"),
    [
        (
            "INT",
            [2, 0, 2],
            [],
            {
                "id": [2, 0, 2],
                "one_hot": [[0, 0, 1], [1, 0, 0], [0, 0, 1]],
                "text": "are numbers: use label='id'",
            },
        ),
        (
            "FLOAT",
            [1.5, -2.0],
            [],
            {"id": [1.5, -2.0], "one_hot": "use label='id'", "text": "use label='id'"},
        ),
        (
            "BYTES",
            [b"no", b"yes"],
            [],
            {"text": [b"no", b"yes"], "id": "without class ids.*use label='text'"},
        ),
        ("BYTES", [b"no", b"yes"], ["yes", "no"], {"id": [1, 0], "one_hot": [[0, 1], [1, 0]]}),
    ],
    ids=["integers", "floats", "texts", "listed texts"],
)
def test_forms_of_row_labels(kind, values, listed, expected, tmp_path):
    counts = {v.decode() if isinstance(v, bytes) else str(v): n for v, n in Counter(values).items()}
    ds = labelled(tmp_path / "ds", kind, values, counts, listed)
    for form, labels in expected.items():
        if isinstance(labels, str):
            with pytest.raises(UsageError, match=labels):
                keras_dataset(ds, label=form)
            continue
        ((inputs, found),) = keras_dataset(ds, label=form)
        gc.collect()  # the dataset keeps the lookup table alive
        assert "y" not in inputs
        assert found.numpy().tolist() == labels
    ((inputs, found),) = keras_dataset(ds, label="y")  # by its name, also if it is not the label
    assert ("y" in inputs, found.numpy().tolist()) == (False, values)
    with pytest.raises(UsageError, match=r"label='z' is unknown: .* or the name of a feature"):
        keras_dataset(ds, label="z")


@pytest.mark.parametrize("error", [KeyError("colour"), StopIteration(), ValueError("a\nb")])
def test_a_failing_predicate_is_shown_with_its_place(error, ids):
    def where(row):
        if row["id"] == 33:
            raise error
        return True

    line = where.__code__.co_firstlineno + 2
    place = re.escape(f"where raised {error!r} in {__file__}, line {line}, for record")
    with pytest.raises(Exception, match=place + r" \d+ of .*train-\d"):
        list(keras_dataset(ids, label=None, where=where))


# Shards by label.


# Class weights.


def test_class_weights_of_rows(tmp_path):
    from shardmill.loaders import class_weights

    integers = labelled(tmp_path / "integers", "INT", [2, 0, 2], {"2": 2, "0": 1, "7": 0})
    assert class_weights(integers) == pytest.approx({2: 0.75, 0: 1.5})
    texts = labelled(tmp_path / "texts", "BYTES", [b"no", b"yes"], {"no": 1, "yes": 1})
    with pytest.raises(UsageError, match="'no' has no class id"):
        class_weights(texts)
