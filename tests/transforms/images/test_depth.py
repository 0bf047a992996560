"""Images of more than 8 bits a channel are recognized in every format, and no others are."""

import io
import itertools
import struct

import numpy as np
import pytest
from PIL import Image

from shardmill.transforms import ImageSpec
from shardmill.transforms.images.convert import convert_image
from shardmill.transforms.images.resize import Size
from shardmill.transforms.sources.python.lossless import from_pixels

RNG = np.random.default_rng(3)
SPEC = ImageSpec(image_size=Size(8, 8), encoding="raw")
WIDTH, HEIGHT = 6, 5


def save(image: Image.Image, name: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def grey(kind: str, top: int = 65536) -> np.ndarray:
    return RNG.integers(0, top, (HEIGHT, WIDTH)).astype(kind)


def ppm(channels: int, maximum: int) -> bytes:
    """Return a binary PGM or PPM."""
    kind = ">u2" if maximum > 255 else "u1"
    pixels = RNG.integers(0, maximum + 1, (HEIGHT, WIDTH, channels)).astype(kind)
    magic = "P5" if channels == 1 else "P6"
    return f"{magic}\n{WIDTH} {HEIGHT}\n{maximum}\n".encode() + pixels.tobytes()


def tiff(depth: int, channels: int, *, big_endian: bool) -> bytes:
    """Return an uncompressed TIFF 6.0 of unsigned integers."""
    order = ">" if big_endian else "<"
    top = 1 << depth
    pixels = RNG.integers(0, top, (HEIGHT, WIDTH, channels)).astype(f"{order}u{depth // 8}")
    data = pixels.tobytes()
    tags = [
        (256, 3, [WIDTH]),
        (257, 3, [HEIGHT]),
        (258, 3, [depth] * channels),
        (259, 3, [1]),
        (262, 3, [1 if channels == 1 else 2]),
        (273, 4, [0]),
        (277, 3, [channels]),
        (278, 3, [HEIGHT]),
        (279, 4, [len(data)]),
    ]
    size = 8 + 2 + 12 * len(tags) + 4
    bits = struct.pack(f"{order}{channels}H", *[depth] * channels)
    entries = b""
    for tag, kind, values in tags:
        numbers = [size + len(bits)] if tag == 273 else values
        code = "H" if kind == 3 else "I"
        content = struct.pack(f"{order}{len(numbers)}{code}", *numbers).ljust(4, b"\0")
        if len(content) > 4:
            content = struct.pack(f"{order}I", size)
        entries += struct.pack(f"{order}HHI", tag, kind, len(numbers)) + content
    start = (b"MM\0*" if big_endian else b"II*\0") + struct.pack(f"{order}IH", 8, len(tags))
    return start + entries + bytes(4) + bits + data


def cases() -> dict[str, tuple[bytes, bool]]:
    """Return files, and whether they have more than 8 bits a channel."""
    rgb = Image.fromarray(RNG.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))
    found: dict[str, tuple[bytes, bool]] = {}
    for channels in (2, 3, 4):
        pixels = RNG.integers(0, 65536, (HEIGHT, WIDTH, channels), np.uint16)
        found[f"png {channels} 16"] = from_pixels(pixels), True
    for name in ("PNG", "TIFF"):
        found[f"{name} grey 16"] = save(Image.fromarray(grey("<u2")), name), True
    for name in ("TIFF", "IM", "SPIDER"):
        found[f"{name} float"] = save(Image.fromarray(RNG.random((8, 8), np.float32)), name), True
    for channels, maximum in itertools.product((1, 3), (100, 255, 256, 1023, 65535)):
        found[f"ppm {channels} {maximum}"] = ppm(channels, maximum), maximum > 255
    for depth, channels, big in itertools.product((8, 16), (1, 3), (False, True)):
        file = tiff(depth, channels, big_endian=big)
        found[f"tiff {depth} {channels} {big}"] = file, depth > 8
    sgi = Image.fromarray(grey("u1", 256))
    found["sgi 8"] = save(sgi, "SGI"), False
    found["sgi 16"] = save(sgi, "SGI", bpc=2), True
    found["jpeg 2000 grey 16"] = save(Image.fromarray(grey("<u2")), "JPEG2000"), True
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        found[f"png {mode}"] = save(rgb.convert(mode), "PNG"), False
    for name in (
        "JPEG",
        "BMP",
        "GIF",
        "WEBP",
        "AVIF",
        "JPEG2000",
        "PPM",
        "TIFF",
        "SGI",
        "TGA",
        "PCX",
        "DDS",
    ):
        found[f"{name} 8"] = save(rgb, name), False
    return found


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_depth(name):
    data, is_deep = CASES[name]
    assert convert_image(data, SPEC).deep is is_deep


def test_depth_of_heic():
    import pillow_heif

    pixels = RNG.integers(0, 65536, (64, 64, 3), np.uint16)
    deep = pillow_heif.from_bytes("RGB;16", (64, 64), pixels.tobytes())
    for image, is_deep in ((deep, True), (Image.fromarray((pixels >> 8).astype(np.uint8)), False)):
        file = io.BytesIO()
        image.save(file, **({} if is_deep else {"format": "HEIF"}))
        assert convert_image(file.getvalue(), SPEC).deep is is_deep


def test_depths_that_only_headers_have():
    """Of codecs that write no such files here: the header of a file is edited."""
    rgb = Image.fromarray(RNG.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8))
    from shardmill.transforms.images.depth import is_deep

    j2k = bytearray(save(rgb, "JPEG2000"))
    at = j2k.find(b"\xff\x4f\xff\x51") + 42
    assert j2k[at : at + 9 : 3] == b"\x07\x07\x07"
    image = Image.open(io.BytesIO(j2k))
    assert not is_deep(image, image.tile[0], bytes(j2k))
    j2k[at + 3] = 0x0B
    assert is_deep(image, image.tile[0], bytes(j2k))
    avif = bytearray(save(rgb, "AVIF"))
    image = Image.open(io.BytesIO(avif))
    assert not is_deep(image, None, bytes(avif))
    avif[avif.find(b"av1C") + 6] |= 0x40
    assert is_deep(image, None, bytes(avif))
