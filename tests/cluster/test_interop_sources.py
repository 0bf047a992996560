"""Data sets of torchvision, TFDS, Hugging Face and Polars: written, read by tf.data, trained on.

`make test-interop` installs them.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

from shardmill.loaders import keras_dataset
from shardmill.schemas.dataset.read_manifest import load_manifest
from tests.support.library_sources import NUMBER, SOURCES


@pytest.mark.parametrize("kind", SOURCES)
def test_each_record_is_that_of_the_source(tmp_path, kind):
    """Pixels and class ids are equal.

    A process writes each: torchvision cannot be imported after TensorFlow.
    """
    import keras
    import tensorflow as tf

    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tests.support.library_sources", kind, tmp_path]
    subprocess.run(command, env=env, check=True)
    wanted = np.load(tmp_path / "wanted.npz")
    spec = {
        "image/encoded": tf.io.FixedLenFeature((), tf.string),
        "image/class/label": tf.io.FixedLenFeature((), tf.int64),
        "image/key": tf.io.FixedLenFeature((), tf.string),
    }
    manifest = load_manifest(str(tmp_path / "ds"))
    found = {}
    for path in (tmp_path / "ds" / manifest.generation / name for name in manifest.files):
        for record in tf.data.TFRecordDataset(str(path), "GZIP"):
            row = tf.io.parse_single_example(record, spec)
            index = int(row["image/key"].numpy().removeprefix(b"record:"))
            image = tf.io.decode_png(row["image/encoded"]).numpy()
            found[index] = image, int(row["image/class/label"])
    assert found.keys() == {*range(NUMBER)}
    for index, (image, label) in found.items():
        np.testing.assert_array_equal(image, wanted["images"][index])
        assert label == wanted["labels"][index]
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Rescaling(1 / 32, offset=-4),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2, "softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    train = keras_dataset(tmp_path / "ds", "train", batch_size=16, shuffle=True)
    losses = model.fit(train, epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    validation = keras_dataset(tmp_path / "ds", "validation", batch_size=16)
    assert model.evaluate(validation, verbose=0)[1] > 0.8
