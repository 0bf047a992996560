"""Columns and their schema.pbtxt, which TensorFlow Transform reads too."""

import contextlib

import numpy as np
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.columns import (
    INT64_MAX,
    INT64_MIN,
    Column,
    format_schema,
    parse_schema,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
INT64 = st.integers(INT64_MIN, INT64_MAX)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)

# Columns, and the form of each in a feature spec: F(ixedLen) or V(arLen).
COLUMNS = {
    "integer": (Column("c", "int64"), "F"),
    "float": (Column("c", "float32"), "F"),
    "bytes": (Column("c", "bytes"), "F"),
    "optional": (Column("c", "float32", required=False), "V"),
    "default": (Column("c", "int64", default="-1"), "F"),
    "default_empty": (Column("c", "bytes", default=""), "F"),
    "default_equals": (Column("c", "bytes", default='a=b "c"\n'), "F"),
    "default_many": (Column("c", "int64", separator="|", default="1|2"), "V"),
    "many": (Column("c", "bytes", separator="|"), "V"),
    "many_optional": (Column("c", "bytes", required=False, separator=" = "), "V"),
    "booleans": (Column("c", "int64", booleans=("Yes", "no")), "F"),
    "booleans_default": (Column("c", "int64", booleans=("1", "0"), default="0"), "F"),
    "low": (Column("c", "int64", low=INT64_MIN), "F"),
    "bounds": (Column("c", "int64", required=False, low=0, high=9), "V"),
    "float_bounds": (Column("c", "float32", low=-0.1, high=0.1, default="0.1"), "F"),
    "values": (Column("c", "bytes", values=("a", "", "ü")), "F"),
    "zero_padded": (Column("c", "int64", zero_padded=True, default="007"), "F"),
}


@st.composite
def columns(draw):
    kind = draw(st.sampled_from(["int64", "float32", "bytes"]))
    attributes = {"required": draw(st.booleans()), "separator": draw(TEXTS)}
    form = draw(st.sampled_from(["plain", "bounds", "special"]))
    if form == "bounds" and kind != "bytes":
        bounds = sorted(draw(st.tuples(*[INT64 if kind == "int64" else FLOAT32] * 2)))
        attributes |= {
            key: draw(st.sampled_from([None, b]))
            for key, b in zip(["low", "high"], bounds, strict=True)
        }
    if form == "special" and kind == "bytes":
        attributes["values"] = tuple(draw(st.lists(TEXTS, min_size=1, max_size=4)))
    if form == "special" and kind == "int64":
        attributes |= draw(st.sampled_from([{"booleans": ("Ä", "y")}, {"zero_padded": True}]))
    if form == "plain" and kind == "bytes":
        attributes["default"] = draw(st.none() | TEXTS)
    return Column(draw(NAMES), kind, **attributes)


def test_columns_round_trip_and_equal_those_of_tensorflow_transform():
    import tensorflow as tf
    from tensorflow_metadata.proto.v0 import schema_pb2
    from tensorflow_transform.tf_metadata import schema_utils

    dtypes = {"int64": tf.int64, "float32": tf.float32, "bytes": tf.string}
    for column, form in COLUMNS.values():
        assert parse_schema(format_schema([column]), "x") == (column,)
        schema = text_format.Parse(format_schema([column]), schema_pb2.Schema())
        spec, domains = schema_utils.schema_as_feature_spec(schema)
        if form == "F":
            assert spec == {"c": tf.io.FixedLenFeature([1], dtypes[column.kind])}, column
        else:
            assert spec == {"c": tf.io.VarLenFeature(dtypes[column.kind])}, column
        restricted = column.values or column.booleans or column.low is not None
        assert bool(domains) == bool(restricted), column
    # A schema that TensorFlow Transform writes.
    written = schema_utils.schema_from_feature_spec(
        {
            "one": tf.io.FixedLenFeature([], tf.float32),
            "other": tf.io.FixedLenFeature([1], tf.string),
            "some": tf.io.VarLenFeature(tf.int64),
        },
        {"one": schema_pb2.FloatDomain(min=0.5)},
    )
    assert parse_schema(text_format.MessageToString(written), "x") == (
        Column("one", "float32", low=0.5),
        Column("other", "bytes"),
        Column("some", "int64", required=False),
    )


# A schema as TensorFlow Data Validation infers it and people edit it.
TFDV = """
# The types of trips.
feature {
  name: "payment_type" value_count { min: 1 max: 1 } type: BYTES domain: "payment_type"
  presence { min_fraction: 1.0 min_count: 1 }
  skew_comparator { infinity_norm { threshold: 0.01 } }
}
feature { name: "fare" type: FLOAT presence { min_fraction: 1.0 min_count: 1 }
  shape { dim { size: 1 } } lifecycle_stage: PRODUCTION float_domain { min: -inf disallow_nan: true } }
feature { name: "area" type: INT presence { min_count: 1 } value_count { min: 1 max: 1 }
  int_domain { is_categorical: true max: 77 } not_in_environment: "SERVING" }
feature { name: "tips" type: INT presence { min_fraction: 0.95 } shape { dim { size: 1 } } }
feature { name: "flag" type: BYTES bool_domain { true_value: "True" false_value: "False" } }
feature { name: "old" deprecated: true type: STRUCT }
feature { name: "older" lifecycle_stage: DEPRECATED type: BYTES }
feature { name: "wished" lifecycle_stage: PLANNED type: BYTES }
feature { name: "bit" type: INT bool_domain {} presence { min_fraction: 1 } shape {} }
feature { name: "link" type: BYTES url_domain {} presence { min_fraction: 1 } shape {}
  annotation { tag: "pii" comment: "ask first" } }
feature { name: "loose" type: BYTES string_domain { value: "a" }
  distribution_constraints { min_domain_mass: 0.9 } }
feature { name: "hour" type: INT domain: "hour" }
feature { name: "tags" type: BYTES value_count { min: 1 }
  annotation { tag: "separator=," } presence { min_fraction: 1 } }
string_domain { name: "payment_type" value: "Cash" value: "Credit Card" }
int_domain { name: "hour" min: 0 max: 23 }
default_environment: "TRAINING"
default_environment: "SERVING"
weighted_feature { name: "w" feature { step: "fare" } weight_feature { step: "tips" } }
"""


def test_reads_schemas_of_tensorflow_data_validation():
    assert parse_schema(TFDV, "x") == (
        Column("payment_type", "bytes", values=("Cash", "Credit Card")),
        Column("fare", "float32"),
        Column("area", "int64", required=False, high=77),
        Column("tips", "int64", required=False),
        Column("flag", "bytes", required=False, values=("True", "False")),
        Column("bit", "int64", low=0, high=1),
        Column("link", "bytes"),
        Column("loose", "bytes", required=False),
        Column("hour", "int64", required=False, low=0, high=23),
        Column("tags", "bytes", separator=","),
    )


@given(st.text(max_size=60) | st.lists(st.sampled_from([*TFDV.split(), "{", "}"])).map(" ".join))
def test_any_text_gives_columns_or_a_usage_error(text):
    with contextlib.suppress(UsageError):
        assert parse_schema(text, "x")


def test_bounds_are_float32_and_columns_with_a_default_are_required():
    column = Column("c", "float32", required=False, low=0.1, default=" +.1e0 ")
    assert column.low == float(np.float32(0.1)) != 0.1
    assert column.required
