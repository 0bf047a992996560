"""Check code and docs against ``wording.txt``; print each match and exit 1 if there is one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SUFFIXES = {".py", ".md", ".toml", ".txt", ".sh", ".yaml", ".svg", ".json", ""}
EXEMPT = {"docs/_tools/wording.txt", "LICENSE", "constraints.txt"}


def read_rules(text: str) -> tuple[list[tuple[re.Pattern[str], str]], list[re.Pattern[str]]]:
    """Return the rules (pattern, advice) and the exceptions of a word list."""
    rules, exceptions = [], []
    for line in text.splitlines():
        if line.startswith("!"):
            exceptions.append(re.compile(line[1:], re.IGNORECASE))
        elif line and not line.startswith("#"):
            pattern, _, advice = line.partition("\t")
            # Words end at anything but a letter: also at the underscores of identifiers.
            bounded = rf"(?<![a-z])(?:{pattern})(?![a-z])"
            rules.append((re.compile(bounded, re.IGNORECASE), advice))
    return rules, exceptions


def find_matches(
    text: str, rules: list[tuple[re.Pattern[str], str]], exceptions: list[re.Pattern[str]]
) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, matched text, advice) for each match; a match may span two lines."""
    for pattern in exceptions:
        text = pattern.sub(lambda found: "\0" * len(found.group()), text)
    # A message of an error may be several literals, one a line.
    flat = re.sub(r"([\"'])\n[ \t]*f?\1", lambda found: "\1" * len(found.group()), text)
    # Line breaks inside sentences count as spaces.
    flat = re.sub(r"\n[ \t]*(?:#|//)?[ \t]*", lambda found: " " * len(found.group()), flat)
    flat = re.sub(r"(?<= ) +", lambda found: "\1" * len(found.group()), flat)
    packed = [(position, char) for position, char in enumerate(flat) if char != "\1"]
    words = "".join(char for _, char in packed)
    for pattern, advice in rules:
        for found in pattern.finditer(words):
            line = text.count("\n", 0, packed[found.start()][0]) + 1
            yield line, found.group(), advice


def tracked_files(paths: list[str]) -> list[str]:
    """Return the tracked files that are checked, below the given paths."""
    command = ["git", "-C", str(ROOT), "ls-files", "--", *paths]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [
        name
        for name in names
        if Path(name).suffix in SUFFIXES and name not in EXEMPT and (ROOT / name).is_file()
    ]


def main(paths: list[str]) -> int:
    """Check the files below the given paths, or all; return the exit code."""
    rules, exceptions = read_rules((HERE / "wording.txt").read_text(encoding="utf-8"))
    failed = 0
    for name in tracked_files(paths):
        text = (ROOT / name).read_text(encoding="utf-8")
        for line, words, advice in sorted(find_matches(text, rules, exceptions)):
            print(f"{name}:{line}: {words!r}: write {advice}")
            failed += 1
    print(f"{failed} matches." if failed else "Wording: no matches.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
