"""Train a Keras model on a dataset of rows, with all preprocessing in Keras layers.

usage:
  shardmill demo demo
  shardmill rows --input=demo/titanic.csv --output=ds --label=survived --null_values='?' \
    --splits=train:0.8,validation:0.2
  python examples/train_rows.py ds

The feature spec comes from the dataset's schema.pbtxt, the steps per epoch from its manifest.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import shardmill
from shardmill.loaders import feature_spec, open_dataset, steps_per_epoch

LABEL = "survived"
NUMBERS = ("age", "fare", "parch", "pclass", "sibsp")
TEXTS = ("embarked", "sex")
BATCH = 32
EPOCHS = 12
# Values that replace missing ones.
FILL = {"age": float("nan"), "fare": float("nan"), "embarked": ""}


def batches(folder: Path, split: str, epochs: int | None) -> tf.data.Dataset:
    """Returns batches of a split: a dict of features, and labels."""
    return tf.data.experimental.make_batched_features_dataset(
        shardmill.files(folder, split),
        BATCH,
        feature_spec(folder, features=[LABEL, *NUMBERS, *TEXTS], fill=FILL),
        reader=lambda files: tf.data.TFRecordDataset(files, compression_type="GZIP"),
        label_key=LABEL,
        num_epochs=epochs,
        shuffle=split == "train",
        shuffle_seed=0,
    )


def make_model(rows: tf.data.Dataset) -> keras.Model:
    """Returns a model of raw features; its vocabularies and statistics are computed from rows."""
    inputs: dict[str, Any] = {}
    prepared = []
    for name in NUMBERS:
        values = tf.concat([tf.cast(features[name], tf.float32) for features, _ in rows], 0)
        normalize = keras.layers.Normalization(axis=None)
        normalize.adapt(values[~tf.math.is_nan(values)])
        inputs[name] = keras.Input((1,), name=name, dtype="float32")
        missing = keras.ops.isnan(inputs[name])
        prepared.append(keras.ops.where(missing, 0.0, normalize(inputs[name])))
        prepared.append(keras.ops.cast(missing, "float32"))
    for name in TEXTS:
        lookup = keras.layers.StringLookup(output_mode="one_hot")
        lookup.adapt(rows.map(lambda features, _, name=name: features[name]))
        inputs[name] = keras.Input((1,), name=name, dtype="string")
        prepared.append(lookup(inputs[name]))
    hidden = keras.layers.Dense(16, "relu")(keras.layers.concatenate(prepared))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    return model


def baseline(folder: Path) -> float:
    """Returns the accuracy of predicting the most frequent label of the training split."""
    splits = open_dataset(folder, features=[LABEL]).manifest.splits
    counts, validation = splits["train"].label_counts, splits["validation"]
    return validation.label_counts[max(counts, key=lambda label: counts[label])] / (
        validation.num_examples
    )


def main(folder: Path) -> None:
    """Trains the model and prints its accuracy."""
    keras.utils.set_random_seed(0)
    steps = steps_per_epoch(folder, "train", batch_size=BATCH)
    validation_steps = steps_per_epoch(folder, "validation", batch_size=BATCH)
    # tf.data fails if the number of batches differs from the manifest.
    counted = [
        batches(folder, split, 1).apply(tf.data.experimental.assert_cardinality(number))
        for split, number in (("train", steps), ("validation", validation_steps))
    ]
    model = make_model(counted[0])
    history = model.fit(
        batches(folder, "train", None),
        steps_per_epoch=steps,
        epochs=EPOCHS,
        validation_data=counted[1],
        validation_steps=validation_steps,
        verbose=0,
    )
    print(f"steps     {steps} an epoch, {validation_steps} of validation")
    print(f"baseline  {baseline(folder):.1%} of the validation rows")
    print(f"model     {history.history['val_accuracy'][-1]:.1%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
