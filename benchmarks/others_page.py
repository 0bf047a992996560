"""The page that others.py writes."""

from __future__ import annotations

import time
from collections.abc import Callable

_PAGE = """\
# Beside other tools

What the same files come to with other tools, each run as its own guide says, in an environment of
its own. Made by `python benchmarks/others.py WORK` on {date}; the questions and the code that
judges stand there.

{table}

- **Broken**: a JPEG that is cut short, a page of HTML called `.jpg`, and an empty file lie beside
  40 good photos. *Named* are those whose name stands in what the tool printed or wrote as a text or
  a table.
- **Odd**: a JPEG that EXIF turns, one in CMYK, a 16-bit grey PNG, a palette, alpha, grey with
  alpha, a PNG called `.jpg`, a WebP. One is right if a record shows it with 27 dB or more, as
  TensorFlow decodes it.{wrong}
- **Killed**: 3,000 photos of 500x375; the process group is killed after two thirds of the time that
  a whole run takes, then the same command runs again. Times are of the clock, of one run each, on
  two cores that had other work too: a share near 100 % means that it began anew.
- **Count**: whether the number of records stands in a JSON file that the tool leaves.

TFDS keeps files as they are and decodes them when they are read, so a broken one is met by the
trainer, and nothing is resized. img2dataset downloads what it takes; here from a web server on the
same machine. TFRecorder 2.0 was tried too, with Python 3.8, TensorFlow 2.3.1 and Beam 2.29 and
2.45: it did not run.
"""


def page(answers: dict[str, dict[str, dict]], names: dict[str, str]) -> str:
    """Returns the page of docs for all answers, of tools by what they are called."""
    tools = [tool for tool in names if tool in answers]

    def row(title: str, tell: Callable[[dict[str, dict]], object]) -> str:
        return f"| {title} | " + " | ".join(str(tell(answers[tool])) for tool in tools) + " |"

    def yes(value: object) -> str:
        return "yes" if value else "no"

    def good(found: dict[str, dict]) -> str:
        ended = found["broken"]["exit"]
        return f"{found['broken']['good']}" + (", and the run fails" if ended else "")

    def again(found: dict[str, dict]) -> str:
        killed = found["killed"]
        share = killed["again_seconds"] / killed["whole_seconds"]
        whole = killed["records"] == killed["of"] and not killed["again_exit"]
        said = f"{killed['again_seconds']} s, {share:.0%} of a whole run"
        return (
            said if whole else f"{said}; exit {killed['again_exit']}, {killed['records']} records"
        )

    lines = [
        "| | " + " | ".join(names[tool] for tool in tools) + " |",
        "|---|" + "---|" * len(tools),
        row("good photos kept, of 40 beside 3 broken files", good),
        row("broken files that reach the trainer", lambda f: f["broken"]["unreadable"]),
        row("broken files that are named, of 3", lambda f: f["broken"]["named"]),
        row("odd but valid files that come out right, of 8", lambda f: f["odd"]["right"]),
        row("two runs give the same bytes", lambda f: yes(f["again"]["same"])),
        row("the number of records stands in a file", lambda f: yes(f["again"]["told"])),
        row("records that a trainer finds after the kill",
            lambda f: f"{f['killed']['records_seen_after_the_kill']:,}"),
        row("killed at two thirds: the next run takes", again),
    ]  # fmt: skip
    wrong = "".join(
        f" Not right with {names[tool]}: {', '.join(answers[tool]['odd']['not_right'])}."
        for tool in tools
        if answers[tool]["odd"]["not_right"]
    )
    return _PAGE.format(date=time.strftime("%Y-%m-%d"), table="\n".join(lines), wrong=wrong)
