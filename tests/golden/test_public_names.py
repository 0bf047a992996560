"""The public names, and the signatures of what can be called."""

import inspect
from importlib import import_module
from typing import Any

import pytest

from shardmill.pipelines.commands import COMMANDS, find_parser
from tests.support.golden import GOLDEN, check_golden

WITH_SIGNATURES = ("shardmill", "shardmill.loaders")
PACKAGES = (*WITH_SIGNATURES, "shardmill.pipelines", "shardmill.schemas", "shardmill.transforms")

MANY = 9  # parameters, which get a line each


def describe(function: Any) -> str:
    """Return a signature as text; a default that has no short text is ``...``."""
    parts = []
    marked = False
    for parameter in inspect.signature(function).parameters.values():
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if text == "*":
            marked = True
        if parameter.kind is parameter.KEYWORD_ONLY and not marked:
            parts.append("*")
            marked = True
        text += parameter.name
        if parameter.default is not parameter.empty:
            default = repr(parameter.default)
            text += f"={'...' if default.startswith('<') else default}"
        parts.append(text)
    separator = ", " if len(parts) < MANY else ",\n        "
    return f"({separator.join(parts)})"


def lines_of(name: str, value: Any) -> list[str]:
    """Return a line for a public value, and for each public member of a class."""
    if inspect.isclass(value):
        lines = [f"class {name}{describe(value)}"]
        for member in sorted(vars(value)):
            if not member.startswith("_"):
                lines += [f"    {line}" for line in lines_of(member, vars(value)[member])]
        return lines
    if isinstance(value, staticmethod | classmethod):
        return [f"{name}{describe(value.__func__)}"]
    return [f"{name}{describe(value)}" if callable(value) else name]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names(package) -> None:
    module = import_module(package)
    lines = sorted(module.__all__)
    if package in WITH_SIGNATURES:
        described = [lines_of(name, getattr(module, name)) for name in lines]
        lines = [line for part in described for line in part]
    check_golden(GOLDEN / "names" / f"{package}.txt", "\n".join([*lines, ""]))


def test_flags() -> None:
    lines = [
        f"{command} {' '.join(sorted(find_parser(command).flags))}\n"
        for command in sorted(COMMANDS)
    ]
    check_golden(GOLDEN / "names" / "flags.txt", "".join(lines))
