"""Tables, bars and lines for a terminal or a pipe, laid out by rich.

Text from data is escaped and never parsed as rich's markup.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from rich.bar import Bar
from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardmill.schemas.numbers import printable

Align = Literal["left", "right"]
PIPE_WIDTH = 100
_MIN_NAME = 10  # of the names of fields


@dataclass(frozen=True)
class Layout:
    """How to lay out text.

    Attributes:
        width: Columns of the terminal.
        ascii_only: Whether the encoding of the output lacks blocks and the ellipsis.
    """

    width: int = PIPE_WIDTH
    ascii_only: bool = False

    @property
    def ellipsis(self) -> str:
        """The mark that replaces text that does not fit."""
        if self.ascii_only:
            return "..."
        return "…"

    def cut(self, text: str, width: int) -> str:
        """Return a text escaped, and shortened to a number of columns."""
        text = printable(text)
        if cell_len(text) <= width:
            return text
        room = width - cell_len(self.ellipsis)
        if room >= 0:
            return set_cell_size(text, room).rstrip() + self.ellipsis
        return ""

    def line(self, *parts: str | tuple[str, str]) -> Text:
        """Return one line of printable texts, each with or without a style; cut to the width."""
        return Text.assemble(*parts, no_wrap=True, overflow=self._overflow)

    def table(
        self,
        rows: Iterable[Sequence[str]],
        align: str,
        *,
        header: Sequence[str] = (),
        bars: Sequence[float] = (),
    ) -> RenderableType:
        """Return a table without borders whose widest columns are cut to fit.

        Args:
            rows: Texts from data; all rows as long as align.
            align: ``<`` or ``>`` for each column.
            header: A first row, printed dim.
            bars: A share between 0 and 1 for each row, drawn as a bar after its last column.
        """
        table = Table.grid(padding=(0, 2))
        for index, side in enumerate(align):
            justify: Align = "left" if side == "<" else "right"
            table.add_column(justify=justify, style="" if index else "cyan")
        if bars:
            table.add_column()
        if header:
            table.add_row(*map(self._cell, header), style="dim")
        for number, row in enumerate(rows):
            cells: list[RenderableType] = [self._cell(text) for text in row]
            table.add_row(*cells, *([self._bar(bars[number])] if bars else []))
        return Padding(table, (0, 0, 0, 2))

    @property
    def _overflow(self) -> Literal["crop", "ellipsis"]:
        if self.ascii_only:
            return "crop"
        return "ellipsis"

    def _cell(self, text: str) -> Text:
        return Text(printable(text), no_wrap=True, overflow=self._overflow)

    def _bar(self, share: float) -> RenderableType:
        """Return a bar; a share above zero is always visible."""
        width = max(6, min(24, self.width // 2 - 26))
        eighths = max(round(share * width * 8), 1 if share > 0 else 0)
        if self.ascii_only:
            return Text("#" * -(-eighths // 8))
        return Bar(width * 8, 0, eighths, width=width, color="green")


def whole_line(text: str, style: str = "") -> Text:
    """Return a line that is never cut, such as a path to be copied."""
    return Text(printable(text), style, no_wrap=True, overflow="ignore")


def fields(rows: Sequence[tuple[str, str]]) -> Iterator[Text]:
    """Yield a line for each name and value; values are aligned and never cut."""
    names = [Text(printable(name), "cyan") for name, _ in rows]
    width = max([_MIN_NAME, *(name.cell_len for name in names)])
    for name, (_, value) in zip(names, rows, strict=True):
        name.align("left", width)
        yield Text.assemble("  ", name, " ", printable(value), no_wrap=True, overflow="ignore")


def print_to_stdout(render: Callable[[Layout], Iterable[RenderableType]]) -> None:
    """Print a report to standard output.

    Args:
        render: Returns the lines and tables for a layout: a terminal's width, or a pipe's.
    """
    console = _console(sys.stdout)
    width = console.width if console.is_terminal else PIPE_WIDTH
    layout = Layout(width, console.options.ascii_only)
    print_report(render(layout), layout, sys.stdout)


def print_report(parts: Iterable[RenderableType], layout: Layout, file: TextIO) -> None:
    """Print lines and tables; in a pipe as plain text.

    Args:
        parts: Lines and tables; ``Text`` with the overflow "ignore" is not cut.
        layout: The layout of parts.
        file: The output.
    """
    console = _console(file, layout.width)
    for part in parts:
        # Console.print drops these attributes of a Text.
        text = part if isinstance(part, Text) else Text()
        options: dict[str, Any] = {"no_wrap": text.no_wrap, "overflow": text.overflow}
        options["crop"] = text.overflow != "ignore"
        if console.is_terminal:
            console.print(part, **options)
            continue
        with console.capture() as capture:
            console.print(part, **options)
        for line in capture.get().splitlines():
            print(line.rstrip(), file=file)  # rich pads the cells of tables


def _console(file: TextIO, width: int | None = None) -> Console:
    return Console(file=file, width=width, markup=False, highlight=False, emoji=False)
