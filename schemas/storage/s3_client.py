"""Amazon S3: its client, the retries around it, and its errors as errors of one sentence."""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Iterator
from typing import Any

from shardmill.schemas.errors import ChangedError, DeniedError, StorageError, UsageError
from shardmill.schemas.storage.base import REMEDY, describe_denial, describe_failure, one_line
from shardmill.schemas.storage.objects import invalid_bucket, missing_bucket_error, split_uri

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
