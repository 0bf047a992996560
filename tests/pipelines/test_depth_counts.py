"""Images of more than 8 bits a channel are counted where users look, and other builds stay."""

import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import shardmill
from shardmill.pipelines.cli import main
from tests.conftest import make_photos

DEEP = 3


@pytest.fixture
def photos(tmp_path):
    """Ten photos, and three images of 16 bits."""
    folder = make_photos(tmp_path / "photos", {"a": 10})
    rng = np.random.default_rng(0)
    for number in range(DEEP):
        image = Image.fromarray(rng.integers(0, 65536, (20, 30), np.uint16))
        image.save(folder / "a" / f"depth{number}.png")
    return folder


def build(capsys, *arguments) -> dict:
    assert main(["images", *map(str, arguments), "--image_size=16", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def catalogs(folder) -> list:
    splits = json.loads((folder / "manifest.json").read_text())["splits"].values()
    files = [shard["catalog"]["file"] for split in splits for shard in split["shards"]]
    return [pq.read_table(folder / file) for file in files]


@pytest.mark.heavy
def test_depth_is_counted(tmp_path, photos, capsys):
    ds = tmp_path / "ds"
    build(capsys, photos, ds)
    manifest = json.loads((ds / "manifest.json").read_text())
    assert manifest["inputs"]["counts"] == {"depth_reduced": DEEP}
    warning = "images of more than 8 bits a channel, of which records have 8: 3"
    assert manifest["warnings"].count(warning) == 1
    found = [
        row
        for table in catalogs(ds)
        if "depth_reduced" in table.column_names
        for row in table.select(["key", "depth_reduced"]).to_pylist()
    ]
    deep = {row["key"] for row in found if row["depth_reduced"]}
    assert deep == {f"a/depth{number}.png" for number in range(DEEP)}
    assert shardmill.verify(ds).sound
    main(["check", str(ds)])
    out = " ".join(capsys.readouterr().out.split())  # lines are wrapped
    assert "depth_reduced: 3 of 13 images had more than 8 bits a channel" in out
    assert "such as a/depth" in out
    shardmill.report(ds, tmp_path / "report.html")
    assert "had more than 8 bits a channel" in (tmp_path / "report.html").read_text()
    # An update decodes only what is new, and counts what it takes.
    make_photos(photos, {"b": 1})
    updated = build(capsys, photos, ds, "--update")
    assert updated["reused"] == 13
    assert json.loads((ds / "manifest.json").read_text())["inputs"]["counts"] == {
        "depth_reduced": DEEP
    }


def test_other_datasets_stay_as_they_were(tmp_path, capsys):
    photos = make_photos(tmp_path / "photos", {"a": 10})
    ds = tmp_path / "ds"
    build(capsys, photos, ds)
    manifest = (ds / "manifest.json").read_text()
    assert "depth_reduced" not in manifest
    assert json.loads(manifest)["inputs"]["counts"] == {}
    assert all("depth_reduced" not in table.column_names for table in catalogs(ds))
    main(["check", str(ds)])
    assert "depth_reduced" not in capsys.readouterr().out


@pytest.mark.heavy
def test_depth_of_python_sources(tmp_path):
    file = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.float32)).save(file, "TIFF")
    deep = [np.zeros((4, 4), ">u2"), np.zeros((4, 4, 3), np.uint16), file.getvalue()]
    rows = [{"x": each} for each in [*deep, *[np.zeros((4, 4), np.uint8)] * 5]]
    built = shardmill.write(rows, tmp_path / "ds", image="x", splits="train:1", image_size=4)
    assert built.manifest.inputs.counts == {"depth_reduced": 3}
