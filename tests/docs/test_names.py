"""docs/_tools/check_names.py finds vague names wherever a module binds them, and stiff phrases."""

import runpy
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "_tools" / "check_names.py"))

BOUND = {
    "for each in range(3): pass": "each",
    "sizes = {known: 1 for known in 'ab'}": "known",
    "smallest = min([1], key=lambda wanted: -wanted)": "wanted",
    "def _shown(): pass": "_shown",
    "def keys(found_keys): pass": "found_keys",
    "def keys(*, all_found=1): pass": "all_found",
    "class found: pass": "found",
    "job.is_known = True": "is_known",
    "if (found := 1): pass": "found",
    "with open('x') as found: pass": "found",
    "try: pass\nexcept OSError as found: pass": "found",
    "import os as known": "known",
    "first, (each, last) = 1, (2, 3)": "each",
    "shown: int = 1": "shown",
}


@pytest.mark.parametrize("source", BOUND)
def test_finds_each_kind_of_binding(source: str) -> None:
    assert [name for _, name in TOOL["find_names"](source)] == [BOUND[source]]


@pytest.mark.parametrize(
    "source", ["error(known=1)", "print(job.found)", "unknown = beach = foundation = 1", "'each'"]
)
def test_names_that_are_only_used_or_only_similar_pass(source: str) -> None:
    assert [*TOOL["find_names"](source)] == []


@pytest.mark.parametrize(
    "source",
    ['"""Return columns, of\nwhich one is left."""', "x = 1  # those of which one is left"],
)
def test_finds_phrases_in_docstrings_and_comments(source: str) -> None:
    assert len([*TOOL["find_phrases"](source)]) == 1


def test_messages_may_have_the_phrases() -> None:
    assert [*TOOL["find_phrases"]("error('boxes, of which 2 are empty')")] == []


@pytest.mark.heavy
def test_finished_folders_have_no_faults() -> None:
    assert TOOL["main"]() == 0
    assert all((TOOL["ROOT"] / folder).is_dir() for folder in TOOL["FINISHED"])
