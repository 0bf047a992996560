"""Pictures of rejected images: what can be decoded of files that are still in the dataset's root.

The files are damaged, and the dataset may come from another person.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.loaders.html.render import SIDE, make_thumbnail

# Pillow's decoders of these clear the picture first, and have no code of other libraries but
# libjpeg-turbo and zlib.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
_UNSAFE = ("decoder_crashed", "decoder_memory", "decoder_timeout", "outside_root", "too_large")
_MAX_BYTES = 16 << 20
_MAX_PIXELS = 1 << 25
_TRIED, _SHOWN, _ALL = 30, 6, 24  # of each reason, and of all

Pictures = dict[str, list[dict[str, Any]]]


def draw_rejects(
    root: str, rejects: Iterable[Mapping[str, str]]
) -> dict[str, list[dict[str, Any]]]:
    """Returns pictures by reason: thumbnails with ``key`` and an ``alt`` text.

    Args:
        root: Folder of the inputs; of one that is not local, no file is read.
        rejects: ``key`` and ``error`` of each.
    """
    drawn: Pictures = {}
    tried = Counter[str]()
    for reject in rejects if os.path.isabs(str(root)) else ():
        key, reason = reject["key"], reject["error"]
        found = drawn.setdefault(reason, [])
        tried[reason] += 1
        full = len(found) == _SHOWN or sum(map(len, drawn.values())) == _ALL
        if full or tried[reason] > _TRIED or reason in _UNSAFE:
            continue
        pixels = decode_partly(root, key)
        if pixels is not None:
            found.append({**make_thumbnail(pixels), "key": key, "alt": f"Rejected: {key}"})
    return drawn


def decode_partly(root: str, key: str) -> np.ndarray[Any, Any] | None:
    """Returns a small picture of what an image file has before its damage; None if nothing.

    Args:
        root: A folder.
        key: Path of the file relative to it. Files that are elsewhere are not read.
    """
    from PIL import Image

    try:
        path = Path(root, key).resolve()
        inside = path.is_relative_to(Path(root).resolve()) and path.is_file()
        if not inside or path.stat().st_size > _MAX_BYTES:
            return None
        data = io.BytesIO(path.read_bytes())
        with warnings.catch_warnings(), Image.open(data, formats=_FORMATS) as image:
            warnings.simplefilter("ignore")
            image.draft("RGB", (SIDE, SIDE))
            if image.width * image.height > _MAX_PIXELS:
                return None
            with contextlib.suppress(Exception):
                image.load()
            image.tile = []  # keeps what was decoded
            image.thumbnail((SIDE, SIDE))
            pixels = np.asarray(image.convert("RGB"))
    except Exception:  # noqa: BLE001 - Pillow's plugins raise many types
        return None
    return pixels if pixels.size and pixels.min() < pixels.max() else None
