"""The wheel installs beside anything, and the command in it runs."""

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
    """Builds a wheel without network from a copy, so that the checkout stays clean."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def copy_sources(target: Path) -> Path:
    """Copies what a source distribution would hold."""
    target.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    for package in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, target / package, ignore=ignore)
    return target


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_sources(folder / "src"), folder / "dist")


def test_the_wheel_contains_one_package_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"shardmill"}
    assert "shardmill/py.typed" in names
    assert "shardmill/schemas/dataset/manifest.schema.json" in names
    sources = {
        f"shardmill/{path.relative_to(ROOT)}".replace("shardmill/api/", "shardmill/")
        for package in FOLDERS
        for path in (ROOT / package).rglob("*.py")
    }
    assert sources <= set(names)


def test_the_version_is_the_last_one_of_the_changelog(wheel: Path) -> None:
    versions = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )
    assert wheel.name.startswith(f"shardmill-{versions[0]}-")
    assert versions == sorted(versions, key=lambda v: [*map(int, v.split("."))], reverse=True)


def test_base_dependencies_are_light(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (n for n in archive.namelist() if n.endswith("METADATA"))
        lines = archive.read(path).decode().splitlines()
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
    # A fresh environment that sees the dependencies of this one, but not its shardmill.
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
    python = env / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel, neighbour]
    subprocess.run(install, check=True, capture_output=True)
    here = next(p for p in sys.path if p.endswith("site-packages"))
    # Appended, and read as plain folders: editable installs of this environment stay out.
    Path(site, "zz_dependencies.pth").write_text(f"import sys; sys.path.append({here!r})\n")
    photos = make_photos(tmp_path / "photos", {"a": 3, "b": 3})
    code = "import transforms, shardmill.transforms.build.transform as s; print(transforms.WHO, s.__file__)"
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=clean
    )
    who, where = done.stdout.split()
    assert who == "neighbour"
    assert where.startswith(site)
    command = [env / "bin" / "shardmill", "images", f"--input={photos}", "--output=ds"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=clean, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "written    6 examples" in done.stdout
