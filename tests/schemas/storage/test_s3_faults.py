"""Failures of the network and of the service on s3://."""

import random

import pytest

from shardmill.schemas.errors import ChangedError, DeniedError, StorageError
from shardmill.schemas.storage import s3
from shardmill.schemas.storage import s3 as s3_module
from shardmill.schemas.storage.s3 import S3Storage

pytest_plugins = ["tests.support.s3_server"]
pytestmark = pytest.mark.xdist_group("s3")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(s3, "_LONGEST_PAUSE", 0.01)


@pytest.fixture
def storage(proxy) -> S3Storage:
    return S3Storage()


def prepare_write(storage: S3Storage, path: str, how: str):
    """Return a function that writes conditionally, after preparing the object for it."""
    if how == "create":
        return lambda: storage.create(path, b"new")
    storage.replace(path, b"old")
    version = storage.read_version(path)[1]
    return lambda: storage.replace_if(path, b"new", version)


conditional = pytest.mark.parametrize("how", ["create", "replace_if"])


@conditional
def test_detects_its_own_write_if_the_answer_is_lost(how, proxy, storage, s3_bucket):
    path = f"{s3_bucket}/x"
    write = prepare_write(storage, path, how)
    proxy.reset()
    proxy.fail("PUT", "lose")
    assert write()
    assert [call.method for call in proxy.calls] == ["PUT", "PUT", "HEAD"]
    assert storage.read(path) == b"new"
    assert not write()


def test_sends_conditions_with_each_write(proxy, storage, s3_bucket):
    path = f"{s3_bucket}/x"
    assert storage.create(path, b"one")
    version = storage.read_version(path)[1]
    proxy.reset()
    assert storage.replace_if(path, b"two", version)
    assert not storage.create(path, b"three")
    storage.delete(path, version)
    etag = f'"{version.split("@")[0]}"'
    sent = [
        (call.method, call.headers.get("If-Match"), call.headers.get("If-None-Match"))
        for call in proxy.calls
        if call.method != "HEAD"
    ]
    assert sent == [("PUT", etag, None), ("PUT", None, "*"), ("DELETE", etag, None)]


@conditional
def test_retries_conflicts(how, proxy, storage, s3_bucket):
    path = f"{s3_bucket}/x"
    write = prepare_write(storage, path, how)
    proxy.fail("PUT", "409 ConditionalRequestConflict", 2)
    assert write()
    assert storage.read(path) == b"new"
    proxy.fail("PUT", "409 ConditionalRequestConflict", 99)
    with pytest.raises(StorageError, match=r"broken \(ConditionalRequestConflict\); run again"):
        storage.create(f"{s3_bucket}/y", b"")


@pytest.mark.nightly
def test_retries_an_overloaded_service(proxy, storage, s3_bucket):
    path = f"{s3_bucket}/x"
    proxy.fail("PUT", "503 SlowDown", 3)
    assert storage.create(path, b"new")
    proxy.fail("GET", "500 InternalError", 3)
    assert storage.read(path) == b"new"
    proxy.reset()
    proxy.fail("PUT", "503 SlowDown", 99)
    with pytest.raises(StorageError, match=r"Cannot write s3://.*\(SlowDown\); run again when"):
        storage.replace(path, b"")
    assert len(proxy.calls) == s3.ATTEMPTS


def test_resumes_an_interrupted_download(proxy, storage, s3_bucket):
    data = random.Random(1).randbytes(5_000_000)
    path = f"{s3_bucket}/x"
    storage.replace(path, data)
    entry = storage.stat(path)

    def read_stream():
        with storage.open_read(path) as chunks:
            return b"".join(chunks)

    def read_range():
        with storage.open_at(path) as reader:
            return reader.read_at(0, len(data))

    for read in (
        lambda: storage.read(path),
        lambda: storage.read_unchanged(path, len(data), entry.version),
        read_stream,
        read_range,
    ):
        proxy.reset()
        proxy.fail("GET", "cut 1200000", 3)
        assert read() == data
        gets = [call.headers for call in proxy.calls if call.method == "GET"]
        assert len(gets) == 4
        assert gets[1]["Range"] == "bytes=1200000-4999999"
        assert all(headers["If-Match"] for headers in gets[1:])
    proxy.fail("GET", "cut 0", 99)
    with pytest.raises(StorageError, match=r"Cannot read s3://.*; run again when"):
        storage.read(path)


def test_never_resumes_a_download_of_another_version(proxy, storage, s3_bucket):
    path = f"{s3_bucket}/x"
    other = S3Storage()
    for read, error, words in (
        (lambda entry: storage.read(path), StorageError, "replaced at the same time; run"),
        (lambda entry: storage.read_unchanged(*entry[:3]), ChangedError, "it was replaced while"),
    ):
        storage.replace(path, b"a" * 3_000_000)
        entry = storage.stat(path)
        proxy.fail("GET", "cut 1200000")
        gets = []

        def before(call, gets=gets):
            if call.method == "GET":
                gets.append(call)
                if len(gets) == 2:
                    other.replace(path, b"b" * 3_000_000)

        proxy.hook = before
        with pytest.raises(error, match=words):
            read(entry)
        proxy.reset()


def test_deletes_by_name_where_conditional_deletion_is_not_implemented(proxy, storage, s3_bucket):
    path = f"{s3_bucket}/x"
    storage.replace(path, b"x")
    proxy.fail("DELETE", "501 NotImplemented")
    storage.delete(path, storage.stat(path).version)
    assert storage.stat(path) is None


def test_denied_call_is_a_permission_error(proxy, storage, s3_bucket):
    path = f"{s3_bucket}/x"
    storage.replace(path, b"x")
    for method, call in (
        ("GET", storage.read),
        ("PUT", lambda path: storage.create(path, b"")),
        ("DELETE", storage.delete),
        ("HEAD", storage.stat),
        ("GET", lambda path: list(storage.list_dir(path))),
    ):
        proxy.reset()
        proxy.fail(method, "403 AccessDenied", 9)
        with pytest.raises(DeniedError, match="check the credentials and ask for that") as caught:
            call(path)
        assert isinstance(caught.value, PermissionError)
    proxy.reset()
    proxy.fail("GET", "400 ExpiredToken")
    with pytest.raises(DeniedError, match=r"\(ExpiredToken\); check the credentials"):
        storage.read(path)


def test_aborts_a_failed_upload(proxy, storage, s3, s3_bucket):
    bucket = s3_bucket.removeprefix("s3://")
    data = bytes((16 << 20) * 2 + 1)
    uploads = lambda: s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])  # noqa: E731
    sent = []

    def before(call):
        if call.method == "PUT":
            sent.append(call)
            if len(sent) == 2:
                assert uploads()  # not trivial
                proxy.fail("PUT", "403 AccessDenied", 99)

    proxy.hook = before
    with pytest.raises(DeniedError), storage.open_write(f"{s3_bucket}/x") as file:
        file.write(data)
    assert len(sent) == 2
    assert not uploads()


def test_copies_a_large_object_in_ranges_of_one_version(proxy, storage, s3_bucket, monkeypatch):
    part = 5 << 20
    monkeypatch.setattr(s3_module, "_COPIED", part)
    data = random.Random(2).randbytes(2 * part + 17)
    with storage.open_write(f"{s3_bucket}/x") as file:
        file.write(data)
    proxy.reset()
    storage.copy(f"{s3_bucket}/x", f"{s3_bucket}/y")
    ranges = [call.headers.get("x-amz-copy-source-range") for call in proxy.calls]
    assert [each for each in ranges if each] == [
        f"bytes=0-{part - 1}",
        f"bytes={part}-{2 * part - 1}",
        f"bytes={2 * part}-{2 * part + 16}",
    ]
    assert storage.read(f"{s3_bucket}/y") == data


@pytest.mark.heavy
@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize("how", ["write", "copy"])
def test_each_lost_answer_of_a_multipart_upload(how, lost, proxy, storage, s3_bucket, monkeypatch):
    """Its start, two parts and its end, after which the service does not know the upload."""
    data = random.Random(3).randbytes(6 << 20)
    monkeypatch.setattr(s3_module, "_COPIED", 5 << 20)
    if how == "copy":
        storage.replace(f"{s3_bucket}/x", data)
    monkeypatch.setattr(s3_module, "_PART", 5 << 20)
    proxy.reset()
    proxy.fail("write", "lose", skip=lost)
    if how == "copy":
        storage.copy(f"{s3_bucket}/x", f"{s3_bucket}/y")
    else:
        with storage.open_write(f"{s3_bucket}/y") as file:
            file.write(data)
    assert proxy.faults_left == 0
    assert storage.read(f"{s3_bucket}/y") == data


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["lose", "404 NoSuchUpload"])
def test_the_end_of_an_upload_that_the_service_has_forgotten(
    how, proxy, storage, s3_bucket, monkeypatch
):
    """A service may forget an upload when it ends, so a retry is not enough; moto remembers it."""
    path = f"{s3_bucket}/y"
    monkeypatch.setattr(s3_module, "_PART", 5 << 20)
    storage.replace(path, b"other")
    proxy.reset()
    proxy.fail("POST", how, skip=1)
    proxy.fail("POST", "404 NoSuchUpload", times=99, skip=1)
    data = random.Random(4).randbytes(6 << 20)
    if how == "lose":
        with storage.open_write(path) as file:
            file.write(data)
        assert storage.read(path) == data
    else:  # another process has aborted it
        with pytest.raises(StorageError, match="NoSuchUpload"), storage.open_write(path) as file:
            file.write(data)
        assert storage.read(path) == b"other"
