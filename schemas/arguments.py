"""Errors about the arguments of public functions: options of other frameworks, and lost names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from shardmill.schemas.errors import UsageError, format_names

P = ParamSpec("P")
T = TypeVar("T")
_DROP = "remainder='drop' drops a last batch that is not full"
_LOADER = "give it to the DataLoader"
_AHEAD = "leave it out, since examples are read ahead"
_BUILD = "that is decided when the dataset is built"
# Advice for options of tf.data, TFDS, PyTorch, Hugging Face and Keras.
_HINTS = {
    "batch": "use batch_size",
    "batch_size": _LOADER,
    "buffer_size": "use shuffle=True",
    "collate_fn": _LOADER,
    "download": "leave it out, since nothing is downloaded",
    "drop_last": _DROP,
    "drop_remainder": _DROP,
    "epochs": "give it to model.fit",
    "image_size": _BUILD,
    "labels": 'use where={"label": ...}',
    "num_parallel_calls": _AHEAD,
    "num_workers": _LOADER,
    "persistent_workers": _LOADER,
    "pin_memory": _LOADER,
    "prefetch": _AHEAD,
    "prefetch_factor": _AHEAD,
    "repeat": "use the repeat method of the result",
    "sampler": _LOADER,
    "shuffle_buffer": "use shuffle=True",
    "shuffle_files": "use shuffle=True",
    "splits": "use split",
    "streaming": "leave it out, since records are read when they are needed",
    "transform": "use the map method of the result",
    "transforms": "use transform",
    "validation_split": _BUILD,
    "with_info": "leave it out: the manifest has the numbers",
    "workers": _LOADER,
}
# Options of open_dataset, which functions of its result do not have.
_OF_RECORDS = frozenset(
    {"as_supervised", "decode", "features", "fill", "ids", "label", "split", "text", "transform"}
)


class ArgumentError(UsageError, TypeError):
    """A call with arguments that the function has not."""


def explain_arguments(
    function: Callable[P, T],
    name: str,
    args: tuple[Any, ...],
    values: dict[str, Any],
    options: Callable[..., Any] | None = None,
) -> ArgumentError | None:
    """Return the error in the arguments of a call, or None.

    Args:
        function: The function.
        name: Its name.
        args: Arguments without names.
        values: Arguments with names.
        options: A function whose options this one takes as well.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        parameters, args = parameters[1:], args[1:]
    more = []
    if options:
        others = inspect.signature(options).parameters.values()
        more = [parameter for parameter in others if parameter.kind is parameter.KEYWORD_ONLY]
    names = [
        parameter.name
        for parameter in (*parameters, *more)
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    takes_any = options is None and any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters
    )
    for option, value in values.items():
        if option not in names and not takes_any:
            hint = _find_hint(option, names)
            return ArgumentError(f"{name} has no option {option}={value!r:.60}: {hint}.")
    plain = [
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if len(args) > len(plain):
        value = args[len(plain)]
        numbers = [option for option in ("batch_size", "image_size") if option in names]
        hint = ""
        if numbers and type(value) is int:
            hint = f", as in {numbers[0]}={value!r}"
        return ArgumentError(
            f"{name}(..., {value!r:.60}): only {format_names(plain)} go without a name: name the "
            f"others{hint}."
        )
    given = {*plain[: len(args)], *values}
    for parameter in parameters:
        is_option = parameter.kind is parameter.VAR_KEYWORD
        if parameter.default is parameter.empty and not is_option and parameter.name not in given:
            return ArgumentError(
                f"{name} needs {parameter.name}: give it, as in {parameter.name}=..."
            )
    return None


def _find_hint(option: str, names: Sequence[str]) -> str:
    """Return advice for an unknown option.

    Args:
        option: Its name.
        names: The options of the function.
    """
    near = difflib.get_close_matches(option, names, 1, 0.8)
    if near:
        return f"use {near[0]}"
    if "records" in names and option in _OF_RECORDS:
        return "give it to open_dataset"
    hint = _HINTS.get(option, f"it has {', '.join(names)}")
    if "batch_size" in names:
        if hint == _LOADER:
            return _AHEAD
        return hint
    if option == "batch":
        return _LOADER
    if hint == _DROP and "remainder" not in names:
        return f"give keras_dataset or Stream remainder: {_DROP}"
    return hint


def check_arguments(
    options: Callable[..., Any] | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that explains calls with wrong arguments in one sentence.

    Args:
        options: A function whose options the decorated one takes as well.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        name = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def call(*args: P.args, **values: P.kwargs) -> T:
            try:
                signature.bind(*args, **values)
                is_wrong = options is not None
            except TypeError:
                is_wrong = True
            error = is_wrong and explain_arguments(function, name, args, dict(values), options)
            if error:
                raise error
            return function(*args, **values)

        return call

    return decorate


def invalid_number(name: object, value: object, least: object) -> UsageError:
    """Return the error for an argument that is not an integer of at least ``least``."""
    return UsageError(f"{name}={value!r:.60} must be an integer, {least} or more.")


def unknown_value(name: object, value: object, choices: object) -> UsageError:
    """Return the error for an argument that is not one of its choices."""
    return UsageError(f"{name}={value!r} is unknown: use {choices}.")
