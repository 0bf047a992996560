"""AnnotationSpec: which annotations images have; and the boxes of PASCAL VOC, YOLO and others."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree as ET

from blake3 import blake3

from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.example.serialize import FeatureValue, encode_example
from shardmill.schemas.refs import InputRef, MatchCounts, RejectedError
from shardmill.schemas.storage import resolve_links
from shardmill.schemas.text_file import TextError, decode_text, decode_xml
from shardmill.transforms.match.annotations import voc
from shardmill.transforms.match.annotations.boxes import Annotation, AnnotationError, Box
from shardmill.transforms.match.annotations.yolo import UNDECLARED, LineFormat, find_boxes
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.labels import check_label
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
_MAX_BYTES = 1 << 20  # of the boxes of an image: shuffles carry them


def attach(ref: InputRef, annotation: Annotation, labels: frozenset[str] | None = None) -> InputRef:
    """Return a reference with the boxes of its annotation, or rejected if they cannot be used.

    Args:
        ref: The reference.
        annotation: Its annotation.
        labels: The labels that boxes may have; None for any.
    """
    # As in keys and labels: an editor may write one class in NFC and in NFD.
    boxes = [box._replace(text=make_key(box.text)) for box in annotation.boxes]
    classes = sorted({box.text for box in boxes}, key=str.encode)
    try:
        for text in classes:
            check_label(text, labels)
    except RejectedError as error:
        return ref.rejected(error.error, error.message)
    fields: dict[str, FeatureValue] = {
        "box/size": (annotation.width, annotation.height),
        "box/outlines": annotation.outlines,
        "box/text": [box.text.encode() for box in boxes],
        "box/sides": [float(side) for box in boxes for side in box[1:5]],
        "box/flags": [int(flag) for box in boxes for flag in box[5:8]],
        "box/area": [_area(box) for box in boxes],
    }
    if annotation.image_id is not None:
        fields["coco_image_id"] = annotation.image_id
        fields["box/category_id"] = annotation.category_ids
    made = with_fields(ref, fields)
    if len(made.attached) > _MAX_BYTES:
        return ref.rejected("annotation", f"{len(boxes):,} boxes exceed {_MAX_BYTES:,} bytes")
    return made._replace(classes=tuple(classes))


def _area(box: Box) -> float:
    if box.area is None:
        return float((box.xmax - box.xmin) * (box.ymax - box.ymin))
    return float(box.area)


def with_attached(ref: InputRef, other: InputRef) -> InputRef:
    """Add another reference's feature values to a reference."""
    if not ref.attached:  # then nothing is parsed
        return ref._replace(attached=other.attached)
    return with_fields(
        ref, {k: feature.values for k, feature in parse_example(other.attached).items()}
    )


def with_fields(ref: InputRef, fields: Mapping[str, FeatureValue]) -> InputRef:
    """Add feature values, by field, to a reference."""
    values = {name: feature.values for name, feature in parse_example(ref.attached).items()}
    return ref._replace(attached=encode_example({**values, **fields}))


def parse_voc(data: bytes) -> Annotation:
    """Return the boxes of an annotation of PASCAL VOC.

    Raises:
        AnnotationError: It is not XML, has a document type (with which entities would be declared),
            or is not understood.
    """
    try:
        parser = ET.XMLParser(target=_Builder())  # noqa: S314 - no document types
        root = ET.XML(decode_xml(data), parser)
    except TextError as error:
        raise AnnotationError(f"it is {error}") from error
    except (ET.ParseError, ValueError) as error:
        raise AnnotationError(f"it is not XML: {error}") from error
    return voc.find_boxes(root)


class _Builder(ET.TreeBuilder):
    """Rejects document types, which may declare entities of any size or of other files."""

    def doctype(self, name: str, *_: Any) -> None:
        """Reject it."""
        raise AnnotationError(f"it declares the document type {name[:40]!r}")


def parse_yolo(
    data: bytes, names: Sequence[str], line_format: LineFormat = UNDECLARED
) -> Annotation:
    """Return the boxes of an annotation of YOLO, whose sides are fractions of the upright image.

    A line is ``CLASS X Y WIDTH HEIGHT`` with the center of the box, and perhaps more numbers, or
    ``CLASS X Y X Y X Y ...`` with the corners of an outline, whose box is taken: see ``yolo``.

    Args:
        data: The file.
        names: The classes by number.
        line_format: What is declared about the lines.

    Raises:
        AnnotationError: A line is neither, or its class has no name.
    """
    try:
        lines = decode_text(data).splitlines()
    except TextError as error:
        raise AnnotationError(f"it is {error}") from error
    classes = []
    numbers: dict[int, list[float]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            class_id, *values = [float(word) for word in line.split()]
        except ValueError:
            class_id, values = math.nan, []
        if not all(map(math.isfinite, [class_id, *values])):
            raise AnnotationError(f"line {number} is {line[:80]!r}, not CLASS X Y WIDTH HEIGHT")
        if not (class_id.is_integer() and 0 <= class_id < len(names)):
            raise AnnotationError(
                f"line {number} has the class {line.split()[0]}, --labels has {len(names)} lines"
            )
        classes.append(names[int(class_id)])
        numbers[number] = values
    sides, outlines = find_boxes(numbers, line_format)
    boxes = [Box(text, *box) for text, box in zip(classes, sides, strict=True)]
    return Annotation(1, 1, boxes, outlines)


@dataclass(frozen=True)
class AnnotationSpec:
    """Annotations of images; a small picklable value.

    Attributes:
        kind: ``voc`` or ``yolo``: a file for each image; ``coco``: files for many images; or
            ``masks`` or ``imagesets``.
        places: The folders of files that match all of them, or the files of ``coco``.
        names: The classes of ``yolo`` by number.
        line_format: What is declared about the lines of ``yolo``.
        labels: The labels that boxes may have; None for any.
        root: Folder that holds the images.
        task: Folder of the lists of ``imagesets``.
        coco_ids: Whether ids of ``coco`` become features.
    """

    kind: AnnotationSource
    places: tuple[MatchSpec, ...]
    names: tuple[str, ...] = ()
    line_format: LineFormat = UNDECLARED
    labels: frozenset[str] | None = None
    root: str = ""
    task: Literal["Main", "Segmentation"] = "Main"
    coco_ids: bool = False

    def is_annotation(self, ref: InputRef) -> bool:
        """Return whether a file is named like an annotation."""
        match = _NAMES[self.kind].fullmatch(ref.key)
        hidden = is_junk(ref.key.rpartition("/")[2])
        return match is not None and not hidden and (match.re.groups < 3 or match[2] == self.task)

    def check_number(self, files: int) -> MatchCounts:
        """Return a fatal count if no file is named like an annotation."""
        if files:
            return MatchCounts()
        expected = _WANTED[self.kind].format(task=self.task)
        places = ", ".join(place.input for place in self.places)
        flag = flag_of(self.kind)
        return MatchCounts(fatal=f"{flag} finds no {expected} in {places}: check the path.")

    def is_image(self, ref: InputRef) -> bool:
        """Return whether a matched image is one, and not a mask in the same folder."""
        if self.kind != "masks":
            return True
        masks, root = map(_real_folder, (self.places[0].input, self.root))
        if root.startswith(masks):  # they are next to the images
            return not self.is_annotation(ref)
        return not make_key(f"{root}{ref.key}").startswith(make_key(masks))

    def attach(self, ref: InputRef, file: InputRef, content: bytes) -> InputRef:
        """Attach the content of an annotation file to an image.

        Raises:
            AnnotationError: The file cannot be used.
        """
        if self.kind == "masks":
            made = with_fields(ref, {"mask_hash": blake3(content).hexdigest().encode()})
            return made._replace(mask=(file.uri, file.size, file.version))
        if self.kind == "voc":
            annotation = parse_voc(content)
        else:
            annotation = parse_yolo(content, self.names, self.line_format)
        return attach(ref, annotation, self.labels)

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
            if number > fewer:
                kinds.append((kind, number - fewer, key))
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
    return resolve_links(path).rstrip("/") + "/"
