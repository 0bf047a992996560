"""The code on the page "Add an input kind" adds one to a copy of the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.readers import tf_examples
from tests.test_layers import ALLOWED

pytestmark = pytest.mark.heavy
PAGE = ROOT / "docs" / "add-an-input-kind.md"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the sources as a package called shardmill, with the page's kind added."""
    folder = tmp_path_factory.mktemp("checkout")
    package = folder / "shardmill"
    shutil.copytree(ROOT / "api", package)
    for name in set(ALLOWED) - {"api"}:
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    entry, *files = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    kinds = package / "pipelines" / "commands" / "__init__.py"
    before, last, after = kinds.read_text().partition('        InputKind("arrays"')
    kinds.write_text(f"{before}        {entry.strip()},\n{last}{after}")
    assert len(files) == 2
    for text in files:
        path = re.match(r"# (pipelines/\S+)\n", text)[1]
        (package / path).write_text(text)
    return folder


def run(checkout: Path, *command: str, code: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_the_new_kind_builds_a_dataset(checkout) -> None:
    for label in ("bad", "good"):
        (checkout / "reviews" / label).mkdir(parents=True)
        for number in range(20):
            text = f"{label} {number} ü"
            (checkout / "reviews" / label / f"{number}.txt").write_text(text, encoding="utf-8")
    (checkout / "reviews" / "bad" / "broken.txt").write_bytes(b"\xff")
    flags = ["-m", "shardmill", "texts", "--input=reviews", "--output=ds"]
    assert "matched    41 texts" in run(checkout, *flags)
    assert "up to date" in run(checkout, *flags)
    manifest = json.loads((checkout / "ds" / "manifest.json").read_text())
    assert (manifest["written"], manifest["inputs"]["rejected"]) == (40, 1)
    records = [e for path in sorted(checkout.glob("ds/current/*.gz")) for e in tf_examples(path)]
    assert {(record["text"][0].decode(), record["class"][0]) for record in records} == {
        (f"{label} {number} ü", index)
        for index, label in enumerate(("bad", "good"))
        for number in range(20)
    }
    assert "all sound" in run(checkout, "-m", "shardmill", "verify", "ds")
    message = run(checkout, *flags, "--encoding=ebcdic", code=2)
    assert "--encoding=ebcdic is unknown: use utf-8 or latin-1." in message


def test_lists_are_derived(checkout) -> None:
    assert "\n  texts      build a dataset from text files\n" in run(
        checkout, "-m", "shardmill", "help"
    )
    for script in ("deploy/dataflow/template.py", "deploy/airflow/input_kinds.py"):
        run(checkout, script)
    parameters = json.loads((checkout / "deploy/dataflow/metadata.json").read_text())["parameters"]
    (command,) = [each for each in parameters if each["name"] == "command"]
    assert {"value": "texts", "label": "texts"} in command["enumOptions"]
    airflow = checkout / "deploy/airflow/dags/shardmill_airflow/input_kinds.json"
    assert "texts" in json.loads(airflow.read_text())
