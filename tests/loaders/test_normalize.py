"""Normalization and class weights equal those of the values, for whole splits, sums and slices."""

import json
import pickle
from collections import Counter

import numpy as np
import pytest

from shardmill.loaders import (
    class_weights,
    keras_dataset,
    normalization,
    open_dataset,
    vocabulary,
)
from shardmill.schemas.dataset.read_manifest import load_manifest
from tests.support.loader_tools import CELLS, ROWS, cells, write_numbered

pytest_plugins = ["tests.support.loader_data"]
pytestmark = pytest.mark.xdist_group("tensorflow")  # its fixtures import Keras


EXPRESSIONS = ["train", "train+validation", "train[10%:60%]", "train[3:40]+validation[-5:]"]


@pytest.mark.sweep
@pytest.mark.parametrize("split", EXPRESSIONS[1::2])
def test_images_are_normalized_as_by_an_adapted_layer(split, images) -> None:
    import jax
    import keras
    import torch

    pixels = np.stack([each["image"] for each in open_dataset(images("raw"), split)])
    adapted = keras.layers.Normalization(axis=-1)
    adapted.adapt(pixels.astype("float32"))
    expected = np.asarray(adapted(pixels.astype("float32")))
    found = np.asarray(normalization(images("raw"), split)(pixels))
    assert np.allclose(found, expected, atol=1e-4)
    assert np.allclose(found.mean((0, 1, 2)), 0, atol=1e-4)
    assert np.allclose(found.std((0, 1, 2)), 1, atol=1e-4)
    function = normalization(images("raw"), split, framework="jax")
    for each in (function(pixels), jax.jit(pickle.loads(pickle.dumps(function)))(pixels)):
        assert (each.dtype, np.allclose(each, expected, atol=1e-4)) == ("float32", True)
    module = normalization(images("raw"), split, framework="torch")
    tensor = torch.nn.Sequential(module)(torch.from_numpy(pixels))
    assert (tensor.dtype, np.allclose(tensor, expected, atol=1e-4)) == (torch.float32, True)
    assert set(module.state_dict()) == {"mean", "std"}


@pytest.mark.parametrize("framework", ["keras", "torch", "jax"])
@pytest.mark.parametrize("split", EXPRESSIONS)
def test_column_is_normalized_by_its_finite_values(split, framework, table) -> None:
    values = [row["ratio"] for row in open_dataset(table, split, features=["ratio"])]
    missing = np.isnan(values).sum()
    values = np.array(values, np.float32)[~np.isnan(values)]
    assert missing > 8
    layer = normalization(table, split, feature="ratio", framework=framework)
    if framework == "torch":
        import torch

        values = torch.from_numpy(values)
    found, values = np.asarray(layer(values)), np.asarray(values)
    assert np.allclose(found, (values - values.mean()) / values.std(), atol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["jpeg", "bylabel", "rows"])
@pytest.mark.parametrize("split", ["train[10%:60%]+validation[-50%:]", "train+validation"])
def test_class_weights_of_sums_and_slices(split, kind, dataset) -> None:
    fill = {"count": -1} if kind == "rows" else None
    name = "kind" if kind == "rows" else "image/class/text"
    counts = Counter(row[name].decode() for row in open_dataset(dataset(kind), split, fill=fill))
    labels = load_manifest(dataset(kind)).labels
    assert len(labels) == len(counts) >= 2
    n = counts.total()
    expected = {labels.index(key): n / (len(counts) * count) for key, count in counts.items()}
    assert class_weights(dataset(kind), split) == pytest.approx(expected)


def cells_of(column: str) -> list[str]:
    """Return the values in all rows of the table, as its file has them."""
    place = CELLS.index(column)
    parts = [str(cells(number)[place]).split("|") for number in range(ROWS)]
    return [value for values in parts for value in values if value]


@pytest.mark.parametrize("column", ["name", "tags", "sizes", "count", "number"])
def test_vocabulary_has_the_cells_of_the_table(column, table) -> None:
    counts = Counter(cells_of(column))
    if column in ("sizes", "count", "number"):
        counts = Counter({int(value): count for value, count in counts.items()})
    ordered = sorted(counts, key=lambda value: (-counts[value], value))
    both = "train+validation"
    assert vocabulary(table, column, both) == ordered
    assert vocabulary(table, column, both, max_size=2) == ordered[:2]
    frequent = [value for value in ordered if counts[value] >= 5]
    assert vocabulary(table, column, both, min_count=5) == frequent
    parts = [vocabulary(table, column, split) for split in ("train", "validation")]
    assert {*parts[0], *parts[1]} == {*ordered}


def test_vocabulary_is_one_of_keras(table) -> None:
    import keras

    lookup = keras.layers.StringLookup(vocabulary=vocabulary(table, "kind"), num_oov_indices=0)
    inputs, _ = next(iter(keras_dataset(table, features=["kind", "price"], label="price")))
    texts = [text.decode() for text in np.ravel(inputs["kind"])]
    assert {*texts} == {"odd", "plain"}  # of which the schema makes empty cells
    assert np.ravel(lookup(inputs["kind"])).tolist() == [int(text == "plain") for text in texts]


def test_vocabulary_of_images(images) -> None:
    counts = load_manifest(images("jpeg")).splits["train"].label_counts
    ordered = sorted(counts, key=lambda label: (-counts[label], label))
    assert vocabulary(images("jpeg"), "image/class/text") == ordered


def test_equal_values_become_zero(tmp_path) -> None:
    ds = write_numbered(tmp_path / "ds", [9], 3, example=lambda _: {"id": 7})
    body = json.loads((ds / "manifest.json").read_text())
    column = {"count": 9, "missing": 0, "min": 7, "max": 7, "mean": 7.0, "std": 0.0}
    body["splits"]["train"]["statistics"] = {"features": {"id": column}}
    (ds / "manifest.json").write_text(json.dumps(body))
    for split in ("train", "train[:5]"):
        layer = normalization(ds, split, feature="id", framework="jax")
        assert layer(np.full(3, 7)).tolist() == [0, 0, 0]
