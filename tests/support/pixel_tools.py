"""Tools for tests of images: encoded images as arrays, and files written byte by byte."""

import ctypes
import io
import json
import os
import platform
import struct
import subprocess
import sys
import zlib
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shardmill.schemas import RejectedError
from shardmill.schemas.refs import REASONS
from shardmill.transforms import ImageSpec
from shardmill.transforms.images.convert import ConvertedImage, convert_image
from shardmill.transforms.images.resize import Size

ORIENTATION = 0x0112
UNWRITTEN = "they do not give all pixels"
RED, GREEN, BLUE, YELLOW = (230, 20, 20), (20, 200, 20), (20, 20, 230), (230, 220, 20)


def full(channels: int = 3, **options) -> ImageSpec:
    """Return a spec of raw pixels at the size of the file."""
    return ImageSpec(
        image_size=Size(1, 1), resize="none", encoding="raw", channels=channels, **options
    )


def sized(width: int, height: int, resize: str = "stretch", **options) -> ImageSpec:
    """Return a spec of raw pixels at another size."""
    options = {"encoding": "raw", **options}
    return ImageSpec(image_size=Size(width, height), resize=resize, **options)


def as_array(encoded: ConvertedImage, channels: int = 3) -> np.ndarray:
    """Return raw pixels as int, shape [height, width, channels]: differences do not overflow."""
    shape = (encoded.size.height, encoded.size.width, channels)
    return np.frombuffer(encoded.data, np.uint8).reshape(shape).astype(int)


def pixels(data: bytes, channels: int = 3, **options) -> np.ndarray:
    """Return the pixels of a file at full size."""
    return as_array(convert_image(data, full(channels, **options)), channels)


def rejection(data: bytes, spec: ImageSpec | None = None, **limits: int) -> RejectedError:
    """Return the error with which a file is rejected."""
    with pytest.raises(RejectedError) as caught:
        convert_image(data, spec or full(), **limits)
    assert caught.value.error in REASONS
    assert caught.value.stage == "decode"
    return caught.value


def over_white(color: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Composite colors over white by definition."""
    share = alpha[..., None] / 255
    return color * share + 255 * (1 - share)


def saved(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, depth: int, color: int, rows: bytes, *extra: bytes) -> bytes:
    """Return a PNG (ISO/IEC 15948); rows include their filter bytes."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    chunks = [png_chunk(b"IHDR", header), *extra, png_chunk(b"IDAT", zlib.compress(rows))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + png_chunk(b"IEND", b"")


def lossless_jpeg(pixels: np.ndarray, bits: int = 8) -> bytes:
    """Return a lossless JPEG (ITU-T T.81, annex H; predictor 1); shape [height, width, channels]."""
    height, width, channels = pixels.shape
    left = np.roll(pixels.astype(int), 1, axis=1)
    left[1:, 0], left[0, 0] = pixels[:-1, 0], 1 << (bits - 1)
    text = []
    for difference in (pixels.astype(int) - left).ravel().tolist():
        size = abs(difference).bit_length()  # coded with 5 bits, and the difference with as many
        value = difference if difference > 0 else difference + (1 << size) - 1
        text.append(f"{size:05b}" + (f"{value:0{size}b}" if size else ""))
    coded = "".join(text)
    coded += "1" * (-len(coded) % 8)
    scan = int(coded, 2).to_bytes(len(coded) // 8, "big").replace(b"\xff", b"\xff\0")
    frame = struct.pack(">BHHB", bits, height, width, channels)
    frame += b"".join(bytes((number, 0x11, 0)) for number in range(channels))
    table = bytes((0, 0, 0, 0, 0, 17, *bytes(11), *range(17)))
    start = bytes((channels, *(b for number in range(channels) for b in (number, 0)), 1, 0, 0))
    parts = [(b"\xff\xc3", frame), (b"\xff\xc4", table), (b"\xff\xda", start)]
    head = b"".join(marker + struct.pack(">H", len(body) + 2) + body for marker, body in parts)
    return b"\xff\xd8" + head + scan + b"\xff\xd9"


def tiff(pixels: np.ndarray, bits: int, *, sample_format: int = 1, photometric: int = 1) -> bytes:
    """Return an uncompressed grey TIFF 6.0 in the byte order of the array."""
    mark, order = (b"MM", ">") if pixels.dtype.byteorder == ">" else (b"II", "<")
    body = _twelve_bits(pixels) if bits == 12 else pixels.tobytes()
    height, width = pixels.shape
    tags = {
        256: width,
        257: height,
        258: bits,
        259: 1,
        262: photometric,
        273: 8,
        277: 1,
        278: height,
        279: len(body),
        339: sample_format,
    }
    entries = b"".join(struct.pack(order + "HHII", tag, 4, 1, n) for tag, n in tags.items())
    directory = struct.pack(order + "H", len(tags)) + entries + bytes(4)
    return mark + struct.pack(order + "HI", 42, 8 + len(body)) + body + directory


def _twelve_bits(pixels: np.ndarray) -> bytes:
    """Pack two samples into three bytes, high bits first."""
    first, second = pixels.reshape(-1, 2).astype(int).T
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=1)
    return packed.astype(np.uint8).tobytes()


def corners(width: int, height: int) -> Image.Image:
    """Return red and green quarters above blue and yellow: each orientation looks different."""
    image = Image.new("RGB", (width, height), RED)
    middle_x, middle_y = width // 2, height // 2
    image.paste(GREEN, (middle_x, 0, width, middle_y))
    image.paste(BLUE, (0, middle_y, middle_x, height))
    image.paste(YELLOW, (middle_x, middle_y, width, height))
    return image


# EXIF 2.32, tag 0112H: side of the scene that the stored row 0 and column 0 show.
EXIF_SIDES = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def stored_as(upright: np.ndarray, orientation: int) -> np.ndarray:
    """Return an image (height, width, channels) as a camera stores it with an EXIF orientation."""
    row, column = EXIF_SIDES[orientation]
    stored = upright.transpose(1, 0, 2) if row in ("left", "right") else upright
    stored = stored[::-1] if row in ("bottom", "right") else stored
    return np.ascontiguousarray(stored[:, ::-1] if column in ("bottom", "right") else stored)


def decode_over_fills(paths: list[str]) -> list[list[str]]:
    """Return of each file what it gives in memory filled with three different bytes.

    A separate process decodes them: of small blocks only the environment can fill the memory.
    """
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc fills memory")
    tunables = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    command = [sys.executable, "-W", "ignore", "-m", __name__]
    done = subprocess.run(
        command, input=json.dumps(paths), env=tunables, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def _outcome(data: bytes, fill: int) -> str:
    """Return a hash of the pixels, or the message of the reject; the fill is for malloc."""
    ctypes.CDLL(None).mallopt(-6, fill)  # M_PERTURB of malloc.h
    try:
        return sha256(convert_image(data, full(4)).data).hexdigest()
    except RejectedError as error:
        return str(error)


if __name__ == "__main__":
    contents = (Path(path).read_bytes() for path in json.load(sys.stdin))
    json.dump([[_outcome(data, fill) for fill in (1, 85, 170)] for data in contents], sys.stdout)
