"""Numbers of batches, and checks of arguments."""

from __future__ import annotations

import operator
from typing import Any, Literal, get_args

from shardmill.schemas.arguments import invalid_number, unknown_value
from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import plural

Remainder = Literal["keep", "drop", "pad"]


def batches(examples: int, batch_size: int, remainder: Remainder | None, hosts: int) -> int:
    """Returns the number of batches that each of some hosts gets of their equal shares.

    Raises:
        UsageError: A value is invalid.
    """
    batch_size, hosts = to_int("batch_size", batch_size, 1), to_int("hosts", hosts, 1)
    if batch_size % hosts:
        above = -(-batch_size // hosts) * hosts
        raise UsageError(
            f"a batch of {batch_size} cannot be divided among {plural(hosts, 'host')}: use a "
            f"multiple of {hosts}, such as {above}."
        )
    check_word("remainder", remainder, Remainder)
    full, rest = divmod(examples, batch_size)
    drops = remainder == "drop" or (remainder != "pad" and hosts > 1)
    return full + (rest > 0 and not drops)


def check_word(name: str, value: object, words: Any) -> None:
    """Checks that an argument is None or one of the words of a ``Literal``."""
    *others, last = get_args(words)
    if value not in (None, *others, last):
        choices = f"{', '.join(others)} or {last}"
        raise unknown_value(name=name, value=value, choices=choices)


def to_int(name: str, value: Any, least: int = 0) -> int:
    """Returns the value of an argument as int; NumPy integers count.

    Raises:
        UsageError: It is not an integer of 64 bits, or it is less than ``least``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number < 1 << 63:
        raise invalid_number(name=name, value=value, least=least)
    return number
