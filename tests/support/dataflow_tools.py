"""Run commands on a fake Dataflow service, with all files in a bucket."""

import time
import types

import pytest
from apache_beam.runners.dataflow import dataflow_runner
from google.cloud import dataflow
from google.protobuf import json_format

from shardmill.pipelines.cli import main
from shardmill.schemas.storage import open_storage
from tests.support.dataflow_server import PROJECT, REGION, Service, State, Work
from tests.support.fault_tools import PROGRESS
from tests.support.gcs_builds import Album
from tests.support.servers import wait_until

pytest_plugins = [
    f"tests.support.{name}" for name in ("gcs_server", "gcs_builds", "dataflow_server")
]

IMAGE = "registry.example.com/shardmill:1"
OPTIONS = {
    "images": ["--image_size=16", "--num_shards=2", "--splits=train:0.8,validation:0.2"],
    "rows": ["--label=word", "--num_shards=2"],
    "arrays": ["--num_shards=2"],
}


@pytest.fixture
def short_pauses(monkeypatch) -> None:
    """Shorten the five seconds between two polls of Beam."""
    clock = types.SimpleNamespace(
        time=time.time, sleep=lambda seconds: time.sleep(min(seconds, 0.1))
    )
    monkeypatch.setattr(dataflow_runner, "time", clock)


class Client:
    """Runs commands on the fake service.

    Attributes:
        service: The service.
        inputs: The folder of all inputs, in the bucket.
        output: The folder of the dataset.
        flags: Flags of Beam that select the service.
    """

    def __init__(self, service: Service, bucket: str, inputs: str, capsys) -> None:
        self.service, self.inputs, self.output = service, inputs, f"{bucket}/out"
        self.capsys = capsys
        self.flags = [
            "--runner=DataflowRunner",
            f"--project={PROJECT}",
            f"--region={REGION}",
            f"--temp_location={bucket}/tmp",
            f"--sdk_container_image={IMAGE}",
        ]

    def argv(self, command: str, *more: str, inputs: str = "") -> list[str]:
        """Return the arguments of a build."""
        places = [f"--input={self.inputs}/{inputs or command}", f"--output={self.output}"]
        return [command, *places, *OPTIONS[command], *self.flags, *more]

    def run(self, argv: list[str]) -> tuple[int, str, list[str]]:
        """Return the exit code, stdout, and the lines of stderr without progress."""
        code = main(argv)
        captured = self.capsys.readouterr()
        lines = PROGRESS.sub("", captured.err).splitlines()
        return code, captured.out, [line for line in lines if line]

    def images(self, *more: str, inputs: str = "") -> tuple[int, str, list[str]]:
        """Run a build of images; see ``run``."""
        return self.run(self.argv("images", *more, inputs=inputs))

    def sentence(self, *more: str, inputs: str = "") -> str:
        """Return the error message of a build that fails."""
        code, out, err = self.images(*more, inputs=inputs)
        assert (code, out) == (1, "")
        *notices, last = err
        assert all(line.startswith("job: ") for line in notices), err
        assert last.startswith("shardmill: ")
        assert last.endswith(".")
        print(last)
        return last.removeprefix("shardmill: ")


@pytest.fixture
def client(service: Service, album: Album, strict_bucket: str, capsys) -> Client:
    return Client(service, strict_bucket, album.upload(strict_bucket), capsys)


def page(number: int = 1) -> str:
    """Return the URL of the page of a job."""
    return (
        f"https://console.cloud.google.com/dataflow/jobs/{REGION}/"
        f"2026-01-01_00_00_00-{number:019d}?project={PROJECT}"
    )


def staged_job(place: str) -> dataflow.Job:
    """Return a job that was written to a file."""
    job = dataflow.Job()
    json_format.Parse(open_storage(place).read(place), dataflow.Job.pb(job))
    return job


def wait_for(work: Work) -> None:
    """Wait until a job has ended."""
    active = (State.JOB_STATE_PENDING, State.JOB_STATE_RUNNING)
    wait_until(lambda: work.job.current_state not in active)
