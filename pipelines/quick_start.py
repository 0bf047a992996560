"""Faster start of builds, in processes that belong to Shardmill and not to its users.

Beam and Arrow import optional packages if these are installed, which takes a third of the time of a
small build. Left out of an import, a package stays unavailable to Beam and Arrow in this process.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"
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


def import_arrow(pool: str, *, with_pandas: bool) -> None:
    """Import PyArrow, which imports pandas when it first converts Python objects.

    Args:
        pool: Its memory pool, which it chooses only now; empty for its default.
        with_pandas: Whether code of a user may need both; else PyArrow takes pandas for missing.
    """
    chooses = pool and _ARROW_POOL not in os.environ
    if chooses:
        os.environ[_ARROW_POOL] = pool
    hidden = () if with_pandas else ("pandas",)
    with without(*hidden):
        import pyarrow as pa

        pa.array([])
    if chooses:
        del os.environ[_ARROW_POOL]  # processes that this one starts may choose another


@functools.cache
def remember_signatures() -> None:
    """Compute the signatures of the methods of Beam's DoFns once.

    Beam inspects every method about six times for each step of a pipeline, which takes a tenth of
    the time of a small build; with these signatures, it takes half as long.
    """
    from apache_beam.transforms import core

    for base in core.CallableWrapperDoFn.__mro__:
        for function in vars(base).values():
            if inspect.isfunction(function):
                function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]


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
