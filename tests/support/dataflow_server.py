"""A fake Google Dataflow service: the calls of its API that Beam makes, and jobs that really run.

The service implements the v1b3 REST API over HTTP. Requests and responses use the message types of
Google's client library, so a request with an unknown field is an error. ``dataflow_worker.py`` runs
each job in a separate process, from the pipeline that was staged in the bucket: DONE means that the
pipeline succeeded. Messages have the format of the real service.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.cloud import dataflow
from google.protobuf import json_format

from tests.support.gcs_server import Front

WORKER = Path(__file__).with_name("dataflow_worker.py")
JOBS = r"/v1b3/projects/([^/]+)/locations/([^/]+)/jobs"
PROJECT, REGION = "my-project", "europe-west1"
TOKEN = "a-token"
WORKER_ERROR = """Error message from worker: generic::unknown: {}

passed through:
==>
    dist_proc/dax/workflow/worker/fnapi_service_impl.cc:1331"""
WORK_ITEM_ERROR = """Workflow failed. Causes: S12:{0} failed., The job failed because a work item has \
failed 4 times. Look in previous log entries for the cause of each one of the 4 failures. The work \
item was attempted on these workers:

  {0}-01010000-abcd-harness-wxyz
  Root cause: Work item failed."""
State, Importance = dataflow.JobState, dataflow.JobMessageImportance


class Rejection(NamedTuple):
    """The error response to a request."""

    code: int
    status: str
    message: str


class Work:
    """A job of the fake service.

    Attributes:
        job: The job as the service reports it.
        given: The job as it was submitted.
        messages: Log messages.
        metrics: Counters and distributions, once the job has ended.
    """

    def __init__(self, number: int, given: dataflow.Job) -> None:
        self.given = given
        self.id = f"2026-01-01_00_00_00-{number:019d}"
        self.job = dataflow.Job(
            id=self.id, name=given.name, current_state=State.JOB_STATE_PENDING,
            client_request_id=given.client_request_id, type_=given.type_,
        )  # fmt: skip
        self.messages: list[dataflow.JobMessage] = []
        self.metrics: list[dataflow.MetricUpdate] = []
        self.process: subprocess.Popen[str] | None = None

    @property
    def options(self) -> dict:
        """The pipeline options that the job was submitted with."""
        return dict(self.given.environment.sdk_pipeline_options["options"])

    def say(self, importance: Importance, text: str) -> None:
        """Add a message to the log of the job."""
        number = len(self.messages) + 1
        self.messages.append(
            dataflow.JobMessage(
                id=f"m{number}",
                time=f"2026-01-01T00:00:{number:02d}Z",
                message_text=text,
                message_importance=importance,
            )
        )


class Service:
    """The fake service.

    Attributes:
        url: Its URL: a value for ``--dataflow_endpoint``.
        works: The jobs, oldest first.
        calls: (method, path) of all calls.
        rejection: The response to new jobs; None if they are accepted.
        denied: What the caller may not read: ``job``, ``messages`` or both.
        hold: Whether jobs stay in state RUNNING until they are cancelled.
        cancel_seconds: Time from the cancellation of a job to its end.
        errors: Error messages with which new jobs fail instead of being run.
    """

    def __init__(self, worker_env: dict[str, str]) -> None:
        self.worker_env = worker_env
        self.works: list[Work] = []
        self.reset()
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://localhost:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self) -> None:
        """Remove all jobs, calls and faults, and kill running jobs."""
        for work in self.works:
            if work.process is not None:
                work.process.kill()
                work.process.wait()
        self.works = []
        self.calls: list[tuple[str, str]] = []
        self.rejection: Rejection | None = None
        self.denied: set[str] = set()
        self.hold = False
        self.cancel_seconds = 0.0
        self.errors: list[str] = []

    def close(self) -> None:
        """Stop the service and its jobs."""
        self.reset()
        self._server.shutdown()
        self._server.server_close()

    def create(self, given: dataflow.Job) -> Work:
        """Start a job."""
        work = Work(len(self.works) + 1, given)
        self.works.append(work)
        threading.Thread(target=self._run, args=(work,), daemon=True).start()
        return work

    def find(self, name: str) -> Work | None:
        """Return the job with an id."""
        return next((work for work in self.works if work.id == name), None)

    def cancel(self, work: Work) -> None:
        """Cancel a job; it ends after ``cancel_seconds``."""
        if work.job.current_state in (State.JOB_STATE_PENDING, State.JOB_STATE_RUNNING):
            work.job.current_state = State.JOB_STATE_CANCELLING
            threading.Thread(target=self._cancel_later, args=(work,), daemon=True).start()

    def _cancel_later(self, work: Work) -> None:
        if work.process is not None:
            work.process.kill()
        time.sleep(self.cancel_seconds)
        work.job.current_state = State.JOB_STATE_CANCELLED

    def _run(self, work: Work) -> None:
        time.sleep(0.2)
        if work.job.current_state == State.JOB_STATE_PENDING:
            work.job.current_state = State.JOB_STATE_RUNNING
        work.say(Importance.JOB_MESSAGE_BASIC, f"Worker configuration: e2-standard-2 in {REGION}.")
        if self.hold:
            return
        errors = self.errors or self._really_run(work)
        if work.job.current_state != State.JOB_STATE_RUNNING:
            return
        for text in errors:
            work.say(Importance.JOB_MESSAGE_ERROR, text)
        work.job.current_state = State.JOB_STATE_FAILED if errors else State.JOB_STATE_DONE

    def _really_run(self, work: Work) -> list[str]:
        """Run the pipeline of a job; return its errors in the format of the service."""
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(WORKER), work.options["pipelineUrl"]]
            command += [work.options["pipelineProtoHash"], f"{folder}/metrics.json"]
            work.process = subprocess.Popen(
                command, env=self.worker_env, stderr=subprocess.PIPE, text=True, cwd=folder
            )
            stderr = work.process.communicate()[1]
            if work.process.returncode:
                trace = stderr[stderr.find("Traceback (most recent call last)") :].strip()
                return [WORKER_ERROR.format(trace), WORK_ITEM_ERROR.format(work.given.name)]
            for each in json.loads(Path(folder, "metrics.json").read_text()):
                work.metrics += _updates(each)
        return []


def _updates(metric: dict) -> Iterator[dataflow.MetricUpdate]:
    """Yield a metric as the service reports it: committed and tentative."""
    for more in ({}, {"tentative": "true"}):
        context = {"namespace": metric["namespace"], "step": metric["step"], **more}
        name = dataflow.MetricStructuredName(origin="user", name=metric["name"], context=context)
        update = dataflow.MetricUpdate(name=name)
        setattr(update, metric["kind"], metric["value"])
        yield update


class _Handler(BaseHTTPRequestHandler):
    service: Service
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: object) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        split = urllib.parse.urlsplit(self.path)
        query = {name: values[0] for name, values in urllib.parse.parse_qs(split.query).items()}
        self.service.calls.append((self.command, split.path))
        if split.path == "/token":
            self._answer(200, json.dumps({"access_token": TOKEN, "expires_in": 3600}))
            return
        if not (self.headers.get("Authorization") or "").startswith("Bearer "):
            self._reject(Rejection(401, "UNAUTHENTICATED", "Request had invalid credentials."))
            return
        found = re.fullmatch(rf"{JOBS}(?:/([^/]+)(/messages|/metrics)?)?", split.path)
        if not found or found[1] != PROJECT or found[2] != REGION:
            self._reject(Rejection(404, "NOT_FOUND", f"No such place: {split.path}."))
            return
        self._jobs(found[3], found[4], query, body)

    do_GET = do_POST = do_PUT = _handle  # noqa: N815 - http.server's names

    def _jobs(self, name: str | None, what: str | None, query: dict, body: bytes) -> None:
        service = self.service
        if name is None and self.command == "POST":
            if service.rejection is not None:
                self._reject(service.rejection)
            else:
                self._send(service.create(_parse(body, dataflow.Job)).job)
            return
        if name is None:
            jobs = [work.job for work in service.works if work.job.name == query.get("name")]
            self._send(dataflow.ListJobsResponse(jobs=jobs))
            return
        work = service.find(name)
        if work is None:
            self._reject(Rejection(404, "NOT_FOUND", f"({name}): Information about job not found."))
        elif self.command == "GET" and (what or "/job")[1:] in service.denied:
            self._reject(
                Rejection(403, "PERMISSION_DENIED", "The caller does not have permission.")
            )
        elif what == "/messages":
            since = query.get("startTime", "")
            messages = [each for each in work.messages if each.time.rfc3339() >= since]
            self._send(dataflow.ListJobMessagesResponse(job_messages=messages))
        elif what == "/metrics":
            self._send(dataflow.JobMetrics(metrics=work.metrics))
        else:
            if self.command == "PUT":
                wanted = _parse(body, dataflow.Job).requested_state
                assert wanted == State.JOB_STATE_CANCELLED, wanted
                service.cancel(work)
            self._send(work.job)

    def _send(self, message) -> None:
        self._answer(200, json_format.MessageToJson(type(message).pb(message)))

    def _reject(self, rejection: Rejection) -> None:
        self._answer(rejection.code, json.dumps({"error": rejection._asdict()}))

    def _answer(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data)


def _parse(body: bytes, kind):
    message = kind()
    json_format.Parse(body, kind.pb(message))  # an unknown field is an error
    return message


def _write_key(path: Path, url: str) -> None:
    """Write the key file of a service account that only the fake service knows."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account", "project_id": PROJECT, "private_key_id": "1",
        "client_email": f"launcher@{PROJECT}.iam.gserviceaccount.com", "client_id": "1",
        "private_key": key.decode(), "token_uri": f"{url}/token",
    }  # fmt: skip
    path.write_text(json.dumps(account))


@pytest.fixture(scope="session")
def shared_service(shared_front: Front, tmp_path_factory) -> Iterator[tuple[Service, Path]]:
    """The service and its key file; Beam looks for credentials once per process."""
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    found = Service({**env, "STORAGE_EMULATOR_HOST": shared_front.url, "NO_GCE_CHECK": "true"})
    key = tmp_path_factory.mktemp("service") / "key.json"
    _write_key(key, found.url)
    yield found, key
    found.close()


@pytest.fixture
def service(front: Front, shared_service: tuple[Service, Path], monkeypatch) -> Iterator[Service]:
    """The service, without jobs; they read and write on the strict front of the emulator."""
    found, key = shared_service
    found.reset()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    yield found
    found.reset()
