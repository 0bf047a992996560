"""docs/training.md: its code runs without TensorFlow, and its errors are raised."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardmill import loaders
from shardmill.schemas.errors import ShardmillError
from tests.conftest import ROOT
from tests.support.docs_tools import Shell, blocks_of

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("docs")]
PAGE = ROOT / "docs" / "training.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the datasets of the page."""
    folder = tmp_path_factory.mktemp("training")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Shell(folder).run(blocks_of(PAGE)[0])
    return folder


def test_code_for_torch_and_jax_runs_without_tensorflow(folder) -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['tensorflow', 'keras', 'apache_beam']))\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.support.docs_code import code_of, run_checked\n"
        f"text = open({str(PAGE)!r}).read().partition('\\n## Without TensorFlow\\n')[2]\n"
        "names = {}\n"
        "section = code_of(text.partition('\\n## Several hosts\\n')[0])\n"
        "print(sum(run_checked(code, names) for code in section))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 7


def test_errors_of_the_page_are_raised(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    shutil.copytree("ds", "torn", symlinks=True)
    Path("torn", "current/train-00000-of-00001.tfrecord.gz").unlink()
    rows = re.findall(r'^\| `(\w+\("[^`]+\))` \| (.+) \|$', PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 3
    names = {name: getattr(loaders, name) for name in loaders.__all__}
    for call, message in rows:
        with pytest.raises(ShardmillError) as error:
            eval(call, dict(names))
        # Names of generations differ.
        generation = r"gen-\w+-\w+"
        found = str(error.value).replace(f"{folder}/", "/data/")
        assert re.sub(generation, "", found) == re.sub(generation, "", message)
