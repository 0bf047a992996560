"""Amazon S3 and what speaks like it, through Apache Beam's own client."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from shardmill.schemas.errors import ChangedError, DeniedError, StorageError, UsageError
from shardmill.schemas.storage.base import Entry
from shardmill.schemas.storage.beam_files import (
    BeamStorage,
    Stream,
    beam_options,
    missing_package,
    one_line,
)

_PART = 16 << 20  # bytes of one call of an upload; a file has at most 10,000
_DELETED = 1000  # keys in one call
_DENIED = frozenset({401, 403})
_NO_SUCH_RANGE = 416
# How Beam's client says that a listing has nothing in it.
_EMPTY = "Tried to list nonexistent S3 path"
_SAID = re.compile(r"An error occurred \((\w+)\) when calling .*? operation.*?: (.*)")
_NOTHING = ".shardmill-is-this-bucket-here"
_NO_CREDENTIALS = ("Unable to locate credentials", "Partial credentials", "Credentials were")


def split_uri(uri: str) -> tuple[str, str]:
    """Returns the bucket and key of an s3:// URI.

    Raises:
        UsageError: The URI names no bucket.
    """
    bucket, _, key = uri.partition("://")[2].partition("/")
    if not bucket:
        raise UsageError(f"{uri} names no bucket: write s3://BUCKET/PATH.")
    return bucket, key


class S3Storage(BeamStorage):
    """Objects in buckets; one builder at a time.

    Beam makes a client for each call, which takes a third of a second; here all calls of a
    process share one. Beam's client knows no conditional writes, so ``create`` looks first and
    then writes: of two builders at the same moment both may win. An object appears whole, by a
    multipart upload of one or more parts.
    """

    def __init__(self) -> None:
        from apache_beam.io.aws.clients.s3 import boto3_client, messages

        if boto3_client.boto3 is None:
            raise missing_package("s3", "boto3", "aws")
        self._messages: Any = messages
        self._make: Any = boto3_client.Client
        self._lock = threading.Lock()
        self._shared: tuple[int, Any, Any] | None = None
        self._seen: set[str] = set()  # buckets that are there

    def _client(self, bucket: str) -> Any:
        """Returns this process's client; the first call of a bucket asks whether it is there."""
        options = beam_options()
        with self._lock:
            shared = self._shared
            if shared is None or shared[0] != os.getpid() or shared[1] is not options:
                shared = self._shared = os.getpid(), options, self._new_client(options, bucket)
                self._seen.clear()
        client = shared[2]
        if bucket not in self._seen:
            self._reach(client, bucket)
        return client

    def _reach(self, client: Any, bucket: str) -> None:
        """Asks for a listing of nothing, whose answer, unlike a look at one object, says why not.

        Raises:
            StorageError: The bucket is not there, or not for us.
        """
        for _ in self._pages(client, bucket, _NOTHING):
            break
        self._seen.add(bucket)

    def _new_client(self, options: Any, bucket: str) -> Any:
        try:
            return self._make(options)
        except Exception as error:  # botocore's errors share no base with anything else
            raise UsageError(
                f"s3://{bucket} cannot be used: {one_line(error)}; check the --s3_... options and "
                "the AWS_... variables."
            ) from error

    def _pages(self, client: Any, bucket: str, prefix: str) -> Iterator[list[Any]]:
        """Yields the pages of a listing of all keys that begin with a prefix, sorted by key."""
        request = self._messages.ListRequest(bucket, prefix)
        while True:
            try:
                page = client.list(request)
            except self._messages.S3ClientError as error:
                if str(error.message).startswith(_EMPTY):
                    return
                uri = f"s3://{bucket}/{'' if prefix == _NOTHING else prefix}".rstrip("/")
                raise _plain_error("list", uri, error, listing=True) from error
            yield page.items
            if page.next_token is None:
                return
            request = self._messages.ListRequest(bucket, prefix, page.next_token)

    @contextlib.contextmanager
    def _plainly(self, action: str, uri: str) -> Iterator[None]:
        """Turns Beam's error into ours; a missing object into FileNotFoundError."""
        try:
            yield
        except self._messages.S3ClientError as error:
            raise _plain_error(action, uri, error) from error

    def _file(self, path: str) -> Entry:
        bucket, key = split_uri(path)
        if not key or key.endswith("/"):
            raise FileNotFoundError(path)
        client = self._client(bucket)
        with self._plainly("look at", path):
            item = client.get_object_metadata(self._messages.GetRequest(bucket, key))
        return _entry(bucket, item)

    def _stream(self, entry: Entry) -> Stream:
        bucket, key = split_uri(entry.path)
        # Beam's wrapper remembers the one download it is at; the client in it is any thread's.
        return _S3Stream(self, copy.copy(self._client(bucket)), entry.path, bucket, key)

    def stat(self, path: str) -> Entry | None:
        """See ``Storage.stat``; a prefix that has objects below it is a folder."""
        try:
            return self._file(path)
        except FileNotFoundError:
            bucket, key = split_uri(path)
        for _ in self._pages(self._client(bucket), bucket, _prefix(key)):
            return Entry(path, 0, "", "dir")
        return None

    def walk(self, path: str) -> Iterator[Entry]:
        """Yields every object below a prefix, in order of keys, in one listing."""
        bucket, key = split_uri(path)
        for page in self._pages(self._client(bucket), bucket, _prefix(key)):
            yield from (_entry(bucket, item) for item in page if not item.key.endswith("/"))

    def list_dir(self, path: str) -> Iterator[Entry]:
        """See ``Storage.list_dir``; Beam's client lists all that lies below as well."""
        bucket, key = split_uri(path)
        prefix = _prefix(key)
        found: dict[str, Entry] = {}
        folders: dict[str, Entry] = {}
        for page in self._pages(self._client(bucket), bucket, prefix):
            for item in page:
                name, below, _ = item.key[len(prefix) :].partition("/")
                uri = f"s3://{bucket}/{prefix}{name}"
                if below and name:
                    folders[uri] = Entry(uri, 0, "", "dir")
                elif name:
                    found[uri] = _entry(bucket, item)
        yield from sorted([*found.values(), *folders.values()])

    def _put(self, path: str, chunks: Iterable[bytes]) -> None:
        bucket, key = split_uri(path)
        if not key or key.endswith("/"):
            raise UsageError(f"{path} names no file: write s3://BUCKET/PATH.")
        client, messages = self._client(bucket), self._messages
        parts: list[dict[str, Any]] = []
        upload = ""
        # The chunks' own errors are not the upload's.
        for data in _pieces(chunks):
            with self._plainly("write", path):
                if not upload:
                    begin = messages.UploadRequest(bucket, key, "application/octet-stream")
                    upload = client.create_multipart_upload(begin).upload_id
                request = messages.UploadPartRequest(bucket, key, upload, len(parts) + 1, data)
                etag = client.upload_part(request).etag
            parts.append({"ETag": etag, "PartNumber": len(parts) + 1})
        with self._plainly("write", path):
            client.complete_multipart_upload(
                messages.CompleteMultipartUploadRequest(bucket, key, upload, parts)
            )

    def create(self, path: str, data: bytes, aside: str = "") -> bool:
        """See ``Storage.create``; not exclusive: it looks whether it is there, then writes."""
        del aside
        try:
            self._file(path)
        except FileNotFoundError:
            self.replace(path, data)
            return True
        return False

    def move(self, source: str, path: str) -> None:
        """See ``Storage.move``; the service copies, then the source is deleted."""
        if source == path:
            self._file(path)
            return
        bucket, key = split_uri(path)
        origin, name = split_uri(source)
        try:
            self._client(bucket)
            with self._plainly("move", source):
                self._client(origin).copy(self._messages.CopyRequest(origin, name, bucket, key))
        except FileNotFoundError:
            self._file(path)
        else:
            self.delete(source)

    def delete(self, path: str) -> None:
        """See ``Storage.delete``."""
        bucket, key = split_uri(path)
        with contextlib.suppress(FileNotFoundError), self._plainly("delete", path):
            self._client(bucket).delete(self._messages.DeleteRequest(bucket, key))

    def delete_tree(self, path: str) -> None:
        """See ``Storage.delete_tree``; a thousand objects a call."""
        bucket, key = split_uri(path)
        if not _prefix(key):
            return
        client = self._client(bucket)
        keys = [item.key for page in self._pages(client, bucket, _prefix(key)) for item in page]
        for start in range(0, len(keys), _DELETED):
            with self._plainly("delete", path):
                request = self._messages.DeleteBatchRequest(bucket, keys[start : start + _DELETED])
                done = client.delete_batch(request)
                if done.errors:
                    raise done.errors[0]


class _S3Stream:
    """One download that goes on where the last read ended, or begins anew elsewhere."""

    def __init__(self, storage: S3Storage, client: Any, path: str, bucket: str, key: str) -> None:
        self._storage, self._client, self._path = storage, client, path
        self._request = storage._messages.GetRequest(bucket, key)  # noqa: SLF001

    def read(self, offset: int, length: int) -> bytes:
        """See ``Stream.read``."""
        pieces: list[bytes] = []
        end = offset + length
        while offset < end:
            with self._storage._plainly("read", self._path):  # noqa: SLF001
                data: bytes = self._client.get_range(self._request, offset, end)
            if not data:
                break
            pieces.append(data)
            offset += len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the parts of an upload: all but the last of one size, and at least one."""
    buffer = bytearray()
    sent = False
    for chunk in chunks:
        buffer += chunk
        while len(buffer) > _PART:
            yield bytes(buffer[:_PART])
            del buffer[:_PART]
            sent = True
    if buffer or not sent:
        yield bytes(buffer)


def _prefix(key: str) -> str:
    """Returns what the keys of all objects in a folder begin with."""
    return key.rstrip("/") + "/" if key.rstrip("/") else ""


def _entry(bucket: str, item: Any) -> Entry:
    # Looked at alone, an object tells the second only.
    seconds = int(item.last_modified.timestamp())
    etag = item.etag.strip('"')
    return Entry(f"s3://{bucket}/{item.key}", item.size or 0, f"{etag}@{seconds * 1000}")


def _plain_error(action: str, uri: str, error: Any, *, listing: bool = False) -> Exception:
    """Returns the plain sentence for an error of Beam's client."""
    said = one_line(error.message)
    why = _SAID.sub(r"\2 (\1)", said)
    bucket = split_uri(uri)[0]
    if "NoSuchBucket" in why:
        return StorageError(
            f"Cannot {action} {uri}: the bucket {bucket!r} does not exist; create it or correct "
            "its name."
        )
    if not listing and (error.code == 404 or "NoSuchKey" in why):
        return FileNotFoundError(uri)
    if error.code == _NO_SUCH_RANGE:
        return ChangedError("it was replaced by a shorter one")
    if error.code in _DENIED or error.code == "AccessDenied":
        return DeniedError(
            f"Cannot {action} {uri}: {why}; check the credentials and ask for that permission."
        )
    if any(text in why for text in _NO_CREDENTIALS):
        return StorageError(
            f"Cannot {action} {uri}: {why}; run `aws configure` or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY."
        )
    return StorageError(f"Cannot {action} {uri}: {why}; run again when the service answers.")
