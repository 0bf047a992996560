"""Run a job of the fake Dataflow service: the staged pipeline, on Beam's in-memory runner.

A separate process runs it, which receives the staged pipeline and nothing else of the job.
"""

import hashlib
import json
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage


def main(url: str, digest: str, metrics_file: str) -> None:
    """Run a staged pipeline to its end."""
    bucket, _, name = url.removeprefix("gs://").partition("/")
    client = storage.Client(project="none", credentials=AnonymousCredentials())
    data = client.bucket(bucket).blob(name).download_as_bytes()
    assert hashlib.sha256(data).hexdigest() == digest, (
        "the staged pipeline is not the submitted one"
    )
    proto = beam_runner_api_pb2.Pipeline.FromString(data)
    for environment in proto.components.environments.values():
        assert environment.urn == common_urns.environments.DOCKER.urn
        environment.urn = python_urns.EMBEDDED_PYTHON  # in place of the container
        environment.payload = b""
    result = FnApiRunner().run_via_runner_api(proto, PipelineOptions([]))
    result.wait_until_finish()
    Path(metrics_file).write_text(json.dumps(user_metrics(result)))


def user_metrics(result) -> list[dict]:
    """Return the counters and distributions of the user."""
    metrics = []
    queried = result.metrics().query()
    for kind, name in (("counters", "scalar"), ("distributions", "distribution")):
        for metric in queried[kind]:
            value = metric.committed
            if kind == "distributions":
                value = {key: getattr(value, key) for key in ("count", "sum", "min", "max")}
            metrics.append(
                {
                    "namespace": metric.key.metric.namespace,
                    "name": metric.key.metric.name,
                    "step": metric.key.step,
                    "kind": name,
                    "value": value,
                }
            )
    return metrics
