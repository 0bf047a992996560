"""Folders that are named like splits are splits; the run and the manifest say so."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from shardmill.schemas.dataset.splits import DEFAULT_SPLITS, split_of_folder
from tests.conftest import build_dataset, make_photos, resolve_job, shardmill
from tests.support.readers import tf_examples


def build(folder: Path, **options):
    output = folder / "ds"
    shutil.rmtree(output, ignore_errors=True)
    outcome, manifest = build_dataset(
        input=folder / "in", output=output, image_size=8, num_shards=1, **options
    )
    assert outcome.status == "published"
    return manifest


def contents(folder: Path) -> dict[str, set[str]]:
    """Return the keys of each split, read by tf.data."""
    return {
        path.name.split("-")[0]: {e["image/key"][0].decode() for e in tf_examples(path)}
        for path in (folder / "ds/current").glob("*.tfrecord.gz")
    }


TREE = {"Train/cat": 4, "train/dog": 2, "val/cat": 3, "test/dog/more": 2}


def test_tree_of_splits_keeps_its_splits(tmp_path) -> None:
    make_photos(tmp_path / "in", TREE, size=(8, 8))
    manifest = build(tmp_path)
    assert {name: split.label_counts for name, split in manifest.splits.items()} == {
        "train": {"cat": 4, "dog": 2},
        "validation": {"cat": 3},
        "test": {"dog": 2},
    }
    (warning,) = manifest.warnings
    assert warning.startswith("the folders 'Train', 'test', 'train', 'val' were taken as splits")
    folders = {s: {key.split("/")[0] for key in keys} for s, keys in contents(tmp_path).items()}
    assert folders == {"train": {"Train", "train"}, "validation": {"val"}, "test": {"test"}}
    # It is the dataset of the same command with --splits=directory, which needs no warning.
    explicit = build(tmp_path, splits="directory")
    assert explicit.build.config_id == manifest.build.config_id
    assert [s.crc32c for s in explicit.splits["test"].shards] == [
        s.crc32c for s in manifest.splits["test"].shards
    ]
    assert explicit.warnings == ()
    shares = build(tmp_path, splits=DEFAULT_SPLITS)
    assert list(shares.splits) == ["train", "validation"]
    assert shares.build.config_id != manifest.build.config_id


def test_split_folders_without_subfolders_have_no_labels(tmp_path) -> None:
    make_photos(tmp_path / "in", {"train": 4, "validation": 2}, size=(8, 8))
    manifest = build(tmp_path)
    assert {name: split.num_examples for name, split in manifest.splits.items()} == {
        "train": 4,
        "validation": 2,
    }
    assert manifest.labels == ()
    assert "no subfolders, so the images have no labels: --label_from=" in manifest.warnings[0]
    assert build(tmp_path, label_from="filename").labels  # labels that are asked for are kept
    (tmp_path / "labels.txt").write_text("cat\n")
    outcome, _ = build_dataset(
        input=tmp_path / "in", output=tmp_path / "other", labels=tmp_path / "labels.txt"
    )
    assert "(no_label: " in outcome.message


@pytest.mark.parametrize(
    "folders", [{"cat": 2, "dog": 2, "test": 2}, {"train": 3}, {"train": 2, "training": 2}]
)
def test_labels_that_are_called_like_splits_stay_labels(tmp_path, folders) -> None:
    make_photos(tmp_path / "in", folders, size=(8, 8))
    manifest = build(tmp_path)
    counted = Counter()
    for split in manifest.splits.values():
        counted.update(split.label_counts)
    assert counted == folders
    assert not any("taken as" in w for w in manifest.warnings)
    assert ("look like splits, but not 'cat', 'dog'" in manifest.warnings[0]) == ("cat" in folders)
    flag = "--splits=directory" if "cat" in folders else "--label_from=filename or none"
    assert flag in manifest.warnings[0]


def test_failure_says_which_folders_were_taken_as_splits(tmp_path) -> None:
    make_photos(tmp_path / "in", {"train/cat": 5, "train/dog": 5, "test": 5}, size=(8, 8))
    outcome, _ = build_dataset(input=tmp_path / "in", output=tmp_path / "ds", image_size=8)
    assert outcome.status == "failed"
    assert "5 of 15 inputs were rejected (no_label 5)" in outcome.message
    assert (
        "(the folders 'test', 'train' were taken as splits; --splits=train:0.9" in outcome.message
    )
    advice = "'test' has no subfolders, so the images have no labels: add --unlabeled_splits=test"
    assert advice in outcome.message
    assert build(tmp_path, unlabeled_splits="test").splits["test"].num_examples == 5


def test_labels_of_split_folders_may_be_numbers(tmp_path) -> None:
    names = [f"{split}/{number}" for split in ("train", "test") for number in (2, 10)]
    make_photos(tmp_path / "in", dict.fromkeys(names, 1), size=(8, 8))
    assert build(tmp_path, label_order="number").labels == ("2", "10")
    make_photos(tmp_path / "flat", {"train": 2, "test": 2}, size=(8, 8))
    options = {"input": tmp_path / "flat", "output": tmp_path / "other", "image_size": 8}
    _, manifest = build_dataset(**options, label_order="number")
    assert manifest.labels == ()


@pytest.mark.parametrize("sibling", ["labels/train", "annotations", "notes"])
def test_split_folders_next_to_others_are_a_warning(tmp_path, sibling) -> None:
    """As in exports of YOLO and COCO; following the advice takes them as splits."""
    make_photos(tmp_path / "in", {"images/train2017": 4, "images/val": 3}, size=(8, 8))
    (tmp_path / "in" / sibling).mkdir(parents=True)
    options = {"input": tmp_path / "in", "output": tmp_path / "ds", "label_from": "none"}
    start = "'images/train2017', 'images/val' look like splits: use --splits="
    [warning] = resolve_job("images", **options).sink.warnings
    assert warning.startswith(start)
    splits = warning.removeprefix(start)
    _, manifest = build_dataset(**options, splits=splits, image_size=8)
    counts = {name: split.num_examples for name, split in manifest.splits.items()}
    assert counts == {"train": 4, "validation": 3}


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_unlabeled_splits_may_be_those_of_folders(tmp_path, kind) -> None:
    if kind == "images":
        make_photos(tmp_path / "in", {"train/cat": 3, "train/dog": 2, "test": 4}, size=(8, 8))
        options = {"image_size": 8}
    else:
        for name, text in (("train", "label,x\ncat,1\ndog,2\n"), ("test", "label,x\n,3\n")):
            (tmp_path / "in" / name).mkdir(parents=True)
            (tmp_path / "in" / name / "t.csv").write_text(text)
        options = {"label": "label"}
    options |= {"input": tmp_path / "in", "output": tmp_path / "ds"}
    _, manifest = build_dataset(kind, **options, unlabeled_splits="test")
    assert {name: split.labeled for name, split in manifest.splits.items()} == {
        "train": True,
        "test": False,
    }
    numbers = {name: split.num_examples for name, split in manifest.splits.items()}
    assert numbers == ({"train": 5, "test": 4} if kind == "images" else {"train": 2, "test": 1})
    shutil.rmtree(tmp_path / "in" / "test")
    done = shardmill(
        kind,
        *(f"--{name}={value}" for name, value in options.items()),
        "--overwrite",
        "--unlabeled_splits=test",
    )
    assert done.returncode == 2
    assert "--unlabeled_splits=test is not a split: the splits are train, valid" in done.stderr


def test_names_of_split_folders() -> None:
    """Of data sets on the web."""
    for name, split in {
        "test1": "test",
        "training_set": "train",
        "test_set": "test",
        "train_images": "train",
        "validation_data": "validation",
        "Val-2": "validation",
        "eval": "validation",
        "TrainSplit": "train",
        "dev set": "validation",
        "tests": "",
        "trains": "",
        "validity": "",
        "test_cats": "",
        "train_": "",
        "pretrain": "",
    }.items():
        assert split_of_folder(name) == split, name


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_split_folders_below_the_input_are_a_warning(tmp_path, kind) -> None:
    make_photos(tmp_path / "in", {"a/b/train/cat": 2, "a/b/test/cat": 2}, size=(8, 8))
    for name in ("train", "test"):
        (tmp_path / "in/a/b" / name / "x.csv").write_text("a\n1\n2\n")
    job = resolve_job(kind, input=tmp_path / "in", output=tmp_path / "ds")
    assert job.sink.warnings[0] == (
        f"'a/b/test', 'a/b/train' look like splits: use --input={tmp_path}/in/a/b"
    )
    (tmp_path / "in/a/more").mkdir()
    (tmp_path / "in/a/b/loop").symlink_to(tmp_path / "in")
    assert resolve_job(kind, input=tmp_path / "in", output=tmp_path / "ds").sink.warnings == (
        "'a/b/test', 'a/b/train' look like splits: use --splits=test=a/b/test,train=a/b/train",
    )


def test_globs(tmp_path) -> None:
    source = make_photos(tmp_path / "in", {"train/cat": 2, "val/cat": 2}, size=(8, 8))
    others = {"output": tmp_path / "ds", "image_size": 8}
    for pattern, mode in (("*/*/*", "directory"), ("*.jpg", "fractions")):
        assert resolve_job("images", input=source / pattern, **others).config.shares.mode == mode
    above = resolve_job("images", input=source, root=tmp_path, **others)
    assert above.config.splits is None  # the first folder of its keys is "in"


def test_rows_in_split_folders(tmp_path) -> None:
    for split, rows in (("train", 5), ("validation", 3)):
        (tmp_path / "in" / split).mkdir(parents=True)
        (tmp_path / "in" / split / "x.csv").write_text("a\n" + "1\n" * rows)
    _, manifest = build_dataset("rows", input=tmp_path / "in", output=tmp_path / "ds")
    assert {name: split.num_examples for name, split in manifest.splits.items()} == {
        "train": 5,
        "validation": 3,
    }
    assert "were taken as splits" in manifest.warnings[0]


def test_lists_skipped_files_by_kind(tmp_path) -> None:
    source = make_photos(tmp_path / "in", {"cat": 2}, size=(8, 8))
    for name in ("cat/b.txt", "cat/a.TXT", "a.xml", ".DS_Store", "cat/._x.jpg", "b.txt"):
        (source / name).write_text("x")
    wanted = "skipped: 3 .txt (b.txt), 2 hidden (.DS_Store), 1 .xml (a.xml)"
    assert wanted in build(tmp_path).warnings
    flags = (f"--input={source}", f"--output={tmp_path}/other", "--dry_run")
    assert wanted in shardmill("images", *flags).stdout


def test_warns_of_a_label_for_each_file(tmp_path) -> None:
    make_photos(tmp_path / "in", {"cat": 3}, size=(8, 8))
    manifest = build(tmp_path, label_from="filename")
    assert manifest.warnings[0].startswith("each of the 3 files has another label, such as")
    pattern = r"(?P<label>.).*"
    assert not any(
        "its own" in w
        for w in build(tmp_path, label_from="filename", label_pattern=pattern).warnings
    )
