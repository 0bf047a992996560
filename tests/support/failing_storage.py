"""Let any changing call of the local storage fail after it was carried out."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from shardmill.schemas.errors import StorageError
from shardmill.schemas.storage.local import LocalStorage

# All other methods change something: a new one is covered without a change here.
READS = {
    "stat",
    "read",
    "read_version",
    "read_unchanged",
    "open_read",
    "open_at",
    "list_dir",
    "walk",
    "checksum",
    "lock",
}


def fail_after(number: int, log: str, *, rest: bool) -> None:
    """Let a call of this process fail after it was carried out.

    Args:
        number: Number of the call, from 1; 0 for none.
        log: File to which the names of all calls are written, one a line.
        rest: Whether all later calls fail too; these are not carried out.
    """
    numbers = itertools.count(1)

    def begin(name: str) -> int:
        count = next(numbers)
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{name}\n")
        if rest and count > number > 0:
            raise StorageError("Cannot write: the disk was removed; run again.")
        return count

    def end(count: int) -> None:
        if count == number:
            raise StorageError("Cannot write: the disk was removed; run again.")

    for name in dir(LocalStorage):
        if not name.startswith("_") and name not in READS:
            method = getattr(LocalStorage, name)
            wrap = _wrap_block if name == "open_write" else _wrap
            setattr(LocalStorage, name, wrap(method, functools.partial(begin, name), end))


def _wrap(method: Any, begin: Callable[[], int], end: Callable[[int], None]) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        count = begin()
        result = method(*args, **options)
        end(count)
        return result

    return call


def _wrap_block(method: Any, begin: Callable[[], int], end: Callable[[int], None]) -> Any:
    @contextlib.contextmanager
    def call(*args: Any, **options: Any) -> Iterator[Any]:
        count = begin()
        with method(*args, **options) as file:
            yield file
        end(count)

    return call
