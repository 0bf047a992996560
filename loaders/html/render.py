"""Rendering of HTML by Jinja templates, which escape all data; histograms and thumbnails in it."""

from __future__ import annotations

import base64
import io
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jinja2
import numpy as np

from shardmill.loaders.boxes import BOX_SIDES
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.dataset.read_manifest import describe_manifest
from shardmill.schemas.numbers import human_bytes, plural, printable, short_number
from shardmill.schemas.refs import REASONS
from shardmill.schemas.tfrecord.scanner import FAULTS

_BINS = 24
_TAIL = 0.99  # a histogram with few far larger values ends at this quantile
_MIN_WIDTH = 1e-290  # of all bars; NumPy cannot divide much less

SIDE = 96  # pixels
_QUALITIES, _MAX_THUMBNAIL = (75, 50, 25, 10), 4000  # bytes: a page has about 300 thumbnails
_BOX = "#ffd400"
_MAX_CLASS_ID = 31  # of pixels that are class ids rather than shades of grey


def render(template: str, values: Mapping[str, Any]) -> str:
    """Returns the HTML of a template in this folder."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.dirname(__file__)),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": human_bytes,
        "plural": plural,
        "short": partial(short_number, digits=4),
        "command": shlex.join,
        "cell": _cell,
        "histogram": make_histogram,
        "meaning": (FAULTS | REASONS).get,
    }
    return environment


def render_summary(
    manifest: Manifest, path: str, findings: Sequence[Any] = (), notes: Sequence[str] = ()
) -> str:
    """Returns a heading, a table of the splits and a list of findings, for notebooks.

    Args:
        manifest: The manifest of a dataset.
        path: The dataset's path.
        findings: ``line``, ``remedy`` and ``name`` of each.
        notes: Sentences about files that could not be read.
    """
    page = {"path": path, "findings": findings, "notes": notes, **describe_manifest(manifest)}
    return render("summary.html", page)


def render_examples(title: str, examples: Sequence[Any]) -> str:
    """Returns a table of examples with thumbnails of images, for notebooks.

    Args:
        title: A line above the table.
        examples: Dicts, pairs, or any other values.
    """
    rows = []
    for example in examples:
        if isinstance(example, dict):
            rows.append(example)
        else:
            rows.append(dict(enumerate(example if isinstance(example, tuple) else (example,))))
    return render("examples.html", {"title": title, "rows": rows})


def _cell(value: Any, name: object, row: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns a thumbnail with the boxes of a row, or ``text``."""
    if isinstance(value, np.ndarray) and is_picture(value.shape, value.dtype):
        sides = [row.get(f"image/object/bbox/{side}", ()) for side in BOX_SIDES]
        boxes = np.stack(sides, axis=-1) if len({*map(len, sides)}) == 1 else np.empty((0, 4))
        return {**make_thumbnail(value, boxes), "alt": f"{name}, {value.shape}"}
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return {"text": " ".join(text.split())}


@np.errstate(all="ignore")  # sums may overflow
def make_histogram(values: Any) -> dict[str, Any]:
    """Returns a histogram of the finite numbers, or an empty dict.

    Returns:
        ``bars`` (smallest number, largest number and count of each), ``tail`` (whether the last bar
        has all larger numbers too), ``min``, ``max``, ``median``, ``mean`` and ``std``.
    """
    numbers = np.asarray(values, np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size or not np.isfinite(numbers.max() - numbers.min()):
        return {}
    low, median, end, high = np.quantile(numbers, [0, 0.5, _TAIL, 1]).tolist()
    tail = high - low > 4 * (end - low) > 0
    width = (end if tail else high) - low
    half, bins = 0.0, _BINS
    if width < _MIN_WIDTH or (width < _BINS and (numbers == np.floor(numbers)).all()):
        half, bins = 0.5, int(width) + 1  # a bar for each number
    # Differences are exact where large numbers are not.
    counts, edges = np.histogram(np.minimum(numbers - low, width), bins, (-half, width + half))
    begins, ends = (low + edges[:-1] + half).tolist(), (low + edges[1:] - half).tolist()
    return {
        "bars": list(zip(begins, ends, counts.tolist(), strict=True)),
        "tail": tail,
        "min": low,
        "max": high,
        "median": median,
        "mean": numbers.mean().item(),
        "std": numbers.std().item(),
    }


def is_picture(shape: Sequence[int], dtype: object, min_side: int = 8) -> bool:
    """Returns whether arrays of a shape and type can be shown as images."""
    has_pixels = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))
    return dtype == np.uint8 and has_pixels and min(shape[:2]) >= min_side


def make_thumbnail(pixels: Any, boxes: Iterable[Sequence[float]] = ()) -> dict[str, Any]:
    """Returns the data URI of an image, and the width and height to show it in.

    Transparent pixels become white. Class ids of a segmentation are spread over all shades of grey.

    Args:
        pixels: uint8 of shape [height, width] or [height, width, 1, 3 or 4].
        boxes: Left, upper, right and lower side of each box to draw, as fractions of the image.
    """
    from PIL import Image, ImageDraw

    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        alpha = pixels[:, :, 3:] / 255
        pixels = np.uint8(pixels[:, :, :3] * alpha + 255 * (1 - alpha))
    if pixels.ndim == 2 and 0 < pixels.max() <= _MAX_CLASS_ID:
        pixels = pixels * np.uint8(255 // pixels.max())
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE))
    drawn = np.multiply(np.reshape([*boxes], (-1, 4)), image.size * 2).round() - (0, 0, 1, 1)
    image = image.convert("RGB") if len(drawn) else image
    for left, upper, right, lower in drawn:
        corners = left, upper, max(left, right), max(upper, lower)
        ImageDraw.Draw(image).rectangle(corners, outline=_BOX)
    for quality in _QUALITIES:
        data = io.BytesIO()
        image.save(data, "JPEG", quality=quality, subsampling=0)
        if data.tell() <= _MAX_THUMBNAIL:
            break
    scale = max(1, SIDE // max(image.size))
    return {
        "src": f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}",
        "width": image.width * scale,
        "height": image.height * scale,
        "enlarged": scale > 1,
    }
