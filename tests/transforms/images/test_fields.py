"""Boxes and masks move with the pixels: drawn in the source, they are found in the record."""

import io
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from shardmill.transforms import ImageSpec, ResizeSpec
from shardmill.transforms.images.convert import convert_image
from shardmill.transforms.images.fields import convert_mask, place_boxes
from shardmill.transforms.images.resize import RESIZES, Size
from tests.conftest import examples
from tests.support.pixel_tools import ORIENTATION, png


def annotation(boxes, size):
    """The fields of boxes (xmin, ymin, xmax, ymax) of one class."""
    fields = {
        "size": list(size),
        "outlines": [0],
        "sides": [float(side) for box in boxes for side in box],
    }
    others = {name: [1.0] * len(boxes) for name in ("text", "class_id", "area")}
    fields |= {"flags": [0] * 3 * len(boxes), **others}
    return {f"box/{name}": values for name, values in fields.items()}


def drawn(size, box, orientation, upright):
    """A TIFF with a white box on black, and the same as a mask; the box is one of either frame."""
    shown = size[::-1] if orientation >= 5 and upright else size
    pixels = np.zeros((shown[1], shown[0]), np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    image = Image.fromarray(pixels)
    if upright:  # the file holds what a viewer rotates back
        back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
        image = image.transpose(Image.Transpose(back[orientation])) if orientation > 1 else image
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    buffer, mask = io.BytesIO(), io.BytesIO()
    image.save(buffer, "PNG", exif=exif)
    Image.fromarray(pixels // 255 * 200).save(mask, "PNG")
    return buffer.getvalue(), mask.getvalue()


HALF = 255 / 2


def edges(profile):
    """First and last edge of a bright range: where a resized edge has half of its height."""
    bright = np.flatnonzero(profile >= HALF)
    found = []
    for at, outside in ((bright[0], bright[0] - 1), (bright[-1], bright[-1] + 1)):
        middle = at + 0.5
        if 0 <= outside < len(profile):
            share = (profile[at] - HALF) / (profile[at] - profile[outside])
            found.append(middle + share * (outside - at))
        else:  # in the last pixel, or beyond
            found.append(middle + (profile[at] / 255 - 0.5) * (outside - at))
    return found


@st.composite
def cases(draw):
    size = draw(st.tuples(st.integers(24, 90), st.integers(24, 90)))
    orientation, upright = draw(st.integers(1, 8)), draw(st.booleans())
    width, height = size[::-1] if orientation >= 5 and upright else size
    left, upper = draw(st.integers(0, width - 12)), draw(st.integers(0, height - 12))
    right = draw(st.integers(left + 10, width))
    lower = draw(st.integers(upper + 10, height))
    target = Size(*draw(st.tuples(st.integers(20, 120), st.integers(20, 120))))
    spec = ResizeSpec(
        image_size=target, resize=draw(st.sampled_from(RESIZES)), only_shrink=draw(st.booleans())
    )
    return size, (left, upper, right, lower), orientation, upright, spec


@settings(max_examples=examples(400), deadline=None)
@given(cases())
@example(
    (
        (24, 24),
        (0, 0, 10, 10),
        1,
        False,
        ResizeSpec(image_size=Size(21, 110), resize="crop", only_shrink=False),
    )
)
def test_boxes_and_masks_are_where_the_pixels_are(case):
    """For each way to resize, orientation and frame, within half a pixel of the record."""
    size, box, orientation, upright, resize = case
    data, mask = drawn(size, box, orientation, upright)
    spec = ImageSpec(**vars(resize), encoding="raw", channels=1)
    image = convert_image(data, spec)
    frame = "upright" if upright else "stored"
    given_size = size[::-1] if orientation >= 5 and upright else size
    placed = place_boxes(annotation([box], given_size), image.geometry, frame)
    width, height = image.size
    pixels = np.frombuffer(image.data, np.uint8).reshape(height, width).astype(float)
    moved = np.asarray(Image.open(io.BytesIO(convert_mask(mask, image.geometry, frame))))
    assert moved.shape == (height, width)
    assert set(np.unique(moved)) <= {0, 200}
    if not placed["boxes"]:
        assert placed["boxes_cropped"] == 1
        assert pixels.max() < 255
        return
    sides = [placed[f"box/{side}"][0] for side in ("xmin", "ymin", "xmax", "ymax")]
    left, upper, right, lower = np.multiply(sides, (width, height, width, height))
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height
    for picture in (pixels, moved / 200 * 255):
        row, column = picture.max(axis=0), picture.max(axis=1)
        if row.max() < 255:  # a box that is thin, or of which the border leaves a slope only
            continue
        assert np.abs(np.subtract(edges(row), (left, right))).max() <= 0.5 + 1e-6
        assert np.abs(np.subtract(edges(column), (upper, lower))).max() <= 0.5 + 1e-6


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_classes_of_grey_masks_of_few_bits(depth):
    """Viewers spread them over all shades of grey."""
    classes = np.arange(64).reshape(4, 16) % min(1 << depth, 7)
    rows = b""
    for row in classes:
        bits = "".join(format(value, f"0{depth}b") for value in row)
        rows += b"\0" + bytes(int(bits[n : n + 8], 2) for n in range(0, len(bits), 8))
    geometry = ResizeSpec(image_size=Size(1, 1), resize="none").geometry(Size(16, 4), 1)
    found = convert_mask(png(16, 4, depth, 0, rows), geometry)
    assert np.array_equal(Image.open(io.BytesIO(found)), classes)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_of_an_annotation_decides_its_frame(orientation):
    """Only where the rotation swaps the sides; a size that fits neither is ignored."""
    geometry = ResizeSpec(image_size=Size(40, 40)).geometry(Size(80, 60), orientation)
    swapped = orientation >= 5
    stored, upright = (80, 60), (60, 80) if swapped else (80, 60)
    cases = {stored: (swapped, False), upright: (False, False), (640, 480): (False, True)}
    for size, (is_stored, differs) in {
        **cases,
        upright: (False, False),
        (0, 0): (False, False),
    }.items():
        placed = place_boxes(annotation([(6, 6, 18, 18)], size), geometry)
        assert placed["boxes_stored_frame"] == is_stored, size
        assert placed["boxes_size_differs"] == differs, size
    square = ResizeSpec(image_size=Size(40, 40)).geometry(Size(60, 60), orientation)
    assert not place_boxes(annotation([(6, 6, 18, 18)], (60, 60)), square)["boxes_stored_frame"]


def test_boxes_that_are_none_are_counted_by_reason():
    """Each is left out alone, with its class; what reaches outside is clipped."""
    geometry = ResizeSpec(image_size=Size(50, 50), resize="crop").geometry(
        Size(100, 50), 1
    )  # keeps columns 25 to 75
    boxes = {
        (30, 10, 40, 20): "kept",
        (40, -5, 50, 20): "boxes_clipped",
        (120, 10, 130, 20): "boxes_outside",
        (40, 20, 40, 30): "boxes_empty",
        (60, 30, 50, 40): "boxes_swapped",
        (50, 40, 60, 30): "boxes_swapped",
        (math.nan, 1, 2, 3): "boxes_empty",
        (2, 10, 20, 20): "boxes_cropped",
        (20, 10, 30, 20): "kept",
    }
    fields = annotation([*boxes], (100, 50)) | {"box/text": [*boxes.values()]}
    placed = place_boxes(fields, geometry)
    for name in ("boxes_outside", "boxes_empty", "boxes_swapped", "boxes_cropped", "boxes_clipped"):
        assert placed[name] == list(boxes.values()).count(name)
    assert placed["box/text"] == ["kept", "boxes_clipped", "kept"]
    assert placed["boxes"] == len(placed["box/area"]) == 3
    assert placed["box/xmin"] == pytest.approx([5 / 50, 15 / 50, 0])
    assert placed["box/xmax"] == pytest.approx([15 / 50, 25 / 50, 5 / 50])


def test_fractions_are_those_of_the_upright_image():
    geometry = ResizeSpec(image_size=Size(40, 40)).geometry(Size(80, 60), 6)
    placed = place_boxes(annotation([(0.25, 0.5, 0.5, 1.0)], (1, 1)), geometry)
    sides = [placed[f"box/{side}"][0] for side in ("xmin", "ymin", "xmax", "ymax")]
    assert sides == pytest.approx([0.25, 0.5, 0.5, 1.0])
