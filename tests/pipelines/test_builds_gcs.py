"""Builds of each kind of input from, to and between buckets, on an emulator of gs://."""

import gzip
import json
import os
import re
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from shardmill.pipelines.python_source import write
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.gcs import GcsStorage
from shardmill.transforms.sources.arrays import array_source
from tests.conftest import ROOT, SOAK, build_dataset, make_archives, make_photos, shardmill
from tests.support import fault_tools
from tests.support.annotation_tools import (
    truth,
    write_annotations,
    write_images,
    write_listing,
    write_masks,
)
from tests.support.array_tools import run_spec, spec_of
from tests.support.fault_tools import PROGRESS, check_manifest
from tests.support.gcs_builds import build, download, flags_of, run_command, upload
from tests.support.readers import current, dataset_files

pytest_plugins = ["tests.support.gcs_server", "tests.support.gcs_builds"]
pytestmark = pytest.mark.heavy

ROWS, TABLES = 400, ("a.csv", "b.csv.gz", "c.csv", "d #1 100% ü?.csv", "e.csv")
SERIES = 30  # rows of the arrays


def make_odd_photos(folder: Path) -> None:
    """Write two classes with a reject, files to skip, and names that URLs escape."""
    make_photos(folder, {"cat": 22, "dog #1 100% ü?": 14})
    for name in (".DS_Store", "cat/Thumbs.db", "cat/notes.txt", "cat/broken.jpg"):
        (folder / name).write_bytes(b"no picture")


def make_tables(folder: Path) -> None:
    """Write five tables: one gzipped, one with two bad rows, one with a name that URLs escape."""
    folder.mkdir()
    for number, name in enumerate(TABLES):
        rows = "".join(f"{number * ROWS + row},{row / 8},word {row % 5}\n" for row in range(ROWS))
        data = f"id,value,word\n{rows}".encode() + (b"1,2\n1,2,3,4\n" if name == "c.csv" else b"")
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def make_arrays(folder: Path) -> None:
    """Write arrays with small and with large rows, as a folder and as two kinds of .npz."""
    (folder / "many").mkdir(parents=True)
    rng = np.random.default_rng(0)
    large = rng.integers(0, 9, (SERIES, 70_001), dtype=np.uint8)
    labels = np.array([["dog", "cat"][row % 2] for row in range(SERIES)])
    arrays = {
        "small": np.asfortranarray(rng.integers(0, 9, (SERIES, 7))),
        "large": large,
        "y": labels,
    }
    for name, array in arrays.items():
        np.save(folder / f"many/{name}.npy", array)
    np.savez(folder / "stored.npz", **arrays)
    np.savez_compressed(folder / "deflated.npz", **arrays)


@pytest.fixture
def inputs(tmp_path) -> Path:
    """Return a folder with inputs of each kind."""
    make_odd_photos(tmp_path / "in/images")
    make_tables(tmp_path / "in/rows")
    make_arrays(tmp_path / "in/arrays")
    make_archives(tmp_path / "in/archives", {"cat": 5, "dog": 6})
    return tmp_path / "in"


@pytest.fixture
def album_folder(tmp_path) -> Path:
    make_odd_photos(tmp_path / "album")
    return tmp_path / "album"


def comparable(folder: Path) -> tuple[dict, list, dict]:
    """Return a dataset's files, rejects and manifest without places and times."""
    files = dataset_files(folder)
    lines = files.pop("rejects.jsonl", b"").splitlines()
    manifest = check_manifest(current(folder))
    del manifest["inputs"]["root"]
    for name in ("input_id", "finished", "runner", "command"):
        del manifest["build"][name]
    manifest["checksums"].pop("rejects.jsonl", None)  # it has URIs
    manifest["build"].pop("ctime_id")  # that of objects differs: they have no ctime
    # Digests of files are of times or generations, which each storage gives on its own.
    manifest["build"]["files"] = sorted(manifest["build"].pop("files", ()))
    return files, [{**json.loads(line), "uri": ""} for line in lines], manifest


def check_bucket(output: str, folder: Path, local: Path) -> None:
    """Assert that a bucket has exactly the local dataset, and no build folder."""
    assert comparable(download(output, folder)) == comparable(local)
    generation = manifest_of(output).generation
    names = {entry.path[len(output) + 1 :] for entry in GcsStorage().walk(output)}
    earlier = {name for name in names if name.split("/")[0] in manifest_of(output).previous}
    wanted = {f"{generation}/{name}" for name in (*dataset_files(local), "manifest.json")}
    catalogs = {name for name in names if name.endswith(".parquet")}
    assert names - earlier - catalogs == wanted | {"manifest.json"}


def manifest_of(uri: str) -> Manifest:
    return Manifest.from_json(open_storage(uri).read(f"{uri}/manifest.json"))


# Pipeline, name of the input, and how many inputs are accepted and rejected.
CASES = [
    ("images", "images", 36, 1),
    ("rows", "rows", ROWS * len(TABLES), 2),
    ("arrays", "arrays/many", SERIES, 0),
    ("arrays", "arrays/deflated.npz", SERIES, 0),
    ("images", "archives/in", 44, 0),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("pipeline", "name", "accepted", "rejected"), CASES)
def test_storages_do_not_change_bytes(pipeline, name, accepted, rejected, inputs, bucket, tmp_path):
    local, remote = tmp_path / "local", upload(inputs, f"{bucket}/in #1")
    assert build(pipeline, inputs / name, local).status == "published"
    counts = json.loads((local / "manifest.json").read_text())["inputs"]
    assert (counts["accepted"], counts["rejected"]) == (accepted, rejected)
    for place, source in (("from disk", inputs / name), ("from bucket", f"{remote}/{name}")):
        output = f"{bucket}/out/{place}"
        assert build(pipeline, source, output).status == "published"
        check_bucket(output, tmp_path / place, local)
    assert build(pipeline, f"{remote}/{name}", output).status == "up_to_date"
    assert build(pipeline, f"{remote}/{name}", tmp_path / "to disk").status == "published"
    assert comparable(tmp_path / "to disk") == comparable(local)


def test_command_does_not_search_for_credentials_of_an_emulator(album_folder, bucket, tmp_path):
    with socket.socket() as silent:  # accepts connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.setblocking(False)
        env = {k: v for k, v in os.environ.items() if k != "GOOGLE_APPLICATION_CREDENTIALS"}
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        env |= {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address, "HOME": str(tmp_path)}
        photos = upload(album_folder, f"{bucket}/photos")
        done = shardmill(*flags_of("images", photos, f"{bucket}/out"), env=env)
        assert (done.returncode, PROGRESS.sub("", done.stderr)) == (0, "")
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_globs_and_listings_match_the_same_photos(album_folder, bucket, tmp_path):
    photos = upload(album_folder, f"{bucket}/photos")
    expected = tmp_path / "expected"
    build("images", f"{album_folder}/*/0*.jpg", expected, root=str(album_folder))
    keys = sorted(str(path.relative_to(album_folder)) for path in album_folder.glob("*/0*.jpg"))
    listing = "\n".join(["uri", *(f"{photos}/{key}" for key in keys)])
    open_storage(bucket).replace(f"{photos}/list.csv", listing.encode())
    for name in ("*/0*.jpg", "list.csv"):
        output = f"{bucket}/from {name[-3:]}"
        assert build("images", f"{photos}/{name}", output, root=photos).status == "published"
        check_bucket(output, tmp_path / name[-3:], expected)


def test_reads_each_array_of_a_bucket_once(inputs, strict_bucket, front, tmp_path, monkeypatch):
    """One request reads an array that is a stream; otherwise one reads each slice of the rows."""

    def downloads(folder: str, output: Path) -> Counter:
        spec = spec_of(input=f"{strict_bucket}/in/{folder}", shard_examples=4, output=output)
        front.calls.clear()
        outcome = run_spec(spec)
        assert (outcome.status, outcome.parts_made > 10) == ("published", True)
        calls = (call for call in front.calls if call.kind == "download")
        return Counter(call.name.rpartition("/")[2] for call in calls)

    upload(inputs / "arrays", f"{strict_bucket}/in")
    (inputs / "arrays/many/small.npy").unlink()  # in Fortran order
    upload(inputs / "arrays/many", f"{strict_bucket}/in/slices")
    assert downloads("many", tmp_path / "all") == {"large.npy": 1, "small.npy": 1, "y.npy": 1}
    assert downloads("slices", tmp_path / "one") == {"large.npy": 1, "y.npy": 1}
    monkeypatch.setattr(array_source, "_BATCH_BYTES", 4 * 70_100)  # four rows
    slices = -(-SERIES // 4)
    assert downloads("slices", tmp_path / "slices") == {"large.npy": slices, "y.npy": slices}
    assert dataset_files(tmp_path / "slices") == dataset_files(tmp_path / "one")


def test_rejects_an_output_inside_the_input(album_folder, bucket):
    photos = upload(album_folder, f"{bucket}/photos")
    with pytest.raises(UsageError, match=r"--output=\S+/photos/out is inside --input=\S+/photos:"):
        build("images", photos, f"{photos}/out")


# The number of API calls that docs/gcs.md states.

CLASSES = {
    "upload": "A",
    "compose": "A",
    "rewrite": "A",
    "list": "A",
    "get": "B",
    "download": "B",
    "delete": "D",
}


def documented_costs() -> dict[str, Counter[str]]:
    """Return the calls by class of each row of the page's table."""
    text = (ROOT / "docs" / "gcs.md").read_text().partition("| per |")[2]
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) == 17
    return {name: Counter(dict(zip("ABD", map(int, row), strict=True))) for name, *row in rows}


def by_class(front) -> Counter[str]:
    calls: Counter[str] = Counter()
    for kind, count in front.counts().items():
        calls[CLASSES[kind]] += count
    return calls


def expected_calls(things: dict[str, int], lists: int) -> Counter[str]:
    """Return the calls for a number of things, and of listed folders."""
    costs, total = documented_costs(), Counter({"A": lists})
    for name, count in things.items():
        total += Counter({cost: number * count for cost, number in costs[name].items()})
    return total


@pytest.mark.sweep
@pytest.mark.parametrize("pipeline", ["images", "rows"])
def test_build_makes_the_documented_number_of_calls(pipeline, album, strict_bucket, front, capsys):
    inputs = f"{album.upload(strict_bucket)}/{pipeline}"
    folders = 2 if pipeline == "images" else 0
    for shards in (1, 3):
        args = flags_of(
            pipeline,
            inputs,
            f"{strict_bucket}/out{shards}",
            num_shards=shards,
            splits="train:0.8,validation:0.2",
        )
        front.calls.clear()
        code, out, _ = run_command(capsys, *args)
        assert code == 0
        endings = Counter((c.kind, c.name.rpartition(".")[2]) for c in front.calls)
        parts = len(
            {c.name for c in front.calls if c.kind == "upload" and c.name.endswith(".part")}
        )
        read = (call.name for call in front.calls if call.kind == "download")
        sidecars = sum("/parts/" in name and name.endswith(".json") for name in read)
        assert int(re.search(r"parts +(\d+)", out).group(1)) == parts
        things = {
            "build": 1,
            "part": parts,
            "shard": 2 * shards,
            "empty shard, in addition": endings["upload", "bytes"],
            "piece of a part": endings["upload", "piece"],
        }
        assert shards == 1 or things["piece of a part"] > 2
        if pipeline == "images":
            things |= {
                "image": 24,
                "build of images, in addition": 1,
                "catalog": endings["upload", "parquet"],
                "sidecar of a catalog": sidecars - parts,
            }
        else:
            things |= {
                "build of rows, in addition": 1,
                "CSV file": 3,
                "segment of rows": endings["download", "run"],
            }
        assert by_class(front) == expected_calls(things, folders), (shards, things)
        front.calls.clear()
        assert run_command(capsys, *args)[1].endswith("is up to date: nothing was written.\n")
        things = {"run that is up to date": 1}
        if pipeline == "rows":
            things |= {"build of rows, in addition": 1, "CSV file of such a run": 3}
        else:
            things["such a run of images, in addition"] = 1
        assert by_class(front) == expected_calls(things, folders)


def test_update_reads_published_records_instead_of_inputs(album, strict_bucket, front, tmp_path):
    """Ranges of shards are read; the result equals a new build."""
    photos, options = (
        f"{album.upload(strict_bucket)}/images",
        {"num_shards": None, "shard_examples": 6},
    )
    assert build("images", photos, f"{strict_bucket}/out", **options).status == "published"
    for changes in ({"seed": 3}, {"seed": 3, "splits": "train:0.5,test:0.5"}):
        splits = manifest_of(f"{strict_bucket}/out").splits.values()
        front.calls.clear()
        outcome = build("images", photos, f"{strict_bucket}/out", update=True, **options, **changes)
        assert (outcome.status, outcome.reused) == ("published", 24)
        calls = Counter(
            (c.kind, "image" if c.name.endswith(".jpg") else c.name.rpartition(".")[2])
            for c in front.calls
        )
        assert calls["download", "image"] == 1  # is the first file an archive?
        costs = documented_costs()
        per_image = costs["unchanged image with `--update`, at most"]["B"]
        per_shard = costs["published shard that `--update` reads, at most"]["B"]
        bound = per_image * 24 + per_shard * sum(len(split.shards) for split in splits)
        assert calls["download", "gz"] + calls["get", "gz"] <= bound, calls
        build("images", photos, f"{strict_bucket}/scratch", overwrite=True, **options, **changes)
        found = [
            dataset_files(download(f"{strict_bucket}/{name}", tmp_path / f"{name}{len(changes)}"))
            for name in ("out", "scratch")
        ]
        assert found[0] == found[1]


# A publisher that is delayed before one call while others publish.

NEW, OLD = {"num_shards": 2, "update": True}, {"num_shards": 3, "update": True}
LATE = [
    ("rewrite", "", "same"),
    ("upload", "out/manifest.json", "other"),
    ("delete", ".json", "other"),
]
MORE_LATE = [
    ("rewrite", "", "other"),
    ("upload", "out/manifest.json", "same"),
    ("delete", ".json", "same"),
]


class Hold:
    """Blocks the first call of a kind and ending at the front until it is released."""

    def __init__(self, front, kind: str, ending: str) -> None:
        self.reached, self.release = threading.Event(), threading.Event()
        self.kind, self.ending, self.lock = kind, ending, threading.Lock()
        front.hook = self

    def __call__(self, call) -> None:
        with self.lock:
            first = (call.kind, self.reached.is_set()) == (self.kind, False)
            first = first and call.name.endswith(self.ending)
            if first:
                self.reached.set()
        if first:
            self.release.wait(120)


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "ending", "others"), LATE + MORE_LATE * SOAK)
def test_delayed_publisher_does_not_damage_the_dataset(
    kind, ending, others, strict_bucket, front, tmp_path
):
    output = f"{strict_bucket}/out"
    source = make_photos(tmp_path / "photos", {"cat": 9, "dog": 7}, size=(40, 30))
    assert build("images", source, output, **OLD).status == "published"
    late = Hold(front, kind, ending)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(build, "images", source, output, **NEW)
        assert late.reached.wait(120)
        other = NEW if others == "same" else {**OLD, "seed": 3}
        assert build("images", source, output, **other).status in ("published", "up_to_date")
        before = {entry.path: entry.version for entry in GcsStorage().walk(output)}
        late.release.set()
        ended = slow.result()
    if kind == "delete":
        assert ended.status == "published"
    elif others == "same":
        assert ended.status == "up_to_date"
    else:
        assert "Another command has changed the dataset" in ended.message
    after = {entry.path: entry.version for entry in GcsStorage().walk(output)}
    generation = fault_tools.check_manifest(download(output, tmp_path / "out"))["generation"]
    named = {path: version for path, version in before.items() if f"/{generation}/" in path}
    assert len(named) >= 8
    assert named.items() <= after.items()


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["voc", "yolo", "coco"])
def test_annotations_in_a_bucket_give_the_bytes_of_local_ones(kind, bucket, tmp_path):
    """Files with boxes, and masks, are read where they are; an update of boxes too."""
    folder = write_images(tmp_path / "in")
    write_masks(folder / "masks")

    def build_both(seed: int, **options) -> None:
        given = write_annotations(kind, folder, truth(seed))
        options |= {"labels": given["labels"]} if kind == "yolo" else {}
        reused = 12 if "update" in options else 0
        write_listing(folder)
        source = upload(folder, f"{bucket}/in")
        options |= {"annotations": given["annotations"], "resize": "none", "encoding": "keep"}
        local = {"input": folder / "list.csv", "masks": folder / "masks"}
        remote = {"input": f"{source}/list.csv", "masks": f"{source}/masks"}
        if kind == "coco":
            remote["annotations"] = f"coco:{source}/all.json"
        for place, output in ((local, tmp_path / "disk"), (remote, f"{bucket}/ds")):
            outcome, _ = build_dataset(output=output, **{**options, **place})
            assert outcome.status == "published"
            assert outcome.reused == reused

    build_both(0)
    build_both(1, update=True)
    found = download(f"{bucket}/ds", tmp_path / "found")
    assert dataset_files(found) == dataset_files(tmp_path / "disk")


@pytest.mark.sweep
@pytest.mark.parametrize("image", ["", "pixels"])
def test_a_python_source_written_to_a_bucket_gives_the_bytes_of_a_local_one(
    bucket, tmp_path, image
):
    pixels = np.arange(500 * 12, dtype=np.uint16).reshape(500, 4, 3)
    rows = [{"id": n, "text": f"t{n}"} for n in range(500)]
    if image:
        rows = [{"id": n, "pixels": each, "text": f"t{n % 5}"} for n, each in enumerate(pixels)]
    options = {"key": "id", "label": "text"} | ({"image": image, "image_size": 8} if image else {})
    for output in (tmp_path / "local", f"{bucket}/remote"):
        built = write(rows, output, **options)
        assert (built.status, sum(built.splits.values())) == ("published", 500)
    assert write(rows, f"{bucket}/remote", **options).status == "up_to_date"
    copy = download(f"{bucket}/remote", tmp_path / "copy")
    assert dataset_files(copy) == dataset_files(tmp_path / "local")
    assert not list(copy.glob(".build*"))
