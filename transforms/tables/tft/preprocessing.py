"""Preprocessing: execute, check and call the user's preprocessing_fn.

Workers receive the source text, not a pickled function, and execute it once per process. This
module does not import TensorFlow; the user's file does.
"""

from __future__ import annotations

import hashlib
import linecache
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.schemas.errors import UsageError, format_names

FUNCTION = "preprocessing_fn"
_SHOWN = 300
_DTYPES = ("int64", "float32", "string")
_CASTS = {"bool": "tf.int64", "half": "tf.float32", "bfloat16": "tf.float32"}
_LOCK = threading.RLock()


@dataclass(frozen=True)
class Preprocessing:
    """The source of a ``preprocessing_fn``; calling an instance calls the function.

    Attributes:
        path: Path of the file, for messages and tracebacks.
        source: Text of the file.
    """

    path: str
    source: str

    @property
    def digest(self) -> str:
        """Digest of the text, 32 hexadecimal digits; does not depend on the path."""
        return hashlib.blake2b(self.source.encode(), digest_size=16).hexdigest()

    @property
    def function(self) -> Callable[[dict[str, Any]], Any]:
        """The function; the first access in a process executes the file.

        Raises:
            UsageError: The file cannot be run or has no such function.
        """
        function = getattr(_module(self), FUNCTION, None)
        if not callable(function):
            raise UsageError(
                f"--preprocessing={self.path} has no function preprocessing_fn: define "
                "preprocessing_fn(inputs), which returns a dict of tensors."
            )
        return function  # type: ignore[no-any-return]

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Call the function with tensors by column and return its tensors by feature.

        Raises:
            UsageError: It fails, or returns something that cannot be stored as a feature.
        """
        function = self.function
        names = list(inputs)
        try:
            outputs = function(dict(inputs))
        except Exception as error:
            raise UsageError(self._failure(error, names)) from error
        return self._checked(outputs)

    def _failure(self, error: Exception, names: list[str]) -> str:
        where = _where(error, self.path)
        if isinstance(error, KeyError) and error.args and error.args[0] not in names:
            return (
                f"{where}: preprocessing_fn reads the column {error.args[0]!r}, which does not "
                f"exist; the columns of the input are {format_names(names)}."
            )
        return f"{where}: preprocessing_fn fails with {describe(error)}."

    def _checked(self, outputs: Any) -> dict[str, Any]:
        if not isinstance(outputs, dict) or not outputs:
            kind = "an empty dict" if outputs == {} else f"a {type(outputs).__name__}"
            raise UsageError(
                f"{self.path}: preprocessing_fn returns {kind}: it must return a dict with a "
                "tensor for each feature."
            )
        for name, tensor in outputs.items():
            problem = _find_problem(name, tensor)
            if problem:
                raise UsageError(
                    f"{self.path}: preprocessing_fn returns the feature {name!r} {problem}."
                )
        return outputs


def _where(error: BaseException, path: str) -> str:
    """Return a file with its last line in an error's traceback, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    if lines:
        return f"{path}, line {lines[-1]}"
    return path


def describe(error: BaseException) -> str:
    """Return the type and message of an error on one line, for use inside a sentence."""
    message = " ".join(str(error).split()).rstrip(".")
    message = message if len(message) <= _SHOWN else message[:_SHOWN] + "…"
    if message:
        return f"{type(error).__name__}: {message}"
    return type(error).__name__


def _module(preprocessing: Preprocessing) -> types.ModuleType:
    """Return the file as a module, executed at most once per process."""
    path, source = preprocessing.path, preprocessing.source
    place = hashlib.blake2b(f"{path}\0{source}".encode(), digest_size=8).hexdigest()
    name = f"shardmill_preprocessing_{place}"
    with _LOCK:
        if name in sys.modules:
            return sys.modules[name]
        code = _compiled(path, source)
        module = types.ModuleType(name)
        module.__file__ = path
        # Tracebacks show source lines even if the file does not exist on this worker.
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
        sys.modules[name] = module
        # AutoGraph imports code from the temporary folder, where its bytecode would stay.
        sys.dont_write_bytecode = True
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
    raise UsageError(f"--preprocessing={path} is not valid Python ({problem}): fix it.")


def _run_failure(path: str, error: BaseException) -> str:
    where = _where(error, path)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return (
            f"{where}: the module {error.name!r} is not installed: install it for the command and "
            "its workers, or copy its code into the file."
        )
    return f"{where}: running the file fails with {describe(error)}."


def _find_problem(name: Any, tensor: Any) -> str:
    """Return why a tensor cannot be stored as a feature, or an empty text."""
    if not isinstance(name, str) or not name:
        return "with a name that is not a text: features need names"
    dtype, shape = getattr(tensor, "dtype", None), getattr(tensor, "shape", None)
    if dtype is None or shape is None or not hasattr(dtype, "as_numpy_dtype"):
        return f"as a {type(tensor).__name__}: return a tensor"
    if dtype.name not in _DTYPES:
        cast = "tf.int64" if dtype.is_integer else _CASTS.get(dtype.name, "tf.float32")
        return f"as {dtype.name}, but records store {', '.join(_DTYPES)}: use tf.cast(…, {cast})"
    rank = shape.rank
    if hasattr(tensor, "dense_shape"):
        if rank is None or rank < 2:
            return f"as a sparse tensor of rank {rank}: it needs at least [rows, values]"
    elif hasattr(tensor, "ragged_rank"):
        if tensor.ragged_rank != 1 or None in shape.as_list()[2:]:
            return "as a ragged tensor with nested lists: only [rows, values] can be stored"
    elif not rank:
        kind = "a tensor of unknown shape" if rank is None else "a scalar"
        return f"as {kind}: its first dimension must be that of the inputs"
    return ""
