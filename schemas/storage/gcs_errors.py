"""Google Cloud Storage: its URIs, and its client library's errors as plain sentences."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from shardmill.schemas.errors import StorageError, UsageError


def split_uri(uri: str) -> tuple[str, str]:
    """Returns the bucket and object name of a gs:// URI.

    Raises:
        UsageError: The URI names no bucket.
    """
    bucket, _, name = uri.partition("://")[2].partition("/")
    if not bucket:
        raise UsageError(f"{uri} names no bucket: write gs://BUCKET/PATH.")
    if not (bucket[0].isalnum() and bucket[-1].isalnum()):
        raise UsageError(f"{uri}: {bucket!r} is no name of a bucket; write gs://BUCKET/PATH.")
    return bucket, name


def one_line(error: object) -> str:
    """Returns an error's text as one line without its full stop."""
    return " ".join(str(error).split()).rstrip(".")


def why(error: BaseException) -> str:
    """Returns what the service said, without the call's URL, or what broke below it."""
    error = getattr(error, "cause", None) or error  # of giving up after many tries
    response: Any = getattr(error, "response", None)
    try:
        return one_line(response.json()["error"]["message"])
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return one_line(getattr(error, "message", "") or error)


def auth_error(action: str, uri: str, error: Exception) -> StorageError:
    """Returns the sentence for credentials that cannot be had."""
    why = one_line(error.args[0] if error.args else error)
    if "credentials were not found" in why:
        why = "none were found"
    return StorageError(
        f"Cannot {action} {uri}: there are no usable Google credentials ({why}); run "
        "`gcloud auth application-default login` or set GOOGLE_APPLICATION_CREDENTIALS."
    )


def _replaced(action: str, uri: str) -> StorageError:
    return StorageError(f"Cannot {action} {uri}: it was replaced at the same time; run again.")


@contextlib.contextmanager
def plainly(action: str, uri: str, *, known: bool = False) -> Iterator[None]:
    """Turns the client library's errors into ours; a missing object into FileNotFoundError.

    Args:
        action: What was tried.
        uri: The object.
        known: Whether a generation is asked for that was there before.
    """
    from google.api_core import exceptions
    from google.auth import exceptions as auth
    from google.cloud.storage import exceptions as media

    try:
        yield
    except exceptions.NotFound as error:
        if known:
            raise _replaced(action, uri) from error
        raise FileNotFoundError(uri) from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        raise StorageError(
            f"Cannot {action} {uri}: {why(error)}; ask for that permission."
        ) from error
    except exceptions.PreconditionFailed as error:
        raise _replaced(action, uri) from error
    except auth.GoogleAuthError as error:
        raise auth_error(action, uri, error) from error
    except (FileNotFoundError, PermissionError):
        raise
    # A connection that stays broken is an OSError of the library below.
    except (exceptions.GoogleAPIError, media.DataCorruption, OSError) as error:
        raise StorageError(
            f"Cannot {action} {uri}: {why(error)}; run again when the service answers."
        ) from error


@contextlib.contextmanager
def bucket_needed(action: str, uri: str) -> Iterator[None]:
    """Like ``plainly``, where only the bucket itself can be what is missing."""
    try:
        with plainly(action, uri):
            yield
    except FileNotFoundError as error:
        raise StorageError(
            f"Cannot {action} {uri}: the bucket {split_uri(uri)[0]!r} does not exist; "
            "create it or correct its name."
        ) from error
