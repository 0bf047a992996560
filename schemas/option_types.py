"""Options: attributes of a dataclass that parse the arguments of its constructor, once.

A dataclass of options is a group, such as ``ImageSpec``: the value that a component takes. Its
fields have the type, the default and the rule of each option, its docstring has the placeholder and
the help, and its ``__post_init__`` checks what several options decide together.

The table of a command is a group that inherits from others, and ``pick`` gives a component its own.
The flags and their help, the signatures of Python functions, identities and the parameters of the
Dataflow template follow from the table. This module is imported for ``--help``, so it imports
nothing that is slow.
"""

from __future__ import annotations

import difflib
import inspect
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import format_bytes, parse_bytes

Value_co = TypeVar("Value_co", covariant=True)
Given_contra = TypeVar("Given_contra", contravariant=True)
Path = str | os.PathLike[str]
SIZE_PATTERN = r"[0-9]+(\.[0-9]+)? ?([KMGTkmgt]?([iI]?[bB])?)"
_ITEM_BOUND = re.compile(r",(?=[^,:%]+:)")
_WINDOWS_PATH = re.compile(r"(?:([A-Za-z]):[\\/](?!/)|\\\\)")
_HELP = re.compile(r"^ {4}(\w+): (?:``(\S+)``: )?(.+(?:\n {8}.+)*)", re.MULTILINE)


@dataclass(eq=False)
class Option(Generic[Value_co, Given_contra]):
    """A descriptor that parses the value assigned to it: an argument or a flag's text.

    Attributes:
        kind: The control that a form shows for it.
        parse: Parses an argument, given the flag's name for messages and the argument. A parsed
            value is returned unchanged.
        default: The value if no argument is given.
        choices: Values that a form suggests.
        pattern: Regular expression of the texts of all values, in the syntax of RE2, or empty; a
            choice with a pattern has no other values.
        decides: Whether it changes the content of the dataset, and is part of its identity.
        added: Whether datasets were built before it existed: at its default, it is not part of the
            identity of a dataset or a record, so that these stay as they are.
        required: Whether a command line must give it.
        is_list: Whether its texts are divided by commas; a flag that is repeated adds items.
    """

    kind: Literal["switch", "number", "text"]
    parse: Callable[[str, Any], Any]
    default: Any
    choices: Sequence[str] = ()
    pattern: str = ""
    decides: bool = True
    added: bool = False
    required: bool = False
    is_list: bool = False
    name: str = field(default="", init=False)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        if self.default is not None and self.default is not MISSING:
            self.default = self.parse(name, self.default)

    def __get__(self, instance: object, owner: type) -> Value_co:
        if instance is None and self.default is MISSING:
            raise AttributeError(self.name)  # so the dataclass has no default
        value: Value_co = self.default if instance is None else instance.__dict__[self.name]
        return value

    def __set__(self, instance: object, value: Given_contra) -> None:
        is_default = value is None and self.default is not MISSING
        parsed = self.default if is_default else self.parse(self.name, value)
        instance.__dict__[self.name] = parsed


class Options:
    """A base of dataclasses of options, whose attributes do not change.

    If a dataclass is ``frozen`` and has subclasses, mypy does not see the types that options
    accept.
    """

    def __post_init__(self) -> None:
        """Check what several options decide together; a group calls that of its bases first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            raise FrozenInstanceError(f"cannot assign to field {name!r}: use dataclasses.replace")
        super().__setattr__(name, value)

    def pick(self, group: type[Group]) -> Group:
        """Return the values of a group, one of the bases of this class."""
        values = {name: getattr(self, name) for name in options_of(group)}
        return group(**values)


Text = Option[str, str]
MaybeText = Option[str | None, str | None]
File = Option[str, Path]
Switch = Option[bool, bool]
Int = Option[int, int]
MaybeInt = Option[int | None, int | None]
Float = Option[float, float]
Bytes = Option[int, int | str]
Names = Option[tuple[str, ...], str | Sequence[str]]
Pairs = Option[tuple[str, ...], str | Sequence[str] | Mapping[str, str]]
T = TypeVar("T")
Group = TypeVar("Group", bound="Options")
Choice = Option[T, T]


# They return Any: the annotation of the field has the type.
def text(default: str | None = "", choices: Sequence[str] = (), **rules: Any) -> Any:
    """Return an option whose value is any text."""
    return Option("text", _parse_text, default, choices, **rules)


def file(**rules: Any) -> Any:
    """Return an option whose value is a path or URI, or an empty text."""
    return Option("text", parse_path, "", **rules)


if TYPE_CHECKING:  # to type checkers, a field with any other value has a default
    from dataclasses import field as required_path
    from dataclasses import field as required_paths
else:

    def required_path() -> Any:
        """Return an option that must be given, whose value is a path or URI."""
        return Option("text", parse_path, MISSING)

    def required_paths() -> Any:
        """Return an option that must be given, whose values are paths or URIs."""
        return Option("text", parse_paths, MISSING, is_list=True)


def switch(words: Sequence[str] = (), **rules: Any) -> Any:
    """Return an option that is on if its flag is given.

    Args:
        words: Values that the flag also accepts.
        rules: Other attributes of ``Option``.
    """

    def parse(flag: str, value: Any) -> bool | str:
        if isinstance(value, bool) or value in words:
            return value  # type: ignore[no-any-return]
        rule = f"{', '.join(['True', *words])} or False"
        raise value_out_of_range(flag=flag, value=value, rule=rule)

    return Option("switch", parse, False, words, **rules)


def choice(
    choices: Sequence[str], default: str, aliases: Mapping[str, str] | None = None, **rules: Any
) -> Any:
    """Return an option whose value is one of some words, in any case of letters.

    Args:
        choices: The words.
        default: One of them, or empty.
        aliases: Words by other spellings.
        rules: Other attributes of ``Option``.
    """

    def parse(flag: str, value: Any) -> str:
        lower = str(value).lower()
        word = (aliases or {}).get(lower, lower)
        if word in choices or word == default:
            return word
        *rest, last = choices
        listed = f"{', '.join(rest)} or {last}" if rest else last
        raise UsageError(f"--{flag}={value} is unknown: use {listed}.")

    pattern = "|".join(map(re.escape, choices))
    return Option("text", parse, default, choices, pattern, **rules)


def whole(default: int | None, least: int = 0, most: int | None = None, **rules: Any) -> Any:
    """Return an option whose value is a whole number in a range."""

    def parse(flag: str, value: Any) -> int:
        number = _index(flag, value)
        if number >= least and (most is None or number <= most):
            return number
        rule = f"{least} or more" if most is None else f"from {least} to {most}"
        raise value_out_of_range(flag=flag, value=value, rule=rule)

    return Option("number", parse, default, **{"pattern": "[0-9]+", **rules})


def real(default: float, fits: Callable[[float], bool], rule: str, **rules: Any) -> Any:
    """Return an option whose value is a number.

    Args:
        default: The value if nothing is given.
        fits: Whether a number may be the value.
        rule: The rule in the message, such as ``between 0 and 1``.
        rules: Other attributes of ``Option``.
    """

    def parse(flag: str, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise _value_not_number(flag=flag, value=value, kind="number") from error
        if fits(number):
            return number
        raise value_out_of_range(flag=flag, value=value, rule=rule)

    return Option("number", parse, default, **{"pattern": r"[0-9]+(\.[0-9]+)?", **rules})


def size(default: str, least: str, **rules: Any) -> Any:
    """Return an option whose value is a number of bytes, given as a number or as in ``128MiB``."""

    def parse(flag: str, value: Any) -> int:
        number = parse_bytes(value, flag) if isinstance(value, str) else _index(flag, value)
        if number >= parse_bytes(least, flag):
            return number
        rule = f"{least} or more, as in {default}"
        raise value_out_of_range(flag=flag, value=value, rule=rule)

    return Option("text", parse, default, pattern=SIZE_PATTERN, **rules)


def names(default: str | None = "", **rules: Any) -> Any:
    """Return an option whose value is a list: separated by commas, or a sequence."""

    def parse(flag: str, value: Any) -> tuple[str, ...]:
        if not value:
            return ()
        if not isinstance(value, Iterable):
            _parse_text(flag, value)
        listed = value.split(",") if isinstance(value, str) else value
        return tuple(_parse_text(flag, text) for text in listed)

    return Option("text", parse, default, is_list=True, **rules)


def pairs(default: str | None, separator: str, read: Callable[[str], Any], **rules: Any) -> Any:
    """Return an option that is read from a text, or from a list or mapping of its items.

    Args:
        default: A text.
        separator: Text between a key and its value in an item.
        read: Parses a text.
        rules: Other attributes of ``Option``.
    """

    def parse(flag: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            value = [f"{key}{separator}{part}" for key, part in value.items()]
        if isinstance(value, list | tuple):
            value = ",".join(_parse_text(flag, text) for text in value)
        return read(_parse_text(flag, value))

    return Option("text", parse, default, is_list=True, **rules)


def mapping(**rules: Any) -> Any:
    """Return an option whose value is a list of items like ``name:value``, or a mapping.

    A comma is part of an item if no name and colon follow, as in the format of a date.
    """

    def parse(flag: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, Mapping):
            value = [f"{key}:{part}" for key, part in value.items()]
        elif isinstance(value, str) and value:
            value = _ITEM_BOUND.split(value)
        items = tuple(_parse_text(flag, text) for text in value)
        wrong = next((text for text in items if ":" not in text[1:]), None)
        if wrong is not None:
            raise UsageError(
                f"--{flag}={wrong!r}: must be items like name:value, separated by commas."
            )
        return items

    return Option("text", parse, "", is_list=True, **rules)


def beam_options() -> Any:
    """Return the option that holds options of Apache Beam: as flags, or a mapping."""
    return Option("text", _parse_beam_options, (), decides=False)


def parse_path(flag: str, value: Any) -> str:
    """Return a path or URI as text.

    Raises:
        UsageError: The value is something else, such as a DataFrame.
    """
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if isinstance(path, str):
            check_windows_path(path)
            return path
    raise UsageError(
        f"--{flag} is a {type(value).__name__}, not a path: write the data to a file, and give its "
        "path or that of its folder."
    )


def check_windows_path(path: str) -> None:
    r"""Check that a path is not one of Windows, such as ``C:\data``, on another system.

    Raises:
        UsageError: It is, and no file here has this name.
    """
    match = _WINDOWS_PATH.match(path)
    if match is None or os.name == "nt" or os.path.lexists(path):
        return
    rest = path[match.end() :].replace("\\", "/")
    mounted = f"/mnt/{match[1].lower()}/{rest}" if match[1] else f"//{rest}"
    raise UsageError(
        f"{path} is a path of Windows: give a path of this system, as in WSL {mounted}."
    )


def parse_paths(flag: str, value: Any) -> tuple[str, ...]:
    """Return one or several paths or URIs as texts."""
    listed = value if isinstance(value, (list, tuple)) else [value]
    return tuple(parse_path(flag, path) for path in listed)


def _index(flag: str, value: Any) -> int:
    try:
        if isinstance(value, str):
            return int(value)
        return operator.index(value)
    except (TypeError, ValueError) as error:
        raise _value_not_number(flag=flag, value=value, kind="whole number") from error


def _parse_text(flag: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise value_not_text(flag=flag, value=value, kind=type(value).__name__)


def propose(name: object, names: Collection[str], otherwise: str) -> str:
    """Return the end of an error about an unknown name: the nearest name, or other advice."""
    text = str(name)
    near = difflib.get_close_matches(text, names, 1, 0.9)
    # If no name is nearly the same, one that has it as a word, as image_size has size.
    near = near or [option for option in names if text.strip("-") in option.strip("-").split("_")]
    near = near or difflib.get_close_matches(text, names, 1)
    if near:
        return f"did you mean {near[0]}?"
    return otherwise


def unknown_option(command: object, name: object, hint: object) -> UsageError:
    """Return the error for an argument of a call that is not an option of it."""
    return UsageError(f"shardmill.{command} has no option {name}; {hint}")


def useless_option(flag: object, value: object, why: object) -> UsageError:
    """Return the error for an option that has no effect."""
    return UsageError(f"--{flag}={value} has no effect {why}: leave it out.")


def value_out_of_range(flag: object, value: object, rule: object) -> UsageError:
    """Return the error for a value that breaks the rule of its option."""
    return UsageError(f"--{flag}={value} must be {rule}.")


def empty_input() -> UsageError:
    """Return the error for an empty ``--input``."""
    return UsageError("--input is empty: give a folder, a glob, a listing (.csv) or a file.")


def value_not_text(flag: object, value: object, kind: object) -> UsageError:
    """Return the error for an option with a value that is not a text."""
    return UsageError(f"--{flag}={value} must be a text, not {kind}: quote it.")


def several_values(name: object, values: str) -> UsageError:
    """Return the error for several values of an option of Apache Beam that takes one."""
    return UsageError(
        f"The option {name} of Apache Beam takes one value, not {values}: give one of them."
    )


def _value_not_number(flag: object, value: object, kind: object) -> UsageError:
    return UsageError(f"--{flag}={value} is not a {kind}.")


def _parse_beam_options(flag: str, value: Any) -> tuple[str, ...]:
    """Return flags for Apache Beam from a mapping, or from texts such as ``name=value``."""
    if not isinstance(value, Mapping):
        listed = value if isinstance(value, (list, tuple)) else [value]
        return tuple(f"--{_parse_text(flag, text).removeprefix('--')}" for text in listed)
    flags = []
    for name, given in value.items():
        arguments = given if isinstance(given, (list, tuple)) else [given]
        if len(arguments) > 1 and any(isinstance(argument, bool) for argument in arguments):
            raise several_values(name, ", ".join(map(repr, arguments)))
        for argument in arguments:
            if argument is True:
                flags.append(f"--{name}")
            elif argument is not None and argument is not False:
                flags.append(f"--{name}={argument}")
    return tuple(flags)


def options_of(table: Any, *, required: bool = False) -> dict[str, Option[Any, Any]]:
    """Return the options of a dataclass by name.

    They have the order of its attribute ``order``, a text of names; others follow.

    Args:
        table: The dataclass or a value of it.
        required: Whether to return the paths that must be given, too.
    """
    names = [attribute.name for attribute in fields(table)]
    first = [name for name in getattr(table, "order", "").split() if name in names]
    options = {}
    for name in dict.fromkeys([*first, *names]):
        option = inspect.getattr_static(table, name, None)
        if isinstance(option, Option) and (required or option.default is not MISSING):
            options[name] = option
    return options


def identity_of(options: Options) -> dict[str, Any]:
    """Return the values of the options that decide content, as JSON has them, by name.

    Options that were ``added`` are left out at their defaults.
    """
    values = {}
    for name, option in options_of(options).items():
        value = getattr(options, name)
        if option.decides and not (option.added and value == option.default):
            is_plain = isinstance(value, int | float | None)
            values[name] = value if is_plain else as_text(option, value)
    return values


def describe_options(table: type) -> dict[str, tuple[str, str]]:
    """Return the placeholder and the help of each option by name, with its default."""
    descriptions = {}
    for base in table.__mro__[::-1]:
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        for name, placeholder, help_text in _HELP.findall(text):
            descriptions[name] = placeholder, " ".join(help_text.split())
    for name, option in options_of(table).items():
        placeholder, help_text = descriptions.get(name, ("", ""))  # none in python -OO
        default = "" if option.default in (None, ()) else as_text(option, option.default)
        hidden = option.kind == "switch" or not default or "default" in help_text
        suffix = "" if hidden else f" (default: {default})"
        descriptions[name] = placeholder, help_text + suffix
    return descriptions


def as_text(option: Option[Any, Any], value: Any) -> str:
    """Format a value as flag text."""
    if isinstance(value, tuple) and type(value) is tuple:
        return ",".join(value)
    if option.pattern == SIZE_PATTERN:
        return format_bytes(value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
