"""Decoding of records by schema, compared with the values that were encoded."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardmill.loaders import open_dataset
from shardmill.schemas import encode_example
from shardmill.schemas.errors import InputError, UsageError
from tests.conftest import examples
from tests.support.loader_tools import ONE, write_dataset

KINDS = {"bytes": "BYTES", "int64": "INT", "float32": "FLOAT"}
DTYPES = [
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "bool",
    "complex64",
    "complex128",
]


def raw(dtype: str, *tags: str) -> str:
    tags = " ".join(f'tag: "{tag}"' for tag in ("encoding=raw", f"dtype={dtype}", *tags))
    return f'feature {{ name: "x" type: BYTES {ONE} annotation {{ {tags} }} }}'


def decode(tmp_path, schema: str, values: dict, **options):
    """Returns the values of the only record of a dataset."""
    payload = values if isinstance(values, bytes) else encode_example(values)
    return open_dataset(write_dataset(tmp_path / "ds", [[[payload]]], schema), **options)[0]


@settings(max_examples=examples(120))
@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 7), max_size=4), st.integers(0, 99))
def test_raw_arrays_keep_their_values(tmp_path_factory, dtype, shape, seed):
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    data = rng.integers(0, 2 if dtype == "bool" else 256, size, np.uint8).tobytes()
    schema = raw(dtype, f"shape={','.join(map(str, shape))}")
    found = decode(tmp_path_factory.mktemp("x"), schema, {"x": data})["x"]
    assert (found.dtype, found.shape) == (np.dtype(dtype), tuple(shape))
    assert found.tobytes() == data
    assert found.flags.writeable
    assert found.flags.owndata


def test_arrays_without_shape_are_flat(tmp_path):
    found = decode(tmp_path, raw("uint16"), {"x": np.arange(6, dtype="<u2").tobytes()})["x"]
    np.testing.assert_array_equal(found, np.arange(6, dtype=np.uint16))


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (raw("float32", "shape=2"), b"1234567"),
        (raw("float32", "shape=2"), b"1234"),
        (raw("float32", "shape=2"), b""),
        (raw("float32"), b"123"),
        (raw("uint8", "shape="), b"12"),
    ],
    ids=["partial value", "too few", "empty", "partial value of any shape", "not a scalar"],
)
def test_rejects_bytes_of_another_size(schema, data, tmp_path):
    with pytest.raises(
        InputError, match=r"record 0: the feature 'x' has .* bytes, which do not fit"
    ):
        decode(tmp_path, schema, {"x": data})


def features(kind: str, rule: str) -> str:
    return f'feature {{ name: "x" type: {KINDS[kind]} {rule} }}'


VALUES = {
    "bytes": [b"", b"\xff\0", b"x" * 200],
    "int64": [0, -1, (1 << 63) - 1, -(1 << 63), 127, 128, 300],
    "float32": [0.0, -1.5, 3.0e38, float("inf"), 1e-45],
}
TYPES = {"int64": np.int64, "float32": np.float32}
OPTIONAL = "presence { min_fraction: 0 } value_count { min: 1 max: 1 }"


@pytest.mark.parametrize("kind", KINDS)
def test_single_values(kind, tmp_path):
    for number, value in enumerate(VALUES[kind]):
        for rule in (ONE, "presence { min_fraction: 1 } shape { }", OPTIONAL):
            fill = {"x": 5} if kind == "int64" and rule is OPTIONAL else None
            where = tmp_path / f"{number}{len(rule)}"
            found = decode(where, features(kind, rule), {"x": value}, fill=fill)["x"]
            assert found == (np.float32(value) if kind == "float32" else value)
            assert type(found) is TYPES.get(kind, bytes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["absent", "empty", "no kind", "empty list"])
def test_missing_values(kind, how, tmp_path):
    lists = {"bytes": b"\x0a", "float32": b"\x12", "int64": b"\x1a"}
    entry = b"\x0a\x01x\x12\x02" + lists[kind] + b"\0"
    payload = {
        "absent": encode_example({"y": 1}),
        "empty": b"",
        "no kind": encode_example({"x": []}),
        "empty list": b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry,
    }[how]
    default = {"bytes": b"", "int64": 5, "float32": np.nan}[kind]
    fill = {"x": 5} if kind == "int64" else None
    found = decode(tmp_path / "a", features(kind, OPTIONAL), payload, fill=fill)["x"]
    np.testing.assert_equal(found, default)
    assert type(found) is TYPES.get(kind, bytes)
    fill_value = {"bytes": "näh", "int64": -9, "float32": 2}[kind]
    found = decode(tmp_path / "b", features(kind, OPTIONAL), payload, fill={"x": fill_value})["x"]
    assert found == ("näh".encode() if kind == "bytes" else fill_value)
    found = decode(tmp_path / "c", features(kind, "value_count { min: 0 }"), payload)["x"]
    assert found.shape == (0,)
    with pytest.raises(InputError, match="the feature 'x' has 0 values, not one"):
        decode(tmp_path / "d", features(kind, ONE), payload)
    if kind == "int64":
        with pytest.raises(UsageError, match="integers have no value for that"):
            decode(tmp_path / "e", features(kind, OPTIONAL), payload)


@pytest.mark.parametrize("kind", KINDS)
def test_several_values(kind, tmp_path):
    values = VALUES[kind]
    found = decode(tmp_path / "a", features(kind, "value_count { min: 0 }"), {"x": values})["x"]
    assert found.dtype == TYPES.get(kind, object)
    assert found.tolist() == [np.float32(v) if kind == "float32" else v for v in values]
    shape = "presence { min_fraction: 1 } shape { dim { size: 3 } dim { size: 1 } }"
    if kind != "bytes":
        found = decode(tmp_path / "b", features(kind, shape), {"x": values[:3]})["x"]
        np.testing.assert_array_equal(found, np.array(values[:3], TYPES[kind]).reshape(3, 1))
    with pytest.raises(InputError, match="which do not fit the shape"):
        decode(tmp_path / "c", features(kind, shape), {"x": values[:2]})
    with pytest.raises(InputError, match=f"has {len(values)} values, not one"):
        decode(tmp_path / "d", features(kind, OPTIONAL), {"x": values}, fill={"x": values[0]})


def test_bytes_of_a_fixed_shape(tmp_path):
    shape = "presence { min_fraction: 1 } shape { dim { size: 2 } dim { size: 1 } }"
    found = decode(tmp_path, features("bytes", shape), {"x": [b"a", b"b\0"]})["x"]
    assert found.shape == (2, 1)
    assert found.tolist() == [[b"a"], [b"b\0"]]  # NumPy's bytes type would drop the zero


@pytest.mark.parametrize("kind", KINDS)
def test_rejects_values_of_another_kind(kind, tmp_path):
    for other, values in VALUES.items():
        if other != kind:
            with pytest.raises(InputError, match=rf"'x' is {other[:5]}\w*, not {kind}"):
                decode(tmp_path / other, features(kind, ONE), {"x": values[0]})


IMAGE = f'feature {{ name: "x" type: BYTES {ONE} annotation {{ tag: "encoding=png" tag: "dtype=uint8" tag: "channels=3" }} }}'


def test_rejects_damaged_images(tmp_path):
    grey = io.BytesIO()
    Image.new("L", (4, 3)).save(grey, "PNG")
    cases = {
        b"": "is not an image",
        grey.getvalue()[:-30]: "is not an image",
        grey.getvalue(): "1 channel,",
    }
    for number, (data, part) in enumerate(cases.items()):
        with pytest.raises(InputError, match=f"record 0: the feature 'x' .*{part}") as error:
            decode(tmp_path / str(number), IMAGE, {"x": data})
        assert str(error.value).endswith(".")
        assert "\n" not in str(error.value)


# Pixels.
