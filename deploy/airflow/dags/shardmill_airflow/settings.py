"""The one settings file: where Shardmill is, where it runs, and what it builds."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import re
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import tomllib

VARIABLE = "SHARDMILL_SETTINGS"
COMMANDS = ("images", "rows", "arrays")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_OWN = ("--input", "--output", "--runner")
_KINDS: dict[type, str] = {
    str: "a text", int: "a whole number", list: "a list of texts", dict: "a table",
    dt.date: "a date, as in 2026-11-01",
}  # fmt: skip
_T = TypeVar("_T")


class SettingsError(Exception):
    """The settings break a rule; the message is one sentence with the remedy."""


@dataclass(frozen=True)
class Dataset:
    """A dataset that is built day by day.

    Attributes:
        name: Of the table.
        command: images, rows or arrays.
        input: A template.
        output: A template.
        flags: Of the command.
        check: Of ``shardmill check``.
        count: Of ``shardmill count``.
        schedule: When, as cron has it; empty for runs that people start.
        start: The first day.
        runner: A name of ``[runners]``; empty for the one of all.
        timeout: Seconds that each of its tasks may take; 0 for those of all.
    """

    name: str
    command: str
    input: str
    output: str
    start: dt.date
    flags: list[str] = field(default_factory=list)
    check: list[str] = field(default_factory=list)
    count: list[str] = field(default_factory=list)
    schedule: str = ""
    runner: str = ""
    timeout: float = 0

    @property
    def dag_id(self) -> str:
        """Of its DAG, and the name of its asset."""
        return f"shardmill_{self.name}"


@dataclass(frozen=True)
class Training:
    """What is done with a dataset as soon as it is there.

    Attributes:
        name: Of the table, and of the dataset.
        command: The program and its arguments; templates.
        steps: Flags of ``shardmill steps``.
    """

    name: str
    command: list[str]
    steps: list[str]

    @property
    def dag_id(self) -> str:
        """Of its DAG."""
        return f"shardmill_{self.name}_training"


@dataclass(frozen=True)
class Settings:
    """All of a settings file; durations in seconds. docs/airflow.md explains each."""

    shardmill: str
    runner: str = "local"
    runners: dict[str, list[str]] = field(default_factory=lambda: {"local": []})
    env: dict[str, str] = field(default_factory=dict)
    timezone: str = "UTC"
    retries: int = 3
    retry_delay: float = 300
    timeout: float = 21600
    grace: float = 60
    pool: str = "default_pool"
    max_active_runs: int = 1
    datasets: tuple[Dataset, ...] = ()
    training: tuple[Training, ...] = ()

    def runner_flags(self, dataset: Dataset) -> list[str]:
        """Returns the flags of the runner that a dataset is built on."""
        return self.runners[dataset.runner or self.runner]


def load_settings(path: str = "") -> Settings:
    """Returns the settings in a file, in $SHARDMILL_SETTINGS, or in shardmill.toml of the DAGs.

    Raises:
        SettingsError: There are none, or they break a rule.
    """
    path = path or os.environ.get(VARIABLE) or str(Path(__file__).parent.parent / "shardmill.toml")
    try:
        with open(path, "rb") as file:
            body = tomllib.load(file)
    except OSError as error:
        raise SettingsError(
            f"The settings {path} cannot be read ({error.strerror}): write them, or set {VARIABLE} "
            "to where they are."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The settings {path} are no TOML: {error}.") from None
    try:
        return parse_settings(body)
    except SettingsError as error:
        raise SettingsError(f"The settings {path}: {error}") from None


def parse_settings(body: Mapping[str, Any]) -> Settings:
    """Returns the settings that a table holds; see ``load_settings``."""
    values = dict(body)
    for name in ("retry_delay", "timeout", "grace"):
        if name in values:
            values[name] = _seconds(name, values[name])
    tables = {name: values.pop(name, {}) for name in ("datasets", "training")}
    found = _made(Settings, values, "the file")
    datasets = tuple(_dataset(name, table) for name, table in _tables("datasets", tables).items())
    training = tuple(_training(name, table) for name, table in _tables("training", tables).items())
    found = dataclasses.replace(found, datasets=datasets, training=training)
    _check(found)
    return found


def _tables(name: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    found = tables[name]
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise SettingsError(f"{name} must be tables, as in [{name}.flowers].")
    for key in found:
        if not _NAME.fullmatch(key):
            raise SettingsError(
                f"the name {key!r} in [{name}] must be letters, digits, _ and - only."
            )
    return found


def _dataset(name: str, table: Mapping[str, Any]) -> Dataset:
    where = f"[datasets.{name}]"
    values = {**table, "name": name}
    if "timeout" in table:
        values["timeout"] = _seconds("timeout", table["timeout"])
    found = _made(Dataset, values, where)
    if found.command not in COMMANDS:
        raise SettingsError(
            f"{where} has the command {found.command!r}: use one of {', '.join(COMMANDS)}."
        )
    for key in ("input", "output"):
        value = getattr(found, key)
        if not value.startswith(("/", "{")) and "://" not in value:
            raise SettingsError(
                f"{where} has the {key} {value!r}, which depends on the folder of a task: begin it "
                "with / or with a scheme such as gs://."
            )
    for key in ("flags", "check", "count"):
        _check_flags(f"{key} of {where}", getattr(found, key))
    return dataclasses.replace(found, output=found.output.rstrip("/"))


def _training(name: str, table: Mapping[str, Any]) -> Training:
    found = _made(Training, {**table, "name": name}, f"[training.{name}]")
    _check_flags(f"steps of [training.{name}]", found.steps)
    if not found.command:
        raise SettingsError(f"[training.{name}] has an empty command: name a program.")
    return found


def _check(found: Settings) -> None:
    if not found.shardmill.startswith("/"):
        raise SettingsError(
            f"shardmill = {found.shardmill!r} is no absolute path: give that of the command in the "
            "environment where Shardmill is installed."
        )
    try:
        zoneinfo.ZoneInfo(found.timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        raise SettingsError(
            f"timezone = {found.timezone!r} is no time zone: write it as in Europe/Zurich."
        ) from None
    if not all(isinstance(value, str) for value in found.env.values()):
        raise SettingsError("each value of [env] must be a text.")
    for key, least in (("retries", 0), ("max_active_runs", 1)):
        if getattr(found, key) < least:
            raise SettingsError(f"{key} = {getattr(found, key)} must be {least} or more.")
    _check_names(found)


def _check_names(found: Settings) -> None:
    for name, flags in found.runners.items():
        if not _is_texts(flags):
            raise SettingsError(f"{name} of [runners] must be a list of texts.")
        _check_flags(f"{name} of [runners]", flags, own=_OWN[:2])
    for runner in (found.runner, *(dataset.runner for dataset in found.datasets)):
        if runner and runner not in found.runners:
            known = ", ".join(found.runners)
            raise SettingsError(f"the runner {runner!r} is not in [runners]: use one of {known}.")
    known_names = [dataset.name for dataset in found.datasets]
    for training in found.training:
        if training.name not in known_names:
            raise SettingsError(
                f"[training.{training.name}] waits for a dataset that nobody builds: name it like "
                f"one of {', '.join(known_names) or 'the datasets, of which there is none'}."
            )


def _check_flags(where: str, flags: list[str], own: tuple[str, ...] = _OWN) -> None:
    for flag in flags:
        if not re.match(r"--[a-z]", flag):
            raise SettingsError(
                f"{where} has {flag!r}: write each flag with its value as one text, as in "
                "--image_size=224."
            )
        if flag.partition("=")[0] in own:
            raise SettingsError(f"{where} has {flag!r}, which the DAG itself gives: leave it out.")


def _made(kind: type[_T], table: Mapping[str, Any], where: str) -> _T:
    """Returns a dataclass of a table's values, each of the field's type."""
    fields = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given = {"name", "datasets"} if kind is not Settings else {"datasets", "training"}
    for key, value in table.items():
        if key not in fields:
            known = ", ".join(sorted(fields.keys() - given))
            raise SettingsError(f"{where} has the unknown key {key!r}: use one of {known}.")
        _check_kind(where, key, str(fields[key].type), value)
    for key, each in fields.items():
        missing = each.default is dataclasses.MISSING is each.default_factory
        if missing and key not in table:
            raise SettingsError(f"{where} has no {key}: add it.")
    return kind(**table)


def _check_kind(where: str, key: str, wanted: str, value: Any) -> None:
    kinds: dict[str, type] = {"str": str, "int": int, "list": list, "dict": dict, "dt": dt.date}
    kind = next((kind for name, kind in kinds.items() if wanted.startswith(name)), None)
    if kind is None:
        return
    right = type(value) is kind and (kind is not list or _is_texts(value))
    if not right:
        raise SettingsError(f"{key} = {value!r} in {where} must be {_KINDS[kind]}.")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _seconds(name: str, text: Any) -> float:
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text) if isinstance(text, str) else None
    if match is None:
        raise SettingsError(f"{name} = {text!r} is no time: write it as in 90s, 15m, 6h, 2d.")
    return float(int(match[1]) * _UNITS[match[2]])
