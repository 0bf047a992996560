"""Commands and loaders on s3://, on a server that speaks as Amazon S3 does."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest

from shardmill.loaders import open_dataset, steps_per_epoch
from shardmill.pipelines.cli import main
from shardmill.pipelines.commands.beam_flags import share_storage_flags
from shardmill.schemas.errors import DeniedError, StorageError, UsageError
from shardmill.schemas.storage import OPTIONS_VARIABLE, open_storage
from shardmill.schemas.storage.beam_hdfs import HdfsStorage
from shardmill.schemas.storage.beam_s3 import S3Storage, split_uri
from tests.conftest import make_photos
from tests.support.readers import dataset_files

pytest_plugins = ["tests.support.gcs_server", "tests.support.s3_server"]
pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("s3")]

FLAGS = ["--image_size=16", "--num_shards=2", "--splits=train:0.8,validation:0.2"]


def upload(s3, folder: Path, uri: str) -> str:
    """Copies a folder as another program would."""
    bucket, key = split_uri(uri)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = f"{key}/{path.relative_to(folder)}"
            s3.put_object(Bucket=bucket, Key=name, Body=path.read_bytes())
    return uri


def objects(s3, uri: str) -> dict[str, bytes]:
    """Returns all objects below a URI, by the vendor's own client."""
    bucket, key = split_uri(uri)
    found = s3.list_objects_v2(Bucket=bucket, Prefix=f"{key}/").get("Contents", [])
    return {
        item["Key"][len(key) + 1 :]: s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
        for item in found
    }


def without_manifest(files: dict[str, bytes]) -> dict[str, bytes]:
    """Returns all but the manifest, which tells where and when."""
    assert "manifest.json" in files
    return {name: data for name, data in files.items() if name != "manifest.json"}


@pytest.fixture
def album(tmp_path) -> Path:
    folder = make_photos(tmp_path / "album", {"cat": 12, "dog #1 100% ü?": 8})
    (folder / "cat" / "broken.jpg").write_bytes(b"no picture")
    (folder / "cat" / ".DS_Store").write_bytes(b"junk")
    (folder / "cat" / "empty.jpg").write_bytes(b"")
    return folder


def run(capsys, *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_images_are_built_as_on_a_disk(s3, s3_bucket, album, tmp_path, capsys):
    source, output = upload(s3, album, f"{s3_bucket}/in/album"), f"{s3_bucket}/out/ds"
    flags = [*FLAGS, "--max_reject_fraction=0.5"]
    assert main(["images", f"--input={album}", f"--output={tmp_path / 'ds'}", *flags]) == 0
    code, out, err = run(capsys, "images", f"--input={source}", f"--output={output}", *flags)
    assert code == 0, err
    local, remote = dataset_files(tmp_path / "ds"), objects(s3, output)
    assert sum(name.startswith("train-") for name in remote) == 2  # not trivial
    # Rejects name the file they speak of.
    rejects = remote["rejects.jsonl"].decode().replace(source, str(album)).encode()
    assert {**without_manifest(remote), "rejects.jsonl": rejects} == local
    assert json.loads(remote["manifest.json"])["inputs"]["rejected"] == 2

    code, out, _ = run(capsys, "images", f"--input={source}", f"--output={output}", *flags)
    assert (code, "up to date" in out.lower()) == (0, True)
    code, out, _ = run(capsys, "verify", output)
    assert (code, "all sound" in out) == (0, True)
    code, out, _ = run(capsys, "steps", output, "--batch_size=4")
    assert (code, int(out)) == (0, steps_per_epoch(tmp_path / "ds", "train", 4))
    code, out, _ = run(capsys, "show", output, "--json")
    assert json.loads(out)["num_examples"] == 20
    code, out, _ = run(capsys, "count", f"--input={output}")
    assert (code, "train" in out) == (0, True)
    assert run(capsys, "clean", output)[0] == 0
    assert objects(s3, output) == remote

    # A part of it as a glob, over what stands there.
    part = ["images", f"--input={source}/cat/0*.jpg", f"--root={source}", f"--output={output}"]
    code, _, err = run(capsys, *part, *flags)
    assert (code, "--overwrite" in err) == (1, True)
    assert objects(s3, output) == remote
    code, out, err = run(capsys, *part, "--overwrite", *flags)
    assert (code, "12 examples" in out) == (0, True), err
    assert set(objects(s3, output)) == set(remote)


def test_rows_and_a_listing_and_arrays(s3, s3_bucket, tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    lines = "".join(f"{n},{n % 7 / 2},word {n}\n" for n in range(300))
    (folder / "table.csv").write_text("id,half,text\n" + lines)
    np.save(folder / "x.npy", np.random.default_rng(1).random((50, 4), np.float32))
    photos = make_photos(tmp_path / "photos", {"cat": 4, "dog": 3})
    names = [str(path.relative_to(photos)) for path in sorted(photos.rglob("*.jpg"))]
    (photos / "list.csv").write_text("path\n" + "\n".join(names) + "\n")
    source = upload(s3, folder, f"{s3_bucket}/in")
    pictures = upload(s3, photos, f"{s3_bucket}/photos")
    for name, command, file in (
        ("rows", ["rows", "--label=text"], "table.csv"),
        ("arrays", ["arrays"], "x.npy"),
        ("listing", ["images", "--image_size=8"], "list.csv"),
    ):
        near, far = (photos, pictures) if name == "listing" else (folder, source)
        done = run(capsys, *command, f"--input={near}/{file}", f"--output={tmp_path / name}")
        assert done[0] == 0, done[2]
        code, _, err = run(
            capsys, *command, f"--input={far}/{file}", f"--output={s3_bucket}/out/{name}"
        )
        assert code == 0, err
        files = objects(s3, f"{s3_bucket}/out/{name}")
        assert without_manifest(files) == dataset_files(tmp_path / name)


def test_loaders_read_it_where_beam_is(s3, s3_bucket, album, tmp_path):
    flags = [*FLAGS, "--max_reject_fraction=0.5"]
    assert main(["images", f"--input={album}", f"--output={tmp_path / 'ds'}", *flags]) == 0
    uri = upload(s3, tmp_path / "ds", f"{s3_bucket}/ds")
    near, far = open_dataset(tmp_path / "ds"), open_dataset(uri)
    assert len(near) == len(far) > 10
    for ours, theirs in zip(near, far, strict=True):
        assert (ours["image/encoded"] == theirs["image/encoded"]).all()


def test_files_of_any_size(s3, s3_bucket, s3_storage):
    bucket, _ = split_uri(s3_bucket)
    for size in (0, 1, (16 << 20) + 1, 40 << 20):
        data = random.Random(size).randbytes(size)
        path = f"{s3_bucket}/sized/{size}.gz"  # a suffix by which Beam would unpack it
        with s3_storage.open_write(path) as file:
            file.write(data)
        assert s3.get_object(Bucket=bucket, Key=f"sized/{size}.gz")["Body"].read() == data
        assert s3_storage.read(path) == data
        with s3_storage.open_read(path) as chunks:
            assert b"".join(chunks) == data


def test_an_upload_that_breaks_off_leaves_no_object(s3, s3_bucket, s3_storage):
    def chunks():
        yield bytes(17 << 20)
        raise FileNotFoundError("a source is gone")

    with pytest.raises(FileNotFoundError, match="a source"):
        s3_storage._put(f"{s3_bucket}/x", chunks())
    assert s3_storage.stat(f"{s3_bucket}/x") is None
    assert "Contents" not in s3.list_objects_v2(Bucket=split_uri(s3_bucket)[0])


def test_folder_marks_of_other_programs_are_no_files(s3, s3_bucket, s3_storage):
    bucket, _ = split_uri(s3_bucket)
    for key in ("in/", "in/cat/", "in/cat/0.jpg"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith("/") else b"x")
    assert [entry.path for entry in s3_storage.walk(f"{s3_bucket}/in")] == [
        f"{s3_bucket}/in/cat/0.jpg"
    ]
    assert [(e.path, e.kind) for e in s3_storage.list_dir(f"{s3_bucket}/in/")] == [
        (f"{s3_bucket}/in/cat", "dir")
    ]
    assert s3_storage.stat(f"{s3_bucket}/in").kind == "dir"
    s3_storage.delete_tree(f"{s3_bucket}/in")
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_when_a_file_changed_is_known_to_the_second(s3_bucket, s3_storage):
    before = time.time()
    s3_storage.replace(f"{s3_bucket}/x", b"x")
    changed = s3_storage.stat(f"{s3_bucket}/x").changed_ns / 1e9
    assert before - 1.5 <= changed <= time.time() + 0.5


def test_a_missing_bucket_is_told_by_each_call(s3_bucket, s3_storage):
    path = "s3://no-such-bucket-here/x"
    for call in (
        lambda: s3_storage.stat(path), lambda: s3_storage.read(path),
        lambda: s3_storage.replace(path, b""), lambda: s3_storage.create(path, b""),
        lambda: list(s3_storage.walk(path)), lambda: s3_storage.move(path, f"{s3_bucket}/x"),
        lambda: s3_storage.delete(path), lambda: s3_storage.checksum(path),
    ):  # fmt: skip
        with pytest.raises(StorageError, match="the bucket 'no-such-bucket-here' does not exist"):
            call()


@pytest.mark.parametrize(
    ("changes", "source", "words"),
    [
        ({}, "s3://no-such-bucket-here/in", "the bucket 'no-such-bucket-here' does not exist"),
        ({}, "s3://", "names no bucket: write s3://BUCKET/PATH"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "s3://b/in", "Could not connect"),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "1",
             "AWS_SHARED_CREDENTIALS_FILE": "/none"},
            "s3://b/in", "Unable to locate credentials; run `aws configure` or set AWS_ACCESS",
        ),
        ({OPTIONS_VARIABLE: "--s3_endpoint_url='x"}, "s3://b/in", "is no list of flags"),
        ({OPTIONS_VARIABLE: "--s3_endpoint_url=nonsense"}, "s3://b/in", "Invalid endpoint"),
    ],
    ids=["bucket", "no name", "nobody there", "no keys", "variable", "endpoint"],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence_and_quick(
    changes, source, words, s3_bucket, tmp_path, monkeypatch, capsys
):
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    from shardmill.schemas.storage import base

    base._storage_of.cache_clear()
    began = time.monotonic()
    code, out, err = run(capsys, "images", f"--input={source}", f"--output={tmp_path / 'o'}")
    base._storage_of.cache_clear()
    assert code in (1, 2)
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert time.monotonic() - began < 20


def test_refused_keys_are_a_refusal(s3_bucket, s3_storage):
    """As the service says it: the server of these tests lets anybody in."""
    from apache_beam.io.aws.clients.s3.messages import S3ClientError

    from shardmill.schemas.storage.beam_s3 import _plain_error

    for code, why in ((403, "(SignatureDoesNotMatch) when calling"), ("AccessDenied", "Denied")):
        error = _plain_error("read", "s3://b/x", S3ClientError(why, code))
        assert isinstance(error, DeniedError)
        assert isinstance(error, PermissionError)
        assert "check the credentials" in str(error)


def test_only_flags_of_storages_are_shared(monkeypatch):
    monkeypatch.setenv(OPTIONS_VARIABLE, "as it was")
    share_storage_flags(["--runner=X", "--temp_location", "s3://b/--s3_x"])
    assert os.environ[OPTIONS_VARIABLE] == "as it was"
    share_storage_flags(
        ["--s3_region_name", "a b", "--runner=X", "--s3_disable_ssl", "--hdfs_host=h", "--x", "y"]
    )
    assert os.environ[OPTIONS_VARIABLE] == "--s3_region_name 'a b' --s3_disable_ssl --hdfs_host=h"


def test_a_missing_package_is_told(monkeypatch):
    from apache_beam.io import hadoopfilesystem
    from apache_beam.io.aws.clients.s3 import boto3_client

    # As Beam leaves them when they cannot be imported.
    monkeypatch.setattr(boto3_client, "boto3", None)
    monkeypatch.setattr(hadoopfilesystem, "hdfs", None)
    with pytest.raises(UsageError, match=r"^s3:// needs boto3: pip install 'shardmill\[aws\]'\.$"):
        S3Storage()
    with pytest.raises(UsageError, match=r"^hdfs:// needs hdfs: pip install 'shardmill\[hadoop\]'"):
        HdfsStorage()


def test_the_client_is_made_once(s3_bucket, s3_environment, monkeypatch):
    storage = S3Storage()
    made = []
    real = storage._make
    monkeypatch.setattr(storage, "_make", lambda options: made.append(1) or real(options))
    for number in range(3):
        storage.replace(f"{s3_bucket}/{number}", b"x")
        assert storage.read(f"{s3_bucket}/{number}") == b"x"
    assert len(made) == 1


@pytest.mark.parametrize("uri", ["s3://", "s3:///x"])
def test_a_uri_must_name_a_bucket(uri):
    with pytest.raises(UsageError, match="write s3://BUCKET/PATH"):
        split_uri(uri)


def test_a_folder_is_not_written(s3_bucket, s3_storage):
    for path in (s3_bucket, f"{s3_bucket}/", f"{s3_bucket}/x/"):
        with pytest.raises(UsageError, match="names no file"):
            s3_storage.replace(path, b"x")
    assert open_storage(s3_bucket).stat(f"{s3_bucket}/x/") is None
