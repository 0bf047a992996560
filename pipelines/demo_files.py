"""The files of ``shardmill demo``, made by code: the same bytes in each call."""

from __future__ import annotations

import csv
import gzip
import io
import random
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image

CROPS = 80  # of each photograph
SHAPES = 400
DIGITS = 500
TAGS = {
    "brick": "pattern",
    "cat": "animal",
    "coffee": "drink",
    "grass": "pattern|plant",
    "stars": "sky",
}
WEB_PAGE = b"<!doctype html><title>404</title>\n"
SIDE = 64  # of the pictures of shapes
SHAPE_NAMES = ("disk", "square")
ANNOTATION = """<annotation>
 <size><width>{side}</width><height>{side}</height><depth>3</depth></size>
{objects}</annotation>
"""
OBJECT = """ <object><name>{name}</name><bndbox><xmin>{0}</xmin><ymin>{1}</ymin>
 <xmax>{2}</xmax><ymax>{3}</ymax></bndbox></object>
"""
# Ends of the lines that digits are made of, in units of 8 pixels.
LINES = {
    "top": (0, 0, 1, 0),
    "upper left": (0, 0, 0, 1),
    "upper right": (1, 0, 1, 1),
    "middle": (0, 1, 1, 1),
    "lower left": (0, 1, 0, 2),
    "lower right": (1, 1, 1, 2),
    "bottom": (0, 2, 1, 2),
}
DIGIT_LINES = [
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
]
PRICES = 'id,price,city\n1,2.5,Bern\n2,oops,Basel\n3,1.5\n3,1.75,Genf\n4,,"Zürich\n5,3,Chur\n'
PRICES_SCHEMA = """feature { name: "id" type: INT }
feature { name: "price" type: FLOAT }
feature { name: "city" type: BYTES }
"""


def demo_files() -> dict[str, bytes]:
    """Return the contents of all files by their path in the folder."""
    data = files("shardmill.pipelines") / "demo_data"
    contents = {"titanic.csv": gzip.decompress((data / "titanic.csv.gz").read_bytes())}
    for part in (photos(data), shapes(), tables(), arrays()):
        contents.update(part)
    return contents


def photos(data: Any) -> Iterator[tuple[str, bytes]]:
    """Yield photos cut from a large one of each class, two broken files, and a listing."""
    from PIL import Image, ImageStat

    listing = [("path", "label", "brightness")]
    for name, tags in TAGS.items():
        source = f"{name}.jpg"
        draw = random.Random(source)  # noqa: S311 - decides nothing
        with (data / source).open("rb") as file, Image.open(file) as photo:
            for number in range(CROPS):
                path = f"photos/{name}/{number:03d}.jpg"
                crop = cut(photo, draw)
                brightness = ImageStat.Stat(crop.convert("L")).mean[0] / 255
                listing.append((path, tags, f"{brightness:.3f}"))
                encoded = encode(crop, "jpeg", quality=90)
                yield path, encoded
                if path == "photos/coffee/000.jpg":
                    yield "photos/coffee/cut_short.jpg", encoded[: len(encoded) // 2]
    yield "photos/cat/not_found.jpg", WEB_PAGE
    yield "listing.csv", csv_bytes(listing)


def cut(photo: Image, draw: random.Random) -> Image:
    """Return a random rectangle of a photo."""
    width, height = draw.randrange(96, 193), draw.randrange(96, 193)
    left, top = draw.randrange(photo.width - width), draw.randrange(photo.height - height)
    return photo.crop((left, top, left + width, top + height))


def shapes() -> Iterator[tuple[str, bytes]]:
    """Yield pictures of disks and squares, with boxes in PASCAL VOC's format and with masks."""
    draw = random.Random("shapes")  # noqa: S311 - decides nothing
    for number in range(SHAPES):
        picture, mask, annotation = draw_shapes(draw)
        yield f"shapes/images/{number:04d}.jpg", encode(picture, "jpeg", quality=90)
        yield f"shapes/masks/{number:04d}.png", encode(mask, "png")
        yield f"shapes/annotations/{number:04d}.xml", annotation.encode()


def draw_shapes(draw: random.Random) -> tuple[Image, Image, str]:
    """Return a picture of one to three shapes, its mask and its annotation."""
    import numpy as np
    from PIL import Image, ImageDraw

    noise = np.frombuffer(draw.randbytes(SIDE * SIDE * 3), np.uint8) // 2 + 46
    picture = Image.fromarray(noise.reshape(SIDE, SIDE, 3))
    mask = Image.new("L", (SIDE, SIDE))
    objects = ""
    for quarter in draw.sample(range(4), draw.randint(1, 3)):
        size = draw.randrange(12, 26)
        left, upper = (
            start * SIDE // 2 + draw.randrange(SIDE // 2 - size) for start in divmod(quarter, 2)
        )
        corners = (left, upper, left + size - 1, upper + size - 1)
        shape = draw.randrange(2)
        color = tuple(draw.randrange(150, 256) for _ in range(3))
        for canvas, fill in ((picture, color), (mask, shape + 1)):
            pen = ImageDraw.Draw(canvas)
            paint = (pen.ellipse, pen.rectangle)[shape]
            paint(corners, fill=fill)
        box = (left, upper, left + size, upper + size)
        objects += OBJECT.format(*box, name=SHAPE_NAMES[shape])
    return picture, mask, ANNOTATION.format(side=SIDE, objects=objects)


def tables() -> Iterator[tuple[str, bytes]]:
    """Yield small tables of several formats."""
    import pyarrow as pa
    from pyarrow import parquet

    for month in ("may", "june"):
        sales = [(number, number / 4, month) for number in range(40)]
        yield f"tables/sales/{month}.csv", csv_bytes([("id", "price", "month"), *sales])
    yield "tables/prices.csv", PRICES.encode()
    yield "tables/prices.pbtxt", PRICES_SCHEMA.encode()
    orders = [
        ("id", "zip", "day", "age", "total", "Bezahlt"),
        ("1", "08001", "24.12.2025", "", "1.234,50", "ja"),
        *((n, "04109", "01.02.2026", n, f"0,{n}", "nein") for n in range(2, 40)),
    ]
    yield "tables/orders.csv", csv_bytes(orders)
    events = [{"clicked": number % 2, "page": "ab"[number % 2]} for number in range(40)]
    target = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(events), target)
    for name in (
        "events.parquet",
        "export/day=2026-01-01/0.parquet",
        "export/day=2026-01-02/0.parquet",
    ):
        yield f"tables/{name}", target.getvalue()
    lines = "".join(f'{{"clicked": {row["clicked"]}, "page": "{row["page"]}"}}\n' for row in events)
    yield "tables/logs/may.jsonl.gz", gzip.compress(lines.encode(), mtime=0)


def arrays() -> Iterator[tuple[str, bytes]]:
    """Yield digits of seven lines as arrays."""
    import numpy as np

    draw = random.Random("digits")  # noqa: S311 - decides nothing
    labels = np.array([draw.randrange(10) for _ in range(DIGITS)], np.int64)
    pixels = np.stack([draw_digit(digit, draw) for digit in labels.tolist()])
    for name, array in (("x", pixels), ("y", labels)):
        target = io.BytesIO()
        np.save(target, array)
        yield f"arrays/{name}.npy", target.getvalue()
    target = io.BytesIO()
    np.savez_compressed(target, x=pixels, label=labels)
    yield "digits.npz", target.getvalue()


def draw_digit(digit: int, draw: random.Random) -> Any:
    """Return the pixels of a digit, an array of 28 x 28."""
    import numpy as np
    from PIL import Image, ImageDraw

    picture = Image.new("L", (28, 28))
    left, top = draw.randrange(4, 16), draw.randrange(3, 9)
    for ends, drawn in zip(LINES.values(), DIGIT_LINES[digit], strict=True):
        if drawn == "1":
            place = [8 * end + (left, top)[axis % 2] for axis, end in enumerate(ends)]
            ImageDraw.Draw(picture).line(place, fill=draw.randrange(160, 256), width=2)
    return np.asarray(picture)


def encode(picture: Image, kind: str, **options: int) -> bytes:
    """Return the file of a picture."""
    target = io.BytesIO()
    picture.save(target, kind, **options)
    return target.getvalue()


def csv_bytes(rows: list[Any]) -> bytes:
    """Return a CSV file."""
    target = io.StringIO()
    csv.writer(target, lineterminator="\n").writerows(rows)
    return target.getvalue().encode()
