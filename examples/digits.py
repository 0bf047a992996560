"""Write scikit-learn's 1,797 handwritten digits as PNG files and NumPy arrays.

usage: pip install '.[examples]' && python examples/digits.py FOLDER

FOLDER/images has one folder per digit; FOLDER/listing.csv what is true of each image, and how much
of it is ink, in percent; FOLDER/arrays has x.npy (float32, [1797, 8, 8], 0 to 16) and y.npy (int64,
[1797]).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

TAGS = {"even": "02468", "prime": "2357", "loop": "0689"}  # none of 1


def write_digits(folder: Path) -> int:
    """Writes the images and arrays, and returns the number of digits."""
    digits = load_digits()
    rows = [("path", "label", "ink")]
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / "images" / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype(np.uint8)).save(path)
        tags = "|".join(tag for tag, members in TAGS.items() if str(label) in members)
        rows.append((path.relative_to(folder).as_posix(), tags, f"{pixels.mean() / 0.16:.2f}"))
    with (folder / "listing.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (folder / "arrays").mkdir(exist_ok=True)
    np.save(folder / "arrays" / "x.npy", digits.images.astype(np.float32))
    np.save(folder / "arrays" / "y.npy", digits.target.astype(np.int64))
    return len(digits.target)


if __name__ == "__main__":
    print(f"{write_digits(Path(sys.argv[1])):,} digits")
