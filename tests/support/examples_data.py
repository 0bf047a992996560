"""The data of the examples, for tests."""

import gzip
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tests.conftest import ROOT


def write_titanic(path: Path) -> int:
    """Write the table of the examples and return the number of rows."""
    path.write_bytes(gzip.decompress((ROOT / "pipelines/demo_data/titanic.csv.gz").read_bytes()))
    return len(path.read_text().splitlines()) - 1


def write_digits(folder: Path) -> int:
    """Write the digits of the examples and return their number."""
    return int(_example("digits").write_digits(folder))


def write_shapes(folder: Path, count: int) -> None:
    """Write pictures with boxes and masks of the examples."""
    _example("shapes").write_shapes(folder, count)


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "examples"))  # of the script's own imports
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "examples"))
    return module
