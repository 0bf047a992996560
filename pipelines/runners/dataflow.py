"""Google Dataflow: a service that takes a job and runs it on machines of its own."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shardmill.pipelines.runners.base import Job, Runner, option_given
from shardmill.schemas.errors import OutputError, ShardmillError, UsageError
from shardmill.schemas.storage import scheme_of

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

_PAGE = "https://console.cloud.google.com/dataflow/jobs/{region}/{id}?project={project}"
_CANCELLED_WITHIN = 600  # seconds; machines are let go before a job is called cancelled
_SHOWN_WITHIN = 5  # seconds, that a job which was being submitted may take to appear
_PAUSE = 2  # seconds between two looks at a job that is being cancelled
# Else Beam sends the list of the packages that are installed where the command runs.
_NO_LIST = "disable_logging_submission_environment"
# Else it sends what the main module holds; our code is installed where workers are.
_SESSION = ("save_main_session", "no_save_main_session")
_CODE = ("sdk_container_image", "extra_package", "extra_packages", "setup_file")
# Commands have flags of their own called --label and --labels; this reaches a job past them.
LABELS_VARIABLE = "SHARDMILL_JOB_LABELS"
_REMEDIES = {
    401: "run `gcloud auth application-default login`",
    403: "enable the Dataflow API in the project, and grant who runs this the role Dataflow "
    "Developer and the use of the workers' service account",
    404: "correct --project or --region",
    409: "give another --job_name",
    429: "wait, or ask for more quota, and run again",
}


class Dataflow(Runner):
    """Dataflow; its jobs go on whatever becomes of the client, and have a page."""

    _argv: Sequence[str] = ()

    def prepare(self, argv: Sequence[str], job_name: str) -> list[str]:
        """See ``Runner.prepare``."""
        from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

        options = PipelineOptions([*argv]).view_as(GoogleCloudOptions)
        missing = [f"--{name}" for name in ("project", "region") if not getattr(options, name)]
        if missing:
            raise UsageError(
                f"--runner={self.name} needs {' and '.join(missing)}: add what is missing."
            )
        argv = super().prepare(argv, job_name)
        if not options.temp_location and options.staging_location:
            options.temp_location = options.staging_location
            argv.append(f"--temp_location={options.staging_location}")
        if not (options.temp_location or "").startswith("gs://"):
            raise UsageError(
                f"--runner={self.name} needs a folder for what is temporary: "
                "add --temp_location=gs://BUCKET/PATH."
            )
        _check_names(PipelineOptions(argv))
        if not any(option_given(argv, name) for name in _CODE):
            raise UsageError(
                f"--runner={self.name} needs Shardmill where the workers are: add "
                "--sdk_container_image=IMAGE, which `make dataflow-image` builds."
            )
        if not any(_NO_LIST in flag for flag in argv):
            argv.append(f"--experiments={_NO_LIST}")
        if not any(option_given(argv, name) for name in _SESSION):
            argv.append(f"--{_SESSION[1]}")
        argv += [f"--labels={label}" for label in _labels(os.environ.get(LABELS_VARIABLE, ""))]
        self._argv = argv
        return argv

    def make(self) -> Any:
        """See ``Runner.make``; looks at the buckets, which Beam would try for ten minutes."""
        from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

        _check_buckets(PipelineOptions([*self._argv]).view_as(GoogleCloudOptions))
        return super().make()

    def check_places(self, places: Iterable[tuple[str, str]]) -> None:
        """See ``Runner.check_places``; its workers see no disk of this machine."""
        for flag, path in places:
            if path and not scheme_of(path):
                raise UsageError(
                    f"{flag}={path} is on this machine, where {self.name}'s workers cannot see "
                    "it: copy it to a bucket and give gs://BUCKET/PATH."
                )

    def staged_at(self, options: PipelineOptions) -> str:
        """See ``Runner.staged_at``; the launcher of a flex template asks for it."""
        from apache_beam.options.pipeline_options import GoogleCloudOptions

        return str(options.view_as(GoogleCloudOptions).template_location or "")

    def find_job(self, options: PipelineOptions, result: Any) -> Job | None:
        """See ``Runner.find_job``."""
        from apache_beam.options.pipeline_options import GoogleCloudOptions

        if result is None or not result.has_job:
            return None
        cloud = options.view_as(GoogleCloudOptions)
        found = result.job_id()
        return Job(found, _PAGE.format(region=cloud.region, id=found, project=cloud.project))

    def wait(self, result: Any) -> None:
        """See ``Runner.wait``; goes on where Beam gives up though the job is not over.

        Beam gives a job 50 seconds to be over once it is no longer running, and a job whose
        machines are being let go may take minutes. It also gives up where it may not read the
        job's log.
        """
        from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException

        while True:
            try:
                result.wait_until_finish()
            except AssertionError:
                state = result.state  # asks the service
                if state == "DONE":
                    return
                if result.is_in_terminal_state():
                    text = f"Dataflow pipeline failed. State: {state}, Error:\nNone"
                    raise DataflowRuntimeException(text, result) from None
            else:
                return

    def cancel(self, options: PipelineOptions, result: Any) -> bool:
        """See ``Runner.cancel``; waits until the job is over."""
        from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError

        with contextlib.suppress(DataflowRuntimeException, GoogleAPIError, GoogleAuthError):
            if result is None:
                result = _find_submitted(options)
            if result is None or not result.has_job:
                return True
            result.cancel()
            deadline = time.monotonic() + _CANCELLED_WITHIN
            while time.monotonic() < deadline:
                if result.state and result.is_in_terminal_state():
                    return True
                time.sleep(_PAUSE)
        return False

    def explain(self, error: BaseException, job: Job | None) -> ShardmillError | None:
        """See ``Runner.explain``."""
        from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException
        from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError
        from google.api_core.exceptions import GoogleAPICallError

        where = f"; its page {job.page} says more" if job else ""
        if isinstance(error, DataflowRuntimeException):
            state = re.search(r"State: (\w+)", str(error))
            if state and state[1] == "FAILED":
                text = str(error).partition("Error:\n")[2]
                return OutputError(
                    f"The job failed on {self.name}: {_cause(text)}{where}; run again to resume."
                )
            how = state[1].lower() if state else "ended"
            return OutputError(f"The job was {how} on {self.name}: run again to resume{where}.")
        if isinstance(error, DataflowJobAlreadyExistsError):
            return OutputError(
                "A job of that name runs already: wait for it, or give another --job_name."
            )
        if isinstance(error, GoogleAPICallError):
            code = int(error.code or 0)
            # Over HTTP the client library puts the call before what the service says.
            said = re.sub(r"^[A-Z]+ https?://\S+: ", "", str(error.message)).strip().rstrip(".")
            if job is None:
                remedy = _REMEDIES.get(code, "run again")
                return OutputError(f"{self.name} did not take the job ({code}: {said}): {remedy}.")
            return OutputError(
                f"{self.name} tells no more of the job ({code}: {said}): it may go on{where}; run "
                "again once it is over."
            )
        return None


def _labels(text: str) -> list[str]:
    """Returns the labels in a text: KEY=VALUE,... or, from a launcher, a dict of them."""
    text = text.strip()
    return [text] if text.startswith("{") else [each.strip() for each in text.split(",") if each]


def _check_names(options: PipelineOptions) -> None:
    """Checks what Beam would answer with a traceback, or by making a bucket of its own.

    Raises:
        UsageError: A name or path breaks Google's rules.
    """
    from apache_beam.options.pipeline_options import GoogleCloudOptions
    from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator

    cloud = options.view_as(GoogleCloudOptions)
    validator = PipelineOptionsValidator(options, None)
    for name in ("temp_location", "staging_location"):
        path = getattr(cloud, name)
        if path is not None and validator.validate_gcs_path(cloud, name):
            raise UsageError(f"--{name}={path} is no folder of a bucket: give gs://BUCKET/PATH.")
    if not re.fullmatch(validator.JOB_PATTERN, cloud.job_name):
        raise UsageError(
            f"--job_name={cloud.job_name} is no name for a job: use small letters, digits and "
            "hyphens, and begin with a letter."
        )
    if not re.fullmatch(validator.PROJECT_ID_PATTERN, cloud.project):
        raise UsageError(
            f"--project={cloud.project} is no project id: give the id, such as my-project-1, not "
            "the number or the description."
        )


def _check_buckets(options: GoogleCloudOptions) -> None:
    """Checks that the job can be put where Beam will put it.

    Raises:
        OutputError: A bucket is missing, or may not be looked at.
    """
    from apache_beam.io.gcp.gcsio import create_storage_client
    from google.api_core.exceptions import Forbidden, NotFound

    client = create_storage_client(options, not options.no_auth)
    places = {name: getattr(options, name) for name in ("staging_location", "temp_location")}
    for name, path in places.items():
        if path is None:
            continue
        bucket = path.removeprefix("gs://").partition("/")[0]
        try:
            client.get_bucket(bucket)
        except NotFound as error:
            raise OutputError(
                f"--{name}={path}: the bucket {bucket!r} does not exist; create it or correct its "
                "name."
            ) from error
        except Forbidden as error:
            raise OutputError(
                f"--{name}={path}: Beam may not look at the bucket {bucket!r}; grant "
                "storage.buckets.get on it, as the role Storage Legacy Bucket Reader does."
            ) from error


def _find_submitted(options: PipelineOptions) -> Any:
    """Returns the job of these options if it was submitted; its name is new."""
    from apache_beam.options.pipeline_options import GoogleCloudOptions
    from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult, DataflowRunner
    from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient
    from google.cloud import dataflow

    cloud = options.view_as(GoogleCloudOptions)
    client = DataflowApplicationClient(options)
    request = dataflow.ListJobsRequest(
        project_id=cloud.project, location=cloud.region, name=cloud.job_name,
        filter=dataflow.ListJobsRequest.Filter.ACTIVE,
    )  # fmt: skip
    deadline = time.monotonic() + _SHOWN_WITHIN
    while time.monotonic() < deadline:
        for job in client._jobs_client.list_jobs(request):  # noqa: SLF001 - Beam shows no list
            if job.name == cloud.job_name:
                runner = DataflowRunner()
                runner.dataflow_client = client
                return DataflowPipelineResult(job, runner, options)
        time.sleep(0.5)
    return None


def _cause(text: str) -> str:
    """Returns what a message of the service says, in one line: of a traceback, its last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or lines == ["None"]:
        return "it does not say why"
    line = lines[0]
    if "Traceback (most recent call last)" in text:
        errors = [each for each in lines if re.match(r"[\w.]*(Error|Exception|Exit)\b", each)]
        line = (errors or lines)[-1]
    return line.partition(" [while running '")[0].rstrip(".")[:300]
