"""The catalogue of messages: sentences with the value, the rule and the fix, by id.

They are in modules by topic, and docs/errors.md explains each. Their fields are those of
``str.format``, or a number with the plural of its noun, as in ``{found:files}``.
"""

from __future__ import annotations

import re
import string
from functools import cache
from importlib import import_module
from typing import Any

PAGE = "https://github.com/shardmill/shardmill/blob/main/docs/errors.md"
_TOPICS = {  # headings of the page of errors, and modules, which the first error imports
    "Flags": "flags",
    "Splits and labels": "splits_and_labels",
    "Inputs": "inputs",
    "Output and publishing": "outputs",
    "Rows": "rows",
    "TensorFlow Transform": "preprocessing",
    "Arrays": "arrays",
    "Counting, checking, looking": "checks",
    "Runners": "runners",
    "Storages": "storages",
    "Loaders": "readers",
    "Details after a colon": "details",
}
_CODED = re.compile(r"(.*) \[([a-z0-9-]+)\]", re.DOTALL)


class _Formatter(string.Formatter):
    """Formats ``{number:files}`` as ``1 file`` or ``2 files``."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if len(format_spec) > 1 and format_spec.isalpha():
            noun = format_spec.removesuffix("s") if value == 1 else format_spec
            return f"{value:,} {noun}"
        return super().format_field(value, format_spec)


_FORMATTER = _Formatter()


@cache
def topics() -> dict[str, dict[str, str]]:
    """Return the messages of each topic by id; topics are headings of the page of errors."""
    found = {title: import_module(f"{__package__}.{name}") for title, name in _TOPICS.items()}
    return {title: module.MESSAGES for title, module in found.items()}


@cache
def messages() -> dict[str, str]:
    """Return all messages by id."""
    return {name: each for topic in topics().values() for name, each in topic.items()}


def coded(message_id: str, /, **fields: object) -> str:
    """Return a message of the catalogue, followed by its id in brackets."""
    text = _FORMATTER.vformat(messages()[message_id], (), fields)
    return with_id(text, message_id)


def with_id(sentence: str, message_id: str) -> str:
    """Return a sentence followed by its id in brackets."""
    return f"{sentence} [{message_id}]"


def split_coded(text: str) -> tuple[str, str]:
    """Return a sentence and its id, which is empty if the text does not end with one."""
    match = _CODED.fullmatch(text)
    return (match[1], match[2]) if match and match[2] in messages() else (text, "")
