"""Keras's random layers as docs/training.md shows them, with each backend of Keras."""

import os
import subprocess
import sys

import pytest

from tests.conftest import SOAK, build_dataset, make_photos

CODE = """
import sys
import keras
import numpy as np
from shardmill import keras_dataset
layers = keras.layers
keras.mixed_precision.set_global_policy("mixed_float16")
augment = layers.Pipeline([
    layers.RandomFlip("horizontal", seed=1, dtype="float32"),
    layers.RandomRotation(0.1, seed=2, dtype="float32"),
])
train = keras_dataset(sys.argv[1], batch_size=8, shuffle=True)
images, labels = next(iter(train))
images = np.asarray(images)
changed = np.asarray(keras.ops.convert_to_numpy(augment(images, training=True)))
assert changed.dtype == np.float32 and changed.shape == images.shape
assert not np.array_equal(changed, images)
kept = keras.ops.convert_to_numpy(augment(images, training=False))
np.testing.assert_array_equal(kept, images)
masks = images[..., :1]
flip = layers.Pipeline([layers.RandomFlip("horizontal", seed=1, dtype="float32")])
both = flip({"images": images, "segmentation_masks": masks}, training=True)
pixels, mask = (np.asarray(keras.ops.convert_to_numpy(both[name])) for name in both)
np.testing.assert_array_equal(pixels[..., :1], mask)
assert not np.array_equal(mask, masks)
model = keras.Sequential([
    keras.Input(images.shape[1:]), augment, layers.Rescaling(1 / 255), layers.Flatten(),
    layers.Dense(2, "softmax", dtype="float32"),
])
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(train, verbose=0)
before = model.predict(images, verbose=0)
model.save(sys.argv[2])
again = keras.models.load_model(sys.argv[2])
np.testing.assert_allclose(again.predict(images, verbose=0), before, atol=1e-5)
print(keras.backend.backend(), "fitted")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"] if SOAK else ["tensorflow"])
def test_random_layers_train_and_are_saved(backend, tmp_path):
    photos = make_photos(tmp_path / "in", {"ant": 8, "bee": 8}, size=(32, 32))
    build_dataset(input=photos, output=tmp_path / "ds", image_size="32", splits="train:1")
    command = [sys.executable, "-c", CODE, str(tmp_path / "ds"), str(tmp_path / "model.keras")]
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{backend} fitted" in done.stdout
