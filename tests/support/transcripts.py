"""Run transcripts: text files of commands, and of what they print, their exit codes and files.

A transcript has lines of these kinds; those of output are written by the runner:

    # a comment
    $ shardmill images in ds --quality=0
    >>> write("people.csv", "name,age\\nAnn,30\\n")     Python; ``... `` continues it
    | a line of stdout, or the value of Python
    ! a line of stderr, or the class and the text of an exception
    = 2                 the exit code if it is not 0
    + ds                a file or folder of the top folder is new; ``~`` changed, ``-`` is gone

All lines of a transcript run in one process and one folder, which is empty at first.
"""

import contextlib
import io
import json
import logging
import os
import re
import shlex
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shardmill
from shardmill.pipelines import cli
from tests.conftest import make_archives, make_image, make_photos
from tests.fixtures.stored_datasets import MTIME
from tests.support.fault_tools import Ended
from tests.support.golden import stable, to_text
from tests.support.publications import numbered_body

# What depends on the machine and on PyArrow: times of inputs are in both.
_CHANGING = (
    (re.compile(r"0x[0-9a-f]{8,}"), "ADDRESS"),
    (re.compile(r"((?:built|counted) )\d{4}-\d\d-\d\d \d\d:\d\d"), r"\1TIME"),
    (re.compile(r"^  [\d,.]+ s, .*/s$", re.MULTILINE), "  SECONDS"),
    (re.compile(r'("input_id": ")\w+'), r"\1CHANGING"),
    (
        re.compile(r'("file": "[^"]*catalog/[^"]*",\s+"bytes": )\d+(,\s+"crc32c": ")\w+'),
        r'\1"CHANGING"\2CHANGING',
    ),
)
OUTPUT = ("| ", "! ", "= ", "+ ", "~ ", "- ")


def write(path: str, content: str | bytes = "") -> None:
    """Write a file, and the folders above it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)


def photos(folder: str = "in", size: int = 20, **classes: int) -> None:
    """Write photos in class folders."""
    make_photos(Path(folder), classes or {"cat": 4, "dog": 4}, size=(size, size))


def edit(path: str, change: Callable[[Any], Any]) -> None:
    """Change the value of a JSON file: in place, or to what the function returns."""
    value = json.loads(Path(path).read_text())
    changed = change(value)
    Path(path).write_text(json.dumps(value if changed is None else changed))


def manifest(folder: str, splits: dict[str, list[int]], **build: object) -> None:
    """Write the manifest of a dataset whose shards have these numbers of records."""
    write(f"{folder}/manifest.json", json.dumps(numbered_body(splits, **build)))


def names() -> dict[str, Any]:
    """Return the names of Python lines."""
    return {
        "Path": Path,
        "edit": edit,
        "json": json,
        "make_archives": make_archives,
        "manifest": manifest,
        "make_image": make_image,
        "np": np,
        "os": os,
        "photos": photos,
        "shardmill": shardmill,
        "struct": struct,
        "write": write,
    }


def run_transcript(text: str, folder: Path, **more: Any) -> str:
    """Run the lines of a transcript; return it with the output of this code.

    Args:
        text: The transcript.
        folder: An empty folder, which is the current one.
        more: Further names of Python lines.
    """
    namespace = names() | more
    lines: list[str] = []
    steps = [line for line in text.splitlines() if not f"{line} ".startswith(OUTPUT)]
    for number, line in enumerate(steps):
        lines.append(line)
        following = steps[number + 1 : number + 2]
        if following and following[0].startswith("... "):
            continue
        before = _entries(folder)
        is_code = line.startswith((">>> ", "... "))
        if is_code:
            output = _python(_whole(steps[: number + 1]), namespace, folder)
            _set_times(folder)
        elif line.startswith("$ "):
            output = _command(line, folder)
        else:
            continue
        lines += output
        if is_code and not any(text.startswith("! ") for text in output):
            continue  # it makes inputs
        after = _entries(folder)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                mark = "~" if name in before and name in after else "-+"[name in after]
                lines.append(f"{mark} {name}")
    return "\n".join(lines) + "\n"


def _whole(lines: list[str]) -> str:
    """Return the code of the last statement."""
    start = max(number for number, line in enumerate(lines) if line.startswith(">>> "))
    return "\n".join(line[4:] for line in lines[start:])


def _command(line: str, folder: Path) -> list[str]:
    words = shlex.split(line[2:])
    assert words[0] == "shardmill", line
    out, err = io.StringIO(), io.StringIO()
    level = logging.getLogger().level
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(words[1:])
        except SystemExit as end:  # of --help
            code = end.code or 0
        finally:
            logging.getLogger().setLevel(level)
    said = Ended(code, out.getvalue(), err.getvalue()).said
    lines = _marked("| ", _readable(out.getvalue()), folder) + _marked("! ", said, folder)
    return lines + ([f"= {code}"] if code else [])


def _readable(text: str) -> str:
    """Return stdout, in several lines if it is a JSON object in one."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return to_text(value) if isinstance(value, dict) else text


def _python(code: str, namespace: dict[str, Any], folder: Path) -> list[str]:
    try:
        compiled = compile(code, "<transcript>", "eval")
    except SyntaxError:  # an assignment or an import
        compiled = compile(code, "<transcript>", "exec")
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = eval(compiled, namespace)
    except (ImportError, NameError):  # a fault of the transcript, which must not be recorded
        raise
    except Exception as error:  # noqa: BLE001
        return _marked("! ", f"{type(error).__name__}: {error}", folder)
    printed = out.getvalue() + ("" if value is None else f"{value!r}\n")
    return _marked("| ", printed, folder)


def _marked(mark: str, text: str, folder: Path) -> list[str]:
    text = stable(text, folder)
    for pattern, replacement in _CHANGING:
        text = pattern.sub(replacement, text)
    return [f"{mark}{line}".rstrip() for line in text.splitlines()]


def _entries(folder: Path) -> dict[str, set[tuple[str, int, int]]]:
    """Return the files below each entry of a folder, with sizes and times."""
    entries: dict[str, set[tuple[str, int, int]]] = {path.name: set() for path in folder.iterdir()}
    for path in folder.rglob("*"):
        status = path.lstat()
        name = path.relative_to(folder)
        entries[name.parts[0]].add((str(name), status.st_size, status.st_mtime_ns))
    return entries


def _set_times(folder: Path) -> None:
    """Give inputs a fixed time: it is a part of their identity."""
    for path in folder.iterdir():
        if not (path / "manifest.json").exists():
            inputs = [path, *path.rglob("*")]
            for each in inputs:
                if each.exists() and not each.is_symlink():
                    os.utime(each, (MTIME, MTIME))
