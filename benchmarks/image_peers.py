"""Other ways to build a dataset of images, for comparison: image_peers.py NAME IN OUT SIZE.

floor     a hand-optimized loop without Beam: one thread per core, scaled JPEG decoding, stored gzip
          members. The work of ``shardmill images`` without checks, resume or retries.
tutorial  the loop of the TensorFlow tutorials: tf.io, tf.train.Example and a GZIP writer.
beam      plain Beam: MatchFiles, a Map with Pillow and protobuf, WriteToTFRecord with gzip.
"""

from __future__ import annotations

import io
import os
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def list_images(folder: Path) -> list[tuple[str, int, str]]:
    """Returns (path, class id, label) of all images."""
    labels = sorted(p.name for p in folder.iterdir())
    return [
        (str(path), number, label)
        for number, label in enumerate(labels)
        for path in sorted((folder / label).iterdir())
    ]


def encode(path: str, size: int) -> bytes:
    """Returns an image file as a JPEG of size x size, encoded by Pillow."""
    from PIL import Image

    image = Image.open(path)
    image.draft(None, (3 * size, 3 * size))
    image = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def varint(value: int) -> bytes:
    """Returns a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def block(tag: int, content: bytes) -> bytes:
    """Returns a length-delimited protobuf field."""
    return bytes([tag]) + varint(len(content)) + content


def feature(name: str, value: bytes | int) -> bytes:
    """Returns an entry of a tf.train.Features map."""
    if isinstance(value, bytes):
        kind = block(10, block(10, value))
    else:
        kind = block(26, block(10, varint(value)))
    return block(10, block(10, name.encode()) + block(18, kind))


def framed(payload: bytes) -> bytes:
    """Returns a TFRecord record."""
    import google_crc32c

    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def stored(data: bytes) -> bytes:
    """Returns a gzip member of stored blocks."""
    blocks = [data[i : i + 65_535] for i in range(0, len(data), 65_535)]
    body = b"".join(
        struct.pack("<BHH", i == len(blocks) - 1, len(b), len(b) ^ 0xFFFF) + b
        for i, b in enumerate(blocks)
    )
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return header + body + struct.pack("<II", zlib.crc32(data), len(data))


def floor(source: Path, target: Path, size: int) -> None:
    """Writes the dataset with a hand-optimized loop."""

    def record(item: tuple[str, int, str]) -> bytes:
        path, number, label = item
        values = {
            "image/class/label": number,
            "image/class/text": label.encode(),
            "image/encoded": encode(path, size),
            "image/format": b"jpeg",
            "image/height": size,
            "image/key": path.encode(),
            "image/width": size,
        }
        return framed(block(10, b"".join(feature(*pair) for pair in values.items())))

    target.mkdir(parents=True)
    pending: list[bytes] = []
    waiting = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool, (target / "train.gz").open("wb") as file:
        for framed_record in pool.map(record, list_images(source)):
            pending.append(framed_record)
            waiting += len(framed_record)
            if waiting >= 2 << 20:
                file.write(stored(b"".join(pending)))
                pending, waiting = [], 0
        if pending:
            file.write(stored(b"".join(pending)))


def example_of(tf: object, data: bytes, number: int, label: str, path: str, size: int) -> bytes:
    """Returns a serialized tf.train.Example as the tutorials write it."""

    def of_bytes(value: bytes) -> object:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    def of_int(value: int) -> object:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    features = {
        "image/class/label": of_int(number),
        "image/class/text": of_bytes(label.encode()),
        "image/encoded": of_bytes(data),
        "image/format": of_bytes(b"jpeg"),
        "image/height": of_int(size),
        "image/key": of_bytes(path.encode()),
        "image/width": of_int(size),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString()


def tutorial(source: Path, target: Path, size: int) -> None:
    """Writes the dataset with the loop of the tutorials."""
    import tensorflow as tf

    target.mkdir(parents=True, exist_ok=True)
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    with tf.io.TFRecordWriter(str(target / "train.gz"), options) as writer:
        for path, number, label in list_images(source):
            image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
            image = tf.cast(tf.image.resize(image, (size, size)), tf.uint8)
            data = tf.io.encode_jpeg(image, quality=95).numpy()
            writer.write(example_of(tf, data, number, label, path, size))


def beam(source: Path, target: Path, size: int) -> None:
    """Writes the dataset with plain Beam on its in-memory runner."""
    import apache_beam as beam
    import tensorflow as tf
    from apache_beam.io import WriteToTFRecord, fileio
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    ids = {p.name: n for n, p in enumerate(sorted(source.iterdir()))}

    def record(metadata: object) -> bytes:
        path = metadata.path
        label = path.rsplit("/", 2)[1]
        return example_of(tf, encode(path, size), ids[label], label, path, size)

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        _ = (
            pipeline
            | fileio.MatchFiles(f"{source}/*/*")
            | beam.Reshuffle()
            | beam.Map(record).with_output_types(bytes)
            | WriteToTFRecord(str(target / "train"), file_name_suffix=".gz")
        )


if __name__ == "__main__":
    name, where, to, pixels = sys.argv[1:]
    {"floor": floor, "tutorial": tutorial, "beam": beam}[name](Path(where), Path(to), int(pixels))
