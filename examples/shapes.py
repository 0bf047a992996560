"""Write pictures of squares and disks, with boxes in PASCAL VOC's format and with masks.

usage: python examples/shapes.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE = 64
NAMES = ("disk", "square")
_OBJECT = """ <object><name>{name}</name><bndbox><xmin>{0}</xmin><ymin>{1}</ymin>
 <xmax>{2}</xmax><ymax>{3}</ymax></bndbox></object>
"""


def write_shapes(folder: Path, count: int = 400) -> int:
    """Writes images/, annotations/ and masks/, and returns the number of pictures."""
    rng = np.random.default_rng(0)
    for name in ("images", "annotations", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        noise = rng.normal(110, 30, (SIDE, SIDE, 3)).clip(0, 255).astype(np.uint8)
        image, mask = Image.fromarray(noise), Image.new("L", (SIDE, SIDE))
        objects = ""
        for corner in rng.permutation(4)[: rng.integers(1, 4)]:  # one in a quarter of the picture
            size = int(rng.integers(12, 26))
            left, upper = rng.integers(0, SIDE // 2 - size, 2) + (SIDE // 2) * np.array(
                divmod(int(corner), 2)
            )
            box = int(left), int(upper), int(left) + size, int(upper) + size
            shape, color = int(rng.integers(2)), tuple(rng.integers(150, 256, 3).tolist())
            for canvas, fill in ((image, color), (mask, shape + 1)):
                draw = ImageDraw.Draw(canvas)
                paint = (draw.ellipse, draw.rectangle)[shape]
                paint((*box[:2], box[2] - 1, box[3] - 1), fill=fill)
            objects += _OBJECT.format(*box, name=NAMES[shape])
        image.save(folder / "images" / f"{number:04d}.png")
        mask.save(folder / "masks" / f"{number:04d}.png")
        size_text = f"<size><width>{SIDE}</width><height>{SIDE}</height><depth>3</depth></size>"
        text = f"<annotation>{size_text}\n{objects}</annotation>\n"
        (folder / "annotations" / f"{number:04d}.xml").write_text(text)
    return count


if __name__ == "__main__":
    print(f"{write_shapes(Path(sys.argv[1]))} pictures")
