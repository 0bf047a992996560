"""Writes the passenger list of the Titanic as a CSV: real rows with missing cells, for examples.

usage: python examples/titanic.py TITANIC.CSV

scikit-learn's wheel carries it as OpenML's ARFF, whose lines below ``@data`` are CSV as it is, with
a question mark where nothing is known; only the names of columns are brought into one header line.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import sklearn

SOURCE = "datasets/tests/data/openml/id_40945/data-v1-dl-16826755.arff.gz"


def write_titanic(path: Path) -> int:
    """Writes the CSV and returns how many rows it has below its header."""
    packed = (Path(sklearn.__file__).parent / SOURCE).read_bytes()
    head, _, rows = gzip.decompress(packed).decode().partition("@data\n")
    columns = re.findall(r"^@attribute '([\w.]+)'", head, re.MULTILINE)
    path.write_text(f"{','.join(columns)}\n{rows}", encoding="utf-8")
    return len(rows.splitlines())


if __name__ == "__main__":
    print(f"{write_titanic(Path(sys.argv[1])):,} rows")
