"""Amazon S3: its client and the retries around it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage.base import one_line
from shardmill.schemas.storage.s3_errors import ConflictError

ATTEMPTS = 5  # of one call, unless AWS_MAX_ATTEMPTS or ~/.aws/config sets another number
_CONNECTIONS = 64  # kept open; more than any sensible number of threads
_CONNECT_SECONDS = 10
_READ_SECONDS = 60  # without a byte
_LONGEST_PAUSE = 20.0

T = TypeVar("T")


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
        return session.create_client(
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


def pause(failures: int) -> None:
    """Sleep before a retry: exponential backoff with full jitter."""
    time.sleep(random.random() * min(_LONGEST_PAUSE, 2.0 ** (failures - 1)))  # noqa: S311


def retry_conflicts(call: Callable[[], T]) -> T:
    """Send a conditional call, and retry it while it conflicts with another one.

    S3 answers 409 when calls on one key overlap and neither condition has been decided; its
    documentation asks clients to send the call again. Botocore does not.

    Raises:
        ConflictError: Every attempt conflicted.
    """
    for failures in range(1, ATTEMPTS):
        try:
            return call()
        except ConflictError:
            pause(failures)
    return call()
