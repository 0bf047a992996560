"""Pictures of rejected images: what can be decoded of files in a folder that the user names.

The files are damaged, and the dataset, which names them, may come from another person.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.loaders.html.render import SIDE, make_thumbnail

# Pillow's decoders of these clear the picture first, and have no code of other libraries but
# libjpeg-turbo and zlib.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
_UNSAFE = {"decoder_crashed", "decoder_memory", "decoder_timeout", "outside_root", "too_large"}
_MAX_BYTES, _MAX_PIXELS = 16 << 20, 1 << 25
_REASONS, _TRIED, _SHOWN = 6, 30, 4  # shown are at most 24 pictures


def draw_rejects(
    root: str | os.PathLike[str], rejects: Sequence[Mapping[str, str]]
) -> dict[str, list[Any]]:
    """Returns a few pictures by reason; see ``draw_partly``.

    Args:
        root: Folder of the inputs.
        rejects: ``key`` and ``error`` of each.
    """
    drawn = {}
    reasons = dict.fromkeys(each["error"] for each in rejects if each["error"] not in _UNSAFE)
    for reason in islice(reasons, _REASONS):
        keys = [each["key"] for each in rejects if each["error"] == reason][:_TRIED]
        pictures = (draw_partly(root, key) for key in keys)
        drawn[reason] = [*islice(filter(None, pictures), _SHOWN)]
    return drawn


def draw_partly(root: str | os.PathLike[str], key: str) -> dict[str, Any] | None:
    """Returns a thumbnail of what an image file has before its damage; None if that is nothing.

    Args:
        root: A folder.
        key: Path of the file relative to it. Files that are elsewhere are not read.
    """
    from PIL import Image

    try:
        path = Path(root, key).resolve()
        inside = path.is_relative_to(Path(root).resolve()) and path.is_file()
        data = path.read_bytes() if inside and path.stat().st_size <= _MAX_BYTES else b""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
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
    shown = pixels.size and pixels.min() < pixels.max()
    return {**make_thumbnail(pixels), "key": key, "alt": f"Rejected: {key}"} if shown else None
