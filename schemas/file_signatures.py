"""File signatures: how files of each format begin, and how error messages name the format."""

from __future__ import annotations

import json
import re
import zlib
from typing import Literal, NamedTuple

Category = Literal["image", "compression", "other"]

GZIP = b"\x1f\x8b"  # RFC 1952 section 2.3.1: ID1, ID2
_PRINTABLE = bytes(range(32, 127)) + b"\t\r\n"
_OBJECT = re.compile(rb'\s*\{\s*("(?:[^"\\]|\\.)*"\s*:|\})', re.DOTALL)  # RFC 8259 section 4
_ARRAY = re.compile(rb"\s*\[\s*\{")
# ISO/IEC 23008-12 section 10: a brand of HEVC, or the brand of any HEIF file with one of HEVC.
_HEIC = rb".{4}ftyp(?:(?:mi|ms)f1.{4}(?:.{4}){0,12}?)?he[iv][cxms]"
_SHORTEST = 3  # bytes of a signature that identifies a file whose format is not known


class Signature(NamedTuple):
    """The signature of one file format.

    Attributes:
        name: Name of the format, in lower case.
        description: The format in a message, as in "it is not a CSV file but {description}"; it
            ends with the remedy where there is one.
        pattern: Regular expression that matches the first bytes.
        category: Whether the file is an image, a compressed stream or something else.
    """

    name: str
    description: str
    pattern: re.Pattern[bytes]
    category: Category


def _table(category: Category, *rows: tuple[str, str, bytes]) -> tuple[Signature, ...]:
    return tuple(
        Signature(name, description, re.compile(pattern, re.DOTALL), category)
        for name, description, pattern in rows
    )


SIGNATURES = (
    *_table(
        "image",
        ("jpeg", "a JPEG image", rb"\xff\xd8\xff"),  # ITU-T T.81 annex B: SOI and a marker
        ("png", "a PNG image", rb"\x89PNG\r\n\x1a\n"),  # ISO/IEC 15948 section 5.2
        ("gif", "a GIF image", rb"GIF8[79]a"),
        ("webp", "a WebP image", rb"RIFF.{4}WEBP"),  # RFC 9649 section 2.4
        ("tiff", "a TIFF image", rb"II[*+]\0|MM\0[*+]"),  # "+" in BigTIFF
        ("bmp", "a BMP image", rb"BM"),
    ),
    *_table(
        "compression",
        ("gzip", "gzip data", rb"\x1f\x8b\x08"),  # RFC 1952: CM=8 is the only method
        ("zstd", "Zstandard data", rb"\x28\xb5\x2f\xfd"),  # RFC 8878 section 3.1.1
        # A level, and the signature of a block or of the end of the stream.
        ("bzip2", "bzip2 data", rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
        ("xz", "xz data", rb"\xfd7zXZ\0"),
    ),
    *_table(
        "other",
        (
            "excel",
            "an Excel workbook: save each sheet as a CSV file",
            rb"PK\x03\x04.{26}(\[Content_Types\]|_rels/|docProps/|xl/).*\bxl/",
        ),
        # The name of the first member follows 26 bytes of its header (APPNOTE 4.3.7).
        (
            "office",
            "an Office file: save each table as a CSV file",
            rb"PK\x03\x04.{26}(\[Content_Types\]|_rels/|docProps/|xl/)",
        ),
        ("npz", "an .npz file", rb"PK\x03\x04.{26}[^/\0]{1,200}?\.npy"),
        ("zip", "a ZIP archive", rb"PK(\x03\x04|\x05\x06)"),
        ("parquet", "a Parquet file", rb"PAR[1E]"),  # E: with an encrypted footer
        ("arrow", "an Arrow file", rb"ARROW1\0\0"),
        ("hdf5", "an HDF5 file", rb"\x89HDF\r\n\x1a\n"),
        ("npy", "a NumPy file", rb"\x93NUMPY"),
        ("avro", "an Avro file", rb"Obj\x01"),
        ("pdf", "a PDF document", rb"%PDF-"),
        ("sqlite", "an SQLite database", rb"SQLite format 3\0"),
        (
            "ole",
            "an old Excel or Word file (.xls, .doc): save each sheet as CSV",
            rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        ),
        ("arff", "a Weka file (.arff): write it as CSV", rb"(?i:@relation)\s"),
        ("matrix", "a Matrix Market file: write it as CSV or .npy", rb"%%MatrixMarket\s"),
        # Python's pickle.py: PROTO with the number of a version that has it, and an opcode.
        ("pickle", "pickled Python data, which is never loaded", rb"\x80[\2-\5][\x95(\]}c]"),
        ("elf", "a program", rb"\x7fELF"),
        ("heic", "an HEIC image", _HEIC),
        ("7z", "a 7z archive", rb"7z\xbc\xaf\x27\x1c"),
        ("rar", "a RAR archive", rb"Rar!\x1a\x07"),
        ("tar", "a tar archive", rb".{257}ustar"),
        ("lz4", "LZ4 data", rb"\x04\x22\x4d\x18"),
        ("compress", "data of the program compress (.Z): decompress it", rb"\x1f\x9d[\x80-\x9f]"),
        ("lzip", "lzip data: decompress it", rb"LZIP[\0\1]"),
        ("snappy", "Snappy data: decompress it", rb"\xff\x06\0\0sNaPpY"),
        ("html", "a web page: download the file again", rb"\s*<((?i:!doctype\s+html)|(?i:html)\b)"),
        ("svg", "an SVG drawing: export it as PNG", rb"\s*<svg\s"),
        ("xml", "an XML document: download the file again", rb"\s*<\?xml\s"),
        # git-lfs: docs/spec.md
        ("lfs", "a Git LFS pointer: run `git lfs pull`", rb"version https://git-lfs\.github\.com/"),
    ),
)
_IMAGES = {signature.name: signature for signature in SIGNATURES if signature.category == "image"}
_IMAGES["jpg"] = _IMAGES["jpeg"]
IMAGE_FORMATS = frozenset(_IMAGES)


def has_image_format(data: bytes, name: str) -> bool:
    """Return whether data begins like an image of the format, one of ``IMAGE_FORMATS``."""
    return bool(_IMAGES[name].pattern.match(data))


def is_heic(data: bytes) -> bool:
    """Return whether data begins like an image that is compressed by HEVC, as phones make them."""
    return bool(re.match(_HEIC, data, re.DOTALL))


def image_format(data: bytes) -> str:
    """Return the image format that data begins like, or an empty string."""
    return next((name for name in _IMAGES if has_image_format(data, name)), "")


def compression_format(data: bytes) -> str:
    """Return the compression (``gzip``, ``zstd`` …) that data begins like, or an empty string."""
    compressions = (signature for signature in SIGNATURES if signature.category == "compression")
    return next((signature.name for signature in compressions if signature.pattern.match(data)), "")


def zlib_content(head: bytes, size: int) -> bytes | None:
    """Return the first bytes of the content of zlib data, or None for other data.

    Args:
        head: The first bytes of the data.
        size: Most bytes to return.
    """
    # RFC 1950 section 2.2: CM is 8, CINFO at most 7, and the two bytes are a multiple of 31.
    if len(head) < 2 or head[0] & 15 != 8 or head[0] > 0x7F or (head[0] << 8 | head[1]) % 31:
        return None
    try:
        return zlib.decompressobj().decompress(head, size)
    except zlib.error:
        return None


def describe_format(data: bytes) -> str:
    """Return the description of the format that data begins like, or an empty string.

    Text may begin with the letters of a signature too ("PAR1,PAR2"): a signature of letters and
    digits counts only when bytes that are not printable follow within 8 bytes.
    """
    for signature in SIGNATURES:
        match = signature.pattern.match(data)
        if not match or match.end() < _SHORTEST:
            continue
        if not match.group().isalnum() or data[: match.end() + 8].strip(_PRINTABLE):
            return signature.description
    return ""


def json_format(head: bytes) -> str:
    """Return ``jsonl`` if text begins like JSON Lines, ``json`` if like a JSON document, or "".

    Args:
        head: The first bytes, in UTF-8.
    """
    lines = head.split(b"\n")[:-1]  # the last one may be cut
    if head.lstrip().startswith(b"{") and any(map(_is_object, lines)):  # the first may be damaged
        return "jsonl"
    if _OBJECT.match(head):
        if lines:
            return "json"
        return "jsonl"
    if _ARRAY.match(head):
        return "json"
    return ""


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
