"""Measure tables with many columns: CPU time and memory of whole processes, medians of runs.

usage: python benchmarks/wide_tables.py [--repeats N] [--shapes COLUMNSxROWS ...]

Prints a table. ``empty`` is a build of two rows, whose time is that of the start.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path

from rows import command
from timing import Run, run

EMPTY = "label,x\ntumor,1\nnormal,2\n"


def write_table(path: Path, columns: int, rows: int) -> None:
    """Writes a label, and measurements of which a third are integers."""
    rng = random.Random(5)
    with path.open("w") as file:
        file.write(",".join(["label", *(f"gene_{n}" for n in range(columns - 1))]) + "\n")
        for _ in range(rows):
            values = [rng.gauss(5, 2) for _ in range(columns - 1)]
            cells = [f"{v:.4f}" if n % 3 else str(int(v * 100)) for n, v in enumerate(values)]
            file.write(",".join([rng.choice(("tumor", "normal")), *cells]) + "\n")


def main() -> None:
    """Measures builds and the script that reads with pyarrow, alternately."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", default=["5000x120", "20000x120", "20000x1200"])
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        tables = {"empty": work / "empty.csv"}
        tables["empty"].write_text(EMPTY)
        for shape in flags.shapes:
            tables[shape] = work / f"{shape}.csv"
            write_table(tables[shape], *map(int, shape.split("x")))
        print("| table | shardmill rows, CPU s | peak MiB | pyarrow script, CPU s | peak MiB |")
        print("|---|---|---|---|---|")
        for shape, path in tables.items():
            runs: dict[str, list[Run]] = {"shardmill": [], "arrow": []}
            for _ in range(flags.repeats):
                for name, found in runs.items():
                    found.append(run(command(name, path, work / "out"), work / "out"))
            cells = [
                f"{statistics.median(each.cpu for each in found):.1f} | "
                f"{max(each.memory for each in found):.0f}"
                for found in runs.values()
            ]
            print(f"| {shape} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
