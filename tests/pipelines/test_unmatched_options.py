"""Options that choose among inputs and match none: the message has the option, its value and a name."""

import io
import json
import random
import string
import tarfile
import zipfile
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import make_photos, shardmill

# Input, option with a value that matches nothing in it, and a name of what is there.
CASES = [
    ("a.tar", "--image_suffix={value}", "cat/000.jpg"),
    ("a.tar", "--image_suffix=.{VALUE},{value}.png", "cat/000.jpg"),
    ("a.zip", "--image_suffix={value}", "cat/000.jpg"),
    ("a.tar", "--label_pattern=(?P<label>{value})", "cat/000.jpg"),
    ("photos", "--label_pattern=(?P<label>{value})", "cat/000.jpg"),
    ("photos", "--label_from=filename --label_pattern=(?P<label>{value}).*", "cat/000.jpg"),
    ("photos", "--group_pattern={value}", ""),
    ("a.tar", "--label_column={value}", "cat/000.jpg"),
    ("json.tar", "--label_column={value}", "animal"),
    ("a.parquet", "--label_column={value}", "label"),
    ("a.parquet", "--image_column={value}", "image"),
    ("photos", "--splits=directory", "cat/000.jpg"),
    ("photos", "--splits=train:1,test={value}", "photos"),
    ("photos", "--splits=train:1 --unlabeled_splits={value}", "train"),
    ("list.csv", "--label_from=listing --splits=listing --unlabeled_splits={value}", "train"),
    ("t.csv", "--label={value}", "label"),
    ("t.csv", "--key={value}", "label"),
    ("t.csv", "--select={value}", "label"),
    ("t.csv", "--drop={value}", "label"),
    ("t.csv", "--split_by={value}", "label"),
    ("t.csv", "--group_by={value}", "label"),
    ("t.csv", "--label=label --split_by=split --unlabeled_splits={value}", "train"),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    photos = make_photos(folder / "photos", {"cat": 4, "dog": 4}, size=(8, 8))
    members = {
        path.relative_to(photos).as_posix(): path.read_bytes() for path in photos.glob("*/*")
    }
    labels = {
        Path(name).with_suffix(".json").as_posix(): json.dumps({"animal": "x"}).encode()
        for name in members
    }
    for archive, files in (("a.tar", members), ("json.tar", {**members, **labels})):
        with tarfile.open(folder / archive, "w") as tar:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    pd.Series(members).to_frame("image").assign(label="x").to_parquet(folder / "a.parquet")
    rows = pd.DataFrame({"path": [f"photos/{name}" for name in members]})
    rows.assign(label="x", split="train").to_csv(folder / "list.csv", index=False)
    rows.assign(label="x", split="train").to_csv(folder / "t.csv", index=False)
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return folder


@pytest.mark.sweep
@pytest.mark.parametrize(("source", "options", "there"), CASES)
def test_an_option_that_matches_nothing_is_named(inputs, tmp_path, source, options, there) -> None:
    rng = random.Random(f"{source} {options}")
    value = "".join(rng.choices(string.ascii_lowercase, k=6))
    flags = [flag.format(value=value, VALUE=value.upper()) for flag in options.split()]
    kind = "rows" if source == "t.csv" else "images"
    more = [] if kind == "rows" else ["--image_size=8"]
    done = shardmill(kind, inputs / source, tmp_path / "ds", *more, *flags)
    text = " ".join((done.stdout + done.stderr).split())
    name, _, chosen = flags[-1].partition("=")
    assert name in text
    assert all(part.strip(".").lower() in text.lower() for part in chosen.split(","))
    assert there in text
    assert "check --input" not in text
