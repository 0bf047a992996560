"""Normalization from the manifest equals that of an adapted Keras layer."""

import numpy as np
import pytest

from shardmill.loaders import normalization, open_dataset
from shardmill.schemas.errors import UsageError

pytest_plugins = ["tests.support.loader_data"]
pytestmark = pytest.mark.xdist_group("tensorflow")  # its fixtures import Keras


def test_images_are_normalized_as_by_an_adapted_layer(images) -> None:
    import keras

    records = open_dataset(images("raw"))
    pixels = np.stack([each["image"] for each in records]).astype("float32")
    adapted = keras.layers.Normalization(axis=-1)
    adapted.adapt(pixels)
    found = np.asarray(normalization(images("raw"))(pixels))
    assert np.allclose(found, np.asarray(adapted(pixels)), atol=1e-4)
    assert np.allclose(found.mean((0, 1, 2)), 0, atol=1e-4)
    assert np.allclose(found.std((0, 1, 2)), 1, atol=1e-4)


def test_column_is_normalized_by_its_finite_values(table) -> None:
    values = [row["ratio"] for row in open_dataset(table, features=["ratio"])]
    values = np.array([value for value in values if not np.isnan(value)])
    assert 20 < len(values) < 60  # some are missing
    found = np.asarray(normalization(table, feature="ratio")(values))
    assert np.allclose(found, (values - values.mean()) / values.std(), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"feature": "name"}, "no mean of the feature 'name'"),
        ({"feature": None}, "no pixel statistics"),
        ({"split": "test"}, "no split 'test': it has train"),
    ],
)
def test_rejects_missing_statistics(options, words, table) -> None:
    with pytest.raises(UsageError, match=words):
        normalization(table, **options)
