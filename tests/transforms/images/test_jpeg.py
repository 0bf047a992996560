"""simplejpeg and Pillow decode every JPEG to the same pixels, so either can decode a file."""

import io

import numpy as np
import pytest
from PIL import Image

from shardmill.schemas import RejectedError
from shardmill.schemas.jpeg import decode_pixels
from shardmill.transforms import ResizeSpec
from shardmill.transforms.images import decode
from shardmill.transforms.images.resize import Size
from tests.conftest import make_image

TARGETS = ((224, 3.0), (64, 1.0), (32, 2.0), (8, 4.0))  # decoded in full, at 1/2, 1/4 and 1/8


def decoded(data: bytes, size: int, gap: float) -> tuple:
    try:
        found = decode.decode_image(data, ResizeSpec(image_size=Size(size, size)), gap)
    except RejectedError as error:
        return error.error, error.message
    image = found.image
    return image.mode, image.size, image.tobytes(), image.info.keys(), *found[1:-1]


def compare(data: bytes, monkeypatch) -> int:
    """Assert that both decoders agree; return how often simplejpeg decoded the file."""
    used = 0
    for size, gap in TARGETS:
        with monkeypatch.context() as patch:
            original, results = decode.decode_jpeg, []

            def watched(*args, original=original, results=results):
                results.append(original(*args))
                return results[-1]

            patch.setattr(decode, "decode_jpeg", watched)
            ours = decoded(data, size, gap)
            patch.setattr(decode, "decode_jpeg", lambda *_: None)
            assert ours == decoded(data, size, gap)
        used += any(result is not None for result in results)
    pixels = decode_pixels(data)  # of a reader, in full
    assert (pixels is None) == (used == 0)
    if pixels is not None:
        with Image.open(io.BytesIO(data)) as image:
            expected = np.array(image)
        assert np.array_equal(pixels, expected.reshape(*expected.shape[:2], -1))
        assert pixels.flags.writeable
        assert pixels.flags.c_contiguous
    return used


def jpeg(image: Image.Image, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("size", [(1, 1), (7, 9), (17, 500), (333, 257), (801, 640)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subsampling": 0},
        {"subsampling": 1},
        {"quality": 20, "progressive": True},
        {"restart_marker_blocks": 3},
        {"comment": b"text", "dpi": (72, 72)},
        {"keep_rgb": True},
    ],
    ids=str,
)
def test_pixels_are_those_of_pillow(size, options, monkeypatch):
    for mode in ("RGB", "L"):
        image = make_image(sum(size), *size).convert(mode)
        assert compare(jpeg(image, **options), monkeypatch) == len(TARGETS)


def test_pillow_decodes_what_simplejpeg_cannot(monkeypatch):
    image = make_image(1, 300, 200)
    whole = jpeg(image)
    assert compare(jpeg(image.convert("CMYK")), monkeypatch) == 0
    assert compare(whole[: len(whole) // 2], monkeypatch) == 0
    assert compare(whole[:-2], monkeypatch) == 0
    assert compare(whole + b"more", monkeypatch) == len(TARGETS)


@pytest.mark.nightly
def test_pixels_of_all_real_and_hostile_files_are_those_of_pillow(shared_data, monkeypatch):
    found = {"both": 0, "pillow": 0}
    for path in sorted(shared_data.rglob("*")):
        if not path.is_file() or path.stat().st_size > 30e6:
            continue
        data = path.read_bytes()
        if data.startswith(b"\xff\xd8"):
            found["both" if compare(data, monkeypatch) else "pillow"] += 1
    assert found["both"] > 1000
    assert found["pillow"] > 10
