"""Parse lines of a requirements file: pip's format around a requirement, and the requirement by `packaging`.

The format is pip's own (https://pip.pypa.io/en/stable/reference/requirements-file-format): lines that continue,
comments, options of the whole file and of one requirement, variables. What is left of a line is a dependency specifier
(https://packaging.python.org/en/latest/specifications/dependency-specifiers). No file is read here.
"""

from __future__ import annotations

import re
from typing import Final, Iterator
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from stoker.core.errors import SettingsError

_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_OPTION: Final = re.compile(r"(?:(-[A-Za-z])|(--[a-z][a-z-]*))(?:\s*=\s*|\s+)?(.*)")
_VARIABLE: Final = re.compile(r"\$\{[A-Z0-9_]+\}")
_NAME: Final = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?=[\[<>=!~;@(\s]|$)")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines with the number of their first line: continued lines joined, comments and empty lines removed."""
    first, parts = 0, [""]
    for number, line in enumerate(text.splitlines(), 1):
        comment = _COMMENT.match(line) is not None
        first = number if len(parts) == 1 else first
        if line.endswith("\\") and not comment:
            parts.append(line.strip("\\"))
            continue
        # A comment ends what is continued; the space keeps its sign from becoming part of the line before it.
        joined = "".join([*parts, f" {line}" if comment else line])
        parts = [""]
        if plain := without_comment(joined):
            yield first, plain
    if plain := without_comment("".join(parts)):
        yield first, plain


def without_comment(line: str) -> str:
    """A line up to its comment; "#" without a space before it, as in an address, begins none."""
    return _COMMENT.sub("", line).strip()


def option_of(line: str) -> tuple[str, str] | None:
    """The name and the value of an option line; None for any other line."""
    match = _OPTION.fullmatch(line)
    return (match[1] or match[2], match[3].strip().strip("'\"")) if match is not None else None


def specifier_of(line: str) -> str:
    """A requirement line without its options (`--hash`, from the first dash on) and a last ";"."""
    return re.split(r"\s+-", line.strip(), maxsplit=1)[0].rstrip("; ")


def parsed(line: str) -> Requirement | None:
    """The requirement of a line; None for an option, an address without a name, or no requirement."""
    try:
        return Requirement(specifier_of(line))
    except InvalidRequirement:
        return None


def same(one: str, other: str) -> bool:
    """Whether two lines ask for the same, however they are spelled."""
    ours, theirs = parsed(one), parsed(other)
    if ours is None or theirs is None:
        return "".join(one.split()) == "".join(other.split())
    # By parts: before 23.2 `packaging` compares names as they are written.
    return _parts(ours) == _parts(theirs)


def project_of(line: str) -> str:
    """The normalized name of the project that a line asks for; empty if the line does not name it."""
    requirement = parsed(line)
    if requirement is not None:
        return canonicalize_name(requirement.name)
    address = specifier_of(line)
    if _ADDRESS.match(address):
        # pip takes the name of an address from its fragment, or from the file name of a wheel.
        fragment = re.search(r"#(?:[^#]*&)?egg=([A-Za-z0-9._-]+)", address)
        wheel = wheel_of(address.partition(" ")[0])
        return canonicalize_name(fragment[1]) if fragment is not None else wheel[0] if wheel is not None else ""
    # The version may be a variable, which only the installer expands.
    name = _NAME.match(address) if _VARIABLE.search(address) else None
    return canonicalize_name(name[1]) if name is not None else ""


def wheel_of(url: str) -> tuple[str, str, tuple[str, str, str]] | None:
    """Project, version and tags (Pythons, ABIs, platforms, each joined by dots) of the wheel at a URL; None if none."""
    file = unquote(re.split(r"[#?]", url)[0].rpartition("/")[2])
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    python, abi, platform = file.removesuffix(".whl").split("-")[-3:]
    return name, str(version), (python, abi, platform)


def check(line: str, where: str) -> None:
    """Refuse a line that is no valid requirement; a line with a variable is left to the installer."""
    text = specifier_of(line)
    if _VARIABLE.search(text) or _ADDRESS.match(text):
        return
    try:
        Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        reason = reason[:1].lower() + reason[1:]
        raise SettingsError(
            f"{line!r} is not a requirement: {reason}", where=where, fix="write a name such as 'numpy>=1.26'"
        ) from None


def _parts(requirement: Requirement) -> tuple[object, ...]:
    extras = frozenset(map(canonicalize_name, requirement.extras))
    name, marker = canonicalize_name(requirement.name), str(requirement.marker or "")
    return name, extras, requirement.specifier, requirement.url, marker
