"""Independent readers of shards, which use no code of Shardmill."""

import functools
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format


def tf_records(path: Path | str, compression: str = "GZIP") -> list[bytes]:
    """Return all payloads of a file, read by tf.data."""
    import tensorflow as tf

    batches = tf.data.TFRecordDataset(str(path), compression).batch(4_096).as_numpy_iterator()
    return [payload for batch in batches for payload in batch]


# The wire format of tensorflow/core/example/example.proto, under other names: a process in which
# TensorFlow is imported knows the original names.
_EXAMPLE = """
name: "example.proto" package: "tests" syntax: "proto3"
message_type { name: "Bytes"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "Floats"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Ints"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes" number: 1 type: TYPE_MESSAGE type_name: "Bytes" oneof_index: 0 }
  field { name: "floats" number: 2 type: TYPE_MESSAGE type_name: "Floats" oneof_index: 0 }
  field { name: "ints" number: 3 type: TYPE_MESSAGE type_name: "Ints" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "Entry" }
  nested_type { name: "Entry" field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: "tests.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: "Features" } }
"""


@functools.cache
def example_class() -> type:
    """Return a class of tf.train.Example that needs no TensorFlow."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Example"))


def tf_examples(path: Path | str, compression: str = "GZIP") -> list[dict]:
    """Return each tf.train.Example of a file as {feature: list of values}.

    Python's gzip module and protobuf read them: they load faster than TensorFlow.
    """
    examples = []
    data = Path(path).read_bytes()
    for payload in framed_payloads(gzip.decompress(data) if compression else data):
        example = example_class().FromString(payload)
        values = {}
        for feature in example.features.feature:
            assert feature.key not in values
            kind = feature.value.WhichOneof("kind")
            values[feature.key] = list(getattr(feature.value, kind).value) if kind else []
        examples.append(values)
    return examples


def tf_example(features: dict) -> Any:
    """Return a tf.train.Example of values, or lists of values, by feature name."""
    import tensorflow as tf

    example = tf.train.Example()
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        feature = example.features.feature[name]
        if isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        else:
            feature.float_list.value.extend(values)
    return example


def gzip_records(path: Path | str) -> list[bytes]:
    """Return all payloads, read by Python's gzip module."""
    return framed_payloads(gzip.decompress(Path(path).read_bytes()))


def framed_payloads(data: bytes) -> list[bytes]:
    """Return the payloads of an uncompressed TFRecord file; check both CRCs of each record."""
    payloads = []
    offset = 0
    while offset < len(data):
        header = data[offset : offset + 8]
        (length,) = struct.unpack("<Q", header)
        payload = data[offset + 12 : offset + 12 + length]
        assert len(payload) == length
        for content, at in ((header, offset + 8), (payload, offset + 12 + length)):
            assert struct.unpack_from("<I", data, at) == (_masked_crc(content),)
        payloads.append(payload)
        offset += length + 16
    return payloads


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def dataset_splits(folder: Path) -> dict[str, dict]:
    """Return the splits of the manifest: counts, weights, statistics and shards."""
    splits: dict[str, dict] = json.loads((current(folder) / "manifest.json").read_text())["splits"]
    return splits


def current(folder: Path) -> Path:
    """Return the folder of the current generation; the folder itself if it has none."""
    return folder / json.loads((folder / "manifest.json").read_text()).get("generation", "")


def dataset_files(folder: Path) -> dict[str, bytes]:
    """Return the published files whose bytes must be reproducible."""
    return {
        p.name: p.read_bytes()
        for p in sorted(current(folder).iterdir())
        if p.is_file() and p.name != "manifest.json"
    }
