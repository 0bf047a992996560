"""A dataset that the tests of several commands read."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import build_dataset, make_photos


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """A dataset with a reject and a skipped file."""
    folder = tmp_path_factory.mktemp("show")
    photos = make_photos(folder / "photos", {"cat": 12, "dog": 9})
    (photos / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff broken")
    (photos / "cat" / "Thumbs.db").write_bytes(b"junk")
    build_dataset(
        input=photos,
        output=folder / "ds",
        image_size=32,
        max_reject_fraction=0.5,
        seed=3,
        splits="train:0.7,validation:0.3",
    )
    return folder / "ds"


@pytest.fixture
def dataset(built, tmp_path) -> Path:
    """A copy of it, to change."""
    return shutil.copytree(built, tmp_path / "ds", symlinks=True)
