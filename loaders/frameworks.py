"""Frameworks that are installed apart: one sentence where one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from shardmill.schemas.errors import UsageError

_NAMES = {"tensorflow": "TensorFlow", "keras": "Keras", "torch": "PyTorch"}
_EXTRAS = {"keras": "tensorflow"}


def need(module: str) -> None:
    """Checks that a framework is installed; does not load it.

    Args:
        module: ``tensorflow``, ``keras`` or ``torch``.

    Raises:
        UsageError: It is not.
    """
    if find_spec(module) is None:
        extra = _EXTRAS.get(module, module)
        raise UsageError(f"this needs {_NAMES[module]}: pip install 'shardmill[{extra}]'.")
