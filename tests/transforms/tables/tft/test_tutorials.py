"""The functions of TFT's census and TFX's taxi tutorials: each cell equals that of tft_beam."""

import math

import pandas as pd
import pytest

from tests.support.readers import current, tf_examples
from tests.support.rows_tools import build_rows

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("transform")]  # TensorFlow starts once

# The function of tensorflow_transform/examples/census_example_common.py. Missing cells are texts.
CENSUS = """
import tensorflow as tf
import tensorflow_transform as tft

NUMBERS = ["age", "capital-gain", "capital-loss", "hours-per-week", "education-num"]
TEXTS = ["workclass", "education", "marital-status", "occupation", "relationship", "race", "sex",
         "native-country"]

def preprocessing_fn(inputs):
    outputs = inputs.copy()
    for key in NUMBERS:
        outputs[key] = tft.scale_to_0_1(inputs[key])
    for key in TEXTS:
        outputs[key] = tft.compute_and_apply_vocabulary(
            tf.strings.strip(inputs[key]), num_oov_buckets=1, vocab_filename=key)
    keys = [">50K", "<=50K"]
    with tf.init_scope():
        initializer = tf.lookup.KeyValueTensorInitializer(
            keys=keys, values=tf.cast(tf.range(len(keys)), tf.int64), key_dtype=tf.string,
            value_dtype=tf.int64)
        table = tf.lookup.StaticHashTable(initializer, default_value=-1)
    label = tf.strings.regex_replace(inputs["label"], r"\\\\.$", "")
    one_hot = tf.one_hot(table.lookup(label), len(keys), on_value=1.0, off_value=0.0)
    outputs["label"] = tf.reshape(one_hot, [-1, len(keys)])
    return outputs
"""
# The function of tfx/examples/chicago_taxi_pipeline/taxi_utils.py; some cells are missing.
TAXI = """
import tensorflow as tf
import tensorflow_transform as tft

def fill(x):
    if not isinstance(x, tf.sparse.SparseTensor):
        return tf.squeeze(x, axis=1)
    default = "" if x.dtype == tf.string else 0
    dense = tf.SparseTensor(x.indices, x.values, [x.dense_shape[0], 1])
    return tf.squeeze(tf.sparse.to_dense(dense, default), axis=1)

def preprocessing_fn(inputs):
    outputs = {"row": inputs["row"]}
    for key in ("trip_miles", "fare", "trip_seconds"):
        number = tf.cast(fill(inputs[key]), tf.float32)
        outputs[key + "_xf"] = tft.scale_to_z_score(number)
    for key in ("payment_type", "company"):
        outputs[key + "_xf"] = tft.compute_and_apply_vocabulary(
            fill(inputs[key]), top_k=1000, num_oov_buckets=10)
    for key in ("pickup_latitude", "pickup_longitude", "dropoff_latitude", "dropoff_longitude"):
        outputs[key + "_xf"] = tft.bucketize(fill(inputs[key]), 10)
    for key in ("trip_start_hour", "trip_start_day", "trip_start_month", "pickup_community_area"):
        outputs[key + "_xf"] = fill(inputs[key])
    fare = fill(inputs["fare"])
    tips = tf.greater(fill(inputs["tips"]), fare * tf.constant(0.2))
    outputs["tips_xf"] = tf.where(
        tf.math.is_nan(fare), tf.zeros_like(fare, tf.int64), tf.cast(tips, tf.int64))
    return outputs
"""
CENSUS_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country label"
)


def read_census(folder) -> pd.DataFrame:
    options = {"names": CENSUS_COLUMNS.split(), "skipinitialspace": True, "keep_default_na": False}
    return pd.read_csv(folder / "adult_test_noheader.csv", **options)[:2_000]


def read_taxi(folder) -> pd.DataFrame:
    return pd.read_csv(folder / "chicago_taxi_5000.csv").dropna(axis=1, how="all")[:2_000]


def transform_directly(frame: pd.DataFrame, source: str, folder) -> list[dict[str, list]]:
    """Return what tft_beam.AnalyzeAndTransformDataset alone makes of the rows."""
    import apache_beam as beam
    import tensorflow as tf
    import tensorflow_transform as tft
    import tensorflow_transform.beam as tft_beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    names = {}
    exec(compile(source, "direct.py", "exec"), names)
    kinds = {"i": tf.int64, "f": tf.float32}
    gaps = frame.isna().any()
    spec = {
        name: (
            tf.io.VarLenFeature if gaps[name] else lambda kind: tf.io.FixedLenFeature([1], kind)
        )(kinds.get(frame[name].dtype.kind, tf.string))
        for name in frame
    }
    rows = [
        {name: [] if pd.isna(cell) else [cell] for name, cell in row.items()}
        for row in frame.to_dict("records")
    ]
    metadata = tft.DatasetMetadata.from_feature_spec(spec)
    with (
        beam.Pipeline(runner=FnApiRunner()) as root,
        tft_beam.Context(temp_dir=f"{folder}/temp"),
    ):
        made = (root | beam.Create(rows), metadata) | tft_beam.AnalyzeAndTransformDataset(
            names["preprocessing_fn"]
        )
        data = made[0] | tft_beam.EncodeTransformedDataset()
        _ = data | beam.io.WriteToTFRecord(f"{folder}/direct")
    return [each for path in folder.glob("direct*") for each in tf_examples(path, "")]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("read", "source"), [(read_census, CENSUS), (read_taxi, TAXI)], ids=["census", "taxi"]
)
def test_each_cell_equals_that_of_tft_beam(read, source, kind, shared_data, tmp_path) -> None:
    frame = read(shared_data / "csv" / "tables")
    frame["row"] = range(len(frame))
    theirs = {row["row"][0]: row for row in transform_directly(frame, source, tmp_path)}
    path, code = tmp_path / f"table.{kind}", tmp_path / "pre.py"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    code.write_text(source)
    outcome, manifest = build_rows(
        input=path, output=tmp_path / "ds", preprocessing=code, splits="train:1"
    )
    assert outcome.status == "published", outcome
    shards = manifest.splits["train"].shards
    ours = [row for shard in shards for row in tf_examples(current(tmp_path / "ds") / shard.file)]
    assert len(ours) == len(theirs) == len(frame) == 2_000
    for mine in ours:
        other = theirs[mine["row"][0]]
        assert mine.keys() == other.keys()
        for name, cell in mine.items():
            floats = cell and isinstance(cell[0], float)
            same = map(
                lambda a, b: math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6), cell, other[name]
            )
            assert len(cell) == len(other[name])
            assert all(same) if floats else cell == other[name], (name, cell, other[name])
