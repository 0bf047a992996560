"""What the names of TFRecord files say, other people's too: split, number, records.

Nothing that is counted depends on a name; they tell splits apart and let odd sets be warned of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardmill.schemas.dataset.splits import SPLIT_FOLDERS

# Words that mean a split, in folders and at the end of a name's stem.
_SPLITS = {**SPLIT_FOLDERS, "eval": "eval", "evaluation": "eval"}
_SUFFIXES = re.compile(r"(\.(tfrecords?|tfrec|records?|gz|gzip|zlib|zz))+$", re.IGNORECASE)
_NUMBERED = re.compile(r"(?P<stem>.*?)[-_.]?(?P<number>\d+)-of-(?P<total>\d+).*", re.DOTALL)
_DATE = re.compile(r"\d{4}-\d\d-\d\d$")
_OTHERS = frozenset(
    f".{suffix}"
    for line in (
        "txt md rst pdf doc docx xls xlsx html htm css js py ipynb sh log license lock",
        "csv tsv json jsonl xml yaml yml toml ini cfg pbtxt lst idx index tfindex md5 sha1 sha256",
        "jpg jpeg png gif bmp webp tif tiff mat npy npz pkl h5 hdf5 pt pth ckpt pb parquet arrow",
        "zip tar tgz bz2 xz 7z rar mp4 avi mov mkv wav mp3 flac crc",
    )
    for suffix in line.split()
)

_MOST = 1_000_000  # more is no number of files
_SHOWN = 5


class Numbered(NamedTuple):
    """A name of the form ``STEM-00003-of-00008``: the stem with its folder, and the numbers."""

    stem: str
    number: int
    total: int


def claims_other(name: str) -> bool:
    """Tells whether a file's name claims to be something other than TFRecords."""
    stem = re.sub(r"\.(gz|gzip|zlib|zz)$", "", name, flags=re.IGNORECASE)
    dot = stem.rfind(".")
    return dot > 0 and stem[dot:].lower() in _OTHERS


def split_of(path: str) -> str:
    """Returns the split that a file's name or, failing that, a folder of it tells, or nothing.

    Args:
        path: Relative to the input's root, with ``/`` between folders.
    """
    *folders, name = path.split("/")
    numbered = _NUMBERED.fullmatch(name)
    stem = _SUFFIXES.sub("", numbered["stem"] if numbered else name)
    words = [word for word in re.split(r"[-_. ]+", stem) if not word.isdigit()]
    last = re.sub(r"\d+$", "", words[-1]).lower() if words else ""
    if last in _SPLITS:
        return _SPLITS[last]
    for folder in reversed(folders):
        word = folder.lower().removeprefix("split-").removeprefix("split=")
        if word in _SPLITS:
            return _SPLITS[word]
    return ""


def stated_records(path: str) -> int | None:
    """Returns the number of records that a file's name states, as in ``train07-230.tfrec``.

    Only what stands behind a shard's number counts as such: ``data-3.tfrecord`` states nothing.
    """
    name = _SUFFIXES.sub("", path.rpartition("/")[2])
    found = re.search(r"\d+-of-\d+[-_](\d+)$", name) or re.search(r"\d-([1-9]\d*|0)$", name)
    return int(found[1]) if found and not _DATE.search(name) else None


def numbered(path: str) -> Numbered | None:
    """Returns what a name of the form ``STEM-00003-of-00008`` says, or None for others."""
    folder, slash, name = path.rpartition("/")
    found = _NUMBERED.fullmatch(name)
    if not found:
        return None
    return Numbered(folder + slash + found["stem"], int(found["number"]), int(found["total"]))


def missing_shards(paths: Iterable[str]) -> Iterator[str]:
    """Yields a sentence for each numbered set of files that is not complete."""
    sets: dict[tuple[str, int], set[int]] = {}
    for path in paths:
        found = numbered(path)
        if found is not None and found.total < _MOST:
            sets.setdefault((found.stem, found.total), set()).add(found.number)
    for (stem, total), numbers in sorted(sets.items()):
        gone = sorted(set(range(total)) - numbers)
        if gone and max(numbers) < total:
            shown = ", ".join(str(number) for number in gone[:_SHOWN])
            more = f" and {len(gone) - _SHOWN:,} more" if len(gone) > _SHOWN else ""
            yield f"of {total:,} files {stem}-*-of-{total:05d} number {shown}{more} is not there"
