"""All commands and code of the docs run, and print what the page shows."""

import re
import subprocess

import pytest

from shardmill.pipelines.commands import find_parser
from shardmill.pipelines.commands.parser import check_beam_flags
from tests.conftest import ROOT, SHARED
from tests.support.docs_pages import DEDICATED, PREPARE, Shelf, elsewhere
from tests.support.docs_tools import (
    PAGES,
    RUN,
    Block,
    Shell,
    alike,
    blocks_of,
    commands_of,
    shardmill_commands,
)

# In one process: TensorFlow is imported once, and the files of the pages are created once.
pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("docs")]
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RUNNABLE = [block for block in BLOCKS if block.language in RUN]
HERE = [
    block
    for block in RUNNABLE
    if not elsewhere(block) and not (block.page in DEDICATED and block.language == "python")
]
FLOOR = 0.8  # of the accuracy of a model of a page; that of guessing is 0.2
FOLLOWED = sorted({block.page for block in HERE})


@pytest.fixture(scope="session")
def shelf(tmp_path_factory) -> Shelf:
    if not SHARED.is_dir():
        pytest.skip(f"the real data is not at {SHARED}")
    return Shelf(tmp_path_factory.mktemp("shelf"))


@pytest.mark.parametrize("page", FOLLOWED)
def test_commands_of_a_page_run(page, shelf, tmp_path, monkeypatch) -> None:
    assert page in PREPARE, f"{page} has commands: list its files in PREPARE of docs_pages.py"
    PREPARE[page](shelf, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    shell = Shell(tmp_path, shelf.base)
    for block in HERE:
        if block.page == page:
            shell.run(block)
            if ".fit(" in block.text:
                accuracy = shell.names["history"].history["val_accuracy"][-1]
                assert accuracy > FLOOR, f"{page}:{block.line}: the model does not learn"


@pytest.mark.parametrize(
    "block",
    [block for block in RUNNABLE if elsewhere(block)],
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
    assert {b.page for b in BLOCKS if trains.search(b.text)} <= set(FOLLOWED) - set(DEDICATED)
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
def test_detects_wrong_output(text, words, shelf, tmp_path, monkeypatch) -> None:
    shelf.put(tmp_path, "ds")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=re.escape(words)):
        Shell(tmp_path).run(Block("a page", 1, "console", text))


def test_dots_match_any_lines_and_times_any_time() -> None:
    alike("a\n  ...\nz\n", "a\nb\nc\nz\n", "")
    alike("a\n  time       1.0 s, 9 rows/s\n", "a\n  time       2.0 s, 7 rows/s\n", "")
    with pytest.raises(AssertionError):
        alike("a\n  ...\nz\n", "a\nb\nc\n", "")
