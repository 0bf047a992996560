"""The wheel is complete, and works installed next to any other distribution."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, make_photos

pytestmark = pytest.mark.heavy

FOLDERS = ("api", "loaders", "pipelines", "schemas", "transforms")
NEIGHBOUR = """
from setuptools import setup
setup(name="neighbour", version="1", packages=["transforms"])
"""


def build_wheel(source: Path, target: Path) -> Path:
    """Build a wheel without network access; return its path."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def copy_sources(target: Path) -> Path:
    """Copy the files of a source distribution, so that building does not change the checkout."""
    target.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    for package in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, target / package, ignore=ignore)
    shutil.copytree(ROOT / "src", target / "src", symlinks=True)
    return target


def make_env(folder: Path) -> tuple[Path, str]:
    """Make an environment with the dependencies of this one; return Python and its packages.

    Editable installs of this environment are not visible there.
    """
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    site = run_clean([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    here = next(p for p in sys.path if p.endswith("site-packages"))
    # A folder that is appended to sys.path: its own .pth files are not read.
    Path(site, "zz_dependencies.pth").write_text(f"import sys; sys.path.append({here!r})\n")
    return python, site


def run_clean(command: list, cwd: Path | None = None) -> str:
    """Run a command without PYTHONPATH; return its output."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=clean, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("sources") / "src")


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory) -> Path:
    return build_wheel(sources, tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_imports_from_the_repository_root(how, wheel, sources, tmp_path) -> None:
    """No folder of the repository hides the installed package."""
    python, site = make_env(tmp_path / "env")
    target = [wheel] if how == "wheel" else ["--no-build-isolation", "-e", sources]
    run_clean([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", *target])
    code = "import shardmill.pipelines as p, shardmill; print(shardmill.__version__, p.__file__)"
    version, where = run_clean([python, "-c", code], cwd=sources).split()
    assert where.startswith(site if how == "wheel" else f"{sources}/src")
    if how == "editable":  # a path: editors and type checkers follow no hook of imports
        (path,) = (each for each in Path(site).glob("*.pth") if "shardmill" in each.name)
        assert path.read_text().strip() == f"{sources}/src"
    assert version in wheel.name


def test_every_package_folder_is_known() -> None:
    """A new top-level package or file of api/ must be linked in src/shardmill."""
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {*FOLDERS, "tests"}
    links = (ROOT / "src" / "shardmill").iterdir()
    linked = {path.resolve() for path in links if path.is_symlink()}
    files = {path for path in (ROOT / "api").iterdir() if path.is_file()}
    assert linked == files | {ROOT / name for name in FOLDERS if name != "api"}


def test_the_wheel_contains_one_package_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"shardmill"}
    assert "shardmill/py.typed" in names
    for file in (
        "schemas/dataset/manifest.schema.json",
        "schemas/example/example.textproto",
    ):
        assert f"shardmill/{file}" in names
    assert {
        f"shardmill/loaders/html/{name}"
        for name in ("examples.html", "macros.html", "report.html", "style.css", "summary.html")
    } <= set(names)
    sources = {
        f"shardmill/{path.relative_to(ROOT)}".replace("shardmill/api/", "shardmill/")
        for package in FOLDERS
        for path in (ROOT / package).rglob("*.py*")
        if path.suffix in (".py", ".pyi")
    }
    assert sources <= set(names)


def test_the_version_is_the_last_one_of_the_changelog(wheel: Path) -> None:
    """Or, before the first release, the one that the changelog announces."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert versions == sorted(versions, key=lambda v: [*map(int, v.split("."))], reverse=True)
    announced = re.findall(r"(\d+\.\d+\.\d+) is the first release", text)
    assert wheel.name.startswith(f"shardmill-{(versions or announced)[0]}-")


def test_metadata_has_license_and_light_base_dependencies(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (n for n in archive.namelist() if n.endswith("METADATA"))
        lines = archive.read(path).decode().splitlines()
    assert "License-Expression: Apache-2.0" in lines
    required = [line for line in lines if line.startswith("Requires-Dist:")]
    base = [line for line in required if "extra ==" not in line]
    assert not [line for line in base if "tensorflow>" in line or "transform" in line]
    everything = [line for line in required if 'extra == "all"' in line]
    for name in ("tensorflow", "tensorflow-transform", "google-cloud-storage", "apache-beam[gcp]"):
        assert any(line.startswith(f"Requires-Dist: {name}") for line in everything), name
    for name in ("apache-beam", "pillow"):
        assert any(line.startswith(f"Requires-Dist: {name}") for line in base), name


def test_runs_next_to_a_distribution_with_a_package_transforms(wheel: Path, tmp_path) -> None:
    source = tmp_path / "neighbour"
    (source / "transforms").mkdir(parents=True)
    (source / "transforms" / "__init__.py").write_text("WHO = 'neighbour'\n")
    (source / "setup.py").write_text(NEIGHBOUR)
    neighbour = build_wheel(source, tmp_path / "dist")
    python, site = make_env(tmp_path / "env")
    run_clean([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel, neighbour])
    photos = make_photos(tmp_path / "photos", {"a": 3, "b": 3})
    code = "import transforms, shardmill.transforms.sink.transform as s; print(transforms.WHO, s.__file__)"
    who, where = run_clean([python, "-c", code], cwd=tmp_path).split()
    assert who == "neighbour"
    assert where.startswith(site)
    command = [python.parent / "shardmill", "images", f"--input={photos}", "--output=ds"]
    assert "written    6 examples" in run_clean(command, cwd=tmp_path)
