"""Elements of PASCAL VOC's XML (devkit_doc.pdf of VOC2012, section 3) as boxes.

What may be a box in a form that is not understood is an error, so that no image loses its boxes.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from shardmill.transforms.match.annotations.boxes import Annotation, AnnotationError, Box

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


def find_boxes(root: ET.Element) -> Annotation:
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
