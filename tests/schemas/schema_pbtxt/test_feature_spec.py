"""Feature specs from schema.pbtxt, compared with those of TensorFlow Transform."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shardmill
from shardmill.loaders import feature_spec, open_dataset
from shardmill.schemas.errors import FormatError, UsageError
from shardmill.schemas.schema_pbtxt.feature_spec import parse_feature_specs
from shardmill.schemas.schema_pbtxt.schema_text import array_tags
from tests.support.loader_tools import write_dataset

pytest_plugins = ["tests.support.loader_data"]
pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("transform")]  # it starts once


def tft_feature_spec(text: str) -> dict:
    """Return the feature spec that TensorFlow Transform makes of a schema."""
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tensorflow_transform.tf_metadata import schema_utils

    schema = text_format.Parse(text, schema_pb2.Schema())
    return schema_utils.schema_as_feature_spec(schema).feature_spec


@pytest.mark.parametrize("kind", ["jpeg", "raw", "rows"])
def test_feature_spec_equals_that_of_transform(kind, dataset):
    wanted = tft_feature_spec((dataset(kind) / "current/schema.pbtxt").read_text())
    assert feature_spec(dataset(kind)) == wanted
    assert len(wanted) >= 7
    if kind == "rows":
        assert {type(spec).__name__ for spec in wanted.values()} == {
            "FixedLenFeature",
            "VarLenFeature",
        }


MANY = """
feature { name: "matrix" type: FLOAT presence { min_fraction: 1 } shape { dim { size: 2 } dim { size: 3 } } }
feature { name: "scalar" type: INT presence { min_fraction: 1 } shape { } }
feature { name: "words" type: BYTES }
feature { name: "some" type: INT value_count { min: 1 max: 4 } }
feature { name: "old" type: INT deprecated: true }
feature { name: "plan" type: INT lifecycle_stage: PLANNED }
feature { name: "beta" type: INT lifecycle_stage: BETA }
feature { name: "checked" type: INT lifecycle_stage: VALIDATION_DERIVED }
"""


def test_shapes_and_lifecycle_stages_are_those_of_transform(tmp_path):
    import tensorflow as tf
    from google.protobuf import text_format
    from tensorflow_transform.tf_metadata import schema_utils

    outputs = {
        "z": tf.io.FixedLenFeature([1], tf.float32),
        "one_hot": tf.io.FixedLenFeature([3], tf.float32),
        "flat": tf.io.FixedLenFeature([], tf.int64),
        "words": tf.io.VarLenFeature(tf.string),
        "ids": tf.io.VarLenFeature(tf.int64),
        "sparse": tf.io.SparseFeature(
            ["at", "of"], "of it", tf.float32, [7, 2], already_sorted=True
        ),
        "ragged": tf.io.RaggedFeature(
            tf.string, "tokens", [tf.io.RaggedFeature.UniformRowLength(3)], tf.int64
        ),
    }
    transformed = text_format.MessageToString(schema_utils.schema_from_feature_spec(outputs))
    live = {"matrix", "scalar", "words", "some", "beta"}
    for text, names in ((MANY, live), (transformed, outputs)):
        wanted = tft_feature_spec(text)
        assert set(wanted) == set(names)
        assert feature_spec(write_dataset(tmp_path / "ds", [[]], text)) == wanted
    assert wanted == outputs


def test_tensorflow_parses_records_with_the_spec(table):
    import tensorflow as tf

    files = sorted(map(str, table.glob("current/train-*")))
    fill = {"count": -7, "ratio": 0.5}
    spec = feature_spec(table, fill=fill)
    assert isinstance(spec["count"], tf.io.FixedLenFeature)
    assert isinstance(spec["name"], tf.io.VarLenFeature)
    batches = tf.data.TFRecordDataset(files, "GZIP").batch(200)
    (parsed,) = [tf.io.parse_example(batch, spec) for batch in batches]
    records = list(open_dataset(table, fill=fill))
    for name in ("count", "ratio", "number", "price", "kind"):
        assert parsed[name].numpy().ravel().tolist() == [row[name] for row in records]
    tags = tf.sparse.to_dense(parsed["tags"]).numpy()
    assert [[tag for tag in row if tag] for row in tags] == [
        row["tags"].tolist() for row in records
    ]
    assert list(feature_spec(table, features=["price", "kind"])) == ["price", "kind"]
    single = feature_spec(table, fill=fill, scalars=True)
    flat = tf.io.parse_example(
        tf.data.TFRecordDataset(files, "GZIP").batch(200).get_single_element(), single
    )
    for name in ("count", "ratio", "number", "price", "kind"):
        assert flat[name].numpy().tolist() == parsed[name].numpy().ravel().tolist()
    assert {name for name in spec if spec[name] == single[name]} == {"name", "sizes", "tags"}


def test_scalars_are_what_tutorials_decode(images):
    """``tf.io.decode_jpeg`` takes a scalar, which parsing with ``[1]`` does not give."""
    import tensorflow as tf

    spec = shardmill.feature_spec(images("jpeg"), scalars=True)
    record = next(
        iter(
            tf.data.TFRecordDataset(
                sorted(map(str, images("jpeg").glob("current/train-*"))), "GZIP"
            )
        )
    )
    example = tf.io.parse_single_example(record, spec)
    assert tf.io.decode_jpeg(example["image/encoded"]).shape == (16, 24, 3)


def test_optional_integers_need_a_fill_value(table):
    with pytest.raises(UsageError, match=r"'count' may be missing.*fill=\{'count': -1\}"):
        open_dataset(table)
    open_dataset(table, features=["number", "ratio"])
    assert open_dataset(table, features=["count"], fill={"count": -(1 << 63)})


# Tags.

BYTES = 'feature {{ name: "x" type: BYTES presence {{ min_fraction: 1 }} shape {{ dim {{ size: 1 }} }} annotation {{ {} }} }}'


def tagged(*tags: str):
    """Return the feature of a schema with these tags."""
    (spec,) = parse_feature_specs(BYTES.format(" ".join(f'tag: "{tag}"' for tag in tags)), "s")
    return spec


@given(
    st.sampled_from(
        ["uint8", "int8", "uint16", "int32", "uint64", "float16", "float64", "bool", "complex64"]
    ),
    st.none() | st.lists(st.integers(0, 1 << 40), max_size=5),
)
def test_array_tags_round_trip(dtype, shape):
    spec = tagged(*array_tags(np.dtype(dtype), shape))
    assert (spec.encoding, spec.dtype) == ("raw", np.dtype(dtype).newbyteorder("<"))
    assert spec.shape == (None if shape is None else tuple(shape))
    spec = tagged(*array_tags(np.dtype("uint8"), [2, 3, 4], "png", 4))
    assert (spec.encoding, spec.shape, spec.channels) == ("png", (2, 3, 4), 4)


@given(st.text(st.characters(codec="ascii", exclude_characters='"\\\n\r'), max_size=12))
@example("(2,3)f4")
@example("f4,i4")
@example("datetime64[s]")
@example("O")
@example("{")
@example("")
@example(",")
@example("f4,(")
@example("float128")
def test_rejects_invalid_dtypes(text):
    try:
        spec = tagged("encoding=raw", f"dtype={text}", "shape=2")
    except FormatError as error:
        if "'x'" not in str(error):
            raise
    else:
        assert spec.dtype is not None
        assert spec.dtype.kind in "biufc"
        assert spec.dtype.shape == ()


@pytest.mark.parametrize("shape", ["-1", "2,", ",2", "2x3", "2, 3", "1e3", "٣", "9" * 19])
def test_rejects_invalid_shapes_and_raw_values_without_a_dtype(shape):
    with pytest.raises(FormatError, match="sizes separated by commas"):
        tagged("encoding=raw", "dtype=uint8", f"shape={shape}")
    with pytest.raises(FormatError, match="'x' holds raw values without a dtype"):
        tagged("encoding=raw", "shape=3")


@pytest.mark.parametrize(
    "tags", [("encoding=latin-1",), ("dtype=text", "shape=long"), ("shape=round",), ("default=a",)]
)
def test_tags_of_other_programs_are_ignored(tags):
    spec = tagged(*tags)
    assert (spec.encoding, spec.dtype, spec.shape, spec.channels) == ("", None, None, 0)


def test_a_shape_with_an_unknown_dimension_is_not_fixed():
    text = 'feature { name: "x" type: INT presence { min_fraction: 1 } shape { dim {} } }'
    assert parse_feature_specs(text, "s")[0].fixed is None
