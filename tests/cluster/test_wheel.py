"""The wheel in a new environment, on every supported Python that is installed here."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from glob import glob
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT, make_photos
from tests.support.docs_tools import alike, blocks_of, commands_of
from tests.support.examples_data import write_titanic
from tests.support.extras_tools import EXTRAS, check_rejects, write_odd_files

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
ALL = ("3.10", "3.11", "3.12", "3.13")
SUPPORTED = (HERE,) if os.environ.get("SHARDMILL_PYTHONS") == "here" else ALL


def find_python(version: str) -> str | None:
    """Return the path of a Python version: on PATH, or installed by uv or pyenv."""
    homes = [
        os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")) + f"/versions/{version}.*/bin",
        os.path.expanduser(f"~/.local/share/uv/python/cpython-{version}.*/bin"),
    ]
    candidates = [shutil.which(f"python{version}") or ""]
    candidates += [f"{folder}/python{version}" for home in homes for folder in sorted(glob(home))]
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(os.path.exists, candidates):
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return candidate
    return None


def install(
    python: str,
    env: Path,
    wheel: Path,
    extra: str = "",
    *,
    use_uv: bool = False,
    dry_run: bool = False,
) -> None:
    """Install the wheel from a local index.

    Args:
        python: The Python of the environment.
        env: Folder of the environment, which may exist.
        wheel: The wheel.
        extra: An extra to install with it.
        use_uv: Whether to use uv, if it is there, for the Python of the tests too; else pip is used.
        dry_run: Whether to resolve the packages only.
    """
    uv = shutil.which("uv")
    same = subprocess.run([python, "-V"], check=True, capture_output=True, text=True).stdout
    name, version = wheel.name.split("-")[:2]
    pins = ["--quiet", "--constraint", str(ROOT / "constraints.txt"), "--find-links", wheel.parent]
    pins.append(f"{name}[{extra}]=={version}" if extra else f"{name}=={version}")
    if dry_run:
        pins.append("--dry-run")
    if uv is None or (sys.version.split()[0] in same and not use_uv):
        subprocess.run([python, "-m", "venv", env], check=True)
        pip, chosen = [str(env / "bin" / "python"), "-m", "pip"], []
    else:
        allow = "--allow-existing"
        subprocess.run([uv, "venv", "--quiet", allow, "--python", python, env], check=True)
        pip, chosen = [uv, "pip"], ["--python", str(env / "bin" / "python")]
    subprocess.run([*pip, "install", *chosen, *pins], check=True, capture_output=True)
    subprocess.run([*pip, "check", *chosen], check=True, capture_output=True)


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """Build the distributions of all tracked files, with isolation, as for a release."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--outdir", folder / "dist", source]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "dist"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_photos(folder / "photos", {"cat": 12, "dog": 9})
    write_titanic(folder / "titanic.csv")
    x = np.arange(100 * 28 * 28, dtype=np.uint8).reshape(100, 28, 28)
    np.savez(folder / "arrays.npz", x=x, y=np.arange(100, dtype=np.int64) % 10)
    return folder


def build_all(command: list[str], inputs: Path, folder: Path) -> dict[str, bytes]:
    """Build a dataset of each kind, run every other command on it, and return its files."""

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments],
            cwd=folder,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    folder.mkdir()
    jobs = {
        "images": [f"--input={inputs}/photos", "--image_size=32", "--num_shards=2"],
        "rows": [f"--input={inputs}/titanic.csv", "--label=survived"],
        "arrays": [f"--input={inputs}/arrays.npz"],
    }
    for kind, flags in jobs.items():
        assert "Published" in run(kind, f"--output={kind}", *flags)
        assert "is up to date" in run(kind, f"--output={kind}", *flags)
        assert "all sound" in run("verify", kind)
        assert run("steps", kind, "--batch_size=8").strip().isdigit()
        assert json.loads(run("show", kind, "--json"))["kind"] == "dataset"
        assert "records in" in run("count", f"--input={kind}")
        assert "nothing to clean" in run("clean", kind)
    return {
        re.sub(r"gen-[^/]+/", "", str(path.relative_to(folder))): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".gz", ".txt", ".pbtxt", ".jsonl")
    }


@pytest.fixture(scope="module")
def expected(inputs, tmp_path_factory) -> dict[str, bytes]:
    """Return the files that this environment builds from the inputs."""
    command = [sys.executable, "-m", "shardmill.pipelines.cli"]
    return build_all(command, inputs, tmp_path_factory.mktemp("here") / "ds")


def test_a_wheel_of_the_source_distribution_is_the_same(dist: Path, tmp_path) -> None:
    import zipfile

    (source,) = dist.glob("*.tar.gz")
    (wheel,) = dist.glob("*.whl")
    shutil.unpack_archive(source, tmp_path)
    (folder,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out"]
    subprocess.run([*command, str(folder)], cwd=tmp_path, check=True, capture_output=True)
    (again,) = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        names = [name for name in one.namelist() if not name.endswith("/RECORD")]
        assert names == [name for name in other.namelist() if not name.endswith("/RECORD")]
        assert all(one.read(name) == other.read(name) for name in names)


def test_the_source_distribution_has_what_the_wheel_needs_and_no_more(dist: Path) -> None:
    import tarfile

    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {each.name.partition("/")[2] for each in archive.getmembers() if not each.isdir()}
    packages = ("api", "loaders", "pipelines", "schemas", "src/shardmill", "transforms")
    listed = subprocess.run(
        ["git", "ls-files", *packages], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    files = {"src/shardmill/" + name.removeprefix("api/") for name in listed}
    files = {name for name in files if not name.startswith("src/shardmill/src")}
    others = {name for name in names - files if not name.startswith("src/shardmill.egg-info/")}
    assert files <= names
    assert others == {
        "CHANGELOG.md",
        "LICENSE",
        "MANIFEST.in",
        "PKG-INFO",
        "README.md",
        "constraints.txt",
        "pyproject.toml",
        "setup.cfg",
        "setup.py",
    }


@pytest.mark.parametrize("version", SUPPORTED)
@pytest.mark.timeout(900)
def test_it_works_on_every_python(version, dist, inputs, expected, tmp_path) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    (wheel,) = dist.glob("*.whl")
    install(python, tmp_path / "env", wheel)
    binaries = tmp_path / "env" / "bin"
    version_text = subprocess.run(
        [binaries / "shardmill", "--version"], check=True, capture_output=True, text=True
    )
    assert version_text.stdout.strip() in wheel.name
    made = build_all([str(binaries / "shardmill")], inputs, tmp_path / "ds")
    assert len(made) >= 10
    assert made == expected
    # A long path would be cut in what the commands print.
    with tempfile.TemporaryDirectory() as folder:
        follow_page(ROOT / "README.md", binaries, Path(folder, "readme"))
        follow_page(ROOT / "docs" / "getting-started.md", binaries, Path(folder, "start"))
    build_odd_files(binaries, tmp_path / "odd", heic=False)


def follow_page(page: Path, binaries: Path, folder: Path) -> None:
    """Run the commands of a page that need no clone, and compare what they print with the page."""
    folder.mkdir()
    env = clean_environment() | {"COLUMNS": "100"}
    env["PATH"] = f"{binaries}:{env['PATH']}"
    ran = 0
    for block in blocks_of(page, ROOT):
        for command, output in commands_of(block) if block.language == "console" else ():
            if "jq " in command and not shutil.which("jq"):
                continue  # jq is not a dependency
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=folder,
                env=env,
                text=True,
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            printed = done.stdout.replace(str(folder.resolve()), "/data")
            alike(output, printed, f"{block.page}:{block.line}: {command}")
            ran += 1
    assert ran >= 5


def build_odd_files(binaries: Path, folder: Path, *, heic: bool) -> None:
    """Build a dataset of odd files, and check the reason of each reject."""
    photos = write_odd_files(folder)
    flags = ["--image_size=32", "--label_from=none", "--max_reject_fraction=1"]
    done = subprocess.run(
        [binaries / "shardmill", "images", photos, folder / "ds", *flags],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check_rejects(folder / "ds", heic=heic)


# What an extra is for, in Python. Those without are large: that they resolve is all that is tested.
USES = {
    "heic": "import pillow_heif",
    "gcs": "from shardmill.schemas.storage.gcs import GcsStorage as S; S()",
    "s3": "from shardmill.schemas.storage.s3 import S3Storage as S; S()",
}


@pytest.mark.parametrize("extra", USES)
@pytest.mark.timeout(300)
def test_each_small_extra_alone(extra: str, dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    python = tmp_path / "env" / "bin" / "python"
    install(sys.executable, tmp_path / "env", wheel, extra, use_uv=True)
    for name, code in USES.items():
        done = subprocess.run(
            [python, "-c", code], env=clean_environment(), capture_output=True, check=False
        )
        assert (done.returncode == 0) == (name == extra), name
    build_odd_files(python.parent, tmp_path / "odd", heic=extra == "heic")


@pytest.mark.timeout(300)
def test_each_large_extra_can_be_installed(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    env = tmp_path / "env"
    for extra in (*EXTRAS, "gcp", "all"):
        if extra not in USES:
            install(sys.executable, env, wheel, extra, use_uv=True, dry_run=True)
