"""Report wrong tables of the settings as the import error of this file; it has no DAGs.

Airflow schedules no DAG of a file with an import error, so the DAGs of the other tables are in
other files.
"""

from __future__ import annotations

from shardmill_airflow.flex_template import check_template
from shardmill_airflow.schedules import timetable
from shardmill_airflow.settings import SettingsError, load_settings

SETTINGS = load_settings()
PROBLEMS = [*SETTINGS.problems]
for one in SETTINGS.datasets:
    try:
        timetable(SETTINGS, one)
        check_template(SETTINGS, one)
    except SettingsError as error:
        PROBLEMS.append(str(error))
if PROBLEMS:
    raise SettingsError("\n".join(PROBLEMS))
