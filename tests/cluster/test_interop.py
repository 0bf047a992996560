"""Hugging Face datasets, TFDS and DALI read what Shardmill's readers read.

`make test-interop` installs them. The code is that of docs/training.md and examples/to_tfds.py.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shardmill.loaders import Stream, open_dataset
from shardmill.pipelines.commands.demo import write_files
from shardmill.pipelines.demo_files import demo_files
from tests.conftest import ROOT, build_dataset, make_photos
from tests.support.examples_data import write_titanic
from tests.support.rows_tools import build_rows

LABELS = ["roses", "tulips"]
KINDS = {
    "ds": {"image_size": 32, "num_shards": 2},
    "png": {"image_size": 24, "encoding": "png", "compression": "none", "num_shards": 3},
    "raw": {"image_size": 16, "encoding": "raw", "shard_by": "label"},
    "mixed": {"resize": "none"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with datasets, and a copy of each for TFDS and DALI."""
    folder = tmp_path_factory.mktemp("interop")
    photos = make_photos(folder / "photos", dict.fromkeys(LABELS, 40), size=(48, 32))
    for name, options in KINDS.items():
        build_dataset(input=photos, output=folder / name, **options)
    write_files(folder / "demo", demo_files())  # the dataset of docs/training.md
    build_dataset(input=folder / "demo" / "photos", output=folder / "page", image_size=96)
    write_titanic(folder / "titanic.csv")
    build_rows(
        input=folder / "titanic.csv", output=folder / "titanic", label="survived", null_values="?"
    )
    return folder


@pytest.fixture(scope="module")
def copy_of(folder):
    """Return a function from the name of a dataset to its copy."""

    def make(name: str) -> Path:
        copy = folder / "copies" / name
        if not copy.exists():
            command = [sys.executable, ROOT / "examples" / "to_tfds.py", folder / name, copy]
            subprocess.run(command, check=True)
        return copy

    return make


@pytest.fixture(autouse=True)
def hugging_face_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))


SECTION = (ROOT / "docs" / "training.md").read_text().partition("\n## Other libraries\n")[2]
PARTS = SECTION.partition("\n## ")[0].split("\n### ")[1:]
RUN = """
import sys
from tests.support.docs_code import code_of, run_checked
names = {}
print(sum(run_checked(code, names) for code in code_of(sys.argv[1])))
"""


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.split("\n")[0])
def test_the_docs_run(part, folder, copy_of, tmp_path):
    """A process for each part: TensorFlow cannot be imported after DALI."""
    (tmp_path / "ds").symlink_to(folder / "page")
    (tmp_path / "copy").symlink_to(copy_of("page"))
    env = {**os.environ, "HF_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RUN, part]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) >= 1


# Hugging Face datasets.


def test_hugging_face_has_the_same_pixels_and_labels(folder):
    import datasets

    records = open_dataset(folder / "png")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(records.labels))}
    )

    def examples():
        for row in records:
            yield {"image": row["image"], "label": row["label"]}

    whole = datasets.Dataset.from_generator(examples, features=features)
    assert len(whole) == len(records)
    for row, expected in zip(whole, records, strict=True):
        np.testing.assert_array_equal(np.asarray(row["image"]), expected["image"])
        assert features["label"].int2str(row["label"]).encode() == expected["image/class/text"]
    stream = Stream(records, shuffle=True, seed=1)
    streamed = datasets.IterableDataset.from_generator(
        lambda: ({"image": row["image"], "label": row["label"]} for row in stream),
        features=features,
    )
    orders = [[np.asarray(row["image"]).tobytes() for row in streamed] for _ in range(2)]
    expected = sorted(row["image"].tobytes() for row in records)
    assert [sorted(order) for order in orders] == [expected] * 2
    assert orders[0] != orders[1]


# TFDS.


def rows_of(builder, split: str, **options):
    """Return the examples in the order of the shards."""
    import tensorflow_datasets as tfds

    order = tfds.ReadConfig(interleave_cycle_length=1)
    return builder.as_dataset(split, read_config=order, **options).as_numpy_iterator()


@pytest.mark.parametrize("name", [*KINDS, "titanic"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_tfds_reads_the_copy(name, split, folder, copy_of):
    import tensorflow as tf
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(copy_of(name))
    fill = {"body": -1} if name == "titanic" else None
    records = open_dataset(folder / name, split, fill=fill, decode=name != "mixed")
    assert builder.info.splits[split].num_examples == len(records)
    skip = {"image/encoded": tfds.decode.SkipDecoding()} if name in ("ds", "mixed") else None
    found = list(rows_of(builder, split, decoders=skip))
    assert len(found) == len(records)
    for row, expected in zip(found, records, strict=True):
        if name == "titanic":
            wanted = {column: as_list(value, row[column]) for column, value in expected.items()}
            assert {column: np.ravel(value).tolist() for column, value in row.items()} == wanted
            continue
        image = expected.get("image", expected.get("image/encoded"))
        given = row["image/encoded"]
        if name == "ds":
            given = tf.io.decode_jpeg(given, 3, dct_method="INTEGER_ACCURATE").numpy()
        np.testing.assert_array_equal(given, image)
        label = expected.get("label", expected.get("image/class/label"))
        assert row["image/class/label"] == label
        assert row["image/class/text"] == expected["image/class/text"]
    if name != "titanic":
        assert builder.info.features["image/class/label"].names == LABELS


def as_list(value, given) -> list:
    """Return a value of open_dataset as TFDS gives it: one that is missing is an empty list."""
    missing = value in (b"", -1) or str(value) == "nan"
    return [] if np.ndim(given) and missing else [value]


# DALI.


@pytest.mark.parametrize("name", ["ds", "png"])
def test_dali_reads_the_copy(name, folder, copy_of):
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali import tfrecord as tfrec

    copy = copy_of(name)
    files = sorted(map(str, copy.glob("*-train.tfrecord-*")))
    indexes = sorted(map(str, copy.glob("index/*-train.tfrecord-*")))
    features = {
        "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
        "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
    }

    @pipeline_def(batch_size=8, num_threads=2, device_id=None)
    def read():
        row = fn.readers.tfrecord(
            path=files,
            index_path=indexes,
            features=features,
            name="reader",
        )
        return fn.decoders.image(row["image/encoded"], device="cpu"), row["image/class/label"]

    pipeline = read()
    pipeline.build()
    records = open_dataset(folder / name)
    assert pipeline.epoch_size("reader") == len(records)
    found = []
    for _ in range(len(records) // 8):
        images, labels = pipeline.run()
        found += [(images.at(n), int(labels.at(n)[0])) for n in range(8)]
    for (image, label), row in zip(found, records):  # noqa: B905 - a batch that is not full
        assert label == row["label"]
        assert image.shape == row["image"].shape
        assert np.abs(image.astype(int) - row["image"]).max() <= (0 if name == "png" else 2)
    assert Counter(label for _, label in found).keys() == {0, 1}
