"""Files of options for ``--config``: TOML whose table ``[options]`` has flags and their values."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Mapping
from typing import Any

from shardmill.schemas.errors import UsageError
from shardmill.schemas.storage import open_storage
from shardmill.schemas.text_file import decode_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPTIONS = "options"
LIMITS = "limits"  # of `shardmill check`, so that one file can hold both
_TABLES = (OPTIONS, LIMITS)


def read_tables(path: str, flag: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: Path or URI of the file.
        flag: The flag that named it, for messages.

    Raises:
        UsageError: The file does not exist, or is not TOML.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(decode_text(open_storage(path).read(path)))
    except FileNotFoundError as error:
        raise UsageError("toml-missing", flag=flag, path=path) from error
    except (IsADirectoryError, ValueError) as error:
        raise UsageError("toml-unreadable", flag=flag, path=path, error=error) from error
    return tables


def read_options(path: str) -> dict[str, Any]:
    """Read the options of a build from the table ``[options]`` of a TOML file.

    Hyphens in names become underscores, as in the flags of a command line.

    Raises:
        UsageError: The file cannot be read, has other tables, or has no table of options.
    """
    tables = read_tables(path, "config")
    for name in tables:
        if name not in _TABLES:
            raise UsageError(
                "config-table-unknown", path=path, name=name, hint=_hint(name, _TABLES)
            )
    options = tables.get(OPTIONS)
    if not isinstance(options, dict):
        raise UsageError("config-without-options", path=path)
    return {name.replace("-", "_"): value for name, value in options.items()}


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
            raise UsageError("config-option-unknown", path=path, name=name, hint=_hint(name, names))
    return ours, others


def _hint(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, names, 1, 0.6)
    return f"did you mean {near[0]}?" if near else f"use {', '.join(names)}."
