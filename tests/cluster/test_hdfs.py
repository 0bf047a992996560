"""hdfs:// on a real HDFS: a name node and a data node, reached by Beam's WebHDFS client."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardmill.loaders import open_dataset
from shardmill.pipelines.cli import main
from shardmill.schemas.errors import DeniedError, StorageError, UsageError
from shardmill.schemas.storage import OPTIONS_VARIABLE, Storage, open_storage
from shardmill.schemas.storage.beam_hdfs import HdfsStorage
from tests.conftest import make_photos
from tests.schemas.storage import test_storage
from tests.schemas.storage.test_s3 import run, without_manifest
from tests.schemas.storage.test_storage import NAMES, PROMISES, Place, check_concat
from tests.support.readers import dataset_files

pytest_plugins = ["tests.support.gcs_server", "tests.support.hdfs_server"]

FLAGS = ["--image_size=32", "--num_shards=6", "--splits=train:0.7,validation:0.3"]
COMBINED = {"\u0308"}


@pytest.fixture
def place(hdfs_root) -> Place:
    storage = open_storage(hdfs_root)
    storage.replace(f"{hdfs_root}/top/x", b"")
    storage.delete(f"{hdfs_root}/top/x")
    return Place(storage, f"{hdfs_root}/top")


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__[5:])
def test_what_every_storage_promises(promise, place):
    promise(place)


@pytest.mark.parametrize("size", [0, 1, 50_000_001])
def test_what_is_written_is_read(size, place):
    test_storage.test_what_is_written_is_read(place, size)


@pytest.mark.parametrize("same", [False, True])
def test_exactly_one_of_many_racing_creates_wins(same, place):
    test_storage.test_exactly_one_of_many_racing_creates_wins(place, same)


def test_racing_moves_all_succeed(place):
    test_storage.test_racing_moves_all_succeed(place)


@pytest.mark.parametrize("count", [0, 2, 40])
def test_concat_joins_in_order(count, place):
    check_concat(place, count, {0: b"before", count: b"end"})


@pytest.mark.parametrize(
    "name", [name for name in NAMES if ":" not in name and not COMBINED & {*name}]
)
def test_any_name_works_but_for_colons(name, place):
    path = place.path(name, name)
    assert place.storage.create(path, b"one")
    assert [entry.path for entry in place.storage.list_dir(place.path(name))] == [path]
    place.storage.move(path, place.path(name, "b" + name))
    assert place.tree() == {f"{name}/b{name}": b"one"}
    with pytest.raises(StorageError, match="Invalid path name"):
        place.storage.replace(place.path("a:b"), b"")


def test_a_name_with_combining_characters_is_refused(place):
    """As Hadoop 3.4.1 does when it is asked to rename."""
    with pytest.raises(StorageError, match="Unable to rename"):
        place.storage.create(place.path("u\u0308", "u\u0308"), b"one")


def upload(storage: Storage, folder: Path, uri: str) -> str:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            storage.replace(f"{uri}/{path.relative_to(folder)}", path.read_bytes())
    return uri


def files_of(storage: Storage, uri: str) -> dict[str, bytes]:
    return {
        entry.path[len(uri) + 1 :]: storage.read(entry.path)
        for entry in storage.walk(uri)
        if entry.kind == "file"
    }


def test_a_build_is_killed_resumed_verified_and_read(hdfs_root, hdfs_flags, tmp_path, capsys):
    photos = make_photos(tmp_path / "photos", {"cat": 60, "dog": 40}, size=(300, 200))
    near, far = tmp_path / "ds", f"{hdfs_root}/ds"
    assert main(["images", f"--input={photos}", f"--output={near}", *FLAGS]) == 0
    storage = HdfsStorage()
    source = upload(storage, photos, f"{hdfs_root}/in")
    args = ["images", f"--input={source}", f"--output={far}", *FLAGS, *hdfs_flags]

    def parts() -> int:
        found = storage.walk(far)
        return sum("/parts/" in e.path and e.path.endswith(".json") for e in found)

    command = [sys.executable, "-m", "shardmill.pipelines.cli", *args]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and parts() < 3:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert parts() >= 3
    code, out, err = run(capsys, *args)
    assert code == 0, err
    assert "found from before" in out
    assert without_manifest(files_of(storage, far)) == dataset_files(near)
    code, out, _ = run(capsys, *args)
    assert (code, "up to date" in out.lower()) == (0, True)
    code, out, _ = run(capsys, "verify", far)
    assert (code, "all sound" in out) == (0, True)
    assert run(capsys, "steps", far, "--batch_size=8")[0] == 0
    assert run(capsys, "show", far)[0] == 0
    assert run(capsys, "clean", far)[0] == 0
    for ours, theirs in zip(open_dataset(near), open_dataset(far), strict=True):
        assert (ours["image/encoded"] == theirs["image/encoded"]).all()
    code, _, err = run(capsys, *args, "--image_size=16", "--overwrite")
    assert code == 0, err
    assert set(files_of(storage, far)) == {*dataset_files(near), "manifest.json"}


def test_a_refusal_is_one_sentence(hdfs_root, hdfs_flags, monkeypatch):
    monkeypatch.setenv(OPTIONS_VARIABLE, " ".join([*hdfs_flags[:2], "--hdfs_user=nobody"]))
    for call in (HdfsStorage().replace, HdfsStorage().create):
        with pytest.raises(DeniedError, match="Permission denied: user=nobody") as refused:
            call(f"{hdfs_root}/x", b"x")
        assert "\n" not in str(refused.value)
        assert "\tat" not in str(refused.value)
        assert str(refused.value).endswith("; ask for that permission.")


def test_where_it_is_must_be_told(hdfs_root, monkeypatch):
    monkeypatch.delenv(OPTIONS_VARIABLE)
    with pytest.raises(UsageError, match="hdfs_host is not set; give --hdfs_host, --hdfs_port"):
        HdfsStorage().stat(hdfs_root)
    monkeypatch.setenv(OPTIONS_VARIABLE, "--hdfs_host=127.0.0.1 --hdfs_port=9 --hdfs_user=me")
    began = time.monotonic()
    with pytest.raises(StorageError, match="Connection refused"):
        HdfsStorage().stat(hdfs_root)
    assert time.monotonic() - began < 20
