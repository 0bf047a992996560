"""Train on transformed rows and export a model that serves raw rows.

usage:
  shardmill demo demo
  shardmill rows --input=demo/titanic.csv --output=raw --label=survived --null_values='?'
  shardmill rows --input=demo/titanic.csv --output=ds --label=survived --null_values='?' \
    --preprocessing=examples/preprocessing.py
  python examples/transform_rows.py ds raw model

``ds`` has the rows as transformed by preprocessing.py, and ``current/transform_fn/``, the transform
with the statistics of the training rows. The exported model applies it to raw rows. ``raw`` has the
same rows untransformed and in the same order, so each served record is compared with ``ds``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import tensorflow as tf
import tensorflow_transform as tft

import shardmill
from shardmill.loaders import steps_per_epoch

LABEL = "survived"
CATEGORIES = ("age_bucket", "port_id", "sex_id")
MOST_CATEGORIES = 8
BATCH = 32
EPOCHS = 8


def records(folder: Path, split: str) -> tf.data.Dataset:
    """Returns the serialized records of a split in file order."""
    return tf.data.TFRecordDataset(shardmill.files(folder, split), compression_type="GZIP")


def make_model(transform: tft.TFTransformOutput) -> keras.Model:
    """Returns a model of transformed features."""
    inputs, prepared = {}, []
    for name, feature in transform.transformed_feature_spec().items():
        if name == LABEL:
            continue
        inputs[name] = keras.Input(feature.shape, name=name, dtype=feature.dtype.name)
        if name in CATEGORIES:
            flat = keras.ops.reshape(inputs[name], (-1,))
            prepared.append(keras.ops.one_hot(flat, MOST_CATEGORIES))
        else:
            column = keras.ops.reshape(inputs[name], (-1, 1))
            prepared.append(keras.ops.cast(column, "float32"))
    hidden = keras.layers.Dense(16, "relu")(keras.layers.concatenate(prepared))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    return model


def train(folder: Path, transform: tft.TFTransformOutput) -> keras.Model:
    """Trains a model on the transformed features."""
    spec = transform.transformed_feature_spec()

    def parsed(batch: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        features = tf.io.parse_example(batch, spec)
        return features, features.pop(LABEL)

    rows = records(folder, "train").shuffle(10_000, seed=0).repeat().batch(BATCH).map(parsed)
    model = make_model(transform)
    steps = steps_per_epoch(folder, "train", batch_size=BATCH)
    model.fit(rows, steps_per_epoch=steps, epochs=EPOCHS, verbose=0)
    check = records(folder, "validation").batch(BATCH).map(parsed)
    print(f"accuracy  {model.evaluate(check, verbose=0)[1]:.1%} of the validation rows")
    return model


class ServingModule(tf.Module):
    """Transform and model together: from serialized raw tf.train.Examples to predictions."""

    def __init__(self, model: keras.Model, transform: tft.TFTransformOutput) -> None:
        super().__init__()
        self.model = model
        self.transform = transform.transform_features_layer()
        spec = transform.raw_feature_spec()
        spec.pop(LABEL)  # unknown in serving
        self.parse = lambda examples: tf.io.parse_example(examples, spec)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def features(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the transformed features of raw rows."""
        return self.transform(self.parse(examples))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def predict(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the predictions for raw rows."""
        return {"prediction": self.model(self.features(examples))[:, 0]}


def compare(served: tf.Module, spec: dict, raw: Path, folder: Path) -> int:
    """Checks that served raw rows have the features of training; returns the number of rows."""
    count = 0
    for split in ("train", "validation"):
        pairs = tf.data.Dataset.zip((records(raw, split), records(folder, split)))
        for before, after in pairs.batch(256):
            expected = tf.io.parse_example(after, spec)
            expected.pop(LABEL)
            features = served.features(before)
            assert features.keys() == expected.keys()
            for name, values in expected.items():
                tf.debugging.assert_equal(features[name], values, message=name)
            count += len(before)
    return count


def main(folder: Path, raw: Path, export: Path) -> None:
    """Trains and exports the model, and compares served features with those of training."""
    keras.utils.set_random_seed(0)
    transform = tft.TFTransformOutput(str(folder / "current" / "transform_fn"))
    module = ServingModule(train(folder, transform), transform)
    signatures = {"serving_default": module.predict, "features": module.features}
    tf.saved_model.save(module, str(export), signatures=signatures)
    served = tf.saved_model.load(str(export))
    count = compare(served, transform.transformed_feature_spec(), raw, folder)
    print(f"served    {count:,} raw rows: each has the features that training saw")
    first = next(iter(records(raw, "validation").batch(1)))
    print(f"predicted {float(served.predict(first)['prediction'][0]):.3f} for the first of them")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
