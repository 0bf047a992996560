"""Demo: build, show, verify and count datasets of real images and rows.

usage: python examples/demo.py FOLDER

The images are scikit-learn's 1,797 handwritten digits in class folders and its two sample
photographs, plus two damaged files that become rejects. The rows are the passengers of the Titanic,
also from scikit-learn.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import sklearn
from PIL import Image
from sklearn.datasets import load_digits
from titanic import write_titanic

HERE = Path(__file__).resolve().parent


def write_images(folder: Path) -> int:
    """Writes the images and returns the number of files, including the damaged ones."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / f"digit_{label}" / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 - pixels * 15).astype("uint8")).save(path)
    photos = Path(sklearn.__file__).parent / "datasets" / "images"
    for name in ("china.jpg", "flower.jpg"):
        (folder / "photo").mkdir(exist_ok=True)
        shutil.copyfile(photos / name, folder / "photo" / name)
    photo = (folder / "photo" / "china.jpg").read_bytes()
    (folder / "photo" / "truncated.jpg").write_bytes(photo[: len(photo) // 3])
    (folder / "digit_0" / "no_image.png").write_text("a picture of a zero\n")
    return sum(1 for path in folder.rglob("*") if path.is_file())


def run(*command: str) -> None:
    """Prints a command and runs it."""
    print(f"\n$ {shlex.join(command)}", flush=True)
    subprocess.run(command, check=True)


def show_images(folder: Path) -> Path:
    """Builds, shows, verifies and counts a dataset of images; returns its folder."""
    images, dataset = str(folder / "images"), str(folder / "dataset")
    count = write_images(folder / "images")
    print(f"Wrote {count:,} image files in class folders to {images}, two of them damaged.")
    run("shardmill", "images", f"--input={images}", f"--output={dataset}",
        "--image_size=64", "--num_shards=4")  # fmt: skip
    run("shardmill", "show", dataset, "--records=1")
    run("shardmill", "verify", dataset)
    reader = str(HERE.relative_to(Path.cwd()) / "read_by_hand.py")
    run("python", reader, f"{dataset}/current/train-00000-of-00004.tfrecord.gz", "100")
    run("shardmill", "count", f"--input={dataset}", f"--manifest={folder}/counted.json")
    run("shardmill", "steps", f"{dataset}/manifest.json", "--split=train", "--batch_size=32")
    run("shardmill", "images", f"--input={images}", f"--output={dataset}",
        "--image_size=64", "--num_shards=4")  # fmt: skip
    return Path(dataset)


def show_rows(folder: Path) -> Path:
    """Builds and shows a dataset of rows; returns its folder."""
    table, dataset = folder / "titanic.csv", str(folder / "titanic")
    count = write_titanic(table)
    print(f"\nWrote {count:,} passengers of the Titanic to {table}; a ? is a missing value.")
    print("".join(table.read_text().splitlines(keepends=True)[:3]), end="")
    run("shardmill", "rows", f"--input={table}", f"--output={dataset}", "--label=survived",
        "--null_values=?")  # fmt: skip
    run("grep", "-B1", "-A9", 'name: "age"', f"{dataset}/current/schema.pbtxt")
    run("shardmill", "show", dataset, "--records=1")
    run("shardmill", "steps", dataset, "--split=train", "--batch_size=32")
    return Path(dataset)


def main(folder: Path) -> None:
    """Deletes the folder and runs the demo in it."""
    shutil.rmtree(folder, ignore_errors=True)
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
