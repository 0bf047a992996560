"""Whole builds from, to and between buckets, on an emulator, with Beam's own runner."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache_beam as beam
import google_crc32c
import pytest

from shardmill.pipelines.cli import main
from shardmill.pipelines.images import build, outcomes, resolve
from shardmill.pipelines.images_config import ImagesConfig
from shardmill.pipelines.run import IN_MEMORY, run_pipeline
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import InputError, ShardmillError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.gcs import GcsStorage
from tests.conftest import SOAK, make_photos, shardmill
from tests.support.fault_tools import PROGRESS
from tests.support.readers import dataset_files, gzip_records

pytest_plugins = ["tests.support.gcs_server"]
pytestmark = pytest.mark.heavy

OPTIONS = {"image_size": "32", "num_shards": 4, "splits": "train:0.8,validation:0.2"}
FLAGS = ["--image_size=32", "--num_shards=4", "--splits=train:0.8,validation:0.2"]


def upload(folder: Path, uri: str) -> str:
    storage = open_storage(uri)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            storage.replace(f"{uri}/{path.relative_to(folder)}", path.read_bytes())
    return uri


def download(uri: str, folder: Path) -> Path:
    """Copies an object tree to disk, for the readers of other people."""
    for entry in GcsStorage().walk(uri):
        target = folder / entry.path[len(uri) + 1 :]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(open_storage(uri).read(entry.path))
    return folder


@pytest.fixture
def unanswered():
    """A local port that accepts connections and never answers; has anybody asked?"""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        found.setblocking(False)
        yield found


@pytest.fixture
def album(tmp_path) -> Path:
    """Photos in two classes, junk beside them, names that URLs would trip over."""
    folder = make_photos(tmp_path / "album", {"cat": 22, "dog #1 100% ü?": 14})
    (folder / ".DS_Store").write_bytes(b"junk")
    (folder / "cat" / "Thumbs.db").write_bytes(b"junk")
    (folder / "cat" / "notes.txt").write_bytes(b"junk")
    (folder / "cat" / "broken.jpg").write_bytes(b"no picture")
    return folder


def run(source: Path | str, output: Path | str, **options):
    """Runs the images pipeline in this process, as the command does, and returns its outcome."""
    config = ImagesConfig(str(source), str(output), **{**OPTIONS, **options})
    job = resolve(config, runner=IN_MEMORY)
    return run_pipeline(
        lambda pipeline: outcomes(pipeline, job),
        IN_MEMORY,
        [],
        job.sink.output,
        build=job.sink.build,
    ).outcome


def run_build(source: Path | str, output: Path | str, **options) -> None:
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        build(pipeline, ImagesConfig(str(source), str(output), **{**OPTIONS, **options}))


def manifest_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def without_place_and_time(manifest: dict) -> dict:
    del manifest["inputs"]["root"]
    for name in ("input_id", "finished", "runner"):
        manifest["build"].pop(name)
    return manifest


def check_dataset(folder: Path, expected: Path) -> None:
    """Checks a dataset against one built locally, and its manifest against its own bytes."""
    without_uris = {}
    for place in (folder, expected):
        files = dataset_files(place)
        lines = files.pop("rejects.jsonl").splitlines()
        rejects = [{**json.loads(line), "uri": ""} for line in lines]
        without_uris[place] = files, rejects
    assert without_uris[folder] == without_uris[expected]
    assert len(without_uris[folder][0]) == 10  # 2 x 4 shards, schema, labels
    manifest = manifest_of(folder)
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            data = (folder / shard["file"]).read_bytes()
            assert shard["bytes"] == len(data)
            assert shard["crc32c"] == f"{google_crc32c.value(data):08x}"
            assert shard["records"] == len(gzip_records(folder / shard["file"]))
    assert without_place_and_time(manifest) == without_place_and_time(manifest_of(expected))


@pytest.fixture
def local(album, tmp_path) -> Path:
    """The album's dataset, built from disk to disk."""
    run_build(album, tmp_path / "local")
    inputs = manifest_of(tmp_path / "local")["inputs"]
    counts = [inputs[name] for name in ("matched", "accepted", "rejected", "skipped")]
    assert counts == [40, 36, 1, 3]
    return tmp_path / "local"


def test_every_way_between_disk_and_bucket_gives_the_same_bytes(album, local, bucket, tmp_path):
    photos = upload(album, f"{bucket}/in/photos #1")
    run_build(photos, tmp_path / "from_bucket")
    check_dataset(tmp_path / "from_bucket", local)
    for name, source in (("from disk", album), ("from bucket", photos)):
        run_build(source, f"{bucket}/out/{name}")
        check_dataset(download(f"{bucket}/out/{name}", tmp_path / name), local)
        names = {e.path.rsplit("/", 1)[1] for e in GcsStorage().walk(f"{bucket}/out/{name}")}
        assert names == {*dataset_files(local), "manifest.json"}  # and no build folder


def test_the_command_from_bucket_to_bucket(album, local, bucket, tmp_path, unanswered):
    photos = upload(album, f"{bucket}/photos")
    env = {k: v for k, v in os.environ.items() if k != "GOOGLE_APPLICATION_CREDENTIALS"}
    address = f"127.0.0.1:{unanswered.getsockname()[1]}"
    env |= {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address, "HOME": str(tmp_path)}
    args = ["images", f"--input={photos}", f"--output={bucket}/out", *FLAGS]
    done = shardmill(*args, env=env)
    assert (done.returncode, PROGRESS.sub("", done.stderr)) == (0, "")
    check_dataset(download(f"{bucket}/out", tmp_path / "out"), local)
    with pytest.raises(BlockingIOError):  # nobody looked for credentials: nothing can stall
        unanswered.accept()


def command(capsys, *args: str) -> tuple[int, str, str]:
    """Runs the command in this process; returns its exit code and what it said but progress."""
    level = logging.getLogger().level
    try:
        code = main(list(args))
    finally:
        logging.getLogger().setLevel(level)
    said = capsys.readouterr()
    return code, said.out, PROGRESS.sub("", said.err)


def test_the_command_again_says_up_to_date(album, bucket, capsys):
    args = ["images", f"--input={album}", f"--output={bucket}/out", *FLAGS]
    code, said, errors = command(capsys, *args)
    assert (code, errors) == (0, "")
    assert f"{bucket}/out" in said
    again = command(capsys, *args)
    assert again == (0, f"{bucket}/out is up to date: nothing was written.\n", "")
    code, steps, errors = command(capsys, "steps", f"{bucket}/out", "--batch_size=1")
    manifest = Manifest.from_json(open_storage(bucket).read(f"{bucket}/out/manifest.json"))
    assert (code, int(steps), errors) == (0, manifest.splits["train"].num_examples, "")


def test_globs_and_listings_find_the_same_photos(album, bucket, tmp_path):
    photos = upload(album, f"{bucket}/photos")
    expected = tmp_path / "expected"
    run_build(f"{album}/*/0*.jpg", expected, root=str(album))
    run_build(f"{photos}/*/0*.jpg", f"{bucket}/globbed", root=photos)
    check_dataset(download(f"{bucket}/globbed", tmp_path / "globbed"), expected)
    keys = sorted(str(p.relative_to(album)) for p in album.glob("*/0*.jpg"))
    open_storage(bucket).replace(
        f"{photos}/list.csv", "".join(f"{photos}/{key}\n" for key in ["uri", *keys]).replace(f"{photos}/uri", "uri", 1).encode()
    )  # fmt: skip
    run_build(f"{photos}/list.csv", f"{bucket}/listed", root=photos)
    check_dataset(download(f"{bucket}/listed", tmp_path / "listed"), expected)


def test_a_second_run_writes_nothing_and_overwrite_replaces(album, strict_bucket, front, tmp_path):
    output = f"{strict_bucket}/out"
    assert run(album, output).status == "published"
    before = {entry.path: entry.version for entry in GcsStorage().walk(output)}
    front.calls.clear()
    assert run(album, output).status == "up_to_date"
    assert {"upload", "delete", "compose", "rewrite"}.isdisjoint(front.counts())
    assert {entry.path: entry.version for entry in GcsStorage().walk(output)} == before

    other = run(album, output, num_shards=2)
    assert other.status == "failed"
    assert "add --overwrite" in other.message
    assert {entry.path: entry.version for entry in GcsStorage().walk(output)} == before
    assert run(album, output, num_shards=2, overwrite=True).status == "published"
    found = dataset_files(download(output, tmp_path / "out"))
    run_build(album, tmp_path / "two", num_shards=2)
    assert found.keys() == dataset_files(tmp_path / "two").keys()
    shards = [name for name in found if "tfrecord" in name]
    assert len(shards) == 4
    assert all(found[name] == dataset_files(tmp_path / "two")[name] for name in shards)


def test_one_changed_photo_remakes_one_part(album, bucket, tmp_path):
    (album / "cat" / "also broken.jpg").write_bytes(b"no picture")
    photos = upload(album, f"{bucket}/photos")
    first = run(photos, f"{bucket}/out")
    assert (first.status, first.parts_reused) == ("failed", 0)
    assert "2 of 38 inputs were rejected" in first.message
    storage = open_storage(photos)
    storage.replace(f"{photos}/cat/also broken.jpg", (album / "cat" / "000.jpg").read_bytes())
    second = run(photos, f"{bucket}/out")
    assert (second.status, second.parts_made) == ("published", 1)
    assert second.parts_reused == first.parts_made - 1 > 3


class Stop:
    """Holds up calls at the front from a chosen one on, so that a process dies right there."""

    def __init__(self, front, wanted) -> None:
        self.reached, self.release = threading.Event(), threading.Event()
        self.wanted = wanted
        front.hook = self

    def __call__(self, call) -> None:
        if not self.reached.is_set() and self.wanted(call):
            self.reached.set()
        if self.reached.is_set() and call.kind not in ("get", "download", "list"):
            self.release.wait(60)


def kill_at(stop: Stop, *args: str) -> None:
    """Runs the command and kills it with SIGKILL when the stop is reached."""
    command = [sys.executable, "-m", "shardmill.pipelines.cli", "images", *args]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert stop.reached.wait(60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        stop.release.set()
    time.sleep(0.2)  # calls that were held up are carried out now, as by a slow network


def count(number: int, kind: str, ending: str):
    seen = []

    def wanted(call) -> bool:
        if call.kind == kind and call.name.endswith(ending):
            seen.append(call.name)
        return len(seen) == number

    return wanted


def test_a_killed_build_goes_on_with_the_parts_it_has(album, local, strict_bucket, front, tmp_path):
    output = f"{strict_bucket}/out"
    stop = Stop(front, count(4, "upload", ".part"))
    kill_at(stop, f"--input={album}", f"--output={output}", *FLAGS)
    sidecars = [e.path for e in GcsStorage().walk(output) if e.path.endswith(".json")]
    assert len(sidecars) == 3
    front.reset()
    outcome = run(album, output)
    assert (outcome.status, outcome.parts_reused) == ("published", 3)
    assert outcome.parts_made > 3
    check_dataset(download(output, tmp_path / "out"), local)


# A publication is 12 moves, each a rewrite and a delete, and then the deletes of the build folder.
MOMENTS = [("rewrite", 1), ("rewrite", 12), ("delete", 1), ("delete", 12), ("delete", 20)]


@pytest.mark.parametrize(("kind", "number"), [("rewrite", 3), *MOMENTS * SOAK])
def test_a_killed_publication_is_completed(
    kind, number, album, local, strict_bucket, front, tmp_path
):
    output = f"{strict_bucket}/out"
    stop = Stop(front, count(number, kind, ""))
    kill_at(stop, f"--input={album}", f"--output={output}", *FLAGS)
    front.reset()
    assert GcsStorage().stat(f"{output}/.publish.json") is not None
    assert run(album, output).status == "up_to_date"
    check_dataset(download(output, tmp_path / "out"), local)
    assert_nothing_hidden(output)


@pytest.mark.parametrize("turn", range(1 + 9 * SOAK))
def test_two_builders_at_once_publish_one_dataset(
    turn, album, local, strict_bucket, front, tmp_path
):
    output = f"{strict_bucket}/out"
    args = ["images", f"--input={album}", f"--output={output}", *FLAGS]
    with ThreadPoolExecutor(2) as pool:
        done = [future.result() for future in [pool.submit(shardmill, *args) for _ in range(2)]]
    assert [(d.returncode, PROGRESS.sub("", d.stderr)) for d in done] == [(0, "")] * 2
    check_dataset(download(output, tmp_path / "out"), local)
    assert_nothing_hidden(output)


def assert_nothing_hidden(output: str) -> None:
    assert not [e.path for e in GcsStorage().walk(output) if "/." in e.path[len(output) :]]


def test_photos_replaced_or_deleted_after_the_match_are_rejects(
    album, strict_bucket, front, tmp_path
):
    photos = upload(album, f"{strict_bucket}/photos")
    lock = threading.Lock()
    done = []

    def meddle(call) -> None:
        with lock:
            first = call.kind == "download" and "/cat/" in call.name and not done
            done.extend([1] if first else [])
        if first:
            storage = GcsStorage()
            for name in ("dog #1 100% ü?/000.jpg", "cat/001.jpg"):
                storage.replace(f"{photos}/{name}", (album / "cat" / "002.jpg").read_bytes())
            for name in ("dog #1 100% ü?/003.jpg", "cat/004.jpg"):
                storage.delete(f"{photos}/{name}")

    front.hook = meddle
    outcome = run(photos, tmp_path / "out", max_reject_fraction=0.5, threads=1, num_shards=1, splits="train:1")  # fmt: skip
    assert outcome.status == "published", outcome.message
    rejected = manifest_of(tmp_path / "out")["inputs"]["rejected_by_reason"]
    # One or two of each had been read before.
    assert rejected.get("changed", 0) >= 1
    assert rejected.get("not_found", 0) >= 1
    assert sum(rejected.values()) <= 5


def test_a_missing_bucket_is_one_plain_sentence(album, bucket, tmp_path, capsys):
    sentence = "the bucket 'no-such-bucket' does not exist; create it or correct its name.\n"
    missing = "gs://no-such-bucket/x"
    for source, output in ((missing, tmp_path / "o"), (album, missing)):
        code, said, errors = command(capsys, "images", f"--input={source}", f"--output={output}")
        assert (code, said) == (1, "")
        assert errors == f"shardmill: Cannot look at {missing}: {sentence}"
    with pytest.raises(InputError, match="does not exist"):
        run(f"{bucket}/nothing", tmp_path / "o")
    with pytest.raises(ShardmillError, match="the bucket 'no-such-bucket' does not exist"):
        run(album, "gs://no-such-bucket/o")


def test_a_foreign_output_is_left_alone(album, bucket):
    open_storage(bucket).replace(f"{bucket}/out/precious.txt", b"x")
    outcome = run(album, f"{bucket}/out")
    assert outcome.status == "failed"
    assert "'precious.txt'" in outcome.message
    assert [e.path for e in GcsStorage().walk(bucket)] == [f"{bucket}/out/precious.txt"]


def test_the_output_may_lie_inside_the_input(album, bucket):
    photos = upload(album, f"{bucket}/photos")
    assert run(photos, f"{photos}/out").status == "published"
    assert run(photos, f"{photos}/out").status == "up_to_date"


def test_calls_grow_with_inputs_parts_and_shards_only(album, strict_bucket, front):
    photos = upload(album, f"{strict_bucket}/photos")
    front.calls.clear()
    outcome = run(photos, f"{strict_bucket}/out")
    counts = front.counts()
    assert (
        len([c for c in front.calls if c.kind == "download" and c.name.startswith("photos/")]) == 37
    )
    parts, shards = outcome.parts_made, 8
    # A part: look for it, write payload and sidecar, delete both. A shard: compose, look, move.
    assert counts["upload"] <= 2 * parts + 8
    assert counts["compose"] == shards
    assert counts["rewrite"] <= shards + 4
    assert counts.total() <= 37 + 5 * parts + 6 * shards + 60
