"""Train Keras models on the columns of a listing: several labels of an image, and a number.

usage:
  python examples/digits.py digits
  shardmill images --input=digits/listing.csv --output=ds --label_from=listing \
    --label_separator='|' --image_size=8 --channels=1 --encoding=png \
    --splits=train:0.8,validation:0.2
  python examples/train_listing.py ds
"""

from __future__ import annotations

import sys

import keras
import numpy as np

from shardmill.loaders import keras_dataset

BATCH = 32
EPOCHS = 8


def fit(folder: str, label: str, activation: str, **options: str) -> tuple[np.ndarray, np.ndarray]:
    """Trains a small CNN; returns the labels of the validation split and what it predicts."""
    train = keras_dataset(folder, "train", batch_size=BATCH, shuffle=True, label=label)
    validation = keras_dataset(folder, "validation", batch_size=BATCH, label=label)
    labels = np.concatenate([labels for _, labels in validation])
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(labels[0].size, activation),
        ]
    )
    model.compile(keras.optimizers.Adam(0.003), **options)
    model.fit(train, epochs=EPOCHS, verbose=0)
    return labels, model.predict(validation, verbose=0).reshape(labels.shape)


def main(folder: str) -> None:
    """Trains both models and prints their errors, and those of the best constants."""
    keras.utils.set_random_seed(0)
    tags, found = fit(folder, "one_hot", "sigmoid", loss="binary_crossentropy")
    constant = np.maximum(tags.mean(0), 1 - tags.mean(0)).mean()
    print(f"labels    {((found > 0.5) == tags).mean():.1%} right, {constant:.1%} by the shares")
    ink, found = fit(folder, "image/ink", "linear", loss="mean_squared_error")
    spread = np.abs(ink - ink.mean()).mean()
    print(f"ink       off by {np.abs(found - ink).mean():.2f}, by {spread:.2f} of the mean")


if __name__ == "__main__":
    main(sys.argv[1])
