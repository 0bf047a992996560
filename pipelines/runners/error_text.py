"""Errors that come back from a runner as text.

Beam's workers send an exception of a DoFn as a formatted traceback in a string, also those of the
in-memory runner in this process, and every runner raises a RuntimeError with that text. Class,
cause and attributes are gone, so the text is parsed here, and nowhere else:

    shardmill.schemas.errors.StorageError: Cannot write ... [storage-failed] [while running 'Write']
"""

from __future__ import annotations

import re

from shardmill.schemas import errors
from shardmill.schemas.errors import ShardmillError

_STEP = " [while running '"  # Beam appends the name of the step to the message
_ERROR_LINE = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.*)$", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit)\b")
_KINDS = {
    kind.__name__: kind
    for kind in (
        errors.InputError,
        errors.OutputError,
        errors.ResourceError,
        errors.StaleBuildError,
        errors.StorageError,
    )
}
TRACEBACK = "Traceback (most recent call last)"
_MAX_CAUSE = 300


def find_shardmill_error(error: BaseException) -> ShardmillError | None:
    """Return the Shardmill error inside an exception of a runner, or None if there is none."""
    if isinstance(error, ShardmillError):
        return type(error)(without_step(error.coded))
    lines = _ERROR_LINE.findall(str(error))
    if not lines:
        return None
    name, message = lines[-1]
    return _KINDS.get(name, ShardmillError)(without_step(message))


def without_step(text: str) -> str:
    """Return a message without the step that Beam appended."""
    return text.partition(_STEP)[0]


def java_cause(text: str) -> str:
    """Return the innermost cause in a Java stack trace, or the first line, in one line."""
    lines = _lines(text)
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return _shorten(causes[-1].removeprefix("Caused by: ") if causes else lines[0])


def python_cause(text: str) -> str:
    """Return the last error of a Python traceback, or the first line, in one line."""
    lines = _lines(text)
    errors_in_text = [line for line in lines if _PYTHON_ERROR.match(line)]
    cause = (errors_in_text or lines)[-1] if TRACEBACK in text else lines[0]
    return _shorten(without_step(cause))


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines if lines and lines != ["None"] else ["it does not say why"]


def _shorten(line: str) -> str:
    return line.rstrip(".")[:_MAX_CAUSE]
