"""The client of Google Cloud Storage, its credentials, and translation of its errors."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from shardmill.schemas.errors import StorageError
from shardmill.schemas.storage.base import one_line, replaced_error
from shardmill.schemas.storage.objects import missing_bucket_error

if TYPE_CHECKING:
    from google.cloud import storage

_CONNECTIONS = 64  # kept open; more than any sensible number of threads
_METADATA_TIMEOUT = 0.25  # seconds; the server answers within milliseconds

Missing = Literal["object", "bucket"]


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

    is_set = "GCE_METADATA_TIMEOUT" in os.environ
    return request if is_set or _metadata.detect_gce_residency_linux() else request_soon


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
        missing: What "not found" means; a ``bucket`` if nothing else can be missing.
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
        raise StorageError("gcs-denied", action=action, uri=uri, error=why(error)) from error
    except exceptions.PreconditionFailed as error:
        raise replaced_error(action, uri) from error
    except auth.GoogleAuthError as error:
        reason = one_line(error.args[0] if error.args else error)
        if "credentials were not found" in reason:
            reason = "none were found"
        raise StorageError(
            "gcs-without-credentials", action=action, uri=uri, reason=reason
        ) from error
    except (FileNotFoundError, PermissionError):
        raise
    # A persistent connection failure is an OSError of the HTTP library.
    except (exceptions.GoogleAPIError, media.DataCorruption, OSError) as error:
        raise StorageError("gcs-failed", action=action, uri=uri, error=why(error)) from error
