"""Checks that optional frameworks are installed."""

from __future__ import annotations

from importlib.util import find_spec

from shardmill.schemas.errors import UsageError

_NAMES = {"tensorflow": "TensorFlow", "keras": "Keras", "torch": "PyTorch"}
_EXTRAS = {"keras": "tensorflow"}


class FrameworkError(UsageError, ImportError):
    """An optional framework is not installed."""


def require_framework(module: str) -> None:
    """Checks that a framework is installed, without importing it.

    Args:
        module: ``tensorflow``, ``keras`` or ``torch``.

    Raises:
        FrameworkError: It is not installed.
    """
    if find_spec(module) is None:
        name, extra = _NAMES[module], _EXTRAS.get(module, module)
        raise FrameworkError(f"{name} is not installed: pip install 'shardmill[{extra}]'.")
