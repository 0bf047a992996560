"""Google Dataflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardmill.pipelines.runners.base import Job, Runner
from shardmill.schemas.errors import UsageError

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_PAGE = "https://console.cloud.google.com/dataflow/jobs/{region}/{id}?project={project}"


class Dataflow(Runner):
    """Dataflow; its jobs go on whatever becomes of the client, and have a page."""

    def prepare(self, argv: Sequence[str], job_name: str) -> list[str]:
        """See ``Runner.prepare``."""
        from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

        options = PipelineOptions([*argv]).view_as(GoogleCloudOptions)
        missing = [f"--{name}" for name in ("project", "region") if not getattr(options, name)]
        if missing:
            raise UsageError(
                f"--runner={self.name} needs {' and '.join(missing)}: add what is missing."
            )
        if not (options.temp_location or "").startswith("gs://"):
            raise UsageError(
                f"--runner={self.name} needs a folder for what is temporary: "
                "add --temp_location=gs://BUCKET/PATH."
            )
        return super().prepare(argv, job_name)

    def find_job(self, options: PipelineOptions, result: Any) -> Job | None:
        """See ``Runner.find_job``."""
        from apache_beam.options.pipeline_options import GoogleCloudOptions

        job = super().find_job(options, result)
        if job is None:
            return None
        cloud = options.view_as(GoogleCloudOptions)
        return Job(job.id, _PAGE.format(region=cloud.region, id=job.id, project=cloud.project))
