"""Information in the names of TFRecord files of any program: split, shard number, records.

Counts do not depend on names. Names decide the split of a counted file and cause warnings about
incomplete sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shardmill.schemas.dataset.splits import SPLIT_FOLDERS

# Words for a split, in the names of folders and at the end of a file name's stem.
_SPLITS = {**SPLIT_FOLDERS, "eval": "eval", "evaluation": "eval"}
_SUFFIXES = re.compile(r"(\.(tfrecords?|tfrec|records?|gz|gzip|zlib|zz))+$", re.IGNORECASE)
_NUMBERED = re.compile(r"(?P<stem>.*?)[-_.]?(?P<number>\d+)-of-(?P<total>\d+).*", re.DOTALL)
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
_DATE = re.compile(r"\d{4}-\d\d-\d\d$")
# Of files that are neither images nor TFRecords.
SIDE_SUFFIXES = frozenset(
    f".{suffix}"
    for line in (
        "txt md rst pdf doc docx xls xlsx html htm css js py ipynb sh log license",
        "csv tsv json jsonl xml yaml yml toml ini cfg pbtxt lst idx md5 sha1 sha256",
        "mat npy npz pkl h5 hdf5 pt pth ckpt pb parquet arrow",
        "zip tar tgz bz2 xz 7z rar mp4 avi mov mkv wav mp3 flac",
    )
    for suffix in line.split()
)
_OTHERS = SIDE_SUFFIXES | {".lock", ".index", ".tfindex", ".crc", *IMAGE_SUFFIXES}
_MAX_SHARDS = 1_000_000  # a larger number is not a number of files
_MAX_SHOWN = 5


def claims_other(name: str) -> bool:
    """Return whether a file name has the suffix of another format than TFRecord."""
    stem = re.sub(r"\.(gz|gzip|zlib|zz)$", "", name, flags=re.IGNORECASE)
    dot = stem.rfind(".")
    return dot > 0 and stem[dot:].lower() in _OTHERS


def split_of(path: str) -> str:
    """Return the split in a file's name or else in one of its folders, or an empty text.

    Args:
        path: Path relative to the input's root, with ``/`` between folders.
    """
    *folders, name = path.split("/")
    numbered = _NUMBERED.fullmatch(name)
    stem = numbered["stem"] if numbered else name
    stem = _SUFFIXES.sub("", stem)
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
    """Return the number of records in a file's name, as in ``train07-230.tfrec``, or None.

    It must follow a shard number: ``data-3.tfrecord`` has none.
    """
    name = _SUFFIXES.sub("", path.rpartition("/")[2])
    match = re.search(r"\d+-of-\d+[-_](\d+)$", name) or re.search(r"\d-([1-9]\d*|0)$", name)
    if match and not _DATE.search(name):
        return int(match[1])
    return None


def missing_shards(paths: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each incomplete set of files such as ``STEM-00003-of-00008``."""
    sets: dict[tuple[str, int], set[int]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        match = _NUMBERED.fullmatch(name)
        if match and int(match["total"]) < _MAX_SHARDS:
            key = folder + slash + match["stem"], int(match["total"])
            sets.setdefault(key, set()).add(int(match["number"]))
    for (stem, total), numbers in sorted(sets.items()):
        missing = sorted(set(range(total)) - numbers)
        if missing and max(numbers) < total:
            listed = ", ".join(str(number) for number in missing[:_MAX_SHOWN])
            more = ""
            if len(missing) > _MAX_SHOWN:
                more = f" and {len(missing) - _MAX_SHOWN:,} more"
            yield f"of {total:,} files {stem}-*-of-{total:05d} number {listed}{more} is missing"
