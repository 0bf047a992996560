"""The example checker reports each violation of a schema in one sentence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.schemas import encode_example
from shardmill.schemas.errors import UsageError
from shardmill.schemas.schema_pbtxt.image_features import FeatureSet
from shardmill.schemas.schema_pbtxt.schema_text import array_tags
from shardmill.transforms.verify.example_checker import ExampleChecker
from tests.conftest import examples, make_image

LABELS = ("cat", "dog", "eel")
ROWS_SCHEMA = """
feature { name: "price" type: FLOAT presence { min_fraction: 1.0 } shape { }
          float_domain { min: 0.7 max: 9.1 disallow_inf: true disallow_nan: true } }
feature { name: "rate" type: FLOAT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }
feature { name: "count" type: INT presence { min_fraction: 1.0 min_count: 1 } shape { }
          int_domain { min: -5 max: 300 } }
feature { name: "hour" type: INT presence { min_count: 1 } value_count { min: 1 max: 1 } }
feature { name: "color" type: BYTES shape { } presence { min_fraction: 1.0 } domain: "colors" }
feature { name: "kind" type: BYTES value_count { min: 1 max: 3 } string_domain { value: "a" value: "b" } }
feature { name: "note" type: BYTES value_count { min: 0 max: 1 } }
feature { name: "box" type: FLOAT shape { dim { size: 2 } dim { size: 2 } } presence { min_fraction: 1.0 } }
feature { name: "tags" type: INT value_count { min: 2 } }
string_domain { name: "colors" value: "red" value: "grün" }
"""
ROW = {
    "price": 0.7,
    "rate": -2.5,
    "count": 300,
    "hour": 7,
    "color": "grün".encode(),
    "kind": [b"a", b"b"],
    "note": b"n" * 200,
    "box": [0.0, 0.5, 1.0, 1.5],
    "tags": [1, -2, 3],
}
IMAGE = {
    "image/class/label": 1,
    "image/class/text": b"dog",
    "image/encoded": b"\xff\xd8\xff" + bytes(900),
    "image/format": b"jpeg",
    "image/height": 300,
    "image/key": b"dog/1.jpg",
    "image/width": 200,
}


def images_checker(labels: tuple[str, ...] = LABELS) -> ExampleChecker:
    return ExampleChecker(FeatureSet.parse("", ["label"]).schema(labels), labels)


def violation(checker: ExampleChecker, valid: dict, **changes) -> str:
    """Return what is reported of a valid example after changes (None: the feature is removed)."""
    assert checker.find_violation(encode_example(valid)) == ""
    changed = {name: value for name, value in (valid | changes).items() if value is not None}
    return checker.find_violation(encode_example(changed))


def test_reports_bytes_that_are_not_an_example() -> None:
    whole = encode_example(IMAGE)
    assert whole[-7:-4] == b"\x06\x1a\x04"  # the length of the last feature, its tag and length
    damaged = [b"\xff\xff", whole[:-1], whole + b"\xff", whole[:-1] + b"\x80"]
    damaged += [whole[:-7] + bytes([length]) + whole[-6:] for length in (1, 5, 7)]
    for payload in damaged:
        assert "not a tf.train.Example" in images_checker().find_violation(payload)
    assert images_checker().find_violation(b"") == "the feature 'image/class/label' is missing"


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "gif", "bmp", "tiff"])
def test_reports_image_of_another_format(tmp_path, name) -> None:
    path = tmp_path / "image"
    make_image(1).save(path, format=name.upper())
    valid = IMAGE | {"image/format": name.encode(), "image/encoded": path.read_bytes()}
    for damaged in (b"", b"\xff", b"version https://git-lfs", bytes(1000)):
        reported = violation(images_checker(), valid, **{"image/encoded": damaged})
        assert reported.startswith("the feature 'image/encoded' begins with ")
        assert reported.endswith(f"which is not {name}")
    renamed = FeatureSet.parse("picture=image/encoded,image/format")
    picture = {"picture": b"what", "image/format": name.encode()}
    reported = ExampleChecker(renamed.schema(())).find_violation(encode_example(picture))
    assert reported == f"the feature 'picture' begins with 77 68 61 74, which is not {name}"
    raw = {"image/format": b"raw", "image/encoded": b"12"}
    assert violation(images_checker(), valid, **raw) == ""


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.integers(0, 150), st.integers(0, 255)), max_size=3))
def test_damaged_bytes_never_raise(damage) -> None:
    for checker, valid in ((ExampleChecker(ROWS_SCHEMA), ROW), (images_checker(), IMAGE)):
        payload = bytearray(encode_example(valid))
        for at, value in damage:
            payload[at] = value
        assert not checker.find_violation(bytes(payload)).endswith(".")


def array_checker(shape: tuple[int, ...], dtype: str) -> ExampleChecker:
    """Return a checker of a feature ``x`` that holds raw arrays, and of a label."""
    tags = " ".join(f'tag: "{tag}"' for tag in array_tags(np.dtype(dtype), shape))
    shared = "presence { min_fraction: 1.0 } shape { dim { size: 1 } }"
    return ExampleChecker(
        f'feature {{ name: "label" type: INT {shared} }}\n'
        f'feature {{ name: "x" type: BYTES {shared} annotation {{ {tags} }} }}\n'
    )


@pytest.mark.parametrize("shape", [(), (0,), (3,), (4, 8), (300, 200, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128", "bool"])
def test_reports_raw_array_of_another_size(shape, dtype) -> None:
    size = int(np.zeros(shape, dtype).nbytes)
    checker, valid = array_checker(shape, dtype), {"x": bytes(size), "label": -3}
    for wrong in {size + 1, max(0, size - 1), 2 * size, 0} - {size}:
        reported = violation(checker, valid, x=bytes(wrong))
        assert f"{wrong:,} bytes, not the {size:,} of {dtype} in the shape {shape}" in reported
    assert "has 2 values" in violation(checker, valid, x=[bytes(size)] * 2)
    assert "int64, not bytes" in violation(checker, valid, x=7)


def test_checks_size_only_of_raw_arrays_with_a_fixed_shape() -> None:
    def checker(*tags: str) -> ExampleChecker:
        text = " ".join(f'tag: "{tag}"' for tag in tags)
        return ExampleChecker(f'feature {{ name: "x" type: BYTES annotation {{ {text} }} }}')

    for tags in (("encoding=png", "dtype=uint8", "shape=2,2"), ("encoding=raw", "dtype=uint8")):
        assert checker(*tags).find_violation(encode_example({"x": b"12345"})) == ""
    with pytest.raises(UsageError, match="unknown dtype 'uint9'"):
        checker("encoding=raw", "dtype=uint9", "shape=2,2")
