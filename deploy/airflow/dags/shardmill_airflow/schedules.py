"""The schedule of a dataset's DAG."""

from __future__ import annotations

from airflow.exceptions import AirflowTimetableInvalid
from airflow.timetables.interval import CronDataIntervalTimetable

from shardmill_airflow.settings import Dataset, Settings, SettingsError


def timetable(settings: Settings, dataset: Dataset) -> CronDataIntervalTimetable | None:
    """Return when the DAG of a dataset runs; None if it is triggered only.

    Each run has the interval that it builds, and starts at its end; in Airflow 3, runs of a plain
    cron expression have no interval.

    Raises:
        SettingsError: The schedule is not a cron expression. Raised before Airflow sees the DAG,
            since it would report the file, and schedule no other DAG of it.
    """
    if not dataset.schedule:
        return None
    found = CronDataIntervalTimetable(dataset.schedule, settings.timezone)
    try:
        found.validate()
    except AirflowTimetableInvalid:
        inherited = dataset.schedule == settings.dag.schedule
        table = "[dag]" if inherited else f"[datasets.{dataset.name}]"
        raise SettingsError(
            f"schedule = {dataset.schedule!r} in {table} is not a cron expression: write it as in "
            "'0 2 * * *'."
        ) from None
    return found
