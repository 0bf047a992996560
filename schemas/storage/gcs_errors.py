"""Google Cloud Storage: translation of its client library's errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

from shardmill.schemas.errors import StorageError
from shardmill.schemas.storage.base import one_line
from shardmill.schemas.storage.objects import missing_bucket_error, replaced_error

Missing = Literal["object", "version", "bucket"]


def why(error: BaseException) -> str:
    """Return the message of the service or of the connection, without the URL of the call."""
    error = getattr(error, "cause", None) or error  # of an error after all retries
    response: Any = getattr(error, "response", None)
    try:
        return one_line(response.json()["error"]["message"])
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return one_line(getattr(error, "message", "") or error)


def auth_error(action: str, uri: str, error: Exception) -> StorageError:
    """Return the error for missing or invalid credentials."""
    why = one_line(error.args[0] if error.args else error)
    if "credentials were not found" in why:
        why = "none were found"
    return StorageError(
        f"Cannot {action} {uri}: there are no usable Google credentials ({why}); run "
        "`gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS."
    )


@contextlib.contextmanager
def translate_errors(action: str, uri: str, missing: Missing = "object") -> Iterator[None]:
    """Raise errors of the client library as StorageError; FileNotFoundError for a missing object.

    Args:
        action: Verb for the message.
        uri: URI of the object.
        missing: What "not found" means: a ``version`` that existed was replaced, or a ``bucket``
            is the only thing that can be missing.
    """
    from google.api_core import exceptions
    from google.auth import exceptions as auth
    from google.cloud.storage import exceptions as media

    try:
        yield
    except exceptions.NotFound as error:
        if missing == "version":
            raise replaced_error(action, uri) from error
        if missing == "bucket":
            raise missing_bucket_error(action, uri) from error
        raise FileNotFoundError(uri) from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        raise StorageError(
            f"Cannot {action} {uri}: {why(error)}; ask for that permission."
        ) from error
    except exceptions.PreconditionFailed as error:
        raise replaced_error(action, uri) from error
    except auth.GoogleAuthError as error:
        raise auth_error(action, uri, error) from error
    except (FileNotFoundError, PermissionError):
        raise
    # A persistent connection failure is an OSError of the HTTP library.
    except (exceptions.GoogleAPIError, media.DataCorruption, OSError) as error:
        raise StorageError(
            f"Cannot {action} {uri}: {why(error)}; run again when the service answers."
        ) from error
