"""Archives and files of records give the records of the folder that they were made of.

Cells and members that cannot be used are in tests/golden/transcripts/containers.txt.
"""

import gzip
import io
import json
import os
import random
import subprocess
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.loaders import open_dataset
from shardmill.schemas import InputRef, ShardmillError
from shardmill.schemas.errors import InputError, StorageError
from shardmill.schemas.refs import MatchCounts, sum_counts
from shardmill.schemas.tfrecord.framing import frame
from shardmill.transforms.images.containers import Spool
from shardmill.transforms.match.containers.expand import expand
from shardmill.transforms.match.labels import parse_labels
from tests.conftest import SOAK, build_dataset, make_image, make_photos
from tests.support.readers import example_class

OPTIONS = {"image_size": "16x24", "splits": "train:1", "keep": 0}
NAMES = ("dog", "cat")  # of classes, in an order that sorting would change


def tar(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target.getvalue()


def compressed(data: bytes, codec: str) -> bytes:
    target = pa.BufferOutputStream()
    with pa.CompressedOutputStream(target, codec) as stream:
        stream.write(data)
    return target.getvalue().to_pybytes()


def parquet(table: pa.Table, **options: object) -> bytes:
    target = io.BytesIO()
    pq.write_table(table, target, write_page_checksum=True, **options)
    return target.getvalue()


def hugging_face(files: dict[str, bytes]) -> bytes:
    """Return a file as ``datasets`` writes it: see ``Dataset.to_parquet``."""
    classes = {"info": {"features": {"label": {"names": NAMES, "_type": "ClassLabel"}}}}
    rows = [
        {
            "image": {"bytes": data, "path": "same.jpg"},
            "label": NAMES.index(name.partition("/")[0]),
            "note": {"bytes_of": 1},
        }
        for name, data in files.items()
    ]
    table = pa.Table.from_pylist(rows)
    metadata = {b"huggingface": json.dumps(classes).encode()}
    return parquet(table.replace_schema_metadata(metadata), row_group_size=4)


def columns(files: dict[str, bytes]) -> bytes:
    labels = pa.array([name.partition("/")[0] for name in files]).dictionary_encode()
    data = pa.array(list(files.values()), pa.large_binary())
    return parquet(pa.table({"jpg": data, "kind": labels}), row_group_size=100)


def examples(files: dict[str, bytes], image: str = "image/encoded", number: bool = False) -> bytes:
    """Return TFRecords that protobuf serializes."""
    made = []
    for name, data in files.items():
        label = name.partition("/")[0]
        example = example_class()()
        example.features.feature.add(key=image).value.bytes.value.append(data)
        if number:
            feature = example.features.feature.add(key="y")
            feature.value.ints.value.append(NAMES.index(label))
        else:
            feature = example.features.feature.add(key="image/class/text")
            feature.value.bytes.value.append(label.encode())
        made.append(frame(example.SerializeToString()))
    return b"".join(made)


FORMATS = {
    "tar": (tar, {}),
    "zip": (zipped, {}),
    "tar.gz": (lambda files: gzip.compress(tar(files)), {}),
    "tar.bz2": (lambda files: compressed(tar(files), "bz2"), {}),
    "tar.zst": (lambda files: compressed(tar(files), "zstd"), {}),
    "hf.parquet": (hugging_face, {}),
    "plain.parquet": (columns, {"label_column": "kind"}),
    "tfrecord": (examples, {}),
    "tfrecord.gz": (
        lambda files: gzip.compress(examples(files, "picture", number=True)),
        {"image_column": "picture", "label_column": "y", "labels": "classes.txt"},
    ),
}


def heavy_but(light: str) -> list[object]:
    return [pytest.param(n, marks=[pytest.mark.heavy] * (n != light)) for n in FORMATS]


def build(source: Path, output: Path, **options: object):
    outcome, counters = build_dataset(input=source, output=output, **{**OPTIONS, **options})
    assert outcome.status in ("published", "up_to_date", "dry_run"), outcome.message
    return outcome, counters


def records(folder: Path) -> Counter:
    rows = open_dataset(folder, split="train", decode=False)
    return Counter((row["image/class/text"], row["image/encoded"]) for row in rows)


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return make_photos(tmp_path_factory.mktemp("containers") / "photos", {"cat": 8, "dog": 7})


@pytest.fixture(scope="module")
def files(photos) -> dict[str, bytes]:
    return {str(p.relative_to(photos)): p.read_bytes() for p in sorted(photos.rglob("*.jpg"))}


@pytest.fixture(scope="module")
def wanted(photos, tmp_path_factory) -> Counter:
    output = tmp_path_factory.mktemp("containers") / "ds"
    build(photos, output)
    return records(output)


@pytest.fixture
def at_home(tmp_path, monkeypatch) -> Path:
    """Return an empty folder, which is also the current one and has a list of the classes."""
    monkeypatch.chdir(tmp_path)
    Path("classes.txt").write_text("\n".join(NAMES))
    return tmp_path


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("name", heavy_but("hf.parquet"))
def test_records_are_those_of_the_folder(name, files, wanted, at_home) -> None:
    """A second build does nothing and leaves nothing; an update takes what did not change."""
    make, options = FORMATS[name]
    source, output = at_home / "in" / f"part-0.{name}", at_home / "ds"
    source.parent.mkdir()
    source.write_bytes(make(files))
    outcome, _ = build(source.parent, output, **options)
    assert outcome.matched == 15
    assert records(output) == wanted
    keys = {row["image/key"] for row in open_dataset(output, split="train", decode=False)}
    member = "cat/000.jpg" if "tar" in name or name == "zip" else "0"
    assert f"{source.name}/{member}".encode() in keys

    left = sorted(os.listdir(output))
    os.utime(source)  # which says nothing about its content
    assert build(source.parent, output, **options)[0].status == "up_to_date"
    assert sorted(os.listdir(output)) == left

    more = io.BytesIO()
    make_image(99).save(more, "JPEG")
    # Of the same size, as a member without another time: only the content distinguishes it.
    name = max((name for name in files if "cat" in name), key=lambda name: len(files[name]))
    other = more.getvalue().ljust(len(files[name]), b"\0")
    assert len(other) == len(files[name])
    changed = {**files, "dog/new.jpg": more.getvalue(), name: other}
    source.write_bytes(make(changed))
    outcome, _ = build(source.parent, output, update=True, **options)
    assert outcome.reused == 14
    found = records(output)
    assert sum((wanted - found).values()) == 1
    assert [text for text, _ in sorted((found - wanted).elements())] == [b"cat", b"dog"]


def test_a_dry_run_writes_nothing(files, at_home, monkeypatch) -> None:
    temporary = at_home / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    (at_home / "p.parquet").write_bytes(hugging_face(files))
    outcome, _ = build(at_home / "p.parquet", at_home / "ds", dry_run=True)
    assert (outcome.matched, (at_home / "ds").exists()) == (15, False)


def test_several_archives_are_those_of_a_glob(files, at_home) -> None:
    named = [at_home / "1.parquet", at_home / "2.tar.gz"]
    for path, make in zip(named, (columns, lambda each: gzip.compress(tar(each))), strict=True):
        path.write_bytes(make(files))
    build(named, at_home / "ds", label_from="none")
    build(at_home / "[12]*", at_home / "glob", label_from="none")
    found = [open_dataset(at_home / name, split="train", decode=False) for name in ("ds", "glob")]
    assert [*found[0]] == [*found[1]]
    assert len(found[0]) == 30
    with pytest.raises(ShardmillError, match=r"'3\.tar' does not exist"):
        build(named, at_home / "new", splits="train:1,test=3.tar")


def test_splits_without_labels_may_lack_the_column(files, at_home) -> None:
    """Named splits are those of files in a folder, as Hugging Face has them."""
    folder = at_home / "data"
    folder.mkdir()
    (folder / "train-0.parquet").write_bytes(hugging_face(files))
    table = pa.table({"image": pa.array(list(files.values()), pa.binary())})
    (folder / "test-0.parquet").write_bytes(parquet(table))
    splits = "train=train-*.parquet,test=test-*.parquet"
    build(folder, at_home / "ds", splits=splits, unlabeled_splits="test")
    test = [*open_dataset(at_home / "ds", split="test", decode=False)]
    assert len(test) == 15
    assert all("image/class/text" not in row for row in test)

    # In a labelled split it is a reject: the name of the file is not taken as label.
    options = {"splits": "train:0.5,test:0.5", "unlabeled_splits": "test", "max_reject_fraction": 1}
    build(folder, at_home / "more", **options)
    manifest = json.loads((at_home / "more/manifest.json").read_text())
    rejected = manifest["inputs"]["rejected_by_reason"]
    assert manifest["labels"] == ["cat", "dog"]
    assert 0 < rejected["no_label"] == manifest["inputs"]["rejected"] < 15


def test_what_a_row_lacks_is_one_reject(files, at_home) -> None:
    data = [*files.values()]
    table = pa.table(
        {
            "image": [None, *({"bytes": e, "path": "x.jpg"} for e in (b"", b"no image", *data))],
            "label": pa.array(["a", "a", "a", *["b"] * 14, None]),
        }
    )
    (at_home / "p.parquet").write_bytes(parquet(table))
    options = {"max_reject_fraction": 1, "label_from": "directory"}
    outcome, _ = build(at_home / "p.parquet", at_home / "ds", **options)
    manifest = json.loads((at_home / "ds/manifest.json").read_text())
    rejects = (at_home / "ds/current/rejects.jsonl").read_text().splitlines()
    assert outcome.matched == 18
    assert manifest["inputs"]["rejected"] == len(rejects) == 4
    assert {json.loads(line)["key"] for line in rejects} == {"0", "1", "2", "17"}


@pytest.mark.parametrize("name", heavy_but("tar.bz2"))
@pytest.mark.parametrize("seed", range(12 if SOAK else 2))
def test_damage_never_loses_records_silently(name, seed, files, wanted, at_home) -> None:
    """A cut or changed file gives one error, or the records of an undamaged one and rejects."""
    make, options = FORMATS[name]
    rng = random.Random(seed)
    data = bytearray(make(files))
    if seed:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    else:
        del data[rng.randrange(1, len(data)) :]
    (at_home / name).write_bytes(data)
    output = at_home / "ds"
    outcome, _ = build_dataset(
        input=at_home / name, output=output, **{**OPTIONS, **options, "max_reject_fraction": 1}
    )
    if outcome.status == "failed":
        assert name in outcome.message
        assert not (output / "manifest.json").exists()
        return
    inputs = json.loads((output / "manifest.json").read_text())["inputs"]
    found = records(output)
    assert inputs["matched"] == 15
    assert sum(found.values()) == 15 - inputs["rejected"] - inputs["skipped"]
    # Tar archives and Parquet's values have no checksum that covers every byte.
    assert sum((found - wanted).values()) <= 1


@pytest.mark.parametrize("name", heavy_but("plain.parquet"))
def test_an_archive_with_a_damaged_head_is_not_skipped(name, files, at_home) -> None:
    """It is next to a whole one, and any byte of its beginning is damaged."""
    make, options = FORMATS[name]
    folder = at_home / "in"
    folder.mkdir()
    good = make(files)
    (folder / f"a.{name}").write_bytes(good)
    for at in range(12) if SOAK else (0, 3):
        (folder / f"b.{name}").write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        outcome, _ = build_dataset(
            input=folder, output=at_home / f"ds{at}", **{**OPTIONS, **options}
        )
        # Some bytes of the beginning say nothing: as the time in the header of gzip.
        if outcome.status == "failed":
            assert f"b.{name} cannot be read" in outcome.message
        else:
            assert (outcome.status, outcome.matched, outcome.skipped) == ("published", 30, 0)


def test_a_file_that_changes_while_it_is_read_is_not_used(files, at_home) -> None:
    source, spool = at_home / "p.tar.gz", Spool(str(at_home / "spool"))
    source.write_bytes(gzip.compress(tar(files)))
    status = source.stat()
    ref = InputRef("", str(source), status.st_size, str(status.st_mtime_ns - 1))
    with pytest.raises(InputError, match=r"p\.tar\.gz cannot be read: the file changed"):
        [*expand(ref, spool)]
    assert not [*(at_home / "spool").iterdir()]


def test_a_spool_appears_when_it_is_whole(files, at_home, monkeypatch) -> None:
    """What an interrupted step wrote is not used; a whole spool is used by the next build."""
    source, folder = at_home / "p.tar.gz", at_home / "spool"
    source.write_bytes(gzip.compress(tar(files)))
    status = source.stat()
    ref = InputRef("", str(source), status.st_size, str(status.st_mtime_ns))
    spool = Spool(str(folder))
    written = Spool._write

    def fail(self, ref, reader, kind, file):
        file.write(b"part of it")
        raise StorageError("Cannot write x: it was replaced at the same time; run again.")

    monkeypatch.setattr(Spool, "_write", fail)
    with pytest.raises(StorageError):
        [*expand(ref, spool)]
    assert not [*folder.iterdir()]
    monkeypatch.setattr(Spool, "_write", written)
    found = [*expand(ref, spool)]
    monkeypatch.setattr(Spool, "_write", fail)
    assert [*expand(ref, spool)] == found
    assert len(found) == 15
    with pytest.raises(StorageError):  # another version of the file needs another spool
        [*expand(ref._replace(ctime=1), spool)]


IMAGE = b"\x89PNG\r\n\x1a\n"


NAMES_OF_FILES = [
    ["zebra", "yak", "ant"],
    ["10", "9", "ff"],
    ["it's", "a b", "$x"],
    ["ant", "bee", "cat"],
    ["1", "9", "10"],
    [f"class {n % 7} {n}" for n in range(99)],
    ["b", "a", "a"],
]


@pytest.mark.parametrize("order", ["text", "number", None])
@pytest.mark.parametrize("names", NAMES_OF_FILES, ids=lambda names: names[0])
def test_class_ids_that_differ_from_those_of_the_file_are_a_warning(names, order, tmp_path) -> None:
    """The command of the warning, as a shell runs it, keeps the order of the file."""
    classes = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    table = pa.table({"image": [IMAGE] * len(names), "label": [*range(len(names))]})
    table = table.replace_schema_metadata({b"huggingface": json.dumps(classes).encode()})
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(table))
    ref = InputRef("", str(path), path.stat().st_size, str(path.stat().st_mtime_ns))
    warnings = []
    for _ in range(2):  # the second time, the images are in the build folder
        members = [*expand(ref, Spool(str(tmp_path / "spool"), label_order=order))]
        counts = [one for one in members if isinstance(one, MatchCounts)]
        warnings += sum_counts(counts).warnings
    by_text = sorted(names, key=str.encode)
    is_number = order == "number" and names[0] in ("1", "10")
    in_order = sorted(by_text, key=lambda name: int(name, 16)) if is_number else by_text
    is_same = order is None or len({*names}) < len(names) or in_order == names
    assert len(warnings) == (0 if is_same else 2)
    for warning in warnings:
        assert "set --labels=labels.txt and first " in warning
        command = warning.partition("first run: ")[2]
        if not command:
            assert len(names) == 99
            continue
        subprocess.run(command, shell=True, cwd=tmp_path, check=True)
        assert parse_labels((tmp_path / "labels.txt").read_text(), "labels.txt") == (*names,)
