"""No check finds anything in an intact dataset of any kind."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import apache_beam as beam
import numpy as np
import pytest
from PIL import Image

import shardmill
from shardmill.pipelines.cli import main
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.verify.verify import find_dataset, verify_dataset
from tests.conftest import ROOT, build_dataset, make_photos
from tests.support.annotation_tools import (
    truth,
    write_annotations,
    write_images,
    write_listing,
    write_masks,
)
from tests.support.formats import TABLE

FORMATS = ROOT / "tests" / "formats"


class Element(NamedTuple):
    """An element of a pipeline."""

    id: str
    values: list[float]
    label: str


def assert_intact(output: Path) -> None:
    assert verify_dataset(find_dataset(str(output)), deep=True) == []


IMAGES = {
    "plain": {},
    "raw": {"encoding": "raw", "compression": "none"},
    "png with a feature of another name": {
        "encoding": "png",
        "features": "pic=image/encoded,image/key",
    },
    "without images": {"features": "image/key,image/height"},
    "kept": {"encoding": "keep", "image_size": None},
    "original size": {"image_size": None},
    "by label": {"shard_by": "label"},
    "a name": {"shard_name": "{split}_{index}_{records}.gz", "num_shards": 2},
    "no labels": {"label_from": "none"},
    "one split": {"splits": "train:1", "num_shards": 3},
    "unlabeled": {"unlabeled_splits": "test", "splits": "train:0.6,test:0.4"},
    "groups": {"group_pattern": r"/(\d)"},
    "copies dropped": {"duplicates": "drop"},
    "copies in one split": {"duplicates": "same_split"},
    "many shards": {"num_shards": 30},
    "grey": {"channels": 1},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = make_photos(
        tmp_path_factory.mktemp("intact") / "photos", {"cat": 8, "dog": 7}, size=(24, 16)
    )
    shutil.copyfile(folder / "cat" / "000.jpg", folder / "dog" / "copy.jpg")
    Image.new("LA", (9, 5)).save(folder / "cat" / "alpha.png")
    (folder / "cat" / "broken.jpg").write_bytes(b"no image")
    return folder


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.heavy
def test_images(photos, tmp_path, name) -> None:
    options = {"image_size": "8", "max_reject_fraction": 0.5, "splits": "train:0.7,validation:0.3"}
    options |= IMAGES[name]
    options = {key: value for key, value in options.items() if value is not None}
    build_dataset(input=photos, output=tmp_path / "ds", **options)
    assert_intact(tmp_path / "ds")
    (photos / "dog" / "new.jpg").write_bytes((photos / "dog" / "001.jpg").read_bytes())
    try:
        build_dataset(input=photos, output=tmp_path / "ds", update=True, **options, seed=3)
    finally:
        (photos / "dog" / "new.jpg").unlink()
    assert_intact(tmp_path / "ds")
    assert main(["rollback", str(tmp_path / "ds")]) == 0
    assert_intact(tmp_path / "ds")


def listing(photos: Path) -> Path:
    rows = ["path,label,score,split"]
    for number, path in enumerate(sorted(photos.rglob("00*.jpg"))):
        labels = "a|b" if number % 3 else "b"
        rows.append(
            f"{path.relative_to(photos)},{labels},{number / 4},{'train' if number % 2 else 'test'}"
        )
    (photos / "list.csv").write_text("\n".join(rows) + "\n")
    return photos / "list.csv"


@pytest.mark.heavy
def test_listings_and_named_splits(photos, tmp_path) -> None:
    options = {"image_size": "8", "label_from": "listing", "label_separator": "|"}
    outcome, _ = build_dataset(
        input=listing(shutil.copytree(photos, tmp_path / "listed")),
        output=tmp_path / "ds",
        **options,
    )
    assert outcome.status == "published", outcome.message
    assert_intact(tmp_path / "ds")
    folder = tmp_path / "split"
    shutil.copytree(photos, folder / "train")
    shutil.copytree(photos, folder / "val")
    build_dataset(
        input=folder, output=tmp_path / "split_ds", image_size="8", max_reject_fraction=0.5
    )
    assert_intact(tmp_path / "split_ds")


@pytest.mark.parametrize("kind", ["voc", "yolo", "coco"])
@pytest.mark.heavy
def test_annotations_and_masks(tmp_path, kind) -> None:
    folder = write_images(tmp_path / "in")
    options = write_annotations(kind, folder, truth())
    write_masks(folder / "masks")
    options |= {"masks": str(folder / "masks"), "image_size": "32"}
    build_dataset(input=folder / "JPEGImages", root=folder, output=tmp_path / "ds", **options)
    assert_intact(tmp_path / "ds")
    # Labels of boxes are counted in records alone.
    outer, inner = (tmp_path / "ds" / name for name in ("manifest.json", "current/manifest.json"))
    checksums = {}
    for path in (inner, outer):
        manifest = Manifest.from_json(path.read_bytes())
        counts = manifest.splits["train"].label_counts
        first, second, *_ = counts
        counts[first], counts[second] = counts[second] + 1, counts[first] - 1
        manifest.manifests.update(checksums)
        text = manifest.to_json().encode()
        path.write_bytes(text)
        checksums[(tmp_path / "ds" / "current").resolve().name] = f"{crc32c(text):08x}"
    (finding,) = verify_dataset(find_dataset(str(tmp_path / "ds")), deep=True)
    assert "counts" in finding.message


@pytest.mark.heavy
def test_listed_columns_are_features(tmp_path) -> None:
    listed = write_listing(write_images(tmp_path / "in"))
    options = {"label_from": "none", "image_size": "8"}
    outcome, _ = build_dataset(input=listed, output=tmp_path / "ds", **options)
    assert outcome.status == "published", outcome.message
    assert_intact(tmp_path / "ds")


@pytest.mark.heavy
def test_elements_of_a_pipeline(tmp_path) -> None:
    elements = [Element(f"{n:03}", [n / 3] * 2, "ab"[n % 2]) for n in range(40)]
    with beam.Pipeline() as pipeline:
        _ = (
            pipeline
            | beam.Create(elements).with_output_types(Element)
            | shardmill.WriteDataset(str(tmp_path / "ds"), key="id")
        )
    assert_intact(tmp_path / "ds")


@pytest.mark.heavy
def test_tables_arrays_and_python(tmp_path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(TABLE)
    for number, options in enumerate(
        (
            {"label": "label", "key": "id"},
            {"label": "id"},
            {},
            {"label": "score", "defaults": "score:1.5"},
            {"label": "label", "limit": 20},
            {"types": "name:text:|", "compression": "none"},
        )
    ):
        build_dataset("rows", input=table, output=tmp_path / f"rows{number}", **options)
        assert_intact(tmp_path / f"rows{number}")
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "x.npy", np.arange(60, dtype=np.float32).reshape(15, 4))
    np.save(tmp_path / "arrays" / "y.npy", np.arange(15) % 3)
    build_dataset("arrays", input=tmp_path / "arrays", output=tmp_path / "arrays_ds")
    assert_intact(tmp_path / "arrays_ds")
    rows = [
        {"n": n, "x": float("nan") if n % 4 == 0 else n / 3, "t": [str(n)] * (n % 3)}
        for n in range(30)
    ]
    shardmill.write(rows, tmp_path / "written")
    assert_intact(tmp_path / "written")
    images = [
        {"image": Image.new("RGB", (9, 9), (n, 0, 0)), "label": "ab"[n % 2]} for n in range(20)
    ]
    shardmill.write(images, tmp_path / "images", image="image", label="label", image_size=8)
    assert_intact(tmp_path / "images")


@pytest.mark.parametrize("kind", ["photos", "pixels", "table", "arrays"])
def test_datasets_of_earlier_releases(kind) -> None:
    folders = sorted(FORMATS.glob(f"*/{kind}"))
    assert folders
    for folder in folders:
        assert "checksums" not in json.loads(
            (FORMATS / "0.2.0" / kind / "manifest.json").read_text()
        )
        assert_intact(folder)
