"""Tools in separate environments, with the versions that the comparisons use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TENSORFLOW = "tensorflow-cpu==2.21.0"
REPOSITORY = Path(__file__).resolve().parent.parent
# What pip installs into each environment.
PACKAGES: dict[str, tuple[str, ...]] = {
    "shardmill": (
        "--constraint",
        f"{REPOSITORY}/constraints.txt",
        "--editable",
        str(REPOSITORY),
    ),
    "tfds": ("tensorflow-datasets==4.9.10", TENSORFLOW, "pillow==12.3.0"),
    "tfds-beam": (
        "tensorflow-datasets==4.9.10",
        "apache-beam==2.77.0",
        "google-crc32c==1.9.0",
        TENSORFLOW,
        "pillow==12.3.0",
    ),
    "img2dataset": (
        "img2dataset==1.47.0",
        "tensorflow-cpu==2.16.2",
        "tensorflow-io==0.37.1",
        "wandb==0.28.0",
        "numpy==1.26.4",
        "pyarrow==19.0.1",
        "setuptools<81",
    ),
    "mosaicml": ("mosaicml-streaming==0.13.0", "pillow==12.3.0"),
    "webdataset": ("webdataset==1.0.2", "pillow==12.3.0"),
    "datasets": ("datasets==5.2.0", "pillow==12.3.0"),
    "ray": ("ray[data]==2.60.0", "pillow==12.3.0"),
    "litdata": ("litdata==0.2.76", "pillow==12.3.0"),
}
# The programs of image_peers.py and row_peers.py run in environments that have what they need.
SHARED = {"floor": "shardmill", "tutorial": "tfds", "beam": "tfds-beam"}


def environment(tool: str, work: Path) -> str:
    """Returns the Python of a tool's environment, which is created if needed.

    Raises:
      RuntimeError: pip cannot install the tool; the message ends with its last lines.
    """
    tool = SHARED.get(tool, tool)
    home = work.resolve() / "env" / tool
    python, ready = home / "bin" / "python", home / "installed.txt"
    if not ready.exists() or ready.read_text() != "\n".join(PACKAGES[tool]):
        base = shutil.which("python3.11") or sys.executable
        install = [python, "-m", "pip", "install", "--quiet", *PACKAGES[tool]]
        # With a PYTHONPATH, pip takes what is there for installed.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for words in ([base, "-m", "venv", "--clear", home], install):
            done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
            if done.returncode:
                raise RuntimeError(f"{tool}: cannot be installed: {done.stderr.strip()[-300:]}")
        freeze = [python, "-m", "pip", "freeze"]
        versions = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout
        (home / "versions.txt").write_text(versions)
        ready.write_text("\n".join(PACKAGES[tool]))
    return str(python)


if __name__ == "__main__":
    for name in sys.argv[2:] or PACKAGES:
        print(name, environment(name, Path(sys.argv[1])), flush=True)
