"""Requirements as values: name, extras, versions, marker, wheel, and the index that they come from. Pure.

`packaging` decides what versions and markers mean. A marker is evaluated for a Linux machine and the Python of an
image, which may not be fully known; a marker that cannot be decided is unknown.
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
from stoker.images.requirements import logical_lines, option_of, parsed, specifier_of, wheel_of

Release = tuple[int, ...]

_TEXT: Final = r"\"[^\"]*\"|'[^']*'"
_COMPARISON: Final = re.compile(
    rf"({_TEXT}|\w+)\s*(===|==|~=|!=|<=|>=|<|>|not\s+in\b|in\b)\s*({_TEXT}|\w+)",
)
"""One comparison of a marker that `packaging` has parsed: a variable and a text, in either order."""
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
"""Values of marker variables that are the same in every image."""
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
"""Option of pip or uv → whether it replaces the usual index, adds one, or chooses PyTorch's."""


@attrs.frozen(kw_only=True)
class Wheel:
    """The parts of a wheel's file name: its version, and the Pythons, ABIs and platforms that it is for."""

    version: str
    pythons: tuple[str, ...]
    abis: tuple[str, ...]
    platforms: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Requirement:
    """One requirement."""

    name: str
    """The normalized name of the project."""
    text: str
    """The line as it was written."""
    extras: frozenset[str] = frozenset()
    specifier: SpecifierSet = attrs.field(factory=SpecifierSet)
    """The versions that it allows."""
    marker: str = ""
    url: str = ""
    wheel: Wheel | None = None
    """The wheel that the URL names."""

    @property
    def pinned(self) -> str:
        """The only version that it allows, with its local part; empty if it allows several."""
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
        """The local part of its version: "cu121", "cpu", "rocm6.2"; empty if there is none."""
        return self.pinned.partition("+")[2]

    def allows(self, version: str) -> bool:
        """Whether an installed version satisfies it; "2.4" means 2.4.0."""
        if self.wheel is not None:
            return same_version(version, self.wheel.version)
        return satisfies(version, self.specifier)


@attrs.frozen(kw_only=True)
class Requirements:
    """What would be installed into an image, as far as its lines state it."""

    items: tuple[Requirement, ...] = ()
    indexes: tuple[str, ...] = ()
    """URLs of indexes that options name."""
    instead: bool = False
    """Whether one of them replaces the usual index."""
    backend: str = ""
    """uv's choice of PyTorch's index: "cu124", "cpu", "auto"."""
    unread: tuple[str, ...] = ()
    """Lines and sources that were not understood."""

    def get(self, name: str) -> Requirement | None:
        """The requirement of a project, merged from all its lines; None if there is none."""
        return next((item for item in self.items if item.name == name), None)


def requirements(
    lines: Iterable[str], *, python: Release = (), machine: str = "", options: Mapping[str, object] | None = None
) -> Requirements:
    """Parse lines and an installer's options; lines whose marker is for another Python or machine are left out."""
    items: dict[str, Requirement] = {}
    option_pairs: list[tuple[str, str]] = [
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
            option_pairs.append(option_of(line) or (line, ""))
            if option_pairs[-1][0] in ("-r", "--requirement", "-e", "--editable"):
                unread.append(line)
            continue
        item = requirement(line)
        if item is None:
            unread.append(line)
            continue
        applicable = applies(item.marker, python=python, machine=machine)
        if applicable is False:
            continue
        earlier = items.get(item.name)
        if earlier is not None and (applicable is None or item.name in undecided):
            # Undecided markers choose between several lines: taking one would be a guess.
            unread.append(line)
            unclear.add(item.name)
            continue
        if applicable is None:
            undecided.add(item.name)
        if earlier is not None:
            extras, specifier = earlier.extras | item.extras, earlier.specifier & item.specifier
            item = attrs.evolve(earlier, extras=extras, specifier=specifier, wheel=earlier.wheel or item.wheel)
        items[item.name] = item
    for name in unclear:
        unread.append(items.pop(name).text)
    kinds = [(_INDEX_OPTIONS.get(name, ""), value) for name, value in option_pairs]
    return Requirements(
        items=tuple(items.values()),
        indexes=tuple(value for kind, value in kinds if kind in ("index", "extra")),
        instead=any(kind == "index" for kind, _ in kinds),
        backend=next((value for kind, value in reversed(kinds) if kind == "backend"), ""),
        unread=tuple(unread),
    )


def requirement(line: str) -> Requirement | None:
    """Parse one line; None if it names no project."""
    text = line.strip()
    address, _, marker = specifier_of(text).partition(";")
    name, wheel = _wheel(address.strip())
    if wheel is not None and not re.search(r"\s|@", address.strip()):
        return Requirement(name=name, text=text, marker=marker.strip(), url=address.strip(), wheel=wheel)
    parsed_line = parsed(text)
    if parsed_line is None:
        return None
    return Requirement(
        name=canonicalize_name(parsed_line.name),
        text=text,
        extras=frozenset(map(canonicalize_name, parsed_line.extras)),
        specifier=parsed_line.specifier,
        marker=str(parsed_line.marker or ""),
        url=parsed_line.url or "",
        wheel=_wheel(parsed_line.url)[1] if parsed_line.url else None,
    )


def satisfies(version: str, specifier: SpecifierSet) -> bool:
    """Whether an installed version satisfies a specifier; an invalid version does not.

    A pre-release such as 2.0rc1 counts by its order: an installer keeps one that fits
    (`PipProvider.is_satisfied_by` in https://github.com/pypa/pip/blob/main/src/pip/_internal/resolution/resolvelib).
    """
    try:
        return specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def check_versions(pypi: Mapping[str, str | None], origins: Mapping[str, str]) -> None:
    """Refuse invalid versions of packages from an index; `origins` has each one's origin under "packages.pypi.NAME"."""
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
    """Whether two versions are equal apart from their local parts."""
    try:
        return Version(Version(one).public) == Version(Version(other).public)
    except InvalidVersion:
        return one == other


def applies(marker: str, *, python: Release, machine: str) -> bool | None:
    """Whether a marker is true for a Linux machine; None if that depends on what is not known.

    Markers have no negation: one is true if it is true with every unknown comparison false, and false if it is false
    with every unknown comparison true.
    """
    if not marker:
        return True
    try:
        text = str(Marker(marker))
    except InvalidMarker:
        return None

    def evaluated(otherwise: str) -> bool:
        def decided(comparison: re.Match[str]) -> str:
            answer = _compared(comparison, python, machine)
            return otherwise if answer is None else _ALWAYS if answer else _NEVER

        return Marker(_COMPARISON.sub(decided, text)).evaluate()

    least, most = evaluated(_NEVER), evaluated(_ALWAYS)
    return most if least is most else None


def numbers(version: str) -> Release:
    """The release of a version: (2, 4, 0) of "2.4.0rc1+cu124"; empty for a text that begins with no number."""
    match = re.match(r"v?(?:[0-9]+!)?([0-9]+(?:\.[0-9]+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _wheel(address: str) -> tuple[str, Wheel | None]:
    """The project and the wheel of a URL; ("", None) if it does not end in a wheel."""
    wheel = wheel_of(address)
    if wheel is None:
        return "", None
    name, version, tags = wheel
    # Dots join several platforms; within one, underscores stand for dots: manylinux_2_17_x86_64.manylinux2014…
    pythons, abis, platforms = (tuple(tag.split(".")) for tag in tags)
    return name, Wheel(version=version, pythons=pythons, abis=abis, platforms=platforms)


def _compared(comparison: re.Match[str], python: Release, machine: str) -> bool | None:
    left, _, right = comparison.groups()
    variable, literal = (right, left) if left[0] in "\"'" else (left, right)
    answers = set()
    for environment in _environments(variable, literal.strip("\"'"), python, machine):
        try:
            answers.add(Marker(comparison[0]).evaluate(environment))
        except (UndefinedComparison, UndefinedEnvironmentName):
            return None
    return answers.pop() if len(answers) == 1 else None


def _environments(variable: str, text: str, python: Release, machine: str) -> Iterator[dict[str, str]]:
    """The possible values of a variable: several if the Python's patch is not known, none if it is unknown."""
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
