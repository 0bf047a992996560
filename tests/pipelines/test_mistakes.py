"""Each mistake of a user ends with one sentence and exit code 1 or 2, and writes nothing.

Here of the whole command; ``test_cli.py`` and the tests of commands have more, in one process.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ADDRESS, build_dataset, make_image, make_photos, shardmill

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

BUILD = "images photos out"
ROWS = "rows people.csv out"
# Arguments, and a part of the sentence.
MISTAKES = [
    # Commands and flags
    ("--input=photos", "unknown: use one of"),
    ("images photos people.csv", "is a file: choose a folder"),
    ("images photos out more", "--input=out does not exist"),
    ("images photos --input=photos --output=out", "'photos' is one path too many"),
    ("images --output=out", "required: --input"),
    ("images input=photos output=out", "write it as --input=photos"),
    (f"{BUILD} -o=1", "-o is unknown"),
    (f"{BUILD} --seed", "expected one argument"),
    (f"{BUILD} --update=yes", "ignored explicit argument"),
    (f"{BUILD} --s3_region_name=eu", "is not supported: s3://"),
    (f"{BUILD} --runner=Spork", "Spork"),
    (f"{BUILD} --update --overwrite", "cannot be combined"),
    (f"{BUILD} --keep=-1", "must be 0 or more"),
    # Values
    (f"{BUILD} --duplicates=eat", "eat is unknown"),
    (f"{BUILD} --max_reject_fraction=some", "is not a number"),
    (f"{BUILD} --labels=photos", "is a folder"),
    # Places
    ("images flat out", "set --label_from=none or --label_column, or give the folder above"),
    ("images people.csv out", "use `shardmill rows`"),
    ("images cut.zip out", "is cut short"),
    ("images archives out", "unpack archives first"),
    ("images videos out", "extract the frames of videos first"),
    ("images heic out --label_from=none", "install shardmill[heic] for HEIC images"),
    ("images arrays out", "use `shardmill arrays`"),
    ("images x.npy out", "use `shardmill arrays`"),
    ("images photos people.csv", "people.csv"),
    ("images photos /proc/out", "accepts no files"),
    ("images photos ds", "image_size was 16, now 224"),
    # Rows and arrays
    ("rows photos out", "use `shardmill images`"),
    ("rows x.npy out", "use `shardmill arrays`"),
    ("rows photos.zip out", "unpack archives first"),
    (f"{ROWS} --preprocessing=people.csv", "running the file fails"),
    ("arrays photos out", "shardmill"),
    ("arrays people.csv out", "people.csv"),
    ("arrays x.npy out --label=z", "z"),
    # Datasets
    ("count photos", "photos"),
    ("count ds --manifest=ds/manifest.json", "manifest"),
    ("verify photos", "photos"),
    ("verify ds --processes=0", "must be 1 or more"),
    ("check ds --min_examples=train:100", "100"),
    ("files ds --split=dev", "no split 'dev'"),
    ("rollback photos", "photos"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    make_photos(folder / "photos", {"cat": 4, "dog": 4}, size=(20, 20))
    build_dataset(input=folder / "photos", output=folder / "ds", image_size="16")
    for name in ("flat", "archives", "videos", "heic", "arrays"):
        (folder / name).mkdir()
    make_image(1, 20, 20).save(folder / "flat" / "a.jpg")
    (folder / "people.csv").write_text("name,age\nAnn,30\nBob,41\n")
    shutil.make_archive(str(folder / "photos"), "zip", folder / "photos")
    (folder / "cut.zip").write_bytes((folder / "photos.zip").read_bytes()[:-30])
    (folder / "archives" / "a.7z").write_bytes(b"7z\xbc\xaf\x27\x1c")
    (folder / "videos" / "a.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(40))
    (folder / "heic" / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    np.save(folder / "x.npy", np.zeros((5, 2)))
    np.save(folder / "arrays" / "x.npy", np.zeros((5, 2)))
    return folder


def listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_each_mistake_is_one_sentence(folder):
    """No traceback, exit code 1 or 2, a sentence and its address, and nothing is published.

    A build whose images were all rejected leaves the list of rejects, which the sentence names.
    """
    before = listing(folder)
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda each: shardmill(*each[0].split(), cwd=folder), MISTAKES))
    problems = []
    for (words, part), done in zip(MISTAKES, ended, strict=True):
        lines = ADDRESS.sub("", done.stderr).splitlines()
        fine = len(lines) == 1 and lines[0].startswith("shardmill: ") and part in lines[0]
        fine &= "docs/errors.md#" in done.stderr or words.startswith("check")
        if not fine or done.returncode not in (1, 2) or len(lines[0]) > 600:
            problems.append(f"{words}: exit {done.returncode}: {done.stderr[:400]}")
    assert not problems, "\n".join(problems)
    after = {path: time for path, time in listing(folder).items() if ".build-" not in path}
    assert after == before
