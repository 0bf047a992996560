"""The demo: real small images become a dataset, which is then checked and looked into.

usage: python examples/demo.py FOLDER

The images are scikit-learn's 1,797 handwritten digits in class folders and its two sample
photographs, beside two broken files, so that rejects are seen.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import sklearn
from PIL import Image
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve().parent


def write_images(folder: Path) -> int:
    """Writes the images and returns how many files there are, the broken ones included."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / f"digit_{label}" / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 - pixels * 15).astype("uint8")).save(path)
    photos = Path(sklearn.__file__).parent / "datasets" / "images"
    for name in ("china.jpg", "flower.jpg"):
        (folder / "photo").mkdir(exist_ok=True)
        shutil.copyfile(photos / name, folder / "photo" / name)
    cut = (folder / "photo" / "china.jpg").read_bytes()
    (folder / "photo" / "cut_short.jpg").write_bytes(cut[: len(cut) // 3])
    (folder / "digit_0" / "no_image.png").write_text("a picture of a zero\n")
    return sum(1 for path in folder.rglob("*") if path.is_file())


def run(*command: str) -> None:
    """Shows a command and runs it."""
    print(f"\n$ {' '.join(command)}", flush=True)
    subprocess.run(command, check=True)


def main(folder: Path) -> None:
    """Runs the demo in a folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    images, dataset = str(folder / "images"), str(folder / "dataset")
    count = write_images(folder / "images")
    print(f"Wrote {count:,} image files in class folders to {images}, two of them broken.")
    run("shardmill", "images", f"--input={images}", f"--output={dataset}",
        "--image_size=64", "--num_shards=4")  # fmt: skip
    run("shardmill", "show", dataset, "--records=1")
    run("shardmill", "verify", dataset)
    run("python", str(HERE.relative_to(Path.cwd()) / "read_by_hand.py"), dataset)
    run("shardmill", "count", f"--input={dataset}/*.gz", f"--manifest={folder}/counted.json")
    run("shardmill", "steps", f"{dataset}/manifest.json", "--split=train", "--batch_size=32")
    run("shardmill", "images", f"--input={images}", f"--output={dataset}",
        "--image_size=64", "--num_shards=4")  # fmt: skip
    command = Path(sys.executable).parent / "shardmill"
    if command.is_relative_to(Path.cwd()):
        command = command.relative_to(Path.cwd())
    print(f"""
The dataset is in {dataset}. Try next:
  zcat {dataset}/train-00000-of-00004.tfrecord.gz | wc -c
  {command} images --help
  {command} images --input=YOUR_PHOTOS --output=ds --image_size=224""")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
