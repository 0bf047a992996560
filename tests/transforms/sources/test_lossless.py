"""Pixels that Python gives become the same 8 bits as files of the same pixels."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from shardmill.schemas import RejectedError
from shardmill.schemas.errors import InputError
from shardmill.transforms import ImageSpec
from shardmill.transforms.images.convert import convert_image
from shardmill.transforms.images.resize import Size
from shardmill.transforms.sources.python.lossless import encode_lossless, from_pixels
from shardmill.transforms.sources.python.records import to_bytes

RNG = np.random.default_rng(7)
SPEC = {
    channels: ImageSpec(image_size=Size(9, 9), resize="none", encoding="raw", channels=channels)
    for channels in (1, 3, 4)
}


def convert(data: bytes, channels: int) -> np.ndarray:
    """Return the pixels that a record has of a file."""
    image = convert_image(data, SPEC[channels])
    height, width = image.size.height, image.size.width
    return np.frombuffer(image.data, np.uint8).reshape(height, width, channels)


def reduced(pixels: np.ndarray) -> np.ndarray:
    """Return the 8 bits of pixels: grey is rounded, of colors Pillow takes the high byte."""
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.dtype.itemsize == 1:
        return pixels
    if pixels.shape[2] == 1:
        return np.round(pixels / 65535 * 255).astype(np.uint8)
    return (pixels // 256).astype(np.uint8)


def as_rgba(pixels: np.ndarray) -> np.ndarray:
    """Return pixels of 1 to 4 channels of 8 bits as RGBA."""
    opaque = np.full((*pixels.shape[:2], 1), 255, np.uint8)
    color = pixels[..., :1].repeat(3, 2) if pixels.shape[2] < 3 else pixels[..., :3]
    alpha = pixels[..., -1:] if pixels.shape[2] in (2, 4) else opaque
    return np.concatenate([color, alpha], 2)


TYPES = ("u1", "<u2", ">u2", "=u2")
SHAPES = ((6, 5), (6, 5, 1), (6, 5, 2), (6, 5, 3), (6, 5, 4), (1, 1), (1, 9, 3))
LAYOUTS = {
    "plain": lambda pixels: pixels,
    "reversed": lambda pixels: pixels[::-1, ::-1],
    "strided": lambda pixels: pixels.repeat(2, 0).repeat(3, 1)[::2, ::3],
    "Fortran": np.asfortranarray,
    "read-only": lambda pixels: np.frombuffer(pixels.tobytes(), pixels.dtype).reshape(pixels.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_all_types(layout):
    for kind, shape in itertools.product(TYPES, SHAPES):
        top = 256 if kind == "u1" else 65536
        pixels = RNG.integers(0, top, shape).astype(kind)
        pixels.flat[0] = top - 1
        data = to_bytes(0, "x", LAYOUTS[layout](pixels))
        expected = as_rgba(reduced(LAYOUTS[layout](pixels)))
        assert (convert(data, 4) == expected).all(), (kind, shape)
        if len(shape) == 2 or shape[2] == 1:
            assert (convert(data, 1)[..., 0] == expected[..., 0]).all(), (kind, shape)


OTHER_TYPES = ("bool", "i1", "i2", ">i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "U1", "O")
OTHER_SHAPES = [(), (4,), (0, 4), (4, 0, 3), (4, 5, 0), (4, 5, 5), (3, 4, 5), (2, 4, 5, 3)]


def test_other_arrays_are_named_with_their_type_and_shape():
    """What the sentence allows is an image, and it names the type and shape of what is not."""
    shapes = [*SHAPES, *OTHER_SHAPES]
    for kind, shape in itertools.product([*TYPES, *OTHER_TYPES], shapes):
        pixels = np.zeros(shape, kind)
        allowed = kind in TYPES and shape in SHAPES
        one_channel = kind in ("bool", "u4") and shape in SHAPES and (*shape, 1)[2] == 1
        if allowed or one_channel:
            assert to_bytes(0, "x", pixels)
            continue
        with pytest.raises(InputError) as error:
            to_bytes(3, "x", pixels)
        assert str(error.value) == (
            f"Record 3: the field 'x' is a ndarray of {pixels.dtype} with the shape {shape}, not an "
            "image: give the bytes of an image file, an image of Pillow, or an array of uint8 or "
            "uint16 with the shape [height, width] or [height, width, channels] and 1 to 4 channels."
        )


@pytest.mark.heavy
def test_other_readers_find_all_16_bits():
    import tensorflow as tf

    for channels in (2, 3, 4):
        pixels = RNG.integers(0, 65536, (6, 5, channels), np.uint16)
        assert (tf.io.decode_png(from_pixels(pixels), dtype=tf.uint16).numpy() == pixels).all()


def test_images_of_pillow_of_all_orders_and_orientations():
    """16 bits in any order of bytes, rotated as Exif data ask; 32 bits and floats as in files."""
    grey = RNG.integers(0, 65536, (4, 6), np.uint16)
    for mode, kind in (("I;16", "<u2"), ("I;16B", ">u2"), ("I;16L", "<u2"), ("I", "=i4")):
        raw = "I;16" if mode == "I;16L" else mode
        image = Image.frombytes(raw, (6, 4), grey.astype(kind).tobytes())
        assert (convert(encode_lossless(image), 1) == reduced(grey)).all(), mode
        image.getexif()[0x112] = 6  # to be shown turned by 90 degrees clockwise
        turned = np.rot90(reduced(grey), -1)
        assert (convert(encode_lossless(image), 1) == turned).all(), mode
        assert image.getexif()[0x112] == 6
    floats = RNG.random((4, 6), np.float32)
    image = Image.fromarray(floats)
    expected = np.floor(floats * 255 + 0.5)
    assert (convert(encode_lossless(image), 1)[..., 0] == expected).all()


@pytest.mark.parametrize(
    ("pixels", "reason"),
    [
        (np.array([[0, 65536]], np.int32), "int_range"),
        (np.array([[-1, 5]], np.int32), "int_range"),
        (np.array([[0, 2**32 - 1]], np.uint32), "int_range"),
        (np.array([[0, 1.5]], np.float32), "float_range"),
        (np.array([[0, np.nan]], np.float32), "float_range"),
    ],
)
def test_pixels_without_a_white_are_rejects(pixels, reason):
    with pytest.raises(RejectedError) as error:
        convert(encode_lossless(Image.fromarray(pixels)), 1)
    assert error.value.error == reason


def test_modes_of_pillow_are_those_of_files():
    """A mode that PNG lacks is converted as the decoder does; alpha is kept, or put over white."""
    rgba = Image.fromarray(RNG.integers(0, 256, (5, 4, 4), np.uint8))
    images = {
        "CMYK": rgba.convert("RGB").convert("CMYK"),
        "YCbCr": rgba.convert("RGB").convert("YCbCr"),
        "HSV": rgba.convert("RGB").convert("HSV"),
        "RGBX": rgba.convert("RGB").convert("RGBX"),
        "La": rgba.convert("LA").convert("La"),
        "RGBa": rgba.convert("RGBa"),
        "PA": rgba.convert("P").convert("PA"),
    }
    for mode, image in images.items():
        assert image.mode == mode
        alpha = mode in ("La", "RGBa", "PA")
        found = convert(encode_lossless(image), 4)
        whole = image.convert("LA").convert("RGBA") if mode == "La" else image.convert("RGBA")
        wanted = np.asarray(whole if alpha else image.convert("RGB").convert("RGBA"))
        assert (found == wanted).all(), mode
        over = Image.new("RGBA", image.size, "white")
        over.alpha_composite(Image.fromarray(wanted))
        assert (convert(encode_lossless(image), 3) == np.asarray(over.convert("RGB"))).all(), mode


def test_what_was_right_has_the_same_file():
    """The version of an input is the hash of this file, so it must stay the same."""
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "CMYK"):
        if mode.startswith("I"):
            pixels = RNG.integers(0, 65536, (5, 4))
            image = Image.fromarray(pixels.astype(np.uint16))
        else:
            image = Image.fromarray(RNG.integers(0, 256, (5, 4, 3), np.uint8)).convert(mode)
        file = io.BytesIO()
        (image.convert("RGB") if mode == "CMYK" else image).save(file, "PNG", compress_level=0)
        given = Image.fromarray(pixels.astype(np.int32)) if mode == "I" else image
        assert encode_lossless(given) == file.getvalue(), mode
