"""Deprecated names warn their users, and are removed in the version that the warning names."""

import ast
import warnings
from importlib.metadata import version

import pytest

from shardmill.schemas.deprecation import warn_deprecated
from tests.conftest import ROOT

PACKAGES = ("api", "loaders", "pipelines", "schemas", "transforms")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def overdue(source: str, release: str) -> list[str]:
    """Return what the code should have removed in a release or before it."""
    late = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("warn_deprecated"):
            given = {word.arg: word.value for word in node.keywords}
            removed_in = ast.literal_eval(given["removed_in"])
            if numbers(removed_in) <= numbers(release):
                late.append(ast.unparse(node.args[0]))
    return late


def test_nothing_is_overdue() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            assert overdue(path.read_text(), version("shardmill")) == [], path


def test_an_overdue_removal_is_noticed() -> None:
    code = 'warn_deprecated("old()", instead="new()", removed_in="0.4.0")'
    assert overdue(code, "0.3.9") == []
    assert overdue(code, "0.4.0") == ["'old()'"]


def test_users_see_the_warning_at_their_line() -> None:
    def old() -> None:
        warn_deprecated("old()", instead="new()", removed_in="9.0.0")

    with pytest.warns(FutureWarning, match=r"old\(\) is deprecated, .* 9\.0\.0 .* use new\(\)"):
        old()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        old()
    assert caught[0].filename == __file__
