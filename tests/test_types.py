"""Type checkers know the options of the functions that run commands."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.heavy
CODE = """\
import shardmill
built = shardmill.images("photos", "ds", image_size=(180, 320), splits={"train": 1}, quality=90)
shardmill.images("photos", "ds", imag_size=3)  # wrong
shardmill.images("photos", "ds", quality="x")  # wrong
shardmill.images("photos", "ds", resize="squash")  # wrong
shardmill.images("photos")  # wrong
shardmill.rows(["a.csv", "b.csv"], "ds")
shardmill.rows(3, "ds")  # wrong
shardmill.count(["a", "b"], check="index").written
shardmill.verify("ds", processes=2).sound
built.parts_mad  # wrong
"""


@pytest.mark.nightly
def test_mypy_reports_wrong_options(tmp_path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            ROOT / "pyproject.toml",
            "--follow-imports=silent",
            tmp_path / "code.py",
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = {int(number) for number in re.findall(r"code\.py:(\d+): error", done.stdout)}
    wrong = {number for number, line in enumerate(CODE.splitlines(), 1) if "# wrong" in line}
    assert lines == wrong, done.stdout + done.stderr
