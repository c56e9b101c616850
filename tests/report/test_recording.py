"""The picture of a terminal in the README: what a real session shows, as an SVG; UPDATE_GOLDEN=1 makes it anew."""

from __future__ import annotations

import html
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from tests.report.screen import Terminal

PICTURE = Path(__file__).parents[2] / "docs" / "guide" / "pictures" / "terminal.svg"
COLUMNS = 92
SESSION = (
    "stoker init mine --kind training --where local",
    "cd mine",
    "stoker run --epochs 400",
    "stoker run --rate 0.1",
    "stoker metrics latest train",
)
_CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\r?\n")
_VARIES = re.compile(r"\d[\d.,:e+-]*|\b(?:ms|s|m|MB|cpu|peak)\b|[▁▂▃▄▅▆▇█]+|\s+")
"""Numbers, units, curves, and what is told of a step that took long enough."""


def settled(written: str) -> str:
    """What stays on the screen of what was written, colours included: lines are drawn again as a whole."""
    lines, row, position = [""], 0, 0
    for match in _CONTROL.finditer(written):
        lines[row] += written[position : match.start()]
        position = match.end()
        if match[2] is None:
            row += 1
            lines += [""] if row == len(lines) else []
        elif match[2] == "F":
            row -= int(match[1] or 1)
            lines[row] = ""
        elif match[2] == "J":
            del lines[row + 1 :]
        elif match[2] == "m":
            lines[row] += match[0]
    lines[row] += written[position:]
    return "\n".join(lines).rstrip()


def texts(picture: str) -> list[str]:
    """The words of a picture, without what differs from run to run."""
    found = [html.unescape(one) for one in re.findall(r"<text[^>]*>([^<]*)</text>", picture)]
    words = [_VARIES.sub(" ", re.sub(r"\b[0-9a-z]{12}\b", "ID", one.replace("\xa0", " "))).strip() for one in found]
    return [word for word in words if word]


@pytest.mark.slow
def test_the_picture_is_what_a_terminal_shows(tmp_path: Path, stoker_home: Path) -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment: dict[str, Any] = {**os.environ, "STOKER_HOME": str(stoker_home), "PATH": path, "LANG": "C.UTF-8"}
    shown = []
    folder = tmp_path
    for command in SESSION:
        shown.append(f"\x1b[1;32m$\x1b[0m {command}")
        if command.startswith("cd "):
            folder /= command.removeprefix("cd ")
            continue
        written: list[str] = []
        with Terminal(["sh", "-c", command], folder=folder, env=environment, columns=COLUMNS, rows=40) as terminal:
            terminal.screen.feed = written.append  # type: ignore[method-assign]
            assert terminal.end() == 0, (command, written)
        shown.append(settled("".join(written)))
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    console.print(Text.from_ansi("\n".join(shown)), soft_wrap=True)
    picture = console.export_svg(title="stoker", unique_id="stoker")
    # A picture asks nobody for fonts.
    picture = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", picture, flags=re.DOTALL)
    if os.environ.get("UPDATE_GOLDEN"):
        PICTURE.write_text(picture, encoding="utf-8")
    assert texts(picture) == texts(PICTURE.read_text(encoding="utf-8")), "UPDATE_GOLDEN=1 writes it"
