"""Normalization from the manifest equals that of an adapted Keras layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardmill.loaders import normalization, open_dataset
from shardmill.schemas.errors import UsageError
from tests.conftest import build_dataset, make_photos
from tests.support.rows_tools import build_rows

pytestmark = pytest.mark.xdist_group("tensorflow")  # its fixtures import Keras


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("normalize")
    make_photos(folder / "in", {"cat": 6, "dog": 5})
    build_dataset(
        input=folder / "in", output=folder / "ds", image_size=20, encoding="png", splits="train:1"
    )
    return folder / "ds"


def test_images_are_normalized_as_by_an_adapted_layer(images) -> None:
    import keras

    pixels = np.stack([each["image/encoded"] for each in open_dataset(images)]).astype("float32")
    adapted = keras.layers.Normalization(axis=-1)
    adapted.adapt(pixels)
    found = np.asarray(normalization(images)(pixels))
    assert np.allclose(found, np.asarray(adapted(pixels)), atol=1e-4)
    assert np.allclose(found.mean((0, 1, 2)), 0, atol=1e-4)
    assert np.allclose(found.std((0, 1, 2)), 1, atol=1e-4)


def test_column_of_rows(tmp_path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("x,word\n" + "".join(f"{n * n / 7},w{n}\n" for n in range(50)) + ",late\n")
    build_rows(input=table, output=tmp_path / "ds", splits="train:1")
    values = np.array([n * n / 7 for n in range(50)], "float32")
    found = np.asarray(normalization(tmp_path / "ds", feature="x")(values))
    assert np.allclose(found, (values - values.mean()) / values.std(), atol=1e-5)
    for feature, words in (
        ("word", "no mean of the feature 'word'"),
        (None, "no pixel statistics"),
    ):
        with pytest.raises(UsageError, match=words):
            normalization(tmp_path / "ds", feature=feature)


def test_rejects_unknown_split(images) -> None:
    with pytest.raises(UsageError, match="no split 'test': it has train"):
        normalization(images, "test")
