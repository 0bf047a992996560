"""Read a dataset with one of several readers, and print the time of an epoch as JSON.

usage: python benchmarks/readers.py NAME[,NAME...] FOLDER [--epochs N]

FOLDER has the same images as ``ds`` (Shardmill's GZIP shards), ``plain`` (uncompressed TFRecords),
``wds`` (WebDataset's tar files), ``mds`` (MosaicML's shards) and ``array`` (ArrayRecord). Imports
and the first epoch, which warms up caches, are not measured.
"""

from __future__ import annotations

import argparse
import functools
import glob
import json
import os
import random
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

SIDE = 224
BATCH = 64
SHUFFLE = 2000
IMAGE, LABEL = "image/encoded", "image/class/label"


def files_of(folder: Path, kind: str) -> list[str]:
    """Returns the files of the training split."""
    return sorted(glob.glob(str(folder / kind / "train-*")))


# --- TensorFlow: batches of (uint8 images, labels), shuffled -----------------------------------


def keras_ours(folder: Path) -> Iterable[Any]:
    """keras_dataset on GZIP shards."""
    from shardmill.loaders import keras_dataset

    return keras_dataset(folder / "ds", "train", batch_size=BATCH, shuffle=SHUFFLE)


def keras_flip(folder: Path) -> Iterable[Any]:
    """keras_dataset, and a flip of the uint8 pixels in the input pipeline."""
    import tensorflow as tf

    flip = tf.image.random_flip_left_right
    return keras_ours(folder).map(lambda images, labels: (flip(images, 1), labels))


def keras_layers(folder: Path) -> Iterable[Any]:
    """keras_dataset, and Keras's layers for flips and rotations in the input pipeline."""
    import keras

    layers = keras.layers
    change = layers.Pipeline([layers.RandomFlip("horizontal"), layers.RandomRotation(0.05)])
    return keras_ours(folder).map(lambda images, labels: (change(images, training=True), labels))


def _spec() -> dict[str, Any]:
    import tensorflow as tf

    return {
        IMAGE: tf.io.FixedLenFeature([], tf.string),
        LABEL: tf.io.FixedLenFeature([], tf.int64),
    }


def _one(record: Any) -> Any:
    import tensorflow as tf

    example = tf.io.parse_single_example(record, _spec())
    image = tf.io.decode_jpeg(example[IMAGE], 3)
    return tf.ensure_shape(image, (SIDE, SIDE, 3)), example[LABEL]


def _many(records: Any, method: str = "") -> Any:
    import tensorflow as tf

    example = tf.io.parse_example(records, _spec())
    kind = tf.TensorSpec((SIDE, SIDE, 3), tf.uint8)

    def decode(data: Any) -> Any:
        return tf.io.decode_jpeg(data, 3, dct_method=method)

    return tf.map_fn(decode, example[IMAGE], kind), example[LABEL]


def _interleaved(folder: Path, cycle: int, block: int) -> Any:
    import tensorflow as tf

    files = tf.data.Dataset.from_tensor_slices(files_of(folder, "plain"))
    return files.interleave(
        lambda file: tf.data.TFRecordDataset(file, buffer_size=1 << 20),
        cycle_length=cycle,
        block_length=block,
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def tuned_one_by_one(folder: Path) -> Iterable[Any]:
    """Uncompressed; parallel interleave, parallel map and prefetch, as in the tf.data guide."""
    import tensorflow as tf

    ready = tf.data.AUTOTUNE
    records = _interleaved(folder, 4, 16).shuffle(SHUFFLE)
    return records.map(_one, ready).batch(BATCH).prefetch(ready)


def tuned_any_order(folder: Path) -> Iterable[Any]:
    """Uncompressed; the same, not deterministic."""
    import tensorflow as tf

    ready = tf.data.AUTOTUNE
    options = tf.data.Options()
    options.deterministic = False
    records = _interleaved(folder, 4, 16).shuffle(SHUFFLE)
    return records.map(_one, ready).batch(BATCH).prefetch(ready).with_options(options)


def tuned_in_batches(folder: Path) -> Iterable[Any]:
    """Uncompressed; parsed and decoded in batches."""
    import tensorflow as tf

    ready = tf.data.AUTOTUNE
    records = _interleaved(folder, 4, 16).shuffle(SHUFFLE)
    return records.batch(BATCH).map(_many, ready).prefetch(ready)


def tuned_same_pixels(folder: Path) -> Iterable[Any]:
    """As tuned_in_batches, with the pixels of keras_dataset and Pillow."""
    import tensorflow as tf

    ready, records = tf.data.AUTOTUNE, _interleaved(folder, 4, 16).shuffle(SHUFFLE)
    exact = functools.partial(_many, method="INTEGER_ACCURATE")
    return records.batch(BATCH).map(exact, ready).prefetch(ready)


def classic(folder: Path) -> Iterable[Any]:
    """Uncompressed; the reader of the tutorials: interleave of 16 files, sequential map."""
    import tensorflow as tf

    files = tf.data.Dataset.from_tensor_slices(files_of(folder, "plain"))
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=16)
    return records.map(_one).shuffle(SHUFFLE).batch(BATCH)


# --- PyTorch: DataLoader with two workers, batches of uint8 images -------------------------------


def _pair(example: dict[str, Any]) -> tuple[Any, Any]:
    return example[IMAGE], example[LABEL]


def torch_dataset(folder: Path) -> Iterable[Any]:
    """Shardmill's stream, shuffled."""
    from torch.utils.data import DataLoader

    from shardmill.loaders import open_dataset
    from shardmill.loaders import torch_dataset as stream

    records = open_dataset(folder / "ds", "train", features=[IMAGE, LABEL], transform=_pair)
    return DataLoader(stream(records, shuffle=True), BATCH, num_workers=2)


def torch_blocks(folder: Path) -> Iterable[Any]:
    """Shardmill's stream in the order that remote storage has, with the buffer of WebDataset."""
    from torch.utils.data import DataLoader

    from shardmill.loaders import open_dataset
    from shardmill.loaders import torch_dataset as stream

    records = open_dataset(folder / "ds", "train", features=[IMAGE, LABEL], transform=_pair)
    blocks = stream(records, shuffle=True, order="blocks", buffer=SHUFFLE)
    return DataLoader(blocks, BATCH, num_workers=2)


def torch_map(folder: Path) -> Iterable[Any]:
    """Shardmill's random access with torch's shuffling sampler."""
    from torch.utils.data import DataLoader

    from shardmill.loaders import open_dataset

    records = open_dataset(folder / "ds", "train", features=[IMAGE, LABEL], transform=_pair)
    return DataLoader(records, BATCH, shuffle=True, num_workers=2)


def webdataset(folder: Path) -> Iterable[Any]:
    """WebDataset over tar files, shuffled with a buffer of the same size."""
    import webdataset as wds
    from torch.utils.data import DataLoader

    data = (
        wds.WebDataset(files_of(folder, "wds"), shardshuffle=100, empty_check=False)
        .shuffle(SHUFFLE)
        .decode("rgb8")
        .to_tuple("jpg", "cls")
    )
    return DataLoader(data, BATCH, num_workers=2)


def examples_of(tars: Path) -> Iterator[tuple[bytes, int]]:
    """Yields the images and labels of tar files."""
    import tarfile

    for path in sorted(tars.glob("*.tar")):
        with tarfile.open(path) as tar:
            members = iter(tar)
            for image, label in zip(members, members, strict=True):
                yield tar.extractfile(image).read(), int(tar.extractfile(label).read())


def write_mds(tars: Path, out: Path, shard_bytes: int) -> None:
    """Writes the images of tar files as MDS shards of MosaicML Streaming."""
    from streaming import MDSWriter

    columns = {"image": "jpeg", "label": "int"}
    with MDSWriter(out=str(out), columns=columns, size_limit=shard_bytes) as writer:
        for image, label in examples_of(tars):
            writer.write({"image": image, "label": label})


def mosaicml(folder: Path) -> Iterable[Any]:
    """MosaicML Streaming over local MDS shards, in its default order."""
    import numpy as np
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    class Pairs(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            row = super().__getitem__(at)
            return np.array(row["image"]), row["label"]

    data = Pairs(local=str(folder / "mds"), shuffle=True, batch_size=BATCH)
    return DataLoader(data, BATCH, num_workers=2)


# --- Grain: full shuffle, the same decoding ---------------------------------------------------


def _grain(source: Any, make: Callable[[Any], Any]) -> Iterable[Any]:
    import grain

    data = grain.MapDataset.source(source).shuffle(seed=0).map(make)
    options = grain.ReadOptions(num_threads=4, prefetch_buffer_size=128)
    return data.to_iter_dataset(options).batch(BATCH)


def _decoder(folder: Path) -> Any:
    from shardmill.loaders import open_dataset

    return open_dataset(folder / "ds", "train", features=[IMAGE, LABEL]).view.decoder


def grain_ours(folder: Path) -> Iterable[Any]:
    """Shardmill's shards with Grain."""
    from shardmill.loaders import open_dataset

    return _grain(open_dataset(folder / "ds", "train", features=[IMAGE, LABEL]), lambda x: x)


def grain_array_record(folder: Path) -> Iterable[Any]:
    """ArrayRecord with Grain; the same records, parsed and decoded by the same code."""
    import grain

    source = grain.sources.ArrayRecordDataSource(files_of(folder, "array"))
    return _grain(source, _decoder(folder))


class _Payloads:
    """The serialized examples of a dataset, as from an ArrayRecord source."""

    def __init__(self, folder: Path) -> None:
        from shardmill.loaders import open_dataset

        self._records = open_dataset(folder / "ds", "train")

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> bytes:
        return self._records.payload(index)


def grain_payloads_ours(folder: Path) -> Iterable[Any]:
    """Shardmill's shards with Grain; payloads only."""
    return _grain(_Payloads(folder), len)


def grain_payloads_array_record(folder: Path) -> Iterable[Any]:
    """ArrayRecord with Grain; payloads only."""
    import grain

    return _grain(grain.sources.ArrayRecordDataSource(files_of(folder, "array")), len)


# --- Random access, one thread --------------------------------------------------------------------


class _RandomAccess:
    """Single records in fully shuffled order."""

    def __init__(self, folder: Path, *, parsed: bool) -> None:
        from shardmill.loaders import open_dataset

        self._records = open_dataset(folder / "ds", "train", decode=False)
        self._get = self._records.__getitem__ if parsed else self._records.payload
        self._order = list(range(len(self._records)))

    def __iter__(self) -> Iterator[Any]:
        random.Random(0).shuffle(self._order)
        return map(self._get, self._order)


def random_records(folder: Path) -> Iterable[Any]:
    """Dicts of all features; images stay encoded."""
    return _RandomAccess(folder, parsed=True)


def random_payloads(folder: Path) -> Iterable[Any]:
    """Payloads, with CRC check."""
    return _RandomAccess(folder, parsed=False)


READERS: dict[str, Callable[[Path], Iterable[Any]]] = {
    reader.__name__: reader
    for reader in (
        keras_ours,
        keras_flip,
        keras_layers,
        tuned_one_by_one,
        tuned_any_order,
        tuned_in_batches,
        tuned_same_pixels,
        classic,
        torch_dataset,
        torch_blocks,
        torch_map,
        webdataset,
        mosaicml,
        grain_ours,
        grain_array_record,
        grain_payloads_ours,
        grain_payloads_array_record,
        random_records,
        random_payloads,
    )
}


def main() -> None:
    """Reads a few epochs, alternating between readers, and prints time and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", help="a reader, or several separated by commas: their epochs alternate"
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    if options.names == "write_mds":
        write_mds(options.folder / "wds", options.folder / "mds", 1 << 25)
        return
    readers = {name: READERS[name](options.folder) for name in options.names.split(",")}
    walls: dict[str, list[float]] = {name: [] for name in readers}
    cpus: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(options.epochs + 1):
        for name, data in readers.items():
            wall, cpu = time.perf_counter(), _cpu()
            for _batch in data:
                pass
            walls[name].append(time.perf_counter() - wall)
            cpus[name].append(_cpu() - cpu)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {
        name: {
            "wall": min(walls[name][1:]),
            "cpu": min(cpus[name][1:]),
            "memory": memory,
            "epochs": walls[name][1:],
        }
        for name in readers
    }
    print(json.dumps(found))


def _cpu() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
