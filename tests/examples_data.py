"""The data that the examples work on, for tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from conftest import ROOT


def write_titanic(path: Path) -> int:
    """Writes the table of the examples as they do, and returns how many rows it has."""
    spec = importlib.util.spec_from_file_location("titanic", ROOT / "examples" / "titanic.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    count: int = module.write_titanic(path)
    return count
