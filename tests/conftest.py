"""Shared by many tests: generated photos, the real data, builds and commands."""

import gc
import importlib.util
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from shardmill.pipelines import run
from shardmill.pipelines.commands import INPUT_KINDS
from shardmill.pipelines.runners.base import IN_MEMORY
from shardmill.schemas.dataset.manifest import Manifest
from shardmill.schemas.storage import open_storage
from shardmill.transforms.publish.generation import read_published
from shardmill.transforms.sink.spec import Outcome
from tests.support import beam_cache

FRAMEWORKS = ("tensorflow", "keras", "torch", "jax")
TENSORFLOW = ("tensorflow", "keras", "keras_dataset", "feature_spec", "normalization")

# The time of an example depends on the load of the machine.
settings.register_profile("shardmill", deadline=None)
settings.load_profile("shardmill")

# A shell's background job ignores it, and then so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Child processes can load compiled modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A session of pytest that starts closes the folder of all sessions to other users, as which some
# tests act meanwhile: each checkout has a separate one. Its name is short, since commands that pages
# of the docs show would cut longer paths.
TEMPORARY = Path(tempfile.gettempdir(), f"t{zlib.crc32(__file__.encode()) & 0xFFFF:04x}")
TEMPORARY.mkdir(exist_ok=True)
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(TEMPORARY))

beam_cache.install()  # in the process of the tests; commands run Beam unchanged


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that import TensorFlow in one process: the import takes 6 s of CPU time.

    Without TensorFlow and torch (`make light`), skip the tests that import them. Of a test marked
    `sweep`, the first case runs for each change, and the others run at night.
    """
    begun: set[str] = set()
    missing = [name for name in FRAMEWORKS if importlib.util.find_spec(name) is None]
    for item in items:
        function = getattr(item.function, "hypothesis", item.function)
        function = getattr(function, "inner_test", function)
        if missing and _imports(function, missing):
            item.add_marker(pytest.mark.skip(f"{', '.join(missing)} are not installed"))
        grouped = any(item.iter_markers("xdist_group")) or any(item.iter_markers("heavy"))
        if not grouped and _imports(function, TENSORFLOW):
            item.add_marker(pytest.mark.xdist_group("tensorflow"))
        if any(item.iter_markers("sweep")):
            test = item.nodeid.partition("[")[0]
            if test in begun:
                item.add_marker(pytest.mark.nightly)
            begun.add(test)


def pytest_collection_finish() -> None:
    """Keep what was imported and collected from the collector, which took a fifth of each build."""
    gc.collect()
    gc.freeze()


def _imports(function: FunctionType, packages: Sequence[str]) -> bool:
    """Report whether a function imports a package, or a function of tests that it calls does."""
    functions = [function]
    for each in functions:
        codes = [each.__code__]
        for code in codes:
            codes += [value for value in code.co_consts if isinstance(value, CodeType)]
            for name in code.co_names:
                if name.split(".")[0] in packages:
                    return True
                called = each.__globals__.get(name)
                ours = isinstance(called, FunctionType) and called.__module__.startswith("tests.")
                if ours and called not in functions:
                    functions.append(called)
    return False


# In CI any other skipped test fails: a missing tool would hide what was not tested.
EXPECTED_SKIPS = {
    r"(kubectl|pigz|busybox|bsdcat|zsh|fish) is not installed": "others do the same",
    "tensorflow, keras, torch, jax are not installed": "make light and make test-lowest have none",
    "loop devices|small disk|another user|two users": "some machines of CI are not given root",
    "real data": "it is not in the repository; the same is shown on generated data",
    "make soak|TensorFlow starts slowly": "takes minutes",
    "S3 has no limit|without checksums": "there is nothing to test",
    "cykooz-resizer is not installed": "make test-pillow runs without it",
    "this machine does not have them": "extensions of other processors",
    "made with other versions of": "golden files are of the versions that CI pins",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Fail tests that CI must not skip."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2]
        if not re.search("|".join(EXPECTED_SKIPS), reason):
            report.outcome, report.longrepr = "failed", f"not to be skipped in CI: {reason}"
    return report


SOAK = bool(os.environ.get("SHARDMILL_SOAK"))
ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("SHARDMILL_DATA", ROOT.parent / "shared" / "data"))


def make_image(seed: int, width: int = 96, height: int = 64, mode: str = "RGB") -> Image.Image:
    """Return a smooth, photo-like picture that depends only on the seed."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def make_photos(folder: Path, classes: dict[str, int], *, size: tuple[int, int] = (96, 64)) -> Path:
    """Write photos in class folders: ``{"cat": 3}`` gives cat/000.jpg to cat/002.jpg."""
    seed = 0
    for label, count in classes.items():
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            make_image(seed, *size).save(folder / label / f"{number:03d}.jpg", quality=90)
            seed += 1
    return folder


def make_archives(folder: Path, classes: dict[str, int]) -> Path:
    """Write photos as a .tar and a .zip, which are read in place, a .tar.gz and a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    photos = make_photos(folder / "photos", classes)
    for name, kind in (("a", "tar"), ("b", "zip"), ("c", "gztar")):
        shutil.make_archive(str(folder / "in" / name), kind, photos)
    files = sorted(photos.rglob("*.jpg"))
    images = pa.array([path.read_bytes() for path in files])
    labels = pa.array([path.parent.name for path in files])
    pq.write_table(pa.table({"image": images, "label": labels}), folder / "in" / "d.parquet")
    return folder / "in"


def shardmill(
    *args: str | Path, cwd: str | Path = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a child process.

    Args:
        *args: Command line.
        cwd: Working directory.
        env: Environment of a new interpreter, for variables that are read while it starts. By
            default, a process that has imported Apache Beam is forked.
    """
    command = [sys.executable, "-m", "shardmill", *map(str, args)]
    if env is not None:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            cwd=cwd or None,
            env=env,
        )
    from tests.support.fault_tools import zygote  # it imports this module

    ended = zygote().run(*args, cwd=str(cwd))
    return subprocess.CompletedProcess(command, ended.code, ended.stdout, ended.stderr)


def start_shardmill(*args: object, **options) -> subprocess.Popen[str]:
    """Start the command in a new interpreter, with pipes for what it prints."""
    return subprocess.Popen(
        [sys.executable, "-m", "shardmill", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def cpu_seconds(*args: str | Path) -> float:
    """Return the CPU time of an interpreter with these arguments, in seconds.

    Not the wall-clock time, which also measures other processes.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *args], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def resolve_job(kind: str, **options) -> Any:
    """Return the job of a build with the in-memory runner; options may be paths."""
    texts = {n: str(value) if isinstance(value, Path) else value for n, value in options.items()}
    config = INPUT_KINDS[kind].load_config()(**texts)
    return INPUT_KINDS[kind].load_pipeline().resolve(config, runner=IN_MEMORY)


def run_job(kind: str, job: Any) -> Outcome:
    """Run a job in this process with Beam's in-memory runner."""
    outcomes = INPUT_KINDS[kind].load_pipeline().outcomes
    return run.run_pipeline(
        lambda root: outcomes(root, job), IN_MEMORY, [], job.sink.output, build=job.sink.build
    ).outcome


def build_dataset(kind: str = "images", **options) -> tuple[Outcome, Manifest | None]:
    """Build in this process with Beam's in-memory runner; return outcome and manifest."""
    job = resolve_job(kind, **options)
    outcome = run_job(kind, job)
    return outcome, read_published(open_storage(job.sink.output), job.sink.output).manifest


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A small folder of photos in two classes."""
    return make_photos(tmp_path / "photos", {"cat": 12, "dog": 9})


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data; skips the test if it is missing."""
    if not SHARED.is_dir():
        pytest.skip(f"there is no real data in {SHARED}")
    return SHARED


def examples(count: int) -> int:
    """Return the number of examples of a property: all in `make soak`, else a third."""
    return count if SOAK else count // 3
