"""A pytest plugin: datasets that the tests of the loaders share, built once per process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import build_dataset, make_image, make_photos
from tests.support.loader_tools import CELLS, COLUMNS, IMAGES, PHOTOS, ROWS, cells
from tests.support.rows_tools import build_rows, make_table


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory) -> Path:
    """Photos in three classes, of two sizes."""
    folder = make_photos(tmp_path_factory.mktemp("photos"), PHOTOS, size=(40, 30))
    for number in range(0, PHOTOS["ant"], 3):
        make_image(number, 33, 47).save(folder / "ant" / f"{number:03d}.jpg", quality=90)
    return folder


@pytest.fixture(scope="session")
def images(photo_folder, tmp_path_factory) -> Callable[[str], Path]:
    """Return a function that builds a dataset of IMAGES on first use."""
    made: dict[str, Path] = {}

    def build(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp("ds") / kind
            outcome, _ = build_dataset(
                input=photo_folder, output=folder, splits="train:0.7,validation:0.3", **IMAGES[kind]
            )
            assert outcome.status == "published"
            made[kind] = folder
        return made[kind]

    return build


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Path:
    """A dataset of rows; the column "kind" is its label."""
    folder = tmp_path_factory.mktemp("rows")
    make_table(folder / "in.csv", CELLS, [cells(number) for number in range(ROWS)])
    (folder / "columns.pbtxt").write_text(COLUMNS)
    outcome, _ = build_rows(
        input=folder / "in.csv",
        output=folder / "ds",
        schema=folder / "columns.pbtxt",
        splits="train:0.7,validation:0.3",
        num_shards=3,
        label="kind",
    )
    assert outcome.status == "published"
    return folder / "ds"


@pytest.fixture(scope="session")
def dataset(images, table) -> Callable[[str], Path]:
    """Return a function from a name of IMAGES, or ``rows``, to the dataset."""
    return lambda kind: table if kind == "rows" else images(kind)
