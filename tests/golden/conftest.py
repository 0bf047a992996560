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
    """Skip tests of bytes where other versions of the codecs are installed than in CI."""
    if not golden.RENEW and golden.codecs() != golden.golden_codecs():
        pytest.skip(f"made with other codecs: {golden.golden_codecs()}")
