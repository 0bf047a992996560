"""Amazon S3 and compatible services, through botocore."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import random
import re
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from shardmill.schemas.errors import (
    ChangedError,
    DeniedError,
    ShardmillError,
    StorageError,
    UsageError,
)
from shardmill.schemas.storage.base import (
    REMEDY,
    Entry,
    changed_size,
    describe_denial,
    describe_failure,
    one_line,
    replaced_error,
)
from shardmill.schemas.storage.objects import (
    CHUNK,
    SPOOL,
    WRITER,
    ObjectStorage,
    folder_prefix,
    invalid_bucket,
    missing_bucket_error,
    missing_package,
    split_uri,
)

ATTEMPTS = 5  # of one call, unless AWS_MAX_ATTEMPTS or ~/.aws/config sets another number
_CONNECTIONS = 64  # kept open; more than any sensible number of threads
_CONNECT_SECONDS = 10
_READ_SECONDS = 60  # without a byte
_LONGEST_PAUSE = 20.0
_DENIED_STATUS = frozenset({401, 403})
# Errors about credentials that some services report with another status.
_DENIED_CODES = frozenset(
    {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "XAdminUserNotFound"}
)
_NO_OBJECT = frozenset({"NoSuchKey", "404"})  # a HEAD has no body, so its code is the status
_NO_SUCH_RANGE = 416
_CREDENTIALS = re.compile("Credential|Token")  # in the names of errors


class PreconditionError(ChangedError):
    """The service rejected a conditional call: the object is not the expected version (412)."""


class UnsupportedError(StorageError):
    """The service does not implement the condition of a call (501)."""


class UploadEndedError(StorageError):
    """The service does not know a multipart upload, which was completed or aborted (404)."""


@contextlib.contextmanager
def translate_errors(action: str, uri: str) -> Iterator[None]:
    """Convert botocore's errors to Shardmill's, and a missing object to FileNotFoundError."""
    from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

    try:
        yield
    except ClientError as error:
        raise _of_answer(action, uri, error.response) from error
    except ParamValidationError as error:
        bucket = split_uri(uri)[0]
        raise invalid_bucket(uri=uri, bucket=bucket, scheme="s3") from error
    except BotoCoreError as error:
        remedy = REMEDY
        if _CREDENTIALS.search(type(error).__name__):
            remedy = "run `aws configure` or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise StorageError(
            describe_failure(action=action, path=uri, error=one_line(error), remedy=remedy)
        ) from error


def _of_answer(action: str, uri: str, answer: Any) -> Exception:
    """Return the error for an answer of the service that reports one."""
    status = answer["ResponseMetadata"].get("HTTPStatusCode", 0)
    code = str(answer["Error"].get("Code", ""))
    if code == "NoSuchBucket":
        return missing_bucket_error(action, uri)
    if code in _NO_OBJECT:
        return FileNotFoundError(uri)
    if status == 412:
        return PreconditionError("it was replaced while it was read")
    if status == _NO_SUCH_RANGE:
        return ChangedError("it was replaced by a shorter one")
    why = f"{one_line(answer['Error'].get('Message') or 'no reason given')} ({code or status})"
    if status in _DENIED_STATUS or code in _DENIED_CODES:
        return DeniedError(describe_denial(action=action, uri=uri, why=why))
    kind = UnsupportedError if status == 501 else StorageError
    if code == "NoSuchUpload":
        kind = UploadEndedError
    return kind(describe_failure(action=action, path=uri, error=why, remedy=REMEDY))


def make_client() -> Any:
    """Return a client that threads may share.

    Botocore searches for credentials, region and endpoint. AWS_REGION is read here, since botocore
    ignores it while the other SDKs of AWS read it.

    Raises:
        UsageError: The configuration is incomplete or malformed.
    """
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    try:
        session = botocore.session.Session()
        attempts = session.get_config_variable("max_attempts") or ATTEMPTS
        client = session.create_client(
            "s3",
            region_name=os.environ.get("AWS_REGION") or None,
            config=Config(
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                max_pool_connections=_CONNECTIONS,
                retries={"mode": "standard", "total_max_attempts": attempts},
                tcp_keepalive=True,
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise UsageError(
            f"s3:// cannot be used: {one_line(error)}; check the AWS_... variables and ~/.aws."
        ) from error
    client.meta.events.register_first("needs-retry.s3", _retry_conflict)
    return client


def pause_seconds(failures: int) -> float:
    """Return the time to wait before a retry: exponential backoff with full jitter."""
    return random.random() * min(_LONGEST_PAUSE, 2.0 ** (failures - 1))  # noqa: S311


def _retry_conflict(response: Any, attempts: int, **_: Any) -> float | None:
    """Return when to send a call again that conflicted with another one; None for other answers.

    S3 answers 409 when conditional calls on one key overlap and neither has been decided; its
    documentation asks clients to send the call again. Botocore alone does not.
    """
    conflicted = response is not None and response[0].status_code == 409
    if conflicted and attempts < ATTEMPTS:
        return pause_seconds(attempts)
    return None


_COPIED = 1 << 30  # bytes that one call copies; the service takes at most 5 GiB
_PART = 16 << 20  # bytes of one part of an upload; an upload has at most 10,000 parts


class S3Storage(ObjectStorage):
    """Objects in buckets; exclusive creation and replacement by conditional PUT.

    Botocore retries every call with exponential backoff after transient failures; all calls are
    idempotent.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("botocore") is None:
            raise missing_package(scheme="s3", package="botocore", extra="s3")
        super().__init__(make_client)

    def _call(self, action: str, path: str, method: str, **options: Any) -> dict[str, Any]:
        """Return the answer to a call on an object.

        Args:
            action: Verb for messages; "write" where the object need not exist.
            path: The object.
            method: Method of the client.
            options: Other arguments of the method.
        """
        bucket, key = split_object(path, exists=action != "write")
        with translate_errors(action, path):
            call = getattr(self._client(), method)
            answer: dict[str, Any] = call(Bucket=bucket, Key=key, **options)
        return answer

    def _head(self, path: str) -> dict[str, Any]:
        return self._call("look at", path, "head_object")

    def stat(self, path: str) -> Entry | None:
        """Return the object at a path, or a folder if objects have it as a prefix."""
        try:
            return entry_of(path, self._head(path))
        except (FileNotFoundError, DeniedError) as error:
            below = next(self._list("look at", path, limit=1), None)  # why the HEAD failed
            if isinstance(error, DeniedError):
                raise
        if below is not None:
            return Entry(path, 0, "", "dir")
        return None

    def _open(self, path: str, version: str = "") -> tuple[Entry, Any]:
        """Start a download; return the entry of the object and the body of the answer."""
        answer = self._call("read", path, "get_object", **if_match(version))
        return entry_of(path, answer), answer["Body"]

    def _chunks(self, entry: Entry, start: int, stop: int, body: Any = None) -> Iterator[bytes]:
        """Yield a range of one version of an object; resume the download if it is interrupted.

        Args:
            entry: The object.
            start: First byte.
            stop: Byte after the last one.
            body: The body of a download of the range that was started; None to start one.

        Raises:
            ChangedError: The object was replaced.
        """
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        failures = 0
        while start < stop:
            if body is None:
                part = {"Range": f"bytes={start}-{stop - 1}", **if_match(entry.version)}
                body = self._call("read", entry.path, "get_object", **part)["Body"]
            with translate_errors("read", entry.path):
                try:
                    with contextlib.closing(body):
                        while data := body.read(CHUNK):
                            yield data
                            start += len(data)
                            failures = 0
                except (HTTPClientError, IncompleteReadError):
                    failures += 1
                    if failures == ATTEMPTS:
                        raise
                    time.sleep(pause_seconds(failures))
            body = None

    def read_version(self, path: str) -> tuple[bytes, str]:
        """Return an object's bytes and its version."""
        entry, body = self._open(path)
        try:
            return b"".join(self._chunks(entry, 0, entry.size, body)), entry.version
        except ChangedError as error:
            raise replaced_error("read", path) from error

    def read_unchanged(self, path: str, size: int, version: str) -> bytes:
        """Return an object's bytes if its size, ETag and modification time are as given."""
        entry, body = self._open(path, version)
        if (entry.size, entry.version) != (size, version):
            body.close()
            raise changed_size(size=size, actual=entry.size)
        return b"".join(self._chunks(entry, 0, size, body))

    def _read_range(self, entry: Entry, start: int, stop: int) -> bytes:
        return b"".join(self._chunks(entry, start, stop))

    @contextlib.contextmanager
    def open_write(self, path: str) -> Iterator[IO[bytes]]:
        """Collect an object in a temporary file; upload it when the block ends."""
        with tempfile.SpooledTemporaryFile(max_size=SPOOL) as file:
            yield file
            file.seek(0)
            self._put(path, iter(lambda: file.read(CHUNK), b""))

    def _put(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write an object: one call up to the size of a part, a multipart upload above it."""
        pieces = upload_parts(chunks)
        first = list(itertools.islice(pieces, 2))
        if len(first) == 1:
            self.replace(path, first[0])
        else:
            parts = itertools.chain(first, pieces)
            self._multipart(path, "upload_part", ({"Body": piece} for piece in parts))

    def _multipart(self, path: str, call: str, parts: Iterable[dict[str, Any]]) -> None:
        """Write an object in parts; it appears when all of them have been uploaded.

        Args:
            path: The object.
            call: Method of the client that uploads a part: ``upload_part`` or
                ``upload_part_copy``.
            parts: Arguments of each call.
        """
        send = functools.partial(self._call, "write", path)
        mark = {WRITER: uuid.uuid4().hex}
        upload = send("create_multipart_upload", Metadata=mark)["UploadId"]
        done: list[dict[str, Any]] = []
        try:
            for number, part in enumerate(parts, 1):
                answer = send(call, PartNumber=number, UploadId=upload, **part)
                etag = answer.get("CopyPartResult", answer)["ETag"]
                done.append({"PartNumber": number, "ETag": etag})
            try:
                send("complete_multipart_upload", MultipartUpload={"Parts": done}, UploadId=upload)
            except UploadEndedError:
                # If the answer of a successful call is lost, its retry finds no upload.
                if not self._has_mark(path, mark):
                    raise
        except BaseException:
            with contextlib.suppress(FileNotFoundError, ShardmillError):
                send("abort_multipart_upload", UploadId=upload)
            raise

    def replace_if(self, path: str, data: bytes, version: str) -> bool:
        """Upload an object on the condition that its ETag has not changed.

        If the response of a successful call is lost, its retry fails the condition. The mark in the
        object's metadata shows whether this call wrote it.
        """
        mark = {WRITER: uuid.uuid4().hex}
        request = {"Body": data, "Metadata": mark, **(if_match(version) or {"IfNoneMatch": "*"})}
        try:
            self._call("write", path, "put_object", **request)
        except FileNotFoundError:  # of If-Match
            return False
        except PreconditionError:
            return self._has_mark(path, mark)
        return True

    def _has_mark(self, path: str, mark: dict[str, str]) -> bool:
        """Return whether an object exists and was written by the call with a mark."""
        with contextlib.suppress(FileNotFoundError):
            return bool(self._head(path)["Metadata"] == mark)
        return False

    def replace(self, path: str, data: bytes) -> None:
        """Upload an object or replace the one at its path."""
        self._call("write", path, "put_object", Body=data)

    def concat(self, sources: Sequence[str], path: str) -> None:
        """Concatenate objects; all bytes pass through this process, a part at a time."""
        self._put(path, itertools.chain.from_iterable(map(self._stream, sources)))

    def _stream(self, path: str) -> Iterator[bytes]:
        with self.open_read(path) as chunks:
            yield from chunks

    def copy(self, source: str, path: str) -> None:
        """Copy an object in the service, a large one in ranges, unless its version changes."""
        _, size, version, *_ = self._file(source)
        bucket, key = split_uri(source)
        origin: dict[str, Any] = {"CopySource": {"Bucket": bucket, "Key": key}}
        origin["CopySourceIfMatch"] = if_match(version)["IfMatch"]
        try:
            if size <= _COPIED:
                self._call("write", path, "copy_object", **origin)
                return
            ends = ((at, min(at + _COPIED, size)) for at in range(0, size, _COPIED))
            parts = ({**origin, "CopySourceRange": f"bytes={at}-{end - 1}"} for at, end in ends)
            self._multipart(path, "upload_part_copy", parts)
        except PreconditionError as error:
            raise replaced_error("copy", source) from error

    def delete(self, path: str, version: str = "") -> None:
        """Delete an object if it exists; by name only where a service has no conditional DELETE."""
        bucket, key = split_uri(path)

        def delete(condition: dict[str, str]) -> None:
            with translate_errors("delete", path):
                self._client().delete_object(Bucket=bucket, Key=key, **condition)

        with contextlib.suppress(FileNotFoundError, PreconditionError):
            try:
                delete(if_match(version))
            except UnsupportedError:
                delete({})

    def _list(
        self, action: str, path: str, *, flat: bool = True, limit: int | None = None
    ) -> Iterator[Entry]:
        bucket, key = split_uri(path)
        options: dict[str, Any] = {}
        if not flat:
            options["Delimiter"] = "/"
        if limit:
            options = {"MaxKeys": limit}
        with translate_errors(action, path):
            pages = self._client().get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=bucket, Prefix=folder_prefix(key), **options):
                for item in page.get("Contents", []):
                    yield entry_of(f"s3://{bucket}/{item['Key']}", item)
                for folder in page.get("CommonPrefixes", []):
                    yield Entry(f"s3://{bucket}/{folder['Prefix'][:-1]}", 0, "", "dir")


def split_object(uri: str, *, exists: bool = False) -> tuple[str, str]:
    """Return the bucket and key of the URI of an object.

    Args:
        uri: The URI.
        exists: Whether the object is read, and not written.

    Raises:
        FileNotFoundError: The URI names a bucket or a folder, and ``exists``.
        UsageError: It does, and cannot be written to.
    """
    bucket, key = split_uri(uri)
    if key and not key.endswith("/"):
        return bucket, key
    if exists:
        raise FileNotFoundError(uri)
    raise UsageError(f"{uri} names no file: write s3://BUCKET/PATH.")


def upload_parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts of an upload: all but the last of one size, and at least one."""
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


def entry_of(uri: str, item: dict[str, Any]) -> Entry:
    """Return the entry of an object as a listing, a HEAD or a GET reports it."""
    size = item["Size"] if "Size" in item else item["ContentLength"]
    # A listing reports milliseconds, the other calls only seconds.
    seconds = int(item["LastModified"].timestamp())
    version = f"{item['ETag'].strip(chr(34))}@{seconds * 1000}"
    return Entry(uri, size, version, changed_ns=seconds * 10**9)


def if_match(version: str) -> dict[str, str]:
    """Return the condition that an object still has a version; none for no version."""
    if not version:
        return {}
    tag = version.rpartition("@")[0]
    return {"IfMatch": f'"{tag}"'}
