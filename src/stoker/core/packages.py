"""The Python packages that a step needs, in an image or in an environment of its own on this machine; and locks: the
exact packages that requirements come to, as a resolver found them.

Values only: `plan` puts them into an image's settings, `images.environments` makes an environment of them.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Final, Iterable, Literal, Mapping

import attrs

from stoker.core.docker import parse_python
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.units import UNSET, parse_flag, parse_mapping, parse_text, parse_texts, strict, value_or
from stoker.core.values import frozen, lazy_pattern

Kind = Literal["local", "pypi", "conda", "uv"]
KINDS: Final[tuple[Kind, ...]] = ("local", "pypi", "conda", "uv")
"""Where packages come from on this machine: `local` is the driver's own environment, the others make one."""
CHANNELS: Final = ("conda-forge",)
FORMAT: Final = 1
"""Of the digest: an environment of another format is never taken for this one."""
LOCK_FORMAT: Final = 1
"""Of a lock's document; part of every digest, so that a lock of another format is never taken for this one."""
# https://packaging.python.org/en/latest/specifications/dependency-specifiers/#names
_NAME: Final = lazy_pattern(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[([A-Za-z0-9._,\s-]*)\])?")
_VERSION: Final = lazy_pattern(r"[A-Za-z0-9.*+!_-]+")
_CLAUSE: Final = lazy_pattern(rf"(===|[<>=!~]=|[<>])\s*{_VERSION.pattern}")
# https://docs.conda.io/projects/conda-build/en/latest/resources/package-spec.html#package-match-specifications
_CONDA_NAME: Final = lazy_pattern(r"(?:[A-Za-z0-9_./-]+::)?[A-Za-z0-9_][A-Za-z0-9._-]*")
_CONDA_VERSION: Final = lazy_pattern(r"[A-Za-z0-9.*+!_=<>|,~-]*")
_PIN: Final = lazy_pattern(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:==\s*([^\s;]+)|@\s)")

Trouble = Literal["conflict", "missing", "unanswered", "unbuilt", "undecided"]
"""Why requirements have no lock: they contradict each other; no index has such a package or version; no index
answered; the metadata of a package could not be made here; a fact that decides is not known."""


@frozen(kw_only=True)
class Interpreter:
    """An environment's Python, as processes are started in it: its program, `sys.path`, and variables."""

    executable: str
    path: tuple[str, ...]
    environment: Mapping[str, str] = attrs.field(factory=dict)


def canonical(name: str) -> str:
    """A project's name as indexes compare it: https://packaging.python.org/en/latest/specifications/name-normalization."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def parse_pypi(value: Mapping[str, str | None] | None) -> Mapping[str, str | None] | None:
    """Names, with extras, to versions; names in the one form in which all spellings are the same."""
    return _parse_versions(value, _pypi_name, _pypi_version)


def parse_conda(value: Mapping[str, str | None] | None) -> Mapping[str, str | None] | None:
    """Names, or "channel::name", to versions."""
    return _parse_versions(value, _conda_name, _conda_version)


def parse_kind(value: Kind | None) -> Kind | None:
    """`environment`."""
    raw: Any = value
    if raw is not None and raw is not UNSET and raw not in KINDS:
        raise SettingsError(f"{value!r} is not one of {', '.join(KINDS)}", fix='write "pypi"')
    return value


def parse_index_url(value: str | None) -> str | None:
    """The address of an index; one with a password is refused, since settings are kept with the run."""
    from urllib.parse import urlsplit  # it takes milliseconds, and few settings have an address

    text = parse_text(value)
    if text and urlsplit(text).password:
        raise SettingsError(
            "the address of an index has a password, and settings are kept with every run",
            fix="write it without, and put the password into ~/.netrc, or give the address to pip or uv by their files",
        )
    return text


def parse_index_urls(value: Iterable[str] | None) -> tuple[str, ...] | None:
    """Addresses of indexes."""
    texts = parse_texts(value)
    for text in texts or ():
        parse_index_url(text)
    return texts


@strict
@frozen(kw_only=True)
class PackageSettings:
    """The Python packages that a step needs. A field that is not given is `UNSET`; `None` takes back what weaker layers
    say, also of a single package."""

    pypi: Mapping[str, str | None] | None = attrs.field(default=UNSET, converter=parse_pypi)
    """Package → version: "1.26.4" is that one, ">=1.26,<2" a range, "" any."""
    conda: Mapping[str, str | None] | None = attrs.field(default=UNSET, converter=parse_conda)
    """The same for conda's packages; a key may name a channel: "channel::name"."""
    channels: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_texts)
    """Conda's channels; conda-forge where none is given."""
    python: str | None = attrs.field(default=UNSET, converter=parse_python)
    """The version of Python; the driver's where none is given."""
    index_url: str | None = attrs.field(default=UNSET, converter=parse_index_url)
    """The index in place of the installer's own."""
    extra_index_urls: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_index_urls)
    """Indexes beside it."""
    environment: Kind | None = attrs.field(default=UNSET, converter=parse_kind)
    """What happens on this machine: "local" compares the packages with the driver's and refuses differences; "pypi",
    "conda" and "uv" make an environment for a step whose packages differ from the driver's, "uv" always by uv."""
    disabled: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """Whether the step needs none of these packages."""

    @property
    def makes_environment(self) -> bool:
        """Whether an environment may be made of it on this machine."""
        return value_or(self.environment, "local") != "local"

    @property
    def empty(self) -> bool:
        """Whether the step needs nothing of all this."""
        needed = bool(_without_none(self.pypi)) or bool(_without_none(self.conda)) or bool(value_or(self.python, ""))
        return bool(value_or(self.disabled, False)) or not needed

    @property
    def requirements(self) -> tuple[str, ...]:
        """Lines for pip or uv, one for each package, by name."""
        return tuple(requirement(name, version) for name, version in sorted(_without_none(self.pypi).items()))

    @property
    def specifications(self) -> tuple[str, ...]:
        """Words for conda, one for each package, by name."""
        return tuple(specification(name, version) for name, version in sorted(_without_none(self.conda).items()))

    @property
    def indexes(self) -> tuple[str, ...]:
        """Flags that say to pip or uv where to look."""
        flags = [f"--index-url={self.index_url}"] if value_or(self.index_url, "") else []
        return (*flags, *(f"--extra-index-url={text}" for text in value_or(self.extra_index_urls, ())))

    @property
    def text(self) -> str:
        """What is asked for, in a line."""
        python = [f"Python {self.python}"] if value_or(self.python, "") else []
        return ", ".join([*python, *self.requirements, *self.specifications])


def requirement(name: str, version: str) -> str:
    """A requirement's line: `six==1.15.0` of "1.15.0", `six>=1` of ">=1", `six` of "", `six @ …` of "@ …"."""
    if version.startswith("@"):
        return f"{name} @ {version[1:].strip()}"
    return name + clauses(version)


def specification(name: str, version: str) -> str:
    """A word of conda's: `numpy==1.26.4` of "1.26.4", `numpy>=1.26` of ">=1.26", `numpy` of ""."""
    return name + clauses(version)


def clauses(version: str) -> str:
    """What stands behind a package's name for a version: `==1.15.0` of "1.15.0", `>=1` of ">=1", nothing of ""."""
    return version if not version or version[0] in "<>=!~" else f"=={version}"


def name_of(key: str) -> str:
    """The package that a key of `pypi` or `conda` means, without extras and channel."""
    return canonical(key.rpartition("::")[2].partition("[")[0])


def digest(packages: PackageSettings, *, python: str, platform: str, more: Iterable[str] = ()) -> str:
    """The name of an environment, made from all its packages and versions.

    `python` and `platform` are the driver's, such as "3.11.7" and "linux-x86_64"; `more` are lines beside those of the
    settings.
    """
    import hashlib
    import json

    document = {
        "format": FORMAT,
        "requirements": [*more, *packages.requirements],
        "conda": list(packages.specifications),
        "channels": list(value_or(packages.channels, CHANNELS)) if packages.specifications else [],
        "python": value_or(packages.python, python),
        "indexes": list(packages.indexes),
        "platform": platform,
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _without_none(value: Mapping[str, str | None] | None) -> dict[str, str]:
    return {name: text for name, text in value_or(value, {}).items() if text is not None}


def _parse_versions(
    value: Any, parse_name: Callable[[str], str], parse_version: Callable[[str, str], str]
) -> Mapping[str, str | None] | None:
    raw: Any = parse_mapping(value)
    if raw is None or raw is UNSET:
        return raw
    versions: dict[str, str | None] = {}
    for name, version in raw.items():
        if version is not None and not isinstance(version, str):
            raise SettingsError(f"the version of {name} is {version!r}, not a text", fix=f'write "{version}" in quotes')
        key = parse_name(name)
        if key in versions:
            raise SettingsError(f"{name} is there twice, in two spellings", fix="remove one of the two")
        versions[key] = None if version is None else parse_version(name, version.strip())
    return versions


def _pypi_name(name: str) -> str:
    match = _NAME.fullmatch(name.strip())
    if match is None:
        raise SettingsError(f"{name!r} is not the name of a package", fix='write {"numpy": "1.26.4"}')
    extras = sorted({canonical(extra) for extra in (match[2] or "").split(",") if extra.strip()})
    return canonical(match[1]) + (f"[{','.join(extras)}]" if extras else "")


def _pypi_version(name: str, version: str) -> str:
    if version.startswith("@"):
        if not version[1:].strip() or re.search(r"[\r\n]", version):
            raise SettingsError(f"the address of {name} is missing", fix='write {"package": "@ https://…"}')
        parse_index_url(version[1:].strip())
        return version
    if version and not (
        _VERSION.fullmatch(version) or all(_CLAUSE.fullmatch(one.strip()) for one in version.split(","))
    ):
        raise SettingsError(f"{version!r} is not a version of {name}", fix='write "1.26.4", ">=1.26,<2", or ""')
    return version


def _conda_name(name: str) -> str:
    if not _CONDA_NAME.fullmatch(name.strip()):
        raise SettingsError(f"{name!r} is not the name of a package", fix='write "numpy", or "conda-forge::numpy"')
    return name.strip()


def _conda_version(name: str, version: str) -> str:
    if not _CONDA_VERSION.fullmatch(version):
        raise SettingsError(f"{version!r} is not a version of {name}", fix='write "1.26.4", ">=1.26,<2", or ""')
    return version


@frozen(kw_only=True)
class LockedList:
    """What one call of the installer installs."""

    name: str
    """The name of the list of requirements that it comes from: "file", "listed", "project", "local", "stoker"."""
    lines: tuple[str, ...]
    """A requirements file: the options of the list's own lines, then `name==version --hash=…` for each package."""


@frozen(kw_only=True)
class Lock:
    """The exact packages of one image, or of one environment."""

    digest: str
    """Of everything that the resolver was given."""
    requirements: str
    """Of the lists of requirements and the installer's arguments alone."""
    resolver: str
    """The program and its version: "uv 0.13.9"."""
    python: str
    """The Python that the packages are for: "3.11"."""
    platform: str
    """The platform that the wheels are for: "manylinux_2_36_x86_64"."""
    lists: tuple[LockedList, ...]
    """In the order of installation; a later list's version of a package replaces that of an earlier one."""
    whole: bool = True
    """Whether it says of every package which version the image has: nothing is known of other packages of some parent
    images, and then the lock only predicts."""
    kept: Mapping[str, str] = attrs.field(factory=dict)
    """Distribution → version, of those that the parent image has and that stay."""
    made: str = ""
    """The day on which it was resolved: "2026-11-22"."""
    version: int = LOCK_FORMAT

    @property
    def versions(self) -> dict[str, str]:
        """Distribution → version of all that is installed; of a package from an address, the empty text."""
        versions = dict(self.kept)
        for group in self.lists:
            for line in group.lines:
                match = _PIN.match(line)
                if match is not None:
                    versions[match[1]] = match[2] or ""
        return versions

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each package, without hashes, by name."""
        pins: dict[str, str] = {}
        for group in self.lists:
            for line in group.lines:
                match = _PIN.match(line)
                if match is not None:
                    pins[match[1]] = line.partition(" --hash=")[0]
        return tuple(pins[name] for name in sorted(pins))


@frozen(kw_only=True)
class Unresolved:
    """Why there is no lock."""

    trouble: Trouble
    reason: str
    """The resolver's own words, or one sentence."""
    resolver: str = ""
    """The program that answered; empty if none was asked."""
    sure: bool = True
    """Whether nothing that the parent image may have, and that is not known, could satisfy them."""
    list: str = ""
    """Where the requirements come from: "requirements.txt"; empty for all."""

    @property
    def wrong(self) -> bool:
        """Whether installing these requirements is known to fail."""
        return self.sure and self.trouble in ("conflict", "missing")


@frozen(kw_only=True)
class Resolution:
    """What is known, before a build, of what it will install."""

    lock: Lock | None = None
    reason: str = ""
    """Why there is no lock, in a sentence; empty if nothing is to be resolved."""
    findings: tuple[Finding, ...] = ()
