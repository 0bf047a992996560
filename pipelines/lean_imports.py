"""Imports of Beam and Arrow without the optional packages that both import if they are installed.

These take a third of the time of a small build. Only for processes that Shardmill starts: in a
process of the user's, Beam and Arrow would lack the packages later, when the user needs them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Clients of storages and databases, and pandas: other runners need them, and Beam's own sources.
UNUSED_BY_BUILDS = ("apitools", "boto3", "google.auth", "google.cloud", "pandas", "pymongo")


@contextlib.contextmanager
def without(*packages: str) -> Iterator[None]:
    """Let imports of packages fail until the block ends, as if they were not installed.

    Modules that are imported already stay available.
    """
    finder = _Missing(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_arrow() -> None:
    """Import PyArrow without pandas, which it imports when it first converts Python objects."""
    with without("pandas"):
        import pyarrow as pa

        pa.array([])  # from here on, it takes pandas for missing


class _Missing(MetaPathFinder):
    """Raises the error of a missing package."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if any(f"{fullname}.".startswith(f"{package}.") for package in self._packages):
            raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
        return None
