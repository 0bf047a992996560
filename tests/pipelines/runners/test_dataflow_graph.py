"""The Dataflow job of each command, without any service: its request and staged files.

Each command runs with ``--template_location``, as the launcher of a flex template does.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as beam_api
from google.cloud import dataflow

from shardmill.pipelines import run
from shardmill.pipelines.cli import main
from shardmill.pipelines.commands import INPUT_KINDS
from shardmill.pipelines.runners.dataflow import Dataflow
from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import open_storage
from tests.conftest import ROOT
from tests.support.dataflow_server import PROJECT, REGION
from tests.support.dataflow_tools import IMAGE, staged_job

pytest_plugins = ["tests.support.gcs_server", "tests.support.dataflow_server"]

GOLDEN = Path(__file__).with_name("dataflow_steps.json")
COMMANDS = ("images", "rows", "arrays", "count")
FEW, MANY = 10, 2_000
MANY_CSV = 50  # each file is looked into for the schema, before the job
LIMIT = 10_000_000  # bytes, that Dataflow takes
SECRET = "do-not-send-me-anywhere"


@dataclass
class Sent:
    """The request that a command sent for a job.

    Attributes:
        job: The request.
        request: Its bytes, without what no two jobs have in common.
        pipeline: What workers are to do.
        staged: All files that were put into the bucket, by their names.
    """

    job: dataflow.Job
    request: str
    pipeline: beam_api.Pipeline
    staged: dict[str, bytes]

    @property
    def options(self) -> dict:
        return dict(self.job.environment.sdk_pipeline_options["options"])

    @property
    def steps(self) -> list[str]:
        """The names that the job's page shows: those of transforms that do something."""
        transforms = self.pipeline.components.transforms.values()
        return sorted(each.unique_name for each in transforms if not each.subtransforms)

    @property
    def side_inputs(self) -> dict[str, list[str]]:
        """For each step with side inputs, the steps that make them."""
        transforms = self.pipeline.components.transforms.values()
        makers = {
            output: each.unique_name
            for each in transforms
            if not each.subtransforms
            for output in each.outputs.values()
        }
        found = {}
        for each in transforms:
            if each.spec.urn == common_urns.primitives.PAR_DO.urn:
                payload = beam_api.ParDoPayload.FromString(each.spec.payload)
                if payload.side_inputs:
                    found[each.unique_name] = sorted(
                        makers[each.inputs[tag]] for tag in payload.side_inputs
                    )
        return found


def write_inputs(folder: Path, command: str, count: int) -> None:
    """Write inputs: a folder of many files, and an array of many rows."""
    folder.mkdir(parents=True, exist_ok=True)
    if command == "arrays":
        np.save(folder / "x.npy", np.zeros((count, 3), np.uint8))
        return
    suffix = {"images": "jpg", "rows": "csv", "count": "tfrecord"}[command]
    for number in range(count):
        (folder / f"{number:06d}.{suffix}").write_bytes(b"a,b\n1,2\n" if suffix == "csv" else b"")


def send(command: str, inputs: Path, bucket: str, capsys, *more: str) -> Sent:
    """Run a command until it would submit its job."""
    place = f"{bucket}/jobs/{command}"
    write = "--manifest" if command == "count" else "--output"
    flags = {"rows": ["--label=b", "--schema_only"][:1], "images": ["--image_size=64"]}.get(
        command, []
    )
    argv = [
        command,
        f"--input={inputs}",
        f"{write}={bucket}/out/{command}",
        *flags,
        "--runner=DataflowRunner",
        f"--project={PROJECT}",
        f"--region={REGION}",
        f"--temp_location={bucket}/tmp",
        f"--staging_location={bucket}/staging",
        f"--template_location={place}",
        "--job_name=a-name",
        *more,
    ]
    assert main(argv) == 0, capsys.readouterr().err
    assert capsys.readouterr().out == f"Staged {place}\n"
    storage = open_storage(bucket)
    staged = {entry.path: storage.read(entry.path) for entry in storage.walk(f"{bucket}/staging")}
    (pipeline,) = [data for path, data in staged.items() if path.endswith("/pipeline.pb")]
    text = storage.read(place).decode()
    job = staged_job(place)
    for differs in (job.client_request_id, job.environment.temp_storage_prefix.split("/")[-1]):
        text = text.replace(differs, "")
    for path in staged:
        storage.delete(path)
    names = {path.rpartition("/")[2]: data for path, data in staged.items()}
    return Sent(job, text, beam_api.Pipeline.FromString(pipeline), names)


@pytest.fixture(autouse=True)
def _surroundings(service, monkeypatch):
    """Set credentials in the environment, and make local inputs, which no process reads."""
    monkeypatch.setattr(run, "new_run_id", lambda: "0123456789ab")
    monkeypatch.setattr(Dataflow, "check_paths", lambda self, paths: None)
    for name in ("AWS_SECRET_ACCESS_KEY", "SHARDMILL_TEST_TOKEN", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, SECRET)


@pytest.mark.sweep
@pytest.mark.parametrize("command", COMMANDS)
def test_job_request_of_each_command(command, strict_bucket, tmp_path, capsys, monkeypatch):
    flags = [
        f"--sdk_container_image={IMAGE}",
        "--beam_options=labels=team=vision",
        "--max_num_workers=7",
        "--machine_type=e2-standard-4",
        "--no_use_public_ips",
        "--flexrs_goal=COST_OPTIMIZED",
        "--subnetwork=regions/europe-west1/subnetworks/x",
        "--service_account_email=worker@my-project.iam.gserviceaccount.com",
    ]
    write_inputs(tmp_path / "in", command, FEW)
    few = send(command, tmp_path / "in", strict_bucket, capsys, *flags)
    check_machines(few)
    assert dict(few.job.labels) == {"team": "vision"}
    check_what_is_staged(few)
    check_steps(command, few)
    write_inputs(tmp_path / "in", command, MANY_CSV if command == "rows" else MANY)
    many = send(command, tmp_path / "in", strict_bucket, capsys, *flags)
    sizes = {name: len(data) for name, data in many.staged.items()}
    print(command, "request", len(many.request), "staged", sizes)
    if command == "arrays":
        # Each function has the number of rows and the identity of the files, and is compressed.
        assert abs(len(few.staged["pipeline.pb"]) / sizes["pipeline.pb"] - 1) < 0.01
    else:
        assert few.staged == many.staged
        assert few.request == many.request
    assert len(many.request) + sum(sizes.values()) < LIMIT / 50


def check_machines(sent: Sent) -> None:
    """Check that the request has the flags about machines."""
    environment = sent.job.environment
    (pool,) = environment.worker_pools
    (image,) = pool.sdk_harness_container_images
    assert image.container_image == pool.worker_harness_container_image == IMAGE
    assert image.use_single_core_per_container  # a process of Python for each core
    assert pool.machine_type == "e2-standard-4"
    assert pool.autoscaling_settings.max_num_workers == 7
    assert pool.subnetwork == "regions/europe-west1/subnetworks/x"
    assert pool.ip_configuration == dataflow.WorkerIPAddressConfiguration.WORKER_IP_PRIVATE
    assert environment.service_account_email == "worker@my-project.iam.gserviceaccount.com"
    cost = dataflow.FlexResourceSchedulingGoal.FLEXRS_COST_OPTIMIZED
    assert environment.flex_resource_scheduling_goal == cost
    assert {"use_runner_v2", "beam_fn_api"} <= set(environment.experiments)
    assert sent.job.type_ == dataflow.JobType.JOB_TYPE_BATCH
    assert sent.job.name == "a-name"


def check_what_is_staged(sent: Sent) -> None:
    """Check that the request contains the pipeline and no value of this machine."""
    assert list(sent.staged) == ["pipeline.pb"]
    assert not sent.job.environment.worker_pools[0].packages
    for environment in sent.pipeline.components.environments.values():
        assert environment.urn == common_urns.environments.DOCKER.urn
        assert not environment.dependencies
    for text in (sent.request.encode(), *sent.staged.values()):
        for private in (SECRET, str(ROOT), os.environ["GOOGLE_APPLICATION_CREDENTIALS"]):
            assert private.encode() not in text
    assert "PRIVATE KEY" not in sent.request


def check_steps(command: str, sent: Sent) -> None:
    """Check the names of steps, and that only known small values are side inputs."""
    found = {"steps": sent.steps, "side_inputs": sent.side_inputs}
    if os.environ.get("SHARDMILL_RENEW"):
        golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        GOLDEN.write_text(json.dumps({**golden, command: found}, indent=1, sort_keys=True) + "\n")
    assert found == json.loads(GOLDEN.read_text())[command], "SHARDMILL_RENEW=1 writes it again"


def test_stages_a_wheel_without_an_image(strict_bucket, tmp_path, capsys):
    wheel = tmp_path / "shardmill-9.9.9-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    write_inputs(tmp_path / "in", "images", 1)
    sent = send("images", tmp_path / "in", strict_bucket, capsys, f"--extra_package={wheel}")
    assert set(sent.staged) == {"pipeline.pb", wheel.name, "extra_packages.txt"}
    assert sent.staged[wheel.name] == b"a wheel"
    assert sent.staged["extra_packages.txt"].decode().split() == [wheel.name]
    (pool,) = sent.job.environment.worker_pools
    assert {package.name for package in pool.packages} == {wheel.name, "extra_packages.txt"}
    assert pool.worker_harness_container_image.startswith("gcr.io/cloud-dataflow/")


WHOLE = [
    f"--project={PROJECT}",
    f"--region={REGION}",
    "--temp_location=gs://bucket/tmp",
    f"--sdk_container_image={IMAGE}",
]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "needs --project and --region: add --project and --region."),
        (WHOLE[:2], "needs a folder for temporary files: add --temp_location=gs://BUCKET/PATH."),
        ([*WHOLE[:2], "--temp_location=/tmp"], "needs a folder for temporary files"),
        (WHOLE[:3], "needs Shardmill installed on its workers: add --sdk_container_image=IMAGE"),
        (["--project=My Project!", *WHOLE[1:]], "--project=My Project! is not a project id"),
        (["--project=123456", *WHOLE[1:]], "--project=123456 is not a project id"),
        (
            [*WHOLE, "--temp_location=gs://bucket"],
            "--temp_location=gs://bucket is not a folder of a b",
        ),
        (
            [*WHOLE, "--staging_location=/tmp/x"],
            "--staging_location=/tmp/x is not a folder of a bucke",
        ),
        (
            [*WHOLE, "--job_name=Nightly_1"],
            "--job_name=Nightly_1 is not a valid job name: use lower",
        ),
    ],
)
def test_rejects_invalid_flags(flags, said):
    with pytest.raises(UsageError) as error:
        Dataflow("DataflowRunner").prepare(flags, "shardmill-x")
    assert said in str(error.value)


@pytest.mark.sweep
@pytest.mark.parametrize(("command", "name"), [("images", "workers"), ("rows", "threads")])
@pytest.mark.parametrize(
    ("flag", "number"),
    [
        ("--max_num_workers=7", 1),  # of each process, which Dataflow starts for each core
        ("--experiments=x,no_use_multiple_sdk_containers", 0),  # one per core
        ("--{name}=3", 3),
    ],
)
def test_decoders_and_threads_do_not_exceed_cores(
    command, name, flag, number, request, tmp_path, capsys
):
    strict_bucket, monkeypatch = map(request.getfixturevalue, ("strict_bucket", "monkeypatch"))
    module, configs = INPUT_KINDS[command].load_pipeline(), []
    resolve = module.resolve
    monkeypatch.setattr(
        module, "resolve", lambda config, **more: configs.append(config) or resolve(config, **more)
    )
    write_inputs(tmp_path / "in", command, 1)
    flags = [f"--sdk_container_image={IMAGE}", flag.format(name=name)]
    send(command, tmp_path / "in", strict_bucket, capsys, *flags)
    assert [getattr(config, name) for config in configs] == [number]


def test_rejects_local_paths(monkeypatch, tmp_path, capsys):
    monkeypatch.undo()
    for argv in (
        ["images", f"--input={tmp_path}", "--output=gs://bucket/out"],
        ["images", "--input=gs://bucket/in", f"--output={tmp_path}/out"],
        ["count", f"--input={tmp_path}", "--manifest=gs://bucket/m.json"],
        ["count", "--input=gs://bucket/in", f"--manifest={tmp_path}/m.json"],
    ):
        assert main([*argv, "--runner=DataflowRunner", *WHOLE]) == 2
        said = capsys.readouterr().err
        assert said.startswith(
            f"shardmill: {next(arg for arg in argv if str(tmp_path) in arg)} is on"
        )
        assert "is on this machine, where DataflowRunner's workers cannot read it" in said


def test_keeps_options_of_the_user():
    argv = [*WHOLE, "--experiments=disable_logging_submission_environment,x", "--job_name=mine"]
    argv.append("--save_main_session")
    assert Dataflow("DataflowRunner").prepare(argv, "other") == argv
    options = PipelineOptions(Dataflow("DataflowRunner").prepare(WHOLE, "a-name"))
    assert options.get_all_options()["job_name"] == "a-name"
