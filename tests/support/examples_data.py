"""The data of the examples, for tests."""

import importlib.util
from pathlib import Path
from types import ModuleType

from tests.conftest import ROOT


def write_titanic(path: Path) -> int:
    """Write the table of the examples and return the number of rows."""
    return int(_example("titanic").write_titanic(path))


def write_digits(folder: Path) -> int:
    """Write the digits of the examples and return their number."""
    return int(_example("digits").write_digits(folder))


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
