"""Read matched inputs: what is tried again, and what becomes a reject."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence

from shardmill.schemas.errors import ChangedError, StorageError
from shardmill.schemas.refs import InputRef
from shardmill.schemas.rejects import TRANSIENT, RejectedError
from shardmill.schemas.storage import open_storage, scheme_of
from shardmill.transforms.match.containers.member_reader import read_member

MAX_FILE_BYTES = 1 << 29
_ATTEMPTS = 3
_OF_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # errors of a disk that no file causes
_FIRST_DELAY = 0.1  # seconds; each retry waits 4 times longer


def read_input(ref: InputRef) -> bytes:
    """Return the content of an input file; see ``read_inputs``.

    Raises:
        RejectedError: The file is too large, missing or not readable, or has changed since it was
            listed.
        StorageError: Reading failed three times.
    """
    (result,) = read_inputs([ref])
    if isinstance(result, RejectedError):
        raise result
    return result


def read_inputs(refs: Sequence[InputRef]) -> list[bytes | RejectedError]:
    """Return the content of each input file, or why it is rejected.

    Every failure is retried: a network file system may lose a file for a moment, and a file may be
    replaced. The files wait together, so that a folder of missing files does not take minutes.
    Errors of the storage are raised: they say nothing about the input.

    Raises:
        StorageError: Reading failed three times.
    """
    results = [_try_read(ref) for ref in refs]
    for attempt in range(_ATTEMPTS - 1):
        failed = [number for number, result in enumerate(results) if _is_worth_a_retry(result)]
        if not failed:
            break
        time.sleep(_FIRST_DELAY * 4**attempt)
        for number in failed:
            results[number] = _try_read(refs[number])
    read = []
    for result in results:
        if isinstance(result, StorageError):
            raise result
        read.append(result)
    return read


def _is_worth_a_retry(result: bytes | RejectedError | StorageError) -> bool:
    return isinstance(result, StorageError) or (
        isinstance(result, RejectedError) and result.error in TRANSIENT
    )


def _try_read(ref: InputRef) -> bytes | RejectedError | StorageError:
    if ref.size > MAX_FILE_BYTES:
        return RejectedError("read", "too_large", f"{ref.size:,} bytes exceed {MAX_FILE_BYTES:,}")
    try:
        if ref.member:
            return read_member(ref)
        return open_storage(ref.uri).read_unchanged(ref.uri, ref.size, ref.version)
    except FileNotFoundError:
        return RejectedError("read", "not_found", "the file was there when it was listed")
    except PermissionError:
        return RejectedError("read", "unreadable", "reading it is not permitted")
    except RejectedError as error:
        return error
    except ChangedError as error:
        return RejectedError("read", "changed", str(error))
    except StorageError as error:
        cause = error.__cause__
        if scheme_of(ref.file) or not isinstance(cause, OSError) or cause.errno in _OF_PROCESS:
            return error
        return RejectedError("read", "unreadable", cause.strerror or str(cause))
