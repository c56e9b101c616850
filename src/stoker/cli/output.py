"""How commands print: JSON, aligned tables, times. Colours only on a terminal that wants them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from datetime import datetime, timezone
from typing import Any, Final, Mapping, Sequence

import click

from stoker.core.errors import EXIT_FAILED

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
"""status → its colour on a terminal"""


class ScriptFailed(click.ClickException):
    """The user's file raised an error of its own; the message is what Python would have shown."""

    exit_code = EXIT_FAILED


def print_json(document: Any) -> None:
    """A document and nothing else."""
    print(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def say(text: str) -> None:
    """A sentence for the person, which is no result."""
    sys.stderr.write(text + "\n")


def coloured() -> bool:
    """Whether stdout is a terminal that shows colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """The text in an ANSI colour, where there are colours."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and coloured() else text


def status_text(status: str) -> str:
    """A status in its colour."""
    return paint(status, COLOURS.get(status, ""))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), indent: str = "") -> str:
    """Aligned columns; a cell that is a status is coloured. Lines are cut at the edge of a terminal, and only there."""
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
    """A time as the local clock shows it: "2025-06-01 12:03:11"."""
    if moment is None:
        return ""
    return datetime.fromtimestamp(moment, tz=timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short(text: str, length: int = 60) -> str:
    """The first line of a text, cut to a length."""
    line = text.partition("\n")[0]
    return line if len(line) <= length else line[: length - 1] + "…"
