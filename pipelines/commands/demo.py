"""``shardmill demo``: imports neither Apache Beam nor TensorFlow."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas.errors import OutputError
from shardmill.schemas.storage.local import storage_error

CONTENTS = {
    "photos": "402 files: photos of five things, and two files that are not photos",
    "listing.csv": "a listing of the photos, with several labels and a number for each",
    "titanic.csv": "1,309 rows: the passengers of the Titanic",
    "tables": "small tables: CSV, Parquet and JSON Lines",
    "shapes": "400 pictures of disks and squares, with boxes and masks",
    "arrays": "500 digits: x.npy has their pixels, y.npy their labels",
    "digits.npz": "the same arrays in one file",
}


@dataclass(kw_only=True)
class DemoOptions:
    """Options of ``shardmill demo``.

    Attributes:
        folder: ``DIR``: a new or empty folder, or one that has these files
    """

    usage = "DIR [FLAGS]"
    summary = """\
Write the data that the docs use: photos in a folder for each of five classes,
tables, arrays, and pictures with boxes and masks. A second call writes nothing."""
    example = """\
example:
  shardmill demo demo && shardmill images demo/photos ds --image_size=96"""
    folder: str


def run(flags: DemoOptions, answer: Answer) -> int:
    """Write the data; return the exit code."""
    from shardmill.pipelines.demo_files import demo_files

    folder, contents = Path(flags.folder), demo_files()
    try:
        is_new = not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))
        if is_new:
            write_files(folder, contents)
        elif not has_files(folder, contents):
            raise OutputError(
                f"{folder} is neither empty nor a copy of this demo: give a new folder."
            )
    except OSError as error:
        raise storage_error("write to", flags.folder, error) from error
    width = max(len(str(folder / name)) for name in CONTENTS)
    for name, text in CONTENTS.items():
        answer.say(f"{folder / name!s:{width}}  {text}")
    count = sum(name.startswith("photos/") for name in contents)
    rows = contents["titanic.csv"].count(b"\n") - 1
    status = "written" if is_new else "up_to_date"
    answer.give({"status": status, "folder": str(folder), "photos": count, "rows": rows})
    return 0


def write_files(folder: Path, contents: dict[str, bytes]) -> None:
    """Write files, and the folders in which they are."""
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def has_files(folder: Path, contents: dict[str, bytes]) -> bool:
    """Report whether a folder has these files; it may have others."""
    for name, data in contents.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            return False
    return True
