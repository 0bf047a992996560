"""What is in a record, as values that can be printed as text or JSON. Loads no Beam.

Everything here is made from data, so nothing is trusted: only the beginning of long values is
kept, images are looked at by their headers alone, and numbers that JSON does not know are text.
"""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Mapping
from typing import Any

from shardmill.schemas.example.parse import Feature, looks_like_example, parse_example
from shardmill.schemas.file_signatures import image_format
from shardmill.schemas.schema_pbtxt.image_features import FORMAT, HEIGHT, WIDTH

MAX_VALUES = 20
MAX_TEXT = 400
MAX_BYTES = 64
MAX_FEATURES = 200
_RAW_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def describe_record(payload: bytes) -> dict[str, Any]:
    """Returns what is in a record.

    Keys: ``bytes`` (length), ``example`` (whether it is a tf.train.Example), then either
    ``features`` ({name: ``kind``, ``count``, ``values``: the first of them}, sorted by name, and
    ``more_features`` where there are too many) or the keys of ``describe_bytes``.
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
    """Returns a bytes value: ``bytes`` (length) and what it seems to be.

    That is ``image`` (``format``, ``width``, ``height``, ``mode``, or ``format`` and ``error``),
    else ``text`` (the beginning of it), else ``base64`` (of the beginning).
    """
    described: dict[str, Any] = {"bytes": len(value)}
    image = describe_image(value)
    text = None if image else _text_of(value)
    if image:
        described["image"] = image
    elif text is not None:
        described["text"] = text
    else:
        described["base64"] = base64.b64encode(value[:MAX_BYTES]).decode()
    return described


def describe_image(value: bytes) -> dict[str, Any] | None:
    """Returns what an image's header says, or None where no known format begins.

    Pixels are not decoded, so bombs and broken images are only named.
    """
    kind = image_format(value).upper()
    if not kind:
        return None
    if kind == "BMP" and len(value) < 26:
        return None  # two letters begin many texts
    # Only needed where there are images.
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


def _describe_feature(feature: Feature) -> dict[str, Any]:
    values = [_describe_value(value) for value in feature.values[:MAX_VALUES]]
    return {"kind": feature.kind, "count": len(feature.values), "values": values}


def _describe_value(value: bytes | float) -> Any:
    if isinstance(value, bytes):
        return describe_bytes(value)
    if isinstance(value, int):
        return value
    # JSON has no word for these; and float32 is best read with the digits that float32 has.
    return shorten_float(value) if math.isfinite(value) else str(value)


def shorten_float(value: float) -> float:
    """Returns the shortest number that is the same float32."""
    import numpy as np

    return float(str(np.float32(value)))


def _describe_raw_images(features: Mapping[str, Feature], described: dict[str, Any]) -> None:
    """Says of pixels without a header what the features beside them say."""
    one = {name: f.values[0] for name, f in features.items() if len(f.values) == 1}
    height, width = one.get(HEIGHT), one.get(WIDTH)
    if one.get(FORMAT) != b"raw" or not isinstance(height, int) or not isinstance(width, int):
        return
    for name, value in one.items():
        if not isinstance(value, bytes) or height < 1 or width < 1 or name not in described:
            continue
        channels, rest = divmod(len(value), height * width)
        if not rest and channels in _RAW_MODES and name != FORMAT:
            image = {"format": "raw", "width": width, "height": height}
            image["mode"] = _RAW_MODES[channels]
            described[name]["values"] = [{"bytes": len(value), "image": image}]


def _text_of(value: bytes) -> str | None:
    """Returns the beginning of a text, or None for bytes that are none."""
    begin = value[: 4 * MAX_TEXT]
    try:
        text = begin.decode()
    except UnicodeDecodeError as error:
        # A long text may be cut inside a character.
        if len(begin) == len(value) or error.start < len(begin) - 3:
            return None
        text = begin[: error.start].decode()
    # Control characters other than those of plain texts: no text, but escapes of a terminal are
    # still best read as one.
    if any(ord(char) < 32 and char not in "\t\n\r\x1b" for char in text) or "\x7f" in text:
        return None
    return text[:MAX_TEXT]
