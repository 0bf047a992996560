"""The table of wheels is made from stored results; `make test-wheels` resolves them again."""

import importlib.util
import json

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def wheels():
    spec = importlib.util.spec_from_file_location("wheels", ROOT / "docs" / "_tools" / "wheels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_docs_have_the_stored_results(wheels):
    results = json.loads(wheels.RESULTS.read_text())
    text = wheels.PAGE.read_text(encoding="utf-8")
    assert wheels.BLOCK.findall(text) == [wheels.table(results)]


def test_results_are_those_of_all_systems_and_versions(wheels):
    results = json.loads(wheels.RESULTS.read_text())
    assert [*results] == [name for name in (wheels.BASE, *wheels.EXTRAS) if name in results]
    assert wheels.BASE in results
    for systems in results.values():
        assert [*systems] == [*wheels.PLATFORMS]
        assert all([*reasons] == [*wheels.PYTHONS] for reasons in systems.values())


def test_requirements_are_those_of_setup(wheels, monkeypatch):
    monkeypatch.chdir(ROOT)
    requirements = wheels.requirements(ROOT / "setup.py")
    assert any(line.startswith("pillow") for line in requirements[wheels.BASE])
    assert requirements["torch"] == ["torch>=2.4"]


@pytest.mark.parametrize(
    ("missing", "cell"),
    [
        ("", "3.10 to 3.14"),
        ("3.14", "3.10 to 3.13"),
        ("3.12", "3.10, 3.11, 3.13, 3.14"),
        ("3.11 3.12 3.13 3.14", "3.10"),
        ("3.10 3.11 3.12 3.13 3.14", "no"),
    ],
)
def test_a_cell_names_the_versions_that_have_wheels(wheels, missing, cell):
    reasons = {python: "x" if python in missing.split() else "" for python in wheels.PYTHONS}
    assert wheels.cell(reasons) == cell
