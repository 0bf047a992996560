"""Rollback publishes no version of which a file was damaged: it uses the checks of verify."""

import json
import shutil
from pathlib import Path

import pytest

from shardmill.pipelines.cli import main
from tests.conftest import build_dataset, make_photos


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A dataset with two earlier versions, labels and a reject."""
    folder = tmp_path_factory.mktemp("rollback")
    photos = make_photos(folder / "photos", {"cat": 5, "dog": 4}, size=(9, 9))
    (photos / "cat" / "broken.jpg").write_bytes(b"not an image")
    for seed in range(3):
        build_dataset(
            input=photos, output=folder / "ds", image_size=8, seed=seed, update=True, keep=2
        )
    return folder / "ds"


@pytest.fixture
def dataset(made, tmp_path) -> Path:
    return shutil.copytree(made, tmp_path / "ds", symlinks=True)


def earlier(dataset: Path) -> Path:
    return dataset / json.loads((dataset / "manifest.json").read_text())["previous"][0]


def flip(path: Path) -> None:
    """Change a byte in the middle; the size stays."""
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.heavy
def test_no_version_with_a_damaged_file_is_published_again(dataset, capsys) -> None:
    folder = earlier(dataset)
    names = {path.name for path in files(folder)}
    assert {"manifest.json", "schema.pbtxt", "labels.txt", "rejects.jsonl"} < names
    before = (dataset / "manifest.json").read_bytes()
    for path in files(folder):
        whole = path.read_bytes()
        for damage in (flip, Path.unlink, lambda path: path.write_bytes(path.read_bytes() + b"\n")):
            damage(path)
            assert main(["rollback", str(dataset)]) == 1, path
            message = capsys.readouterr().err
            assert path.name in message
            assert main(["verify", str(dataset), "--quiet"]) == (path.name == "manifest.json")
            capsys.readouterr()
            path.write_bytes(whole)
            assert (dataset / "manifest.json").read_bytes() == before
    assert main(["rollback", str(dataset)]) == 0
    assert main(["verify", str(dataset)]) == 0


@pytest.mark.heavy
def test_a_manifest_that_was_edited_is_not_published_again(dataset, capsys) -> None:
    """The manifest at the output has the checksum of each version's manifest."""
    path = earlier(dataset) / "manifest.json"
    body = json.loads(path.read_text())
    body["build"]["runner"] = "another"
    path.write_text(json.dumps(body))
    assert main(["rollback", str(dataset)]) == 1
    assert "manifest.json is missing or damaged (its CRC-32C is not" in capsys.readouterr().err


def test_versions_of_0_2_0_are_published_again(dataset) -> None:
    """They have no checksums; a rollback forth and back loses none that are known."""
    for path in (dataset / "manifest.json", *dataset.glob("gen-*/manifest.json")):
        body = json.loads(path.read_text())
        body.pop("checksums")
        body.pop("manifests", None)
        path.write_text(json.dumps(body))
    for _ in range(2):
        assert main(["rollback", str(dataset)]) == 0
        assert main(["verify", str(dataset)]) == 0
        manifest = json.loads((dataset / "manifest.json").read_text())
        assert {*manifest["manifests"]} == {manifest["generation"], *manifest["previous"]}


def test_a_version_that_does_not_exist_is_found(dataset, capsys) -> None:
    shutil.rmtree(earlier(dataset))
    assert main(["verify", str(dataset)]) == 1
    assert f"{earlier(dataset).name}/manifest.json: it is missing" in capsys.readouterr().out
