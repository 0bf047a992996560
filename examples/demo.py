"""Demo: build, show, verify and count datasets of real images and rows.

usage: python examples/demo.py FOLDER

``shardmill demo`` writes photos in class folders, two files that are not photos and become rejects,
and a table of the passengers of the Titanic.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(*command: str) -> None:
    """Prints a command and runs it."""
    print(f"\n$ {shlex.join(command)}", flush=True)
    subprocess.run(command, check=True)


def show_images(folder: Path) -> Path:
    """Builds, shows, verifies and counts a dataset of images; returns its folder."""
    images, dataset = str(folder / "photos"), str(folder / "dataset")
    run(
        "shardmill",
        "images",
        f"--input={images}",
        f"--output={dataset}",
        "--image_size=96",
        "--num_shards=4",
    )
    run("shardmill", "show", dataset, "--records=1")
    run("shardmill", "verify", dataset)
    reader = str(HERE.relative_to(Path.cwd()) / "read_by_hand.py")
    run("python", reader, f"{dataset}/current/train-00000-of-00004.tfrecord.gz", "50")
    run("shardmill", "count", f"--input={dataset}", f"--manifest={folder}/counted.json")
    run("shardmill", "steps", f"{dataset}/manifest.json", "--split=train", "--batch_size=32")
    run(
        "shardmill",
        "images",
        f"--input={images}",
        f"--output={dataset}",
        "--image_size=96",
        "--num_shards=4",
    )
    return Path(dataset)


def show_rows(folder: Path) -> Path:
    """Builds and shows a dataset of rows; returns its folder."""
    table, dataset = folder / "titanic.csv", str(folder / "titanic")
    print("\nThe passengers of the Titanic; a ? is a missing value:")
    print("".join(table.read_text().splitlines(keepends=True)[:3]), end="")
    run(
        "shardmill",
        "rows",
        f"--input={table}",
        f"--output={dataset}",
        "--label=survived",
        "--null_values=?",
    )
    run("grep", "-B1", "-A9", 'name: "age"', f"{dataset}/current/schema.pbtxt")
    run("shardmill", "show", dataset, "--records=1")
    run("shardmill", "steps", dataset, "--split=train", "--batch_size=32")
    return Path(dataset)


def main(folder: Path) -> None:
    """Deletes the folder and runs the demo in it."""
    shutil.rmtree(folder, ignore_errors=True)
    run("shardmill", "demo", str(folder))
    images, rows = show_images(folder), show_rows(folder)
    command = Path(sys.executable).parent / "shardmill"
    if command.is_relative_to(Path.cwd()):
        command = command.relative_to(Path.cwd())
    print(f"""
The datasets are in {images} and {rows}. Try next:
  zcat {images}/current/train-00000-of-00004.tfrecord.gz | wc -c
  {command} images --help
  {command} images --input=YOUR_PHOTOS --output=ds --image_size=224
  {command} rows --input=YOUR.csv --output=ds""")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
