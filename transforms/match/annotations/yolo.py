"""Lines of YOLO's label files: which of their numbers are the box.

A line has the class, and then one of these, as Ultralytics and other tools write them:

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardmill.schemas.errors import UsageError
from shardmill.transforms.match.annotations.boxes import AnnotationError

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


def find_boxes(
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
    return "outline" if is_even and _looks_like_outline(points) else ""


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
