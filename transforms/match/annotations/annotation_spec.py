"""AnnotationSpec: which annotations images have, and what the names of their files are."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from typing import Literal

from blake3 import blake3

from shardmill.schemas.errors.catalogue import coded
from shardmill.schemas.refs import InputRef, MatchCounts
from shardmill.schemas.storage import scheme_of
from shardmill.transforms.match.annotations.boxes import (
    attach,
    parse_voc,
    parse_yolo,
    with_fields,
)
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.walk import is_junk, make_key

AnnotationKind = Literal["voc", "yolo", "coco"]
# Besides files with boxes: masks, and PASCAL VOC's lists of the images of each split.
AnnotationSource = Literal[AnnotationKind, "masks", "imagesets"]
_NAMES: dict[str, re.Pattern[str]] = {
    "voc": re.compile(r".*\.xml", re.IGNORECASE),
    "yolo": re.compile(r".*\.txt", re.IGNORECASE),
    "masks": re.compile(r".*\.(png|bmp|gif|tiff?)", re.IGNORECASE),
    "imagesets": re.compile(r"(.*/)?ImageSets/(Main|Segmentation)/(train|val|test)\.txt"),
}
_FLAGS = {"masks": "--masks", "imagesets": "--splits=imagesets"}  # others are of --annotations
_WANTED = {  # for messages
    "voc": ".xml files",
    "yolo": ".txt files",
    "masks": "PNG, GIF, BMP or TIFF files",
    "imagesets": "train.txt, val.txt or test.txt in ImageSets/{task}",
}
_SUFFIXES = {"voc": ".xml", "yolo": ".txt", "coco": ".json"}  # of files that are skipped as images


@dataclass(frozen=True)
class AnnotationSpec:
    """Annotations of images; a small picklable value.

    Attributes:
        kind: ``voc`` or ``yolo``: a file for each image; ``coco``: files for many images; or
            ``masks`` or ``imagesets``.
        places: The folders of files that match all of them, or the files of ``coco``.
        names: The classes of ``yolo`` by number.
        labels: The labels that boxes may have; None for any.
        root: Folder that holds the images.
        task: Folder of the lists of ``imagesets``.
    """

    kind: AnnotationSource
    places: tuple[MatchSpec, ...]
    names: tuple[str, ...] = ()
    labels: frozenset[str] | None = None
    root: str = ""
    task: Literal["Main", "Segmentation"] = "Main"

    def is_annotation(self, ref: InputRef) -> bool:
        """Return whether a file is named like an annotation."""
        match = _NAMES[self.kind].fullmatch(ref.key)
        hidden = is_junk(ref.key.rpartition("/")[2])
        return match is not None and not hidden and (match.re.groups < 3 or match[2] == self.task)

    def check_number(self, files: int) -> MatchCounts:
        """Return what makes the input unusable if no file is named like an annotation."""
        if files:
            return MatchCounts()
        wanted = _WANTED[self.kind].format(task=self.task)
        places = ", ".join(place.input for place in self.places)
        flag = flag_of(self.kind)
        return MatchCounts(fatal=coded("annotations-none", flag=flag, wanted=wanted, place=places))

    def is_image(self, ref: InputRef) -> bool:
        """Return whether a matched image is one, and not a mask in the same folder."""
        if self.kind != "masks":
            return True
        masks, root = map(_real_folder, (self.places[0].input, self.root))
        if root.startswith(masks):  # they are next to the images
            return not self.is_annotation(ref)
        return not make_key(f"{root}{ref.key}").startswith(make_key(masks))

    def attach(self, ref: InputRef, file: InputRef, content: bytes) -> InputRef:
        """Return an image with what a file says of it.

        Raises:
            AnnotationError: The file cannot be used.
        """
        if self.kind == "masks":
            made = with_fields(ref, {"mask_hash": blake3(content).hexdigest().encode()})
            return made._replace(mask=(file.uri, file.size, file.version))
        found = parse_voc(content) if self.kind == "voc" else parse_yolo(content, self.names)
        return attach(ref, found, self.labels)

    def without_files(self, counts: MatchCounts) -> MatchCounts:
        """Return the counts of the images' input without the skipped files that are annotations."""
        inside = [place.input for place in self.places if self._is_inside(place.input)]
        suffix = _SUFFIXES.get(self.kind, "") if inside else ""
        kinds = []
        for kind, number, key in counts.kinds:
            fewer = 0 if kind != suffix else number
            if self.kind == "coco":
                fewer = min(fewer, len(inside))
            counts = counts._replace(skipped=counts.skipped - fewer)
            kinds += [(kind, number - fewer, key)] if number > fewer else []
        return counts._replace(kinds=tuple(kinds))

    def _is_inside(self, path: str) -> bool:
        """Return whether a folder or file is in the folder of the images, or that in the folder."""
        one, other = map(_real_folder, (path, self.root))
        return one.startswith(other) or other.startswith(one)


def flag_of(kind: AnnotationSource) -> str:
    """Return the flag that names files of a kind."""
    return _FLAGS.get(kind, f"--annotations={kind}")


@functools.cache
def _real_folder(path: str) -> str:
    """Return a path without links, and with a slash at its end."""
    return f"{(path if scheme_of(path) else os.path.realpath(path)).rstrip('/')}/"
