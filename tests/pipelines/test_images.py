"""The images pipeline end to end on Beam's in-memory runner; tf.data reads the results."""

import gzip
import hashlib
import json
import subprocess
from collections import Counter
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from shardmill.pipelines.images import build_images
from shardmill.pipelines.images_config import ImagesConfig
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import ShardmillError, UsageError
from tests.conftest import build_dataset, make_image, make_photos
from tests.support.readers import tf_examples, tf_records
from tests.support.rows_tools import check_dataset


def check_images(folder: Path, manifest: Manifest | None) -> list[dict]:
    """Check a dataset with independent readers; return its examples."""
    return check_dataset(folder, manifest, "image/class/text" if manifest.labels else "")


def test_builds_a_dataset_from_a_folder(photos, tmp_path) -> None:
    outcome, manifest = build_dataset(input=photos, output=tmp_path / "ds", image_size="32x48")
    assert outcome.status == "published"
    examples = check_images(tmp_path / "ds", manifest)
    assert {e["image/key"][0].decode() for e in examples} == {
        str(p.relative_to(photos)) for p in photos.rglob("*.jpg")
    }
    labels = (tmp_path / "ds/current/labels.txt").read_text().splitlines()
    assert labels == ["cat", "dog"]
    for example in examples:
        assert (example["image/height"], example["image/width"]) == ([32], [48])
        assert example["image/format"] == [b"jpeg"]
        assert labels[example["image/class/label"][0]].encode() == example["image/class/text"][0]
        assert example["image/key"][0].startswith(example["image/class/text"][0])


def position(key: str) -> bytes:
    """Return a key's position by the definition in docs/format.md, without our code."""
    return hashlib.blake2b(
        key.encode(), digest_size=16, salt=bytes(16), person=b"shardmill-place"
    ).digest()[8:]


def test_shards_are_balanced_and_ordered_by_hash(tmp_path) -> None:
    photos = make_photos(tmp_path / "in", {"a": 60, "b": 60}, size=(16, 16))
    _, manifest = build_dataset(
        input=photos, output=tmp_path / "ds", image_size=8, num_shards=3, splits="train:1"
    )
    check_images(tmp_path / "ds", manifest)
    assert manifest.files == tuple(f"train-0000{i}-of-00003.tfrecord.gz" for i in range(3))
    assert [s.records for s in manifest.splits["train"].shards] == [40, 40, 40]
    keys = [
        e["image/key"][0]
        for name in manifest.files
        for e in tf_examples(tmp_path / "ds/current" / name)
    ]

    assert keys == sorted(keys, key=lambda key: position(key.decode()))
    assert keys != sorted(keys)


TUTORIALS = {
    "image=image/encoded,class=image/class/label": {"image": "string", "class": "int64"},
    "encoded=image/encoded,label=image/class/label,text=image/class/text": {
        "encoded": "string",
        "label": "int64",
        "text": "string",
    },
    "image=image/encoded,label=image/class/label": {"image": "string", "label": "int64"},
}


@pytest.mark.parametrize("features", TUTORIALS)
def test_features_flag_makes_the_features_of_tutorials(photos, tmp_path, features) -> None:
    import tensorflow as tf

    build_dataset(
        input=photos, output=tmp_path / "ds", image_size=24, features=features, splits="train:1"
    )
    spec = {
        name: tf.io.FixedLenFeature([], getattr(tf, kind))
        for name, kind in TUTORIALS[features].items()
    }
    files = tf.io.gfile.glob(str(tmp_path / "ds/current/train-*"))
    dataset = tf.data.TFRecordDataset(files, compression_type="GZIP").map(
        lambda record: tf.io.parse_single_example(record, spec)
    )
    parsed = list(dataset)
    assert len(parsed) == 21
    for example in parsed:
        image = tf.io.decode_jpeg(example.get("image", example.get("encoded")))
        assert image.shape == (24, 24, 3)
    for record in tf_records(files[0]):
        example = tf.train.Example.FromString(record)
        assert set(example.features.feature) == set(spec)


def test_shards_by_label_do_not_change_if_a_label_is_added(tmp_path) -> None:
    photos = make_photos(tmp_path / "in", {"b": 8, "d": 8})
    options = {"input": photos, "image_size": 16, "shard_by": "label", "num_shards": 2}
    _, before = build_dataset(output=tmp_path / "one", **options)
    assert set(before.files) == {
        f"{split}-{label}-0000{i}-of-00002.tfrecord.gz"
        for split in ("train", "validation")
        for label in "bd"
        for i in range(2)
        if split
        in {s for s in before.splits if any(label in f for f in before.files if f.startswith(s))}
    }
    for name in before.files:
        label = name.split("-")[1].encode()
        assert {e["image/class/text"][0] for e in tf_examples(tmp_path / "one/current" / name)} <= {
            label
        }
    make_photos(photos, {"e": 5})
    _, after = build_dataset(output=tmp_path / "two", **options)
    assert set(before.files) < set(after.files)
    for name in before.files:
        one, two = (tmp_path / each / "current" / name for each in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_labels_file_and_names_of_shards(tmp_path) -> None:
    photos = make_photos(tmp_path / "in", {"b": 4, "a": 4, "z": 1})
    (tmp_path / "labels.txt").write_text("z\na\nb\nnew\n")
    _, manifest = build_dataset(
        input=photos,
        output=tmp_path / "ds",
        image_size=8,
        labels=tmp_path / "labels.txt",
        splits="train:1",
        num_shards=2,
        shard_name="cat_dog{index:02d}-{records}.tfrec",
    )
    for number, shard in enumerate(manifest.splits["train"].shards):
        assert shard.file == f"cat_dog{number:02d}-{shard.records}.tfrec"
    assert manifest.labels == ("z", "a", "b", "new")
    ids = {"z": 0, "a": 1, "b": 2}
    for example in check_images(tmp_path / "ds", manifest):
        assert example["image/class/label"] == [ids[example["image/class/text"][0].decode()]]


def test_builds_without_labels(tmp_path) -> None:
    make_image(1).save(tmp_path / "1.jpg")
    _, manifest = build_dataset(
        input=tmp_path / "1.jpg",
        output=tmp_path / "ds",
        label_from="none",
        image_size=8,
        splits="train:1",
    )
    (example,) = check_images(tmp_path / "ds", manifest)
    assert set(example) == {
        "image/encoded",
        "image/format",
        "image/height",
        "image/width",
        "image/key",
    }
    assert not (tmp_path / "ds/current/labels.txt").exists()


def test_reads_a_listing_with_splits_and_faults(tmp_path) -> None:
    photos = make_photos(tmp_path / "in", {"x": 6})
    rows = ["path,label,split"]
    rows += [f"x/00{i}.jpg,l{i % 2},{'train' if i < 4 else 'val'}" for i in range(6)]
    rows += [rows[1], "x/missing.jpg,l0,train"]
    (photos / "list.csv").write_text("\n".join(rows))
    _, manifest = build_dataset(
        input=photos / "list.csv",
        output=tmp_path / "ds",
        label_from="listing",
        splits="listing",
        image_size=8,
    )
    check_images(tmp_path / "ds", manifest)
    assert {name: split.num_examples for name, split in manifest.splits.items()} == {
        "train": 4,
        "validation": 2,
    }
    assert manifest.inputs.duplicates == 1
    assert manifest.inputs.rejected_by_reason == {"not_found": 1}


# Small and unbalanced inputs.


def test_builds_from_one_image(tmp_path) -> None:
    make_photos(tmp_path / "in", {"a": 1})
    _, manifest = build_dataset(input=tmp_path / "in", output=tmp_path / "ds")
    check_images(tmp_path / "ds", manifest)
    assert sorted(split.num_examples for split in manifest.splits.values()) == [0, 1]
    (empty,) = (split for split in manifest.splits.values() if not split.num_examples)
    assert empty.shards == ()
    assert any("is empty" in warning for warning in manifest.warnings)


def test_fewer_images_than_shards(tmp_path) -> None:
    make_photos(tmp_path / "in", {"a": 3})
    _, manifest = build_dataset(
        input=tmp_path / "in", output=tmp_path / "ds", num_shards=5, splits="train:1", image_size=8
    )
    check_images(tmp_path / "ds", manifest)
    assert len(manifest.splits["train"].shards) == 5
    assert any("shards of train are empty" in warning for warning in manifest.warnings)
    for shard in manifest.splits["train"].shards:
        subprocess.run(["gzip", "-t", tmp_path / "ds/current" / shard.file], check=True)


# Determinism and identity.


def test_a_group_pattern_that_groups_nothing_is_a_warning(photos, tmp_path) -> None:
    """Copies of one scene would be in several splits."""
    options = {"input": photos, "image_size": 8}
    for pattern, warned in ((r"^cat/.(.)", False), ("(patient[0-9]+)_", True), (".+", True)):
        _, manifest = build_dataset(output=tmp_path / pattern[:3], group_pattern=pattern, **options)
        sentence = f"--group_pattern={pattern} groups nothing: each input is alone"
        assert (sentence in manifest.warnings) is warned


def test_limit_takes_the_same_random_sample(tmp_path) -> None:
    photos = make_photos(tmp_path / "in", {"a": 30, "b": 30}, size=(16, 16))
    keys = []
    for name in ("one", "two"):
        _, manifest = build_dataset(
            input=photos, output=tmp_path / name, image_size=8, limit=20, splits="train:1"
        )
        examples = check_images(tmp_path / name, manifest)
        keys.append([e["image/key"][0] for e in examples])
        assert len(examples) == 20
    assert keys[0] == keys[1]
    assert {key[:1] for key in keys[0]} == {b"a", b"b"}


# As a library.


def test_custom_pipeline_fails_if_nothing_is_published(photos, tmp_path) -> None:
    config = ImagesConfig(
        input=str(photos),
        output=str(tmp_path / "ds"),
        label_from="filename",
        label_pattern=r"(?P<label>x)",
    )
    with pytest.raises(ShardmillError, match=r"\(no_label: "):  # noqa: SIM117
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = build_images(pipeline, config)
    assert not (tmp_path / "ds" / "manifest.json").exists()


# Real data.

REAL = {
    "flower_photos": {"image_size": 64},
    "dogs_vs_cats/train": {"label_from": "filename", "image_size": 64},
    "dogs_vs_cats/test1": {"label_from": "none", "image_size": 64},
    "mixed_formats_dali": {"image_size": 64},
    "flowers_128px_with_junk": {"image_size": 64},
    "imagenet_sample": {"label_from": "filename", "image_size": 64},
    "mnist_png": {"image_size": 28, "channels": 1, "encoding": "png", "splits": "directory"},
    "standard_images": {"image_size": 64},
}
QUICK = ("mixed_formats_dali", "flowers_128px_with_junk")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.heavy] * (n not in QUICK)) for n in REAL]
)
def test_real_datasets(name: str, shared_data, tmp_path) -> None:
    folder = shared_data / "photos" / name
    _, manifest = build_dataset(
        input=folder, output=tmp_path / "ds", max_reject_fraction=0.2, **REAL[name]
    )
    examples = check_images(tmp_path / "ds", manifest)
    assert len(examples) >= 20
    for path in (tmp_path / "ds/current").glob("*.gz"):
        subprocess.run(["gzip", "-t", path], check=True)
        plain = subprocess.run(["zcat", path], check=True, capture_output=True).stdout
        assert plain == gzip.decompress(path.read_bytes())


@pytest.mark.heavy
def test_broken_files_are_rejects(shared_data, tmp_path) -> None:
    _, manifest = build_dataset(
        input=shared_data / "bad", output=tmp_path / "ds", image_size=64, max_reject_fraction=1.0
    )
    check_images(tmp_path / "ds", manifest)
    assert manifest.inputs.rejected > 500
    assert manifest.written > 400
    lines = (tmp_path / "ds/current/rejects.jsonl").read_text().splitlines()
    assert len(lines) == manifest.inputs.rejected
    assert (
        Counter(json.loads(line)["error"] for line in lines) == manifest.inputs.rejected_by_reason
    )


@pytest.mark.heavy
def test_class_ids_may_sort_numbers_by_value(tmp_path):
    """A warning says that they sort as texts; only ids change with the option, no image."""
    photos = make_photos(tmp_path / "in", {str(number): 1 for number in range(12)}, size=(8, 8))
    options = {"image_size": 8, "splits": "train:1"}
    output = tmp_path / "ds"
    _, by_text = build_dataset(input=photos, output=output, **options)
    assert "label_order" not in by_text.build.config
    assert "'10' has the class id 2" in " ".join(by_text.warnings)
    options["label_order"] = "number"
    outcome, by_number = build_dataset(input=photos, output=output, update=True, **options)
    assert by_number.labels == tuple(map(str, range(12)))
    assert outcome.reused == 12
    assert "label_order was text, now number" in outcome.changes
    assert not any("class id" in warning for warning in by_number.warnings)
    for example in check_images(output, by_number):
        assert example["image/class/text"] == [b"%d" % example["image/class/label"][0]]
    _, new = build_dataset(input=photos, output=tmp_path / "new", **options)
    assert new.splits == by_number.splits
    del options["label_order"]
    outcome, _ = build_dataset(input=photos, output=output, **options)
    assert "label_order was number, now text" in outcome.message
    for flag, value in (("labels", "labels.txt"), ("label_from", "none")):
        with pytest.raises(UsageError, match="--label_order=number has no effect with"):
            ImagesConfig(input="in", output="out", label_order="number", **{flag: value})
