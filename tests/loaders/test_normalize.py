"""Normalization and class weights equal those of the values, for whole splits, sums and slices."""

import json
import pickle
from collections import Counter

import numpy as np
import pytest

from shardmill.loaders import class_weights, normalization, open_dataset
from shardmill.schemas.dataset.read_manifest import load_manifest
from shardmill.schemas.errors import UsageError
from tests.support.loader_tools import write_numbered

pytest_plugins = ["tests.support.loader_data"]
pytestmark = pytest.mark.xdist_group("tensorflow")  # its fixtures import Keras


EXPRESSIONS = ["train", "train+validation", "train[10%:60%]", "train[3:40]+validation[-5:]"]


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


def test_equal_values_become_zero(tmp_path) -> None:
    ds = write_numbered(tmp_path / "ds", [9], 3, example=lambda _: {"id": 7})
    body = json.loads((ds / "manifest.json").read_text())
    column = {"count": 9, "missing": 0, "min": 7, "max": 7, "mean": 7.0, "std": 0.0}
    body["splits"]["train"]["statistics"] = {"features": {"id": column}}
    (ds / "manifest.json").write_text(json.dumps(body))
    for split in ("train", "train[:5]"):
        layer = normalization(ds, split, feature="id", framework="jax")
        assert layer(np.full(3, 7)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"feature": "name"}, "no mean of the feature 'name'"),
        ({"feature": None}, "no pixel statistics"),
        ({"feature": None, "split": "train[:5]"}, "no pixel statistics"),
        ({"split": "test"}, "no split 'test': it has train"),
        ({"framework": "mxnet"}, "framework='mxnet' is unknown: use keras, torch or jax"),
    ],
)
def test_rejects_missing_statistics(options, words, table) -> None:
    with pytest.raises(UsageError, match=words):
        normalization(table, **options)
    with pytest.raises(UsageError, match="has slices: give the dataset's folder"):
        normalization(load_manifest(table), "train[:5]", "ratio", framework="jax")
