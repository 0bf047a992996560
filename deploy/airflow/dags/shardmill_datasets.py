"""A DAG for each dataset of the settings: build, count, verify, check, and mark its asset.

Airflow parses this file without Shardmill or Beam installed.
"""

from __future__ import annotations

import contextlib
import datetime as dt

import pendulum
from airflow.sdk import DAG, Asset, BaseOperator, Param

from shardmill_airflow.assets import asset_names
from shardmill_airflow.flex_template import (
    check_template,
    find_operator,
    launch_arguments,
)
from shardmill_airflow.operators import CommandOperator
from shardmill_airflow.schedules import timetable
from shardmill_airflow.settings import Dataset, Settings, SettingsError, load_settings
from shardmill_airflow.templates import MACROS

_DOC = """\
Builds the dataset of a day, or a new version if its inputs or options changed, counts and verifies
it, and checks that it is fresh and large enough; then updates the asset that triggers training. A
run that you trigger yourself may name the day.
"""


def dataset_dag(settings: Settings, dataset: Dataset) -> DAG:
    """Return the DAG of a dataset."""
    # Before the DAG begins: Airflow keeps one whose tasks raise an error.
    check_template(settings, dataset)
    counted = f"{dataset.output}.counted.json"
    with DAG(
        dataset.dag_id,
        description=f"{dataset.name}: {dataset.command} → count → verify → check",
        doc_md=_DOC,
        schedule=timetable(settings, dataset),
        start_date=pendulum.datetime(*dataset.start.timetuple()[:3], tz=settings.timezone),
        catchup=False,
        max_active_runs=settings.max_active_runs,
        params={"day": Param(None, type=["null", "string"], format="date")},
        user_defined_macros=MACROS,
        default_args=default_args(settings, dataset),
        tags=["shardmill", *settings.dag.tags],
    ) as dag:
        build = build_task(settings, dataset)
        count = CommandOperator(
            task_id="count",
            argv=[
                settings.shardmill,
                "count",
                f"--input={dataset.output}",
                f"--manifest={counted}",
                *dataset.count,
                *settings.runner_flags(dataset),
            ],
        )
        # After "--" nothing is parsed as a flag.
        verify = CommandOperator(
            task_id="verify",
            argv=[
                settings.shardmill,
                "verify",
                *settings.runner_flags(dataset),
                "--",
                dataset.output,
            ],
        )
        check = CommandOperator(
            task_id="check",
            argv=[
                settings.shardmill,
                "check",
                "--json",
                f"--counted={counted}",
                *dataset.check,
                "--",
                dataset.output,
            ],
            outlets=[Asset(*asset_names(settings, dataset.name))],
            extra={"dataset": dataset.output, "day": "{{ day() }}"},
        )
        build >> count >> verify >> check
    return dag


def build_task(settings: Settings, dataset: Dataset) -> BaseOperator:
    """Return the task that builds: a command, or the job of a template on Dataflow."""
    if dataset.template:
        start_template = find_operator(dataset)
        return start_template(task_id=dataset.command, **launch_arguments(settings, dataset))
    return CommandOperator(
        task_id=dataset.command,
        argv=[
            settings.shardmill,
            dataset.command,
            f"--input={dataset.input}",
            f"--output={dataset.output}",
            *settings.build_flags(dataset),
        ],
    )


def default_args(settings: Settings, dataset: Dataset) -> dict[str, object]:
    """Return the arguments that all tasks of a dataset share."""
    return {
        **settings.dag.task_arguments(),
        "grace": settings.grace,
        "pool": settings.pool,
        "execution_timeout": dt.timedelta(seconds=dataset.timeout or settings.timeout),
        "retries": settings.retries,
        "retry_delay": dt.timedelta(seconds=settings.retry_delay),
        "do_xcom_push": False,
    }


SETTINGS = load_settings()
for one in SETTINGS.datasets:
    with contextlib.suppress(SettingsError):  # shardmill_settings.py reports it
        globals()[one.dag_id] = dataset_dag(SETTINGS, one)
