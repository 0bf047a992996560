"""Storage on Google Cloud Storage, through google-cloud-storage."""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any

from shardmill.schemas.errors import ChangedError, UsageError
from shardmill.schemas.storage.base import Entry, RandomReader
from shardmill.schemas.storage.gcs_client import make_client
from shardmill.schemas.storage.gcs_errors import require_bucket, split_uri, translate_errors

if TYPE_CHECKING:
    from google.cloud import storage

_MAX_COMPONENTS = 32  # limit of a compose call
_CHUNK = 1 << 20
_READ_AHEAD = 8 << 20
_SPOOL = 64 << 20
_DELETERS = 16
_LISTED = "items(name,size,generation),prefixes,nextPageToken"
_WRITER = "shardmill-writer"  # metadata key that identifies the call that created an object


class GcsStorage:
    """Objects in buckets; exclusive creation by generation precondition, joins by compose.

    The client library retries every call with exponential backoff after transient failures; all
    calls are idempotent.
    """

    def __init__(self) -> None:
        try:
            import google.cloud.storage  # noqa: F401 - a missing package is reported here
        except ImportError as error:
            raise UsageError(
                "gs:// needs google-cloud-storage: pip install 'shardmill[gcp]'."
            ) from error
        self._lock = threading.Lock()
        self._shared: tuple[int, storage.Client] | None = None

    def _client(self) -> storage.Client:
        """Return the client of this process; a child process must not share connections."""
        with self._lock:
            if self._shared is None or self._shared[0] != os.getpid():
                self._shared = os.getpid(), make_client()
            return self._shared[1]

    def _blob(self, uri: str) -> storage.Blob:
        bucket, name = split_uri(uri)
        return self._client().bucket(bucket).blob(name)

    def _get(self, uri: str) -> storage.Blob | None:
        bucket, name = split_uri(uri)
        return self._client().bucket(bucket).get_blob(name) if name else None

    def stat(self, path: str) -> Entry | None:
        """See ``Storage.stat``; a prefix that has objects below it is a folder."""
        bucket, name = split_uri(path)
        with require_bucket("look at", path):
            blob = self._get(path)
            if blob is not None and not name.endswith("/"):
                return _entry(blob)
            below = self._client().list_blobs(bucket, prefix=_prefix(name), max_results=1)
            if any(True for _ in below):
                return Entry(path, 0, "", "dir")
        return None

    def read(self, path: str) -> bytes:
        """See ``Storage.read``."""
        return self.read_version(path)[0]

    def read_version(self, path: str) -> tuple[bytes, str]:
        """See ``Storage.read_version``."""
        with translate_errors("read", path):
            blob = self._blob(path)
            return _download(blob, checksum="crc32c"), str(blob.generation)

    def read_unchanged(self, path: str, size: int, version: str) -> bytes:
        """See ``Storage.read_unchanged``; the object's generation is the version.

        A generation never changes its bytes, so the size is not checked: for an object with
        ``Content-Encoding: gzip`` it differs from the size of the returned bytes.
        """
        from google.api_core import exceptions

        del size
        with translate_errors("read", path):
            blob = self._blob(path)
            try:
                data = _download(blob, if_generation_match=int(version), checksum="crc32c")
            except exceptions.PreconditionFailed as error:
                raise ChangedError(f"it was replaced after generation {version}") from error
            except exceptions.Forbidden as error:
                raise PermissionError(str(error)) from error
        # Some emulators and proxies ignore the precondition.
        if blob.generation is not None and str(blob.generation) != version:
            raise ChangedError(f"it was replaced after generation {version}")
        return data

    @contextlib.contextmanager
    def open_read(self, path: str) -> Iterator[Iterable[bytes]]:
        """See ``Storage.open_read``; all chunks are of one generation, or reading fails."""
        with translate_errors("read", path):
            listed = self._blob(path)
            listed.reload()
        # After the first chunk the client requests the generation itself: a replaced one is then
        # "not found" instead of a failed precondition.
        # ``listed`` is not opened: its media link may bypass a proxy.
        with (
            translate_errors("read", path, known=True),
            self._blob(path).open(
                "rb", chunk_size=_READ_AHEAD, if_generation_match=listed.generation
            ) as file,
        ):
            yield iter(lambda: file.read(_CHUNK), b"")

    @contextlib.contextmanager
    def open_at(self, path: str) -> Iterator[RandomReader]:
        """See ``Storage.open_at``; all reads are of the current generation."""
        with translate_errors("read", path):
            found = self._blob(path)
            found.reload()
        # ``found`` is not read: its media link may bypass a proxy.
        yield GcsReader(self._blob(path), _entry(found))

    @contextlib.contextmanager
    def open_write(self, path: str) -> Iterator[IO[bytes]]:
        """See ``Storage.open_write``; one upload with a checksum."""
        from google.cloud.storage.retry import DEFAULT_RETRY

        with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as file:
            with translate_errors("write", path):
                yield file
            with require_bucket("write", path):
                # With its size known, a small file takes one call instead of two.
                self._blob(path).upload_from_file(
                    file, size=file.tell(), rewind=True, checksum="crc32c", retry=DEFAULT_RETRY
                )

    def create(self, path: str, data: bytes, aside: str = "") -> bool:
        """See ``Storage.create``; an upload is atomic, so no temporary object is needed."""
        del aside
        return self._upload_if(path, data, 0)

    def replace_if(self, path: str, data: bytes, version: str) -> bool:
        """See ``Storage.replace_if``."""
        return self._upload_if(path, data, int(version))

    def _upload_if(self, path: str, data: bytes, generation: int) -> bool:
        """Upload over one generation, 0 for none; return whether this call wrote the object.

        If the response of a successful call is lost, its retry finds another generation. The mark
        in the object's metadata shows whether this call created it.
        """
        from google.api_core import exceptions

        mark = uuid.uuid4().hex
        with require_bucket("write", path):
            blob = self._blob(path)
            blob.metadata = {_WRITER: mark}
            try:
                blob.upload_from_string(data, if_generation_match=generation, checksum="crc32c")
            except exceptions.PreconditionFailed:
                found = self._get(path)
                return found is not None and (found.metadata or {}).get(_WRITER) == mark
        return True

    def replace(self, path: str, data: bytes) -> None:
        """See ``Storage.replace``."""
        from google.cloud.storage.retry import DEFAULT_RETRY

        with require_bucket("write", path):
            self._blob(path).upload_from_string(data, checksum="crc32c", retry=DEFAULT_RETRY)

    def concat(self, sources: list[str], tail: list[tuple[int, bytes]], path: str) -> None:
        """See ``Storage.concat``; a tree of server-side composes."""
        temporary: list[str] = []
        try:
            pieces = self._with_tail(sources, tail, path, temporary)
            while len(pieces) > _MAX_COMPONENTS:
                pieces = self._level(pieces, path, temporary)
            if pieces:
                self._compose(pieces, path)
            else:
                self.replace(path, b"")
        finally:
            self._delete_all(temporary)

    def _with_tail(
        self, sources: list[str], tail: list[tuple[int, bytes]], path: str, temporary: list[str]
    ) -> list[str]:
        """Return the sources with each piece of the tail, uploaded as an object, in its place."""
        pieces: list[str] = []
        done = 0
        for after, data in tail:
            pieces += sources[done:after]
            done = after
            temporary.append(f"{path}.{uuid.uuid4().hex}.tail")
            self.replace(temporary[-1], data)
            pieces.append(temporary[-1])
        return pieces + sources[done:]

    def _level(self, pieces: list[str], path: str, temporary: list[str]) -> list[str]:
        """Compose groups of 32 objects and return the results."""
        joined = []
        for start in range(0, len(pieces), _MAX_COMPONENTS):
            group = pieces[start : start + _MAX_COMPONENTS]
            if len(group) > 1:
                temporary.append(f"{path}.{uuid.uuid4().hex}.node")
                self._compose(group, temporary[-1])
                group = temporary[-1:]
            joined += group
        return joined

    def _compose(self, pieces: list[str], path: str) -> None:
        from google.cloud.storage.retry import DEFAULT_RETRY

        with translate_errors("compose", path):
            self._blob(path).compose([self._blob(piece) for piece in pieces], retry=DEFAULT_RETRY)

    def move(self, source: str, path: str) -> None:
        """See ``Storage.move``; a server-side rewrite, then a delete."""
        if source == path:
            if self.stat(path) is None:
                raise FileNotFoundError(path)
            return
        try:
            with translate_errors("move", source):
                self._rewrite(self._blob(source), self._blob(path))
        except FileNotFoundError:
            if self.stat(path) is None:
                raise
        else:
            self.delete(source)

    def _rewrite(self, origin: storage.Blob, target: storage.Blob) -> None:
        from google.cloud.storage.retry import DEFAULT_RETRY

        token, _, _ = target.rewrite(origin, retry=DEFAULT_RETRY)
        while token is not None:
            token, _, _ = target.rewrite(origin, token=token, retry=DEFAULT_RETRY)

    def delete(self, path: str, version: str = "") -> None:
        """See ``Storage.delete``; a retried call never deletes a newer generation."""
        self._delete(path, int(version) if version else None)

    def _delete(self, path: str, generation: int | None) -> None:
        from google.api_core import exceptions
        from google.cloud.storage.retry import DEFAULT_RETRY

        # The precondition fails if the object was replaced: then it is not deleted.
        replaced = contextlib.suppress(exceptions.PreconditionFailed)
        with contextlib.suppress(FileNotFoundError), translate_errors("delete", path), replaced:
            self._blob(path).delete(if_generation_match=generation, retry=DEFAULT_RETRY)

    def _delete_all(self, paths: Sequence[str], versions: Sequence[int | None] = ()) -> None:
        """Delete objects concurrently, each with a separate call."""
        found = list(zip(paths, versions or [None] * len(paths), strict=True))
        if len(found) < 2:
            for one in found:
                self._delete(*one)
            return
        with ThreadPoolExecutor(min(_DELETERS, len(found))) as pool:
            for _ in pool.map(self._delete, *zip(*found, strict=True)):
                pass

    def delete_tree(self, path: str, still: Callable[[], bool] | None = None) -> None:
        """See ``Storage.delete_tree``; objects that are written after the listing remain."""
        bucket, name = split_uri(path)
        if not name.rstrip("/"):
            return
        found = list(self._listed("delete", path))
        if still is None or still():
            uris = [f"gs://{bucket}/{blob.name}" for blob in found]
            self._delete_all(uris, [blob.generation for blob in found])

    def _listed(self, action: str, path: str) -> Iterator[storage.Blob]:
        bucket, name = split_uri(path)
        with require_bucket(action, path):
            yield from self._client().list_blobs(bucket, prefix=_prefix(name), fields=_LISTED)

    def list_dir(self, path: str) -> Iterator[Entry]:
        """See ``Storage.list_dir``."""
        bucket, name = split_uri(path)
        prefix = _prefix(name)
        with require_bucket("list", path):
            pages = self._client().list_blobs(bucket, prefix=prefix, delimiter="/", fields=_LISTED)
            entries = [_entry(blob) for blob in pages if blob.name != prefix]
            folders = [
                Entry(f"gs://{bucket}/{p.rstrip('/')}", 0, "", "dir") for p in pages.prefixes
            ]
        yield from sorted(entries + folders)

    def walk(self, path: str) -> Iterator[Entry]:
        """Yield every object below a prefix in name order, from one listing."""
        for blob in self._listed("list", path):
            if not blob.name.endswith("/"):
                yield _entry(blob)

    def checksum(self, path: str) -> int:
        """See ``Storage.checksum``; the checksum of the service, without a download."""
        with translate_errors("look at", path):
            blob = self._blob(path)
            blob.reload()
            return int.from_bytes(base64.b64decode(blob.crc32c), "big")

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """See ``Storage.lock``: object stores have none."""
        del path
        yield


class GcsReader:
    """A ``RandomReader`` of one generation of an object, with its bytes as stored."""

    chunk = 16 << 20
    gap = 4 << 20

    def __init__(self, blob: storage.Blob, found: Entry) -> None:
        self._path, self._blob = found.path, blob
        self.size, self.version = found.size, found.version

    def read_at(self, offset: int, length: int) -> bytes:
        """See ``RandomReader.read_at``."""
        from google.api_core import exceptions

        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        # A new blob has no generation. A used one would request its old generation, and "not found"
        # would no longer mean that the object was deleted.
        blob = self._blob.bucket.blob(self._blob.name)
        with translate_errors("read", self._path):
            try:
                data = _download(
                    blob, start=offset, end=end - 1, raw_download=True, checksum=None,
                    if_generation_match=int(self.version),
                )  # fmt: skip
            except exceptions.PreconditionFailed as error:
                raise ChangedError(f"it was replaced after generation {self.version}") from error
        return data


def _download(blob: storage.Blob, **options: Any) -> bytes:
    """Download an object; also retry if the response of an error is truncated.

    The library retries failures during the transfer of an object, but not of an error.
    """
    from google.cloud.storage.retry import DEFAULT_RETRY

    data: bytes = DEFAULT_RETRY(blob.download_as_bytes)(**options)
    return data


def _prefix(name: str) -> str:
    """Return the common prefix of the names of all objects in a folder."""
    return name.rstrip("/") + "/" if name.rstrip("/") else ""


def _entry(blob: Any) -> Entry:
    return Entry(f"gs://{blob.bucket.name}/{blob.name}", blob.size or 0, str(blob.generation))
