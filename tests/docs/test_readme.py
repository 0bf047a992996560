"""The front page, followed from top to bottom in a fresh clone and a fresh environment."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.docs_tools import alike, blocks_of, commands_of
from tests.test_packaging import make_env, run_clean

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


@pytest.fixture
def clone(tmp_path) -> Path:
    subprocess.run(
        ["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(tmp_path / "clone")], check=True
    )
    return tmp_path / "clone"


def test_install_and_the_commands_of_the_front_page(clone, tmp_path) -> None:
    """Dependencies are those of this environment; test_blocks.py runs the Python code."""
    python, _ = make_env(tmp_path / "env")
    work = tmp_path / "data"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": f"{python.parent}:{environment['PATH']}", "COLUMNS": "100"}
    installed = ran = 0
    for block in blocks_of(clone / "README.md", clone):
        for command, shown in commands_of(block) if block.language in ("sh", "console") else ():
            if found := re.match(r"pip install '?\.(?:\[(\w+)\])?'?", command):
                assert not found[1] or f'"{found[1]}":' in (clone / "setup.py").read_text()
                install = ["install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
                run_clean([python, "-m", "pip", *install, "--force-reinstall", "."], cwd=clone)
                installed += 1
                continue
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=work,
                env=environment,
                text=True,
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            output = done.stdout.replace(str(work), "/data")
            alike(shown, output, f"README.md: {command}")
            ran += 1
    assert (installed, ran) == (2, 5)
    failed = subprocess.run(
        ["shardmill", "show", "nowhere"],
        cwd=work,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert failed.stderr == (
        "shardmill: nowhere does not exist: give a dataset or a TFRecord file.\n"
    )
