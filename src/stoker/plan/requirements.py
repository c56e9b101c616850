"""Lines of a requirements file as values: name, extras, versions, marker, wheel, and the index they come from. Pure.

Knows as much of https://packaging.python.org/en/latest/specifications/dependency-specifiers and of
https://pip.pypa.io/en/stable/reference/requirements-file-format as it takes to tell which build would be installed.
What it does not understand it says is unknown.
"""

from __future__ import annotations

import re
from typing import Final, Iterable, Mapping, Sequence
from urllib.parse import unquote

import attrs

Release = tuple[int, ...]

_LINE: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^\]]*)\])?\s*"
    r"(?:@\s*(?P<url>\S+)|\(?(?P<clauses>(?:[<>=!~]=?=?\s*[^\s,;)]+\s*,?\s*)*)\)?)\s*(?:;\s*(?P<marker>.+))?"
)
_CLAUSE: Final = re.compile(r"(===|==|~=|!=|<=|>=|<|>)\s*([^\s,;)]+)")
# https://packaging.python.org/en/latest/specifications/binary-distribution-format: the file name of a wheel
_WHEEL: Final = re.compile(
    r"(?P<name>[^-/]+)-(?P<version>[^-/]+)(?:-\d[^-/]*)?-(?P<python>[^-/]+)-(?P<abi>[^-/]+)-(?P<platform>[^-/]+)\.whl"
)
_COMPARED: Final = re.compile(r"(\w+)\s*(===|==|!=|<=|>=|<|>|in)\s*['\"]([^'\"]*)['\"]")
_TOKEN: Final = re.compile(
    r"\(|\)|\band\b(?=\s|\()|\bor\b(?=\s|\()|\w+\s*(?:===|==|!=|~=|<=|>=|<|>|not\s+in\b|in\b)\s*(?:'[^']*'|\"[^\"]*\")"
)
"""A bracket, a word that joins, or a comparison"""
_PYTHON_VARIABLES: Final = ("python_version", "python_full_version")
_INDEX_OPTIONS: Final[Mapping[str, str]] = {
    "-i": "index",
    "--index-url": "index",
    "--index": "extra",
    "--default-index": "index",
    "--extra-index-url": "extra",
    "-f": "extra",
    "--find-links": "extra",
    "--torch-backend": "backend",
}
"""an option of pip or uv → whether it stands instead of the usual index, beside it, or names PyTorch's"""


@attrs.frozen(kw_only=True)
class Wheel:
    """What a wheel's file name says: version, Pythons, ABIs and platforms that it is for."""

    version: str
    pythons: tuple[str, ...]
    abis: tuple[str, ...]
    platforms: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Requirement:
    """One requirement. `clauses` are pairs such as (">=", "2.0"); `wheel` is the file that a URL names."""

    name: str
    text: str
    extras: frozenset[str] = frozenset()
    clauses: tuple[tuple[str, str], ...] = ()
    marker: str = ""
    url: str = ""
    wheel: Wheel | None = None

    @property
    def pinned(self) -> str:
        """The one version that it allows, with its local part; empty where it allows several."""
        if self.wheel is not None:
            return self.wheel.version
        exact = [version for sign, version in self.clauses if sign in ("==", "===") and not version.endswith("*")]
        return exact[0] if exact else ""

    @property
    def local(self) -> str:
        """What stands behind the "+" of its version: "cu121", "cpu", "rocm6.2"; empty where nothing does."""
        return self.pinned.partition("+")[2]

    def allows(self, release: Release) -> bool:
        """Whether a release, as numbers, satisfies every clause; "2.4" stands for 2.4.0."""
        if self.wheel is not None:
            return _same(release, numbers(self.wheel.version))
        return all(_satisfies(release, sign, version) for sign, version in self.clauses)


@attrs.frozen(kw_only=True)
class Requirements:
    """What would be installed into an image, as far as the lines tell.

    `indexes` are addresses that options add, `instead` says that one of them replaces the usual index. `backend` is
    uv's choice of PyTorch's index ("cu124", "cpu", "auto"). `unread` are lines and sources that were not understood.
    """

    items: tuple[Requirement, ...] = ()
    indexes: tuple[str, ...] = ()
    instead: bool = False
    backend: str = ""
    unread: tuple[str, ...] = ()

    def get(self, name: str) -> Requirement | None:
        """The requirement of a distribution; a later line of the same one adds to the first."""
        return next((item for item in self.items if item.name == name), None)


def requirements(
    lines: Iterable[str], *, python: Release = (), machine: str = "", options: Mapping[str, object] | None = None
) -> Requirements:
    """Lines and an installer's options as values; those whose marker is for another Python or machine are left out."""
    found: dict[str, Requirement] = {}
    options_found: list[tuple[str, str]] = [
        (f"--{name.lstrip('-').replace('_', '-')}", str(value))
        for name, given in (options or {}).items()
        for value in (given if isinstance(given, (list, tuple)) else [given])
        if value is not None
    ]
    unread: list[str] = []
    undecided: set[str] = set()
    unclear: set[str] = set()
    for line in _joined(lines):
        if line.startswith("-"):
            options_found.append(_option(line))
            if options_found[-1][0] in ("-r", "--requirement", "-e", "--editable"):
                unread.append(line)
            continue
        item = requirement(line)
        if item is None:
            unread.append(line)
            continue
        there = applies(item.marker, python=python, machine=machine)
        if there is False:
            continue
        before = found.get(item.name)
        if before is not None and (there is None or item.name in undecided):
            # Several, of which a marker chooses that cannot be told: which one it is would be a guess.
            unread.append(line)
            unclear.add(item.name)
            continue
        if there is None:
            undecided.add(item.name)
        if before is not None:
            extras, clauses = before.extras | item.extras, (*before.clauses, *item.clauses)
            item = attrs.evolve(before, extras=extras, clauses=clauses, wheel=before.wheel or item.wheel)
        found[item.name] = item
    for name in unclear:
        unread.append(found.pop(name).text)
    kinds = [(_INDEX_OPTIONS.get(name, ""), value) for name, value in options_found]
    return Requirements(
        items=tuple(found.values()),
        indexes=tuple(value for kind, value in kinds if kind in ("index", "extra")),
        instead=any(kind == "index" for kind, _ in kinds),
        backend=next((value for kind, value in reversed(kinds) if kind == "backend"), ""),
        unread=tuple(unread),
    )


def requirement(line: str) -> Requirement | None:
    """One line as a value; None for one that is no requirement by name."""
    text = line.strip()
    alone = text.partition(";")[0].strip()
    bare = wheel_of(alone) if not re.search(r"\s", alone) else None
    if bare is not None:
        return Requirement(name=bare[0], text=text, url=alone, wheel=bare[1])
    match = _LINE.fullmatch(text)
    if match is None:
        return None
    url = match["url"] or ""
    linked = wheel_of(url) if url else None
    return Requirement(
        name=canonical(match["name"]),
        text=text,
        extras=frozenset(canonical(extra.strip()) for extra in (match["extras"] or "").split(",") if extra.strip()),
        clauses=tuple((sign, version) for sign, version in _CLAUSE.findall(match["clauses"] or "")),
        marker=(match["marker"] or "").strip(),
        url=url,
        wheel=linked[1] if linked is not None else None,
    )


def wheel_of(url: str) -> tuple[str, Wheel] | None:
    """The distribution and the wheel that a path or an address ends in; None where it ends in none."""
    file = unquote(re.split(r"[#?]", url)[0].rpartition("/")[2])
    match = _WHEEL.fullmatch(file)
    if match is None:
        return None
    wheel = Wheel(
        version=match["version"],
        pythons=tuple(match["python"].split(".")),
        abis=tuple(match["abi"].split(".")),
        # A platform's own dots are underscores, but for those that join several: manylinux_2_17_x86_64.manylinux2014…
        platforms=tuple(match["platform"].split(".")),
    )
    return canonical(match["name"]), wheel


def applies(marker: str, *, python: Release, machine: str) -> bool | None:
    """Whether a marker is true for a Linux machine; None where it asks what is not known here."""
    if not marker:
        return True
    tokens = _TOKEN.findall(marker)
    if "".join("".join(tokens).split()) != "".join(marker.split()):
        return None
    value, rest = _choice(tokens, python, machine)
    return None if rest else value


def numbers(version: str) -> Release:
    """`"2.4.0rc1+cu124"` as (2, 4, 0); empty for a text without a number at its start."""
    match = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def canonical(name: str) -> str:
    """A distribution's name in the form in which all spellings are one: "Torch_Audio" is "torch-audio"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _joined(lines: Iterable[str]) -> list[str]:
    """Lines without comments, hashes, and the backslashes that join them."""
    text = re.sub(r"\\\s*\n", " ", "\n".join(lines))
    kept = (re.sub(r"(?:^|\s)#.*$", "", line) for line in text.splitlines())
    bare = (re.sub(r"\s+--(?:hash|config-settings?|global-option)[= ]\S+", "", line).strip() for line in kept)
    return [line for line in bare if line]


def _option(line: str) -> tuple[str, str]:
    name, _, value = re.sub(r"[=\s]+", " ", line, count=1).partition(" ")
    return name, value.strip().strip("'\"")


def _satisfies(release: Release, sign: str, version: str) -> bool:
    prefix = version.endswith(".*")
    wanted = numbers(version.removesuffix(".*"))
    if not wanted:
        return True  # a version that is no number: nothing is said against any
    if prefix:
        same = _padded(release, len(wanted))[: len(wanted)] == wanted
        return same if sign == "==" else not same
    ours, theirs = _padded(release, len(wanted)), _padded(wanted, len(release))
    if sign == "~=":
        return ours >= theirs and ours[: len(wanted) - 1] == wanted[:-1]
    results = {
        "==": ours == theirs,
        "===": ours == theirs,
        "!=": ours != theirs,
        "<=": ours <= theirs,
        ">=": ours >= theirs,
        "<": ours < theirs,
        ">": ours > theirs,
    }
    return results[sign]


def _same(one: Release, other: Release) -> bool:
    return _padded(one, len(other)) == _padded(other, len(one))


def _padded(release: Release, length: int) -> Release:
    return release + (0,) * (length - len(release))


def _choice(tokens: Sequence[str], python: Release, machine: str) -> tuple[bool | None, Sequence[str]]:
    """The value of what tokens begin with, up to a bracket that closes it, and the tokens behind."""
    found: list[bool | None] = []
    while True:
        value, tokens = _together(tokens, python, machine)
        found.append(value)
        if not tokens or tokens[0] != "or":
            return _any(found), tokens
        tokens = tokens[1:]


def _together(tokens: Sequence[str], python: Release, machine: str) -> tuple[bool | None, Sequence[str]]:
    found: list[bool | None] = []
    while tokens:
        head, tokens = tokens[0], tokens[1:]
        if head == "(":
            value, tokens = _choice(tokens, python, machine)
            if not tokens or tokens[0] != ")":
                return None, tokens
            tokens = tokens[1:]
        else:
            value = _compared(head, python, machine)
        found.append(value)
        if not tokens or tokens[0] != "and":
            break
        tokens = tokens[1:]
    return (_all(found) if found else None), tokens


def _compared(part: str, python: Release, machine: str) -> bool | None:
    match = _COMPARED.fullmatch(part.strip())
    if match is None:
        return None
    variable, sign, value = match.groups()
    if variable in _PYTHON_VARIABLES:
        if not python or sign == "in":
            return None
        known = python[:2] if variable == "python_version" else python
        return _satisfies(known, sign, value) if len(known) >= 2 else None
    known_text = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": machine,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }.get(variable, "")
    if not known_text:
        return None
    return {"==": known_text == value, "!=": known_text != value, "in": known_text in value}.get(sign)


def _all(parts: Iterable[bool | None]) -> bool | None:
    known: Sequence[bool | None] = list(parts)
    return False if False in known else None if None in known else True


def _any(parts: Iterable[bool | None]) -> bool | None:
    known: Sequence[bool | None] = list(parts)
    return True if True in known else None if None in known else False
