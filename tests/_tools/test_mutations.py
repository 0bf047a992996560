"""Mutants of a toy module: what they change, that they switch, and that they are found again."""

import ast
import sys
from types import SimpleNamespace

import pytest

from tests._tools.mutations import Mutant, choose, find_again, find_mutants

TOY = '''"""A module."""


def first_long(rows, limits):
    """Return the first row that is longer than the limit, with its number."""
    found = []
    for number, row in enumerate(rows):
        if not row and True:
            continue
        if len(row) > limits.get("length", 2):
            found.append(row)
            break
    if len(found) == 0:
        raise ValueError("no row is longer than 2")
    return found[0], pair(number, row)


def pair(first, second):
    return f"{first}-{second[0]}"
'''
ROWS = (["", "ab", "cde", "fghi"], {"length": 2})
BEFORE = ("cde", "2-c")


def toy_mutants(source: str = TOY) -> list[list[Mutant]]:
    return find_mutants("toy.py", source)


def run(source: bytes, number: int = -1) -> object:
    """Call the function with a mutant switched on; return its result, or the class of an error."""
    switch = SimpleNamespace(is_on=lambda asked: asked == number)
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mutant_switch", switch)
        exec(compile(source, "toy.py", "exec"), names)
        try:
            return names["first_long"](*ROWS)
        except (LookupError, TypeError, ValueError) as error:
            return type(error)


def test_kinds_and_changes() -> None:
    changes = {(m.kind, m.change) for mutants in toy_mutants() for m in mutants}
    assert changes == {
        ("and/or", "not row and True -> (not row or True)"),
        ("arguments", "limits.get('length', 2) -> limits.get(2, 'length')"),
        ("arguments", "pair(number, row) -> pair(row, number)"),
        ("boolean", "True -> False"),
        ("comparison", "len(found) == 0 -> (len(found) != 0)"),
        (
            "comparison",
            "len(row) > limits.get('length', 2) -> (len(row) >= limits.get('length', 2))",
        ),
        ("deleted", "found.append(row) -> pass"),
        ("key", "'length' -> 'length_'"),
        ("loop", "break -> continue"),
        ("loop", "continue -> break"),
        ("not", "not row -> (row)"),
        ("number", "0 -> (-1)"),
        ("number", "0 -> 1"),
        ("number", "2 -> (1)"),
        ("number", "2 -> 3"),
        ("return", "return (found[0], pair(number, row)) -> return None"),
        ("return", "return f'{first}-{second[0]}' -> return None"),
    }


def test_a_switch_does_what_the_change_does() -> None:
    results = []
    for mutants in toy_mutants():
        for mutant in mutants:
            switched = mutant.switch(TOY.encode(), 7)
            assert run(switched) == BEFORE, mutant
            assert run(switched, 7) == run(mutant.apply(TOY.encode())), mutant
            results.append(run(switched, 7))
    assert sum(result != BEFORE for result in results) >= 12


def test_a_sample_does_not_depend_on_the_run() -> None:
    first, second = (choose(toy_mutants(), 5, seed=3) for _ in range(2))
    assert first == second
    assert len({mutant.statement for mutant in first}) == 5
    assert first != choose(toy_mutants(), 5, seed=4)


def test_moved_code_has_the_same_mutants() -> None:
    lines = TOY.replace("def first_long", "def other():\n    return 3\n\n\ndef first_long")
    renamed = TOY.replace("first_long", "find_long")
    moved = find_mutants("new.py", TOY)
    (mutant,) = (m for ms in toy_mutants() for m in ms if m.change == "break -> continue")
    for statements in (toy_mutants(lines), toy_mutants(renamed), moved):
        again = find_again(mutant.identity, statements)
        assert again
        assert (again.kind, again.change) == (mutant.kind, mutant.change)
    without = toy_mutants(TOY.replace("break", "pass"))
    assert find_again(mutant.identity, without) is None


def test_diff_has_the_changed_lines() -> None:
    (mutant,) = (m for ms in toy_mutants() for m in ms if m.change == "True -> False")
    assert mutant.diff(TOY.encode()) == [
        "-        if not row and True:",
        "+        if not row and False:",
    ]
    ast.parse(mutant.apply(TOY.encode()))
