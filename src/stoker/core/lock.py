"""Locks: the exact packages that an image's requirements come to, as a resolver found them. Values only."""

from __future__ import annotations

import re
from typing import Final, Literal, Mapping

import attrs

from stoker.core.findings import Finding

FORMAT: Final = 1
"""Of a lock's document; part of every digest, so that a lock of another format is never taken for this one."""
_PIN: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:==\s*([^\s;]+)|@\s)")

Trouble = Literal["conflict", "missing", "unanswered", "unbuilt", "undecided"]
"""Why requirements have no lock: they contradict each other; no index has such a package or version; no index
answered; the metadata of a package could not be made here; a fact that decides is not known."""


@attrs.frozen(kw_only=True)
class LockedList:
    """What one call of the installer installs."""

    name: str
    """The name of the list of requirements that it comes from: "file", "listed", "project", "local", "stoker"."""
    lines: tuple[str, ...]
    """A requirements file: the options of the list's own lines, then `name==version --hash=…` for each package."""


@attrs.frozen(kw_only=True)
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
    version: int = FORMAT

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


@attrs.frozen(kw_only=True)
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


@attrs.frozen(kw_only=True)
class Resolution:
    """What is known, before a build, of what it will install."""

    lock: Lock | None = None
    reason: str = ""
    """Why there is no lock, in a sentence; empty if nothing is to be resolved."""
    findings: tuple[Finding, ...] = ()
