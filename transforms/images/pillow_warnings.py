"""Ignore Pillow's warnings while images are encoded, and only then.

Pillow warns about large images, which are checked here against a limit, and about damaged metadata,
which does not affect the pixels. A caller who turns warnings into errors would get rejects for
these files. The list of filters belongs to the whole process and warnings.catch_warnings() is not
thread-safe, so this module adds one filter when the first thread begins to encode, and removes it
when the last thread ends.
"""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Iterator

_MODULES = r"PIL\."
_lock = threading.Lock()
_active = 0  # calls that have not ended, in all threads


@contextlib.contextmanager
def ignore_pillow_warnings() -> Iterator[None]:
    """Ignore warnings that Pillow's modules raise in any thread, until the last call ends."""
    global _active  # noqa: PLW0603 - the filters that it counts the users of are global too
    with _lock:
        _active += 1
        if _active == 1:
            warnings.filterwarnings("ignore", module=_MODULES)
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if not _active:
                _remove_filter()


def _remove_filter() -> None:
    own = ("ignore", None, Warning, re.compile(_MODULES), 0)
    # The filter is missing if the caller has replaced the list, as catch_warnings() does.
    with contextlib.suppress(ValueError):
        warnings.filters.remove(own)  # type: ignore[attr-defined]
