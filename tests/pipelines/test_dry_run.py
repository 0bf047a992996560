"""``--dry_run`` plans a build, and writes nothing."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from shardmill.pipelines import cli
from tests.conftest import make_photos
from tests.support.rows_tools import make_table


def photos(folder) -> str:
    make_photos(folder / "in" / "a", {"cat": 40, "dog": 20})
    make_photos(folder / "in" / "b", {"owl": 12}, size=(300, 200))
    (folder / "in" / "b" / "owl" / "bad.jpg").write_bytes(b"\xff\xd8\xff no image")
    return str(folder / "in")


def rows(folder) -> str:
    random = np.random.default_rng(5)
    lines = zip(random.normal(size=9_000), random.choice(["Bern", "Genf"], 9_000), strict=True)
    make_table(folder / "in.csv", ["id", "x", "city"], [(n, *line) for n, line in enumerate(lines)])
    return str(folder / "in.csv")


def compressed(folder) -> str:
    (folder / "in.csv.gz").write_bytes(gzip.compress(Path(rows(folder)).read_bytes()))
    return str(folder / "in.csv.gz")


def arrays(folder) -> str:
    values = np.random.default_rng(6).integers(0, 9, (3_000, 20, 20))
    np.savez(folder / "in.npz", x=values, y=np.array(["no", "yes"])[values[:, 0, 0] % 2])
    return str(folder / "in.npz")


def answer(capsys, *flags: str) -> dict:
    assert cli.main([*flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "make"), [("images", photos), ("rows", rows), ("rows", compressed), ("arrays", arrays)]
)
def test_writes_nothing_and_knows_the_labels(kind, make, tmp_path, capsys) -> None:
    command = [kind, make(tmp_path), str(tmp_path / "ds"), "--max_reject_fraction=0.5"]
    command = command if kind == "images" else command[:-1]
    before = sorted(tmp_path.rglob("*"))
    planned = answer(capsys, *command, "--dry_run")
    assert sorted(tmp_path.rglob("*")) == before
    answer(capsys, *command)
    manifest = json.loads((tmp_path / "ds" / "manifest.json").read_text())
    assert planned["labels"] == manifest["labels"]


def test_prints_the_labels(tmp_path, capsys) -> None:
    assert cli.main(["images", photos(tmp_path), str(tmp_path / "ds"), "--dry_run"]) == 0
    assert "\n  labels     3: cat, dog, owl\n" in capsys.readouterr().out
