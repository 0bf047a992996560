"""Functions for templates in the settings: ``{{ day() }}`` and others."""

from __future__ import annotations

from typing import Any

import jinja2
from airflow.sdk.exceptions import AirflowFailException

from shardmill_airflow.dates import day_of, end_of


@jinja2.pass_context
def day(context: jinja2.runtime.Context) -> str:
    """Return the day that a run builds, in the schedule's time zone."""
    zone = context["dag"].timezone
    found = day_of(context["params"].get("day"), context.get("data_interval_start"), zone)
    if not found:
        raise AirflowFailException(
            "This run has no date: trigger it with the parameter day, as in 2026-11-20."
        )
    return found


@jinja2.pass_context
def day_end(context: jinja2.runtime.Context) -> str:
    """Return the end of that day."""
    return end_of(day(context), context["dag"].timezone)


@jinja2.pass_context
def dataset(context: jinja2.runtime.Context) -> str:
    """Return the dataset of a training run: the newest of its asset events."""
    found = context["params"].get("dataset") or _newest(context["triggering_asset_events"])
    if not found:
        raise AirflowFailException(
            "This run was not started by a dataset: trigger it with the parameter dataset."
        )
    if found.startswith("-"):
        raise AirflowFailException(f"The dataset {found!r} is not a folder: give its path or URI.")
    return str(found)


@jinja2.pass_context
def steps(context: jinja2.runtime.Context) -> str:
    """Return the steps per epoch that the task ``steps`` printed."""
    return str(context["ti"].xcom_pull(task_ids="steps"))


def _newest(events: Any) -> str:
    extras = [event.extra for of_asset in events.values() for event in of_asset]
    datasets = [extra for extra in extras if extra.get("dataset")]
    newest = max(datasets, key=lambda extra: str(extra.get("day", "")), default=None)
    return str(newest["dataset"]) if newest else ""


MACROS = {"day": day, "day_end": day_end, "dataset": dataset, "steps": steps}
