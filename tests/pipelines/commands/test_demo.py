"""``shardmill demo``: data that the wheel holds, to follow the docs with."""

import csv
import io
import json

from PIL import Image

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


def test_two_calls_write_the_same_bytes(tmp_path, capsys) -> None:
    each = [tmp_path / "one", tmp_path / "two"]
    for folder in each:
        assert run_here(capsys, "demo", str(folder))[0] == 0
    files = [path.relative_to(each[0]) for path in each[0].rglob("*.*")]
    assert all((each[0] / name).read_bytes() == (each[1] / name).read_bytes() for name in files)


def test_never_writes_into_a_folder_with_files(tmp_path, capsys) -> None:
    (tmp_path / "mine.txt").touch()
    for taken in (tmp_path, tmp_path / "mine.txt"):
        code, _, err = run_here(capsys, "demo", str(taken))
        assert code == 1
        assert f"{taken} exists and is not an empty folder: give a new one." in err
    code, _, err = run_here(capsys, "demo", str(tmp_path / "mine.txt" / "x"))
    assert (code, "Cannot write to" in err) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
