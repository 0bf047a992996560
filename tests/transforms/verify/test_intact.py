"""No check finds anything in an intact dataset; tests/golden checks those of other kinds."""

import json
from pathlib import Path

import pytest

from shardmill.schemas import Manifest
from shardmill.schemas.tfrecord.framing import crc32c
from shardmill.transforms.verify.verify import find_dataset, verify_dataset
from tests.conftest import ROOT, build_dataset
from tests.support.annotation_tools import (
    truth,
    write_annotations,
    write_images,
    write_masks,
)

FORMATS = ROOT / "tests" / "formats"


def assert_intact(output: Path) -> None:
    assert verify_dataset(find_dataset(str(output)), deep=True) == []


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


@pytest.mark.parametrize("kind", ["photos", "pixels", "table", "arrays"])
def test_datasets_of_earlier_releases(kind) -> None:
    folders = sorted(FORMATS.glob(f"*/{kind}"))
    assert folders
    for folder in folders:
        assert "checksums" not in json.loads(
            (FORMATS / "0.2.0" / kind / "manifest.json").read_text()
        )
        assert_intact(folder)
