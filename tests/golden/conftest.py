"""Golden values are those of the pinned codecs, and of no terminal."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import golden

LENGTH = 80  # characters of the path of a folder: some texts are cut to a width


@pytest.fixture
def place(monkeypatch) -> Iterator[Path]:
    """An empty folder, which is the current one, without the settings of a terminal."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "x" * (LENGTH - len(temporary) - 1))
        folder.mkdir()
        monkeypatch.chdir(folder)
        yield folder
        monkeypatch.undo()


@pytest.fixture
def golden_codecs() -> None:
    """Skip a test of bytes where other versions of the codecs are installed than in CI."""
    _skip_if_others(*golden.CODECS)


@pytest.fixture
def golden_python() -> None:
    """Skip a test of texts, some of which are Python's, under another version of Python."""
    _skip_if_others("python")


def _skip_if_others(*names: str) -> None:
    expected, installed = golden.golden_versions(), golden.installed_versions()
    others = [name for name in names if installed[name] != expected[name]]
    if others and not golden.RENEW:
        pytest.skip(f"made with other versions of {', '.join(others)}")
