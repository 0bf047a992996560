"""A fake Google Dataflow service: the calls of its API that Beam makes, and jobs that really run.

The service implements the v1b3 API over gRPC with TLS, as the real one does. ``dataflow_worker.py``
runs each job in a separate process, from the pipeline that was staged in the bucket: DONE means that
the pipeline succeeded. Messages have the format of the real service.
"""

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.cloud import dataflow

from tests.support.fault_tools import Command, zygote
from tests.support.gcs_server import Front
from tests.support.tunnel import Tunnel

WORKER = "from tests.support.dataflow_worker import main; main(*{})"
HOST, PROJECT, REGION = "dataflow.googleapis.com", "my-project", "europe-west1"
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
            id=self.id,
            name=given.name,
            current_state=State.JOB_STATE_PENDING,
            client_request_id=given.client_request_id,
            type_=given.type_,
        )
        self.messages: list[dataflow.JobMessage] = []
        self.metrics: list[dataflow.MetricUpdate] = []
        self.process: Command | None = None

    @property
    def options(self) -> dict:
        """The pipeline options that the job was submitted with."""
        return dict(self.given.environment.sdk_pipeline_options["options"])

    def kill(self) -> None:
        """Kill the process that runs the job."""
        if self.process is not None and self.process.ended is None:
            self.process.send(signal.SIGKILL)

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


class Service(grpc.GenericRpcHandler):
    """The fake service.

    Attributes:
        endpoint: Its address: a value for ``--dataflow_endpoint``.
        authority: File of the certificate that clients must trust.
        works: The jobs, oldest first.
        calls: Names of the methods of all calls.
        rejection: The response to new jobs; None if they are accepted.
        denied: What the caller may not read: ``job``, ``messages`` or both.
        hold: Whether jobs stay in state RUNNING until they are cancelled.
        cancel_seconds: Time from the cancellation of a job to its end.
        errors: Error messages with which new jobs fail instead of being run.
    """

    def __init__(self, worker_env: dict[str, str], folder: Path) -> None:
        self.worker_env = worker_env
        self.works: list[Work] = []
        self.reset()
        authority, self.authority = trustme.CA(), folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        cert = authority.issue_cert(HOST)
        chain = b"".join(blob.bytes() for blob in cert.cert_chain_pems)
        keys = grpc.ssl_server_credentials([(cert.private_key_pem.bytes(), chain)])
        self._server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[self])
        self.tunnel = Tunnel(HOST, self._server.add_secure_port("127.0.0.1:0", keys))
        self._server.start()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of a call."""
        name = details.method.rpartition("/")[2]
        assert dict(details.invocation_metadata)["authorization"].startswith("Bearer ")
        self.calls.append(name)
        method, request, answer = {
            "CreateJob": (self._create, dataflow.CreateJobRequest, dataflow.Job),
            "GetJob": (self._get, dataflow.GetJobRequest, dataflow.Job),
            "UpdateJob": (self._update, dataflow.UpdateJobRequest, dataflow.Job),
            "ListJobs": (self._list, dataflow.ListJobsRequest, dataflow.ListJobsResponse),
            "ListJobMessages": (
                self._messages,
                dataflow.ListJobMessagesRequest,
                dataflow.ListJobMessagesResponse,
            ),
            "GetJobMetrics": (self._metrics, dataflow.GetJobMetricsRequest, dataflow.JobMetrics),
        }[name]
        return grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=request.deserialize, response_serializer=answer.serialize
        )

    def _create(self, request, context):
        assert (request.project_id, request.location) == (PROJECT, REGION)
        if self.rejection is not None:
            context.abort(grpc.StatusCode[self.rejection.status], self.rejection.message)
        active = (State.JOB_STATE_PENDING, State.JOB_STATE_RUNNING, State.JOB_STATE_CANCELLING)
        for work in self.works:
            if work.job.name == request.job.name and work.job.current_state in active:
                return work.job
        return self.create(request.job).job

    def _allow(self, what: str, context) -> None:
        if what in self.denied:
            message = "The caller does not have permission."
            context.abort(grpc.StatusCode.PERMISSION_DENIED, message)

    def _get(self, request, context):
        self._allow("job", context)
        return self.find(request.job_id).job

    def _update(self, request, _):
        assert request.job.requested_state == State.JOB_STATE_CANCELLED
        self.cancel(self.find(request.job_id))
        return self.find(request.job_id).job

    def _list(self, request, _):
        jobs = [work.job for work in self.works if work.job.name == request.name]
        return dataflow.ListJobsResponse(jobs=jobs)

    def _messages(self, request, context):
        self._allow("messages", context)
        messages, since = self.find(request.job_id).messages, request.start_time
        found = [each for each in messages if not since or each.time >= since]
        return dataflow.ListJobMessagesResponse(job_messages=found)

    def _metrics(self, request, _):
        return dataflow.JobMetrics(metrics=self.find(request.job_id).metrics)

    def reset(self) -> None:
        """Remove all jobs, calls and faults, and kill running jobs."""
        for work in self.works:
            work.kill()
        self.works = []
        self.calls: list[str] = []
        self.rejection: Rejection | None = None
        self.denied: set[str] = set()
        self.hold = False
        self.cancel_seconds = 0.0
        self.errors: list[str] = []

    def close(self) -> None:
        """Stop the service and its jobs."""
        self.reset()
        self._server.stop(None)
        self.tunnel.close()

    def create(self, given: dataflow.Job) -> Work:
        """Start a job."""
        work = Work(len(self.works) + 1, given)
        self.works.append(work)
        threading.Thread(target=self._run, args=(work,), daemon=True).start()
        return work

    def find(self, name: str) -> Work:
        """Return the job with an id."""
        return next(work for work in self.works if work.id == name)

    def cancel(self, work: Work) -> None:
        """Cancel a job; it ends after ``cancel_seconds``."""
        if work.job.current_state in (State.JOB_STATE_PENDING, State.JOB_STATE_RUNNING):
            work.job.current_state = State.JOB_STATE_CANCELLING
            threading.Thread(target=self._cancel_later, args=(work,), daemon=True).start()

    def _cancel_later(self, work: Work) -> None:
        work.kill()
        time.sleep(self.cancel_seconds)
        work.job.current_state = State.JOB_STATE_CANCELLED

    def _run(self, work: Work) -> None:
        time.sleep(0.2)
        if work.job.current_state == State.JOB_STATE_PENDING:
            work.job.current_state = State.JOB_STATE_RUNNING
        work.say(Importance.JOB_MESSAGE_BASIC, f"Worker configuration: e2-standard-2 in {REGION}.")
        if not self.hold:
            self.resume(work)

    def resume(self, work: Work) -> None:
        """Run a job that was held."""
        errors = self.errors or self._really_run(work)
        if work.job.current_state != State.JOB_STATE_RUNNING:
            return
        for text in errors:
            work.say(Importance.JOB_MESSAGE_ERROR, text)
        work.job.current_state = State.JOB_STATE_FAILED if errors else State.JOB_STATE_DONE

    def _really_run(self, work: Work) -> list[str]:
        """Run the pipeline of a job; return its errors in the format of the service."""
        with tempfile.TemporaryDirectory() as folder:
            names = ("pipelineUrl", "pipelineProtoHash")
            arguments = [*(work.options[name] for name in names), f"{folder}/metrics.json"]
            work.process = zygote().start(
                code=WORKER.format(arguments), cwd=folder, env=self.worker_env
            )
            ended = work.process.wait()
            if ended.code:
                _, mark, trace = ended.stderr.partition("Traceback (most recent call last)")
                trace = (mark + trace).strip()
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


class _Tokens(BaseHTTPRequestHandler):
    """Grants an access token to each request."""

    def log_message(self, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"access_token": "a-token", "expires_in": 3600}')


def _write_key(path: Path, url: str) -> None:
    """Write the key file of a service account that only the fake service knows."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "1",
        "client_email": f"launcher@{PROJECT}.iam.gserviceaccount.com",
        "client_id": "1",
        "private_key": key.decode(),
        "token_uri": f"{url}/token",
    }
    path.write_text(json.dumps(account))


@pytest.fixture(scope="session")
def shared_service(shared_front: Front, tmp_path_factory) -> Iterator[tuple[Service, Path]]:
    """The service and a key file; Beam looks for credentials once per process, gRPC for roots."""
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    env |= {"STORAGE_EMULATOR_HOST": shared_front.url, "NO_GCE_CHECK": "true"}
    folder = tmp_path_factory.mktemp("service")
    found = Service(env, folder)
    tokens = ThreadingHTTPServer(("127.0.0.1", 0), _Tokens)
    threading.Thread(target=tokens.serve_forever, args=(0.05,), daemon=True).start()
    _write_key(folder / "key.json", f"http://127.0.0.1:{tokens.server_address[1]}")
    yield found, folder / "key.json"
    found.close()
    tokens.shutdown()
    tokens.server_close()


@pytest.fixture
def service(front: Front, shared_service: tuple[Service, Path], monkeypatch) -> Iterator[Service]:
    """The service, without jobs; they read and write on the strict front of the emulator."""
    found, key = shared_service
    found.reset()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(found.authority))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("grpc_proxy", found.tunnel.url)
    yield found
    found.reset()
