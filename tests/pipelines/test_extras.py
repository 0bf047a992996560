"""Extras that are not installed: each is hidden alone, and all are, as on a bare machine."""

import functools
import json
import operator
import os
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.extras_tools import (
    EXTRAS,
    OTHERS,
    check_rejects,
    expected_rejects,
    hide_modules,
    write_odd_files,
)

DEVELOPERS = {"bench", "dev", "docs", "interop", "light", "lint", "look", "release", "test"}
ALIASES = {"gcp", "all"}  # of dataflow, and of dataflow and tft
# "everything" is a bare machine, "nothing" the machine of a developer.
CASES = {name: EXTRAS[name] for name in EXTRAS} | {
    "others": OTHERS,
    "everything": [*functools.reduce(operator.iadd, EXTRAS.values(), []), *OTHERS],
    "nothing": [],
}
IS_HIDDEN = {name: {"pillow_heif"} <= set(modules) for name, modules in CASES.items()}
# Decodes files as a decoder does, and imports what readers of datasets use.
DECODE = """
import json, pathlib, sys
import shardmill
from shardmill.loaders import records, stream
from shardmill.schemas.refs import RejectedError
from shardmill.transforms.images.convert import ImageSpec, codec_versions, convert_image

spec = ImageSpec(image_size=32)
rejects = {}
for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    try:
        assert len(convert_image(path.read_bytes(), spec).data) > 100
    except RejectedError as error:
        rejects[path.name] = [error.error, error.message]
print(json.dumps([rejects, codec_versions(spec.resizer)]))
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory) -> Path:
    return write_odd_files(tmp_path_factory.mktemp("odd"))


def run_hidden(case: str, folder: Path, *command: str) -> str:
    """Run Python without the packages of a case; return its output."""
    hider = hide_modules(folder / "hidden", *CASES[case])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([hider, str(ROOT)])},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_the_cases_are_the_extras_of_users() -> None:
    extras = {*metadata("shardmill").get_all("Provides-Extra", [])}
    assert extras == {*EXTRAS, *ALIASES, *DEVELOPERS}


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
def test_files_that_are_no_images_are_named_so(case, odd, tmp_path) -> None:
    rejects, versions = json.loads(run_hidden(case, tmp_path, "-c", DECODE, str(odd)))
    expected = expected_rejects(heic=not IS_HIDDEN[case])
    assert {key: error for key, (error, _) in rejects.items()} == {
        key: error for key, (error, _) in expected.items()
    }
    for key, (_, message) in expected.items():
        assert rejects[key][1].startswith(message), key
    assert ("pillow_heif" in versions) != IS_HIDDEN[case]


def build_hidden(case: str, odd: Path, folder: Path) -> None:
    output = run_hidden(
        case,
        folder,
        "-m",
        "shardmill",
        "images",
        str(odd),
        "ds",
        "--image_size=32",
        "--label_from=none",
        "--max_reject_fraction=1",
        "--workers=1",
    )
    assert "KeyError" not in output
    check_rejects(folder / "ds", heic=not IS_HIDDEN[case])


@pytest.mark.heavy
def test_a_build_without_any_extra_gives_each_reason(odd, tmp_path) -> None:
    build_hidden("everything", odd, tmp_path)


@pytest.mark.sweep
@pytest.mark.heavy
@pytest.mark.parametrize("case", [case for case in CASES if case != "everything"])
def test_a_build_without_one_extra_gives_each_reason(case, odd, tmp_path) -> None:
    build_hidden(case, odd, tmp_path)
