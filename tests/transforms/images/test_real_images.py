"""Pixels of real files, compared with other decoders and with facts about the files."""

import csv
import io
import re
import struct
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shardmill.schemas.refs import REASONS, RejectedError
from shardmill.transforms.images.convert import convert_image
from shardmill.transforms.images.decode import decode_image
from tests.conftest import SOAK
from tests.support.pixel_tools import (
    EXIF_SIDES,
    UNWRITTEN,
    as_array,
    decode_over_fills,
    full,
    over_white,
    pixels,
    sized,
    stored_as,
)

PNG, JPEG, GIF, BMP = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM"
SETS = [
    "photos/caltech101",
    "photos/cats_dogs_folders",
    "photos/cifar10_jpg",
    "photos/dogs_vs_cats",
    "photos/dogs_vs_cats_100px_mixed_gray",
    "photos/flower_photos",
    "photos/flowers_128px_with_junk",
    "photos/imagenet_sample",
    "photos/mixed_formats_dali",
    "photos/mnist_png",
    "photos/standard_images",
    "photos/voc_bccd",
    "photos/voc_fish_mixed",
    "photos/voc_helmet",
    "photos/voc_jpegext",
    "photos/voc_raccoon",
    "photos/voc_traffic",
    "bad/dali_bitdepth_lossless",
    "bad/exif_orientation",
    "bad/exif_samples",
    "bad/git_lfs_pointers",
    "bad/golang_image",
    "bad/image_rs",
    "bad/imagetestsuite",
    "bad/libjpeg_turbo",
    "bad/libspng_crashers",
    "bad/pillow_tests",
    "bad/pngsuite",
    "bad/skimage_truncated",
    "bad/zune_fuzz",
    "bad/zune_images",
]
FEWER = 4
# TIFFs of which libtiff decodes a part and leaves the other pixels as they were in the memory.
UNDEFINED = {
    "m2-63c8b14ea08a18c884d05a3431716047.tif",
    "m5-f0d7bcb90496c323c880a9773dfe93ff.tif",
}


def files(shared: Path, name: str) -> list[Path]:
    found = sorted(p for p in (shared / name).rglob("*") if p.is_file() and p.suffix != ".xml")
    assert found, name
    # Photos of one set are alike: other sets have the odd files.
    return found if SOAK or not name.startswith("photos") else found[::FEWER]


@cache
def facts(shared: Path, name: str) -> dict[str, dict[str, str]]:
    """Return the facts about each file from the index of a set."""
    text = (shared / f"{name}.index.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return {row["path"]: row for row in rows}


def rejection(data: bytes) -> RejectedError | None:
    """Return the error with which a file is rejected, or None."""
    try:
        convert_image(data, full())
    except RejectedError as error:
        return error
    return None


# Accepted and rejected files


def plain_pillow(data: bytes) -> Image.Image | None:
    """Decode a file with Pillow and its default settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(data))
            image.load()
        except Exception:  # noqa: BLE001 - Pillow may raise anything
            return None
    return image


@pytest.mark.parametrize("name", SETS)
def test_accepts_what_pillow_decodes_and_rejects_other_files(shared_data, name):
    for path in files(shared_data, name):
        data = path.read_bytes()
        error, image = rejection(data), plain_pillow(data)
        if error is None:
            assert image is not None, path
            continue
        assert error.error in REASONS, path
        assert error.stage == "decode", path
        assert not re.search(r"0x[0-9a-f]{5,}", error.message), (path, error.message)
        again = rejection(bytes(bytearray(data)))
        assert str(again) == str(error), path
        if image is not None and path.name not in UNDEFINED:
            assert error.error == {"F": "float_range", "I": "int_range"}.get(image.mode), path


@pytest.mark.heavy
def test_the_file_alone_decides_the_pixels(shared_data):
    """No codec leaves pixels as they were in the memory: three fills of it give one result."""
    paths = [path for name in SETS for path in files(shared_data, name)]
    if not SOAK:  # libtiff decodes in part
        paths = [path for path in paths if "tif" in path.suffix] + paths[::5]
    found = decode_over_fills([str(path) for path in paths])
    assert len(found) == len(paths)
    assert [path for path, results in zip(paths, found, strict=True) if len(set(results)) > 1] == []
    rejected = {path.name for path, (one, *_) in zip(paths, found, strict=True) if UNWRITTEN in one}
    assert rejected == UNDEFINED


# Comparison with libjpeg, libpng and libwebp as TensorFlow calls them


def decode_jpeg(data: bytes) -> np.ndarray:
    """Decode with the exact DCT of libjpeg; the default of TensorFlow is a less exact one."""
    import tensorflow as tf

    return tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE").numpy().astype(int)


def check_jpeg(data: bytes, mode: str, orientation: int) -> bool:
    reference = decode_jpeg(data)
    found = pixels(data)
    # TensorFlow ignores the orientation, so it is undone.
    found = stored_as(found, orientation if orientation in EXIF_SIDES else 1)
    assert found.shape == reference.shape
    # CMYK: both multiply each ink by black, with different rounding.
    assert np.abs(found - reference).max() <= (1 if mode == "CMYK" else 0)
    return True


def check_png(data: bytes, _mode: str, orientation: int) -> bool:
    import tensorflow as tf

    if orientation not in (0, 1):
        return False
    depth, color = data[24], data[25]
    found = pixels(data)
    if color in (4, 6) or b"tRNS" in data[: data.index(b"IDAT")]:
        reference = tf.io.decode_png(data, channels=4).numpy().astype(int)
        four = pixels(data, 4)
        tolerance = 1 if depth == 16 else 0  # libpng truncates 16 bits to 8; here grey is rounded
        visible = reference[..., 3] > 0
        assert (four[..., 3] == reference[..., 3]).all()
        assert np.abs(four - reference)[visible].max(initial=0) <= tolerance
        assert (
            np.abs(found - over_white(reference[..., :3], reference[..., 3])).max() <= 1 + tolerance
        )
    elif depth == 16:
        reference = tf.io.decode_png(data, channels=3, dtype=tf.uint16).numpy() / 257
        # Grey is rounded to nearest; Pillow truncates colors to their high bytes.
        assert np.abs(found - reference).max() <= (0.5 if color == 0 else 1)
    else:
        reference = tf.io.decode_png(data, channels=3).numpy().astype(int)
        assert (found == reference).all()
    return True


def check_gif(data: bytes, _mode: str, _orientation: int) -> bool:
    import tensorflow as tf

    reference = tf.image.decode_image(data, channels=3, expand_animations=False).numpy().astype(int)
    found = pixels(data)
    if found.shape != reference.shape:
        return False  # TensorFlow returns the frame without the screen
    # Transparent pixels are black in TensorFlow.
    same = (found == reference).all(axis=-1)
    cleared = (found == 255).all(axis=-1) & (reference == 0).all(axis=-1)
    assert (same | cleared).all()
    return True


def check_bmp(data: bytes, mode: str, _orientation: int) -> bool:
    import tensorflow as tf

    reference = masked_bmp(data) if data[28] == 32 else tf.io.decode_bmp(data).numpy().astype(int)
    if mode == "P" or reference.shape[-1] == 1:
        return False  # TensorFlow returns palette indices as grey
    reference = (
        over_white(reference[..., :3], reference[..., 3]) if mode == "RGBA" else reference[..., :3]
    )
    assert np.abs(pixels(data) - reference).max() <= 1
    return True


def masked_bmp(data: bytes) -> np.ndarray:
    """Decode a 32-bit BMP by the bit masks of its header, which TensorFlow ignores."""
    start, _, width, height = struct.unpack_from("<IIii", data, 10)
    words = np.frombuffer(data, "<u4", width * abs(height), start).reshape(-1, width)
    compression = struct.unpack_from("<I", data, 30)[0]
    masks = (0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    if compression == 3:  # BI_BITFIELDS
        masks = struct.unpack_from("<4I", data, 54)
    channels = [(words & mask) / max(mask, 1) * 255 for mask in masks]
    rgba = np.rint(np.stack(channels, axis=-1)).astype(int)
    return rgba[::-1] if height > 0 else rgba


def check_webp(data: bytes, _mode: str, orientation: int) -> bool:
    import tensorflow as tf

    reference = tf.image.decode_image(data, expand_animations=False).numpy().astype(int)
    found = stored_as(pixels(data), orientation or 1)
    if reference.shape[-1] == 4:
        assert np.abs(found - over_white(reference[..., :3], reference[..., 3])).max() <= 1
    else:
        assert (found == reference).all()
    return True


CHECKS = {"JPEG": check_jpeg, "PNG": check_png, "GIF": check_gif, "BMP": check_bmp}
CHECKS["WEBP"] = check_webp
# Minimum number of files that are compared in sets with enough files that TensorFlow decodes.
COMPARED = {
    "photos/dogs_vs_cats": 200,
    "photos/cifar10_jpg": 300,
    "photos/mnist_png": 300,
    "photos/mixed_formats_dali": 25,
    "photos/standard_images": 25,
    "bad/exif_orientation": 9,
    "bad/golang_image": 12,
    "bad/imagetestsuite": 24,
    "bad/pillow_tests": 120,
    "bad/pngsuite": 49,
    "bad/zune_images": 8,
    "bad/image_rs": 17,
    "bad/exif_samples": 20,
}


@pytest.mark.parametrize("name", SETS)
def test_pixels_equal_those_of_tensorflow(shared_data, name):
    from tensorflow.errors import InvalidArgumentError

    compared = 0
    rows = facts(shared_data, name)
    for path in files(shared_data, name):
        row = rows.get(path.relative_to(shared_data / name).as_posix())
        if row is None or row["format"] not in CHECKS or rejection(path.read_bytes()):
            continue
        try:
            check = CHECKS[row["format"]]
            orientation = int(row["exif_orientation"] or 1)
            compared += check(path.read_bytes(), row["mode"], orientation)
        except InvalidArgumentError:
            continue  # TensorFlow cannot read it: see disagree.tsv
        except AssertionError as error:
            raise AssertionError(f"{path}: {error}") from error
    assert compared >= COMPARED.get(name, 0) // (1 if SOAK or name.startswith("bad") else FEWER + 1)


# Pairs of files


PAIRS = [
    # file, reference, channels, greatest mean difference
    (
        "../../photos/mixed_formats_dali/single/jpeg2k/2/tiled-cat-3449999_640.jp2",  # lossy
        "../../numpy/decode_reference_dali/png/cat-3449999_640.png",
        3,
        2,
    ),
    ("sunraster.im1", "sunraster.im1.png", 3, 0),
    ("ftex_uncompressed.ftu", "ftex_uncompressed.png", 3, 0),
    ("tiff_strip_planar_16bit_RGBa.tiff", "tiff_16bit_RGBa_target.png", 4, 0),
    ("tiff_tiled_planar_16bit_RGBa.tiff", "tiff_16bit_RGBa_target.png", 3, 0),
    ("16bit.cropped.jp2", "16bit.deflate.tif", 3, 0),  # 16-bit grey in two formats
    ("hopper.im", "hopper.qoi", 3, 0),
    ("hopper_float_dpi_2.tif", "hopper.qoi", 3, 0),
    ("hopper_idat_after_image_end.png", "hopper.qoi", 3, 0),
    ("hopper.fits", "hopper.ppm", 1, 0),
    ("hopper_orientation_4.webp", "hopper.ppm", 3, 6),
    ("hopper_orientation_5.webp", "hopper.ppm", 3, 6),
    ("hopper_orientation_6.webp", "hopper.ppm", 3, 6),
    ("hopper_orientation_8.jpg", "hopper.ppm", 3, 6),
    ("avif/hopper.avif", "hopper.ppm", 3, 6),
    # The label in the picture differs: 7 or 8. A wrong orientation gives over 40.
    ("avif/rot0mir1.avif", "avif/rot2mir0.avif", 3, 10),
    ("avif/rot2mir1.avif", "avif/rot2mir0.avif", 3, 10),
    ("avif/rot3mir0.avif", "avif/rot2mir0.avif", 3, 10),
    ("avif/rot3mir1.avif", "avif/rot2mir0.avif", 3, 10),
    ("tga/common/200x32_l_bl_raw.tga", "tga/common/200x32_l_tl_raw.tga", 1, 0),
    ("tga/common/200x32_p_bl_rle.tga", "tga/common/200x32_p_tl_rle.tga", 3, 0),
    ("tga/common/200x32_p_bl_raw.tga", "tga/common/200x32_rgb_tl_raw.tga", 3, 3),
    ("tga/common/200x32_rgb_tl_rle.tga", "tga/common/200x32_rgb_tl_raw.tga", 3, 0),
    ("tga/common/200x32_rgba_bl_rle.tga", "tga/common/200x32_rgba_tl_raw.tga", 4, 0),
]


@pytest.mark.parametrize(("name", "reference", "channels", "tolerance"), PAIRS)
def test_one_image_in_two_formats(shared_data, name, reference, channels, tolerance):
    folder = shared_data / "bad" / "pillow_tests"
    found = pixels((folder / name).read_bytes(), channels)
    expected = pixels((folder / reference).read_bytes(), channels)
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() <= tolerance
    assert np.ptp(expected) > 0


def test_range_of_wide_greys(shared_data):
    folder = shared_data / "bad" / "pillow_tests"
    nine = pixels((folder / "9bit.j2k").read_bytes(), 1)
    assert (nine.min(), nine.max()) == (0, 255)
    assert 80 < nine.mean() < 110  # a CT slice; clipped it is nearly white
    chess = shared_data / "photos/standard_images/skimage_data/chessboard_GRAY_U16B.tif"
    # Its squares are 0 and 255 of 65535; a decoder that clips gives 0 and 255 of 255.
    assert set(np.unique(pixels(chess.read_bytes()))) == {0, 1}


# Accuracy of scaled decoding


@pytest.mark.parametrize(("side", "step", "least"), [(32, 6, 60), (64, 3, 50)])
def test_scaled_decoding_is_close_to_full_decoding(shared_data, side, step, least):
    """Measured over all 1,173 photos: median 56.9 dB and no less than 40.5 at 32x32 (486 files)."""
    found = []
    for path in sorted((shared_data / "photos").rglob("*.jp*g"))[::step]:
        data, spec = path.read_bytes(), sized(side, side, reducing_gap=3.0)
        if not data.startswith(JPEG):
            continue
        decoded = decode_image(data, spec.resize, spec.gap)
        if sorted(decoded.image.size) == sorted(decoded.geometry.stored):
            continue  # too small to be decoded at a fraction
        fast = as_array(convert_image(data, spec))
        exact = as_array(convert_image(data, sized(side, side, reducing_gap=0.0)))
        found.append(10 * np.log10(255**2 / max(((fast - exact) ** 2).mean(), 1e-9)))
    assert len(found) >= least
    assert np.mean(np.array(found) >= 40) >= 0.95
    assert np.median(found) >= 50
