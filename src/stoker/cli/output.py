"""How commands print: JSON, aligned tables, times, colours only on a terminal that supports them; and the options that
several commands share."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from datetime import datetime, timezone
from typing import Any, Callable, Final, Mapping, Sequence, TypeVar

import click

from stoker.client import Client
from stoker.core.errors import EXIT_USAGE
from stoker.core.plugins import resolve
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
    "stopped": "2",
    "pending": "2",
}
"""Status → its ANSI colour."""
_LEAST_WORDS: Final = 24
"""Columns below which words beside a row would be a tower."""


class ScriptFailed(click.ClickException):
    """The user's file raised an error; the message is Python's traceback."""

    exit_code = EXIT_USAGE


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


def line_width() -> int:
    """Columns of a line: what COLUMNS says, or the terminal's; in a pipe a line is whole, for what looks through it."""
    return shutil.get_terminal_size((sys.maxsize, 0)).columns if _has_width() else sys.maxsize


def _has_width() -> bool:
    return sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()


def folded(text: str, first: str = "", *, indent: str = "") -> str:
    """Words in lines that fit, of which those after the first are indented; a word that is longer stays whole."""
    return textwrap.fill(
        text,
        line_width(),
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    indent: str = "",
    folds: bool = False,
) -> str:
    """Aligned columns; cells with a status are coloured. On a terminal, lines are cut at its width.

    Where the last column `folds`, its words go on below it instead, or below the row where there is little room.
    """
    rows = [[cell.replace("\n", "\\n") for cell in map(printable, row)] for row in rows]  # widths are of what is shown
    widths = [max(len(cell) for cell in column) for column in zip(headers, *rows)]
    edge = line_width() - len(indent) if sys.stdout.isatty() else sys.maxsize
    lines = []
    for number, row in enumerate([headers, *rows]):
        cells, room = [], edge
        for header, cell, width in list(zip(headers, row, widths))[: -1 if folds else None]:
            text = cell.rjust(width) if header in right else cell.ljust(width)
            text = text[: max(room, 0)]
            room -= width + 2
            colour = "1" if number == 0 else COLOURS.get(cell, "")
            cells.append(paint(text, colour) if colour and text.strip() else text)
        line = indent + "  ".join(cells)
        if folds:
            line = _with_words(line, row[-1], len(indent) + sum(width + 2 for width in widths[:-1]))
        lines.append(line.rstrip())
    return "\n".join(lines)


def _with_words(line: str, words: str, start: int) -> str:
    """A row with the words of its last column, which begins at `start`, beside or below it."""
    if not words:
        return line
    if line_width() - start < _LEAST_WORDS:
        return line.rstrip() + "\n" + folded(words, " " * 6, indent=" " * 6)
    below = folded(words, " " * start, indent=" " * start)
    return f"{line}  {below[start:]}"


def when(moment: float | None) -> str:
    """A time in the local time zone: "2025-06-01 12:03:11"; empty for None."""
    if moment is None:
        return ""
    return datetime.fromtimestamp(moment, tz=timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")


F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Only JSON on stdout.")(command)


def stack_option(command: F) -> F:
    """`--stack`; the command gets a `client` of the stack's store."""

    def client(ctx: click.Context, param: click.Parameter, value: str | None) -> Client:
        return Client(value)

    help_text = "Whose store to look into; the current stack's if not given."
    option = click.option(
        "--stack", "client", metavar="NAME", callback=client, help=help_text, shell_complete=completes("stacks")
    )
    return option(command)


def run_argument(command: F) -> F:
    """RUN: a run's id, the beginning of one, or "latest" or "last" for the newest run."""
    return click.argument("run_id", metavar="RUN", shell_complete=completes("runs"))(command)


def completes(what: str) -> Callable[..., Any]:
    """What completes a value in a shell: a function of `cli.completion`, which is imported then."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        return resolve(f"stoker.cli.completion:{what}")(ctx, param, incomplete)

    return complete
