"""--encoding=keep: TensorFlow decodes each record to the pixels that Pillow decodes of the file."""

import io
import itertools
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image, PngImagePlugin

from shardmill.schemas import RejectedError
from shardmill.transforms import ImageSpec, ResizeSpec
from shardmill.transforms.images.convert import ConvertedImage, convert_image
from shardmill.transforms.images.resize import Size
from tests.conftest import examples, make_image
from tests.support.pixel_tools import (
    ORIENTATION,
    png,
    png_chunk,
    saved,
)

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
SECRET = b"where I live"
# What Pillow reports of a file without metadata: of pixels, and how to show them.
PLAIN = {
    "jfif",
    "jfif_version",
    "jfif_unit",
    "jfif_density",
    "dpi",
    "adobe",
    "adobe_transform",
    "progressive",
    "progression",
    "interlace",
}
PHOTO = saved(make_image(1, 45, 30), "JPEG")
HEAD, BODY = PHOTO[:20], PHOTO[20:]  # SOI and JFIF, and the rest


def keep(data: bytes, channels: int = 3, resize: str = "none", **options) -> ConvertedImage:
    spec = ResizeSpec(image_size=options.pop("size", Size(1, 1)), resize=resize)
    return convert_image(
        data, ImageSpec(**vars(spec), encoding="keep", channels=channels, **options)
    )


def tensorflow(data: bytes, channels: int) -> np.ndarray:
    """Return the pixels as the loaders' tf.data path decodes them."""
    import tensorflow as tf

    if channels == 4:
        return tf.io.decode_png(data, channels).numpy()
    return tf.io.decode_jpeg(data, channels, dct_method="INTEGER_ACCURATE").numpy()


def pillow(data: bytes, channels: int) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        found = np.array(image.convert(MODES[channels]))
    return found.reshape(*found.shape[:2], channels)


def check(data: bytes, channels: int = 3) -> str:
    """Check the records of a file with and without its metadata; return which originals they are."""
    originals = []
    for strip in (False, True):
        made = keep(data, channels, strip_metadata=strip)
        read = tensorflow(made.data, channels)
        assert np.array_equal(read, pillow(made.data, channels))
        assert read.shape == (made.size.height, made.size.width, channels)
        assert made.data.startswith({"jpeg": b"\xff\xd8", "png": b"\x89PNG"}[made.format])
        assert made.data == data or strip or made.original == "converted"
        originals.append(made.original)
        if made.original == "converted":
            continue
        assert np.array_equal(read, pillow(data, channels))
        if made.format == "png" or channels == 1:  # as the decoder counted
            assert sum(each.total for each in made.channels) == read.sum()
        if strip:
            assert len(made.data) <= len(data)
            assert SECRET not in made.data
            with Image.open(io.BytesIO(made.data)) as image:
                assert not dict(image.getexif())
                assert image.info.keys() <= PLAIN
    return "/".join(originals)


def segment(marker: int, content: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(content) + 2).to_bytes(2, "big") + content


def adobe(transform: int) -> bytes:
    return segment(0xEE, b"Adobe\0d\0\0\0\0" + bytes((transform,)))


def exif(*, position: bool = False, orientation: int = 0) -> Image.Exif:
    tags = Image.Exif()
    tags[0x010E] = SECRET.decode()
    if orientation:
        tags[ORIENTATION] = orientation
    if position:
        tags.get_ifd(0x8825).update({1: "N", 2: (47.0, 22.0, 0.0), 3: "E", 4: (8.0, 32.0, 0.0)})
    return tags


def texts(text: bytes = SECRET) -> PngImagePlugin.PngInfo:
    found = PngImagePlugin.PngInfo()
    found.add_text("place", text.decode())
    found.add_text("zip", text.decode(), zip=True)
    found.add_itxt("XML:com.adobe.xmp", f"<x exif:Note='{text.decode()}'/>", zip=True)
    return found


def jpegs(size: tuple[int, int]) -> Iterator[tuple[str, bytes]]:
    """Yield kinds of JPEG that are kept."""
    for mode, options in itertools.product(
        ("RGB", "L"),
        (
            {},
            {"progressive": True},
            {"restart_marker_blocks": 1},
            {"optimize": True, "quality": 7},
            {"subsampling": 0},
            {"subsampling": 1},
            {"keep_rgb": True},
            {"comment": SECRET},
            {"exif": exif()},
            {"progressive": True, "restart_marker_rows": 1, "subsampling": 0},
        ),
    ):
        yield f"{mode} {options}", saved(make_image(3, *size).convert(mode), "JPEG", **options)
    pixels = np.array(make_image(4, *size))
    for sampling in ("420", "411", "422", "440", "444"):
        yield sampling, simplejpeg.encode_jpeg(pixels, 80, "RGB", sampling)


HEADS = {
    "no JFIF": b"",
    "RGB": adobe(0),
    "YCbCr": adobe(1),
    "JFIF, RGB": HEAD[2:] + adobe(0),
    "Adobe, JFIF": adobe(0) + HEAD[2:],
    "short Adobe": segment(0xEE, b"Adobe\0d"),
    "long Adobe": segment(0xEE, b"Adobe\0d" + bytes(9) + SECRET),
    "thumbnail": segment(0xE0, b"JFIF\0\1\2\0\0\1\0\1\2\2" + SECRET),
    "JFXX": HEAD[2:] + segment(0xE0, b"JFXX\0\x13\1\1" + SECRET),
    "IPTC": segment(0xED, SECRET),
}


def test_kinds_of_jpeg_are_kept():
    for name, data in itertools.chain(jpegs((45, 30)), jpegs((1, 1)), jpegs((17, 64))):
        assert check(data) == "kept/kept", name
    for name, head in HEADS.items():
        assert check(PHOTO[:2] + head + BODY) == "kept/kept", name
    grey = saved(make_image(2, 45, 30, "L"), "JPEG")
    assert [check(grey, channels) for channels in (1, 3)] == ["kept/kept"] * 2
    assert check(grey, 4) == check(PHOTO, 1) == check(PHOTO, 4) == "converted/converted"


ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)


def rows(width: int, height: int, bands: int) -> bytes:
    rng = np.random.default_rng(width)
    return b"".join(bytes((n % 5,)) + rng.bytes(width * bands) for n in range(height))


def with_header(data: bytes, at: int, value: int) -> bytes:
    """Return a PNG with another value in its IHDR chunk."""
    header = data[16:at] + bytes((value,)) + data[at + 1 : 29]
    return data[:8] + png_chunk(b"IHDR", header) + data[33:]


def interlaced(width: int, height: int, color: int, bands: int) -> bytes:
    passes = (
        rows(len(range(x, width, dx)), len(range(y, height, dy)) if x < width else 0, bands)
        for x, y, dx, dy in ADAM7
    )
    return with_header(png(width, height, 8, color, b"".join(passes)), 28, 1)


CHUNKS = {
    "gamma": (b"gAMA", b"\0\1\x86\xa0"),
    "sRGB": (b"sRGB", b"\0"),
    "private": (b"prVt", SECRET),
    "time": (b"tIME", b"\x07\xd0\1\1\1\1\1"),
    "background": (b"bKGD", b"\0\1\0\1\0\1"),
    "profile": (b"iCCP", b"x\0\0" + zlib.compress(b"..sRGB..")),
    "bits": (b"sBIT", b"\3\3\3"),
}
ROWS = rows(5, 4, 3)
PNG = png(5, 4, 8, 2, ROWS)


def test_kinds_of_png_are_kept():
    for (color, bands), size in itertools.product(
        ((0, 1), (2, 3), (6, 4)), ((5, 4), (1, 1), (9, 17))
    ):
        channels = 4 if color == 6 else 3
        assert check(png(*size, 8, color, rows(*size, bands)), channels) == "kept/kept"
        assert check(interlaced(*size, color, bands), channels) == "kept/kept"
        noted = saved(make_image(1, *size, MODES[bands]), "PNG", exif=exif(), pnginfo=texts())
        assert check(noted, channels) == "kept/kept"
    for name, chunk in CHUNKS.items():
        assert check(png(5, 4, 8, 2, ROWS, png_chunk(*chunk))) == "kept/kept", name
    assert check(PNG, 4) == "converted/converted"


IDAT = PNG.index(b"IDAT") - 4
PALETTE = png_chunk(b"PLTE", bytes(range(48)))
PROFILE = b"Display P3"
EARLY = saved(make_image(1, 64, 64), "JPEG", progressive=True)
CONVERTED = {
    "CMYK": saved(make_image(1, 9, 9, "CMYK"), "JPEG"),
    "rotated": saved(make_image(1, 9, 5), "JPEG", exif=exif(orientation=6)),
    "rotated PNG": saved(make_image(1, 9, 5), "PNG", exif=exif(orientation=3)),
    "progressive without its last scan": EARLY[: EARLY.rindex(b"\xff\xda")] + b"\xff\xd9",
    "several images": saved(
        make_image(1, 9, 9), "MPO", save_all=True, append_images=[make_image(2, 9, 9)]
    ),
    "fill bytes": HEAD + b"\xff" + BODY,
    "stray bytes": HEAD + b"ab" + BODY,
    "arithmetic tables": HEAD + segment(0xCC, b"\0\x10") + BODY,
    "palette": saved(make_image(1, 9, 9, "P"), "PNG"),
    "suggested palette": png(5, 4, 8, 2, ROWS, PALETTE),
    "transparent color": png(5, 4, 8, 2, ROWS, png_chunk(b"tRNS", bytes(6))),
    "transparency": saved(make_image(1, 9, 9, "RGBA"), "PNG"),
    "grey and alpha": saved(make_image(1, 9, 9, "LA"), "PNG"),
    "bilevel": saved(make_image(1, 9, 9, "1"), "PNG"),
    "16 bits": png(5, 4, 16, 2, rows(10, 4, 3)),
    "frames": saved(make_image(1, 9, 9), "PNG", save_all=True, append_images=[make_image(2, 9, 9)]),
    "video": png(5, 4, 8, 2, ROWS, png_chunk(b"cICP", b"\x09\x10\0\1")),
    "no checksum": PNG[:IDAT] + png_chunk(b"IDAT", zlib.compress(ROWS)[:-4]) + PNG[-12:],
    "bytes after the rows": PNG[:IDAT]
    + png_chunk(b"IDAT", zlib.compress(ROWS) + SECRET)
    + PNG[-12:],
    "rows in two places": PNG[:-12]
    + png_chunk(b"tIME", bytes(7))
    + png_chunk(b"IDAT", b"")
    + PNG[-12:],
    "too few rows": png(5, 5, 8, 2, ROWS),
    "a row more": png(5, 3, 8, 2, ROWS),
    "a bomb": png(5, 4, 8, 2, ROWS + bytes(1 << 24)),
    "no IEND": PNG[:-12],
    "compression": with_header(PNG, 26, 1),
    "damaged text": PNG[:-12] + png_chunk(b"tEXt", b"a\0b")[:-1] + b"?" + PNG[-12:],
    "critical chunk": png(5, 4, 8, 2, ROWS, png_chunk(b"ABCD", b"")),
    "name of a chunk": png(5, 4, 8, 2, ROWS, png_chunk(b"a1CD", b"")),
    **{kind: saved(make_image(1, 9, 9), kind) for kind in ("BMP", "GIF", "WEBP", "TIFF")},
}
CLEANED = {
    "bytes after": PHOTO + SECRET,
    "bytes after a PNG": PNG + SECRET,
    "two files": PHOTO + PHOTO,
    "profile": saved(make_image(1, 9, 9), "JPEG", icc_profile=PROFILE),
    "profile of a PNG": saved(make_image(1, 9, 9), "PNG", icc_profile=PROFILE),
    "damaged profile": png(5, 4, 8, 2, ROWS, png_chunk(b"iCCP", b"x\0\0damaged")),
}
LOCATED = {
    "JPEG": saved(make_image(1, 9, 9), "JPEG", exif=exif(position=True)),
    "PNG": saved(make_image(1, 9, 9), "PNG", exif=exif(position=True)),
    "XMP": saved(make_image(1, 9, 9), "JPEG", xmp=b"<x exif:GPSLatitude='47,22N'/>"),
    "XMP of a PNG": saved(make_image(1, 9, 9), "PNG", pnginfo=texts(b"GPSLatitude")),
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (CONVERTED, "converted/converted"),
        (CLEANED, "converted/kept"),
        (LOCATED, "kept_with_position/kept"),
    ],
    ids=["converted", "kept if cleaned", "with a position"],
)
def test_what_is_not_kept_as_it_is(files, expected):
    for name, data in files.items():
        assert check(data) == expected, name


def test_formats_and_sizes_of_what_is_converted():
    assert keep(CONVERTED["rotated"]).format == keep(CONVERTED["CMYK"]).format == "jpeg"
    assert keep(PHOTO, 4).format == keep(CONVERTED["GIF"]).format == "png"
    assert len(keep(PHOTO, size=Size(20, 20), resize="fit", quality=5).data) < 1000
    for resize, size, original in (
        ("stretch", (45, 30), "kept"),
        ("pad", (45, 30), "kept"),
        ("crop", (45, 30), "kept"),
        ("fit", (45, 99), "kept"),
        ("stretch", (45, 31), "converted"),
        ("pad", (46, 30), "converted"),
        ("fit", (44, 30), "converted"),
        ("crop", (44, 30), "converted"),
    ):
        assert keep(PHOTO, resize=resize, size=Size(*size)).original == original


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a file with some bytes changed, inserted, removed or repeated; PNGs have right CRCs."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(min(len(changed), rng.choice((700, 1 << 30))))
        some = bytes(rng.choice((0, 1, 255, rng.randrange(256))) for _ in range(rng.choice((1, 2))))
        end = at + rng.choice((0, len(some), 9))
        changed[at:end] = some if rng.random() < 0.9 else changed[at:end] * 2
    at = 8
    while data.startswith(b"\x89PNG") and at + 12 <= len(changed):
        size = int.from_bytes(changed[at : at + 4], "big")
        end = at + 8 + size
        if end + 4 <= len(changed):
            changed[at : end + 4] = png_chunk(
                bytes(changed[at + 4 : at + 8]), bytes(changed[at + 8 : end])
            )
        at = end + 4
    return bytes(changed)


def check_mutations(files: list[bytes], count: int) -> int:
    """Check mutations of files; return how many were kept."""
    kept, rng = 0, random.Random(1)
    for number in range(count):
        data = mutated(files[number % len(files)], rng)
        try:
            made = keep(data, strip_metadata=number % 3 == 0)
        except RejectedError:
            continue
        if made.original != "converted":
            kept += 1
            assert np.array_equal(tensorflow(made.data, 3), pillow(data, 3)), data.hex()
    return kept


def test_mutated_files_that_are_kept_have_the_pixels_of_pillow():
    files = [data for _, data in jpegs((33, 20))] + [PNG, interlaced(9, 17, 2, 3)]
    assert check_mutations(files, 3000) > 300


@pytest.mark.nightly
def test_real_and_hostile_files(shared_data):
    files = [path.read_bytes() for path in sorted(shared_data.rglob("*")) if is_file(path)]
    results = []
    for data in files:
        try:
            results.append(check(data, 4 if data[25:26] == b"\6" else 3))  # PNGs of RGBA
        except RejectedError:
            continue
    assert results.count("kept/kept") > 1600
    assert results.count("converted/kept") > 10
    assert check_mutations([data for data in files if len(data) < 60_000], examples(6000)) > 100


def is_file(path: Path) -> bool:
    if not path.is_file() or not 4 < path.stat().st_size < 2e6:
        return False
    with path.open("rb") as file:
        return file.read(4) in (b"\x89PNG", b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xe1")
