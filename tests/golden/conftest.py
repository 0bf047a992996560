"""Golden values are those of the pinned codecs, and of no terminal."""

import pytest

from tests.support import golden


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, which is the current one; times are UTC and no terminal has a width."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TZ", "UTC")
    for name in ("COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def golden_codecs() -> None:
    """Skip tests of bytes where other versions of the codecs are installed than in CI."""
    if not golden.RENEW and golden.codecs() != golden.golden_codecs():
        pytest.skip(f"made with other codecs: {golden.golden_codecs()}")
