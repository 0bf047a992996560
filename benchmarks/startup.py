"""Measure whole commands on one input against ``import apache_beam``, interleaved.

usage: python benchmarks/startup.py [PYTHON ...]

Each PYTHON is the interpreter of an environment where Shardmill is installed; by default this one.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import run

REPEATS = 7
PHOTO = """
import sys
from PIL import Image
Image.linear_gradient("L").resize((500, 375)).convert("RGB").save(sys.argv[1])
"""


def measure_startup(python: str, work: Path) -> dict[str, tuple[float, float]]:
    """Returns median seconds and CPU seconds of commands, and of Beam's import there."""
    photo, table, out = work / "photos/a/0.jpg", work / "table.csv", work / "out"
    photo.parent.mkdir(parents=True)
    subprocess.run([python, "-c", PHOTO, str(photo)], check=True)
    table.write_text("a,b,label\n1,2,x\n3,4,y\n")
    ours, counted = [python, "-m", "shardmill"], work / "counted"
    images = [*ours, "images", f"--input={work / 'photos'}", "--image_size=224"]
    run([*images, f"--output={counted}"], counted)
    commands = {
        "python": [python, "-c", "pass"],
        "help": [*ours, "images", "--help"],
        "import": [python, "-c", "import apache_beam"],
        "images": [*images, f"--output={out}"],
        "rows": [*ours, "rows", f"--input={table}", "--label=label", f"--output={out}"],
        "count": [*ours, "count", f"--input={counted}"],
    }
    rounds = [{name: run(each, out) for name, each in commands.items()} for _ in range(REPEATS)]
    return {
        name: (
            statistics.median(runs[name].wall for runs in rounds),
            statistics.median(runs[name].cpu for runs in rounds),
        )
        for name in commands
    }


def main() -> None:
    """Prints a table of each environment."""
    for python in sys.argv[1:] or [sys.executable]:
        with tempfile.TemporaryDirectory(prefix="shardmill-bench-") as work:
            found = measure_startup(python, Path(work))
        base = found["import"]
        print(f"{python}: seconds, and how many more than import")
        for name, (wall, cpu) in found.items():
            print(f"  {name:8} wall {wall:5.2f} {wall - base[0]:+6.2f}", end="   ")
            print(f"cpu {cpu:5.2f} {cpu - base[1]:+6.2f}", flush=True)


if __name__ == "__main__":
    main()
