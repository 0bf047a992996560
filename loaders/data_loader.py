"""DataLoaders of torch that read streams of this process; torch itself need not be installed."""

from __future__ import annotations

import itertools
import sys
import weakref
from types import FrameType
from typing import Any

_numbers = itertools.count(1)
_number_of: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_iterators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_loaders: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def number_starting_loader() -> int:
    """Return a number of the DataLoader iterator that is starting workers, or 0.

    All workers of an iterator get its number, by which they know that they belong together. The
    iterator is on the stack: torch does not call a dataset when it starts workers.

    Before Python 3.13, reading ``f_locals`` keeps the values alive until the function returns. So
    only functions with the arguments of torch's iterators are inspected, never the user's.
    """
    module = sys.modules.get("torch.utils.data.dataloader")
    if module is None:
        return 0
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if frame.f_code.co_varnames[:2] == ("self", "loader"):
            values = frame.f_locals
            if isinstance(values.get("self"), module._BaseDataLoaderIter):  # noqa: SLF001
                return _register(values["self"], values["loader"])
        frame = frame.f_back
    return 0


def _register(iterator: Any, loader: Any) -> int:
    if iterator not in _number_of:
        number = next(_numbers)
        _number_of[iterator] = number
        _iterators[number] = iterator
        _loaders[number] = loader
    return _number_of[iterator]


def is_unread(number: int) -> bool:
    """Return whether an iterator still exists, and no batch was taken in its current pass."""
    iterator = _iterators.get(number)
    if iterator is None or getattr(iterator, "_shutdown", True):
        return False
    return getattr(iterator, "_rcvd_idx", None) == 0


def is_reading(number: int) -> bool:
    """Return whether an iterator still exists, and its workers have batches to read."""
    iterator = _iterators.get(number)
    return iterator is not None and getattr(iterator, "_tasks_outstanding", 1) > 0


def restart(number: int) -> None:
    """Let the workers of an iterator begin another pass, as torch does with persistent workers.

    Examples that they have read ahead are dropped.
    """
    _iterators[number]._reset(_loaders[number])  # noqa: SLF001
