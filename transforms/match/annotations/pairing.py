"""Pairs images with the files or entries that describe them, by their paths."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence

from shardmill.schemas.refs import InputRef

# Names of folders next to each other in the layouts of PASCAL VOC, YOLO and common tools.
_FOLDERS = frozenset(
    {
        "annotation", "annotations", "annots", "image", "images", "img", "imgs", "jpegimages",
        "label", "labels", "mask", "masks", "xml", "xmls",
    }
)  # fmt: skip


def stem_of(key: str) -> str:
    """Return the name of a file without folders and suffix."""
    return posixpath.splitext(posixpath.basename(key))[0]


def pair(
    images: Iterable[InputRef], others: Iterable[InputRef]
) -> Iterator[tuple[InputRef | None, InputRef | None]]:
    """Yield each image with what describes it or None, and None with what describes no image.

    They belong together if their folders are the same; else if these differ only in the names of
    usual layouts; else if all images and all others have different stems, or an image and the end
    of its path are named by an entry.

    Args:
        images: All images whose names have one stem.
        others: All files or entries that describe an image of this stem.
    """
    found: dict[InputRef, InputRef] = {}
    ordered, unused = sorted(images), sorted(others)
    for match in (_same_folder, _usual_folders, _end_of_path, _only_ones):
        found |= match([image for image in ordered if image not in found], unused)
        used = {*found.values()}
        unused = [other for other in unused if other not in used]
    yield from ((image, found.get(image)) for image in ordered)
    yield from ((None, other) for other in unused)


_Pairs = Iterator[tuple[InputRef, InputRef]]


def _same_folder(images: Sequence[InputRef], others: Sequence[InputRef]) -> _Pairs:
    by_folder = {posixpath.dirname(each.key): each for each in reversed(others)}
    for image in images:
        other = by_folder.get(posixpath.dirname(image.key))
        if other is not None:
            yield image, other


def _usual_folders(images: Sequence[InputRef], others: Sequence[InputRef]) -> _Pairs:
    by_folder = {_layout(each.key): each for each in reversed(others)}
    for image in images:
        other = by_folder.get(_layout(image.key))
        if other is not None:
            yield image, other


def _layout(key: str) -> tuple[str, ...]:
    names = posixpath.dirname(key).split("/")
    return tuple(name for name in names if name and name.lower() not in _FOLDERS)


def _end_of_path(images: Sequence[InputRef], others: Sequence[InputRef]) -> _Pairs:
    by_key = {other.key: other for other in reversed(others)}
    for image in images:
        names = image.key.split("/")
        ends = ("/".join(names[number:]) for number in range(len(names)))
        other = next((by_key[end] for end in ends if end in by_key), None)
        if other is not None:
            yield image, other


def _only_ones(images: Sequence[InputRef], others: Sequence[InputRef]) -> _Pairs:
    if len(images) == len(others) == 1:
        yield images[0], others[0]
