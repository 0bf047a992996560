"""The notebook of the examples runs from its first cell to its last, and its model learns."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

NOTEBOOK = ROOT / "examples" / "pictures_to_model.ipynb"


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_notebook_trains_a_model(tmp_path):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells), "clear all outputs"
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    checks = """
assert built.status == "published" and built.manifest.written == 400
keys = sorted(reject["key"] for reject in built.rejects)
assert keys == ["cat/not_found.jpg", "coffee/cut_short.jpg"]
assert "<table" in built._repr_html_() and "data:image" in records._repr_html_()
assert "apache_beam" not in __import__("sys").modules
assert Path(page).read_text().startswith("<!doctype html>")
assert accuracy > 0.8
"""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*codes, checks])],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "validation photos are recognized" in done.stdout
