"""All commands and code of the docs run, and print what the page shows.

A reader starts in an empty folder, at any page, or follows all pages in the order of the site.
"""

import re
import subprocess
from pathlib import Path

import pytest

from shardmill.pipelines.commands import find_parser
from shardmill.pipelines.commands.parser import check_beam_flags
from tests.conftest import ROOT, build_dataset, make_photos
from tests.support.docs_pages import (
    BLOCKS,
    ELSEWHERE,
    FOLLOWED,
    HERE,
    RUNNABLE,
    elsewhere,
    pages,
)
from tests.support.docs_tools import (
    PAGES,
    RUN,
    Block,
    Shell,
    alike,
    commands_of,
    shardmill_commands,
)

# In one process: TensorFlow is imported once, and the pages share a folder.
pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("docs")]
FLOOR = 0.8  # of the accuracy of a model of a page; that of guessing is 0.2


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("all")


@pytest.mark.sweep
@pytest.mark.parametrize("page", FOLLOWED)
def test_pages_run_one_after_the_other_in_a_folder(page, shared_folder, monkeypatch) -> None:
    follow(page, shared_folder, monkeypatch)


@pytest.mark.parametrize("page", FOLLOWED[1:])  # the first one was alone
def test_a_page_runs_in_an_empty_folder(page, tmp_path, monkeypatch) -> None:
    follow(page, tmp_path, monkeypatch)


def follow(page: str, folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    shell = Shell(folder)
    for block in HERE:
        if block.page == page:
            shell.run(block)
            if ".fit(" in block.text:
                accuracy = shell.names["history"].history["val_accuracy"][-1]
                assert accuracy > FLOOR, f"{page}:{block.line}: the model does not learn"


def test_commands_need_no_other_programs() -> None:
    tools = {"cp", "grep", "head", "jq", "mkdir", "mv", "printf", "rm", "shardmill", "tail", "tar"}
    for block in HERE:
        for command, _ in commands_of(block) if block.language != "python" else ():
            programs = {part.split()[0] for part in re.split(r" (?:&&|\|) (?=[a-z]+ )", command)}
            assert programs <= tools, f"{block.page}:{block.line}: {command}"


def test_all_pages_and_exemptions_exist() -> None:
    assert {path.relative_to(ROOT).as_posix() for path in PAGES} <= set(pages())
    for page, (_, first_words) in ELSEWHERE.items():
        firsts = [block.first for block in RUNNABLE if block.page == page]
        for words in first_words:
            assert any(first.startswith(words) for first in firsts), f"{page}: {words}"


@pytest.mark.parametrize(
    "block",
    [block for block in RUNNABLE if elsewhere(block) and block.language != "python"],
    ids=lambda block: f"{block.page}:{block.line}",
)
def test_commands_that_run_elsewhere_are_valid(block) -> None:
    for command, _ in commands_of(block):
        done = subprocess.run(["bash", "-nc", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    for command, *arguments in shardmill_commands(block):
        parser = find_parser(command)
        check_beam_flags(parser.parse_known_args(arguments)[1], parser)


def test_all_training_code_is_run_with_a_floor_of_accuracy() -> None:
    """The floors of examples are in tests/examples, that of the notebook in test_notebook.py."""
    trains = re.compile(r"\.fit\(|\.backward\(|jax\.grad\(|GradientTape\(")
    assert {b.page for b in BLOCKS if trains.search(b.text)} <= set(FOLLOWED)
    tests = "".join(path.read_text() for path in (ROOT / "tests/examples").glob("*.py"))
    for path in (ROOT / "examples").glob("*.py"):
        if trains.search(path.read_text()):
            assert f'"{path.name}"' in tests, f"{path.name} has no floor of accuracy"


def test_all_commands_are_in_blocks_that_are_run() -> None:
    assert len(HERE) > 20
    for block in BLOCKS:
        if block.language not in RUN:
            where = f"{block.page}:{block.line}"
            assert (
                block.language in ("text", "yaml", "textproto", "json", "toml")
                or block.language[0] == "{"
            ), where
            assert not re.search(r"^\$ |^shardmill [a-z]+ --", block.text, re.MULTILINE), where


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("$ shardmill steps ds --split=train --batch_size=32\n4\n", "the command prints\n3"),
        ("$ shardmill steps nowhere --split=train --batch_size=32\n4\n", "nowhere"),
        ("$ echo a; false\na\n", "echo a; false"),
    ],
)
def test_detects_wrong_output(text, words, tmp_path, monkeypatch) -> None:
    build_dataset(input=make_photos(tmp_path / "photos", {"a": 100}), output=tmp_path / "ds")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=re.escape(words)):
        Shell(tmp_path).run(Block("a page", 1, "console", text))


def test_dots_match_any_lines_and_times_any_time() -> None:
    alike("a\n  ...\nz\n", "a\nb\nc\nz\n", "")
    alike("a\n  time       1.0 s, 9 rows/s\n", "a\n  time       2.0 s, 7 rows/s\n", "")
    with pytest.raises(AssertionError):
        alike("a\n  ...\nz\n", "a\nb\nc\n", "")
