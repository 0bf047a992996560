"""Decoding of generated files: orientation, frames, hostile and damaged files."""

import io
import os
import random
import re
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageCms, PngImagePlugin

from shardmill.schemas import InputRef, RejectedError
from shardmill.schemas.refs import REASONS
from shardmill.transforms import read_input
from shardmill.transforms.images.convert import convert_image
from shardmill.transforms.images.decode import plain_message
from shardmill.transforms.match.read_input import MAX_FILE_BYTES
from tests.conftest import make_image
from tests.support.pixel_tools import (
    BLUE,
    EXIF_SIDES,
    GREEN,
    ORIENTATION,
    RED,
    UNWRITTEN,
    YELLOW,
    as_array,
    corners,
    decode_over_fills,
    full,
    lossless_jpeg,
    pixels,
    png,
    png_chunk,
    rejection,
    saved,
    sized,
    stored_as,
)

# Orientation


def oriented(stored: np.ndarray, kind: str, orientation: int) -> bytes:
    image = Image.fromarray(stored)
    if kind == "TIFF":
        return saved(image, kind, tiffinfo={ORIENTATION: orientation})
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}, "AVIF": {"quality": 90}}
    # Of bytes, pillow-heif makes the boxes irot and imir, which alone count in HEIC.
    exif = exif.tobytes() if kind == "HEIF" else exif
    return saved(image, kind, exif=exif, **options.get(kind, {}))


def assert_corners(found: np.ndarray, tolerance: int) -> None:
    """Compare the centers of the quarters, whose colors differ: no wrong orientation passes."""
    height, width = found.shape[:2]
    top, bottom, left, right = height // 4, 3 * height // 4, width // 4, 3 * width // 4
    seen = [found[y, x] for y in (top, bottom) for x in (left, right)]
    assert np.abs(np.array(seen) - [RED, GREEN, BLUE, YELLOW]).max() <= tolerance


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF"])
@pytest.mark.parametrize("orientation", EXIF_SIDES)
def test_applies_every_orientation(kind, orientation):
    upright = np.asarray(corners(60, 40))
    data = oriented(stored_as(upright, orientation), kind, orientation)
    found = pixels(data)
    assert found.shape == upright.shape
    assert_corners(found, 0 if kind in ("PNG", "WEBP", "TIFF") else 4)
    if kind in ("PNG", "WEBP", "TIFF"):
        assert (found == upright).all()


XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-'
    b'syntax-ns#"><rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="3"/>'
    b"</rdf:RDF></x:xmpmeta>"
)


def test_xmp_orientation_applies_without_exif_except_in_avif():
    upright = corners(60, 40)
    turned = Image.fromarray(stored_as(np.asarray(upright), 3))
    assert_corners(pixels(saved(turned, "JPEG", quality=95, xmp=XMP)), 4)
    # In AVIF only the boxes irot and imir count (HEIF), and this file has none.
    assert_corners(pixels(saved(upright, "AVIF", quality=90, xmp=XMP)), 4)
    exif = Image.Exif()
    exif[0x010E] = "a description, no orientation"
    assert_corners(pixels(saved(upright, "AVIF", quality=90, xmp=XMP, exif=exif)), 4)


def test_ignores_invalid_orientations_and_damaged_exif():
    upright = np.asarray(corners(60, 40))
    files = [oriented(upright, "JPEG", orientation) for orientation in (0, 9, 65535)]
    good = oriented(upright, "JPEG", 6)
    start = good.index(b"Exif\0\0")
    damages = (b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0garbage!!!!")
    files += [good[:start] + damage + good[start + len(damage) :] for damage in damages]
    for data in files:
        assert_corners(pixels(data), 4)


def test_reads_png_orientation_after_the_pixels():
    data = oriented(stored_as(np.asarray(corners(60, 40)), 6), "PNG", 6)
    start = data.index(b"eXIf") - 4
    chunk = data[start : start + 12 + int.from_bytes(data[start : start + 4], "big")]
    moved = data.replace(chunk, b"")
    assert_corners(pixels(moved[:-12] + chunk + moved[-12:]), 0)


@pytest.mark.parametrize("orientation", EXIF_SIDES)
@pytest.mark.parametrize("way", ["stretch", "fit", "pad", "crop"])
@pytest.mark.parametrize("gap", [0.0, 1.0, 3.0])
def test_orientation_of_scaled_jpegs_with_odd_sizes(orientation, way, gap):
    picture = make_image(7, 501, 333)
    upright = np.asarray(picture)
    data = oriented(stored_as(upright, orientation), "JPEG", orientation)
    encoded = convert_image(data, sized(70, 45, way, reducing_gap=gap))
    found = as_array(encoded)
    # 501x333 fits 70x45 as 68x45 and covers it as 70x47 (46.53).
    sizes = {"stretch": (70, 45), "fit": (68, 45), "crop": (70, 47), "pad": (68, 45)}
    expected = np.asarray(picture.resize(sizes[way], Image.Resampling.BILINEAR)).astype(int)
    if way == "pad":
        assert found.shape == (45, 70, 3)
        assert (found[:, [0, -1]] == 0).all()
        found = found[:, 1:-1]
    if way == "crop":
        expected = expected[1:46]
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() < (1.0 if gap != 1 else 1.5)


# Several frames


def frames() -> list[Image.Image]:
    return [Image.new("RGB", (20, 10), color) for color in (RED, GREEN, BLUE)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("GIF", {}),
        ("PNG", {}),
        ("PNG", {"default_image": True}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("WEBP", {"lossless": True}),
        ("AVIF", {}),
        ("MPO", {"quality": 95}),
    ],
)
def test_takes_the_first_of_several_frames(kind, options):
    first, *others = frames()
    data = saved(first, kind, save_all=True, append_images=others, **options)
    encoded = convert_image(data, full())
    assert encoded.multi_frame
    assert encoded.size == (20, 10)
    assert np.abs(as_array(encoded) - RED).max() <= 3
    alone = convert_image(saved(first, kind, **options), full())
    assert not alone.multi_frame
    assert np.abs(as_array(alone) - RED).max() <= 3


@pytest.mark.parametrize("disposal", [0, 1, 2, 3])
def test_transparent_gif_is_composited_over_white(disposal):
    first = Image.new("P", (4, 1), 1)
    first.putpalette([0, 0, 0, *RED, *GREEN])
    first.putdata([0, 1, 2, 0])
    second = first.copy()
    second.putdata([2, 2, 0, 1])
    options = {"append_images": [second], "transparency": 0, "disposal": disposal}
    data = saved(first, "GIF", save_all=True, **options)
    encoded = convert_image(data, full())
    assert encoded.multi_frame
    assert as_array(encoded)[0].tolist() == [[255] * 3, list(RED), list(GREEN), [255] * 3]


def test_screen_outside_of_a_small_gif_frame_is_transparent():
    data = bytearray(saved(Image.new("RGB", (4, 2), RED), "GIF"))
    data[6:10] = struct.pack("<HH", 6, 3)  # the screen
    found = pixels(bytes(data), 4)
    assert found.shape == (3, 6, 4)
    assert (found[:2, :4] == [*RED, 255]).all()
    assert (found[2, :, 3] == 0).all()
    assert (found[:, 4:, 3] == 0).all()
    assert (pixels(bytes(data))[:, 4:] == 255).all()


def test_ignores_a_damaged_second_frame():
    first, *others = frames()
    for kind in ("GIF", "TIFF", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        data = bytearray(saved(first, kind, save_all=True, append_images=others, **options))
        alone = len(saved(first, kind, **options))
        damage = alone + 8 if kind != "WEBP" else len(data) - 6
        data[damage : damage + 4] = b"\xff\xff\xff\xff"
        encoded = convert_image(bytes(data), full())
        assert np.abs(as_array(encoded) - RED).max() == 0, kind


# Detection of the format


def test_cursor_is_not_decoded_as_tga():
    """A cursor of over 64 KiB also reads as the header of a TGA, which has no signature."""
    image = Image.new("RGBA", (128, 128), (*RED, 255))
    icon = bytearray(saved(image, "ICO", sizes=[(128, 128)], bitmap_format="bmp"))
    icon[2] = 2  # a cursor
    struct.pack_into("<HH", icon, 10, 3, 64)  # where it points
    assert icon[16] == 1
    found = pixels(bytes(icon))
    assert found.shape == (128, 128, 3)
    assert (found == RED).all()


# Hostile and damaged files


def test_rejects_decompression_bombs_by_their_headers(monkeypatch):
    gif = bytearray(saved(Image.new("L", (1, 1)), "GIF"))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    bitmap = bytearray(saved(Image.new("L", (1, 1)), "BMP"))
    struct.pack_into("<ii", bitmap, 18, 60_000, 60_000)
    for data in (png(100_000, 100_000, 8, 2, b"\0"), bytes(gif), bytes(bitmap)):
        assert rejection(data).error == "too_large"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # Pillow has no limit then
    assert rejection(png(20_000, 20_000, 8, 0, b"\0")).error == "too_large"


def test_max_pixels_alone_decides_from_the_header():
    data = saved(Image.new("L", (300, 200), 9), "PNG")
    assert rejection(data, max_pixels=59_999).message == "300x200 pixels exceed 59,999"
    assert convert_image(data, full(), max_pixels=60_000).size == (300, 200)


# Pillow aborts, fails or returns noise if libjpeg is asked to scale one of these.
@pytest.mark.sweep
@pytest.mark.parametrize("shape", [(64, 64), (300, 401), (600, 400)])
@pytest.mark.parametrize("channels", [1, 3])
def test_decodes_lossless_jpegs_in_full(shape, channels):
    picture = np.asarray(make_image(3, *shape, mode="L" if channels == 1 else "RGB"))
    picture = picture.reshape(shape[1], shape[0], channels)
    data = lossless_jpeg(picture)
    kept = as_array(convert_image(data, full(channels)), channels)
    found = as_array(convert_image(data, sized(32, 32, channels=channels)), channels)
    png = saved(Image.fromarray(kept.astype(np.uint8).squeeze()), "PNG")
    assert (found == as_array(convert_image(png, sized(32, 32, channels=channels)), channels)).all()
    if channels == 1:
        assert (kept == picture).all()


@pytest.mark.parametrize("bits", [12, 16])
def test_rejects_deep_lossless_jpegs(bits):
    data = lossless_jpeg(np.full((64, 64, 1), 1 << (bits - 2)), bits)
    assert rejection(data, sized(8, 8)).error in ("decode", "not_an_image")


def test_rejects_thin_images_that_a_crop_would_enlarge_too_much():
    thin = saved(Image.new("L", (20_000, 1), 9), "PNG")
    assert rejection(thin, sized(300, 300, "crop")).error == "too_large"
    assert convert_image(thin, sized(300, 300, "fit")).size == (300, 1)
    short = saved(Image.new("L", (900, 1), 9), "PNG")
    assert (as_array(convert_image(short, sized(300, 300, "crop"))) == 9).all()


def test_rejects_a_text_chunk_bomb():
    text = png_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(1 << 27)))
    assert rejection(png(1, 1, 8, 0, b"\0\0", text)).error == "decode"


def test_does_not_read_inputs_above_the_byte_limit():
    ref = InputRef("a.jpg", "/nowhere/a.jpg", MAX_FILE_BYTES + 1, "", None)
    with pytest.raises(RejectedError) as caught:
        read_input(ref)
    assert (caught.value.stage, caught.value.error) == ("read", "too_large")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", "empty", ""),
        (LFS, "not_an_image", "the file begins like a Git LFS pointer: run `git lfs pull`"),
        (b"<!DOCTYPE html><html></html>", "not_an_image", ""),
        (b"\xff\xd8\xff", "not_an_image", ""),
        (b"\x89PNG\r\n\x1a\n", "not_an_image", ""),
        (bytes(1000), "not_an_image", f"the file begins with {bytes(16)!r}"),
    ],
)
def test_rejects_other_files(data, error, message):
    caught = rejection(data)
    assert caught.error == error
    assert caught.message.endswith(message)


def samples() -> dict[str, bytes]:
    photo = make_image(11, 64, 48)
    kinds = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG2000", "AVIF", "TGA", "PPM", "ICO")
    files = {kind: saved(photo, kind) for kind in kinds}
    files["TIFF-LZW"] = saved(photo, "TIFF", compression="tiff_lzw")
    files["JPEG-progressive"] = saved(photo, "JPEG", progressive=True)
    files["GIF-frames"] = saved(photo, "GIF", save_all=True, append_images=[make_image(12, 64, 48)])
    wide = np.arange(3072, dtype=np.uint16).reshape(48, 64)
    files["PNG-16"] = saved(Image.fromarray(wide), "PNG")
    return files


@pytest.mark.heavy
def test_damaged_files_are_decoded_or_rejected():
    """2,000 damaged files of all formats give an image or a RejectedError with a listed reason."""
    rng = random.Random(20)
    outcomes = set()
    spec = sized(8, 8)
    for kind, data in samples().items():
        for _ in range(2000 // len(samples())):
            damaged = bytearray(data)
            for _ in range(rng.choice((1, 1, 3, 10))):
                at = rng.randrange(min(len(data), rng.choice((64, 600, len(data)))))
                damaged[at] = rng.randrange(256)
            outcome = outcome_of(bytes(damaged), spec)
            assert outcome == "ok" or outcome[1] in REASONS, kind
            outcomes.add(outcome if outcome == "ok" else outcome[1])
    assert {"ok", "decode", "not_an_image"} <= outcomes


def outcome_of(data: bytes, spec) -> str | tuple[str, str, str]:
    try:
        convert_image(data, spec)
    except RejectedError as error:
        return error.stage, error.error, error.message
    return "ok"


COMPRESSIONS = {
    "1": ["group3", "group4", "tiff_ccitt"],
    "L": ["jpeg", "lzma", "packbits", "tiff_adobe_deflate", "tiff_deflate", "tiff_lzw", "zstd"],
    "RGB": ["jpeg", "lzma", "packbits", "tiff_adobe_deflate", "tiff_lzw", "zstd"],
    "YCbCr": ["jpeg", "packbits", "tiff_adobe_deflate", "tiff_lzw"],
}


def with_more_rows(tiff: bytes, rows: int, *, repeated: bool = False) -> bytes:
    """Return a TIFF of one strip whose header claims more rows than its data give.

    Args:
        tiff: A classic, little-endian TIFF.
        rows: Number of rows that are missing.
        repeated: Whether to give the compression twice: Pillow takes LZW, libtiff what is true.
    """
    (start,) = struct.unpack_from("<I", tiff, 4)
    (number,) = struct.unpack_from("<H", tiff, start)
    table = list(struct.iter_unpack("<HHII", tiff[start + 2 : start + 2 + 12 * number]))
    table = [(t, k, n, v + rows if t in (257, 278) else v) for t, k, n, v in table]
    if repeated:
        table.insert([entry[0] for entry in table].index(259) + 1, (259, 3, 1, 5))
    body = struct.pack("<H", len(table)) + b"".join(struct.pack("<HHII", *e) for e in table)
    return tiff[:4] + struct.pack("<I", len(tiff)) + tiff[8:] + body + bytes(4)


def test_rejects_pixels_that_libtiff_does_not_write(tmp_path):
    """They are what the memory held before: parts of the images that were decoded earlier."""
    picture = Image.effect_noise((99, 77), 60).convert("RGB")
    files = []
    for mode, compressions in COMPRESSIONS.items():
        for name in compressions:
            good = saved(picture.convert(mode), "TIFF", compression=name, strip_size=1 << 20)
            assert pixels(good).shape == (77, 99, 3)
            for rows, repeated in ((1, False), (300, False), (300, True)):
                files.append(tmp_path / f"{mode}-{name}-{rows}-{repeated}.tif")
                files[-1].write_bytes(with_more_rows(good, rows, repeated=repeated))
    found = decode_over_fills([str(path) for path in files])
    outcomes = {path.stem: results for path, results in zip(files, found, strict=True)}
    assert [name for name, results in outcomes.items() if len(set(results)) > 1] == []
    for name, (outcome, *_) in outcomes.items():
        # Fax data end with a row, and libtiff itself clears the samples of most YCbCr images.
        if not name.startswith(("1-", "YCbCr-")):
            assert "decode" in outcome, name
        if "-jpeg-300" in name or name.startswith("1-group4-300"):
            assert UNWRITTEN in outcome or name == "YCbCr-jpeg-300-True", name


def test_messages_are_reproducible_and_contain_no_addresses():
    files = [data[: len(data) // 2] for data in samples().values()] + [LFS, b"", b"\xff\xd8\xff"]
    first = [outcome_of(data, full()) for data in files]
    assert first == [outcome_of(bytes(bytearray(data)), full()) for data in files]
    for outcome in first:
        assert not re.search(r"0x[0-9a-f]{6,}", str(outcome))
    error = OSError(f"cannot identify image file {io.BytesIO(b'')!r}")
    assert plain_message(error) == "cannot identify image file"
    assert plain_message(OSError(f"bad {object()!r}\n  here")) == "bad here"
    assert plain_message(KeyError()) == "KeyError"


# Determinism and clean output


def dirty(kind: str) -> bytes:
    """Return an image with all metadata that the format can store."""
    photo = make_image(4, 120, 90)
    exif = Image.Exif()
    exif[ORIENTATION] = 1
    exif[0x010E] = "SECRET"
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    options = {"exif": exif, "icc_profile": profile, "dpi": (300, 300)}
    if kind == "PNG":
        text = PngImagePlugin.PngInfo()
        text.add_text("Comment", "SECRET")
        text.add(b"gAMA", struct.pack(">I", 45455))
        return saved(photo, kind, pnginfo=text, **options)
    if kind == "GIF":
        return saved(photo.convert("P"), kind, comment=b"SECRET", transparency=3)
    if kind == "CMYK":
        return saved(photo.convert("CMYK"), "JPEG", comment=b"SECRET", **options)
    return saved(photo, kind, comment=b"SECRET", xmp=b"<x:xmpmeta>SECRET</x:xmpmeta>", **options)


def jpeg_segments(data: bytes) -> list[tuple[int, bytes]]:
    """Return the markers before the scan, with their bodies."""
    found, offset = [], 2
    while data[offset + 1] != 0xDA:
        (length,) = struct.unpack_from(">H", data, offset + 2)
        found.append((data[offset + 1], data[offset + 4 : offset + 2 + length]))
        offset += 2 + length
    return found


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "CMYK", "TIFF", "WEBP"])
@pytest.mark.parametrize("way", ["none", "stretch"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_output_contains_no_metadata(kind, way, channels):
    data = dirty(kind)
    encoded = convert_image(data, sized(40, 30, way, encoding="png", channels=channels)).data
    assert png_chunks(encoded) == {b"IHDR", b"IDAT", b"IEND"}
    assert encoded[25] == {1: 0, 3: 2, 4: 6}[channels]  # color type: no transparency apart
    if channels == 4:
        return  # a JPEG has no alpha
    spec = sized(40, 30, way, encoding="jpeg", channels=channels)
    segments = jpeg_segments(convert_image(data, spec).data)
    # JFIF without a resolution; tables; the frame.
    assert {marker for marker, _ in segments} <= {0xE0, 0xDB, 0xC0, 0xC4}
    assert segments[0] == (0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")


def png_chunks(data: bytes) -> set[bytes]:
    names, offset = set(), 8
    while offset < len(data):
        (length,) = struct.unpack_from(">I", data, offset)
        names.add(data[offset + 4 : offset + 8])
        offset += 12 + length
    return names


@pytest.mark.parametrize("encoding", ["jpeg", "png", "raw"])
def test_output_does_not_depend_on_threads(encoding):
    picture = np.asarray(corners(99, 77))
    files = [*samples().values(), *(oriented(picture, "JPEG", n) for n in (3, 6))]
    spec = sized(24, 18, "crop", encoding=encoding)
    alone = [convert_image(data, spec) for data in files]
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        assert list(pool.map(lambda data: convert_image(data, spec), files * 8)) == alone * 8
