"""Checks that optional frameworks are installed."""

from __future__ import annotations

from importlib.util import find_spec

from shardmill.schemas.errors import UsageError

_NAMES = {"tensorflow": "TensorFlow", "keras": "Keras", "torch": "PyTorch"}
_EXTRAS = {"keras": "tensorflow"}


def require_framework(module: str) -> None:
    """Checks that a framework is installed, without importing it.

    Args:
        module: ``tensorflow``, ``keras`` or ``torch``.

    Raises:
        UsageError: It is not installed.
    """
    if find_spec(module) is None:
        extra = _EXTRAS.get(module, module)
        raise UsageError(f"{_NAMES[module]} is not installed: pip install 'shardmill[{extra}]'.")
