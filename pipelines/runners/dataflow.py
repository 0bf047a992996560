"""Google Dataflow: a service that runs a job on its own machines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator

from shardmill.pipelines.runners.base import (
    Job,
    Runner,
    job_ended,
    job_failed,
    option_given,
    poll,
    python_cause,
)
from shardmill.schemas.errors import OutputError, ShardmillError, UsageError
from shardmill.schemas.storage import scheme_of

_PAGE = "https://console.cloud.google.com/dataflow/jobs/{region}/{id}?project={project}"
_CANCELLED_WITHIN = 600  # seconds; machines are released before a job is cancelled
_VISIBLE_WITHIN = 5  # seconds until a submitted job is listed
_PAUSE = 2  # seconds between two requests while a job is being cancelled
# Without it, Beam uploads a list of the packages in the environment of the command.
_NO_LIST = "disable_logging_submission_environment"
_ONE_PROCESS = "no_use_multiple_sdk_containers"  # experiment: one process per machine
# Without one, Beam uploads the main module; workers have Shardmill installed.
_SESSION = ("save_main_session", "no_save_main_session")
_CODE = ("sdk_container_image", "extra_package", "extra_packages", "setup_file")
_REMEDIES = {
    401: "run `gcloud auth application-default login`",
    403: "enable the Dataflow API in the project, and grant your account the role Dataflow "
    "Developer and the use of the workers' service account",
    404: "correct --project or --region",
    409: "give another --job_name",
    429: "wait, or ask for more quota, and run again",
}


class Dataflow(Runner):
    """Dataflow, whose jobs continue when the client dies, and have a page.

    Raises:
        UsageError: Beam's client of the service is not installed.
    """

    finds_jobs = True
    _argv: Sequence[str] = ()
    _is_named = False

    def __init__(self, name: str) -> None:
        super().__init__(name)
        try:
            import apache_beam.runners.dataflow.internal.apiclient  # noqa: F401
        except ImportError as error:
            raise UsageError(
                f"--runner={name} needs apache-beam[gcp]: pip install 'shardmill[dataflow]'."
            ) from error

    def prepare(self, argv: Sequence[str], job_name: str) -> list[str]:
        """Return the flags with a job name; they must name the project and the region."""
        options = PipelineOptions([*argv]).view_as(GoogleCloudOptions)
        missing = [f"--{name}" for name in ("project", "region") if not getattr(options, name)]
        if missing:
            flags = " and ".join(missing)
            raise UsageError(f"--runner={self.name} needs {flags}: add {flags}.")
        self._is_named = option_given(argv, "job_name")
        argv = super().prepare(argv, job_name)
        if not options.temp_location and options.staging_location:
            options.temp_location = options.staging_location
            argv.append(f"--temp_location={options.staging_location}")
        if not (options.temp_location or "").startswith("gs://"):
            raise UsageError(
                f"--runner={self.name} needs a folder for temporary files: add "
                "--temp_location=gs://BUCKET/PATH."
            )
        _check_names(PipelineOptions(argv))
        if not any(option_given(argv, name) for name in _CODE):
            raise UsageError(
                f"--runner={self.name} needs Shardmill installed on its workers: add "
                "--sdk_container_image=IMAGE, which `make dataflow-image` builds."
            )
        if not any(_NO_LIST in flag for flag in argv):
            argv.append(f"--experiments={_NO_LIST}")
        if not any(option_given(argv, name) for name in _SESSION):
            argv.append(f"--{_SESSION[1]}")
        self._argv = argv
        return argv

    def make(self) -> Any:
        """See ``Runner.make``; checks the buckets first, as Beam would retry for ten minutes."""
        _check_buckets(PipelineOptions([*self._argv]).view_as(GoogleCloudOptions))
        return super().make()

    def check_paths(self, paths: Iterable[tuple[str, str]]) -> None:
        """See ``Runner.check_paths``; its workers cannot read local files."""
        for flag, path in paths:
            if path and not scheme_of(path):
                raise UsageError(
                    f"{flag}={path} is on this machine, where {self.name}'s workers cannot read "
                    "it: copy it to a bucket and give gs://BUCKET/PATH."
                )

    def has_process_per_core(self, argv: Sequence[str]) -> bool:
        """See ``Runner.has_process_per_core``; they are containers that do not see each other."""
        return not any(_ONE_PROCESS in flag for flag in argv)

    def staged_at(self, options: PipelineOptions) -> str:
        """See ``Runner.staged_at``; the launcher of a flex template sets it."""
        return str(options.view_as(GoogleCloudOptions).template_location or "")

    def find_job(self, options: PipelineOptions, result: Any) -> Job | None:
        """Return the job, with its page in the console of Google Cloud."""
        if result is None or not result.has_job:
            return None
        cloud = options.view_as(GoogleCloudOptions)
        job_id = result.job_id()
        return Job(job_id, _PAGE.format(region=cloud.region, id=job_id, project=cloud.project))

    def find_running(self, error: Exception, options: PipelineOptions) -> Any:
        """See ``Runner.find_running``; a job with a name that the user gave may be any job."""
        from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

        if self._is_named or not isinstance(error, DataflowJobAlreadyExistsError):
            return None
        return _find_submitted(options)

    def wait(self, result: Any) -> None:
        """See ``Runner.wait``; continues where Beam stops waiting before the job has ended.

        Beam waits 50 seconds for a job that is no longer running to reach a terminal state, which
        takes minutes while its machines are released. It also stops where the permission to read
        the job's log is missing.
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
        """See ``Runner.cancel``; waits until the job has ended."""
        from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError

        with contextlib.suppress(DataflowRuntimeException, GoogleAPIError, GoogleAuthError):
            if result is None:
                result = _find_submitted(options)
            if result is None or not result.has_job:
                return True
            result.cancel()
            ended = lambda: result.state and result.is_in_terminal_state()  # noqa: E731
            return bool(poll(ended, _CANCELLED_WITHIN, _PAUSE))
        return False

    def explain(self, error: BaseException, job: Job | None) -> ShardmillError | None:
        """Return the cause that the service states, with the page of the job."""
        from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException
        from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError
        from google.api_core.exceptions import GoogleAPICallError

        where = f"; see its page {job.page}" if job else ""
        if isinstance(error, DataflowRuntimeException):
            state = re.search(r"State: (\w+)", str(error))
            if state and state[1] == "FAILED":
                cause = python_cause(str(error).partition("Error:\n")[2])
                return job_failed(name=self.name, cause=cause, where=where)
            how = state[1].lower() if state else "ended"
            return job_ended(how=how, name=self.name, where=where)
        if isinstance(error, DataflowJobAlreadyExistsError):
            return OutputError(
                "A job of that name is already running: wait for it, or give another --job_name."
            )
        if isinstance(error, GoogleAPICallError):
            code = int(error.code or 0)
            # Over HTTP the client library puts the request before the message.
            message = re.sub(r"^[A-Z]+ https?://\S+: ", "", str(error.message)).strip().rstrip(".")
            if job is None:
                remedy = _REMEDIES.get(code, "run again")
                return OutputError(f"{self.name} rejected the job ({code}: {message}): {remedy}.")
            return OutputError(
                f"{self.name} does not return the job's state ({code}: {message}): it may still "
                f"run{where}; run again once it has ended."
            )
        return None


def _check_names(options: PipelineOptions) -> None:
    """Check what Beam would report with a traceback, or by creating a bucket.

    Raises:
        UsageError: A name or path breaks Google's rules.
    """
    cloud = options.view_as(GoogleCloudOptions)
    validator = PipelineOptionsValidator(options, None)
    for name in ("temp_location", "staging_location"):
        path = getattr(cloud, name)
        if path is not None and validator.validate_gcs_path(cloud, name):
            raise UsageError(f"--{name}={path} is not a folder of a bucket: give gs://BUCKET/PATH.")
    if not re.fullmatch(validator.JOB_PATTERN, cloud.job_name):
        raise UsageError(
            f"--job_name={cloud.job_name} is not a valid job name: use lower-case letters, digits "
            "and hyphens, and start with a letter."
        )
    if not re.fullmatch(validator.PROJECT_ID_PATTERN, cloud.project):
        raise UsageError(
            f"--project={cloud.project} is not a project id: give the id, such as my-project-1, "
            "not the number or the description."
        )


def _check_buckets(options: GoogleCloudOptions) -> None:
    """Check the buckets that Beam will stage the job in.

    Raises:
        OutputError: A bucket is missing, or the permission to read its metadata is.
    """
    from apache_beam.io.gcp.gcsio import create_storage_client
    from google.api_core.exceptions import Forbidden, NotFound

    client = create_storage_client(options, not options.no_auth)
    folders = {name: getattr(options, name) for name in ("staging_location", "temp_location")}
    for name, path in folders.items():
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
                f"--{name}={path}: Beam has no permission to read the bucket {bucket!r}; grant "
                "storage.buckets.get on it, as the role Storage Legacy Bucket Reader does."
            ) from error


def _find_submitted(options: PipelineOptions) -> Any:
    """Return the job of these options if it was submitted; its name is unique."""
    from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult, DataflowRunner
    from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient
    from google.cloud import dataflow

    cloud = options.view_as(GoogleCloudOptions)
    client = DataflowApplicationClient(options)
    request = dataflow.ListJobsRequest(
        project_id=cloud.project,
        location=cloud.region,
        name=cloud.job_name,
        filter=dataflow.ListJobsRequest.Filter.ACTIVE,
    )
    list_jobs = client._jobs_client.list_jobs  # noqa: SLF001 - Beam has no list
    jobs = poll(
        lambda: [job for job in list_jobs(request) if job.name == cloud.job_name],
        _VISIBLE_WITHIN,
        0.5,
    )
    if not jobs:
        return None
    runner = DataflowRunner()
    runner.dataflow_client = client
    return DataflowPipelineResult(jobs[0], runner, options)
