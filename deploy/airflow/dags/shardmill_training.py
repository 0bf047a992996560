"""A DAG for each training of the settings, triggered by the asset of its dataset."""

from __future__ import annotations

import datetime as dt

from airflow.sdk import DAG, Asset, Param

from shardmill_airflow.assets import asset_names
from shardmill_airflow.operators import CommandOperator
from shardmill_airflow.settings import Settings, Training, load_settings
from shardmill_airflow.templates import MACROS

_DOC = """\
Runs when the asset of its dataset is updated: computes the steps per epoch, and trains. A run that
you trigger yourself names the dataset.
"""


def training_dag(settings: Settings, training: Training) -> DAG:
    """Return the DAG of a training."""
    with DAG(
        training.dag_id,
        description=f"{training.name}: steps → train",
        doc_md=_DOC,
        schedule=[Asset(*asset_names(settings, training.name))],
        catchup=False,
        max_active_runs=settings.max_active_runs,
        params={"dataset": Param(None, type=["null", "string"])},
        user_defined_macros=MACROS,
        default_args={
            **settings.dag.task_arguments(),
            "grace": settings.grace,
            "execution_timeout": dt.timedelta(seconds=settings.timeout),
            "retries": settings.retries,
            "retry_delay": dt.timedelta(seconds=settings.retry_delay),
        },
        tags=["shardmill", *settings.dag.tags],
    ) as dag:
        steps = CommandOperator(
            task_id="steps",
            argv=[settings.shardmill, "steps", *training.steps, "--", "{{ dataset() }}"],
        )
        train = CommandOperator(
            task_id="train",
            argv=training.command,
            do_xcom_push=False,
            pool=training.pool,
            execution_timeout=dt.timedelta(seconds=training.timeout) if training.timeout else None,
            retries=training.retries,
            retry_delay=dt.timedelta(seconds=training.retry_delay),
        )
        steps >> train
    return dag


SETTINGS = load_settings()
for one in SETTINGS.training:
    globals()[one.dag_id] = training_dag(SETTINGS, one)
