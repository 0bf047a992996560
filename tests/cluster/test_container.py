"""The images for Dataflow: their contents, the worker and the launcher.

They are built from the unmodified ``deploy/dataflow/Dockerfile`` on base images that
``container_image.sh`` makes, so no image registry is needed. Containers share the network of this
machine and no folder of it.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, shardmill
from tests.deploy.test_dataflow_template import VERSION
from tests.support.dataflow_server import PROJECT, REGION, State
from tests.support.dataflow_tools import OPTIONS, staged_job, wait_for
from tests.support.servers import wait_until

pytest_plugins = ["tests.support.dataflow_tools"]

STORE = ROOT / ".cache" / "containers"
IMAGE = "localhost/shardmill:test"
LAUNCHER = "localhost/shardmill-launcher:test"
PRISM = ROOT / ".cache" / "bin" / "prism"
POOL = 50000  # where Beam's worker pool listens; a constant of Beam


def buildah(*args: str) -> list[str]:
    stores = ["--root", str(STORE / "images"), "--runroot", str(STORE / "run")]
    driver = (STORE / "driver").read_text().strip()
    return ["buildah", "--storage-driver", driver, *stores, *args]


class Container:
    """A container of the image."""

    def __init__(self, name: str) -> None:
        self.name = name

    def command(
        self, *command: str, mounts: tuple[str, ...] = (), user: str = "0", **env: str
    ) -> list[str]:
        """Return the command line that runs a command in it."""
        flags = [word for each in mounts for word in ("--volume", f"{each}:{each}:ro")]
        flags += [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
        return buildah(
            "run", "--isolation", "chroot", "--user", user, *flags, self.name, "--", *command
        )

    def run(self, *command: str, **more) -> str:
        """Run a command and return its output."""
        done = subprocess.run(
            self.command(*command, **more), capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def images() -> None:
    """Builds the images."""
    if os.geteuid():
        pytest.skip("images are built here by root only")
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    made = subprocess.run(
        [ROOT / "tests" / "cluster" / "container_image.sh", STORE, IMAGE, LAUNCHER],
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert made.returncode == 0, made.stderr


@contextlib.contextmanager
def container_of(image: str) -> Iterator[Container]:
    name = subprocess.run(
        buildah("from", "--pull-never", image), capture_output=True, text=True, check=True
    ).stdout.strip()
    yield Container(name)
    subprocess.run(buildah("rm", name), capture_output=True, check=True)


@pytest.fixture(scope="module")
def container(images) -> Iterator[Container]:
    """A container of the workers' image."""
    with container_of(IMAGE) as found:
        yield found


def config_of(image: str) -> dict:
    """Return the configuration of an image."""
    found = subprocess.run(
        buildah("inspect", "--type", "image", image), capture_output=True, text=True, check=True
    )
    return json.loads(found.stdout)["OCIv1"]["config"]


def test_entry_points_and_users(container):
    worker, launcher = map(config_of, (IMAGE, LAUNCHER))
    assert worker["Entrypoint"] == ["/opt/apache/beam/boot"]
    assert launcher["Entrypoint"] == ["/opt/google/dataflow/python_template_launcher"]
    assert {each.get("User", "") for each in (worker, launcher)} <= {"", "0", "root"}
    assert f"SHARDMILL_SDK_IMAGE={IMAGE}" in launcher["Env"]
    assert container.run("shardmill", "--version").strip() == VERSION
    assert container.run("pip", "check").strip() == "No broken requirements found."


def test_the_installed_package_is_the_repository(container):
    """Each file of the package is the repository's, and none is missing."""
    script = (
        "import hashlib, json; from importlib.metadata import files; from pathlib import Path\n"
        "print(json.dumps({str(f): hashlib.sha256(Path(f.locate()).read_bytes()).hexdigest()"
        " for f in files('shardmill') if str(f).startswith('shardmill/')"
        " and '__pycache__' not in str(f)}))"
    )
    found = json.loads(container.run("python", "-c", script))
    tops = {"api": "", "loaders": "loaders/", "pipelines": "pipelines/", "schemas": "schemas/"}
    tops["transforms"] = "transforms/"
    here = {
        f"shardmill/{prefix}{path.relative_to(ROOT / top)}": hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for top, prefix in tops.items()
        for path in (ROOT / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert found == here


def test_versions_are_those_of_the_constraints(container):
    text = (ROOT / "constraints.txt").read_text().lower()
    pinned: dict[str, set[str]] = {}
    for name, number in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE):
        pinned.setdefault(re.sub(r"[-_.]+", "-", name), set()).add(number)
    listed = json.loads(container.run("pip", "list", "--format=json"))
    names = {re.sub(r"[-_.]+", "-", each["name"].lower()): each["version"] for each in listed}
    assert set(names) - set(pinned) <= {"shardmill", "pip", "setuptools"}
    for name in set(names) & set(pinned) - {"setuptools"}:
        assert names[name] in pinned[name], name


def test_no_build_tool_or_source_is_left(container):
    tools = ["gcc", "cc", "g++", "make", "ld", "git", "cargo", "go"]
    script = f"for tool in {' '.join(tools)}; do command -v $tool; done; true"
    assert container.run("sh", "-c", script) == ""
    script = "ls -d /src /wheels /build /home/*/.cache 2>/dev/null; true"
    assert container.run("sh", "-c", script) == ""
    assert (
        container.run("sh", "-c", "find / -name '*.whl' -path '*shardmill*' 2>/dev/null; true")
        == ""
    )


@contextlib.contextmanager
def pool(container: Container, log: Path, user: str = "0", **env: str) -> Iterator[None]:
    """Run the entry point of the image as a pool of workers."""
    command = container.command("/opt/apache/beam/boot", "--worker_pool", user=user, **env)
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        wait_until(lambda: listens() or process.poll() is not None, 60, str(log))
        assert process.poll() is None, log.read_text()
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def listens() -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", POOL)) == 0


@pytest.fixture
def prism() -> None:
    subprocess.run([ROOT / "deploy" / "prism" / "install.sh"], check=True, capture_output=True)


@pytest.fixture
def extra_package(tmp_path) -> Path:
    """A source distribution of a package with one module."""
    folder = tmp_path / "extra"
    folder.mkdir()
    (folder / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='extra-code', version='1', py_modules=['extra_code'])\n"
    )
    (folder / "extra_code.py").write_text("")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        folder,
        "--outdir",
        tmp_path,
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    return wheel


@pytest.mark.usefixtures("prism")
# The first cannot write what root leaves in /tmp.
@pytest.mark.parametrize("case", ["images 1000:1000", "images 0", "rows 0", "arrays 0"])
def test_a_worker_of_the_image_runs_a_job(
    case, container, album, strict_bucket, front, tmp_path, extra_package
):
    pipeline, user = case.split()
    assert not listens(), f"something else uses port {POOL}"
    inputs, output = album.upload(strict_bucket), f"{strict_bucket}/out"
    log = tmp_path / "pool.log"
    extra = [f"--extra_package={extra_package}"] if user == "0" else []
    with pool(container, log, user, STORAGE_EMULATOR_HOST=front.url, NO_GCE_CHECK="true"):
        done = shardmill(
            pipeline,
            f"--input={inputs}/{pipeline}",
            f"--output={output}",
            *OPTIONS[pipeline],
            "--runner=PrismRunner",
            f"--prism_location={PRISM}",
            "--environment_type=EXTERNAL",
            f"--environment_config=localhost:{POOL}",
            *extra,
        )
    text = log.read_text()
    assert done.returncode == 0, done.stderr + text[-3000:]
    assert "Published" in done.stdout
    # The image's boot started the worker: there is no other.
    assert "/opt/apache/beam/boot" in text
    if extra:
        container.run("python", "-c", "import extra_code")  # boot installed it
    options = {"image_size": "16"} if pipeline == "images" else {}
    album.check(pipeline, output, tmp_path / "out", **options)


def test_the_launcher_stages_a_job(images, service, album, strict_bucket, front, tmp_path):
    inputs, output = album.upload(strict_bucket), f"{strict_bucket}/out"
    place = f"{strict_bucket}/staging/template_launches/1/job_object"
    key = os.environ["GOOGLE_APPLICATION_CREDENTIALS"]
    Path(key).chmod(0o644)
    with container_of(LAUNCHER) as launcher:
        output_text = launcher.run(
            "/opt/google/dataflow/python_template_launcher",
            "--command=images",
            f"--input={inputs}/images",
            f"--output={output}",
            *OPTIONS["images"],
            "--overwrite=false",
            "--runner=DataflowRunner",
            f"--project={PROJECT}",
            f"--region={REGION}",
            "--job_name=nightly",
            f"--template_location={place}",
            f"--staging_location={strict_bucket}/staging",
            '--labels={"goog-dataflow-provided-template-type": "flex"}',
            mounts=(key,),
            GOOGLE_APPLICATION_CREDENTIALS=key,
            STORAGE_EMULATOR_HOST=front.url,
            NO_GCE_CHECK="true",
        )
    assert output_text == f"Staged {place}\n"
    job = staged_job(place)
    assert (job.name, dict(job.labels)) == (
        "nightly",
        {"goog-dataflow-provided-template-type": "flex"},
    )
    (each,) = job.environment.worker_pools[0].sdk_harness_container_images
    assert each.container_image == IMAGE
    work = service.create(job)
    wait_for(work)
    assert work.job.current_state == State.JOB_STATE_DONE
