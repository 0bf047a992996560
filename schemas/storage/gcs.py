"""Google Cloud Storage, through its own client library."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any

from shardmill.schemas.errors import ChangedError, StorageError, UsageError
from shardmill.schemas.storage.base import Entry

if TYPE_CHECKING:
    from google.cloud import storage

_MAX_COMPONENTS = 32  # of one compose call
_CHUNK = 1 << 20
_SPOOL = 64 << 20


def split_uri(uri: str) -> tuple[str, str]:
    """Returns the bucket and object name of a gs:// URI.

    Raises:
        UsageError: The URI names no bucket.
    """
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    if not bucket:
        raise UsageError(f"{uri} names no bucket: write gs://BUCKET/PATH.")
    return bucket, name


@contextlib.contextmanager
def _plainly(action: str, uri: str) -> Iterator[None]:
    """Turns the client library's errors into ours; a missing object into FileNotFoundError."""
    from google.api_core import exceptions
    from google.auth import exceptions as auth

    try:
        yield
    except exceptions.NotFound as error:
        raise FileNotFoundError(uri) from error
    except exceptions.GoogleAPICallError as error:
        raise StorageError(f"Cannot {action} {uri}: {error.message or error}.") from error
    except auth.GoogleAuthError as error:
        raise StorageError(
            f"Cannot {action} {uri}: there are no usable Google credentials ({error}); run "
            "`gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS."
        ) from error


class GcsStorage:
    """Objects in buckets; exclusive creation by generation precondition, joins by compose."""

    def __init__(self) -> None:
        try:
            import google.cloud.storage  # noqa: F401 - checked here for a plain message
        except ImportError as error:
            raise UsageError(
                "gs:// needs google-cloud-storage: pip install 'shardmill[gcp]'."
            ) from error
        self._local = threading.local()

    def _client(self) -> storage.Client:
        from google.cloud import storage

        if not hasattr(self._local, "client"):
            self._local.client = storage.Client()
        client: storage.Client = self._local.client
        return client

    def _blob(self, uri: str, generation: int | None = None) -> storage.Blob:
        bucket, name = split_uri(uri)
        return self._client().bucket(bucket).blob(name, generation=generation)

    def stat(self, path: str) -> Entry | None:
        """See ``Storage.stat``; a prefix that has objects below it is a folder."""
        bucket, name = split_uri(path)
        with _plainly("look at", path):
            blob = self._client().bucket(bucket).get_blob(name) if name else None
            if blob is not None and not name.endswith("/"):
                return _entry(blob)
            prefix = name.rstrip("/") + "/" if name else ""
            below = self._client().list_blobs(bucket, prefix=prefix, max_results=1)
            if any(True for _ in below):
                return Entry(path, 0, "", "dir")
        return None

    def read(self, path: str) -> bytes:
        """See ``Storage.read``."""
        with _plainly("read", path):
            data: bytes = self._blob(path).download_as_bytes(checksum="crc32c")
            return data

    def read_unchanged(self, path: str, size: int, version: str) -> bytes:
        """See ``Storage.read_unchanged``; the object's generation is the version."""
        from google.api_core import exceptions

        with _plainly("read", path):
            try:
                data: bytes = self._blob(path).download_as_bytes(
                    if_generation_match=int(version), checksum="crc32c"
                )
            except exceptions.PreconditionFailed as error:
                raise ChangedError(f"it was replaced after generation {version}") from error
            except exceptions.Forbidden as error:
                raise PermissionError(str(error)) from error
        if len(data) != size:
            raise ChangedError(f"it had {size} bytes when it was listed and has {len(data)} now")
        return data

    @contextlib.contextmanager
    def open_read(self, path: str) -> Iterator[Iterable[bytes]]:
        """See ``Storage.open_read``."""
        with _plainly("read", path), self._blob(path).open("rb") as file:
            yield iter(lambda: file.read(_CHUNK), b"")

    @contextlib.contextmanager
    def open_write(self, path: str) -> Iterator[IO[bytes]]:
        """See ``Storage.open_write``; one upload with its checksum."""
        with _plainly("write", path), tempfile.SpooledTemporaryFile(max_size=_SPOOL) as file:
            yield file
            self._blob(path).upload_from_file(
                file, rewind=True, if_generation_match=0, checksum="crc32c"
            )

    def create(self, path: str, data: bytes) -> bool:
        """See ``Storage.create``."""
        from google.api_core import exceptions

        with _plainly("write", path):
            try:
                self._blob(path).upload_from_string(data, if_generation_match=0, checksum="crc32c")
            except exceptions.PreconditionFailed:
                return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        """See ``Storage.replace``."""
        with _plainly("write", path):
            self._blob(path).upload_from_string(data, checksum="crc32c")

    def concat(self, sources: list[str], tail: list[tuple[int, bytes]], path: str) -> None:
        """See ``Storage.concat``; a tree of server-side composes."""
        pieces: list[str] = []
        temporary: list[str] = []
        pending = list(tail)
        for number in range(len(sources) + 1):
            while pending and pending[0][0] == number:
                name = f"{path}.{uuid.uuid4().hex}.tail"
                self.replace(name, pending.pop(0)[1])
                temporary.append(name)
                pieces.append(name)
            if number < len(sources):
                pieces.append(sources[number])
        while len(pieces) > _MAX_COMPONENTS:
            groups = [
                pieces[i : i + _MAX_COMPONENTS] for i in range(0, len(pieces), _MAX_COMPONENTS)
            ]
            pieces = [
                self._compose(group, f"{path}.{uuid.uuid4().hex}.node")
                if len(group) > 1
                else group[0]
                for group in groups
            ]
            temporary += [piece for piece in pieces if piece.endswith(".node")]
        self._compose(pieces, path)
        for name in set(temporary):
            self.delete(name)

    def _compose(self, pieces: list[str], path: str) -> str:
        with _plainly("compose", path):
            self._blob(path).compose([self._blob(piece) for piece in pieces])
        return path

    def move(self, source: str, path: str) -> None:
        """See ``Storage.move``; a server-side rewrite, then a delete."""
        with _plainly("move", source):
            origin = self._blob(source)
            if not origin.exists():
                if self.stat(path) is None:
                    raise FileNotFoundError(source)
                return
            target = self._blob(path)
            token, _, _ = target.rewrite(origin)
            while token is not None:
                token, _, _ = target.rewrite(origin, token=token)
        self.delete(source)

    def delete(self, path: str) -> None:
        """See ``Storage.delete``."""
        with contextlib.suppress(FileNotFoundError), _plainly("delete", path):
            self._blob(path).delete()

    def delete_tree(self, path: str) -> None:
        """See ``Storage.delete_tree``."""
        bucket, name = split_uri(path)
        with _plainly("delete", path):
            for blob in self._client().list_blobs(bucket, prefix=name.rstrip("/") + "/"):
                self.delete(f"gs://{bucket}/{blob.name}")

    def list_dir(self, path: str) -> Iterator[Entry]:
        """See ``Storage.list_dir``."""
        bucket, name = split_uri(path)
        prefix = name.rstrip("/") + "/" if name.rstrip("/") else ""
        with _plainly("list", path):
            pages = self._client().list_blobs(bucket, prefix=prefix, delimiter="/")
            entries = [_entry(blob) for blob in pages if blob.name != prefix]
            folders = [
                Entry(f"gs://{bucket}/{p.rstrip('/')}", 0, "", "dir") for p in pages.prefixes
            ]
        yield from sorted(entries + folders)

    def walk(self, path: str) -> Iterator[Entry]:
        """Yields every object below a prefix, in name order, in one listing."""
        bucket, name = split_uri(path)
        prefix = name.rstrip("/") + "/" if name.rstrip("/") else ""
        with _plainly("list", path):
            for blob in self._client().list_blobs(bucket, prefix=prefix):
                if not blob.name.endswith("/"):
                    yield _entry(blob)

    def checksum(self, path: str) -> int:
        """See ``Storage.checksum``; the service's own, nothing is downloaded."""
        import base64

        with _plainly("look at", path):
            blob = self._blob(path)
            blob.reload()
            return int.from_bytes(base64.b64decode(blob.crc32c), "big")

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """See ``Storage.lock``: object stores have none."""
        del path
        yield


def _entry(blob: Any) -> Entry:
    return Entry(f"gs://{blob.bucket.name}/{blob.name}", blob.size or 0, str(blob.generation))
