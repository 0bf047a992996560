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

from shardmill.schemas import RejectedError
from shardmill.schemas.refs import REASONS
from shardmill.transforms.images.convert import convert_image
from tests.conftest import SOAK
from tests.support.pixel_tools import (
    EXIF_SIDES,
    UNWRITTEN,
    decode_over_fills,
    full,
    over_white,
    pixels,
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


@pytest.mark.sweep
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


@pytest.mark.sweep
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


# Accuracy of scaled decoding
