"""AnnotationSpec: which annotations images have; and the boxes of PASCAL VOC and YOLO.

Of PASCAL VOC's XML (devkit_doc.pdf of VOC2012, section 3), what may be a box in a form that is not
understood is an error, so that no image loses its boxes.

A line of YOLO's label files has the class, and then one of these, as Ultralytics and other tools
write them:

    box           x y width height
    detection     x y width height confidence
    track         x y width height [confidence] id
    pose          x y width height, then x y or x y visibility of each key point
    outline       x y of each point; four of them are an oriented box

Only ``data.yaml`` says which. Ultralytics requires ``kpt_shape`` for poses, but outlines have no
such mark, and other tools write poses without it. So lines without a declaration are tested: a box
must be in the image with its key points near it, and an outline must look like one. If a line may
be either, the annotation is rejected, since a guess would give wrong boxes.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree as ET

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from shardmill.schemas.errors import UsageError
from shardmill.schemas.example.parse import parse_example
from shardmill.schemas.example.serialize import FeatureValue, encode_example
from shardmill.schemas.refs import InputRef, MatchCounts, RejectedError
from shardmill.schemas.storage import resolve_links
from shardmill.schemas.text_file import TextError, decode_text, decode_xml
from shardmill.transforms.match.inputs import MatchSpec
from shardmill.transforms.match.labels import check_label
from shardmill.transforms.match.walk import is_junk, make_key


class Box(NamedTuple):
    """A box in the frame of its annotation.

    Attributes:
        text: Its class.
        xmin: Left side, in pixels or as a fraction of the width.
        ymin: Upper side.
        xmax: Right side.
        ymax: Lower side.
        difficult: Whether the object is hard to recognize.
        truncated: Whether the object reaches outside of the box or the image.
        is_crowd: Whether the box is around several objects.
        area: Pixels of the object; None for those of the box.
    """

    text: str
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    difficult: bool = False
    truncated: bool = False
    is_crowd: bool = False
    area: float | None = None


class Annotation(NamedTuple):
    """What an annotation says of its image.

    Attributes:
        width: Width of the image in pixels; 0 if it is unknown, 1 if sides are fractions.
        height: Its height.
        boxes: Its boxes.
        outlines: Number of objects whose outlines are in it too.
        image_id: The number of the image in COCO; None if ids are not to be features.
        category_ids: The classes of its boxes as numbers of COCO, if ids are to be features.
    """

    width: int = 0
    height: int = 0
    boxes: Sequence[Box] = ()
    outlines: int = 0
    image_id: int | None = None
    category_ids: Sequence[int] = ()


class AnnotationError(Exception):
    """An annotation that cannot be used; the text says why."""


_SIDES = ("xmin", "ymin", "xmax", "ymax")
_MAX_SIDE = 1 << 24  # float32 has all integers up to here
# Each element of an annotation that is not an object, also where it has names and sizes.
_ABOUT_IMAGE = frozenset(
    {"folder", "filename", "path", "source", "owner", "size", "imagesize", "segmented"}
)
# Elements, in any case of letters, that may make their parent an object.
_OF_OBJECTS = frozenset(
    {
        "bndbox",
        "robndbox",
        "bbox",
        "box",
        "class",
        "label",
        "name",
        "object",
        "point",
        "points",
        "polygon",
        "pt",
        *_SIDES,
        "cx",
        "cy",
        "x",
        "y",
        "w",
        "h",
        "left",
        "top",
        "right",
        "bottom",
    }
)
_YES = frozenset({"true", "yes"})


def _find_voc_boxes(root: ET.Element) -> Annotation:
    """Return the boxes of the objects of an annotation.

    Sides are taken as they are: programs write both pixel numbers from 1, as PASCAL does, and
    distances from 0, and differ by half a pixel from either.

    Raises:
        AnnotationError: It is another element, an object has no name or no numeric sides, or an
            element that is not understood may be an object.
    """
    namespace, is_qualified, name = root.tag.rpartition("}")
    if name != "annotation":
        raise AnnotationError(f"its element is {root.tag!r} instead of 'annotation'")
    if is_qualified:  # the namespace of all that is understood
        for element in root.iter():
            element.tag = element.tag.removeprefix(f"{namespace}}}")
    boxes = []
    for element in root:
        if element.tag == "object":
            boxes.append(_box(element))
        elif element.tag not in _ABOUT_IMAGE and _may_be_object(element):
            raise AnnotationError(f"it has the element {element.tag!r:.80} instead of 'object'")
    size = root.find("size")
    width, height = (_size(size, side) for side in ("width", "height"))
    if (width, height) == (1, 1):  # which would mean fractions
        width = height = 0
    return Annotation(width, height, boxes)


def _may_be_object(element: ET.Element) -> bool:
    names = [part.tag.rpartition("}")[2].lower() for part in element.iter()]
    return names[0] in _OF_OBJECTS or not _OF_OBJECTS.isdisjoint(names[1:])


def _box(item: ET.Element) -> Box:
    for element in item:
        if element.tag.startswith("{") or element.tag == "object":
            raise AnnotationError(f"an object has the element {element.tag!r:.80}")
    text = (_only(item, "name").text or "").strip()
    frame = _only(item, "bndbox")
    left, upper, right, lower = (_side(_only(frame, side).text) for side in _SIDES)
    return Box(text, left, upper, right, lower, _flag(item, "difficult"), _flag(item, "truncated"))


def _only(item: ET.Element, name: str) -> ET.Element:
    """Return the only element of a name.

    Raises:
        AnnotationError: There is none, or there are several.
    """
    elements = item.findall(name)
    if len(elements) != 1:
        number = len(elements) or "no"
        raise AnnotationError(f"{item.tag!r} has {number} elements {name!r} instead of one")
    return elements[0]


def _side(text: str | None) -> float:
    number = _number(text)
    if number is None:
        raise AnnotationError(f"a side of a box is {text!r:.80} instead of a number")
    return number


def _size(size: ET.Element | None, side: str) -> int:
    """Return a side of the image; 0 if it is unknown."""
    text = None if size is None else size.findtext(side)
    return int(_number(text) or 0)


def _flag(item: ET.Element, name: str) -> bool:
    """Return whether a flag is set; programs write it as a number or as a word."""
    text = (item.findtext(name) or "").strip().lower()
    return text in _YES or _number(text) == 1


def _number(text: str | None) -> float | None:
    """Parse a number; return None if the text is not one that float32 holds."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if abs(number) < _MAX_SIDE else None  # not NaN


Sides = tuple[float, float, float, float]  # xmin, ymin, xmax, ymax
Shape = Literal["box", "outline", ""]  # of a line; empty if it may be either
Points = npt.NDArray[np.float64]  # of shape [points, 2]
_TASKS: dict[str, Shape] = {"detect": "box", "pose": "box", "segment": "outline", "obb": "outline"}
_BOX = 4  # numbers
_SCORED_BOX = 5  # numbers, with a confidence or an id
_SLACK = 0.02  # of the image: how far a box may reach outside of it; of an outline: of its corners
_NEAR = 1.5  # sizes of the box: how far key points may be from its center
_BEYOND = 0.5  # of the image: how far an outline may reach outside of it
_TINY = 1e-9  # area or length, as a fraction of the image
_CORNERS = 4  # points of an oriented box
_COMPACT = 6  # sizes of points that are all in a small part of the box
_MANY = 9  # points: this many random ones rarely form an outline
_LARGE = 64  # points: more are not searched for crossings
_CENTRAL = 0.5  # of half the extent: how far from the center the first point of an outline is
_LONGEST = 1.2  # times the longest gap between other points


@dataclass(frozen=True)
class LineFormat:
    """What ``data.yaml`` says of the lines of label files.

    Attributes:
        shape: The shape of all lines, or an empty text if it is not declared.
        key_points: Numbers after the box, for the key points; 0 if that is not said.
    """

    shape: Shape = ""
    key_points: int = 0

    @classmethod
    def parse(cls, text: str, source: str) -> LineFormat:
        """Return the line format that a file of class names declares; only YAML files declare one.

        Raises:
            UsageError: ``kpt_shape`` is not a number of key points and 2 or 3.
        """
        if not source.lower().endswith((".yaml", ".yml")):
            return cls()
        import yaml  # slow to import

        content = yaml.safe_load(text)
        shape = content.get("kpt_shape")
        if shape is not None:
            is_shape = isinstance(shape, list) and [type(number) for number in shape] == [int, int]
            if not is_shape or shape[0] < 1 or shape[1] not in (2, 3):
                raise UsageError(
                    f"--labels={source} has the kpt_shape {shape!r:.80}: give the number of key "
                    "points, and 2 or 3 values of each, as in [17, 3]."
                )
            return cls("box", shape[0] * shape[1])
        return cls(_TASKS.get(str(content.get("task")), ""))


UNDECLARED = LineFormat()
OUTLINES = LineFormat("outline")


def _find_yolo_boxes(
    lines: Mapping[int, Sequence[float]], line_format: LineFormat
) -> tuple[list[Sides], int]:
    """Return the box of each line of a file, and how many of them are around outlines.

    Args:
        lines: The numbers after the class, by the number of the line.
        line_format: What is declared about the lines.

    Raises:
        AnnotationError: A line is neither a box nor an outline, or may be either.
    """
    shapes = {line: _shape_of(line, numbers, line_format) for line, numbers in lines.items()}
    # A file has lines of one kind: those that are clear decide about the others.
    clear = {shape for line, shape in shapes.items() if shape and len(lines[line]) > _SCORED_BOX}
    boxes = []
    outlines = 0
    for line, numbers in lines.items():
        shape = shapes[line]
        if not shape and len(clear) == 1:
            (shape,) = clear
        if not shape:
            raise AnnotationError(
                f"line {line} has {len(numbers)} numbers after its class, which may be a box with "
                "key points or an outline: set kpt_shape, or task to detect, pose, segment or obb, "
                "in data.yaml, and give that as --labels"
            )
        if shape == "box":
            x, y, width, height = numbers[:_BOX]
            sides = x - width / 2, y - height / 2, x + width / 2, y + height / 2
        else:
            points = _points_of(numbers)
            (xmin, ymin), (xmax, ymax) = points.min(0).tolist(), points.max(0).tolist()
            sides = xmin, ymin, xmax, ymax
            outlines += 1
        boxes.append(sides)
    return boxes, outlines


def _shape_of(line: int, numbers: Sequence[float], line_format: LineFormat) -> Shape:
    """Return the shape of a line, or an empty text if it may be a box or an outline.

    Raises:
        AnnotationError: It is neither.
    """
    count = len(numbers)
    # Where outlines are declared, a fifth number may be an angle.
    is_scored = count == _SCORED_BOX and line_format.shape != "outline" and _is_score(numbers[-1])
    if count == _BOX or is_scored:
        return "box"
    if count <= _SCORED_BOX:
        raise _malformed(line, numbers)
    key_points = line_format.key_points
    if key_points and count - _BOX - key_points not in (0, 1, 2):  # and a confidence, and an id
        raise AnnotationError(
            f"line {line} has {count} numbers after its class, and by the kpt_shape of data.yaml a "
            f"box and {key_points} numbers of key points: correct kpt_shape, or the line"
        )
    if line_format.shape == "box":
        return "box"
    is_even = count % 2 == 0
    if line_format.shape == "outline" or not _may_be_box(numbers):
        if not (is_even and _is_inside(numbers)):
            raise _malformed(line, numbers)
        return "outline"
    points = _points_of(numbers)
    if not _is_inside(numbers) or _area(points) < _TINY or _has_visibilities(numbers):
        return "box"
    if is_even and _looks_like_outline(points):
        return "outline"
    return ""


def _malformed(line: int, numbers: Sequence[float]) -> AnnotationError:
    text = " ".join(map(repr, numbers))
    return AnnotationError(
        f"line {line} has {text[:80]} after its class, not X Y WIDTH HEIGHT or points"
    )


def _is_score(number: float) -> bool:
    """Return whether a number may be a confidence or the id of a track."""
    return 0 <= number <= 1 or number.is_integer()


def _is_inside(numbers: Sequence[float]) -> bool:
    """Return whether numbers may be sides of an outline, which may reach outside of the image."""
    return min(numbers) >= -_BEYOND and max(numbers) <= 1 + _BEYOND


def _points_of(numbers: Sequence[float]) -> Points:
    """Return the points of an outline, without what may follow them."""
    return np.reshape(numbers[: len(numbers) // 2 * 2], (-1, 2))


def _may_be_box(numbers: Sequence[float]) -> bool:
    """Return whether a line may be a box, with key points, a confidence or an id after it."""
    x, y, width, height = numbers[:_BOX]
    for center, size in ((x, width), (y, height)):
        if size <= 0 or center - size / 2 < -_SLACK or center + size / 2 > 1 + _SLACK:
            return False
    rest = np.array(numbers[_BOX:])
    tails = [rest]
    if _is_score(rest[-1]):
        tails.append(rest[:-1])
        if 0 <= rest[-2] <= 1:
            tails.append(rest[:-2])
    readings = [
        tail.reshape(-1, dimensions)
        for tail in tails
        for dimensions in (2, 3)
        if len(tail) % dimensions == 0
    ]
    return any(_are_near(points, numbers) for points in readings)


def _are_near(points: Points, box: Sequence[float]) -> bool:
    """Return whether all key points that are not 0 0, which means unknown, are near their box."""
    x, y, width, height = box[:_BOX]
    is_near = abs(points[:, 0] - x) <= _NEAR * width
    is_near &= abs(points[:, 1] - y) <= _NEAR * height
    is_unknown = (points[:, :2] == 0).all(axis=1)
    return bool((is_near | is_unknown).all())


def _has_visibilities(numbers: Sequence[float]) -> bool:
    """Return whether each third number after a box is 0, 1 or 2.

    Of few points that may be chance: sides of an outline are 0 or 1 at the edges of the image.
    """
    rest = numbers[_BOX:]
    is_enough = len(numbers) % 2 == 1 or len(rest) > _MANY
    return is_enough and len(rest) % 3 == 0 and set(rest[2::3]) <= {0, 1, 2}


def _looks_like_outline(points: Points) -> bool:
    """Return whether points that may be a box with key points are an outline nevertheless.

    As a box, the first point is its center, and the second one its size. Rates of errors for random
    boxes with key points, and for random outlines, are those of the tests.
    """
    count, extent = len(points), np.ptp(points, axis=0)
    if count == _CORNERS:
        difference = abs(points[0] - points[1] + points[2] - points[3])
        if (difference <= _SLACK * extent).all():
            return True  # a parallelogram
    if count >= _CORNERS and (extent < points[1] / _COMPACT).all():
        return True  # all points, also the size, are in a small part of the box
    if count < _MANY:
        return False
    others = points[2:]
    center = (others.min(0) + others.max(0)) / 2
    offset = abs(points[0] - center) / np.maximum(np.ptp(others, axis=0) / 2, _TINY)
    if offset.max() < _CENTRAL:
        return False  # no point of an edge
    gaps = np.linalg.norm(np.roll(points, -1, axis=0) - points, axis=1)
    if gaps[:2].max() > _LONGEST * gaps[2:].max():
        return False  # the second point is far from its neighbours
    return count > _LARGE or not _crosses_itself(points)


def _area(points: Points) -> float:
    x, y = points.T
    return float(abs((x * np.roll(y, -1) - np.roll(x, -1) * y).sum()) / 2)


def _crosses_itself(points: Points) -> bool:
    """Return whether two edges of an outline cross."""
    starts, ends = points, np.roll(points, -1, axis=0)

    def side(ends_of: Points) -> Points:
        """Return on which side of each edge each point is: above, on or below 0."""
        edges = (ends - starts)[:, None]
        offsets = ends_of[None] - starts[:, None]
        product: Points = edges[..., 0] * offsets[..., 1] - edges[..., 1] * offsets[..., 0]
        return product

    divides = side(starts) * side(ends) < 0  # [edge, other edge]
    return bool((divides & divides.T).any())


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
        "box/area": [_box_area(box) for box in boxes],
    }
    if annotation.image_id is not None:
        fields["coco_image_id"] = annotation.image_id
        fields["box/category_id"] = annotation.category_ids
    made = with_fields(ref, fields)
    if len(made.attached) > _MAX_BYTES:
        return ref.rejected("annotation", f"{len(boxes):,} boxes exceed {_MAX_BYTES:,} bytes")
    return made._replace(classes=tuple(classes))


def _box_area(box: Box) -> float:
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
    return _find_voc_boxes(root)


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
    sides, outlines = _find_yolo_boxes(numbers, line_format)
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
