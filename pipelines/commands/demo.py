"""``shardmill demo``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

import gzip
import os
import random
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage.local import storage_error

CROPS = 80  # of each photograph
_PAGE = "<!doctype html><title>404</title>\n"


@dataclass(kw_only=True)
class DemoOptions:
    """Options of ``shardmill demo``.

    Attributes:
        folder: ``DIR``: a new or empty folder
    """

    usage: ClassVar = "DIR [FLAGS]"
    summary: ClassVar = """\
Write real data to try the other commands with: DIR/photos has a folder of
photos for each of five classes, and two files that are not photos;
DIR/titanic.csv is a table of 1,309 passengers."""
    example: ClassVar = """\
example:
  shardmill demo demo && shardmill images demo/photos ds --image_size=96"""
    folder: str


def run(flags: DemoOptions, answer: Answer) -> int:
    """Write the data; return the exit code."""
    folder = Path(flags.folder)
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise OutputError("demo-folder-exists", folder=folder)
    try:
        count, rows = write_data(folder)
    except OSError as error:
        raise storage_error("write to", flags.folder, error) from error
    photos, table = folder / "photos", folder / "titanic.csv"
    answer.say(f"Wrote {count} files to {photos} and {rows:,} rows to {table}")
    answer.give({"status": "written", "folder": str(folder), "photos": count, "rows": rows})
    return 0


def write_data(folder: Path) -> tuple[int, int]:
    """Write the photos and the table; return the numbers of files and of rows."""
    data, photos = files("shardmill.pipelines") / "demo_data", folder / "photos"
    for source in sorted(data.iterdir(), key=lambda each: each.name):
        if source.name.endswith(".jpg"):
            write_crops(source, photos / source.name.removesuffix(".jpg"))
    whole = (photos / "coffee" / "000.jpg").read_bytes()
    (photos / "coffee" / "cut_short.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "cat" / "not_found.jpg").write_text(_PAGE, encoding="utf-8")
    table = gzip.decompress((data / "titanic.csv.gz").read_bytes())
    (folder / "titanic.csv").write_bytes(table)
    return sum(1 for _ in photos.glob("*/*")), table.count(b"\n") - 1


def write_crops(source: Any, folder: Path) -> None:
    """Cut photos of random sizes from a photograph, the same ones each time.

    Args:
        source: The photograph, a file of the package.
        folder: Where the photos are written.
    """
    from PIL import Image

    folder.mkdir(parents=True)
    draw = random.Random(source.name)  # noqa: S311 - decides nothing
    with source.open("rb") as file, Image.open(file) as image:
        for number in range(CROPS):
            width, height = draw.randrange(96, 193), draw.randrange(96, 193)
            left, top = draw.randrange(image.width - width), draw.randrange(image.height - height)
            crop = image.crop((left, top, left + width, top + height))
            crop.save(folder / f"{number:03d}.jpg", quality=90)
