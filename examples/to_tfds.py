"""Copy a dataset as uncompressed TFRecords, which TensorFlow Datasets and NVIDIA DALI read.

usage:
  pip install tensorflow-datasets
  python examples/to_tfds.py ds copy

The copy has a file for each shard; features.json and dataset_info.json, which
tfds.builder_from_directory reads; and for DALI index/FILE.idx: the offset and size of each record.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

import shardmill
from shardmill.loaders.source import open_without_shards

NAME = "shardmill"
TYPES = {"int64": np.int64, "float32": np.float32, "bytes": np.str_}


def copy_shard(source: str, target: Path, index: Path) -> int:
    """Copies the records of a shard, and lists them in an index; returns their number."""
    opened = gzip.open if source.endswith(".gz") else open
    offset = count = 0
    with opened(source, "rb") as shard, target.open("wb") as copy, index.open("w") as lines:
        while length := shard.read(8):
            size = 8 + 4 + int.from_bytes(length, "little") + 4  # with the CRCs of both parts
            copy.write(length + shard.read(size - 8))
            lines.write(f"{offset} {size}\n")
            offset, count = offset + size, count + 1
    return count


def feature_of(spec: Any, class_names: tuple[str, ...]) -> tfds.features.FeatureConnector:
    """Returns a feature as TFDS describes it; class names are those of its integers."""
    if spec.encoding in ("jpeg", "png", "keep"):
        shape = spec.shape or (None, None, spec.channels or 3)
        encoding = None if spec.encoding == "keep" else spec.encoding  # of each record
        return tfds.features.Image(shape=shape, encoding_format=encoding)
    if spec.encoding == "raw":
        return tfds.features.Tensor(shape=spec.shape, dtype=spec.dtype, encoding="bytes")
    if class_names:
        return tfds.features.ClassLabel(names=class_names)
    one = tfds.features.Text() if spec.kind == "bytes" else tfds.features.Scalar(TYPES[spec.kind])
    if spec.fixed in ((), (1,)):
        return one
    if spec.fixed:
        return tfds.features.Tensor(shape=spec.fixed, dtype=TYPES[spec.kind])
    return tfds.features.Sequence(one)  # a value that is missing is an empty sequence


def main(dataset: str, folder: str) -> None:
    """Copies a dataset."""
    source, target = open_without_shards(dataset), Path(folder)
    (target / "index").mkdir(parents=True)
    template = tfds.core.ShardedFileTemplate(target, dataset_name=NAME, filetype_suffix="tfrecord")
    infos = []
    for split, entry in source.manifest.splits.items():
        shards = zip(shardmill.files(dataset, split), entry.shards, strict=True)
        files = [file for file, shard in shards if shard.records]
        counts = []
        for number, file in enumerate(files):
            name = f"{NAME}-{split}.tfrecord-{number:05}-of-{len(files):05}"
            counts.append(copy_shard(file, target / name, target / "index" / f"{name}.idx"))
        infos.append(tfds.core.SplitInfo(split, counts, entry.num_bytes, template))
        print(f"{split}: {sum(counts)} examples in {len(files)} files")
    labels = source.manifest.labels
    features = {
        spec.name: feature_of(spec, labels if spec.name == source.label_id else ())
        for spec in source.specs
    }
    tfds.folder_dataset.write_metadata(
        data_dir=target, features=features, split_infos=infos, filename_template=template
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
