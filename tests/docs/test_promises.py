"""The page of promises counts the cases that `make soak` runs now."""

import importlib.util

import pytest

from tests.conftest import ROOT


@pytest.mark.heavy
def test_the_page_has_the_cases_of_today() -> None:
    path = ROOT / "docs" / "_tools" / "promises.py"
    spec = importlib.util.spec_from_file_location("promises", path)
    promises = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(promises)
    page = promises.PAGE.read_text(encoding="utf-8")
    assert page == promises.make_page(page), "run `python docs/_tools/promises.py`"
