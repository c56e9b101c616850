"""From which images a Dockerfile is built, and the same Dockerfile with these images named by their digests. Pure.

https://docs.docker.com/reference/dockerfile/ is what is read; everything else in the text stays as it is.
"""

from __future__ import annotations

import re
from typing import Callable, Final, Iterator, Mapping

_FROM: Final = re.compile(r"(\s*FROM\s+(?:--\S+\s+)*)(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_FROM_FLAG: Final = re.compile(r"(\s*(?:COPY|ADD)\s+(?:--\S+\s+)*?--from=)(\S+)", re.IGNORECASE)
_MOUNTED: Final = re.compile(r"(--mount=(?:[^\s,]+,)*from=)([^\s,]+)")
_ARG: Final = re.compile(r"\s*ARG\s+(\w+)(?:=(\"[^\"]*\"|'[^']*'|\S*))?", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})")


def parents(text: str, arguments: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The images that a build reads, in order; stages of the Dockerfile itself and `scratch` left out.

    `arguments` are those given to the build. A name with a variable that nobody sets is left out, too.
    """
    found: dict[str, None] = {}

    def noted(name: str) -> str:
        found[name] = None
        return name

    _rewritten(text, arguments or {}, noted)
    return tuple(found)


def pinned(text: str, images: Mapping[str, str], arguments: Mapping[str, str] | None = None) -> str:
    """The Dockerfile with `images` in the places of their names."""
    return _rewritten(text, arguments or {}, lambda name: images.get(name, name))


def _rewritten(text: str, arguments: Mapping[str, str], change: Callable[[str], str]) -> str:
    known: dict[str, str] = {}
    stages: set[str] = set()
    begun = False
    lines = []
    for line in _logical(text):
        argument = _ARG.match(line)
        if argument is not None and not begun:
            value = arguments.get(argument[1], (argument[2] or "").strip("\"'"))
            known[argument[1]] = _filled(value, known)
        named = _FROM.match(line)
        if named is not None:
            begun = True
            lines.append(_changed(line, named, known, stages, change))
            stages.add((named[3] or "").lower())
            continue
        changed = line
        for pattern in (_FROM_FLAG, _MOUNTED) if not line.lstrip().startswith("#") else ():
            flag = pattern.search(changed)
            if flag is not None:
                changed = _changed(changed, flag, {}, stages, change)
        lines.append(changed)
    return "".join(lines)


def _changed(
    line: str, match: re.Match[str], known: Mapping[str, str], stages: set[str], change: Callable[[str], str]
) -> str:
    name = _filled(match[2], known)
    if not name or "$" in name or name.lower() in {*stages, "scratch"} or name.isdigit():
        return line
    wanted = change(name)
    return line if wanted == name else line[: match.start(2)] + wanted + line[match.end(2) :]


def _filled(text: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        found = known.get(match[1] or match[2], "")
        if match[3] == "-":
            return found or match[4]
        if match[3] == "+":
            return match[4] if found else ""
        return found or match[0]

    return _VARIABLE.sub(value, text)


def _logical(text: str) -> Iterator[str]:
    """Instructions with their continued lines; a here-document's lines belong to their instruction."""
    escape = "`" if re.match(r"\s*#\s*escape\s*=\s*`", text, re.IGNORECASE) else "\\"
    held = ""
    ends: list[str] = []
    for line in text.splitlines(keepends=True):
        comment = line.lstrip().startswith("#")
        held += line
        if ends:
            if line.strip() == ends[0]:
                ends.pop(0)
        elif comment and held != line:
            continue  # comments between continued lines do not end them
        elif not comment:
            ends = (
                re.findall(r"<<-?\s*[\"']?(\w+)[\"']?", line)
                if re.match(r"\s*(RUN|COPY|ADD)\b", held, re.IGNORECASE)
                else []
            )
            if line.rstrip().endswith(escape):
                continue
        if not ends:
            yield held
            held = ""
    if held:
        yield held
