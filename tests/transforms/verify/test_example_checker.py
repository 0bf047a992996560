"""Checks of examples against their schema: one test a kind of fault, on real datasets."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.schemas.errors import UsageError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.example.serialize import encode_example
from shardmill.schemas.schema_pbtxt.feature_spec import array_tags
from shardmill.schemas.schema_pbtxt.image_features import FeatureNames, image_schema
from shardmill.transforms.verify.example_checker import ExampleChecker
from tests.conftest import build_dataset, examples, make_image
from tests.support.readers import gzip_records

LABELS = ("cat", "dog", "eel")
ROWS = """
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
    "price": 0.7, "rate": -2.5, "count": 300, "hour": 7, "color": "grün".encode(), "kind": [b"a", b"b"],
    "note": b"n" * 200, "box": [0.0, 0.5, 1.0, 1.5], "tags": [1, -2, 3],
}  # fmt: skip
IMAGE = {
    "image/class/label": 1, "image/class/text": b"dog", "image/encoded": b"\xff\xd8\xff" + bytes(900),
    "image/format": b"jpeg", "image/height": 300, "image/key": b"dog/1.jpg", "image/width": 200,
}  # fmt: skip


def rows() -> ExampleChecker:
    return ExampleChecker(ROWS)


def images(labels: tuple[str, ...] = LABELS) -> ExampleChecker:
    return ExampleChecker(image_schema(FeatureNames.parse("", labelled=True), labels), labels)


def faults(checker: ExampleChecker, good: dict, **damage) -> str:
    """Returns what is said of an example with some features changed (None: left out)."""
    assert checker.check(encode_example(good)) == ""
    assert checker._fits(encode_example(good))
    damaged = {name: value for name, value in (good | damage).items() if value is not None}
    said = checker.check(encode_example(damaged))
    assert checker.check(encode_example(good)) == ""
    return said


@pytest.mark.parametrize("encoding", ["jpeg", "png", "raw"])
def test_a_real_dataset_fits_its_own_schema(photos, tmp_path, encoding) -> None:
    _, manifest = build_dataset(
        input=photos, output=tmp_path / "ds", image_size=32, encoding=encoding
    )
    assert manifest is not None
    checker = ExampleChecker((tmp_path / "ds/schema.pbtxt").read_text(), manifest.labels)
    payloads = [p for name in manifest.files for p in gzip_records(tmp_path / "ds" / name)]
    assert len(payloads) == 21
    assert {checker.check(payload) for payload in payloads} == {""}
    assert all(checker._fits(payload) for payload in payloads)
    other = ExampleChecker((tmp_path / "ds/schema.pbtxt").read_text(), manifest.labels[::-1])
    assert "means" in other.check(payloads[0])


def test_an_unlabelled_dataset_with_features_of_other_names_fits_too(photos, tmp_path) -> None:
    build_dataset(
        input=photos, output=tmp_path / "ds", image_size=32, label_from="none", splits="train:1",
        features="picture=image/encoded,image/format,image/key",
    )  # fmt: skip
    checker = ExampleChecker((tmp_path / "ds/schema.pbtxt").read_text())
    (shard,) = (tmp_path / "ds").glob("*.tfrecord.gz")
    payloads = gzip_records(shard)
    assert {checker.check(payload) for payload in payloads} == {""}
    values = {name: feature.values for name, feature in parse_example(payloads[0]).items()}
    values["picture"] = [b"GIF89a and so on"]
    assert checker.check(encode_example(values)) == (
        "the feature 'picture' begins with 47 49 46 38, which is no jpeg"
    )


def test_bytes_that_are_no_example() -> None:
    assert "no tf.train.Example" in images().check(b"\xff\xff")
    assert images().check(encode_example(IMAGE)[:-1]) != ""
    assert images().check(encode_example(IMAGE) + b"\xff") != ""
    last = encode_example(IMAGE)[:-1] + b"\x80"
    assert "no tf.train.Example" in images().check(last)
    # The last feature says that it ends before its entry does.
    assert last[-8:-4] == b"\x12\x06\x1a\x04"
    for number in (1, 5, 7):
        cut = bytearray(encode_example(IMAGE))
        cut[-7] = number
        assert "no tf.train.Example" in images().check(bytes(cut))
    assert images().check(b"") == "the feature 'image/class/label' is missing"


def test_a_missing_feature() -> None:
    assert faults(rows(), ROW, count=None) == "the feature 'count' is missing"
    assert faults(rows(), ROW, tags=None, kind=None, note=None, hour=None) == ""
    for name in IMAGE:
        assert faults(images(), IMAGE, **{name: None}) == f"the feature {name!r} is missing"


def test_a_feature_without_values() -> None:
    said = faults(rows(), ROW, count=[])
    assert said == "the feature 'count' has no value, and the schema requires one"
    assert faults(rows(), ROW, hour=[], kind=[], note=[], tags=[]) == ""


def test_the_wrong_kind() -> None:
    assert faults(rows(), ROW, rate=1) == "the feature 'rate' is int64, not float"
    assert faults(rows(), ROW, count=1.0) == "the feature 'count' is float, not int64"
    assert faults(rows(), ROW, hour=b"7") == "the feature 'hour' is bytes, not int64"
    assert faults(rows(), ROW, note=[1, 2]) == "the feature 'note' is int64, not bytes"


def test_the_wrong_number_of_values() -> None:
    assert faults(rows(), ROW, rate=[1.0, 2.0]) == "the feature 'rate' has 2 values, not 1"
    assert faults(rows(), ROW, hour=[1, 2]) == "the feature 'hour' has 2 values, not 1"
    assert faults(rows(), ROW, box=[1.0] * 3) == "the feature 'box' has 3 values, not 4"
    assert faults(rows(), ROW, kind=[b"a"] * 4) == "the feature 'kind' has 4 values, not 1 to 3"
    assert faults(rows(), ROW, tags=[1]) == "the feature 'tags' has 1 values, not 2 or more"
    assert "2 values" in faults(images(), IMAGE, **{"image/encoded": [b"\xff\xd8\xff"] * 2})


def test_a_feature_that_the_schema_does_not_know() -> None:
    assert faults(rows(), ROW, zzz=1) == "the feature 'zzz' is not in the schema"
    assert faults(rows(), ROW, **{"a\x1b[2J": 1}) == "the feature 'a\\x1b[2J' is not in the schema"
    assert len(faults(rows(), ROW, **{"x" * 5000: 1})) < 100


def test_bounds_of_integers() -> None:
    assert faults(rows(), ROW, count=-5) == ""
    said = faults(rows(), ROW, count=301)
    assert said == "the feature 'count' is 301, above its greatest value 300"
    said = faults(rows(), ROW, count=-6)
    assert said == "the feature 'count' is -6, below its least value -5"


def test_bounds_of_floats() -> None:
    assert faults(rows(), ROW, price=9.1) == ""
    assert "above its greatest value 9.1" in faults(rows(), ROW, price=9.2)
    assert "below its least value" in faults(rows(), ROW, price=-0.5)
    assert faults(rows(), ROW, price=math.nan) == "the feature 'price' is NaN"
    assert faults(rows(), ROW, price=math.inf) == "the feature 'price' is infinite"
    assert faults(rows(), ROW, rate=math.nan) == faults(rows(), ROW, rate=math.inf) == ""


def test_domains_of_texts() -> None:
    said = faults(rows(), ROW, color=b"blue\x1b")
    assert said == "the feature 'color' is 'blue\\x1b', which is not in its domain"
    assert "'\\\\xff'" in faults(rows(), ROW, kind=[b"a", b"\xff"])
    loose = ROWS.replace('domain: "colors"', 'domain: "colors" distribution_constraints { min_domain_mass: 0.9 }')  # fmt: skip
    assert faults(ExampleChecker(loose), ROW, color=b"blue") == ""


def test_a_class_id_without_a_label() -> None:
    said = faults(images(), IMAGE, **{"image/class/label": 3})
    assert said == "the feature 'image/class/label' is 3, above its greatest value 2"
    unbounded = ExampleChecker(
        'feature { name: "image/class/label" type: INT shape { } presence { min_fraction: 1 } }', LABELS
    )  # fmt: skip
    for number in (3, 70_000, -1):
        said = faults(unbounded, {"image/class/label": 2}, **{"image/class/label": number})
        assert said == f"the class id {number} is not one of the 3 labels (0 to 2)"


def test_a_class_text_that_is_not_the_label() -> None:
    said = faults(images(), IMAGE, **{"image/class/text": b"cat"})
    assert said == "the class id 1 means 'dog', but 'image/class/text' is 'cat'"
    longer = "dog" + "g" * 300
    checker = images(("cat", longer))
    good = IMAGE | {"image/class/text": longer.encode()}
    assert "means" in faults(checker, good, **{"image/class/text": longer.encode() + b"g"})


@pytest.mark.parametrize(("kind", "save"), [("jpeg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"), ("gif", "GIF"), ("bmp", "BMP"), ("tiff", "TIFF")])  # fmt: skip
def test_an_image_that_is_not_of_its_format(tmp_path, kind, save) -> None:
    path = tmp_path / "image"
    make_image(1).save(path, format=save)
    good = IMAGE | {"image/format": kind.encode(), "image/encoded": path.read_bytes()}
    for damaged in (b"", b"\xff", b"version https://git-lfs", bytes(1000)):
        said = faults(images(), good, **{"image/encoded": damaged})
        assert said.startswith("the feature 'image/encoded' begins with ")
        assert said.endswith(f"which is no {kind}")
    assert faults(images(), good, **{"image/format": b"raw", "image/encoded": b"12"}) == ""


def test_a_schema_that_is_none() -> None:
    with pytest.raises(UsageError, match="schema cannot be read"):
        ExampleChecker("feature { nonsense: 1 }")


def test_it_travels_to_other_processes() -> None:
    checker = images()
    checker.check(encode_example(IMAGE))
    there = pickle.loads(pickle.dumps(checker))
    assert faults(there, IMAGE, **{"image/width": None}) == "the feature 'image/width' is missing"


_values = st.one_of(
    st.sampled_from([[], b"a", b"red", b"dog", 1, 300, -5, 301, 0.5, b"x" * 130, b"\xff\xd8\xff" * 60]),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.lists(st.floats(width=32), max_size=4),
    st.lists(st.sampled_from([b"a", b"b", b"c", b"x" * 200]), max_size=3),
)  # fmt: skip


@settings(max_examples=examples(500))
@given(st.data(), st.sampled_from([(rows(), ROW), (images(), IMAGE)]))
def test_the_short_way_never_says_that_what_does_not_fit_fits(data, case) -> None:
    checker, good = case
    names = st.sampled_from([*good, "zzz"])
    changed = dict(good)
    for name in data.draw(st.lists(names, max_size=2)):
        changed.pop(name, None)
        if data.draw(st.booleans()):
            changed[name] = data.draw(_values)
    payload = bytearray(encode_example(changed))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, min(150, len(payload) - 1)))
        payload[at] = data.draw(st.integers(0, 255))
    assert (checker.check(bytes(payload)) == "") == (checker._fault(bytes(payload)) == "")


def array_checker(shape: tuple[int, ...], dtype: str, *names: str) -> ExampleChecker:
    """A checker of features that are raw arrays of one shape, and a label."""
    text = 'feature { name: "label" type: INT presence { min_fraction: 1.0 } shape { dim { size: 1 } } }\n'
    for name in names:
        tags = " ".join(f'tag: "{tag}"' for tag in array_tags(np.dtype(dtype), shape))
        text += (
            f'feature {{ name: "{name}" type: BYTES presence {{ min_fraction: 1.0 }} '
            f"shape {{ dim {{ size: 1 }} }} annotation {{ {tags} }} }}\n"
        )
    return ExampleChecker(text)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (4, 8), (28, 28), (300, 200, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128", "bool"])
def test_raw_arrays_have_the_bytes_of_their_type_and_shape(shape, dtype) -> None:
    size = int(np.zeros(shape, dtype).nbytes)
    checker = array_checker(shape, dtype, "x", "m" * 130)
    good = {"x": bytes(size), "m" * 130: bytes(size), "label": -3}
    for wrong in {size + 1, max(0, size - 1), 2 * size, 0, 127, 128} - {size}:
        said = faults(checker, good, x=bytes(wrong))
        assert f"{wrong:,} bytes, not the {size:,} of {dtype} in the shape {shape}" in said
        assert "bytes, not the" in faults(checker, good, **{"m" * 130: bytes(wrong)})
    assert "has 2 values" in faults(checker, good, x=[bytes(size)] * 2)
    assert "int64, not bytes" in faults(checker, good, x=7)


def test_a_size_is_asked_of_raw_arrays_of_one_shape_alone() -> None:
    tags = {
        "png": ["encoding=png", "dtype=uint8", "shape=2,2"],
        "any": ["encoding=raw", "dtype=uint8"],
    }
    for given_tags in tags.values():
        text = " ".join(f'tag: "{tag}"' for tag in given_tags)
        checker = ExampleChecker(f'feature {{ name: "x" type: BYTES annotation {{ {text} }} }}')
        assert checker.check(encode_example({"x": b"12345"})) == ""
    with pytest.raises(UsageError, match="'uint9' and shape '2,2'"):
        ExampleChecker(
            'feature { name: "x" type: BYTES annotation { tag: "encoding=raw" tag: "dtype=uint9" '
            'tag: "shape=2,2" } }'
        )
