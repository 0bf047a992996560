"""Modules of the DAGs that work without Airflow; tests/cluster runs the DAGs in Airflow."""

import contextlib
import dataclasses
import datetime as dt
import os
import re
import signal
import subprocess
import sys
import time
import zoneinfo
from pathlib import Path

import psutil
import pytest
import tomllib
from google.cloud import dataflow
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.pipelines.commands import INPUT_KINDS, find_parser
from shardmill.pipelines.commands.build import parse_build
from shardmill.pipelines.limits import Rules, parse_time
from shardmill.pipelines.runners.base import find_runner, take_runner
from tests.conftest import ROOT, examples
from tests.deploy.test_dataflow_template import PARAMETERS, modules  # noqa: F401 - a fixture
from tests.support.servers import wait_until

DAGS = ROOT / "deploy" / "airflow" / "dags"
sys.path.insert(0, str(DAGS))
from shardmill_airflow.dates import day_of, end_of  # noqa: E402
from shardmill_airflow.flex_template import find_operator, launch_arguments  # noqa: E402
from shardmill_airflow.keeper import CANNOT_RUN  # noqa: E402
from shardmill_airflow.running import Command, Lines, clean_environment, shortened  # noqa: E402
from shardmill_airflow.settings import (  # noqa: E402
    COMMANDS,
    DagSettings,
    Dataset,
    Settings,
    SettingsError,
    Training,
    load_settings,
    parse_settings,
)

ENV = {"PATH": os.environ["PATH"]}
ZURICH = zoneinfo.ZoneInfo("Europe/Zurich")


def start(code: str, *args: object, grace: float = 30) -> Command:
    return Command.start([sys.executable, "-c", code, *map(str, args)], ENV, grace)


def ended(command: Command, seconds: float = 20) -> tuple[int, list[tuple[bool, str]]]:
    """Wait until a command ends; return its exit code and lines."""
    lines = list(command.lines())
    return command.process.wait(seconds), lines


def dead(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def first_line(path: Path) -> str:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return path.read_text().splitlines()[0]


# Running a command.


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_returns_exit_code_and_lines(code):
    said = "import sys; print('one\\ntwo'); sys.stderr.write('shardmill: no.\\nlast'); sys.exit(int(sys.argv[1]))"
    command = start(said, code)
    got, lines = ended(command)
    assert got == code
    assert [line for error, line in lines if not error] == ["one", "two"]
    assert [line for error, line in lines if error] == ["shardmill: no.", "last"]
    assert command.failure(code) == "shardmill: no."
    assert command.last[False] == "two"


def test_keeps_arguments_unchanged(tmp_path):
    odd = ["a b", "--x=$HOME;rm", "`id`", "*", "", "\n", "--", "ü"]
    command = start("import sys; print(sys.argv[1:])", *odd)
    assert ended(command)[1] == [(False, repr(odd))]


def test_reports_the_signal_that_killed_a_command(tmp_path):
    command = start("import os; os.kill(os.getpid(), 9)")
    code, _ = ended(command)
    assert code == 137
    assert (
        "was killed by SIGKILL, most often because the machine ran out of memory"
        in command.failure(code)
    )
    command = start("import os; os.kill(os.getpid(), 15)")
    assert ended(command)[0] == 143


def test_reports_a_missing_command(tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/nowhere/python\n")
    broken.chmod(0o755)
    plain = tmp_path / "plain"
    plain.write_text("text")
    for path, why in (
        (tmp_path / "no", "No such file"),
        (broken, "No such file"),
        (plain, "Permission denied"),
    ):
        command = Command.start([str(path)], ENV, 1)
        code, _ = ended(command)
        assert code == CANNOT_RUN
        assert command.failure(code).startswith(f"{path} cannot be run: {why}")


@given(st.lists(st.binary(max_size=9)), st.integers(1, 7))
@settings(max_examples=examples(300))
def test_splits_lines_independently_of_chunks(texts, size):
    data = b"\n".join(texts)
    whole, cut = Lines(), Lines()
    wanted = [*whole.add(data), *whole.end()]
    got = [line for at in range(0, len(data), size) for line in cut.add(data[at : at + size])]
    assert [*got, *cut.end()] == wanted
    assert all(wanted)


def test_formats_lines_for_a_log() -> None:
    lines = Lines()
    assert list(lines.add(b"  a\r\n\n10%\r20%\r100%\nx")) == ["  a", "100%"]
    assert list(lines.add(b"\x1b[32mgreen\x1b[0m \x08\xff\n")) == ["xgreen \ufffd"]
    (long,) = lines.add(b"y" * 70_000)
    assert shortened(long) == "y" * 4000 + "..."
    assert lines.rest == b""


def test_does_not_wait_for_a_process_outside_the_group(tmp_path):
    """The process keeps the pipes open."""
    away = "import subprocess, sys; p = subprocess.Popen(['sleep', '60'], start_new_session=True); print(p.pid)"
    began = time.monotonic()
    code, lines = ended(start(away))
    assert code == 0
    assert time.monotonic() - began < 10
    os.kill(int(lines[0][1]), signal.SIGKILL)


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
open(sys.argv[1], "w").write(f"{child.pid} {os.getpid()}\\n")
time.sleep(60)
"""


def test_kills_a_command_and_its_children_after_the_grace_period(tmp_path):
    command = start(STUBBORN, tmp_path / "pids", grace=0.5)
    pids = [int(pid) for pid in first_line(tmp_path / "pids").split()]
    command.stop()
    assert ended(command)[0] == 137
    assert all(map(dead, pids))


def test_kills_the_processes_that_a_command_leaves():
    left = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
    code, lines = ended(start(left))
    assert code == 0
    wait_until(lambda: dead(int(lines[0][1])))


POLITE = """
import os, signal, sys, time
def end(*_):
    print("x" * 200, flush=True)
    time.sleep(0.3)  # as a job is cancelled
    open(sys.argv[1] + ".done", "w").write("done\\n")
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1], "w").write(f"{os.getpid()} {os.getppid()}\\n")
time.sleep(60)
"""


@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_gives_a_command_time_to_exit(number, tmp_path):
    """Also where the keeper gets a signal."""
    command = start(POLITE, tmp_path / "pids")
    first_line(tmp_path / "pids")
    if number:
        command.process.send_signal(number)
    else:
        command.stop()
        command.stop()  # once is as good as twice
    code, lines = ended(command)
    assert code == 143
    assert lines == [(False, "x" * 200)]
    assert (tmp_path / "pids.done").exists()


OWNER = """
import sys
sys.path.insert(0, sys.argv[1])
from shardmill_airflow.running import Command
command = Command.start([sys.executable, "-c", sys.argv[3], sys.argv[2]], {}, 20)
for _ in command.lines(): pass
"""


@pytest.mark.parametrize("whom", ["owner", "keeper"])
def test_command_exits_cleanly_if_its_task_is_killed(whom, tmp_path):
    """The command can still write to its pipes."""
    pids = tmp_path / "pids"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(DAGS), str(pids), POLITE])
    command, keeper = map(int, first_line(pids).split())
    os.kill(owner.pid if whom == "owner" else keeper, signal.SIGKILL)
    assert first_line(tmp_path / "pids.done") == "done"
    wait_until(lambda: dead(command) and dead(keeper))
    owner.wait(20)


def test_removes_variables_of_airflow(monkeypatch):
    for name in (
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "AIRFLOW_CONN_DB",
        "AIRFLOW_VAR_KEY",
        "_AIRFLOW_WWW_USER_PASSWORD",
        "PYTHONPATH",
        "VIRTUAL_ENV",
    ):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "dag")
    found = clean_environment({"KEY": "value"})
    assert "secret" not in found.values()
    assert found["AIRFLOW_CTX_DAG_ID"] == "dag"
    assert found["KEY"] == "value"
    assert found["PATH"] == os.environ["PATH"]


# Days.


def test_day_of_a_run():
    midnight = dt.datetime(2026, 11, 19, 23, tzinfo=dt.timezone.utc)  # in Zurich the 20th begins
    assert day_of(None, midnight, ZURICH) == "2026-11-20"
    assert day_of(None, midnight, dt.timezone.utc) == "2026-11-19"
    assert day_of("2026-01-02", midnight, ZURICH) == "2026-01-02"
    assert day_of("", None, ZURICH) == ""
    for text in ("2026-01-02 --overwrite", "--overwrite", "../2026"):
        with pytest.raises(ValueError, match="Invalid isoformat"):
            day_of(text, None, ZURICH)
    assert end_of("2026-11-20", ZURICH) == "2026-11-21T00:00:00+01:00"
    assert end_of("2026-10-25", ZURICH) == "2026-10-26T00:00:00+01:00"
    assert end_of("2026-12-31", dt.timezone.utc) == "2027-01-01T00:00:00+00:00"
    rules = Rules(finished_after=end_of("2026-06-30", ZURICH))
    assert parse_time(rules.finished_after) == dt.datetime(2026, 6, 30, 22, tzinfo=dt.timezone.utc)


# Settings; tests/golden/transcripts/airflow_settings.txt has those that cannot be used.

GOOD = """
shardmill = "/opt/shardmill/bin/shardmill"
[datasets.a]
command = "images"
input = "/in/{{ day() }}"
output = "/out/{{ day() }}/"
start = 2026-11-01
"""


def test_a_template_gets_the_flags_of_the_build(modules):  # noqa: F811
    """Google's client knows each field; the template and the command know each parameter."""
    flags = ["--image_size=224", "--splits=train:0.9,validation:0.1", "--follow_links"]
    runner = [
        "--runner=DataflowRunner",
        "--project=p",
        "--region=r",
        "--temp_location=gs://b/t",
        "--max_num_workers=5",
    ]
    table = {
        "command": "images",
        "input": "gs://b/in",
        "output": "gs://b/out",
        "flags": flags,
        "start": dt.date(2026, 1, 1),
        "template": "gs://b/t.json",
    }
    body = {
        "shardmill": "/x",
        "runner": "d",
        "runners": {"d": runner},
        "datasets": {"My_set": table},
    }
    found = parse_settings(body)
    arguments = launch_arguments(found, *found.datasets)
    assert (arguments["project_id"], arguments["location"], arguments["deferrable"]) == (
        "p",
        "r",
        True,
    )
    request = dataflow.LaunchFlexTemplateRequest()
    launch_request = dataflow.LaunchFlexTemplateRequest.pb(request)
    json_format.ParseDict(arguments["body"], launch_request)  # rejects what it does not know
    launch = request.launch_parameter
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", launch.job_name)
    assert launch.container_spec_gcs_path == "gs://b/t.json"
    assert (launch.environment.max_workers, launch.environment.temp_location) == (5, "gs://b/t")
    assert launch.parameters.keys() <= PARAMETERS.keys()
    command, *arguments = modules[0].translate(
        [f"--{name}={value}" for name, value in launch.parameters.items()]
    )
    wanted = [
        "--input=gs://b/in",
        "--output=gs://b/out",
        *found.build_flags(*found.datasets)[: -len(runner)],
    ]
    assert command == "images"
    assert parse_build("images", arguments)[0] == parse_build("images", wanted)[0]


def test_a_template_without_the_provider_is_a_wrong_setting(monkeypatch):
    monkeypatch.setitem(sys.modules, "airflow.providers.google.cloud.operators.dataflow", None)
    dataset = Dataset("a", "images", "/in", "/out", dt.date(2026, 1, 1), template="gs://b/t.json")
    with pytest.raises(
        SettingsError, match=r"\[datasets.a\] has a template.*install apache-airflow"
    ):
        find_operator(dataset)


# Another dataset, and its training.
OTHER = """
[datasets.other]
command = "rows"
input = "/in"
output = "/out/other"
start = 2026-11-01
[training.other]
command = ["x"]
steps = []
"""


def written(path: Path, old: str, new: str, more: str = "") -> str:
    assert old in GOOD
    path.write_text(GOOD.replace(old, new) + more)
    return str(path)


def test_a_process_reads_the_settings_once(tmp_path):
    path = tmp_path / "s.toml"
    assert load_settings(written(path, "a", "a")) is load_settings(str(path))


def test_parses_settings():
    found = parse_settings(tomllib.loads(GOOD + 'timeout = "90m"\nrunner = "local"'))
    (dataset,) = found.datasets
    assert (dataset.dag_id, dataset.output) == ("shardmill_a", "/out/{{ day() }}")
    assert (dataset.timeout, found.timeout, found.retry_delay) == (5400, 21600, 300)
    assert found.runner_flags(dataset) == []


def test_settings_of_all_dags():
    body = GOOD + OTHER + '[dag]\nschedule = "0 2 * * *"\nowner = "ml"\non_failure = "os:getpid"'
    found = parse_settings(tomllib.loads(body))
    assert [each.schedule for each in found.datasets] == ["0 2 * * *"] * 2
    assert found.dag.task_arguments() == {"owner": "ml", "on_failure_callback": os.getpid}
    manual = body.replace('"/out/other"', '"/out/other"\nschedule = ""')
    by_hand = parse_settings(tomllib.loads(manual)).datasets
    assert [each.schedule for each in by_hand] == ["0 2 * * *", ""]
    assert parse_settings(tomllib.loads(GOOD)).dag.task_arguments() == {}


@pytest.mark.parametrize("mode", ["--update", "--overwrite"])
@pytest.mark.parametrize("place", ["flags", "runners"])
def test_builds_update_a_dataset_unless_the_settings_overwrite_it(mode, place):
    (dataset,) = (found := parse_settings(tomllib.loads(GOOD + 'flags = ["--seed=1"]'))).datasets
    assert found.build_flags(dataset) == ["--update", "--seed=1"]
    if place == "flags":
        dataset = dataclasses.replace(dataset, flags=[mode, "--seed=1"])
    else:
        found = dataclasses.replace(found, runners={"local": [mode]})
    flags = found.build_flags(dataset)
    assert sorted(flags) == sorted([mode, "--seed=1"])
    places = [f"--input={dataset.input}", f"--output={dataset.output}", "--image_size=8"]
    config, *_ = parse_build("images", [*places, *flags])
    assert (config.update, config.overwrite) == (mode == "--update", mode == "--overwrite")


def test_docs_explain_every_setting_and_have_valid_examples():
    text = (ROOT / "docs" / "airflow.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    blocks = [block for block in blocks if not block.startswith("[env]")]
    first, second, third = (parse_settings(tomllib.loads(block)) for block in blocks)
    assert launch_arguments(third, *third.datasets)["location"] == "europe-west6"
    assert [each.dag_id for each in (*first.datasets, *first.training)] == [
        "shardmill_flowers",
        "shardmill_flowers_training",
    ]
    assert second.runners == load_settings(str(DAGS / "shardmill.toml")).runners
    for kind in (Settings, DagSettings, Dataset, Training):
        for each in dataclasses.fields(kind):
            assert (
                f"`{each.name}`" in text
                or f"`[{each.name}" in text
                or each.name in ("name", "problems")
            ), each
    fields = {each.name: each for each in dataclasses.fields(Settings)}
    training = {each.name: each.default for each in dataclasses.fields(Training)}
    assert (training["timeout"], training["retries"], training["retry_delay"]) == (0, 0, 300)
    for name, shown in (("retries", "`3`"), ("max_active_runs", "`1`"), ("pool", "`default_pool`")):
        assert str(fields[name].default) == shown.strip("`")
        assert shown in next(line for line in text.splitlines() if f"`{name}`" in line)
    assert (fields["retry_delay"].default, fields["timeout"].default) == (5 * 60, 6 * 3600)
    assert all(shown in text for shown in ('`"5m"`', '`"6h"`', '`"1m"`'))


@pytest.mark.parametrize("runner", ["local", "flink", "dataflow"])
def test_flags_of_each_runner_are_valid(runner, monkeypatch):
    monkeypatch.delenv("SHARDMILL_SETTINGS", raising=False)
    found = load_settings()
    assert set(found.runners) == {"local", "flink", "dataflow"}
    (dataset,) = found.datasets
    dataset = dataclasses.replace(dataset, runner=runner)
    argv = [f"--input={dataset.input}", f"--output={dataset.output}"]
    config, rest, *_ = parse_build("images", [*argv, *found.build_flags(dataset)])
    assert config.image_size
    assert config.update
    name, options = take_runner(rest)
    assert (
        name == {"local": "in-memory", "flink": "FlinkRunner", "dataflow": "DataflowRunner"}[runner]
    )
    if runner == "dataflow":  # this far it needs no network
        assert "--region=europe-west6" in find_runner(name).prepare(options, "a-job")
    flags = [
        flag.replace("{{ day_end() }}", end_of("2026-11-20", ZURICH)) for flag in dataset.check
    ]
    asked, _ = find_parser("check").parse([*flags, "--", dataset.output])
    assert asked.min_examples == "train:1000,validation:100"


def test_commands_are_the_input_kinds():
    assert list(INPUT_KINDS) == COMMANDS, "run `make metadata`"
