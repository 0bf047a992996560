"""Scaled pixels: those of Pillow, or within two levels, and the same on every CPU.

Without cykooz-resizer, the tests of that resizer are skipped.
"""

import random

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from shardmill.schemas import ShardmillError
from shardmill.transforms import ResizeSpec
from shardmill.transforms.images import scaling
from shardmill.transforms.images.convert import to_channels
from shardmill.transforms.images.decode import decode_image
from shardmill.transforms.images.resize import Interpolation, Size
from shardmill.transforms.images.scaling import HAS_SIMD, exact_extensions, scale
from tests.conftest import examples, make_image
from tests.support.pixel_tools import saved

if HAS_SIMD:
    from cykooz_resizer import CpuExtensions, Resizer

needs_simd = pytest.mark.skipif(not HAS_SIMD, reason="cykooz-resizer is not installed")
RESIZERS = ("pillow", "simd") if HAS_SIMD else ("pillow",)
MODES = {"L": 1, "RGB": 3, "RGBA": 4}
LEVELS = 2  # most by which bilinear pixels differ from Pillow's
GOLDEN = "7556cae3004778e506a18fb44aa3daaa75163c297380edf1054098200c002dfb"  # of a new version, a new one
sizes = st.builds(Size, st.integers(1, 600), st.integers(1, 600))
thin = st.builds(Size, st.integers(1, 4), st.integers(1, 6000))
shares = st.floats(0, 0.99)


def noise(mode: str, size: Size, seed: int, *, extreme: bool = False) -> Image.Image:
    """Return an image of random values, which may all be 0 or 255."""
    data = random.Random(seed).randbytes(size.width * size.height * MODES[mode])
    values = np.frombuffer(data, np.uint8)
    if extreme:
        values = (values & 1) * np.uint8(255)
    return Image.frombytes(mode, size, values.tobytes())


def difference(image: Image.Image, other: Image.Image) -> int:
    assert image.mode == other.mode
    assert image.size == other.size
    return int(np.abs(np.asarray(image).astype(int) - np.asarray(other)).max())


@needs_simd
@settings(deadline=None)
@example(Size(4000, 3), Size(5, 1), "RGB", 1, (0.0, 0.0), True)
@example(Size(1, 6000), Size(7, 1), "L", 1, (0.0, 0.99), False)
@given(
    sizes | thin,
    sizes,
    st.sampled_from(["L", "RGB"]),
    st.integers(0, 99),
    st.tuples(shares, shares),
    st.booleans(),
)
def test_bilinear_is_within_two_levels_of_pillow(source, target, mode, seed, cut, extreme):
    """Also of boxes that end between pixels, as those of scaled JPEGs do."""
    image = noise(mode, source, seed, extreme=extreme)
    box = (0, 0, source.width - cut[0], source.height - cut[1])
    ours = scale(image, target, box, "bilinear", "simd")
    assert difference(ours, image.resize(target, Image.Resampling.BILINEAR, box)) <= LEVELS


@settings(max_examples=examples(20), deadline=None)
@given(
    sizes,
    sizes,
    st.sampled_from(["box", "hamming", "bicubic", "lanczos", "nearest"]),
    st.sampled_from(list(MODES)),
    st.integers(0, 99),
    st.sampled_from(RESIZERS),
)
def test_other_filters_are_those_of_pillow(
    source, target, name: Interpolation, mode, seed, resizer
):
    image = noise(mode, source, seed)
    expected = image.resize(target, Image.Resampling[name.upper()])
    assert difference(scale(image, target, (0, 0, *source), name, resizer), expected) == 0


@settings(max_examples=examples(20), deadline=None)
@given(sizes, sizes, st.integers(0, 99), st.sampled_from(RESIZERS))
def test_alpha_is_scaled_by_pillow(source, target, seed, resizer):
    image = noise("RGBA", source, seed)
    expected = image.resize(target, Image.Resampling.BILINEAR)
    assert difference(scale(image, target, (0, 0, *source), "bilinear", resizer), expected) == 0


@needs_simd
@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(300, 900),
    st.integers(300, 900),
    st.integers(1, 90),
    st.integers(1, 90),
    st.sampled_from([1, 3]),
)
def test_scaled_jpegs_are_within_two_levels_of_pillow(width, height, new_width, new_height, bands):
    data = saved(make_image(width, width, height), "JPEG")
    decoded = decode_image(data, ResizeSpec(image_size=Size(new_width, new_height)), 1.0)
    image = to_channels(decoded.image, bands)
    ours = scale(image, Size(new_width, new_height), decoded.box, "bilinear", "simd")
    pillow = image.resize(ours.size, Image.Resampling.BILINEAR, decoded.box)
    assert difference(ours, pillow) <= LEVELS


@needs_simd
@pytest.mark.parametrize("extensions", [*CpuExtensions] if HAS_SIMD else [], ids=str)
def test_pixels_do_not_depend_on_the_cpu(extensions, monkeypatch):
    resizer = Resizer()
    resizer.cpu_extensions = extensions
    if resizer.cpu_extensions != extensions:
        pytest.skip("this machine does not have them")
    assert scaling.hash_samples(extensions) == scaling._SAMPLE_HASH
    monkeypatch.setattr(scaling, "exact_extensions", lambda: extensions)
    digest = blake3()
    for number in range(60):
        chosen = random.Random(number)
        source, target = (Size(chosen.randint(1, 300), chosen.randint(1, 300)) for _ in range(2))
        image = noise("L" if number % 3 == 0 else "RGB", source, number, extreme=number % 5 == 0)
        box = (0, 0, source.width - chosen.random(), source.height - chosen.random())
        digest.update(scale(image, target, box, "bilinear", "simd").tobytes())
    assert digest.hexdigest() == GOLDEN


@settings(max_examples=examples(40), deadline=None)
@given(
    sizes | thin,
    sizes,
    st.sampled_from(["L", "RGB"]),
    st.integers(0, 99),
    st.tuples(shares, shares),
    st.booleans(),
)
def test_bilinear_of_pillow_is_that_of_pillow(source, target, mode, seed, cut, extreme):
    """Every pixel, also of boxes that end between pixels."""
    image = noise(mode, source, seed, extreme=extreme)
    box = (0, 0, source.width - cut[0], source.height - cut[1])
    expected = image.resize(target, Image.Resampling.BILINEAR, box)
    assert difference(scale(image, target, box, "bilinear", "pillow"), expected) == 0


@pytest.fixture
def unchecked():
    """Checks of the extensions that leave no result behind."""
    exact_extensions.cache_clear()
    yield
    exact_extensions.cache_clear()


@needs_simd
@pytest.mark.usefixtures("unchecked")
def test_extensions_that_give_other_pixels_are_not_used(monkeypatch):
    right = scaling._SAMPLE_HASH
    monkeypatch.setattr(
        scaling, "hash_samples", lambda used: right if used == CpuExtensions.none else ""
    )
    assert exact_extensions() == CpuExtensions.none


@needs_simd
@pytest.mark.usefixtures("unchecked")
def test_a_resizer_that_gives_other_pixels_is_an_error(monkeypatch):
    monkeypatch.setattr(scaling, "_SAMPLE_HASH", "of another version")
    with pytest.raises(ShardmillError, match=r"cykooz-resizer \d.* pixels"):
        exact_extensions()
