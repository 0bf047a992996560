"""Other ways to build a dataset of rows, for comparison: python row_peers.py NAME TABLE OUT.

floor     one process with two threads that calls Shardmill's functions without Beam, runs on disk,
          sidecars or resume: parses, types, places and encodes each range in memory, then merges,
          compresses and writes the parts. It holds all records in memory.
tutorial  the loop of the TensorFlow tutorials: csv, tf.train.Example, a GZIP writer, one core.
arrow     pyarrow.csv with its own types, then each row encoded by itself, one core.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LABEL = "label"


def floor(source: Path, out: Path) -> None:
    """Writes one shard per split with Shardmill's functions."""
    import pyarrow as pa

    from shardmill.pipelines import rows
    from shardmill.pipelines.rows_config import RowsConfig
    from shardmill.schemas.storage import open_storage
    from shardmill.transforms.match.inputs import match_now
    from shardmill.transforms.sink.record_writer import MemberWriter
    from shardmill.transforms.tables.byte_arrays import ByteStrings
    from shardmill.transforms.tables.run_writer import encode_splits
    from shardmill.transforms.tables.segments import FRAME, Origin, slices, sort_records
    from shardmill.transforms.tables.table import place_batch

    job = rows.resolve(RowsConfig(input=str(source), output=str(out), label=LABEL))
    spec, (refs, _) = job.spec, match_now(job.match)

    def encode(unit):  # noqa: ANN001, ANN202
        (batch,) = spec.source.read(unit)
        return list(encode_splits(place_batch(spec.table, batch), Origin("", "", "")))

    segments = defaultdict(list)
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(encode, spec.source.units(spec.source.inspect(refs[0]))):
            for split, records, _ in found:
                segments[split].append(records)
    out.mkdir(parents=True)
    storage = open_storage(str(out))
    for split in ("train", "validation"):
        with storage.open_write(str(out / f"{split}.tfrecord.gz")) as target:
            writer = MemberWriter(target, "deflated")
            records, order = sort_records(segments.pop(split))
            frames = records[FRAME].chunk(0)
            lengths = ByteStrings.of_arrow(frames).sizes[order]
            for start, stop in slices(lengths, 8 << 20):
                taken = frames.take(pa.array(order[start:stop]))
                writer.add_frames(memoryview(taken.buffers()[2]), lengths[start:stop])
            writer.close()


def arrow(source: Path, out: Path) -> None:
    """Writes one file of what pyarrow reads, with the encoder and the writer of Shardmill."""
    from pyarrow import csv

    from shardmill.schemas.example.serialize import encode_example
    from shardmill.transforms.sink.record_writer import MemberWriter

    out.mkdir(parents=True)
    table = csv.read_csv(source)
    with open(out / "train.tfrecord.gz", "wb") as file:
        writer = MemberWriter(file, "deflated")
        for batch in table.to_batches(max_chunksize=64):
            columns = [column.to_pylist() for column in batch.columns]
            for cells in zip(*columns, strict=True):
                values = zip(table.column_names, cells, strict=True)
                writer.add(
                    encode_example(
                        {
                            name: value.encode() if isinstance(value, str) else value
                            for name, value in values
                            if value is not None
                        }
                    )
                )
        writer.close()


def tutorial(source: Path, out: Path) -> None:
    """Writes one file with the loop of the tutorials, with types given in advance."""
    import csv

    import tensorflow as tf

    def int_feature(text: str) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[int(text)]))

    def float_feature(text: str) -> tf.train.Feature:
        return tf.train.Feature(float_list=tf.train.FloatList(value=[float(text)]))

    def bytes_feature(text: str) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))

    texts = ("protocol_type", "service", "flag", "label")

    def kind(name: str):  # noqa: ANN202
        if name in texts:
            return bytes_feature
        return float_feature if name.endswith("_rate") else int_feature

    out.mkdir(parents=True)
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    with (
        open(source, newline="") as file,
        tf.io.TFRecordWriter(str(out / "train.tfrecord.gz"), options) as writer,
    ):
        reader = csv.reader(file)
        kinds = [(name, kind(name)) for name in next(reader)]
        for row in reader:
            features = {name: make(text) for (name, make), text in zip(kinds, row, strict=True)}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


if __name__ == "__main__":
    peers = {"floor": floor, "tutorial": tutorial, "arrow": arrow}
    peers[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
