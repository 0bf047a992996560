"""Options that have no effect: a warning names them, and the same without them has none."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pandas as pd
import pytest

import shardmill as api
from shardmill.schemas.errors import UsageError
from tests.conftest import make_photos, shardmill

# Input, options, and whether a warning says that they have no effect.
CASES = [
    ("a.tar", "--image_column=x", "warning"),
    ("a.zip", "--image_column=x", "warning"),
    ("*.[tz]*", "--image_column=x", "warning"),
    ("a.parquet", "--image_column=image", ""),
    ("a.*", "--image_column=image", ""),
    ("a.parquet", "--image_suffix=jpg", "warning"),
    ("a.tar", "--image_suffix=jpg", ""),
    ("a.*", "--image_suffix=jpg", ""),
    ("a.zip", "--zip_encoding=cp932", "warning"),
    ("a.tar", "--zip_encoding=cp932", "warning"),
    ("old.zip", "--zip_encoding=cp932", ""),
    ("a.parquet", "--label_from=none --label_column=label", "warning"),
    ("a.tar", "--label_from=filename --label_column=label", "warning"),
    ("a.parquet", "--label_column=label", ""),
    ("photos", "--encoding=png --quality=50", "warning"),
    ("photos", "--encoding=raw --quality=50", "warning"),
    ("photos", "--encoding=jpeg --quality=50", ""),
    ("photos", "--encoding=keep --resize=none --quality=50", ""),
    ("t.csv", "--partitions", "warning"),
    ("by", "--partitions", ""),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    photos = make_photos(folder / "photos", {"cat": 4, "dog": 4}, size=(8, 8))
    paths = sorted(photos.glob("*/*"))
    with tarfile.open(folder / "a.tar", "w") as tar, zipfile.ZipFile(folder / "a.zip", "w") as pack:
        for path in paths:
            name = path.relative_to(photos).as_posix()
            tar.add(path, name)
            pack.write(path, name)
    # As Windows in Japanese writes it: the name is cp932, and no flag says so.
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as pack:
        pack.writestr("cat/####.jpg", paths[0].read_bytes())
        pack.writestr("cat/plain.jpg", paths[1].read_bytes())
    (folder / "old.zip").write_bytes(raw.getvalue().replace(b"####", "写真".encode("cp932")))
    content = [path.read_bytes() for path in paths]
    pd.DataFrame({"image": content, "label": "x"}).to_parquet(folder / "a.parquet")
    (folder / "by" / "year=2026").mkdir(parents=True)
    for name in ("t.csv", "by/year=2026/t.csv"):
        (folder / name).write_text("a,b\n1,2\n3,4\n")
    return folder


@pytest.mark.sweep
@pytest.mark.parametrize(("source", "flags", "kind"), CASES)
def test_an_option_without_effect_is_named(inputs, tmp_path, source, flags, kind) -> None:
    command = "rows" if "--partitions" in flags else "images"
    options = flags.split()
    more = ["--splits=train:1", *(["--image_size=8"] * ("none" not in flags))]
    more = ["--splits=train:1"] if command == "rows" or "keep" in flags else more
    done = shardmill(command, inputs / source, tmp_path / "ds", *more, *options)
    assert done.returncode == 0, done.stderr
    name = options[-1]
    manifest = json.loads((tmp_path / "ds" / "manifest.json").read_text())
    texts = [text for text in manifest["warnings"] if "no effect" in text]
    assert [text.partition(" had no effect: ")[0] for text in texts] == [name] * bool(kind)


@pytest.mark.parametrize("name", ["image_column", "label_column", "image_suffix", "zip_encoding"])
def test_write_has_no_options_of_archives(tmp_path, name) -> None:
    with pytest.raises(UsageError, match=f"has no option {name}"):
        api.write([{"image": b""}], tmp_path / "ds", image="image", **{name: "cp932"})
