"""A user's preprocessing_fn: loaded from a file, checked, and called wherever rows are.

It travels to workers as source text, never as a pickled function, and is made there once. No
TensorFlow is imported here; the file imports what it needs.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import open_storage

FUNCTION = "preprocessing_fn"
_FLAG = "--preprocessing"
_MAX_BYTES = 16 << 20
_SHOWN = 300
_SHOWN_NAMES = 20
_DTYPES = ("int64", "float32", "string")
_CASTS = {"bool": "tf.int64", "half": "tf.float32", "bfloat16": "tf.float32"}
_LOCK = threading.RLock()


@dataclass(frozen=True)
class Preprocessing:
    """The text of a file with a ``preprocessing_fn``; called, it is that function.

    Attributes:
        path: Where the file lay, for messages and tracebacks.
        source: Its text.
    """

    path: str
    source: str

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that change with the text, wherever the file lies."""
        return hashlib.blake2b(self.source.encode(), digest_size=16).hexdigest()

    @property
    def function(self) -> Callable[[dict[str, Any]], Any]:
        """The function itself; the file is run when a process first asks for it.

        Raises:
            UsageError: The file cannot be run or has no such function.
        """
        function = getattr(_module(self), FUNCTION, None)
        if not callable(function):
            raise UsageError(
                f"{_FLAG}={self.path} has no function {FUNCTION}: define "
                f"{FUNCTION}(inputs), which returns a dict of tensors."
            )
        return function  # type: ignore[no-any-return]

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Calls the function on tensors by column and returns its tensors by feature.

        Raises:
            UsageError: It fails, or returns something that no feature can be made of.
        """
        function = self.function
        names = list(inputs)
        try:
            outputs = function(dict(inputs))
        except Exception as error:
            raise UsageError(self._failure(error, names)) from error
        return self._checked(outputs)

    def _failure(self, error: Exception, names: list[str]) -> str:
        line = line_of(error, self.path)
        where = f"{self.path}, line {line}" if line else self.path
        if isinstance(error, KeyError) and error.args and error.args[0] not in names:
            shown = ", ".join(map(repr, names[:_SHOWN_NAMES]))
            more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
            return (
                f"{where}: {FUNCTION} asks for {error.args[0]!r}, which it does not have; "
                f"the columns of the input are {shown}{more}."
            )
        return f"{where}: {FUNCTION} fails with {describe(error)}."

    def _checked(self, outputs: Any) -> dict[str, Any]:
        if not isinstance(outputs, dict) or not outputs:
            kind = "an empty dict" if outputs == {} else f"a {type(outputs).__name__}"
            raise UsageError(
                f"{self.path}: {FUNCTION} returns {kind}: it must return a dict with a tensor "
                "for each feature."
            )
        for name, tensor in outputs.items():
            problem = _unfit(name, tensor)
            if problem:
                raise UsageError(f"{self.path}: {FUNCTION} returns the feature {name!r} {problem}.")
        return outputs


def load_preprocessing(path: str) -> Preprocessing:
    """Reads a file, runs it once to see that it is sound, and returns it.

    Args:
        path: A local path or gs:// URI.

    Raises:
        UsageError: It is missing, no UTF-8, no Python, fails to run, or has no preprocessing_fn.
        StorageError: The medium failed.
    """
    storage = open_storage(path)
    entry = storage.stat(path)
    if entry is None or entry.kind == "dir":
        what = "does not exist" if entry is None else "is a folder"
        raise UsageError(f"{_FLAG}={path} {what}: name a Python file with a {FUNCTION}.")
    if entry.size > _MAX_BYTES:
        raise UsageError(f"{_FLAG}={path} has {entry.size:,} bytes: that is no Python file.")
    try:
        source = storage.read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{_FLAG}={path} is not UTF-8 (byte {error.start}): save it as UTF-8 text."
        ) from error
    preprocessing = Preprocessing(path, source)
    _ = preprocessing.function
    return preprocessing


def line_of(error: BaseException, path: str) -> int | None:
    """Returns the last line of a file that an error passed through, or None where it did not."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def describe(error: BaseException) -> str:
    """Returns an error's type and message as a piece of a sentence on one line."""
    message = " ".join(str(error).split()).rstrip(".")
    message = message if len(message) <= _SHOWN else message[:_SHOWN] + "…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _module(preprocessing: Preprocessing) -> types.ModuleType:
    """Returns the file as a module of this process, run at most once."""
    path, source = preprocessing.path, preprocessing.source
    place = hashlib.blake2b(f"{path}\0{source}".encode(), digest_size=8).hexdigest()
    name = f"shardmill_preprocessing_{place}"
    with _LOCK:
        if name in sys.modules:
            return sys.modules[name]
        code = _compiled(path, source)
        module = types.ModuleType(name)
        module.__file__ = path
        # Tracebacks show the lines even where the file itself is not to be had.
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
        sys.modules[name] = module
        try:
            exec(code, module.__dict__)  # noqa: S102 - it is the user's own file
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise UsageError(_run_failure(path, error)) from error
        return module


def _compiled(path: str, source: str) -> types.CodeType:
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        text = f": {error.text.strip()[:_SHOWN]!r}" if error.text else ""
        problem = f"line {error.lineno}{text}: {error.msg}" if error.lineno else error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        problem = describe(error)
    raise UsageError(f"{_FLAG}={path} is no valid Python ({problem}): mend it.")


def _run_failure(path: str, error: BaseException) -> str:
    line = line_of(error, path)
    where = f"{path}, line {line}" if line else path
    if isinstance(error, ModuleNotFoundError) and error.name:
        return (
            f"{where}: the module {error.name!r} is not installed: install it where the command "
            "and its workers run, or put its code into the file itself."
        )
    return f"{where}: running the file fails with {describe(error)}."


def _unfit(name: Any, tensor: Any) -> str:
    """Returns why a tensor cannot become a feature, or an empty text."""
    if not isinstance(name, str) or not name:
        return "under a name that is no text: features need names"
    dtype, shape = getattr(tensor, "dtype", None), getattr(tensor, "shape", None)
    if dtype is None or shape is None or not hasattr(dtype, "as_numpy_dtype"):
        return f"as a {type(tensor).__name__}: return a tensor"
    if dtype.name not in _DTYPES:
        cast = "tf.int64" if dtype.is_integer else _CASTS.get(dtype.name, "tf.float32")
        return (
            f"as {dtype.name}, but records hold {', '.join(_DTYPES)}: wrap it in tf.cast(…, {cast})"
        )
    rank = shape.rank
    if hasattr(tensor, "dense_shape"):
        if rank is None or rank < 2:
            return f"as a sparse tensor of rank {rank}: it needs [rows, values] at least"
    elif hasattr(tensor, "ragged_rank"):
        if tensor.ragged_rank != 1 or None in shape.as_list()[2:]:
            return "as a ragged tensor with lists in lists: only [rows, values] can be written"
    elif not rank:
        found = "unknown shape" if rank is None else "no rows (one value for all of them)"
        return f"as a tensor of {found}: its first dimension must be that of the inputs"
    return ""
