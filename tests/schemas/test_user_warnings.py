"""Deprecated names warn their users, and are removed in the version that the warning names."""

import ast
from importlib.metadata import version

import pytest

import shardmill
from shardmill.schemas.user_warnings import warn_deprecated
from tests.conftest import ROOT, build_dataset, make_photos

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


@pytest.mark.heavy
def test_nothing_is_overdue() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            assert overdue(path.read_text(), version("shardmill")) == [], path


def test_an_overdue_removal_is_noticed() -> None:
    code = 'warn_deprecated("old()", instead="new()", removed_in="0.4.0")'
    assert overdue(code, "0.3.9") == []
    assert overdue(code, "0.4.0") == ["'old()'"]


def test_users_see_the_warning_at_their_line() -> None:
    with pytest.warns(FutureWarning, match=r"x is deprecated, .* 9\.0\.0 .* use y") as caught:
        warn_deprecated("x", instead="y", removed_in="9.0.0")
    assert caught[0].filename == __file__


def test_warnings_of_readers_point_at_the_call(tmp_path) -> None:
    """However many functions and decorators are between."""
    make_photos(tmp_path / "photos", {"a": 5})
    build_dataset(input=tmp_path / "photos", output=tmp_path / "ds", image_size=8, splits="train:1")
    records = shardmill.open_dataset(tmp_path / "ds")
    with pytest.warns(UserWarning, match="keeps none of the 5 examples") as of_filter:
        shardmill.Stream(records, where={"width": 1})
    with pytest.warns(UserWarning, match="hosts") as of_hosts:
        list(shardmill.Stream(records, host=(0, 2)))
    for warning in (*of_filter, *of_hosts):
        assert warning.filename == __file__
