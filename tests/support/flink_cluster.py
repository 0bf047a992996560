"""A real Flink cluster for tests, and the command run on it as a user runs it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from tests.conftest import ROOT, make_archives, make_photos, shardmill
from tests.support.annotation_tools import (
    truth,
    write_coco,
    write_images,
    write_listing,
    write_masks,
)
from tests.support.fault_tools import Ended
from tests.support.readers import dataset_files
from tests.support.servers import free_port, wait_until

SCRIPTS = ROOT / "deploy" / "flink"
EARLY = 8  # finished parts, of dozens, before a build is disturbed
INSTALLED = Path(os.environ.get("FLINK_DIR", ROOT / ".cache" / "flink"))
# Progress lines of a run on a cluster.
_PROGRESS = re.compile(
    r"^(starting|planning|matching|reading|encoding|assembling|running|job|counting)\b.*\n",
    re.MULTILINE,
)


def session_of(process: psutil.Process) -> int | None:
    """Return the session of a process; None if the process has ended."""
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


@dataclass(frozen=True)
class OnCluster(Ended):
    """How a command that ran on a cluster ended."""

    @property
    def said(self) -> str:
        """See ``Ended.said``."""
        return _PROGRESS.sub("", self.stderr)

    @property
    def job(self) -> str:
        """The id of the job, which the command prints with the URL of its page."""
        found = re.search(r"^job: ([0-9a-f]{32})  (\S+)$", self.stderr, re.MULTILINE)
        assert found, self.stderr
        assert found.group(2).startswith("http://"), self.stderr
        assert found.group(1) in found.group(2)
        return found.group(1)


@dataclass
class Client:
    """A running command; it writes to files, which cannot fill up as pipes do."""

    process: subprocess.Popen
    folder: Path

    def wait(self, timeout: float = 600) -> OnCluster:
        """Wait for its end."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the command did not end: {self.stderr()}")
        return OnCluster(code, (self.folder / "stdout").read_text(), self.stderr())

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Cluster:
    """A cluster in a separate folder, on free ports.

    Attributes:
        folder: Configuration, logs, workers, and the pool.
        task_managers: Number of TaskManagers; each has two slots.
    """

    folder: Path
    task_managers: int
    rest_port: int = field(default_factory=free_port)
    rpc_port: int = field(default_factory=free_port)
    job_port: int = field(default_factory=free_port)
    pool_port: int = field(default_factory=free_port)
    clients: list[Client] = field(default_factory=list)

    @property
    def master(self) -> str:
        return f"localhost:{self.rest_port}"

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "FLINK_DIR": str(INSTALLED),
            "CLUSTER_DIR": str(self.folder),
            "POOL_DIR": str(self.folder / "pool"),
            "WORKER_ENV": sys.prefix,
            "TASK_MANAGERS": str(self.task_managers),
            "REST_PORT": str(self.rest_port),
            "RPC_PORT": str(self.rpc_port),
            "JOB_PORT": str(self.job_port),
            "POOL_PORT": str(self.pool_port),
            "TASK_MANAGER_MEMORY": "1500m",
            "JOB_MANAGER_MEMORY": "1200m",
        }

    def script(self, name: str, *args: str) -> str:
        """Run one of the scripts to its end and return its output."""
        done = subprocess.run(
            [str(SCRIPTS / name), *args],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pids(self) -> dict[str, int]:
        """The processes of the cluster by name."""
        lines = self.script("cluster.sh", "pids").splitlines()
        return {name: int(pid) for name, pid in (line.split() for line in lines)}

    def workers(self) -> list[psutil.Process]:
        """All processes of workers: their working directories are in the folders of workers."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                folder = process.cwd()
                if folder.startswith(f"{self.folder}/") and "/worker." in folder:
                    found.append(process)
        return found

    def workers_of(self, task_manager: int) -> list[psutil.Process]:
        """The processes of the workers that a TaskManager started."""
        boots = {p.pid for p in psutil.Process(task_manager).children()}
        return [p for p in self.workers() if p.pid in boots or session_of(p) in boots]

    def rest(self, path: str, method: str = "GET") -> dict:
        """Call Flink's API."""
        request = urllib.request.Request(f"http://{self.master}{path}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if body else {}

    def state(self, job: str) -> str:
        return self.rest(f"/jobs/{job}")["state"]

    def running(self) -> list[str]:
        """Ids of jobs that have not ended."""
        jobs = self.rest("/jobs")["jobs"]
        return [
            job["id"] for job in jobs if job["status"] not in ("FINISHED", "CANCELED", "FAILED")
        ]

    def flags(self, kind: str = "PROCESS", *, own_server: bool = False) -> list[str]:
        """Return the flags that run a command on this cluster.

        Args:
            kind: How TaskManagers start workers: the environment type of Beam.
            own_server: Whether the command starts its own job server.
        """
        config = {
            "PROCESS": json.dumps({"command": str(SCRIPTS / "worker.sh")}),
            "EXTERNAL": f"localhost:{self.pool_port}",
        }
        flags = [
            "--runner=FlinkRunner",
            f"--flink_master={self.master}",
            f"--flink_job_server_jar={INSTALLED / 'job-server.jar'}"
            if own_server
            else f"--job_endpoint=localhost:{self.job_port}",
            "--parallelism=2",
            # Less than the next command needs to start its job: jobs do not share workers.
            "--environment_cache_millis=3000",
            f"--environment_type={kind}",
        ]
        return [*flags, f"--environment_config={config[kind]}"] if kind in config else flags

    def start_command(self, *args: object, **how: object) -> Client:
        """Start ``shardmill ARGS`` on this cluster; see ``flags`` for the options."""
        folder = self.folder / f"client-{len(self.clients)}"
        folder.mkdir()
        command = [sys.executable, "-m", "shardmill.pipelines.cli", *map(str, args)]
        with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
            process = subprocess.Popen(
                [*command, *self.flags(**how)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.clients.append(Client(process, folder))
        return self.clients[-1]

    def run(self, *args: object, **how: object) -> OnCluster:
        """Run ``shardmill ARGS`` on this cluster to its end."""
        return self.start_command(*args, **how).wait()

    def stop(self) -> None:
        """Stop the cluster, its workers and clients."""
        for client in self.clients:
            client.kill()
        self.script("pool.sh", "stop")
        self.script("cluster.sh", "stop")


@contextlib.contextmanager
def run_cluster(folder: Path, task_managers: int) -> Iterator[Cluster]:
    """Run a cluster; skip the test if Flink is not installed."""
    if not (INSTALLED / "bin" / "boot").exists():
        pytest.skip(f"Flink is not installed in {INSTALLED}: run `make test-flink`")
    cluster = Cluster(folder, task_managers)
    try:
        cluster.script("cluster.sh", "start")
        yield cluster
    finally:
        cluster.stop()
    assert not cluster.workers()
    assert not list((folder / "workers").glob("worker.*"))


def finished_parts(output: Path) -> int:
    """Return the number of finished parts of an unfinished build."""
    return len(list(output.glob(".build-*/parts/*.json")))


@dataclass
class Attempts:
    """The attempts at parts that were seen in a build folder, as file names."""

    seen: set[str] = field(default_factory=set)

    def by_part(self) -> Counter[str]:
        """Return the number of attempts at each part."""
        attempts = {
            found.group(1)
            for found in (re.match(r"\.?([0-9a-f]{32}-[0-9a-f]{12})\b", name) for name in self.seen)
            if found
        }
        return Counter(attempt.partition("-")[0] for attempt in attempts)


@contextlib.contextmanager
def watch_attempts(output: Path) -> Iterator[Attempts]:
    """Poll the build folder, which is deleted when the build is published."""
    attempts, ended = Attempts(), threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            with contextlib.suppress(FileNotFoundError):
                attempts.seen.update(path.name for path in output.glob(".build-*/parts/*"))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield attempts
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def started_build(
    cluster: Cluster, case: "Case", output: Path, *flags: str
) -> Iterator[tuple[Client, Attempts, Path]]:
    """Run the block while a build runs, which has finished some of its parts."""
    client = cluster.start_command(*case.args(output), *flags)
    with watch_attempts(output) as attempts:
        wait_until(
            lambda: finished_parts(output) >= EARLY or client.process.poll() is not None, 600
        )
        assert client.process.poll() is None, client.stderr()
        assert finished_parts(output) < case.parts / 2
        yield client, attempts, output
    client.kill()


def kill(process: int | psutil.Process) -> None:
    """Send SIGKILL to a process."""
    pid = process if isinstance(process, int) else process.pid
    os.kill(pid, signal.SIGKILL)


def published(folder: Path) -> tuple[dict[str, bytes], dict]:
    """Return the files of a generation, and its manifest without the fields about the run.

    Asserts that the dataset has one generation, and nothing else is in its folders.
    """
    generation = json.loads((folder / "manifest.json").read_text())["generation"]
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "current", generation}
    manifest = json.loads((folder / generation / "manifest.json").read_text())
    own = {shard["file"] for split in manifest["splits"].values() for shard in split["shards"]}
    files = dataset_files(folder)
    assert own < files.keys() <= own | {"schema.pbtxt", "labels.txt", "rejects.jsonl"}
    for name in ("runner", "finished", "command"):
        assert manifest["build"].pop(name)
    return files, manifest


@dataclass(frozen=True)
class Case:
    """A command, and its result on the in-memory runner.

    Attributes:
        flags: All flags but --output.
        files: Files of the dataset, as ``published`` returns them.
        manifest: Manifest of the dataset, as ``published`` returns it.
        parts: Number of parts.
        counters: Beam's counters, as --debug prints them.
    """

    flags: Sequence[str]
    files: dict[str, bytes]
    manifest: dict
    parts: int
    counters: dict[str, str]

    def args(self, output: Path) -> list[str]:
        return [*self.flags, f"--output={output}"]

    def check(self, output: Path) -> None:
        """Assert that a dataset equals that of the in-memory runner."""
        files, manifest = published(output)
        assert manifest == self.manifest
        assert files.keys() == self.files.keys()
        assert [name for name, data in files.items() if data != self.files[name]] == []


def counters_in(stderr: str) -> dict[str, str]:
    """Return Beam's counters, as --debug prints them; of measured times only how many there are."""
    found = dict(re.findall(r"^counter (\w+): (.*)$", stderr, re.MULTILINE))
    times = found["encode_milliseconds"].split(" sum ")[0]
    return found | {"encode_milliseconds": times}


def make_case(folder: Path, *flags: object) -> Case:
    """Run a command on the in-memory runner."""
    texts = [str(flag) for flag in flags]
    done = shardmill(*texts, f"--output={folder / 'in-memory'}", "--debug")
    assert done.returncode == 0, done.stderr
    made, found = Ended(0, done.stdout, done.stderr).parts()
    assert not found
    return Case(texts, *published(folder / "in-memory"), made, counters_in(done.stderr))


@pytest.fixture(scope="session")
def image_case(tmp_path_factory) -> Case:
    """Dozens of parts that take a moment each, and two rejects."""
    folder = tmp_path_factory.mktemp("images")
    source = make_photos(folder / "photos", {"cat": 80, "dog": 64}, size=(200, 150))
    (source / "cat" / "text.jpg").write_text("no image at all")
    (source / "dog" / "empty.jpg").write_bytes(b"")
    flags = ["--image_size=448", "--encoding=png", "--shard_examples=8"]
    case = make_case(folder, "images", f"--input={source}", *flags)
    assert case.parts >= 40
    assert case.manifest["inputs"]["rejected"] == 2
    return case


@pytest.fixture(scope="session")
def archive_case(tmp_path_factory) -> Case:
    """Photos in archives that are read in place and in others that a worker spools."""
    folder = tmp_path_factory.mktemp("archives")
    source = make_archives(folder, {"cat": 20, "dog": 16})
    case = make_case(folder, "images", f"--input={source}", "--image_size=64", "--shard_examples=8")
    assert case.manifest["inputs"]["accepted"] == 4 * 36
    return case


@pytest.fixture(scope="session")
def boxes_case(tmp_path_factory) -> Case:
    """Photos of a listing with further columns, with boxes in one file, and with masks."""
    folder = tmp_path_factory.mktemp("boxes")
    source = write_images(folder / "in")
    annotations = write_coco(source, truth())["annotations"]
    write_masks(folder / "masks")
    case = make_case(
        folder,
        "images",
        f"--input={write_listing(source)}",
        f"--annotations={annotations}",
        f"--masks={folder / 'masks'}",
        "--resize=none",
        "--encoding=keep",
        "--shard_examples=2",
    )
    assert case.manifest["inputs"]["counts"]["boxes"] == sum(
        len(each[2]) for each in truth().values()
    )
    assert case.manifest["inputs"]["counts"]["kept"] == 8  # the others are rotated
    return case


@pytest.fixture(scope="session")
def rows_case(tmp_path_factory) -> Case:
    """Rows of several types from several files; some are rejects."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(5)
    (folder / "csv").mkdir()
    for number in range(3):
        lines = ["name,age,height,city,label"]
        for row, (age, height, label) in enumerate(rng.integers(0, 1000, (4_000, 3)).tolist()):
            lines.append(f'"n{number}, {row}",{age},{height / 8},"A\nB{label % 7}",{label % 3}')
        lines[1_234] = "a row,too short"
        (folder / "csv" / f"{number}.csv").write_text("\n".join(lines) + "\n")
    case = make_case(
        folder, "rows", f"--input={folder / 'csv'}", "--label=label", "--shard_examples=500"
    )
    assert case.parts >= 20
    assert case.manifest["inputs"]["rejected"] == 3
    return case


def _typed_case(folder: Path, kind: str) -> Case:
    """A table with types: numbers, texts, lists and missing values; some rows are rejects."""
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({"n": rng.integers(0, 1000, 6_000), "x": rng.normal(0, 1, 6_000)})
    frame["label"] = [None if n < 3 else f"label {n % 3}" for n in frame.n]
    frame["list"] = [[n] * (n % 4) for n in frame.n]
    path = folder / f"t.{kind}"
    if kind == "parquet":
        frame.to_parquet(path, row_group_size=1_000)
    else:
        frame.to_json(path, orient="records", lines=True)
    case = make_case(folder, "rows", f"--input={path}", "--label=label", "--shard_examples=300")
    assert case.parts >= 15
    assert case.manifest["inputs"]["rejected"] > 0
    return case


@pytest.fixture(scope="session")
def parquet_case(tmp_path_factory) -> Case:
    """Rows of a Parquet file with several row groups."""
    return _typed_case(tmp_path_factory.mktemp("parquet"), "parquet")


@pytest.fixture(scope="session")
def jsonl_case(tmp_path_factory) -> Case:
    """Rows of a JSON Lines file."""
    return _typed_case(tmp_path_factory.mktemp("jsonl"), "jsonl")


@pytest.fixture(scope="session")
def arrays_case(tmp_path_factory) -> Case:
    """Small images and their labels in an .npz."""
    folder = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(6)
    x = rng.integers(0, 256, (3_000, 16, 16), dtype=np.uint8)
    np.savez(folder / "data.npz", x=x, y=rng.integers(0, 10, 3_000))
    case = make_case(folder, "arrays", f"--input={folder / 'data.npz'}", "--shard_examples=100")
    assert case.parts >= 20
    return case


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """Two TaskManagers, two slots each."""
    with run_cluster(tmp_path_factory.mktemp("flink"), 2) as running:
        yield running


@pytest.fixture
def build(cluster, image_case, tmp_path) -> Iterator[tuple[Client, Attempts, Path]]:
    """A running build that has finished some of its parts: client, attempts, output."""
    with started_build(cluster, image_case, tmp_path / "out") as running:
        yield running


@pytest.fixture(scope="session")
def small_cluster(tmp_path_factory) -> Iterator[Cluster]:
    """One TaskManager, which one worker pool or one client can serve."""
    with run_cluster(tmp_path_factory.mktemp("flink-small"), 1) as running:
        yield running
