"""Rendering of HTML by Jinja templates, which escape all data."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jinja2
import numpy as np

from shardmill.loaders.html.facts import describe_manifest
from shardmill.loaders.html.histogram import make_histogram
from shardmill.loaders.html.thumbnails import is_picture, make_thumbnail
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.numbers import human_bytes, plural, short_number
from shardmill.schemas.printable import printable
from shardmill.schemas.rejects import REASONS
from shardmill.schemas.tfrecord.scanner import FAULTS


def render(template: str, values: Mapping[str, Any]) -> str:
    """Returns the HTML of a template in this folder."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.dirname(__file__)), undefined=jinja2.StrictUndefined,
        autoescape=True, finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "bytes": human_bytes, "plural": plural, "short": short_number, "command": shlex.join,
        "cell": _cell, "histogram": make_histogram, "meaning": (FAULTS | REASONS).get,
    }  # fmt: skip
    return environment


def render_summary(manifest: Manifest, path: str) -> str:
    """Returns a heading and a table of the splits, for notebooks.

    Args:
        manifest: The manifest of a dataset.
        path: The dataset's path.
    """
    return render("summary.html", {"path": path, **describe_manifest(manifest, path)})


def render_examples(title: str, examples: Sequence[Any]) -> str:
    """Returns a table of examples with thumbnails of images, for notebooks.

    Args:
        title: A line above the table.
        examples: Dicts, pairs, or any other values.
    """
    tuples = (each if isinstance(each, dict | tuple) else (each,) for each in examples)
    rows = [each if isinstance(each, dict) else dict(enumerate(each)) for each in tuples]
    return render("examples.html", {"title": title, "rows": rows})


def _cell(value: Any, name: object) -> dict[str, Any]:
    """Returns a thumbnail, or ``text``."""
    if isinstance(value, np.ndarray) and is_picture(value.shape, value.dtype):
        return {**make_thumbnail(value), "alt": f"{name}, {value.shape}"}
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return {"text": " ".join(text.split())}
