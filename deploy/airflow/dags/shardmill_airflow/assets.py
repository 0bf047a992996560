"""What the asset of a dataset is called, and what its events say."""

from __future__ import annotations

import json
from typing import Any

from shardmill_airflow.settings import Dataset, Settings


def asset_names(settings: Settings, name: str) -> tuple[str, ...]:
    """Return the name of a dataset's asset and its URI: the folder of the datasets of all days.

    There is no URI if the folder is part of a template, or is that of several datasets: Airflow
    allows no two assets with one URI. The DAG of a training names both, too: Airflow 3.3 gives a
    run that an ``Asset.ref`` triggered no events.

    Args:
        settings: The settings.
        name: Name of the dataset, whose table may be wrong and left out.
    """
    asset = f"shardmill_{name}"
    folders = {each.name: _folder(each) for each in settings.datasets}
    found = folders.get(name, "")
    shared = [*folders.values()].count(found) > 1
    return (asset,) if shared or not found else (asset, found)


def _folder(dataset: Dataset) -> str:
    fixed, template, _ = dataset.output.partition("{")
    folder = fixed.rpartition("/")[0] if template else fixed
    return f"file://{folder}" if folder.startswith("/") else folder


def asset_facts(line: str) -> dict[str, Any]:
    """Return what an event says about a dataset: from the object that ``check --json`` prints."""
    found = json.loads(line)
    return {name: found[name] for name in ("examples", "manifest", "config_id")}
