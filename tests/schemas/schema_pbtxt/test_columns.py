"""Columns and their schema.pbtxt, which TensorFlow Transform reads too."""

import contextlib
import math

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.columns import (
    INT64_MAX,
    INT64_MIN,
    Column,
    check_texts,
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


def feature(text, kind="INT"):
    return f'feature {{ name: "age" type: {kind} {text} }}'


BAD_TEXTS = [
    ("feature {", r"s.pbtxt is not a schema \(line 1, column 9: Expected \"}\"\)"),
    ('feature {\n  nme: "x"\n}', r'line 2, column 3: .* has no field named "nme"\)'),
    ("a,b\n1,2\n", "not a schema"),
    ("\x00\x01", "not a schema"),
    ("feature{" + "struct_domain{feature{" * 5000, "nested too deeply"),
    ("", "names no features"),
    ('feature { name: "a" deprecated: true }', "names no features"),
    ("feature { type: INT } ", "no name"),
    (feature("") * 2, "'age' twice: remove one"),
    (feature("", "TYPE_UNKNOWN"), "TYPE_UNKNOWN: give it 'type: INT'"),
    (feature("", "STRUCT"), "STRUCT: give it"),
    (feature("shape { dim { size: 2 } }"), r"the shape \[2\]"),
    (feature("shape { dim { size: 1 } dim { size: 1 } }"), r"the shape \[1, 1\]"),
    (feature('shape { dim { size: 1 } } annotation { tag: "separator=|" }'), "both a shape and"),
    (feature("value_count { min: 1 }"), 'annotation { tag: "separator=|" }'),
    (feature("value_count { min: 2 max: 2 }"), "may have several values"),
    (feature("value_counts { value_count { min: 1 max: 1 } }"), "lists in lists"),
    (feature('annotation { tag: "separator=" }'), "empty separator"),
    (feature('annotation { tag: "zero_padded" }', "FLOAT"), "that needs type INT"),
    (feature('domain: "gone"', "BYTES"), "domain 'gone', which the schema does not have"),
    (feature("float_domain {}"), "is INT with float_domain: make it FLOAT"),
    (feature("int_domain { min: 0 }", "BYTES"), "is BYTES with int_domain: make it INT"),
    (feature("bool_domain {}", "FLOAT"), "make it INT"),
    (feature('bool_domain { true_value: "a" }'), "two texts"),
    (feature("int_domain { min: 2 max: 1 }"), "lower bound 2 above its upper bound 1"),
    (feature("string_domain {}", "BYTES"), "at least one text"),
    (feature("struct_domain {}"), "struct_domain: describe"),
    (feature("") + ' sparse_feature { name: "s" }', "sparse_feature"),
    (feature("") + ' tensor_representation_group { key: "" }', "tensor_representation_group"),
]


@pytest.mark.parametrize(("text", "message"), BAD_TEXTS, ids=range(len(BAD_TEXTS)))
def test_rejects_unusable_schemas_in_one_sentence(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        check_texts(parse_schema(text, "s.pbtxt"), "s.pbtxt")
    sentence = str(caught.value)
    assert "s.pbtxt" in sentence or "no name" in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 600


@given(st.text(max_size=60) | st.lists(st.sampled_from([*TFDV.split(), "{", "}"])).map(" ".join))
def test_any_text_gives_columns_or_a_usage_error(text):
    with contextlib.suppress(UsageError):
        assert parse_schema(text, "x")


BAD_COLUMNS = [
    {"name": "", "kind": "int64"},
    {"name": "c", "kind": "uint8"},
    {"name": "c", "kind": "bytes", "low": 1},
    {"name": "c", "kind": "int64", "low": 0.5},
    {"name": "c", "kind": "int64", "high": 1 << 63},
    {"name": "c", "kind": "float32", "high": 1e39},
    {"name": "c", "kind": "float32", "low": math.nan},
    {"name": "c", "kind": "int64", "low": 2, "high": 1},
    {"name": "c", "kind": "int64", "values": ("a",)},
    {"name": "c", "kind": "bytes", "values": ()},
    {"name": "c", "kind": "bytes", "zero_padded": True},
    {"name": "c", "kind": "int64", "zero_padded": True, "booleans": ("a", "b")},
    {"name": "c", "kind": "bytes", "booleans": ("a", "b")},
    {"name": "c", "kind": "int64", "booleans": ("Yes", " yes")},
    {"name": "c", "kind": "int64", "booleans": ("", "b")},
    {"name": "c", "kind": "int64", "booleans": ("a", "b"), "low": 0},
]


@pytest.mark.parametrize("attributes", BAD_COLUMNS, ids=range(len(BAD_COLUMNS)))
def test_rejects_contradictory_columns(attributes):
    with pytest.raises(UsageError, match=r"^(The|A) column .*\.$"):
        Column(**attributes)


def test_bounds_are_float32_and_columns_with_a_default_are_required():
    column = Column("c", "float32", required=False, low=0.1, default=" +.1e0 ")
    assert column.low == float(np.float32(0.1)) != 0.1
    assert column.required
