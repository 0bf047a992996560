"""Computes the day that a run builds."""

from __future__ import annotations

import datetime as dt


def day_of(chosen: str | None, start: dt.datetime | None, zone: dt.tzinfo) -> str:
    """Return the day that a run builds, as in ``2026-11-20``, or an empty text for none.

    Args:
        chosen: The parameter ``day`` of a run that was triggered by hand.
        start: Start of the run's data interval; Airflow 3 has runs without one.
        zone: The schedule's time zone: ``ds`` is in UTC, where a day that begins at midnight in
            Zurich is still the day before.
    """
    if chosen:
        return dt.date.fromisoformat(chosen).isoformat()
    return "" if start is None else start.astimezone(zone).date().isoformat()


def end_of(day: str, zone: dt.tzinfo) -> str:
    """Return the end of a day, as in ``2026-11-21T00:00:00+01:00``."""
    after = dt.date.fromisoformat(day) + dt.timedelta(days=1)
    return dt.datetime.combine(after, dt.time(), zone).isoformat()
