"""The deterministic encoder of tf.train.Example, compared with protobuf."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.schemas import encode_example
from tests.support.fault_tools import output_of_process
from tests.support.readers import tf_example

floats = st.floats(width=32, allow_nan=False)
values = st.one_of(
    st.binary(max_size=200),
    st.integers(-(2**63), 2**63 - 1),
    floats,
    st.lists(st.binary(max_size=20), min_size=1, max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    st.lists(floats, min_size=1, max_size=4),
)


def by_protobuf(features: dict) -> bytes:
    """Return the bytes that protobuf writes for the same features, with sorted keys."""
    return tf_example(features).SerializeToString(deterministic=True)


# All names have the same length: if one name is a prefix of another, upb sorts the longer one first,
# C++ and Java the shorter one.
@given(st.dictionaries(st.text(min_size=7, max_size=7), values, max_size=6))
def test_equal_to_protobuf_deterministic(features: dict) -> None:
    assert encode_example(features) == by_protobuf(features)


def test_names_sort_by_utf8_bytes() -> None:
    features = {"\uffff": 1, "\U00010000": 2, "a": 3}
    assert encode_example(features) == by_protobuf(features)
    prefixed = encode_example({"ab": 1, "a": 2})
    assert prefixed.index(b"\x01a") < prefixed.index(b"\x02ab")
    assert encode_example(features) == encode_example(dict(reversed(features.items())))


def test_rejects_values_of_other_types() -> None:
    with pytest.raises(TypeError, match="bytes, int or float, not str"):
        encode_example({"a": ["text"]})  # type: ignore[dict-item]


def test_bytes_do_not_depend_on_the_process() -> None:
    code = (
        "from shardmill.schemas.example.serialize import encode_example\n"
        "print(encode_example({'b': 1, 'a': b'x', 'c': [1.5, 2.5], **dict.fromkeys('zyx', 7)}).hex())"
    )
    features = {"a": b"x", "b": 1, "c": [1.5, 2.5], "x": 7, "y": 7, "z": 7}
    assert output_of_process(code) == encode_example(features).hex() + "\n"
