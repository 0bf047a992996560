"""Train a tiny U-Net that says the class of each pixel.

usage:
  shardmill demo demo
  shardmill images --input=demo/shapes/images --masks=demo/shapes/masks \
    --output=ds --image_size=64 --encoding=png --splits=train:0.8,validation:0.2
  python examples/train_masks.py ds
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

from shardmill.loaders import keras_dataset, open_dataset

BATCH, EPOCHS = 16, 6


def make_model(classes: int) -> keras.Model:
    """Returns a U-Net of two levels."""
    layers = keras.layers
    inputs = keras.Input((None, None, 3))
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    skipped = []
    for filters in (16, 32):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(48, 3, padding="same", activation="relu")(x)
    for filters, skip in zip((32, 16), reversed(skipped), strict=True):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, layers.Conv2D(classes, 1, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy")
    return model


def mean_overlap(true: Any, found: Any, classes: int) -> float:
    """Returns the mean over the classes of intersection over union."""
    overlaps = [
        np.sum((true == each) & (found == each)) / max(1, np.sum((true == each) | (found == each)))
        for each in range(classes)
    ]
    return float(np.mean(overlaps))


def main(folder: str) -> None:
    """Trains the model and prints the overlap with the masks, and that of the largest class."""
    keras.utils.set_random_seed(0)
    examples = list(open_dataset(folder, "validation", features=["image", "mask"]))
    images, masks = (np.stack([each[name] for each in examples]) for name in ("image", "mask"))
    classes = int(masks.max()) + 1
    flip = keras.layers.RandomFlip(seed=0)

    def augment(images: Any, masks: Any) -> tuple[Any, Any]:
        both = flip({"images": images, "segmentation_masks": masks})
        return both["images"], both["segmentation_masks"]

    train = keras_dataset(folder, label="mask", batch_size=BATCH, shuffle=True).map(augment)
    model = make_model(classes)
    model.fit(train, epochs=EPOCHS, verbose=0)
    found = np.argmax(model.predict(images, verbose=0), -1)[..., None]
    largest = np.full_like(masks, np.bincount(masks.ravel()).argmax())
    print(f"baseline  {mean_overlap(masks, largest, classes):.1%} overlap")
    print(f"model     {mean_overlap(masks, found, classes):.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
