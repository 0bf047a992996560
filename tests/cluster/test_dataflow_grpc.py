"""Jobs on a fake Dataflow service over gRPC, the protocol that Beam uses with the real service.

Beam uses HTTP only for an endpoint that contains ``localhost``. Here the command has Google's
endpoint: a proxy redirects it to the fake service, whose certificate is signed by a CA of the test.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
import pytest
import trustme
from google.cloud import dataflow

from tests.conftest import ADDRESS, start_shardmill
from tests.support import gcs_hosts
from tests.support.dataflow_server import PROJECT, REGION, Rejection, Service, State
from tests.support.dataflow_tools import page
from tests.support.fault_tools import PROGRESS
from tests.support.servers import wait_until

pytest_plugins = ["tests.support.dataflow_tools"]

HOST = "dataflow.googleapis.com"


class Calls(grpc.GenericRpcHandler):
    """gRPC handlers of the Dataflow API that pass each call to the fake service.

    Attributes:
        asked: Names of all calls received.
    """

    def __init__(self, service: Service) -> None:
        self.fake = service
        self.asked: list[str] = []
        self._methods: dict[str, tuple[type, type, Callable]] = {
            "JobsV1Beta3/CreateJob": (dataflow.CreateJobRequest, dataflow.Job, self._create),
            "JobsV1Beta3/GetJob": (dataflow.GetJobRequest, dataflow.Job, self._get),
            "JobsV1Beta3/UpdateJob": (dataflow.UpdateJobRequest, dataflow.Job, self._update),
            "JobsV1Beta3/ListJobs": (dataflow.ListJobsRequest, dataflow.ListJobsResponse, self._list),
            "MessagesV1Beta3/ListJobMessages": (
                dataflow.ListJobMessagesRequest, dataflow.ListJobMessagesResponse, self._messages,
            ),
            "MetricsV1Beta3/GetJobMetrics": (dataflow.GetJobMetricsRequest, dataflow.JobMetrics, self._metrics),
        }  # fmt: skip

    def service(self, details):
        name = details.method.removeprefix("/google.dataflow.v1beta3.")
        metadata = dict(details.invocation_metadata)
        assert metadata["authorization"].startswith("Bearer ")
        self.asked.append(name)
        if name not in self._methods:
            return None
        request, answer, method = self._methods[name]
        return grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=request.deserialize, response_serializer=answer.serialize
        )

    def _create(self, request, context):
        assert (request.project_id, request.location) == (PROJECT, REGION)
        rejection = self.fake.rejection
        if rejection is not None:
            context.abort(grpc.StatusCode[rejection.status], rejection.message)
        return self.fake.create(request.job).job

    def _get(self, request, _context):
        return self.fake.find(request.job_id).job

    def _update(self, request, _context):
        assert request.job.requested_state == State.JOB_STATE_CANCELLED
        self.fake.cancel(self.fake.find(request.job_id))
        return self.fake.find(request.job_id).job

    def _list(self, request, _context):
        jobs = [work.job for work in self.fake.works if work.job.name == request.name]
        return dataflow.ListJobsResponse(jobs=jobs)

    def _messages(self, request, _context):
        return dataflow.ListJobMessagesResponse(
            job_messages=self.fake.find(request.job_id).messages
        )

    def _metrics(self, request, _context):
        return dataflow.JobMetrics(metrics=self.fake.find(request.job_id).metrics)


@pytest.fixture
def calls(service: Service, client, tmp_path, monkeypatch) -> Iterator[Calls]:
    """Serve the API over TLS and redirect processes that start from now on to it."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    cert = authority.issue_cert(HOST)
    chain = b"".join(blob.bytes() for blob in cert.cert_chain_pems)
    found = Calls(service)
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[found])
    keys = grpc.ssl_server_credentials([(cert.private_key_pem.bytes(), chain)])
    port = server.add_secure_port("127.0.0.1:0", keys)
    server.start()
    monkeypatch.setattr(gcs_hosts, "NAMES", (HOST,))
    tunnel = type("Tunnel", (gcs_hosts._Tunnel,), {"port": port, "asked": []})
    proxy = gcs_hosts._Proxy(("127.0.0.1", 0), tunnel)
    threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
    client.flags = [flag for flag in client.flags if not flag.startswith("--dataflow_endpoint")]
    monkeypatch.setenv("grpc_proxy", f"http://127.0.0.1:{proxy.server_address[1]}")
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(tmp_path / "authority.pem"))
    yield found
    server.stop(None)
    proxy.shutdown()
    proxy.server_close()
    assert set(tunnel.asked) == {f"{HOST}:443"}


def test_builds_a_dataset(calls, client, service, album, tmp_path):
    process = start_shardmill(*client.argv("images", "--debug"))
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    assert "written    24 examples" in out
    assert "examples_encoded" in err
    assert f"job: {service.works[0].id}  {page()}" in err
    assert not [path for _, path in service.calls if path.startswith("/v1b3")]  # none by HTTP
    assert set(calls.asked) >= {"JobsV1Beta3/CreateJob", "MetricsV1Beta3/GetJobMetrics"}
    album.check("images", client.output, tmp_path / "out", image_size="16")


@pytest.mark.parametrize(
    "rejection",
    [
        Rejection(403, "PERMISSION_DENIED", "Dataflow API is disabled."),
        Rejection(404, "NOT_FOUND", "Location is not found."),
        Rejection(429, "RESOURCE_EXHAUSTED", "Quota exceeded for job creation."),
    ],
    ids=lambda rejection: rejection.status,
)
def test_a_rejected_job_is_one_sentence(rejection, calls, client, service):
    service.rejection = rejection
    process = start_shardmill(*client.argv("images"))
    out, err = process.communicate(timeout=250)
    assert (process.returncode, out) == (1, "")
    (said,) = ADDRESS.sub("", PROGRESS.sub("", err)).splitlines()
    print(said)
    assert said.startswith(
        f"shardmill: DataflowRunner rejected the job ({rejection.code}: {rejection.message[:-1]}): "
    )


def test_ctrl_c_cancels_the_job_and_waits(calls, client, service):
    service.hold, service.cancel_seconds = True, 3.0
    process = start_shardmill(*client.argv("images"))
    wait_until(lambda: service.works)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130, err
    assert "shardmill: interrupted; run again to resume." in err
    assert service.works[0].job.current_state == State.JOB_STATE_CANCELLED
    assert "JobsV1Beta3/UpdateJob" in calls.asked
