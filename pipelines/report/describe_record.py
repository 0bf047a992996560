"""Describe records as values that can be printed as text or JSON.

Records are untrusted: only the start of long values is kept, only the headers of images are read,
and numbers that JSON cannot hold become text.
"""

from __future__ import annotations

import base64
import codecs
import math
import warnings
from collections.abc import Mapping
from typing import Any

from shardmill.schemas.example.parse import FeatureValues, looks_like_example, parse_example
from shardmill.schemas.file_signatures import image_format
from shardmill.schemas.schema_pbtxt.image_features import FORMAT, HEIGHT, WIDTH

MAX_VALUES = 20  # of a feature
MAX_TEXT = 400  # characters of a value
MAX_BYTES = 64  # of a value that is neither an image nor text
MAX_FEATURES = 200  # of a record
_RAW_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def describe_record(payload: bytes) -> dict[str, Any]:
    """Return the content of a record.

    Returns:
        ``bytes`` (length) and ``example`` (whether it is a tf.train.Example). Of an example also
        ``features`` ({name: ``kind``, ``count`` and ``values``, the first ones}, sorted by name)
        and ``more_features`` (how many are left out, if any); of other records the keys of
        ``describe_bytes``.
    """
    if not looks_like_example(payload):
        return {**describe_bytes(payload), "example": False}
    features = parse_example(payload)
    names = sorted(features, key=lambda name: name.encode())
    record: dict[str, Any] = {
        "bytes": len(payload),
        "example": True,
        "features": {name: _describe_feature(features[name]) for name in names[:MAX_FEATURES]},
    }
    if len(names) > MAX_FEATURES:
        record["more_features"] = len(names) - MAX_FEATURES
    _describe_raw_images(features, record["features"])
    return record


def describe_bytes(value: bytes) -> dict[str, Any]:
    """Return the length and content of a bytes value.

    Returns:
        ``bytes`` (length) and one of: ``image`` (``format``, ``width``, ``height`` and ``mode``, or
        ``format`` and ``error``), ``text`` (the start of it), ``base64`` (of the first bytes).
    """
    described: dict[str, Any] = {"bytes": len(value)}
    image = describe_image(value)
    text = None if image else _decode_text(value)
    if image:
        described["image"] = image
    elif text is not None:
        described["text"] = text
    else:
        described["base64"] = base64.b64encode(value[:MAX_BYTES]).decode()
    return described


def describe_image(value: bytes) -> dict[str, Any] | None:
    """Return format and size of an image, or None if the bytes are not an image of a known format.

    Pixels are not decoded, so that decompression bombs and truncated images do no harm.
    """
    kind = image_format(value).upper()
    if not kind:
        return None
    if kind == "BMP" and len(value) < 26:
        return None  # many texts begin with "BM"
    import io

    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(value), formats=[kind]) as image:
                size = {"width": image.width, "height": image.height, "mode": image.mode}
    except Image.DecompressionBombError:
        return {"format": kind, "error": "too many pixels to open"}
    except Exception:  # noqa: BLE001 - Pillow's plugins raise many types
        if kind == "BMP":
            return None
        return {"format": kind, "error": "does not open"}
    return {"format": kind, **size}


def _describe_feature(feature: FeatureValues) -> dict[str, Any]:
    values = [_describe_value(value) for value in feature.values[:MAX_VALUES]]
    return {"kind": feature.kind, "count": len(feature.values), "values": values}


def _describe_value(value: bytes | float) -> Any:
    if isinstance(value, bytes):
        return describe_bytes(value)
    if isinstance(value, int):
        return value
    # JSON has no NaN and no infinities.
    return shorten_float(value) if math.isfinite(value) else str(value)


def shorten_float(value: float) -> float:
    """Return the shortest decimal number that rounds to the same float32."""
    import numpy as np

    return float(str(np.float32(value)))


def _describe_raw_images(features: Mapping[str, FeatureValues], described: dict[str, Any]) -> None:
    """Describe raw pixels, which have no header, by the features for format, height and width."""
    single = {name: f.values[0] for name, f in features.items() if len(f.values) == 1}
    height, width = single.get(HEIGHT), single.get(WIDTH)
    if single.get(FORMAT) != b"raw" or not isinstance(height, int) or not isinstance(width, int):
        return
    for name, value in single.items():
        if not isinstance(value, bytes) or height < 1 or width < 1 or name not in described:
            continue
        channels, remainder = divmod(len(value), height * width)
        if not remainder and channels in _RAW_MODES and name != FORMAT:
            image = {"format": "raw", "width": width, "height": height}
            image["mode"] = _RAW_MODES[channels]
            described[name]["values"] = [{"bytes": len(value), "image": image}]


def _decode_text(value: bytes) -> str | None:
    """Return the start of a text, or None if the bytes are not text in UTF-8."""
    start = value[: 4 * MAX_TEXT]
    try:  # the end of start may be inside a character
        text = codecs.getincrementaldecoder("utf-8")().decode(start, len(start) == len(value))
    except UnicodeDecodeError:
        return None
    # Text with terminal escape sequences is more readable as text than as base64.
    if any(ord(char) < 32 and char not in "\t\n\r\x1b" for char in text) or "\x7f" in text:
        return None
    return text[:MAX_TEXT]
