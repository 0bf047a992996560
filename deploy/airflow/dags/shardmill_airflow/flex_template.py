"""A build as a job of a Dataflow flex template, during which the task holds no worker slot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardmill_airflow.settings import Dataset, Settings, SettingsError

# Flags of a runner, and what they are called in a request to launch a template.
_ENVIRONMENT = {
    "temp_location": "tempLocation",
    "staging_location": "stagingLocation",
    "num_workers": "numWorkers",
    "max_num_workers": "maxWorkers",
    "worker_machine_type": "machineType",
    "service_account_email": "serviceAccountEmail",
    "network": "network",
    "subnetwork": "subnetwork",
    "sdk_container_image": "sdkContainerImage",
}


def check_template(settings: Settings, dataset: Dataset) -> None:
    """Check that the template of a dataset, if it has one, can be started.

    Raises:
        SettingsError: See ``launch_arguments`` and ``find_operator``.
    """
    if dataset.template:
        launch_arguments(settings, dataset)
        find_operator(dataset)


def launch_arguments(settings: Settings, dataset: Dataset) -> dict[str, Any]:
    """Return the arguments of the operator: the request, and where the job runs.

    Raises:
        SettingsError: The runner is not Dataflow, or has a flag that a template cannot pass on.
    """
    where = f"[datasets.{dataset.name}] has a template"
    shared = settings.runner_flags(dataset)
    runner = _values(where, shared)
    name, project, region = (runner.pop(each, "") for each in ("runner", "project", "region"))
    if name != "DataflowRunner" or not project or not region:
        raise SettingsError(
            f"{where}: its runner needs --runner=DataflowRunner, --project and --region."
        )
    for name in runner.keys() - _ENVIRONMENT.keys():
        known = ", ".join(f"--{each}" for each in _ENVIRONMENT)
        raise SettingsError(f"{where}, which cannot pass on --{name} of its runner: use {known}.")
    own = [flag for flag in settings.build_flags(dataset) if flag not in shared]
    paths = {"command": dataset.command, "input": dataset.input, "output": dataset.output}
    launch = {
        "jobName": dataset.dag_id.lower().replace("_", "-"),
        "containerSpecGcsPath": dataset.template,
        "parameters": {**paths, **_values(where, own)},
        "environment": {_ENVIRONMENT[name]: value for name, value in runner.items()},
    }
    return {
        "body": {"launchParameter": launch},
        "location": region,
        "project_id": project,
        "deferrable": True,
    }


def find_operator(dataset: Dataset) -> type[Any]:
    """Return the operator that starts the template of a dataset.

    Raises:
        SettingsError: Google's provider is not installed.
    """
    try:
        from airflow.providers.google.cloud.operators.dataflow import (
            DataflowStartFlexTemplateOperator,
        )
    except ImportError:
        raise SettingsError(
            f"[datasets.{dataset.name}] has a template, which needs Google's provider: install "
            "apache-airflow-providers-google next to Airflow, or remove the template."
        ) from None
    operator: type[Any] = DataflowStartFlexTemplateOperator
    return operator


def _values(where: str, flags: Iterable[str]) -> dict[str, str]:
    """Return the values of flags by name; those of switches are ``true``."""
    found: dict[str, str] = {}
    for flag in flags:
        name, _, value = flag.removeprefix("--").partition("=")
        if name in found:
            raise SettingsError(f"{where}, which cannot pass on --{name} twice: remove one.")
        found[name] = value or "true"
    return found
