"""Write the metadata of the flex template from the flags of the commands.

    python deploy/dataflow/template.py                        writes metadata.json in this folder
    python deploy/dataflow/template.py LAUNCHER IMAGE FILE    writes a template's specification

``LAUNCHER`` and ``IMAGE`` are the names of the images of the launcher and the workers.

``metadata.json`` describes the parameters to Google's console and API. A template is a
specification in a bucket: the name of an image and the metadata.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch import COMMANDS

from shardmill.pipelines.commands import INPUT_KINDS, find_parser
from shardmill.schemas.option_types import Option

METADATA = Path(__file__).with_name("metadata.json")
LEFT_OUT = {
    "help",
    "json",
    "quiet",
    "dry_run",
    "beam_options",
}  # a launcher that stages no job fails
REQUIRED = {"input"}  # by every command
KINDS = {
    "output": "GCS_WRITE_FOLDER",
    "manifest": "GCS_WRITE_FILE",
    "schema": "GCS_READ_FILE",
    "config": "GCS_READ_FILE",
}
PLACE = r"^gs://[a-z0-9][a-z0-9._-]*[a-z0-9](/.*)?$"
WORDS = {"log_format": ("text", "json")}  # of flags that every command has
PATHS = {"input", "output", "manifest", "root", "schema", "config"}  # in buckets


def metadata() -> dict[str, Any]:
    """Return the metadata of the template."""
    return {
        "name": "Shardmill",
        "description": "Builds GZIP TFRecord datasets with exact record counts from "
        f"{_input_kinds()}, and counts TFRecord files.",
        "streaming": False,
        "parameters": [_command(), *_parameters()],
    }


def specification(launcher: str, image: str) -> dict[str, Any]:
    """Return the template of the images of the launcher and the workers."""
    return {
        "image": launcher,
        "metadata": metadata(),
        "sdkInfo": {"language": "PYTHON"},
        "defaultEnvironment": {"sdkContainerImage": image},
    }


def _command() -> dict[str, Any]:
    return {
        "name": "command",
        "label": "Command",
        "helpText": f"Build a dataset from {_input_kinds()}, or count TFRecord files.",
        "paramType": "ENUM",
        "enumOptions": [{"value": name, "label": name} for name in COMMANDS],
        "regexes": [f"^({'|'.join(COMMANDS)})$"],
    }


def _input_kinds() -> str:
    *others, last = INPUT_KINDS
    return f"{', '.join(others)} or {last}"


def _parameters() -> Iterator[dict[str, Any]]:
    """Yield each flag once, in the order of the commands' help."""
    flags: dict[str, dict[str, tuple[str, str]]] = {}
    options: dict[str, list[Option[Any, Any]]] = {}
    for command in COMMANDS:
        parser = find_parser(command)
        for group in parser._action_groups:  # noqa: SLF001 - argparse has no other way
            for action in group._group_actions:  # noqa: SLF001
                if action.dest not in LEFT_OUT:
                    texts = group.title or "", action.help or ""
                    flags.setdefault(action.dest, {})[command] = texts
                    if action.dest in parser.options:
                        options.setdefault(action.dest, []).append(parser.options[action.dest])
    for name, found in flags.items():
        yield _parameter(name, found, options.get(name, []))


def _parameter(
    name: str, found: dict[str, tuple[str, str]], options: list[Option[Any, Any]]
) -> dict[str, Any]:
    group, _ = next(iter(found.values()))
    parameter: dict[str, Any] = {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "helpText": _help({command: text for command, (_, text) in found.items()}),
        "isOptional": name not in REQUIRED,
        **_kind(name, options),
    }
    if list(found) == list(COMMANDS):
        return {**parameter, "groupName": group}
    return {**parameter, "parentName": "command", "parentTriggerValues": list(found)}


def _help(texts: dict[str, str]) -> str:
    """Return the help of a flag, which may differ between commands."""
    commands: dict[str, list[str]] = {}
    for command, text in texts.items():
        commands.setdefault(text.replace("%%", "%"), []).append(command)
    if len(commands) == 1:
        (joined,) = commands
    else:
        joined = "; ".join(f"{', '.join(names)}: {text}" for text, names in commands.items())
    return f"{joined[:1].upper()}{joined[1:]}."


def _kind(name: str, options: list[Option[Any, Any]]) -> dict[str, Any]:
    """Return the type of a parameter; commands may have different options of one name."""
    if name in PATHS:
        return {"paramType": KINDS.get(name, "TEXT"), "regexes": [PLACE]}
    if name in WORDS:
        listed = [{"value": word, "label": word} for word in WORDS[name]]
        regexes = [f"^({'|'.join(WORDS[name])})$"]
        return {"paramType": "ENUM", "enumOptions": listed, "regexes": regexes}
    if not options or options[0].kind == "switch":  # --debug is one too
        return {"paramType": "BOOLEAN", "regexes": ["^(true|false)$"]}
    option = options[0]
    if not option.pattern or any(each.pattern != option.pattern for each in options):
        return {"paramType": "TEXT"}
    regexes = [f"^({option.pattern})$"]
    if option.choices:
        listed = [{"value": word, "label": word} for word in sorted(option.choices)]
        return {"paramType": "ENUM", "enumOptions": listed, "regexes": regexes}
    kind = "NUMBER" if option.kind == "number" else "TEXT"
    return {"paramType": kind, "regexes": regexes}


def _main(arguments: list[str]) -> None:
    content, path = (
        (specification(*arguments[:2]), Path(arguments[2])) if arguments else (metadata(), METADATA)
    )
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _main(sys.argv[1:])
