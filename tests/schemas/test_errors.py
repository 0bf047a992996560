"""Errors keep their class and their sentence wherever they go."""

import ast
import pickle
import re

import pytest

from shardmill.loaders.frameworks import FrameworkError
from shardmill.loaders.records import ExampleKeyError
from shardmill.pipelines.runners.base import find_shardmill_error
from shardmill.schemas.errors import (
    MAX_SHOWN,
    DeniedError,
    InputError,
    OutputError,
    ShardmillError,
    StorageError,
    UsageError,
    format_names,
    format_value,
)
from shardmill.schemas.numbers import plural
from shardmill.transforms.sink.spec import Outcome
from tests.conftest import ROOT

SENTENCE = "--input='x' does not exist: give a folder [of images], a glob, a listing or a file."


@pytest.mark.parametrize(
    "kind",
    [
        InputError,
        OutputError,
        StorageError,
        DeniedError,
        FrameworkError,
        UsageError,
        ExampleKeyError,
    ],
)
def test_an_error_crosses_processes(kind) -> None:
    error = kind(SENTENCE)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.args) == (kind, SENTENCE, (SENTENCE,))
    assert isinstance(copy, ShardmillError)


def test_an_error_comes_back_from_beam() -> None:
    error = OutputError(SENTENCE)
    # As Beam's DoFnRunner does; runners then raise the text of a traceback.
    again = type(error)(error.args[0] + " [while running 'Step']", *error.args[1:])
    text = f"Traceback (most recent call last):\n  ...\n{type(again).__module__}.OutputError: {again}\n"
    for raised in (error, again, RuntimeError(text)):
        ours = find_shardmill_error(raised)
        assert (type(ours), str(ours)) == (OutputError, SENTENCE)


def test_an_outcome_keeps_the_sentence() -> None:
    with pytest.raises(ShardmillError) as raised:
        Outcome("failed", SENTENCE).check()
    assert str(raised.value) == SENTENCE


def test_long_lists_and_values_are_cut() -> None:
    assert format_names(["a", "b"]) == "'a', 'b'"
    assert format_names([str(number) for number in range(1010)]).endswith("'7' and 1,002 more")
    assert format_value("a" * MAX_SHOWN) == repr("a" * MAX_SHOWN)
    assert format_value("a" * 10**6) == repr("a" * MAX_SHOWN) + "…"
    assert format_value(b"\xff") == repr("\\xff")


@pytest.mark.parametrize(
    ("rows", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1200, "1,200 rows")]
)
def test_messages_count(rows, text) -> None:
    assert plural(rows, "row") == text


PLURALS = (
    "arrays|bytes|channels|examples|files|hosts|images|labels|parts|records|rows|shards|slots|"
    "splits|values"
)
CLASSES = (
    "ChangedError",
    "FormatError",
    "InputError",
    "OutputError",
    "ResourceError",
    "StorageError",
    "UsageError",
)


def badly_counted(source: str) -> list[str]:
    """Return the calls that make an error and write a number with a fixed plural."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in CLASSES
        and re.search(rf"\{{[^{{}}]+:,\}} ({PLURALS})\b", ast.unparse(node))
    ]


def test_a_count_in_a_message_has_the_number_of_its_noun() -> None:
    """A number before a plural is formatted by plural(), so that 1 has the singular."""
    assert badly_counted("InputError(f'it has {n:,} rows')")
    assert not badly_counted("InputError(f'it has {n:,} of {plural(n, \"row\")}')")
    for folder in ("schemas", "loaders", "transforms", "pipelines"):
        for path in (ROOT / folder).rglob("*.py"):
            assert badly_counted(path.read_text()) == [], path
