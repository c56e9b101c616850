"""Patterns of files to leave out, as .gitignore and .dockerignore write them.

https://git-scm.com/docs/gitignore#_pattern_format and https://docs.docker.com/build/concepts/context/#dockerignore-files:
in the first a pattern without a slash counts in every folder, in the second every pattern begins at the root.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterable

import attrs


@attrs.frozen
class Pattern:
    """One line: the paths that it fits, whether it takes back (`!`), whether it is about folders only, and whether it
    is seen from the root, as one with a slash is."""

    text: str
    expression: re.Pattern[str]
    takes_back: bool
    folders_only: bool
    from_root: bool

    def fits(self, path: str, *, folder: bool) -> bool:
        """Whether the line is about this path itself."""
        return (folder or not self.folders_only) and self.expression.fullmatch(path) is not None


@attrs.frozen
class Ignore:
    """All lines of a file. `rooted` as in .dockerignore: there the last line that fits a path or its folder decides."""

    patterns: tuple[Pattern, ...] = ()
    rooted: bool = False

    def leaves_out(self, path: str, *, folder: bool = False) -> bool:
        """Whether a file, or a folder, is left out, itself or with a folder that it is in."""
        if not self.patterns:
            return False
        parts = path.split("/")
        ways = [("/".join(parts[:depth]), folder or depth < len(parts)) for depth in range(1, len(parts) + 1)]
        if self.rooted:
            for pattern in reversed(self.patterns):
                if any(pattern.fits(way, folder=is_folder) for way, is_folder in ways):
                    return not pattern.takes_back
            return False
        # As git goes: from the outermost folder inwards. It lets nothing back out of a folder that is left out; here
        # a line that names the path does.
        verdict = False
        for way, is_folder in ways:
            said = self._said(way, is_folder)
            if said is not None and (not said.takes_back or said.from_root or not verdict):
                verdict = not said.takes_back
        return verdict

    def takes_in(self, path: str) -> bool:
        """Whether a line with `!` names a file, or a folder that it is in, and none after it leaves the file out."""
        parts = path.split("/")
        verdict = False
        for depth in range(1, len(parts) + 1):
            said = self._said("/".join(parts[:depth]), depth < len(parts))
            if said is not None and (said.from_root or not said.takes_back):
                verdict = said.takes_back
        return verdict

    @property
    def takes_back(self) -> bool:
        """Whether any line does."""
        return any(pattern.takes_back for pattern in self.patterns)

    def _said(self, path: str, folder: bool) -> Pattern | None:
        return next((pattern for pattern in reversed(self.patterns) if pattern.fits(path, folder=folder)), None)


def from_file(path: Path, *, rooted: bool = False) -> Ignore:
    """The patterns of a file; none if it is not there."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except FileNotFoundError:
        return Ignore()
    return from_lines(text.splitlines(), rooted=rooted)


def from_lines(lines: Iterable[str], *, rooted: bool = False) -> Ignore:
    """The patterns of lines; `rooted` as in .dockerignore."""
    found = [_pattern(line, rooted) for line in lines]
    return Ignore(tuple(pattern for pattern in found if pattern is not None), rooted)


def _pattern(line: str, rooted: bool) -> Pattern | None:
    text = line.strip() if rooted else re.sub(r"(?<!\\)\s+$", "", line)
    if not text or text.startswith("#"):
        return None
    takes_back = text.startswith("!")
    text = text[1:].strip() if takes_back else text.removeprefix("\\") if text.startswith(("\\#", "\\!")) else text
    folders_only = text.endswith("/") and not rooted
    text = text.rstrip("/")
    if rooted:
        text = re.sub(r"^(\./|/)+", "", text)
    if not text or text == ".":
        return None
    anchored = rooted or "/" in text
    text = text.removeprefix("/")
    expression = _expression(text, negating="^" if rooted else "!^")
    whole = re.compile(expression if anchored else f"(?:.*/)?{expression}", re.DOTALL)
    return Pattern(line, whole, takes_back, folders_only, anchored)


def _expression(text: str, *, negating: str) -> str:
    """A pattern as a regular expression; `negating` signs turn a class: in .dockerignore "!" is a letter."""
    found = ""
    at = 0
    while at < len(text):
        if text.startswith("**/", at) and (at == 0 or text[at - 1] == "/"):
            found += "(?:.*/)?"
            at += 3
        elif text.startswith("**", at):
            found += ".*"
            at += 2
        elif text[at] == "*":
            found += "[^/]*"
            at += 1
        elif text[at] == "?":
            found += "[^/]"
            at += 1
        elif text[at] == "[" and (end := text.find("]", at + 2)) > 0:
            inside = text[at + 1 : end].replace("\\", "\\\\")
            inside = "^" + inside[1:] if inside[0] in negating else inside
            found += f"(?!/)[{inside}]"
            at = end + 1
        else:
            at += text[at] == "\\" and at + 1 < len(text)
            found += re.escape(text[at])
            at += 1
    return found
