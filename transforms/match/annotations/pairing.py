"""Pairs images with the files or entries that describe them, by their paths."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

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

    They belong together if an entry names the image as seen from the folder of its file; else if
    their paths or folders are the same; else if folders differ only in the names of usual layouts;
    else if an entry names the end of the path of one image; else if they are all of their stem.
    If several do equally, an image gets the first, rejected.

    Args:
        images: All images whose names have one stem.
        others: All files or entries that describe an image of this stem.
    """
    found: dict[InputRef, InputRef] = {}
    ordered, unused = sorted(images), sorted(others)
    are_only = len(ordered) == len(unused) == 1
    alike = [partial(_equal, name=each) for each in (str, posixpath.dirname, _layout)]
    rules: tuple[Callable[..., _Pairs], ...] = (_next_to, *alike, _end_of_path)
    for match in rules:
        found |= match([image for image in ordered if image not in found], unused)
        used = {*found.values()}
        unused = [other for other in unused if other not in used]
    if are_only and unused:
        found[ordered[0]] = unused.pop()
    yield from ((image, found.get(image)) for image in ordered)
    yield from ((None, other) for other in unused)


_Pairs = Iterator[tuple[InputRef, InputRef]]


def _by(names: Iterable[tuple[Any, InputRef]]) -> dict[Any, InputRef]:
    """Return what has each name: the first of several that say the same, else a rejected one."""
    found: dict[Any, list[InputRef]] = {}
    for name, ref in names:
        found.setdefault(name, []).append(ref)
    return {
        name: refs[0]
        if len({ref.attached or ref for ref in refs}) == 1
        else refs[0].rejected("no_annotation", f"{refs[1].uri} describes the image as well")
        for name, refs in found.items()
    }


def _equal(
    images: Sequence[InputRef], others: Sequence[InputRef], name: Callable[[str], Any]
) -> _Pairs:
    """Yield the pairs whose keys give the same name: the path, the folder or the layout."""
    by_name = _by((name(other.key), other) for other in others)
    return ((image, by_name[n]) for image in images if (n := name(image.key)) in by_name)


def _next_to(images: Sequence[InputRef], others: Sequence[InputRef]) -> _Pairs:
    by_uri = _by((posixpath.join(posixpath.dirname(o.uri), o.key), o) for o in others)
    return ((image, by_uri[image.uri]) for image in images if image.uri in by_uri)


def _layout(key: str) -> tuple[str, ...]:
    """Return the folders of a key, without those of usual layouts."""
    names = posixpath.dirname(key).split("/")
    return tuple(name for name in names if name and name.lower() not in _FOLDERS)


def _end_of_path(images: Sequence[InputRef], others: Sequence[InputRef]) -> _Pairs:
    by_key = _by((other.key, other) for other in others)
    ends: dict[str, list[InputRef]] = {}
    for image in images:
        names = image.key.split("/")
        end = next((e for n in range(len(names)) if (e := "/".join(names[n:])) in by_key), None)
        if end is not None:
            ends.setdefault(end, []).append(image)
    return ((images[0], by_key[end]) for end, images in ends.items() if len(images) == 1)
