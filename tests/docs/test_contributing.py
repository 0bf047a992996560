"""Facts of CONTRIBUTING.md, AGENTS.md and the hooks for commits."""

import re
import subprocess

import pytest

from tests.conftest import ROOT

PAGES = ("CONTRIBUTING.md", "AGENTS.md")
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page) -> None:
    text = (ROOT / page).read_text()
    names = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.md)(?: [^`]*)?`", text)
    assert len(names) > 10
    missing = [
        name for name in names if not name.startswith(".venv/") and not (ROOT / name).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_targets_exist(page) -> None:
    text = (ROOT / page).read_text()
    for words in re.findall(r"(?:^|`)make ((?:[a-z-]+ ?)+)", text, re.MULTILINE):
        assert set(words.split()) <= TARGETS, words


@pytest.mark.parametrize("page", PAGES)
def test_names_are_in_the_files_that_tables_give(page) -> None:
    """A name before ``in`` a file, such as a class, is defined there."""
    text = (ROOT / page).read_text()
    for name, path in re.findall(r"`(\w+)` (?:in|of) `([\w/]+\.py)`", text):
        assert re.search(rf"^(class |def )?{name}\b", (ROOT / path).read_text(), re.MULTILINE), name


def test_notes_for_tools_are_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 80


def test_hooks_have_the_version_of_the_formatter_that_lint_has() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    pins = (ROOT / "constraints.txt").read_text()
    assert set(re.findall(r"ruff==[\d.]+", hooks)) == set(
        re.findall(r"^ruff==[\d.]+", pins, re.MULTILINE)
    )


def test_help_lists_few_targets_in_groups() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("  ")]
    assert 10 < len(lines) <= 25
    assert {line.split()[0] for line in lines} <= TARGETS
