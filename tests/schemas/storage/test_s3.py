"""Commands and loaders on s3://, with a server that implements Amazon S3."""

import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardmill.loaders import open_dataset, steps_per_epoch
from shardmill.pipelines.cli import main
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.storage.objects import split_uri
from shardmill.schemas.storage.s3 import S3Storage
from tests.conftest import make_photos
from tests.support.gcs_builds import run_command as run
from tests.support.readers import dataset_files

pytest_plugins = ["tests.support.gcs_server", "tests.support.s3_server"]
pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("s3")]

FLAGS = ["--image_size=16", "--num_shards=2", "--splits=train:0.8,validation:0.2"]


def upload(s3, folder: Path, uri: str) -> str:
    """Copy a folder by boto3."""
    bucket, key = split_uri(uri)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = f"{key}/{path.relative_to(folder)}"
            s3.put_object(Bucket=bucket, Key=name, Body=path.read_bytes())
    return uri


def objects(s3, uri: str) -> dict[str, bytes]:
    """Return all objects below a URI, read by boto3."""
    bucket, key = split_uri(uri)
    found = s3.list_objects_v2(Bucket=bucket, Prefix=f"{key}/").get("Contents", [])
    return {
        item["Key"][len(key) + 1 :]: s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
        for item in found
    }


def published(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of the current generation but manifest and catalogs with paths and times.

    Asserts that there is nothing else but the manifest and earlier generations that it names.
    """
    manifest = json.loads(files["manifest.json"])
    folder = f"{manifest['generation']}/"
    known = {"manifest.json", manifest["generation"], *manifest.get("previous", [])}
    assert {name.split("/")[0] for name in files} == known
    found = {name[len(folder) :]: data for name, data in files.items() if name.startswith(folder)}
    assert found.pop("manifest.json")
    return {name: data for name, data in found.items() if not name.startswith("catalog/")}


@pytest.fixture
def album(tmp_path) -> Path:
    folder = make_photos(tmp_path / "album", {"cat": 12, "dog #1 100% ü?": 8})
    (folder / "cat" / "broken.jpg").write_bytes(b"no picture")
    (folder / "cat" / ".DS_Store").write_bytes(b"junk")
    (folder / "cat" / "empty.jpg").write_bytes(b"")
    return folder


@pytest.mark.nightly
def test_images_equal_those_built_on_disk(s3, s3_bucket, album, tmp_path, capsys):
    source, output = upload(s3, album, f"{s3_bucket}/in/album"), f"{s3_bucket}/out/ds"
    flags = [*FLAGS, "--max_reject_fraction=0.5"]
    assert main(["images", f"--input={album}", f"--output={tmp_path / 'ds'}", *flags]) == 0
    code, out, err = run(capsys, "images", f"--input={source}", f"--output={output}", *flags)
    assert code == 0, err
    local, remote = dataset_files(tmp_path / "ds"), objects(s3, output)
    files = published(remote)
    assert sum(name.startswith("train-") for name in files) == 2  # not trivial
    # Rejects have the URIs of their files.
    rejects = files["rejects.jsonl"].decode().replace(source, str(album)).encode()
    assert {**files, "rejects.jsonl": rejects} == local
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

    # A glob of some inputs, with an existing dataset as the output.
    part = ["images", f"--input={source}/cat/0*.jpg", f"--root={source}", f"--output={output}"]
    code, _, err = run(capsys, *part, *flags)
    assert (code, "run again with --update" in err) == (1, True)
    assert objects(s3, output) == remote
    code, out, err = run(capsys, *part, "--update", *flags)
    assert (code, "12 examples" in out) == (0, True), err
    now = objects(s3, output)
    assert published(now).keys() == files.keys()
    # The generation before is kept as it was.
    del remote["manifest.json"]
    assert remote.items() < now.items()


@pytest.fixture
def dataset(s3, s3_bucket, album, tmp_path) -> tuple[Path, str]:
    """Return a dataset on disk, and the URI of its copy."""
    flags = [*FLAGS, "--max_reject_fraction=0.5"]
    assert main(["images", f"--input={album}", f"--output={tmp_path / 'ds'}", *flags]) == 0
    return tmp_path / "ds", upload(s3, tmp_path / "ds", f"{s3_bucket}/ds")


def test_uploads_files_of_any_size(s3, s3_bucket, s3_storage):
    bucket, _ = split_uri(s3_bucket)
    for size in (0, 1, (16 << 20) + 1, 40 << 20):
        data = random.Random(size).randbytes(size)
        path = f"{s3_bucket}/sized/{size}.gz"  # some clients would decompress it
        with s3_storage.open_write(path) as file:
            file.write(data)
        assert s3.get_object(Bucket=bucket, Key=f"sized/{size}.gz")["Body"].read() == data
        assert s3_storage.read(path) == data
        with s3_storage.open_read(path) as chunks:
            assert b"".join(chunks) == data


def test_interrupted_upload_leaves_nothing(s3, s3_bucket, s3_storage):
    def chunks():
        yield bytes(40 << 20)
        raise FileNotFoundError("a source is gone")

    with pytest.raises(FileNotFoundError, match="a source"):
        s3_storage._put(f"{s3_bucket}/x", chunks())
    assert s3_storage.stat(f"{s3_bucket}/x") is None
    bucket, _ = split_uri(s3_bucket)
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


@pytest.mark.parametrize(
    ("changes", "source", "words"),
    [
        ({}, "s3://no-such-bucket-here/in", "the bucket 'no-such-bucket-here' does not exist"),
        ({}, "s3://", "names no bucket: write s3://BUCKET/PATH"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "s3://b/in", "Could not connect"),
        (
            {
                "AWS_ACCESS_KEY_ID": "",
                "AWS_SECRET_ACCESS_KEY": "",
                "AWS_EC2_METADATA_DISABLED": "1",
                "AWS_SHARED_CREDENTIALS_FILE": "/none",
            },
            "s3://b/in",
            "Unable to locate credentials; run `aws configure` or set AWS_ACCESS",
        ),
        (
            {"AWS_PROFILE": "none-such"},
            "s3://b/in",
            "profile (none-such) could not be found; check",
        ),
        (
            {"AWS_ENDPOINT_URL": "nonsense"},
            "s3://b/in",
            "Invalid endpoint: nonsense; check the AWS",
        ),
        ({}, "s3://no bucket/in", "'no bucket' is not a valid bucket name; write s3://BUCKET/PATH"),
    ],
    ids=["bucket", "no name", "network", "no keys", "profile", "endpoint", "name"],
)
def test_reports_wrong_configuration_in_one_sentence(
    changes, source, words, s3_bucket, tmp_path, monkeypatch, capsys
):
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    from shardmill.schemas import storage as registry

    registry._storage_of.cache_clear()
    began = time.monotonic()
    code, out, err = run(capsys, "images", f"--input={source}", f"--output={tmp_path / 'o'}")
    registry._storage_of.cache_clear()
    assert code in (1, 2)
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
    assert time.monotonic() - began < 20


def test_rejects_storage_flags_of_beam(capsys):
    for flag in ("--s3_endpoint_url=http://h", "--hdfs_host=h"):
        code, out, err = run(capsys, "images", "--input=s3://b/in", "--output=out", flag)
        assert (code, out) == (2, "")
        assert err.startswith(f"shardmill: The flag {flag.split('=')[0]} is not supported: s3:// ")


def test_reports_a_missing_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"^s3:// needs botocore: pip install 'shardmill\[s3\]'\.$"
    ):
        S3Storage()


@pytest.mark.parametrize(
    ("files", "changes"),
    [
        (
            {
                "credentials": "[work]\naws_access_key_id=k\naws_secret_access_key=s\n",
                "config": "[profile work]\nregion=eu-west-3\nendpoint_url=URL\n",
            },
            {"AWS_PROFILE": "work"},
        ),
        (
            {"credentials": "[default]\naws_access_key_id=k\naws_secret_access_key=s\n"},
            {"AWS_ENDPOINT_URL_S3": "URL"},
        ),
        (
            {
                "config": '[default]\ncredential_process=echo \'{"Version":1,"AccessKeyId":"k",'
                '"SecretAccessKey":"s"}\'\n'
            },
            {"AWS_ENDPOINT_URL": "URL"},
        ),
        (
            {},
            {
                "AWS_ACCESS_KEY_ID": "k",
                "AWS_SECRET_ACCESS_KEY": "s",
                "AWS_ENDPOINT_URL": "URL",
                "AWS_REGION": "eu-west-3",
            },
        ),
    ],
    ids=["profile", "default", "process", "variables"],
)
def test_reads_configuration_files_and_variables(
    files, changes, s3_url, s3_bucket, s3_storage, tmp_path, monkeypatch
):
    s3_storage.replace(f"{s3_bucket}/x", b"data")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("credentials", "config"):
        (tmp_path / name).write_text(files.get(name, "").replace("URL", s3_url))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name, value in changes.items():
        monkeypatch.setenv(name, value.replace("URL", s3_url))
    storage = S3Storage()
    assert storage.read(f"{s3_bucket}/x") == b"data"
    if "eu-west-3" in f"{files} {changes}":
        assert storage._client().meta.region_name == "eu-west-3"


WITHOUT_BEAM = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("apache_beam", "boto3", "tensorflow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
import shardmill.schemas.storage.s3
assert "botocore" not in sys.modules
from shardmill.loaders import open_dataset
print(sum(len(row["image"]) > 0 for row in open_dataset(sys.argv[1])))
"""


def test_loaders_need_neither_beam_nor_boto3(dataset):
    local, uri = dataset
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BEAM, uri], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(open_dataset(local)) > 10


def test_rejects_writing_to_a_folder(s3_bucket, s3_storage):
    for path in (s3_bucket, f"{s3_bucket}/", f"{s3_bucket}/x/"):
        with pytest.raises(UsageError, match="names no file"):
            s3_storage.replace(path, b"x")
    assert open_storage(s3_bucket).stat(f"{s3_bucket}/x/") is None
