"""Counting and verifying in buckets, on an emulator behind a proxy that enforces preconditions."""

import json
import shutil
from pathlib import Path

import pytest

from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.storage import open_storage
from tests.conftest import build_dataset, shardmill
from tests.pipelines.test_count import count, records_of
from tests.support.gcs_builds import upload
from tests.support.readers import current
from tests.support.record_tools import make_payloads, write_records
from tests.transforms.verify.test_verify import findings_of

pytest_plugins = ["tests.support.gcs_server"]
pytestmark = pytest.mark.heavy


@pytest.fixture
def files(tmp_path) -> Path:
    folder = tmp_path / "files"
    write_records(folder / "train-00000-of-00002", make_payloads(500, longest=900), "gzip")
    write_records(folder / "train-00001-of-00002", make_payloads(400, 1, 900))
    write_records(folder / "val" / "a b#?%.tfrecord", make_payloads(30, 2), "gzip")
    (folder / "notes.txt").write_text("x")
    return folder


@pytest.mark.parametrize("check", ["records", "index"])
def test_count_of_objects_matches_count_of_files(files, strict_bucket, check) -> None:
    uri = upload(files, f"{strict_bucket}/in")
    there = count(uri, check=check, manifest=f"{strict_bucket}/m.json")
    here = count(files, check=check)
    assert records_of(there) == records_of(here)
    assert there.splits == here.splits
    assert there.root == uri
    stored = open_storage(uri).read(f"{strict_bucket}/m.json")
    assert Manifest.from_json(stored) == there
    glob = count(f"{uri}/train-*", f"{uri}/val/*", check=check)
    assert records_of(glob) == records_of(here)


def test_verifies_dataset_in_a_bucket(photos, tmp_path, strict_bucket) -> None:
    build_dataset(input=photos, output=tmp_path / "ds", image_size=24)
    uri = upload(tmp_path / "ds", f"{strict_bucket}/ds")
    assert findings_of(uri) == []
    name, generation = "train-00000-of-00001.tfrecord.gz", current(tmp_path / "ds")
    data = bytearray((generation / name).read_bytes())
    data[-30] ^= 4
    open_storage(uri).replace(f"{uri}/{generation.name}/{name}", bytes(data))
    open_storage(uri).replace(f"{uri}/{generation.name}/stray", b"x")
    found = findings_of(uri)
    assert {finding.file for finding in found} == {name, "stray"}


def test_command_counts_a_bucket(files, strict_bucket, tmp_path) -> None:
    uri = upload(files, f"{strict_bucket}/in")
    open_storage(uri).replace(f"{uri}/bad.tfrecord", b"what is this\n" * 30)
    done = shardmill("count", "--input", uri, "--manifest", tmp_path / "m.json", "--processes=2")
    assert done.returncode == 1
    assert "damaged    bad.tfrecord: it is not a TFRecord file but text" in done.stdout
    assert json.loads((tmp_path / "m.json").read_text())["written"] == 930
    shutil.rmtree(files)
    verified = shardmill("verify", tmp_path / "m.json", "--processes=2")
    assert verified.returncode == 1
    assert verified.stdout.count("  fault  ") == 1
