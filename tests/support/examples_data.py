"""The data of the examples, for tests."""

import gzip
import runpy
from pathlib import Path

from tests.conftest import ROOT


def write_titanic(path: Path) -> int:
    """Write the table of the examples and return the number of rows."""
    path.write_bytes(gzip.decompress((ROOT / "pipelines/demo_data/titanic.csv.gz").read_bytes()))
    return len(path.read_text().splitlines()) - 1


def write_digits(folder: Path) -> int:
    """Write the digits of the examples and return their number."""
    return int(runpy.run_path(str(ROOT / "examples" / "digits.py"))["write_digits"](folder))
