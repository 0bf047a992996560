"""A dataset of another person: no file of it makes a command wait, or leads it elsewhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shardmill
from shardmill.pipelines.cli import main
from shardmill.schemas import Manifest, ShardmillError
from shardmill.schemas.dataset import dataset_files
from shardmill.schemas.errors import FormatError
from tests.conftest import SOAK, build_dataset, make_photos

SMALL_FILES = ("manifest.json", "schema.pbtxt", "labels.txt", "rejects.jsonl")
KINDS = ["pipe", "device", "endless link", "folder", "huge"]
# Reads the dataset in every way; a failure must be a sentence, which none of these raises.
READ_ALL = """
import sys
import shardmill
from shardmill.pipelines.cli import main
folder = sys.argv[1]
for command in ("verify", "report", "show", "check", "steps"):
    words = [command, folder]
    if command == "report":
        words.append(f"--output={folder}.html")
    if command == "steps":
        words.append("--batch_size=2")
    print(command, main(words), flush=True)
try:
    print(len(shardmill.open_dataset(folder, "train")))
except shardmill.ShardmillError as error:
    print("open_dataset", error)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A dataset with labels and a reject."""
    folder = tmp_path_factory.mktemp("hostile")
    photos = make_photos(folder / "photos", {"cat": 6, "dog": 7})
    (photos / "cat" / "broken.jpg").write_bytes(b"not an image")
    build_dataset(input=photos, output=folder / "ds", image_size=8, splits="train:1")
    return folder / "ds"


def replace_by(kind: str, path: Path) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "endless link":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:  # sparse: takes no space
            file.truncate(dataset_files.MAX_BYTES + 1)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS if SOAK else KINDS[:2])
@pytest.mark.heavy
def test_no_command_waits_for_a_file_or_reads_it_for_ever(made, tmp_path, kind) -> None:
    for outer in (True, False):
        for name in SMALL_FILES if outer is False else SMALL_FILES[:1]:
            dataset = tmp_path / f"{outer}-{name}"
            shutil.copytree(made, dataset, symlinks=True)
            replace_by(kind, (dataset if outer else dataset / "current") / name)
            done = subprocess.run(
                [sys.executable, "-c", READ_ALL, str(dataset if outer else dataset / "current")],
                check=False,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr, done.stderr
            assert "verify 1" in done.stdout, (name, done.stdout, done.stderr)
            # The manifest is needed by all, and the schema by readers.
            if name == "manifest.json":
                assert "report 1" in done.stdout
                assert "show 1" in done.stdout
            if name in ("manifest.json", "schema.pbtxt"):
                assert "open_dataset" in done.stdout
            shutil.rmtree(dataset)


@pytest.mark.parametrize("name", SMALL_FILES)
def test_verify_names_a_pipe(made, tmp_path, name, capsys) -> None:
    dataset = shutil.copytree(made, tmp_path / "ds", symlinks=True)
    replace_by("pipe", dataset / "current" / name)
    assert main(["verify", str(dataset / "current")]) == 1
    output = capsys.readouterr()
    assert name in output.out + output.err
    assert "pipe" in output.out + output.err


def test_the_manifest_of_a_dataset_has_no_root(made, tmp_path) -> None:
    """A root would lead readers to the files of another folder, or of another storage."""
    private = made / "current"
    shared = tmp_path / "shared"
    shared.mkdir()
    body = json.loads((private / "manifest.json").read_text())
    outer = json.loads((made / "manifest.json").read_text())
    for manifest in (body, outer):
        for root in (str(private.resolve()), "gs://bucket/private", "..", 7, [str(private)], True):
            (shared / "manifest.json").write_text(json.dumps({**manifest, "root": root}))
            for path in (shared, shared / "manifest.json"):
                with pytest.raises(ShardmillError, match="only the manifest of `shardmill count`"):
                    shardmill.open_dataset(path, "train")
                assert main(["verify", str(path)]) == 1
                assert main(["rollback", str(shared)]) == 1


def test_a_folder_with_the_count_of_another_folder_is_not_opened(made, tmp_path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    counted = shared / "manifest.json"
    assert main(["count", str(made), f"--manifest={counted}"]) == 0
    with pytest.raises(ShardmillError, match=r"is a count of .*, another folder"):
        shardmill.open_dataset(shared, "all")
    assert main(["steps", str(shared), "--batch_size=1"]) == 1
    # A user who names the file means it, and the count of a folder may be in that folder.
    assert main(["steps", str(counted), "--batch_size=1"]) == 0
    inside = tmp_path / "shards"
    shutil.copytree(made / "current", inside)
    (inside / "manifest.json").unlink()
    assert main(["count", str(inside), f"--manifest={inside / 'manifest.json'}"]) == 0
    assert main(["steps", str(inside), "--batch_size=1"]) == 0


@pytest.mark.parametrize("number", [1 << 63, 1 << 64, 10**30])
def test_numbers_that_no_reader_can_hold_are_a_sentence(made, tmp_path, number) -> None:
    dataset = shutil.copytree(made, tmp_path / "ds", symlinks=True)
    path = dataset / "manifest.json"
    body = json.loads(path.read_text())
    split = body["splits"]["train"]
    shard = split["shards"][0]
    for place, name in (
        (shard, "records"),
        (shard, "bytes"),
        (shard["catalog"], "bytes"),
        (split, "num_examples"),
    ):
        whole = place[name]
        place[name] = number
        with pytest.raises(FormatError, match=f"its {name} is {number}, and 2\\*\\*63"):
            Manifest.from_json(json.dumps(body))
        path.write_text(json.dumps(body))
        for command in ("verify", "report", "show", "check"):
            assert main([command, str(dataset)]) == 1
        place[name] = whole
    Manifest.from_json(json.dumps(body))
