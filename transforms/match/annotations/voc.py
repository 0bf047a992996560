"""Annotations of PASCAL VOC: an XML file for each image."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from shardmill.transforms.match.annotations.boxes import Annotation, AnnotationError, Box

_SIDES = ("xmin", "ymin", "xmax", "ymax")
_MAX_SIDE = 1 << 24  # float32 has all integers up to here


def parse_voc(data: bytes) -> Annotation:
    """Return the boxes of an annotation of PASCAL VOC (devkit_doc.pdf of VOC2012, section 3).

    Sides are taken as they are: programs write both pixel numbers from 1, as PASCAL does, and
    distances from 0, and differ by half a pixel from either.

    Raises:
        AnnotationError: It is not XML, has a document type (with which entities would be declared),
            or an object has no name or no numeric sides.
    """
    try:
        parser = ET.XMLParser(target=_Builder())  # noqa: S314 - no document types
        root = ET.XML(data, parser)
    except (ET.ParseError, ValueError, LookupError) as error:  # of unknown encodings
        raise AnnotationError(f"it is not XML: {error}") from error
    if root.tag != "annotation":
        raise AnnotationError(f"its element is {root.tag!r} instead of 'annotation'")
    width, height = (_number(root.findtext(f"size/{side}"), 0) for side in ("width", "height"))
    if (width, height) == (1, 1):  # which would mean fractions
        width = height = 0
    return Annotation(int(width), int(height), [_box(each) for each in root.findall("object")])


class _Builder(ET.TreeBuilder):
    """Rejects document types, which may declare entities of any size or of other files."""

    def doctype(self, name: str, *_: Any) -> None:
        """Reject it."""
        raise AnnotationError(f"it declares the document type {name[:40]!r}")


def _box(item: ET.Element) -> Box:
    text = (item.findtext("name") or "").strip()
    left, upper, right, lower = (_number(item.findtext(f"bndbox/{side}")) for side in _SIDES)
    difficult, truncated = (_number(item.findtext(n), 0) == 1 for n in ("difficult", "truncated"))
    return Box(text, left, upper, right, lower, difficult, truncated)


def _number(text: str | None, default: float | None = None) -> float:
    """Return a number; raise AnnotationError if there is none and no default."""
    try:
        number = float(text or "")
    except ValueError:
        number = _MAX_SIDE
    if abs(number) < _MAX_SIDE:  # not NaN
        return number
    if default is None:
        raise AnnotationError(f"a side of a box is {text!r} instead of a number")
    return default
