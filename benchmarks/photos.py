"""Photos for the benchmarks: reproducible crops of scikit-learn's two sample photographs."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
import sklearn
from PIL import Image, ImageOps

SAMPLES = Path(sklearn.__file__).parent / "datasets" / "images"


def photo(number: int, width: int, height: int) -> Image.Image:
    """Returns a photo that depends on its number: a scaled, maybe mirrored crop with noise."""
    rng = np.random.default_rng(number)
    sample = Image.open(SAMPLES / ("china.jpg" if number % 2 else "flower.jpg"))
    share = rng.uniform(0.5, 1.0)
    w, h = int(sample.width * share), int(sample.height * share)
    left, top = rng.integers(0, sample.width - w + 1), rng.integers(0, sample.height - h + 1)
    image = sample.resize((width, height), Image.Resampling.BICUBIC, (left, top, left + w, top + h))
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    grain = rng.normal(0, 6, (height, width, 1))
    return Image.fromarray(np.clip(np.asarray(image) + grain, 0, 255).astype("uint8"))


def write_photos(
    folder: Path, count: int, *, size: tuple[int, int] = (500, 375), all_differ: bool = False
) -> Path:
    """Writes missing photos in two class folders; about 90 KB each at 500x375.

    Of every 400 the pixels differ, of 20 where they are large. The others are hard links of these
    (writing is fast and decoding costs the same) or, if `all_differ`, have a number after the end
    of the image.
    """
    distinct = min(count, 400 if size[0] * size[1] < 1_000_000 else 20)
    for number in range(count):
        path = folder / f"class_{number % 2}" / f"{number:06d}.jpg"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < distinct:
            buffer = io.BytesIO()
            photo(number, *size).save(buffer, "JPEG", quality=90)
            path.write_bytes(buffer.getvalue())
            continue
        original = number % distinct
        source = folder / f"class_{original % 2}" / f"{original:06d}.jpg"
        if all_differ:
            path.write_bytes(source.read_bytes() + str(number).encode())
        else:
            os.link(source, path)
    return folder


if __name__ == "__main__":
    where, how_many, pixels, *differ = sys.argv[1:]
    width_, height_ = map(int, pixels.split("x"))
    write_photos(Path(where), int(how_many), size=(width_, height_), all_differ=bool(differ))
