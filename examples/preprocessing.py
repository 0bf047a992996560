"""A TensorFlow Transform preprocessing_fn for the Titanic data; see transform_rows.py."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_transform as tft


def fill_missing(column: tf.SparseTensor, default: float | str) -> tf.Tensor:
    """Returns an optional column as a dense tensor [batch], with a default for missing values."""
    shape = tf.stack([column.dense_shape[0], tf.constant(1, tf.int64)])
    one = tf.SparseTensor(column.indices, column.values, shape)
    return tf.squeeze(tf.sparse.to_dense(one, default_value=default), 1)


def preprocessing_fn(inputs: dict) -> dict[str, tf.Tensor]:
    """Returns the features of records; ``tft`` computes statistics of the training rows only."""
    age = fill_missing(inputs["age"], -1.0)
    return {
        "survived": inputs["survived"],
        "fare_z": tft.scale_to_z_score(tf.math.log1p(fill_missing(inputs["fare"], 0.0))),
        "age_bucket": tft.bucketize(age, 6),
        "age_known": tf.cast(age >= 0, tf.int64),
        "class_z": tft.scale_to_z_score(inputs["pclass"]),
        "family_z": tft.scale_to_z_score(inputs["sibsp"] + inputs["parch"]),
        "sex_id": tft.compute_and_apply_vocabulary(inputs["sex"], vocab_filename="sex"),
        "port_id": tft.compute_and_apply_vocabulary(
            fill_missing(inputs["embarked"], "unknown"), vocab_filename="port", num_oov_buckets=1
        ),
    }
