"""How commands print: JSON, aligned tables, times; colours only on a terminal that supports them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from datetime import datetime, timezone
from typing import Any, Final, Mapping, Sequence

import click

from stoker.core.errors import EXIT_FAILED
from stoker.core.printable import printable, printable_json
from stoker.report.streams import echo, painted

COLOURS: Final[Mapping[str, str]] = {
    "succeeded": "32",
    "cached": "36",
    "running": "34",
    "failed": "31",
    "interrupted": "31",
    "cancelled": "33",
    "skipped": "2",
    "pending": "2",
}
"""Status → its ANSI colour."""


class ScriptFailed(click.ClickException):
    """The user's file raised an error; the message is Python's traceback."""

    exit_code = EXIT_FAILED


def print_json(document: Any) -> None:
    """Print a document as JSON on stdout."""
    echo(printable_json(json.dumps(document, indent=2, ensure_ascii=False, default=str)))


def coloured() -> bool:
    """Whether stdout is a terminal that shows colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """The text in an ANSI colour, if stdout shows colours."""
    return painted(text, colour) if colour and coloured() else text


def status_text(status: str) -> str:
    """A status in its colour."""
    return paint(status, COLOURS.get(status, ""))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), indent: str = "") -> str:
    """Aligned columns; cells with a status are coloured. On a terminal, lines are cut at its width."""
    rows = [[cell.replace("\n", "\\n") for cell in map(printable, row)] for row in rows]  # widths are of what is shown
    widths = [max(len(cell) for cell in column) for column in zip(headers, *rows)]
    edge = shutil.get_terminal_size().columns - len(indent) if sys.stdout.isatty() else sys.maxsize
    lines = []
    for number, row in enumerate([headers, *rows]):
        cells, room = [], edge
        for header, cell, width in zip(headers, row, widths):
            text = cell.rjust(width) if header in right else cell.ljust(width)
            text = text[: max(room, 0)]
            room -= width + 2
            colour = "1" if number == 0 else COLOURS.get(cell, "")
            cells.append(paint(text, colour) if colour and text.strip() else text)
        lines.append(indent + "  ".join(cells).rstrip())
    return "\n".join(lines)


def when(moment: float | None) -> str:
    """A time in the local time zone: "2025-06-01 12:03:11"; empty for None."""
    if moment is None:
        return ""
    return datetime.fromtimestamp(moment, tz=timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short(text: str, length: int = 60) -> str:
    """The first line of a text, cut to a length."""
    line = text.partition("\n")[0]
    return line if len(line) <= length else line[: length - 1] + "…"
