"""The page that tool_comparison.py writes."""

from __future__ import annotations

import time
from collections.abc import Callable

_PAGE = """\
# Comparison with other tools

Results of other tools on the same files, each run as its documentation describes, in a separate
environment. Made by `python benchmarks/tool_comparison.py WORK` on {date}; that script has
the questions and the evaluation.

{table}

- **Damaged**: a truncated JPEG, an HTML page named `.jpg` and an empty file are in a folder with
  40 good photos. A file is *named* if its name is in the tool's output, or in a text file or table
  that it wrote.
- **Unusual**: a JPEG with EXIF rotation, a CMYK JPEG, a 16-bit grey PNG, a palette, alpha, grey
  with alpha, a PNG named `.jpg`, a WebP. A file is correct if a record, decoded by TensorFlow,
  matches it with 27 dB or more.{wrong}
- **Killed**: 3,000 photos of 500x375; the process group is killed after two thirds of the time of a
  complete run, then the same command runs again. Wall times of one run each, on two cores that also
  had other load: near 100 % means that the tool started from scratch.
- **Count**: whether a JSON file that the tool wrote has the number of records.

TFDS keeps files as they are and decodes them on reading, so training fails on a damaged one, and
images are not resized. img2dataset downloads its input; here from a web server on the same machine.
TFRecorder 2.0 was tried too, with Python 3.8, TensorFlow 2.3.1 and Beam 2.29 and 2.45: it did not
run.
"""


def page(answers: dict[str, dict[str, dict]], names: dict[str, str]) -> str:
    """Returns docs/comparison.md for the answers and display names of tools."""
    tools = [tool for tool in names if tool in answers]

    def row(title: str, get: Callable[[dict[str, dict]], object]) -> str:
        return f"| {title} | " + " | ".join(str(get(answers[tool])) for tool in tools) + " |"

    def yes(value: object) -> str:
        return "yes" if value else "no"

    def kept(found: dict[str, dict]) -> str:
        ended = found["broken"]["exit"]
        return f"{found['broken']['good']}" + (", and the run fails" if ended else "")

    def again(found: dict[str, dict]) -> str:
        killed = found["killed"]
        share = killed["again_seconds"] / killed["whole_seconds"]
        whole = killed["records"] == killed["of"] and not killed["again_exit"]
        text = f"{killed['again_seconds']} s, {share:.0%} of a whole run"
        return (
            text if whole else f"{text}; exit {killed['again_exit']}, {killed['records']} records"
        )

    lines = [
        "| | " + " | ".join(names[tool] for tool in tools) + " |",
        "|---|" + "---|" * len(tools),
        row("good photos kept, of 40 with 3 damaged files", kept),
        row("damaged files that reach training", lambda f: f["broken"]["unreadable"]),
        row("damaged files that are named, of 3", lambda f: f["broken"]["named"]),
        row("unusual but valid files that are correct, of 8", lambda f: f["odd"]["right"]),
        row("two runs give the same bytes", lambda f: yes(f["again"]["same"])),
        row("a file has the number of records", lambda f: yes(f["again"]["counted"])),
        row(
            "records that training can read after the kill",
            lambda f: f"{f['killed']['records_seen_after_the_kill']:,}",
        ),
        row("killed at two thirds: the next run takes", again),
    ]
    wrong = "".join(
        f" Not correct with {names[tool]}: {', '.join(answers[tool]['odd']['not_right'])}."
        for tool in tools
        if answers[tool]["odd"]["not_right"]
    )
    return _PAGE.format(date=time.strftime("%Y-%m-%d"), table="\n".join(lines), wrong=wrong)
