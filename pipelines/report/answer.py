"""How a command answers: as text for people, as one JSON object, or with errors only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from shardmill.schemas.numbers import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shardmill.pipelines.report.layout import Layout


class Answer(NamedTuple):
    """The flags that every command has.

    Attributes:
        json: Whether standard output is one JSON object.
        quiet: Whether summaries, notes and progress are left out.
        debug: Whether to show tracebacks, and Beam's log.
    """

    json: bool = False
    quiet: bool = False
    debug: bool = False

    @classmethod
    def take(cls, values: dict[str, Any]) -> Answer:
        """Remove the flags from parsed values, and return them."""
        values.pop("log_format", None)  # main has made standard error such a log
        return cls(*(values.pop(name, False) for name in cls._fields))

    def give(self, value: dict[str, Any]) -> None:
        """Print the JSON object, if that is wanted; its ``status`` is ``ok`` unless it has one."""
        if self.json:
            print(json.dumps({"status": "ok", **value}))

    def say(self, line: str) -> None:
        """Print a line of a summary for people."""
        if not self.json and not self.quiet:
            print(printable(line), flush=True)

    def show(self, render: Callable[[Layout], Iterable[RenderableType]]) -> None:
        """Print a summary for people; see ``layout.print_to_stdout``."""
        if not self.json and not self.quiet:
            from shardmill.pipelines.report.layout import print_to_stdout

            print_to_stdout(render)
