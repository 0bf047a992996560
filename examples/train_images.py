"""Train a Keras CNN on a dataset of images with augmentation.

usage:
  python examples/digits.py digits
  shardmill images --input=digits/images --output=ds --image_size=8 --channels=1 --encoding=png \
    --splits=train:0.8,validation:0.2
  python examples/train_images.py ds
"""

from __future__ import annotations

import sys

import keras

from shardmill.loaders import (
    class_weights,
    keras_dataset,
    open_dataset,
    steps_per_epoch,
)

BATCH = 32
EPOCHS = 6


def make_model(classes: int) -> keras.Model:
    """Returns a small CNN for pixels from 0 to 255."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.RandomRotation(0.03),
            layers.RandomBrightness(0.1),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(classes, "softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def main(folder: str) -> None:
    """Trains the model and prints its accuracy."""
    keras.utils.set_random_seed(0)
    examples = open_dataset(folder, "validation")
    model = make_model(len(examples.labels))
    weights = class_weights(folder)
    validation = keras_dataset(folder, "validation", batch_size=BATCH)

    # The length of the dataset comes from the manifest, so Keras needs no steps_per_epoch.
    train = keras_dataset(folder, "train", batch_size=BATCH, shuffle=True)
    model.fit(
        train, validation_data=validation, epochs=EPOCHS // 2, class_weight=weights, verbose=0
    )

    # A dataset that repeats forever has no length, so Keras needs the number of steps.
    steps = steps_per_epoch(folder, "train", batch_size=BATCH)
    validation_steps = steps_per_epoch(folder, "validation", batch_size=BATCH)
    history = model.fit(
        train.repeat(),
        steps_per_epoch=steps,
        validation_data=validation,
        validation_steps=validation_steps,
        initial_epoch=EPOCHS // 2,
        epochs=EPOCHS,
        class_weight=weights,
        verbose=0,
    )
    counts = examples.manifest.splits["validation"].label_counts
    print(f"steps     {steps} an epoch, {validation_steps} of validation")
    print(f"fitted    {int(model.optimizer.iterations)} steps in {EPOCHS} epochs")
    print(f"baseline  {max(counts.values()) / len(examples):.1%} of the validation images")
    print(f"model     {history.history['val_accuracy'][-1]:.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
