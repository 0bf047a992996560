"""Jobs on a fake Dataflow service: every pipeline, templates, failures, cancellation."""

import signal
import threading
import time

import pytest

from shardmill.schemas.storage import open_storage
from tests.conftest import start_shardmill
from tests.support.dataflow_server import Rejection, State
from tests.support.dataflow_tools import page, staged_job, wait_for
from tests.support.servers import wait_until

pytest_plugins = ["tests.support.dataflow_tools"]
pytestmark = pytest.mark.usefixtures("short_pauses")

FOREIGN = """Error message from worker: Traceback (most recent call last):
  File "/usr/local/lib/x.py", line 3, in load
    return __import__(name)
ModuleNotFoundError: No module named 'shardmill'
"""


@pytest.mark.parametrize("pipeline", ["images", "rows", "arrays"])
def test_builds_then_finds_it_up_to_date(pipeline, client, service, album, tmp_path):
    options = {"image_size": "16"} if pipeline == "images" else {}
    code, out, err = client.run(client.argv(pipeline))
    assert code == 0, err
    album.check(pipeline, client.output, tmp_path / "out", **options)
    code, out, err = client.run(client.argv(pipeline))
    assert code == 0, err
    assert out == f"{client.output} is up to date: nothing was written.\n"
    assert [work.job.current_state for work in service.works] == [State.JOB_STATE_DONE] * 2
    album.check(pipeline, client.output, tmp_path / "again", **options)


def test_count(client, service):
    assert client.images()[0] == 0
    manifest = f"{client.output[:-3]}counted.json"
    argv = ["count", f"--input={client.output}", f"--manifest={manifest}", *client.flags]
    code, out, err = client.run(argv)
    assert code == 0, err
    assert "12 matched, 8 skipped" in out
    assert "21 records" in out
    assert service.works[1].job.current_state == State.JOB_STATE_DONE
    place = f"{client.output[:-3]}staging/count"
    assert client.run([*argv, f"--template_location={place}"])[:2] == (0, f"Staged {place}\n")


@pytest.mark.parametrize(
    ("kind", "ending", "begins", "state"),
    [
        ("upload", "/progress.json", "Cannot write ", State.JOB_STATE_FAILED),
        # A part or a shard that cannot be written is a result: the service does not retry it.
        ("upload", ".part", "Cannot write ", State.JOB_STATE_DONE),
        ("compose", "", "Cannot compose ", State.JOB_STATE_DONE),
    ],
)
def test_an_error_of_ours_in_a_worker_is_reported_unchanged(
    kind, ending, begins, state, client, front, service
):
    front.fail(kind, "403", times=99, name=ending)
    said = client.sentence()
    assert said.startswith(begins)
    assert "passed through" not in said
    assert service.works[0].job.current_state == state


def bad_inputs(client) -> None:
    for number in range(20):
        uri = f"{client.inputs}/bad/x/{number}.jpg"
        open_storage(uri).replace(uri, b"no image")


def test_unusable_inputs_fail_the_command_but_not_the_job(client, service):
    bad_inputs(client)
    assert "20 of 20" in client.sentence(inputs="bad")
    assert service.works[0].job.current_state == State.JOB_STATE_DONE


def test_an_error_of_foreign_code_is_reported_by_its_last_line(client, service):
    service.errors = [FOREIGN]
    said = client.sentence()
    assert "failed on DataflowRunner: ModuleNotFoundError: No module named 'shardmill'; " in said
    assert page() in said


@pytest.mark.parametrize(
    ("rejection", "remedy"),
    [
        (
            Rejection(401, "UNAUTHENTICATED", "Invalid credentials."),
            "run `gcloud auth application-",
        ),
        (
            Rejection(403, "PERMISSION_DENIED", "Dataflow API is disabled."),
            "enable the Dataflow API",
        ),
        (Rejection(404, "NOT_FOUND", "Location is not found."), "correct --project or --region."),
    ],
)
def test_a_rejected_job_is_one_sentence(rejection, remedy, client, service):
    service.rejection = rejection
    said = client.sentence()
    assert said.startswith(f"DataflowRunner rejected the job ({rejection.code}: ")
    assert f"{rejection.message.rstrip('.')}): {remedy}" in said
    assert service.works == []
    assert service.calls.count("CreateJob") == 1


def test_a_missing_staging_bucket(client):
    client.flags[3] = "--temp_location=gs://no-such-bucket/tmp"
    assert client.sentence() == (
        "--temp_location=gs://no-such-bucket/tmp: the bucket 'no-such-bucket' does not exist; "
        "create it or correct its name."
    )


def test_a_job_whose_log_is_not_readable_is_still_monitored(client, service):
    service.denied = {"messages"}
    code, out, err = client.images()
    assert code == 0, err
    assert "written    24 examples" in out
    service.errors = [FOREIGN]
    assert "The job failed on DataflowRunner: it does not say why; " in client.sentence()


def test_a_job_whose_state_is_not_readable(client, service):
    service.denied, service.hold = {"messages", "job"}, True
    assert client.sentence() == (
        "DataflowRunner does not return the job's state (403: The caller does not have permission): "
        f"it may still run; see its page {page()}; run again once it has ended."
    )


def test_a_job_cancelled_on_its_page(client, service, monkeypatch):
    """Beam stops polling long before the workers have stopped."""
    service.hold, service.cancel_seconds = True, 9.0  # Beam polls 50 times: 5 s
    create = service.create

    def create_and_cancel(given):
        work = create(given)
        service.cancel(work)
        return work

    monkeypatch.setattr(service, "create", create_and_cancel)
    assert client.sentence() == (
        f"The job was cancelled on DataflowRunner: run again to resume; see its page {page()}."
    )


def test_a_staged_job_runs_when_a_launcher_submits_it(client, service, album, tmp_path):
    place = client.output.replace("/out", "/staging/template_launches/1/job_object")
    assert client.images(f"--template_location={place}") == (0, f"Staged {place}\n", [])
    assert service.works == []
    work = service.create(staged_job(place))  # as a template's launcher does
    wait_for(work)
    assert work.job.current_state == State.JOB_STATE_DONE
    # No command waits for it, so it must not write an outcome that nothing would delete.
    assert not [e.path for e in open_storage(place).list_dir(client.output) if "/." in e.path[5:]]
    album.check("images", client.output, tmp_path / "out", image_size="16")


def test_a_staged_job_fails_on_its_own(client, service):
    bad_inputs(client)
    place = client.output.replace("/out", "/staging/job_object")
    assert client.images(f"--template_location={place}", inputs="bad")[0] == 0
    work = service.create(staged_job(place))
    wait_for(work)
    assert work.job.current_state == State.JOB_STATE_FAILED
    assert "20 of 20" in work.messages[1].message_text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_job_and_waits(number, code, client, service):
    service.hold, service.cancel_seconds = True, 3.0
    process = start_shardmill(*client.argv("images"))
    wait_until(lambda: service.works)
    time.sleep(1.5)
    process.send_signal(number)
    said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert service.works[0].job.current_state == State.JOB_STATE_CANCELLED  # it waited
    assert "shardmill: interrupted; run again to resume." in said[1]
    assert "UpdateJob" in service.calls


def start_held(client, service):
    """Start a command whose job runs until it is resumed."""
    service.hold = True
    process = start_shardmill(*client.argv("images"))
    wait_until(
        lambda: service.works and service.works[0].job.current_state == State.JOB_STATE_RUNNING
    )
    service.hold = False
    return process


@pytest.mark.parametrize("killed", [True, False])
def test_an_equal_command_waits_for_the_running_job(killed, client, service, album, tmp_path):
    """The service does not notice that a client was killed; one that lives waits too."""
    process = start_held(client, service)
    if killed:
        process.kill()
        process.communicate(timeout=60)
    work = service.works[0]
    threading.Timer(2, service.resume, [work]).start()  # while the second command waits
    code, _, err = client.images()
    assert code == 0, err
    assert "the job of an equal command runs: waiting for it" in err
    assert f"job: {work.id}  {page()}" in err
    if killed:
        assert service.works == [work]
    else:  # one of the two takes the outcome; the other finds the dataset up to date
        assert (process.wait(timeout=60), len(service.works)) == (0, 2)
    album.check("images", client.output, tmp_path / "out", image_size="16")


def test_a_running_job_of_another_command_is_not_waited_for(client, service):
    start_held(client, service).kill()
    code, _, err = client.run(client.argv("images", "--image_size=8"))
    assert code == 0, err
    assert len(service.works) == 2
    # A name that is given may be that of any job.
    named = "--job_name=nightly"
    service.hold = True
    process = start_shardmill(*client.argv("rows", named))
    wait_until(lambda: len(service.works) == 3)
    assert client.sentence(named).startswith(
        "A job of that name is already running: wait for it, or "
    )
    process.kill()
    process.communicate(timeout=60)


def test_a_signal_while_the_job_is_being_submitted(client, service, monkeypatch):
    """The service has accepted the job; the client has not received the reply yet."""
    service.hold = True
    create = service.create

    def create_slowly(given):
        work = create(given)
        process.send_signal(signal.SIGINT)
        time.sleep(2)
        return work

    monkeypatch.setattr(service, "create", create_slowly)
    process = start_shardmill(*client.argv("images"))
    said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "shardmill: interrupted; run again to resume." in said[1]
    assert service.works[0].job.current_state == State.JOB_STATE_CANCELLED
