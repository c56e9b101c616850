"""Lines of a requirements file as values: name, extras, versions, marker, wheel, and the index they come from. Pure.

`packaging` decides what versions and markers mean. A marker is asked about the Linux machine and the Python of an image
that may not be known in full; what cannot be decided is said to be unknown.
"""

from __future__ import annotations

import re
from typing import Final, Iterable, Iterator, Mapping

import attrs
from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from stoker.core.errors import SettingsError
from stoker.core.packages import clauses
from stoker.images.requirementlines import logical_lines, option_of, parsed, specifier_of, wheel_of

Release = tuple[int, ...]

_TEXT: Final = r"\"[^\"]*\"|'[^']*'"
_COMPARISON: Final = re.compile(
    rf"({_TEXT}|\w+)\s*(===|==|~=|!=|<=|>=|<|>|not\s+in\b|in\b)\s*({_TEXT}|\w+)",
)
"""One comparison of a marker that `packaging` has parsed: a variable and a text, in either order"""
_ALWAYS: Final = 'python_version >= "0"'
_NEVER: Final = 'python_version < "0"'
_LINUX: Final[Mapping[str, str]] = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "extra": "",  # a line of a file is installed for no extra
}
"""What every image answers to a marker"""
_PYTHON: Final = ("python_version", "python_full_version", "implementation_version")
_LAST_PATCH: Final = 999
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
    """One requirement. `specifier` says which versions it allows; `wheel` is the file that a URL names."""

    name: str
    text: str
    extras: frozenset[str] = frozenset()
    specifier: SpecifierSet = attrs.field(factory=SpecifierSet)
    marker: str = ""
    url: str = ""
    wheel: Wheel | None = None

    @property
    def pinned(self) -> str:
        """The one version that it allows, with its local part; empty where it allows several."""
        if self.wheel is not None:
            return self.wheel.version
        exact = [
            clause.version
            for clause in self.specifier
            if clause.operator in ("==", "===") and not clause.version.endswith(".*")
        ]
        return max(exact, key=len, default="")

    @property
    def local(self) -> str:
        """What stands behind the "+" of its version: "cu121", "cpu", "rocm6.2"; empty where nothing does."""
        return self.pinned.partition("+")[2]

    def allows(self, version: str) -> bool:
        """Whether a version satisfies it, as one that is installed does; "2.4" stands for 2.4.0."""
        if self.wheel is not None:
            return same_version(version, self.wheel.version)
        return satisfies(version, self.specifier)


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
    for _, line in logical_lines("\n".join(lines)):
        if line.startswith("-"):
            options_found.append(option_of(line) or (line, ""))
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
            extras, specifier = before.extras | item.extras, before.specifier & item.specifier
            item = attrs.evolve(before, extras=extras, specifier=specifier, wheel=before.wheel or item.wheel)
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
    """One line as a value; None for one that names no project."""
    text = line.strip()
    address, _, marker = specifier_of(text).partition(";")
    name, wheel = _wheel(address.strip())
    if wheel is not None and not re.search(r"\s|@", address.strip()):
        return Requirement(name=name, text=text, marker=marker.strip(), url=address.strip(), wheel=wheel)
    asked = parsed(text)
    if asked is None:
        return None
    return Requirement(
        name=canonicalize_name(asked.name),
        text=text,
        extras=frozenset(map(canonicalize_name, asked.extras)),
        specifier=asked.specifier,
        marker=str(asked.marker or ""),
        url=asked.url or "",
        wheel=_wheel(asked.url)[1] if asked.url else None,
    )


def satisfies(version: str, specifier: SpecifierSet) -> bool:
    """Whether an installed version is one that a specifier allows; a text that is no version is not.

    A release that leads up to another, such as 2.0rc1, counts by its place: an installer leaves it where it fits
    (`PipProvider.is_satisfied_by` in https://github.com/pypa/pip/blob/main/src/pip/_internal/resolution/resolvelib).
    """
    try:
        return specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def check_versions(pypi: Mapping[str, str | None], origins: Mapping[str, str]) -> None:
    """Refuse what is no version of a package from an index; `origins` has the place of each as "packages.pypi.NAME"."""
    for name, version in pypi.items():
        if not version or version.startswith("@"):
            continue
        try:
            SpecifierSet(clauses(version))
        except InvalidSpecifier:
            raise SettingsError(
                f"packages.pypi: {version!r} is not a version of {name}",
                where=origins.get(f"packages.pypi.{name}", ""),
                fix='write "1.26.4", "1.26.*", ">=1.26,<2", or ""; "*" goes with == and != only, "+cu128" too',
            ) from None


def same_version(one: str, other: str) -> bool:
    """Whether two versions are the same but for their local parts."""
    try:
        return Version(Version(one).public) == Version(Version(other).public)
    except InvalidVersion:
        return one == other


def applies(marker: str, *, python: Release, machine: str) -> bool | None:
    """Whether a marker is true for a Linux machine; None where it asks what is not known here.

    No marker negates: it is true whatever is unknown if it is true with each unknown comparison false, and false if it
    is false with each of them true.
    """
    if not marker:
        return True
    try:
        text = str(Marker(marker))
    except InvalidMarker:
        return None

    def evaluated(otherwise: str) -> bool:
        def known(comparison: re.Match[str]) -> str:
            answer = _compared(comparison, python, machine)
            return otherwise if answer is None else _ALWAYS if answer else _NEVER

        return Marker(_COMPARISON.sub(known, text)).evaluate()

    least, most = evaluated(_NEVER), evaluated(_ALWAYS)
    return most if least is most else None


def numbers(version: str) -> Release:
    """`"2.4.0rc1+cu124"` as (2, 4, 0); empty for a text without a number at its start."""
    match = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _wheel(address: str) -> tuple[str, Wheel | None]:
    """The project and the wheel of an address; nothing for one that does not end in a wheel."""
    found = wheel_of(address)
    if found is None:
        return "", None
    name, version, tags = found
    # A platform's own dots are underscores, but for those that join several: manylinux_2_17_x86_64.manylinux2014…
    pythons, abis, platforms = (tuple(tag.split(".")) for tag in tags)
    return name, Wheel(version=version, pythons=pythons, abis=abis, platforms=platforms)


def _compared(comparison: re.Match[str], python: Release, machine: str) -> bool | None:
    left, _, right = comparison.groups()
    variable, text = (right, left) if left[0] in "\"'" else (left, right)
    answers = set()
    for environment in _environments(variable, text.strip("\"'"), python, machine):
        try:
            answers.add(Marker(comparison[0]).evaluate(environment))
        except (UndefinedComparison, UndefinedEnvironmentName):
            return None
    return answers.pop() if len(answers) == 1 else None


def _environments(variable: str, text: str, python: Release, machine: str) -> Iterator[dict[str, str]]:
    """What a variable may be: several values where the Python's last number is not known, none for what is unknown."""
    known = {**_LINUX, **({"platform_machine": machine} if machine else {})}
    if variable in known:
        yield {variable: known[variable]}
    elif variable == "python_version" and len(python) >= 2:
        yield {variable: f"{python[0]}.{python[1]}"}
    elif variable in _PYTHON and len(python) >= 2:
        minor = f"{python[0]}.{python[1]}"
        patches = {python[2]} if len(python) > 2 else {0, _LAST_PATCH}
        named = numbers(text)
        if len(python) == 2 and named[:2] == python and len(named) > 2:
            patches.add(named[2])
        for patch in patches:
            yield {variable: f"{minor}.{patch}"}
