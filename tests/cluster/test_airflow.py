"""The DAGs in a real Airflow: runs, retries, kills, failures, backfills."""

import contextlib
import csv
import datetime as dt
import json
import os
import re
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, make_archives, make_photos, shardmill
from tests.support.airflow_server import SHARDMILL, Airflow, Run, run_airflow, wait_until
from tests.support.examples_data import write_titanic
from tests.support.flink_cluster import finished_parts
from tests.support.hostile_files import CODEC, write_hostile
from tests.support.readers import tf_examples

DAY = "2026-01-20"
TRAINER = """
import sys
from shardmill.loaders import Stream, open_dataset, steps_per_epoch
dataset, steps = sys.argv[1], int(sys.argv[2])
batches = -(-sum(1 for _ in Stream(open_dataset(dataset, "train"))) // 4)
assert batches == steps == steps_per_epoch(dataset, "train", 4)
import json, os, pathlib
pathlib.Path(dataset + ".env.json").write_text(json.dumps({**os.environ}))
print("token", os.environ["TOKEN"])
print("trained", steps, "steps on", dataset)
"""


WRONG_TABLES = (
    "[datasets.unknown] has the command 'image': use one of images, rows, arrays.",
    "schedule = 'nightly' in [datasets.unscheduled] is not a cron expression: write it as in '0 2 * * *'.",
)
ALERTS = """
import os

def notify(context):
    with open(os.environ["AIRFLOW_HOME"] + "/alerts.txt", "a") as file:
        print(context["dag"].dag_id, context["ti"].task_id, context["exception"], file=file)
"""
PLANTED = ("AIRFLOW_CONN_DB", "AIRFLOW_VAR_KEY", "_AIRFLOW_WWW_USER_PASSWORD")


def settings(base: Path, timeout: str) -> str:
    """Return the TOML settings of all tests; JSON strings and lists are valid TOML."""
    python, show = sys.executable, json.dumps
    slow = ["--shard_examples=10", "--workers=1"]
    tables: dict[str, dict] = {
        "datasets.titanic": {
            "command": "rows",
            "input": f"{base}/in/titanic/{{{{ day() }}}}",
            "flags": ["--label=survived", "--null_values=?"],
            "check": ["--min_examples=train:1000,validation:50"],
        },
        "datasets.flowers": {
            "command": "images",
            "input": f"{base}/in/flowers/{{{{ day() }}}}",
            "flags": ["--image_size=24", "--num_shards=2"],
            "schedule": "0 0 * * *",
            "check": ["--min_examples=train:10", "--finished_after={{ day_end() }}"],
        },
        "datasets.steady": {"command": "images", "input": f"{base}/in/slow", "flags": slow},
        "datasets.slow": {
            "command": "images",
            "input": f"{base}/in/slow",
            "flags": slow,
            "timeout": timeout,
        },
        "datasets.wrong": {
            "command": "images",
            "input": f"{base}/in/slow",
            "flags": ["--image_size=large"],
        },
        "datasets.nowhere": {
            "command": "images",
            "input": f"{base}/in/flowers/{DAY}",
            "output": f"{base}/a_file/ds",
            "flags": ["--image_size=24"],
        },
        "datasets.demanding": {
            "command": "images",
            "input": f"{base}/in/flowers/{DAY}",
            "flags": ["--image_size=24"],
            "check": ["--min_examples=train:1000"],
        },
        "datasets.unknown": {"command": "image", "input": f"{base}/in/slow"},
        "datasets.unscheduled": {
            "command": "images",
            "input": f"{base}/in/slow",
            "schedule": "nightly",
        },
        "training.titanic": {
            "steps": ["--split=train", "--batch_size=32"],
            "command": [python, str(ROOT / "examples" / "train_rows.py"), "{{ dataset() }}"],
        },
        "training.flowers": {
            "steps": ["--split=train", "--batch_size=4"],
            "command": [python, "-c", TRAINER, "{{ dataset() }}", "{{ steps() }}"],
        },
        "training.demanding": {
            "steps": ["--batch_size=4"],
            "command": [python, "train.py"],
        },
    }
    lines = [
        f"shardmill = {show(str(SHARDMILL))}",
        "retries = 3",
        'retry_delay = "1s"',
        'grace = "10s"',
        "max_active_runs = 4",
    ]
    lines += ["[dag]", 'owner = "pagers"', 'tags = ["nightly"]', 'on_failure = "alerts:notify"']
    lines += ["[env]", 'TOKEN = "{{ conn.store.password }}"', f"PYTHONPATH = {show(str(CODEC))}"]
    for name, table in tables.items():
        kind, _, key = name.partition(".")
        lines.append(f"[{name}]")
        if kind == "datasets":
            table.setdefault("output", f"{base}/ds/{key}/{{{{ day() }}}}")
            lines.append("start = 2026-01-01")
        lines += [f"{field} = {show(value)}" for field, value in table.items()]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """Write inputs of each day and the settings; return their folder."""
    base = tmp_path_factory.mktemp("airflow")
    (base / "in" / "titanic" / DAY).mkdir(parents=True)
    write_titanic(base / "in" / "titanic" / DAY / "titanic.csv")
    for number in range(120):  # decoded in 24 s: longer than Airflow takes to stop a task
        label = ("cat", "dog")[number % 2]
        write_hostile(base / "in" / "slow" / label / f"{number}.bmp", "sleep", 0.2, number)
    for day in (DAY, "2026-01-01", *last_days()):
        make_photos(base / "in" / "flowers" / day, {"cat": 12, "dog": 9})
    archives = make_archives(base / "packed", {"cat": 12, "dog": 9})
    archives.rename(base / "in" / "flowers" / "2026-01-02")
    (base / "in" / "flowers" / "2026-02-02").mkdir()
    (base / "a_file").write_text("no folder")
    (base / "home" / "config").mkdir(parents=True)  # Airflow imports modules from there
    (base / "home" / "config" / "alerts.py").write_text(ALERTS)
    (base / "settings.toml").write_text(settings(base, "10s"))
    return base


def last_days() -> list[str]:
    """Return today and the two days before; the scheduler creates a run for one of them."""
    today = dt.datetime.now(dt.timezone.utc).date()
    return [str(today - dt.timedelta(days=days)) for days in range(3)]


@pytest.fixture(scope="module")
def airflow(base):
    os.environ.update({name: f"planted-{name}" for name in PLANTED})
    os.environ["AIRFLOW_CONN_STORE"] = "generic://user:planted-TOKEN@host"
    with run_airflow(base / "home", base / "settings.toml") as running:
        ids = {"titanic", "flowers", "steady", "slow", "wrong", "nowhere", "demanding"}
        wanted = {f"shardmill_{name}" for name in ids} | {
            f"shardmill_{name}_training" for name in ("titanic", "flowers", "demanding")
        }
        wait_until(
            lambda: {dag["dag_id"] for dag in running.call("/dags?limit=100")["dags"]} >= wanted,
            120,
            "the DAGs",
        )
        # Two wrong tables break no other DAG. A separate file reports them, in any order with
        # the files of the DAGs.
        (error,) = wait_until(
            lambda: running.call("/importErrors")["import_errors"], 120, "the error of the tables"
        )
        assert error["filename"] == "shardmill_settings.py"
        for sentence in WRONG_TABLES:
            assert sentence in error["stack_trace"]
        broken = {
            dag["dag_id"] for dag in running.call("/dags?limit=100&has_import_errors=true")["dags"]
        }
        assert broken == set()
        yield running
    for name in (*PLANTED, "AIRFLOW_CONN_STORE"):
        del os.environ[name]


def examples_in(folder: Path) -> list[dict]:
    """Return all examples of a dataset, read by TensorFlow."""
    shards = sorted(folder.glob("current/*.tfrecord.gz"))
    return [each for shard in shards for each in tf_examples(shard)]


def gone(run: Run, task: str, number: int, seconds: float = 15) -> None:
    """Wait until no process of an attempt's command is left."""

    def left() -> list[psutil.Process]:
        found = []
        for process in run.processes(task):
            with contextlib.suppress(psutil.Error):
                if process.environ()["AIRFLOW_CTX_TRY_NUMBER"] == str(number):
                    found.append(process)
        return found

    wait_until(lambda: not left(), seconds, f"the end of {run.path} {task}")


LATER_TASKS = {"count": "success", "verify": "success", "check": "success"}


def training_after(airflow: Airflow, name: str, seen: set[str]) -> Run:
    """Wait for a new run of a training DAG and return it."""
    runs = wait_until(
        lambda: [run for run in airflow.runs(name) if run.run_id not in seen], 60, name
    )
    return runs[0]


def test_rows_from_the_table_to_a_trained_model(airflow, base):
    seen = {run.run_id for run in airflow.runs("shardmill_titanic_training")}
    run = airflow.trigger("shardmill_titanic", "through", day=DAY)
    assert run.wait() == {"rows": "success", **LATER_TASKS}
    output = base / "ds" / "titanic" / DAY
    with (base / "in" / "titanic" / DAY / "titanic.csv").open() as table:
        wanted = sorted(row["name"] for row in csv.DictReader(table))
    assert len(wanted) == 1309
    assert sorted(each["name"][0].decode() for each in examples_in(output)) == wanted
    log = run.log("rows", 1)
    assert f"Published {output}" in log.events
    events = airflow.call("/assets/events")["asset_events"]
    extra = next(each["extra"] for each in events if each["extra"].get("dataset") == str(output))
    manifest = json.loads((output / "manifest.json").read_text())
    counted = {name: split["num_examples"] for name, split in manifest["splits"].items()}
    assert extra["examples"] == counted
    assert sum(counted.values()) == len(wanted)
    # Where rows are depends on the name of their file.
    said = f"train has {counted['train']:,} examples, 1,000 are enough"
    assert said in run.log("check", 1).text
    assert (extra["manifest"], extra["day"]) == (f"{output}/manifest.json", DAY)
    assert extra["config_id"] == manifest["build"]["config_id"]
    assets = {each["name"]: each["uri"] for each in airflow.call("/assets")["assets"]}
    assert assets["shardmill_titanic"] == f"file://{output.parent}"
    training = training_after(airflow, "shardmill_titanic_training", seen)
    assert training.wait() == {"steps": "success", "train": "success"}
    assert str(-(-counted["train"] // 32)) in training.log("steps", 1).events
    command = next(line for line in training.log("train", 1).events if line.startswith("Running "))
    assert command.endswith(str(output))


def test_a_finished_task_that_runs_again_is_up_to_date(airflow, base):
    run = airflow.trigger("shardmill_titanic", "again", day=DAY)
    assert run.wait()["rows"] == "success"
    output = base / "ds" / "titanic" / DAY
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    assert len(before) > 5
    number = run.tries_of("rows")
    run.clear("rows")
    wait_until(lambda: run.tries_of("rows") > number and run.state_of("rows") == "success")
    assert f"{output} is up to date: nothing was written." in run.log("rows", number + 1).events
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before


def test_a_changed_input_becomes_a_new_version(airflow, base):
    """Its run updates the dataset and triggers training; files of the version before stay."""
    day, output = "2026-01-19", base / "ds" / "flowers" / "2026-01-19"
    make_photos(base / "in" / "flowers" / day, {"cat": 12, "dog": 9})
    assert airflow.trigger("shardmill_flowers", "early", day=day).wait()["check"] == "success"
    files = (output / "current").resolve().rglob("*")
    before = {path: path.read_bytes() for path in files if path.is_file()}
    make_photos(base / "in" / "flowers" / day, {"cat": 24, "dog": 9})
    run = airflow.trigger("shardmill_flowers", "late", day=day)
    assert run.wait() == {"images": "success", **LATER_TASKS}
    assert len(examples_in(output)) == 33
    assert {path: path.read_bytes() for path in before} == before
    trained = json.loads((output / "manifest.json").read_text())["splits"]["train"]["num_examples"]
    said = f"trained {-(-trained // 4)} steps on {output}"
    wait_until(
        lambda: any(
            said in each.log("train", 1).text
            for each in airflow.runs("shardmill_flowers_training")
            if each.state() == "success"
        )
    )


def test_a_scheduled_build_of_yesterday_triggers_training(airflow, base):
    scheduled = wait_until(
        lambda: [
            run for run in airflow.runs("shardmill_flowers") if run.run_id.startswith("scheduled")
        ]
    )
    run = scheduled[0]  # two if midnight passed during the test
    assert run.wait() == {"images": "success", **LATER_TASKS}
    interval = airflow.call(run.path)
    day = interval["data_interval_start"][:10]
    assert day in last_days()[1:]
    assert interval["run_after"] >= interval["data_interval_end"]
    output = base / "ds" / "flowers" / day
    pictures = examples_in(output)
    assert len(pictures) == 21
    assert {each["image/class/text"][0] for each in pictures} == {b"cat", b"dog"}
    assert (
        f"not before {interval['data_interval_end'][:10]}T00:00:00+00:00"
        in run.log("check", 1).text
    )
    trained = wait_until(
        lambda: [
            each
            for each in airflow.runs("shardmill_flowers_training")
            if each.state() == "success" and str(output) in each.log("train", 1).text
        ]
    )
    assert f"steps on {output}" in trained[0].log("train", 1).text


def test_a_timeout_leaves_no_process_and_the_retry_resumes(airflow, base):
    run = airflow.trigger("shardmill_slow", "timeout", day=DAY)
    output = base / "ds" / "slow" / DAY
    for number, seconds in enumerate((10, 20, 40), 1):  # a busy machine may need the longer ones
        wait_until(lambda: "Task failed with exception" in run.log("images", number).events)  # noqa: B023
        gone(run, "images", number, 0.5)  # the task did not end before its command had
        log = run.log("images", number)
        assert "Process timed out" in log.events
        next_try = r"the next attempt reuses the finished parts\."
        assert re.search(
            rf"^Stopped at its timeout of 0:00:\d0: {next_try}$", log.text, re.MULTILINE
        )
        if finished_parts(output):
            break
        (base / "settings.toml").write_text(settings(base, f"{2 * seconds}s"))
    # An operator raises the timeout; the next attempt reads it.
    (base / "settings.toml").write_text(settings(base, "10m"))
    if run.state() == "failed":
        run.clear("images")
    wait_until(lambda: run.state() != "failed", 30)
    assert run.wait(300)["images"] == "success"
    assert run.log("images", run.tries_of("images")).parts[1] > 0
    assert json.loads((output / "manifest.json").read_text())["written"] == 120


@pytest.mark.parametrize(("victim", "day"), [("task", "2026-01-21"), ("supervisor", "2026-01-22")])
def test_a_killed_process_of_airflow_leaves_no_process(victim, day, airflow, base):
    run = airflow.trigger("shardmill_steady", victim, day=day)
    task, output = run.keeper("images").parent(), base / "ds" / "steady" / day
    wait_until(lambda: finished_parts(output) >= 3, 60)
    assert any("airflow" in word for word in task.cmdline())
    (task if victim == "task" else task.parent()).kill()
    gone(run, "images", 1)
    wait_until(lambda: not task.is_running(), 15)
    assert not (output / "manifest.json").exists()
    assert run.wait()["images"] == "success"  # the scheduler misses the heartbeat of a supervisor
    assert run.log("images", run.tries_of("images")).parts[1] >= 3


def test_a_task_marked_as_failed_leaves_no_process(airflow, base):
    run = airflow.trigger("shardmill_steady", "ended", day="2026-01-23")
    run.keeper("images")
    wait_until(lambda: finished_parts(base / "ds" / "steady" / "2026-01-23") >= 3, 60)
    airflow.call(f"{run.path}/taskInstances/images", {"new_state": "failed"}, "PATCH")
    gone(run, "images", 1, 30)
    wait_until(lambda: "Stopped by Airflow" in run.log("images", 1).exit_message, 30)
    assert not (base / "ds" / "steady" / "2026-01-23" / "manifest.json").exists()


def test_two_concurrent_runs_of_a_day_publish_one_dataset(airflow, base):
    runs = [airflow.trigger("shardmill_steady", f"twin-{i}", day="2026-01-24") for i in range(2)]
    keepers = [run.keeper("images") for run in runs]
    assert all(keeper.is_running() for keeper in keepers)
    for run in runs:
        assert run.wait(300) == {"images": "success", **LATER_TASKS}
    logs = [run.log("images", run.tries_of("images")).text for run in runs]
    assert sum("up to date" in log for log in logs) == 1
    assert sum("Published" in log for log in logs) == 1
    output = base / "ds" / "steady" / "2026-01-24"
    assert len(examples_in(output)) == 120
    assert shardmill("verify", output).returncode == 0
    assert [path.name for path in output.iterdir() if path.name.startswith(".")] == []


FAILURES = [
    ("shardmill_nowhere", DAY, "images", "shardmill: ", "a_file"),
    ("shardmill_flowers", "2026-02-02", "images", "shardmill: ", "2026-02-02"),  # nothing in it
    ("shardmill_flowers", "2026-02-03", "images", "shardmill: ", "2026-02-03"),  # not there
    (
        "shardmill_demanding",
        DAY,
        "check",
        "shardmill: ",
        "fewer than min_examples=train:1000 asks for",
    ),
]


@pytest.mark.parametrize(("dag", "day", "task", "begins", "holds"), FAILURES)
def test_a_failure_is_one_plain_sentence(dag, day, task, begins, holds, airflow):
    run = airflow.trigger(dag, f"failing-{day}", day=day)
    run.wait_for(task, "up_for_retry", "failed")
    log = run.log(task, 1)
    assert log.last_error.startswith(begins)
    assert holds in log.last_error
    assert log.last_error.endswith(".")
    assert log.last_error.count(". ") == 0
    assert log.tracebacks == 0
    assert "Traceback" not in log.text
    wait_until(lambda: run.tries_of(task) > 1)  # it is retried
    assert dag != "shardmill_demanding" or airflow.runs(f"{dag}_training") == []
    airflow.call(run.path, {"state": "failed"}, "PATCH")


def test_a_wrong_command_line_is_not_retried(airflow, base):
    run = airflow.trigger("shardmill_wrong", "wrong", day=DAY)
    assert run.wait() == {
        "images": "failed",
        **dict.fromkeys(("count", "verify", "check"), "upstream_failed"),
    }
    assert run.tries_of("images") == 1
    assert run.log("images", 1).last_error.startswith(
        "shardmill: --image_size=large is not a size: "
    )
    alerts = base / "home" / "alerts.txt"
    alert = "shardmill_wrong images shardmill: --image_size=large is not a size: "
    wait_until(lambda: alerts.exists() and alert in alerts.read_text())


def test_settings_of_all_dags(airflow):
    for dag in ("shardmill_wrong", "shardmill_titanic_training"):
        found = airflow.call(f"/dags/{dag}")
        assert found["owners"] == ["pagers"]
        assert {each["name"] for each in found["tags"]} == {"shardmill", "nightly"}


def test_a_run_without_a_day_fails_with_a_sentence(airflow):
    with pytest.raises(AssertionError, match="400"):  # nothing but a day
        airflow.trigger("shardmill_titanic", "injected", day=f"{DAY} --overwrite")
    run = airflow.trigger("shardmill_titanic", "dayless")
    assert run.wait()["rows"] == "failed"
    assert run.tries_of("rows") == 1
    assert run.log("rows", 1).last_error == (
        "This run has no date: trigger it with the parameter day, as in 2026-11-20."
    )


def test_a_backfill_of_two_days(airflow, base):
    """One has photos in folders, the other in four archives."""
    flags = ["--from-date", "2026-01-01", "--to-date", "2026-01-02"]
    done = airflow.command("airflow", "backfill", "create", "--dag-id", "shardmill_flowers", *flags)
    assert done.returncode == 0, done.stderr
    runs = wait_until(
        lambda: [
            run for run in airflow.runs("shardmill_flowers") if run.run_id.startswith("backfill")
        ]
    )
    assert len(runs) == 2
    for run in runs:
        assert run.wait(300) == {"images": "success", **LATER_TASKS}
    by_hand = [
        "--conf",
        f'{{"day": "{DAY}"}}',
        "--run-id",
        "by-hand",
        "shardmill_flowers",
    ]
    done = airflow.command("airflow", "dags", "trigger", *by_hand)
    assert done.returncode == 0, done.stderr
    assert Run(airflow, "shardmill_flowers", "by-hand").wait()["check"] == "success"
    for day, archives in (("2026-01-01", 1), ("2026-01-02", 4), (DAY, 1)):
        made = [each["image/class/text"][0] for each in examples_in(base / "ds" / "flowers" / day)]
        assert (made.count(b"cat"), made.count(b"dog")) == (12 * archives, 9 * archives)
        assert shardmill("verify", base / "ds" / "flowers" / day).returncode == 0


PARSE = """
import importlib.util, sys, time
for name in ("apache_beam", "shardmill", "tensorflow", "numpy"):
    assert importlib.util.find_spec(name) is None, name
begun = time.perf_counter()
import airflow.sdk, airflow.timetables.interval
known = time.perf_counter()
import shardmill_datasets, shardmill_training
print(known - begun, time.perf_counter() - known)
"""


SERIALIZED = """
import json
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
with create_session() as session:
    for row in session.query(SerializedDagModel):
        print(json.dumps(row.data))
"""


def test_secrets_reach_the_commands_and_nothing_else(airflow, base):
    run = airflow.trigger("shardmill_flowers", "secrets", day=DAY)
    assert run.wait() == {"images": "success", **LATER_TASKS}
    output = base / "ds" / "flowers" / DAY
    training = airflow.trigger("shardmill_flowers_training", "secrets", dataset=str(output))
    assert training.wait() == {"steps": "success", "train": "success"}
    command = json.loads(Path(f"{output}.env.json").read_text())
    assert command["TOKEN"] == "planted-TOKEN"
    assert command["AIRFLOW_CTX_TASK_ID"] == "train"
    assert sum("planted-" in value for value in command.values()) == 1
    assert "token ***" in training.log("train", 1).text
    done = airflow.command("python", "-c", SERIALIZED)
    assert "shardmill_flowers_training" in done.stdout, done.stderr
    public = [done.stdout]
    for each in (run, training):
        public += [
            json.dumps(airflow.call(path))
            for path in (
                f"/dags/{each.dag_id}/details",
                f"/dags/{each.dag_id}/tasks",
                each.path,
                f"{each.path}/taskInstances",
                f"/dagSources/{each.dag_id}",
            )
        ]
    files = [*(base / "home" / "logs").rglob("*"), *(base / "ds").rglob("*.json")]
    public += [path.read_text() for path in files if path.is_file() and ".env." not in path.name]
    assert len(public) > 20
    assert not [text for text in public if "planted-" in text]


def test_dags_are_parsed_fast_and_without_beam(airflow):
    done = airflow.command("python", "-c", PARSE)
    assert done.returncode == 0, done.stderr
    alone, ours = map(float, done.stdout.split()[-2:])
    print(f"\nimport of Airflow {alone:.2f} s, of the DAGs {ours:.3f} s")
    assert ours < 1


# Google's provider has other dependencies than Airflow's environment here: a class with the signature
# of its operator (apache/airflow, providers/google, dataflow.py at 04bae52f) takes its place.
TEMPLATE = """
import datetime as dt, json, sys, types
from airflow.sdk import BaseOperator
class DataflowStartFlexTemplateOperator(BaseOperator):
    template_fields = ("body", "location", "project_id", "gcp_conn_id")
    def __init__(self, body, location, project_id="", gcp_conn_id="g", drain_pipeline=False,
                 cancel_timeout=600, wait_until_finished=None, impersonation_chain=None, deferrable=False,
                 append_job_name=True, expected_terminal_state=None, poll_sleep=10, cancel_on_kill=True,
                 *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.body, self.location, self.project_id, self.gcp_conn_id = body, location, project_id, gcp_conn_id
        self.deferrable, self.cancel_on_kill = deferrable, cancel_on_kill
module = types.ModuleType("dataflow")
module.DataflowStartFlexTemplateOperator = DataflowStartFlexTemplateOperator
sys.modules["airflow.providers.google.cloud.operators.dataflow"] = module
for name in ("google", "google.cloud", "google.cloud.operators"):
    sys.modules[f"airflow.providers.{name}"] = types.ModuleType(name)
from shardmill_datasets import dataset_dag
from shardmill_airflow.settings import parse_settings
found = parse_settings({"shardmill": "/x", "runner": "d", "runners": {"d": [
    "--runner=DataflowRunner", "--project=p", "--region=r"]}, "datasets": {"a": {
    "command": "images", "input": "gs://b/in/{{ day() }}", "output": "gs://b/out/{{ day() }}",
    "start": dt.date(2026, 1, 1), "template": "gs://b/t.json"}}})
dag = dataset_dag(found, *found.datasets)
task = dag.get_task("images")
task.render_template_fields({"params": {"day": "2026-01-02"}, "dag": dag, **dag.user_defined_macros})
print(json.dumps([task.body, task.location, task.project_id, task.deferrable, task.retries,
                  sorted(task.downstream_task_ids)]))
"""


def test_a_template_replaces_the_command_of_a_build(airflow):
    done = airflow.command("python", "-c", TEMPLATE)
    assert done.returncode == 0, done.stderr
    body, *others = json.loads(done.stdout.splitlines()[-1])
    assert others == ["r", "p", True, 3, ["count"]]
    parameters = body["launchParameter"]["parameters"]
    assert (parameters["input"], parameters["update"]) == ("gs://b/in/2026-01-02", "true")
