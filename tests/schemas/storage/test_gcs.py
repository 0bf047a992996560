"""Google Cloud Storage: faults of the network, generations, listings and credentials."""

import gzip
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import pytest
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from shardmill.schemas.errors import StorageError
from shardmill.schemas.refs import count_skipped
from shardmill.schemas.storage.gcs import GcsStorage, translate_errors
from shardmill.transforms.match.walk import first_level, walk
from tests.conftest import shardmill

pytest_plugins = ["tests.support.gcs_server"]


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


def test_threads_share_one_client_and_its_connections(strict_bucket, front, caplog):
    GcsStorage().replace(f"{strict_bucket}/x", b"data")
    storage, clients = GcsStorage(), set()
    make_client = storage._make_client
    storage._make_client = lambda: time.sleep(0.1) or make_client()  # several threads wait for it

    def work(_):
        clients.add(id(storage._client()))
        return storage.read(f"{strict_bucket}/x")

    for _ in range(3):  # as a pool of decoding threads for each part
        with ThreadPoolExecutor(20) as pool:
            assert set(pool.map(work, range(60))) == {b"data"}
    assert len(clients) == 1
    assert front.connections <= 21
    assert "pool is full" not in caplog.text


# Faults of the network and the service

CALLS = {
    "get": lambda s, root: s.stat(f"{root}/old").size,
    "download": lambda s, root: s.read(f"{root}/old"),
    "download of a version": lambda s, root: s.read_unchanged(*s.stat(f"{root}/old")[:3]),
    "download of a range": lambda s, root: read_range(s, f"{root}/old"),
    "upload": lambda s, root: s.replace(f"{root}/new", b"new"),
    "compose": lambda s, root: s.concat([f"{root}/old"] * 2, f"{root}/new"),
    "rewrite": lambda s, root: s.copy(f"{root}/old", f"{root}/new"),
    "delete": lambda s, root: s.delete(f"{root}/old"),
    "list": lambda s, root: [e.path for e in s.list_dir(root)],
}


def read_range(storage: GcsStorage, path: str) -> bytes:
    with storage.open_at(path) as reader:
        return reader.read_at(1, 2)


@pytest.mark.sweep
@pytest.mark.parametrize("how", ["503", "429", "drop", "reset", "lose", "truncate"])
@pytest.mark.parametrize("kind", CALLS)
def test_retries_a_call_that_fails_twice(kind, how, strict_bucket, front, no_pauses):
    results = []
    for faults in (0, 2):
        root = f"{strict_bucket}/{faults}"
        storage = GcsStorage()
        storage.replace(f"{root}/old", b"old")
        front.fail(kind.split()[0], how, faults)
        answer = CALLS[kind](storage, root)
        assert front.faults_left == 0
        tree = {e.path[len(root) :]: storage.read(e.path) for e in storage.walk(root)}
        results.append((str(answer).replace(root, ""), tree))
    assert results[0] == results[1]


def test_reads_a_range_of_a_server_that_ignores_ranges(strict_bucket, front, monkeypatch):
    storage = GcsStorage()
    storage.replace(f"{strict_bucket}/x", b"data")
    carry_out = front.carry_out

    def ignore_ranges(call, headers, forward):
        kept = {name: value for name, value in headers.items() if name.lower() != "range"}
        assert len(kept) < len(headers) or call.kind != "download"
        return carry_out(call, kept, forward)

    monkeypatch.setattr(front, "carry_out", ignore_ranges)
    assert read_range(storage, f"{strict_bucket}/x") == b"at"


def test_ranges_share_a_connection(strict_bucket, front):
    storage = GcsStorage()
    storage.replace(f"{strict_bucket}/x", b"data")
    front.reset()
    for _ in range(20):
        assert read_range(storage, f"{strict_bucket}/x") == b"at"
    assert front.connections <= 1


def test_retries_a_truncated_error(strict_bucket, front, no_pauses):
    front.fail("download", "truncate", 2)
    with pytest.raises(FileNotFoundError):
        GcsStorage().read(f"{strict_bucket}/nothing")
    assert front.faults_left == 0


@pytest.mark.parametrize("how", ["503", "drop", "lose"])
def test_create_detects_its_own_object_if_the_answer_is_lost(how, strict_bucket, front, no_pauses):
    storage = GcsStorage()
    front.fail("upload", how, 2)
    assert storage.create(f"{strict_bucket}/x", b"same")
    front.fail("upload", how, 2)
    assert not storage.create(f"{strict_bucket}/x", b"same")
    assert storage.read(f"{strict_bucket}/x") == b"same"


def test_rejects_downloads_with_a_wrong_checksum(strict_bucket, front):
    storage = GcsStorage()
    storage.replace(f"{strict_bucket}/x", b"data")
    version = storage.stat(f"{strict_bucket}/x").version
    front.fail("download", "corrupt", 2)
    with pytest.raises(StorageError, match="Cannot read"):
        storage.read(f"{strict_bucket}/x")
    with pytest.raises(StorageError, match="Cannot read"):
        storage.read_unchanged(f"{strict_bucket}/x", 4, version)
    assert storage.read(f"{strict_bucket}/x") == b"data"


def test_reports_missing_permissions(strict_bucket, front):
    storage = GcsStorage()
    storage.replace(f"{strict_bucket}/x", b"data")
    front.fail("download", "403", 2)
    front.fail("list", "403")
    with pytest.raises(
        StorageError, match="injected; check the credentials and ask for that permission"
    ):
        storage.read(f"{strict_bucket}/x")
    with pytest.raises(PermissionError):  # one reject, not a failed build
        storage.read_unchanged(f"{strict_bucket}/x", 4, "1")
    with pytest.raises(StorageError, match="ask for that permission"):
        list(storage.list_dir(strict_bucket))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (api.RetryError("Timeout of 120s exceeded", OSError("no\nroute")), "no route; run again"),
        (api.BadRequest("odd\n  request."), "odd request; run again"),
        (requests.ConnectionError("aborted"), "aborted; run again"),
        (ConnectionResetError("reset"), "reset; run again"),
        (
            auth.RefreshError("invalid_grant: expired\n", {"error": 1}),
            "credentials .invalid_grant: expired",
        ),
    ],
)
def test_translates_every_error_to_one_line(error, text):
    with (
        pytest.raises(StorageError, match=f"^Cannot read gs://b/x: .*{text}") as caught,
        translate_errors("read", "gs://b/x"),
    ):
        raise error
    assert "\n" not in str(caught.value)


# Generations, uploads and listings


def test_uploads_a_small_file_with_one_call(strict_bucket, front):
    storage, path = GcsStorage(), f"{strict_bucket}/x"
    for size, chunks in ((8 << 20, {}), ((8 << 20) + 1, {"upload_chunk": 1})):
        front.calls.clear()
        with storage.open_write(path) as file:
            file.write(b"x" * size)
        assert front.counts() == {"upload": 1, **chunks}
        assert storage.stat(path).size == size
        assert storage.checksum(path) == google_crc32c.value(b"x" * size)


def test_reads_all_pages_of_a_listing(strict_bucket, front):
    front.rules.page_size = 3
    storage = GcsStorage()
    root = f"{strict_bucket}/top"
    names = [f"{folder}/{n}" for folder in ("a", "b", "c") for n in range(7)]
    for name in [*names, *"defghijk"]:
        storage.replace(f"{root}/{name}", b"")
    front.calls.clear()
    assert [e.path[len(root) + 1 :] for e in storage.list_dir(root)] == list("abcdefghijk")
    assert front.counts()["list"] == 3
    assert [e.path[len(root) + 1 :] for e in storage.walk(root)] == [*names, *"defghijk"]
    storage.delete_tree(root)
    assert list(storage.walk(strict_bucket)) == []


def test_file_and_folder_may_have_the_same_name(bucket):
    storage = GcsStorage()
    for name in ("a", "a/x"):
        storage.replace(f"{bucket}/{name}", b"")
    assert [e.kind for e in storage.list_dir(bucket)] == ["dir", "file"]
    assert storage.stat(f"{bucket}/a").kind == "file"
    storage.delete_tree(f"{bucket}/a")
    assert [e.path for e in storage.walk(bucket)] == [f"{bucket}/a"]


def test_decompresses_an_object_with_gzip_content_encoding(bucket):
    storage = GcsStorage()
    blob = storage._blob(f"{bucket}/x.jpg")
    blob.content_encoding = "gzip"
    blob.upload_from_string(gzip.compress(b"picture" * 100), content_type="image/jpeg")
    entry = storage.stat(f"{bucket}/x.jpg")
    assert entry.size < 100
    assert storage.read_unchanged(entry.path, entry.size, entry.version) == b"picture" * 100


def test_stream_fails_if_the_object_is_replaced(strict_bucket, front):
    storage, path = GcsStorage(), f"{strict_bucket}/x"
    storage.replace(path, b"a" * (20 << 20))

    def read_while_replaced():
        with storage.open_read(path) as chunks:
            for number, chunk in enumerate(chunks):
                assert chunk == b"a" * len(chunk)
                if number == 0:
                    storage.replace(path, b"b" * (20 << 20))

    with pytest.raises(StorageError, match="it was replaced at the same time"):
        read_while_replaced()


def test_walk_finds_each_object_once(bucket):
    storage = GcsStorage()
    names = ["a/b/c.jpg", "a/x.jpg", "top.jpg", "b#/y.jpg", "/a/x.jpg", "e//x.jpg"]
    names += [".hidden/z.jpg", "d/"]
    for name in names:
        storage.replace(f"{bucket}/{name}", b"x")
    found = [ref for task in first_level(bucket) for ref in walk(bucket, task, follow_links=False)]
    hidden = count_skipped(".hidden/z.jpg")
    assert hidden in found
    assert sorted(ref.key for ref in found if ref != hidden) == sorted(names[:-2])


@pytest.mark.parametrize("key", ["", "key.json"])
def test_reports_unusable_credentials(key, tmp_path):
    hidden = ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST")
    env = {k: v for k, v in os.environ.items() if k not in hidden}
    env |= {"CLOUDSDK_CONFIG": str(tmp_path / "none"), "NO_GCE_CHECK": "true"}
    if key:
        env["GOOGLE_APPLICATION_CREDENTIALS"] = str(tmp_path / key)
    done = shardmill("steps", "gs://some-bucket/ds", "--batch_size=1", env=env)
    assert (done.returncode, done.stdout) == (1, "")
    begin, why, end = re.fullmatch(r"(.*?)\((.*)\)(.*)\n", done.stderr).groups()
    assert begin == (
        "shardmill: Cannot read gs://some-bucket/ds/manifest.json: there are no usable Google "
        "credentials "
    )
    assert env["GOOGLE_APPLICATION_CREDENTIALS"] in why if key else why == "none were found"
    assert end == (
        "; run `gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS."
    )
