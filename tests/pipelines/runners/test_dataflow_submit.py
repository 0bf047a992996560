"""Jobs submitted to an emulated Dataflow: finished, failed and rejected.

Slower tests are in ``tests/cluster/test_dataflow_jobs.py``.
"""

import pytest

from tests.support.dataflow_server import Rejection, State
from tests.support.dataflow_tools import page

pytest_plugins = ["tests.support.dataflow_tools"]
pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("short_pauses")]

FAILED = (
    "Workflow failed. Causes: Startup of the worker pool in europe-west1 failed to bring up any of "
    "the desired 1 workers. QUOTA_EXCEEDED: Quota 'CPUS' exceeded. Limit: 8.0."
)
# In the format of the service, which wraps the traceback in its log format.
TRACE = """Error message from worker: generic::unknown: Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1498, in apache_beam.runners.common.DoFnRunner.process
  File "/usr/local/lib/python3.11/site-packages/shardmill/schemas/storage/gcs.py", line 88, in read
shardmill.schemas.errors.StorageError: The bucket 'x' does not exist; create it or correct its \
name. [while running 'WriteShards/BuildShards/WriteParts-ptransform-34']

passed through:
==>
    dist_proc/dax/workflow/worker/fnapi_service_impl.cc:1331"""
WORK_ITEM = (
    "Workflow failed. Causes: S12:Write failed., The job failed because a work item has failed 4 "
    "times. The work item was attempted on these workers: \n\n  a-harness-wxyz\n  Root cause: x"
)


def test_finished_job(client, service, album, tmp_path):
    code, out, err = client.images("--debug")
    assert code == 0, err
    assert "written    24 examples" in out
    (notice,) = [line for line in err if line.startswith("job: ")]
    assert notice == f"job: {service.works[0].id}  {page()}"
    # Counters came from the service, as the job's own.
    (encoded,) = [line for line in err if "examples_encoded" in line]
    assert encoded.split()[-1] == "24"
    album.check("images", client.output, tmp_path / "out", image_size="16")
    assert service.works[0].job.current_state == State.JOB_STATE_DONE


def test_reports_a_shardmill_error_from_the_job_log(client, service):
    service.errors = [TRACE, WORK_ITEM]
    assert client.sentence() == "The bucket 'x' does not exist; create it or correct its name."


def test_reports_a_failed_job_with_its_page(client, service):
    service.errors = [FAILED]
    assert client.sentence() == (
        f"The job failed on DataflowRunner: {FAILED.rstrip('.')}; see its page {page()}; "
        "run again to resume."
    )


def test_reports_a_rejected_job(client, service):
    service.rejection = Rejection(429, "RESOURCE_EXHAUSTED", "Quota exceeded for job creation.")
    assert client.sentence() == (
        "DataflowRunner rejected the job (429: Quota exceeded for job creation): wait, or ask "
        "for more quota, and run again."
    )
    assert service.works == []
    assert service.calls.count("CreateJob") == 1
