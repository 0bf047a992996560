"""Files that options name: texts, and the TOML of ``--config`` and ``--limits``."""

from __future__ import annotations

import datetime as dt
import os
import stat
import sys
from collections.abc import Collection, Mapping
from typing import Any

from shardmill.schemas.errors import UsageError
from shardmill.schemas.numbers import plural
from shardmill.schemas.option_types import propose
from shardmill.schemas.storage import open_storage
from shardmill.schemas.text_file import TextError, decode_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPTIONS = "options"
LIMITS = "limits"  # of the dataset: for a build, and for `shardmill check`
_TABLES = (OPTIONS, LIMITS)
_FEW_NAMES = 5
_MAX_OPTION_FILE = 256 << 20  # bytes; more is data that was named by mistake


def read_option_file(flag: str, path: str, remedy: str) -> str:
    """Return the text of a file that an option names.

    Args:
        flag: Name of the option.
        path: Path or URI of the file.
        remedy: What to give instead, for messages.

    Raises:
        UsageError: The file is missing, a folder, a device, too large, or not text.
    """
    storage = open_storage(path)
    entry = storage.stat(path)
    if entry is None:
        raise UsageError(f"--{flag}={path} does not exist: give {remedy}.")
    if entry.kind == "dir":
        raise UsageError(f"--{flag}={path} is a folder: give {remedy}.")
    if entry.kind == "other" and not stat.S_ISFIFO(os.stat(path).st_mode):  # a shell gives pipes
        raise UsageError(f"--{flag}={path} is a device or a socket: give {remedy}.")
    if entry.size > _MAX_OPTION_FILE:
        size = entry.size
        raise UsageError(f"--{flag}={path} has {plural(size, 'byte')}: give {remedy}.")
    try:
        return decode_text(storage.read(path))
    except TextError as error:
        raise UsageError(
            f"--{flag}={path} cannot be read as text: it is {error}, or give {remedy}."
        ) from error


def read_tables(flag: str, path: str) -> dict[str, Any]:
    """Read a TOML file that an option names.

    Args:
        flag: Name of the option.
        path: Path or URI of the file.

    Raises:
        UsageError: The file cannot be read, or is not TOML.
    """
    text = read_option_file(flag, path, "a TOML file")
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"--{flag}={path} is not TOML: {error}.") from error
    for table in tables.values():
        if not isinstance(table, dict):
            continue
        for name, value in table.items():
            if isinstance(value, dt.datetime):  # which --json cannot print
                table[name] = value.isoformat()
    return tables


def read_options(path: str) -> dict[str, Any]:
    """Read the options of a build from the table ``[options]`` of a TOML file.

    Hyphens in names become underscores, as in the flags of a command line. The table ``[limits]``
    is the option of this name.

    Raises:
        UsageError: The file cannot be read, has other tables, or has no table of options.
    """
    tables = read_tables("config", path)
    for name in tables:
        if name not in _TABLES:
            raise UsageError(
                f"{path} has the table or name {name} outside of [options]; {_hint(name, _TABLES)}"
            )
    options = tables.get(OPTIONS)
    if not isinstance(options, dict):
        raise UsageError(
            f"{path} has no table [options]: write this line above the options, such as "
            "`image_size = 224`."
        )
    values: dict[str, Any] = {}
    for given, value in options.items():
        name = given.replace("-", "_")
        if name in values:
            raise UsageError(
                f"{path}: [options] has {name} twice, with hyphens and with underscores: leave one."
            )
        values[name] = value
    if LIMITS in tables:
        if LIMITS in values:
            raise UsageError(f"{path} has limits in [options] and in [limits]: leave one.")
        values[LIMITS] = tables[LIMITS]
    return values


def read_limits(flag: str, path: str) -> dict[str, Any]:
    """Read limits from the table ``[limits]`` of a TOML file, or from a file without tables.

    Args:
        flag: Name of the option.
        path: Path or URI of the file.

    Raises:
        UsageError: The file cannot be read.
    """
    tables = read_tables(flag, path)
    if LIMITS not in tables and OPTIONS not in tables:
        return tables
    limits: dict[str, Any] = tables.get(LIMITS, {})
    return limits


def divide_options(
    path: str, options: Mapping[str, Any], names: Collection[str], beam_flags: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide the options of a file into those of the command and those of Apache Beam.

    Args:
        path: Path of the file, for messages.
        options: Values by name.
        names: Names of the command's options.
        beam_flags: Flags of Apache Beam, such as ``--runner``.

    Raises:
        UsageError: Neither has an option of a name.
    """
    ours = {name: value for name, value in options.items() if name in names}
    others = {name: value for name, value in options.items() if name not in names}
    for name in others:
        if f"--{name}" not in beam_flags:
            beam_names = (flag.removeprefix("--") for flag in beam_flags)
            hint = _hint(name, [*names, *beam_names])
            raise UsageError(f"{path}: [options] has the unknown name {name}; {hint}")
    return ours, others


def _hint(name: str, names: Collection[str]) -> str:
    are_few = len(names) < _FEW_NAMES
    otherwise = f"use {' or '.join(names)}." if are_few else "see --help for the names."
    return propose(name, names, otherwise)
