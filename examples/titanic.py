"""Write the passenger list of the Titanic as a CSV file, with missing cells.

usage: python examples/titanic.py TITANIC.CSV

scikit-learn's wheel has it as an ARFF file of OpenML. The lines after ``@data`` are CSV with a
question mark for a missing value; the column names are written as a header line.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import sklearn

SOURCE = "datasets/tests/data/openml/id_40945/data-v1-dl-16826755.arff.gz"


def write_titanic(path: Path) -> int:
    """Writes the CSV file and returns the number of rows without the header."""
    packed = (Path(sklearn.__file__).parent / SOURCE).read_bytes()
    head, _, rows = gzip.decompress(packed).decode().partition("@data\n")
    columns = re.findall(r"^@attribute '([\w.]+)'", head, re.MULTILINE)
    path.write_text(f"{','.join(columns)}\n{rows}", encoding="utf-8")
    return len(rows.splitlines())


if __name__ == "__main__":
    print(f"{write_titanic(Path(sys.argv[1])):,} rows")
