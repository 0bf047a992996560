"""Storage on Google Cloud Storage, through google-cloud-storage: its client, and its errors."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from shardmill.schemas.errors import ChangedError, StorageError
from shardmill.schemas.storage.base import (
    REMEDY,
    Entry,
    describe_denial,
    describe_failure,
    one_line,
    replaced_error,
)
from shardmill.schemas.storage.objects import (
    SPOOL,
    WRITER,
    ObjectStorage,
    folder_prefix,
    missing_bucket_error,
    missing_package,
    split_uri,
)

if TYPE_CHECKING:
    from google.cloud import storage

_MAX_COMPONENTS = 32  # limit of a compose call
_LISTED = "items(name,size,generation,updated),prefixes,nextPageToken"
_CONNECTIONS = 64  # kept open; more than any sensible number of threads
_TIMEOUT = 60  # seconds without a byte of a download, as in the client library
_METADATA_TIMEOUT = 0.25  # seconds; the server answers within milliseconds
Missing = Literal["object", "bucket"]


class GcsStorage(ObjectStorage):
    """Objects in buckets; exclusive creation by generation precondition, joins by compose.

    The client library checks CRC-32Cs of sent and received data, and retries every call with
    exponential backoff after transient failures; all calls are idempotent.
    """

    def __init__(self) -> None:
        try:
            from google.cloud.storage.retry import DEFAULT_RETRY
        except ImportError as error:
            raise missing_package(
                scheme="gs", package="google-cloud-storage", extra="gcs"
            ) from error
        super().__init__(make_client)
        self._retry = DEFAULT_RETRY

    def _blob(self, uri: str) -> storage.Blob:
        bucket, name = split_uri(uri)
        return self._client().bucket(bucket).blob(name)

    def _get(self, uri: str) -> storage.Blob | None:
        bucket, name = split_uri(uri)
        if name:
            return self._client().bucket(bucket).get_blob(name)
        return None

    def _download(self, blob: storage.Blob, **options: Any) -> bytes:
        """Download an object; also retry if the response of an error is truncated.

        The library retries failures during the transfer of an object, but not of an error.

        Raises:
            ChangedError: The generation of ``if_generation_match`` was replaced.
        """
        from google.api_core import exceptions

        try:
            data: bytes = self._retry(blob.download_as_bytes)(**options)
        except exceptions.PreconditionFailed as error:
            raise _changed(options["if_generation_match"]) from error
        return data

    def stat(self, path: str) -> Entry | None:
        """Return the object at a path, or a folder if objects have it as a prefix."""
        with translate_errors("look at", path, "bucket"):
            blob = self._get(path)
        if blob is not None and not path.endswith("/"):
            return _entry(blob)
        below = next(self._list("look at", path, limit=1), None)
        if below is not None:
            return Entry(path, 0, "", "dir")
        return None

    def read_version(self, path: str) -> tuple[bytes, str]:
        """Return an object's bytes and its generation, which is its version."""
        with translate_errors("read", path):
            blob = self._blob(path)
            return self._download(blob), str(blob.generation)

    def read_unchanged(self, path: str, size: int, version: str) -> bytes:
        """Return the bytes of one generation of an object.

        A generation never changes its bytes, so the size is not checked: for an object with
        ``Content-Encoding: gzip`` it differs from the size of the returned bytes.
        """
        from google.api_core import exceptions

        del size
        with translate_errors("read", path):
            blob = self._blob(path)
            try:
                data = self._download(blob, if_generation_match=int(version))
            except exceptions.Forbidden as error:
                raise PermissionError(str(error)) from error
        # Some emulators and proxies ignore the precondition.
        if blob.generation is not None and str(blob.generation) != version:
            raise _changed(version)
        return data

    def _read_range(self, entry: Entry, start: int, stop: int) -> bytes:
        with translate_errors("read", entry.path):
            data: bytes = self._retry(self._get_range)(entry, start, stop)
            return data

    def _get_range(self, entry: Entry, start: int, stop: int) -> bytes:
        """Return a range of one generation of an object, as it is stored.

        The client library copies a download in pieces of 8 KiB, each under the lock of the
        interpreter: with several threads that takes ten times as much CPU as one read of all bytes.

        Raises:
            ChangedError: The generation was replaced.
        """
        from google.api_core import exceptions

        bucket, name = split_uri(entry.path)
        client = self._client()
        # Source: https://cloud.google.com/storage/docs/json_api/v1/objects/get
        url = f"{client.api_endpoint}/download/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        response = client._http.get(  # noqa: SLF001 - the session of make_client
            url,
            params={"alt": "media", "ifGenerationMatch": entry.version},
            # Else the service inflates objects with Content-Encoding: gzip.
            headers={"Accept-Encoding": "gzip", "Range": f"bytes={start}-{stop - 1}"},
            stream=True,
            timeout=_TIMEOUT,
        )
        with response:
            if response.status_code == HTTPStatus.PRECONDITION_FAILED:
                raise _changed(entry.version)
            if not response.ok:
                raise exceptions.from_http_response(response)
            data: bytes = response.raw.read(decode_content=False)
        if response.status_code == HTTPStatus.PARTIAL_CONTENT:
            return data
        return data[start:stop]

    @contextlib.contextmanager
    def open_write(self, path: str) -> Iterator[IO[bytes]]:
        """Collect an object in a temporary file; upload it with a checksum when the block ends."""
        with tempfile.SpooledTemporaryFile(max_size=SPOOL) as file:
            with translate_errors("write", path):
                yield file
            with translate_errors("write", path, "bucket"):
                # With its size known, a small file takes one call instead of two.
                self._blob(path).upload_from_file(file, size=file.tell(), rewind=True)

    def replace_if(self, path: str, data: bytes, version: str) -> bool:
        """Upload an object on the condition that its generation has not changed.

        If the response of a successful call is lost, its retry finds another generation. The mark
        in the object's metadata shows whether this call created it.
        """
        from google.api_core import exceptions

        mark, generation = uuid.uuid4().hex, int(version or 0)
        with translate_errors("write", path, "bucket"):
            blob = self._blob(path)
            blob.metadata = {WRITER: mark}
            try:
                blob.upload_from_string(data, if_generation_match=generation)
            except exceptions.PreconditionFailed:
                stored = self._get(path)
                return stored is not None and (stored.metadata or {}).get(WRITER) == mark
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Upload an object or replace the one at its path."""
        with translate_errors("write", path, "bucket"):
            self._blob(path).upload_from_string(data)

    def concat(self, sources: Sequence[str], path: str) -> None:
        """Concatenate objects in the service, by composing groups of them repeatedly."""
        temporary: list[Entry] = []
        try:
            while len(sources) > _MAX_COMPONENTS:
                nodes = []
                for start in range(0, len(sources), _MAX_COMPONENTS):
                    nodes.append(f"{path}.{uuid.uuid4().hex}.node")
                    temporary.append(Entry(nodes[-1], 0, ""))
                    self._compose(sources[start : start + _MAX_COMPONENTS], nodes[-1])
                sources = nodes
            self._compose(sources, path)
        finally:
            self._delete_all(temporary)

    def _compose(self, pieces: Sequence[str], path: str) -> None:
        with translate_errors("compose", path):
            self._blob(path).compose([self._blob(piece) for piece in pieces], retry=self._retry)

    def copy(self, source: str, path: str) -> None:
        """Copy an object by a rewrite in the service."""
        with translate_errors("copy", source):
            origin, target = self._blob(source), self._blob(path)
            token: str | None = ""
            while token is not None:
                token, _, _ = target.rewrite(origin, token or None, retry=self._retry)

    def delete(self, path: str, version: str = "") -> None:
        """Delete an object if it exists; a retried call never deletes a newer generation."""
        from google.api_core import exceptions

        generation = int(version) if version else None
        # The precondition fails if the object was replaced: then it is not deleted.
        replaced = contextlib.suppress(exceptions.PreconditionFailed)
        with contextlib.suppress(FileNotFoundError), translate_errors("delete", path), replaced:
            self._blob(path).delete(if_generation_match=generation)

    def _list(
        self, action: str, path: str, *, flat: bool = True, limit: int | None = None
    ) -> Iterator[Entry]:
        bucket, name = split_uri(path)
        delimiter = None if flat else "/"
        with translate_errors(action, path, "bucket"):
            pages = self._client().list_blobs(
                bucket,
                prefix=folder_prefix(name),
                fields=_LISTED,
                delimiter=delimiter,
                max_results=limit,
            )
            yield from map(_entry, pages)
            for prefix in pages.prefixes:
                yield Entry(f"gs://{bucket}/{prefix[:-1]}", 0, "", "dir")

    def checksum(self, path: str) -> int:
        """Return the CRC-32C that the service stores, without a download."""
        with translate_errors("look at", path):
            blob = self._blob(path)
            blob.reload()
            return int.from_bytes(base64.b64decode(blob.crc32c), "big")


def _changed(generation: object) -> ChangedError:
    return ChangedError(f"it was replaced after generation {generation}")


def _entry(blob: Any) -> Entry:
    uri, changed = f"gs://{blob.bucket.name}/{blob.name}", blob.updated
    changed_ns = changed and int(changed.timestamp() * 1e9)
    return Entry(uri, blob.size or 0, str(blob.generation), changed_ns=changed_ns)


def make_client() -> storage.Client:
    """Return a client that threads may share.

    The threads share the connection pool of its ``requests`` session, whose size is set to the
    number of threads. Credentials are searched once; the library alone searches three times,
    which takes half a minute without a network. Objects can be accessed without a project.
    """
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        credentials = AnonymousCredentials()
    else:
        logging.getLogger("google.auth").setLevel(logging.ERROR)  # errors say it too
        credentials, _ = google.auth.default(scopes=storage.Client.SCOPE, request=_request())
    session = AuthorizedSession(credentials)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
    client = storage.Client(project=None, credentials=credentials, _http=session)
    # The cache is used only for tracing, and requests the bucket after each missing object.
    client._bucket_metadata_cache = None  # noqa: SLF001
    return client


def _request() -> Any:
    """Return the transport for requests of credentials to Google's metadata server.

    The server exists only in Google's data centres; elsewhere three attempts of three seconds would
    time out. The timeout is shortened except on Google's machines and where one is configured.
    """
    from google.auth.compute_engine import _metadata
    from google.auth.transport.requests import Request

    request = Request()

    def request_soon(*args: Any, timeout: float = _METADATA_TIMEOUT, **options: Any) -> Any:
        return request(*args, timeout=min(timeout, _METADATA_TIMEOUT), **options)

    if "GCE_METADATA_TIMEOUT" in os.environ or _metadata.detect_gce_residency_linux():
        return request
    return request_soon


def why(error: BaseException) -> str:
    """Return the message of the service or of the connection, without the URL of the call."""
    error = getattr(error, "cause", None) or error  # of an error after all retries
    response: Any = getattr(error, "response", None)
    try:
        return one_line(response.json()["error"]["message"])
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return one_line(getattr(error, "message", "") or error)


@contextlib.contextmanager
def translate_errors(action: str, uri: str, missing: Missing = "object") -> Iterator[None]:
    """Raise errors of the client library as StorageError; FileNotFoundError for a missing object.

    Args:
        action: Verb for the message.
        uri: URI of the object.
        missing: The thing that "not found" refers to; a ``bucket`` if nothing else can be missing.
    """
    from google.api_core import exceptions
    from google.auth import exceptions as auth
    from google.cloud.storage import exceptions as media

    try:
        yield
    except exceptions.NotFound as error:
        if missing == "bucket":
            raise missing_bucket_error(action, uri) from error
        raise FileNotFoundError(uri) from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        raise StorageError(describe_denial(action=action, uri=uri, why=why(error))) from error
    except exceptions.PreconditionFailed as error:
        raise replaced_error(action, uri) from error
    except auth.GoogleAuthError as error:
        cause = error.args[0] if error.args else error
        reason = one_line(cause)
        if "credentials were not found" in reason:
            reason = "none were found"
        raise StorageError(
            f"Cannot {action} {uri}: there are no usable Google credentials ({reason}); run "
            "`gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS."
        ) from error
    except (FileNotFoundError, PermissionError):
        raise
    # A persistent connection failure is an OSError of the HTTP library.
    except (exceptions.GoogleAPIError, media.DataCorruption, OSError) as error:
        raise StorageError(
            describe_failure(action=action, path=uri, error=why(error), remedy=REMEDY)
        ) from error
