"""Sizes of resized images, and the sizes that JPEGs are decoded at."""

import io

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from shardmill.transforms import ImageSpec, ResizeSpec
from shardmill.transforms.images.convert import convert_image
from shardmill.transforms.images.decode import decode_image
from shardmill.transforms.images.resize import MAX_SIDE, RESIZES, Size, draft_size, parse_image_size
from tests.conftest import examples
from tests.support.pixel_tools import EXIF_SIDES, ORIENTATION, as_array, saved, sized

sides = st.integers(1, MAX_SIDE)
sizes = st.builds(Size, sides, sides)
small = st.builds(Size, st.integers(1, 9), st.integers(1, 9))  # where rounding decides
ways = st.sampled_from(RESIZES)


@example(Size(1, 3), Size(2, 4), "fit")  # 1.33 x 4 rounds to a width that is not larger
@given(small | sizes, small | sizes, ways)
def test_only_shrink_never_enlarges(source, target, way):
    scaled = ResizeSpec(image_size=target, resize=way, only_shrink=True).scaled(source)
    assert scaled.width <= source.width
    assert scaled.height <= source.height
    freely = ResizeSpec(image_size=target, resize=way).scaled(source)
    if freely.width <= source.width and freely.height <= source.height:
        assert scaled == freely


@pytest.mark.parametrize(
    ("way", "source", "scaled"),
    [
        ("fit", (400, 300), (224, 168)),
        ("crop", (400, 300), (299, 224)),
        ("fit", (3, 1000), (1, 224)),  # 0.67 rounds to 1
        ("fit", (1, 1000), (1, 224)),  # 0.22 would vanish
        ("crop", (500, 333), (336, 224)),  # 336.3
        ("fit", (64, 1), (224, 4)),  # 3.5 rounds up
    ],
)
def test_known_sizes(way, source, scaled):
    assert ResizeSpec(image_size=Size(224, 224), resize=way).scaled(Size(*source)) == scaled


@given(sizes, sizes, st.floats(1, 64))
def test_draft_keeps_the_gap_and_is_used_whenever_possible(source, scaled, gap):
    least = draft_size(source, scaled, gap)
    in_force = max(gap, 4.0) if min(scaled) < 64 else gap
    room = min(source.width / (scaled.width * in_force), source.height / (scaled.height * in_force))
    if room < 2:
        assert least is None
    if least is None:  # next to the bound, or where the result is small, rounding decides
        assert room < 2.001 or min(scaled) * in_force <= 500
        return
    # libjpeg decodes at the smallest of 1/1, 1/2, 1/4, 1/8 that is not below this size.
    ratio = min(source.width // least.width, source.height // least.height)
    step = max(s for s in (1, 2, 4, 8) if s <= ratio)
    assert source.width / step >= scaled.width * in_force
    assert source.height / step >= scaled.height * in_force


def test_gaps_of_zero_and_of_extreme_size():
    assert draft_size(Size(4000, 3000), Size(100, 100), 0) is None
    assert draft_size(Size(4000, 3000), Size(100, 100), 1e308) is None
    assert draft_size(Size(4000, 3000), Size(100, 100), 3) == (300, 300)
    assert draft_size(Size(4000, 3000), Size(90, 63), 3) == (360, 252)  # small: 4 times
    assert draft_size(Size(4000, 3000), Size(90, 64), 3) == (270, 192)
    assert draft_size(Size(1200, 1200), Size(200, 200), 3) == (600, 600)  # exactly half
    assert draft_size(Size(1200, 1200), Size(100, 100), 3.001) == (301, 301)  # 1/4 would be less


@given(st.integers(0, 999_999_999), st.integers(0, 999_999_999), st.sampled_from("xX"))
def test_image_sizes_are_height_by_width(height, width, x):
    assert parse_image_size(f"{height}{x}{width}") == Size(width=width, height=height)
    assert parse_image_size(str(height)) == Size(height, height)


@pytest.fixture(scope="module")
def large_jpeg() -> bytes:
    return saved(Image.new("RGB", (2001, 1501), (10, 120, 230)), "JPEG")


@pytest.mark.parametrize(
    ("interpolation", "gap", "decoded_width"),
    [
        ("bilinear", 3.0, 501),  # 1/4: 500.25 >= 3 x 100
        ("bicubic", 3.0, 501),
        ("lanczos", 3.0, 501),
        ("box", 3.0, 501),
        ("bilinear", 1.0, 251),  # 1/8
        ("bilinear", 6.0, 1001),  # 1/2
        ("bilinear", 0.0, 2001),
        ("nearest", 3.0, 2001),
        ("hamming", 3.0, 2001),
    ],
)
def test_size_that_libjpeg_decodes_at(large_jpeg, interpolation, gap, decoded_width):
    spec = sized(100, 80, interpolation=interpolation, reducing_gap=gap)
    decoded = decode_image(large_jpeg, spec, spec.gap)
    assert decoded.image.width == decoded_width
    assert decoded.geometry.upright == (2001, 1501)
    assert decoded.box[2] == pytest.approx(2001 / round(2001 / decoded_width))


@given(
    st.integers(1, 700),
    st.integers(1, 700),
    st.integers(1, 90),
    st.integers(1, 90),
    ways,
    st.booleans(),
    st.sampled_from([0.0, 1.0, 3.0]),
)
def test_encoded_images_have_the_requested_size(
    width, height, target_width, target_height, way, only_shrink, gap
):
    data = saved(Image.new("L", (width, height), 128), "JPEG")
    spec = ResizeSpec(
        image_size=Size(target_width, target_height), resize=way, only_shrink=only_shrink
    )
    encoded = convert_image(data, ImageSpec(**vars(spec), encoding="png", reducing_gap=gap))
    assert Image.open(io.BytesIO(encoded.data)).size == encoded.size
    scaled = spec.scaled(Size(width, height))
    if way in ("stretch", "fit", "none"):
        assert encoded.size == scaled
    elif way == "pad":
        assert encoded.size == spec.image_size
    else:
        assert encoded.size == tuple(map(min, scaled, spec.image_size))


# Geometry


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "PNG"])
@pytest.mark.parametrize("orientation", EXIF_SIDES)
@settings(max_examples=examples(15), deadline=None)
@given(
    st.builds(
        ResizeSpec,
        image_size=st.builds(Size, st.integers(40, 90), st.integers(40, 90)),
        resize=ways,
        only_shrink=st.booleans(),
    ),
    st.floats(0.15, 0.85),
    st.floats(0.15, 0.85),
)
def test_a_mark_of_the_file_is_where_the_geometry_puts_it(kind, orientation, resize, x, y):
    """Judged by the pixels, also of JPEGs that are decoded at a fraction of their size."""
    width, height = (1203, 807) if kind == "JPEG" else (241, 161)
    x, y, side = round(x * width), round(y * height), width // 20
    image = Image.new("L", (width, height))
    image.paste(255, (x - side, y - side, x + side, y + side))
    exif = image.getexif()
    exif[ORIENTATION] = orientation
    options = {"tiffinfo": {ORIENTATION: orientation}} if kind == "TIFF" else {"exif": exif}
    spec = ImageSpec(**vars(resize), encoding="raw", channels=1, reducing_gap=1.0)
    encoded = convert_image(saved(image, kind, **options), spec)
    geometry, upright = encoded.geometry, ImageOps.exif_transpose(image)
    assert geometry.upright == upright.size
    assert geometry.orientation == orientation
    scale = np.divide(geometry.scaled, upright.size)
    corners = np.reshape(upright.getbbox(), (2, 2)) * scale + (geometry.left, geometry.top)
    if corners[0].min() < 1 or (corners[1] > np.subtract(encoded.size, 1)).any():
        return  # cropped
    found = as_array(encoded, 1)[..., 0] / 255
    center = [
        found.sum(axis) @ (np.arange(found.shape[1 - axis]) + 0.5) / found.sum() for axis in (0, 1)
    ]
    assert center == pytest.approx(corners.mean(axis=0), abs=0.35)
    assert found.sum() == pytest.approx(np.prod(corners[1] - corners[0]), rel=0.15)
