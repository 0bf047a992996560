"""Lazy exports: a package offers names and loads the module of each on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package (PEP 562).

    Args:
        package: Name of the package.
        modules: Absolute name of the module that defines each exported name; ``module:name`` where
            it defines it under another name.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, defined = modules[name].partition(":")
        return getattr(import_module(module), defined or name)

    return load, lambda: sorted(modules)
