"""Train on raw arrays with a custom training loop and custom parsing.

usage:
  python examples/digits.py digits
  shardmill arrays --input=digits/arrays --output=ds --splits=train:0.8,validation:0.2
  python examples/train_arrays.py ds

The bytes of the feature x are float32 arrays of shape 8,8, according to schema.pbtxt.
``keras_dataset`` decodes them; this example shows how to do it yourself.
"""

from __future__ import annotations

import sys

import keras
import tensorflow as tf

import shardmill
from shardmill.loaders import feature_spec, open_dataset, steps_per_epoch

BATCH = 32
EPOCHS = 8
SHAPE = (8, 8)


def batches(folder: str, split: str) -> tf.data.Dataset:
    """Returns batches of a split: float32 arrays [batch, 8, 8] and int64 labels [batch]."""
    spec = feature_spec(folder)

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_example(records, spec)
        values = tf.io.decode_raw(parsed["x"][:, 0], tf.float32)
        return tf.reshape(values, (-1, *SHAPE)), parsed["y"][:, 0]

    records = tf.data.TFRecordDataset(shardmill.files(folder, split), compression_type="GZIP")
    if split == "train":
        records = records.shuffle(10_000, seed=0)
    # tf.data fails if the number of batches differs from the manifest.
    steps = tf.data.experimental.assert_cardinality(steps_per_epoch(folder, split, BATCH))
    return records.batch(BATCH).map(parse).apply(steps).prefetch(tf.data.AUTOTUNE)


def main(folder: str) -> None:
    """Trains the model and prints its accuracy."""
    keras.utils.set_random_seed(0)
    train, validation = batches(folder, "train"), batches(folder, "validation")
    layers = keras.layers
    model = keras.Sequential(
        [layers.Rescaling(1 / 16), layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(10)]
    )
    optimizer = keras.optimizers.Adam(0.003)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    model.build((None, *SHAPE))
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(arrays: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(arrays, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(EPOCHS):
        for arrays, labels in train:
            step(arrays, labels)
    for arrays, labels in validation:
        accuracy.update_state(labels, model(arrays))

    split = open_dataset(folder, "validation").manifest.splits["validation"]
    print(f"steps     {len(train)} an epoch, {len(validation)} of validation")
    print(f"fitted    {int(optimizer.iterations)} steps in {EPOCHS} epochs")
    print(f"baseline  {max(split.label_counts.values()) / split.num_examples:.1%} of the digits")
    print(f"model     {float(accuracy.result()):.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
