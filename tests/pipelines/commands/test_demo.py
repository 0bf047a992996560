"""``shardmill demo``: the data of the docs."""

import csv
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from shardmill.pipelines.demo_files import demo_files
from tests.support.rows_tools import run_here


def test_writes_photos_and_a_table(tmp_path, capsys) -> None:
    folder = tmp_path / "demo"
    code, out, _ = run_here(capsys, "demo", str(folder), "--json")
    assert (code, json.loads(out)["photos"]) == (0, 402)
    sizes, broken = set(), []
    for path in sorted(folder.glob("photos/*/*")):
        try:
            with Image.open(path) as image:
                image.load()
                sizes.add(image.size)
        except OSError:
            broken.append(f"{path.parent.name}/{path.name}")
    assert broken == ["cat/not_found.jpg", "coffee/cut_short.jpg"]
    assert len(sizes) > 300
    rows = list(csv.DictReader(io.StringIO((folder / "titanic.csv").read_text(encoding="utf-8"))))
    assert len(rows) == 1309
    assert sum(int(row["survived"]) for row in rows) == 500


def test_contents_are_as_described(tmp_path, capsys) -> None:
    folder = tmp_path / "demo"
    code, out, _ = run_here(capsys, "demo", str(folder))
    assert code == 0
    names = {line.split()[0].removeprefix(f"{folder}/") for line in out.splitlines()}
    assert {path.name for path in folder.iterdir()} == names
    images = sorted(path.stem for path in folder.glob("shapes/images/*"))
    assert len(images) == 400
    assert sorted(path.stem for path in folder.glob("shapes/masks/*")) == images
    assert sorted(path.stem for path in folder.glob("shapes/annotations/*")) == images
    pixels, labels = (np.load(folder / "arrays" / f"{name}.npy") for name in "xy")
    assert pixels.shape == (500, 28, 28)
    assert len(labels) == 500
    members = np.load(folder / "digits.npz")
    assert (members["x"] == pixels).all()
    assert (members["label"] == labels).all()


def test_boxes_and_masks_are_of_the_same_shapes(tmp_path) -> None:
    """The box of the pixels of a mask that are not 0 is that of all boxes of the picture."""
    contents = demo_files()
    for number in range(0, 400, 13):
        name = f"{number:04d}"
        text = contents[f"shapes/annotations/{name}.xml"].decode()
        sides = {
            side: [int(value) for value in re.findall(rf"<{side}>(\d+)<", text)]
            for side in ("xmin", "ymin", "xmax", "ymax")
        }
        with Image.open(io.BytesIO(contents[f"shapes/masks/{name}.png"])) as mask:
            assert mask.getbbox() == (
                min(sides["xmin"]),
                min(sides["ymin"]),
                max(sides["xmax"]),
                max(sides["ymax"]),
            )
            classes = {("disk", "square")[value - 1] for _, value in mask.getcolors() if value}
        assert classes == set(re.findall("<name>(.+?)</name>", text))


@pytest.mark.heavy
def test_a_second_call_writes_nothing(tmp_path, capsys) -> None:
    folder = tmp_path / "demo"
    first = run_here(capsys, "demo", str(folder))
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    (folder / "ds").mkdir()  # other files do no harm
    assert run_here(capsys, "demo", str(folder)) == first
    assert {path: path.stat().st_mtime_ns for path in times} == times
    _, out, _ = run_here(capsys, "demo", str(folder), "--json")
    assert json.loads(out)["status"] == "up_to_date"
    (folder / "photos" / "cat" / "000.jpg").unlink()
    assert run_here(capsys, "demo", str(folder))[0] == 1
    assert not (folder / "photos" / "cat" / "000.jpg").exists()


def test_never_writes_into_a_folder_with_files(tmp_path, capsys) -> None:
    (tmp_path / "mine.txt").touch()
    for taken in (tmp_path, tmp_path / "mine.txt"):
        code, _, err = run_here(capsys, "demo", str(taken))
        assert code == 1
        assert f"{taken} is neither empty nor a copy of this demo: give a new folder." in err
    code, _, err = run_here(capsys, "demo", str(tmp_path / "mine.txt" / "x"))
    assert (code, "Cannot write to" in err) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
