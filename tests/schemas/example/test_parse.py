"""The parser of tf.train.Example, compared with TensorFlow's own."""

import csv
import gzip
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.schemas import encode_example
from shardmill.schemas.example import parse
from shardmill.schemas.example.serialize import varint
from tests.conftest import examples
from tests.schemas.example.test_serialize import values
from tests.support.readers import framed_payloads

KINDS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64", None: "empty"}


def by_tensorflow(payload: bytes) -> dict[str, parse.FeatureValues]:
    """Return what TensorFlow's generated class parses; raise its DecodeError."""
    import tensorflow as tf

    features = {}
    for name, feature in tf.train.Example.FromString(payload).features.feature.items():
        kind = feature.WhichOneof("kind")
        listed = list(getattr(feature, kind).value) if kind else []
        features[name] = parse.FeatureValues(KINDS[kind], listed)
    return features


def parse_with_both(payload: bytes) -> dict[str, parse.FeatureValues] | None:
    """Return what both parsers agree on; None where both reject the bytes."""
    from google.protobuf.message import DecodeError

    try:
        expected = by_tensorflow(payload)
    except DecodeError:
        with pytest.raises(parse.ExampleError, match=r"bytes are not a tf\.train\.Example"):
            parse.parse_example(payload)
        assert not parse.looks_like_example(payload)
        return None
    found = parse.parse_example(payload)
    assert repr(sorted(found.items())) == repr(sorted(expected.items()))  # repr: NaN equals NaN
    assert {type(v) for f in found.values() for v in f.values} <= {bytes, int, float}
    return found


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def entry(name: bytes, feature: bytes) -> bytes:
    return field(1, field(1, name) + field(2, feature))


def ints(*numbers: int) -> bytes:
    return field(3, field(1, b"".join(varint(n) for n in numbers)))


@pytest.mark.heavy
@given(st.dictionaries(st.text(max_size=200), values | st.just([]), max_size=6))
def test_encoded_examples_parse_like_in_tensorflow(features: dict) -> None:
    assert parse_with_both(encode_example(features)) is not None


@pytest.mark.parametrize("size", [0, 1, 122, 123, 124, 125, 126, 127, 128, 16383, 16384, 2097152])
def test_length_prefixes_of_every_size(size: int) -> None:
    features = {"x" * min(size, 20000): [bytes(size)], "y": [bytes(size), b"", b"a"]}
    wanted = {name: ("bytes", listed) for name, listed in features.items()}
    assert parse_with_both(encode_example(features)) == wanted


# All elements of the wire format, in valid and invalid combinations.
_scalars = st.one_of(
    st.binary(max_size=6),
    st.integers(-(2**63), 2**64 - 1).map(varint),
    st.just(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    st.just(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
    st.just(b"\x81\x80\x00"),
    st.just(b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"),
    st.binary(min_size=4, max_size=4),
)


def _fields(content: st.SearchStrategy) -> st.SearchStrategy:
    block = st.builds(field, st.sampled_from([1, 1, 1, 2, 2, 3, 4]), content)
    tags = st.sampled_from([8, 13, 9, 16, 24]).map(varint)
    odd = st.tuples(tags, _scalars).map(b"".join)
    return st.lists(st.one_of(block, block, odd), max_size=4).map(b"".join)


_lists = st.one_of(_fields(_scalars), _scalars)
_entries = st.builds(
    lambda name, kinds, rest: field(1, name) + field(2, kinds) + rest,
    st.sampled_from([b"a", b"b", b"", b"\xff", "é".encode()]),
    _fields(_lists),
    st.one_of(st.just(b""), st.just(b""), st.just(b""), _fields(_lists)),
)
_examples = _fields(st.lists(_entries.map(lambda e: field(1, e)), max_size=3).map(b"".join))


@settings(max_examples=examples(600))
@given(st.one_of(_examples, _fields(_fields(_fields(_fields(_lists))))))
def test_generated_messages_parse_like_in_tensorflow(payload: bytes) -> None:
    parse_with_both(payload)


@settings(max_examples=examples(300))
@given(st.data())
def test_damaged_examples_parse_like_in_tensorflow(data) -> None:
    features = {"a": b"text" * 40, "b": [1, -1, 300], "c": [0.5, 1.5], "d": 7, "e": 0.25, "f": []}
    payload = bytearray(encode_example(features))
    for _ in range(data.draw(st.integers(1, 2))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    parse_with_both(bytes(payload))
    parse_with_both(bytes(payload[: data.draw(st.integers(0, len(payload)))]))


@pytest.mark.heavy
def test_files_of_other_projects(shared_data) -> None:
    examples = others = 0
    with (shared_data / "tfrecord" / "facts.tsv").open(newline="") as lines:
        for fact in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            if fact["framing"] != "ok":
                continue
            data = (shared_data / fact["path"]).read_bytes()
            is_gzip = data.startswith(b"\x1f\x8b")
            payloads = framed_payloads(gzip.decompress(data) if is_gzip else data)
            assert len(payloads) == int(fact["records"])
            sample = payloads[:: max(1, len(payloads) // 400)]
            parsed = [parse_with_both(payload) for payload in sample]
            if "elwc" in fact["path"] or "other" in fact["payload"]:
                # TensorFlow Ranking's ExampleListWithContext parses by accident.
                assert not any(map(parse.looks_like_example, sample)), fact["path"]
                others += 1
            else:
                assert all(map(parse.looks_like_example, sample)), fact["path"]
                first = parsed[0]
                assert first is not None
                named = ",".join(f"{name}:{first[name].kind}" for name in sorted(first))
                assert named == fact["features"], fact["path"]
                examples += 1
    assert examples >= 10
    assert others >= 6


def test_looks_like_example_is_stricter_than_parsing() -> None:
    good = entry(b"image/key", ints(1))
    assert parse.looks_like_example(field(1, good))
    assert parse.looks_like_example(field(1, good) + field(1, good))
    assert parse.looks_like_example(encode_example({"größe": 1, "empty": []}))
    sequence = field(1, good) + field(2, field(1, field(1, b"frames")))
    others = {
        "nothing": b"",
        "no feature": field(1, b""),
        "a SequenceExample": sequence,
        "an ExampleListWithContext": field(1, field(1, good)),
        "an unknown field inside": field(1, good + field(7, b"x")),
        "no name": field(1, entry(b"", ints(1))),
        "a control character in a name": field(1, entry(b"a\x1b[2J", ints(1))),
        "text": b"hello",
    }
    for case, payload in others.items():
        assert not parse.looks_like_example(payload), case


@pytest.mark.nightly
@pytest.mark.heavy  # imports TensorFlow in a new interpreter
def test_protobuf_is_loaded_lazily_and_does_not_conflict_with_tensorflow() -> None:
    code = (
        "import sys\n"
        "from shardmill.schemas.example.parse import parse_example, ExampleError\n"
        "good = bytes.fromhex('0a0d0a0b0a016112061a040a020102')\n"
        "assert parse_example(good)['a'].values == [1, 2]\n"
        "assert not [m for m in sys.modules if m.startswith('google.protobuf')]\n"
        "unusual = good + b'\\x50\\x01'\n"
        "assert parse_example(unusual)['a'].values == [1, 2]\n"
        "import tensorflow as tf\n"
        "assert tf.train.Example.FromString(unusual).features.feature['a'].int64_list.value == [1, 2]\n"
        "assert parse_example(unusual)['a'].values == [1, 2]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
