"""Compare texts with files of tests/golden, and write these again.

``SHARDMILL_RENEW=1 pytest tests/golden`` writes the files of the code that is there. The values
are those of published datasets and of what commands print, so a change of one is a decision.
"""

import contextlib
import datetime as dt
import difflib
import json
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

GOLDEN = ROOT / "tests" / "golden"
RENEW = bool(os.environ.get("SHARDMILL_RENEW"))
VERSIONS = GOLDEN / "versions.json"
# Packages whose code decides bytes of datasets.
CODECS = ("cykooz-resizer", "deflate", "pillow", "pillow-heif", "simplejpeg")
_MOST = 60  # lines of a difference

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)")
_DAY = dt.timedelta(days=1)
# What differs between two runs of the same code.
_CHANGING = (
    (re.compile(r"gen-\d{8}T\d{6}Z-[0-9a-f]{12}"), "GENERATION"),
    (re.compile(r'("seconds": )[\d.]+'), r'\1"SECONDS"'),
    (re.compile(r"^(  time +)[\d,.]+ s.*$", re.MULTILINE), r"\1SECONDS"),
    (re.compile(r'("(?:ctime_id|shardmill)": ")[^"]*'), r"\1CHANGING"),
)


def _hide_now(match: re.Match[str]) -> str:
    """Replace a time of this run, and no other."""
    with contextlib.suppress(ValueError):
        today = dt.datetime.now(dt.timezone.utc).date()
        if abs(dt.date.fromisoformat(match[1]) - today) <= _DAY:
            return "TIME"
    return match[0]


def stable(text: str, folder: Path) -> str:
    """Replace times, names of generations, and the folder of the test."""
    text = text.replace(str(folder), "DIR")
    text = re.sub(
        rf"{re.escape(str(folder.parent))}\b/?{folder.name[0]}*", "DIR", text
    )  # cut paths
    text = _TIME.sub(_hide_now, text)
    for pattern, replacement in _CHANGING:
        text = pattern.sub(replacement, text)
    return text


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide bytes."""
    versions = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in CODECS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "none"
    return versions


def golden_versions() -> dict[str, str]:
    """Return the versions that the golden values were made with."""
    versions: dict[str, str] = json.loads(VERSIONS.read_text())
    return versions


def check_golden(path: Path, text: str) -> None:
    """Compare a text with a golden file; write the file if ``SHARDMILL_RENEW`` is set."""
    if RENEW:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    name = str(path.relative_to(ROOT))
    expected = path.read_text() if path.exists() else ""
    if text == expected:
        return
    lines = difflib.unified_diff(
        expected.splitlines(), text.splitlines(), name, "this code", lineterm="", n=1
    )
    made_with, installed = golden_versions(), installed_versions()
    others = {name: installed[name] for name in made_with if installed[name] != made_with[name]}
    raise AssertionError(
        f"{name} is not what this code gives. If that is intended, say in CHANGELOG.md what changes "
        "for users (identities and bytes of datasets, JSON, messages), and run "
        f"SHARDMILL_RENEW=1 pytest tests/golden. It was made with {made_with}; installed are "
        f"{others or 'the same versions'}.\n" + "\n".join([*lines][:_MOST])
    )


def to_text(value: Any) -> str:
    """Format JSON for reading."""
    return json.dumps(value, indent=1, ensure_ascii=False)
