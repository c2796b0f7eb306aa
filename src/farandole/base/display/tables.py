"""Tables: plain text for logs and pipes, and coloured text that fits the width of a terminal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Rows = Sequence[Sequence[str]]
"""Rows of cells; the first row has the titles of the columns."""

_UNLIMITED = 100_000
_LEAST_WIDTH = 12
"""Smallest width of the last column, which is truncated in long lines. With less, each row becomes several lines."""

_STYLES = {
    "Running": "green",
    "Succeeded": "green",
    "Failed": "red",
    "Cancelled": "yellow",
    "Suspended": "yellow",
    "Waiting": "cyan",
    "draining": "yellow",
}


def lines(rows: Rows, right: Collection[int] = ()) -> list[str]:
    """Return a table as lines of full length, without colours.

    Args:
        rows: the rows, the first one with the titles.
        right: indices of the right-aligned columns.

    Example:
        >>> lines([("host", "slots"), ("h1", "2")])
        ['host  slots', 'h1    2']
    """
    from rich.console import Console

    console = Console(file=io.StringIO(), width=_UNLIMITED, color_system=None, force_terminal=False, _environ={})
    return _drawn(console, _table(rows, right))


def show(rows: Rows, right: Collection[int] = (), stream: TextIO | None = None) -> None:
    """Print a table: in colour and within the width on a terminal, plain and in full anywhere else.

    `NO_COLOR` and `FORCE_COLOR` are respected.

    Args:
        rows: the rows, the first one with the titles.
        right: indices of the right-aligned columns.
        stream: the stream to print to; None: standard output.
    """
    from rich.console import Console

    stream = stream or sys.stdout
    plain = lines(rows, right)
    width = _width(stream)
    console = Console(file=stream, width=width or _UNLIMITED, highlight=False, markup=False, emoji=False)
    if width is not None and max(map(len, plain)) > width and _head_width(rows) + _LEAST_WIDTH > width:
        _show_records(console, rows)
    elif console.is_terminal:
        head = "" if console.no_color else "bold"
        console.print(_table(rows, right, width or _UNLIMITED, head), soft_wrap=True)
    else:
        print(*plain, sep="\n", file=stream)


def wants_colour(stream: TextIO | None = None) -> bool:
    """Return whether to use colours: on a terminal that supports them, subject to `NO_COLOR` and `FORCE_COLOR`."""
    from rich.console import Console

    console = Console(file=stream or sys.stdout)
    return console.color_system is not None and not console.no_color


def _width(stream: TextIO) -> int | None:
    """Return the width of a terminal; None for anything else."""
    try:
        if not stream.isatty():
            return None
        columns = os.environ.get("COLUMNS", "")
        return int(columns) if columns.isdecimal() else os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _head_width(rows: Rows) -> int:
    """Return the width of all columns except the last one, including separators."""
    return sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1])


def _table(rows: Rows, right: Collection[int], width: int = _UNLIMITED, head: str = "bold") -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 2), header_style=head)
    titles = rows[0]
    for number, title in enumerate(titles):
        room = width - _head_width(rows) if number == len(titles) - 1 else _UNLIMITED
        justify: Literal["left", "right"] = "right" if number in right else "left"
        table.add_column(Text(title), justify=justify, no_wrap=True, overflow="ellipsis", max_width=max(1, room))
    for row in rows[1:]:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table


def _drawn(console: Console, table: Any) -> list[str]:
    console.print(table, soft_wrap=True)
    file = console.file
    assert isinstance(file, io.StringIO)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def _show_records(console: Console, rows: Rows) -> None:
    """Print each row as lines of a title and a cell, for terminals that are too narrow for a table."""
    from rich.text import Text

    titles, head = rows[0], "" if console.no_color else "bold"
    for number, row in enumerate(rows[1:]):
        if number:
            console.print()
        for title, cell in zip(titles, row, strict=True):
            if cell not in ("", "-"):
                console.print(Text.assemble((f"{title}: ", head), (cell, _STYLES.get(cell, ""))))
