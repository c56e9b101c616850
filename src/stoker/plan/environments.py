"""Which environment a step on this machine runs in: the driver's, if that has the packages, else one of its own.

An environment is named here by a digest of what is asked of it, so that a plan can tell it; `images.environments` makes
it. What is asked for, is missing, and may not be made is a finding: a step never runs with other packages, unsaid.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from importlib import metadata
from typing import Final, Iterable, Iterator

from stoker.core.findings import Finding
from stoker.core.packages import PackageSettings, digest, name_of, requirement
from stoker.core.plan import Backend, StepPlan
from stoker.core.units import given
from stoker.images.installers import CONDA, UV, VERSION, is_this, maker
from stoker.plan.imagepackages import project
from stoker.plan.requirements import numbers
from stoker.plan.requirements import requirement as parsed

MISSING: Final = "STK114"
NOT_MADE: Final = "STK115"
_EARLY: Final = re.compile(r"a|b|c|dev|pre")


def environment_of(packages: PackageSettings | None) -> str:
    """The name of the environment that a step on this machine gets; empty for the driver's own."""
    if packages is None or not packages.own or not any(differences(packages)):
        return ""
    machine = f"{sys.platform}-{platform.machine()}"
    return digest(packages, python=VERSION, platform=machine, more=project_lines(packages))


def project_lines(packages: PackageSettings) -> tuple[str, ...]:
    """What uv's environments have beside a step's packages: the project's dependencies, as its lock has them."""
    path = project() if packages.environment == "uv" else None
    if path is None:
        return ()
    from stoker.images.requirements import from_project
    from stoker.images.requirements import name_of as named

    own = {name_of(name) for name, version in given(packages.pypi, {}).items() if version is not None}
    return tuple(line for line in from_project(path).lines if named(line) not in own)


def differences(packages: PackageSettings) -> Iterator[tuple[str, str, str]]:
    """What the driver's environment lacks: the setting's field, what is asked for, and what is here in its place."""
    if packages.empty:
        return
    python = given(packages.python, "")
    if not is_this(python):
        yield "python", f"Python {python}", f"Python {VERSION}"
    for field, wanted in (("pypi", packages.pypi), ("conda", packages.conda)):
        for name, version in sorted(given(wanted, {}).items()):
            if version is None:
                continue
            plain = name_of(name)
            here = installed(plain)
            if not here or not satisfies(here, version):
                yield f"{field}.{name}", requirement(name, version), f"{plain} {here}" if here else f"no {plain}"


def installed(name: str) -> str:
    """The version of a distribution in this Python; empty where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def satisfies(here: str, version: str) -> bool:
    """Whether an installed version is one that a setting's version allows; what cannot be told is not allowed.

    https://packaging.python.org/en/latest/specifications/version-specifiers: trailing zeros do not count, and a local
    part (+cu124) counts where the setting names one.
    """
    if not version:
        return True
    clauses = version if version[0] in "<>=!~" else f"=={version}"
    found = parsed(f"x{clauses}")
    if found is None or not found.clauses or not numbers(here):
        return False
    exact = [text for sign, text in found.clauses if sign in ("==", "===") and not text.endswith("*")]
    if any(_normal(text) not in (_normal(here), _normal(here.partition("+")[0])) for text in exact):
        return False
    if len(exact) == len(found.clauses):
        return True
    # Before a release come those that lead up to it, which numbers alone do not tell.
    return _EARLY.search(here.partition("+")[0].lower()) is None and found.allows(numbers(here))


def findings(step: StepPlan, backend: Backend) -> Iterable[Finding]:
    """What speaks against a step's packages where it would run."""
    packages = step.settings.packages
    if packages is None or packages.empty or getattr(backend, "images", False):
        return
    lacking = list(differences(packages))
    if not lacking:
        return
    if packages.own and hasattr(backend, "environments"):
        yield from _not_made(step, packages)
        return
    asked = [
        f"{wanted} ({step.origins.get(f'packages.{path}', step.where)}); here is {here}"
        for path, wanted, here in lacking
    ]
    lines = " ".join(map(repr, packages.requirements))
    install = f"pip install {lines}, here" if lines else "install it here"
    way = f"an environment of its own, by --environment=pypi of a flow or --set packages.environment={_kind(packages)}"
    if packages.own:
        way = f"a backend that makes environments or images; '{backend.name}' has only the driver's own"
    yield Finding(
        code=MISSING,
        level="error",
        where=f"{step.where} step '{step.name}'",
        what=f"asks for {'; '.join(asked)}",
        why="it would run with other packages than it asks for",
        fix=f"take {way}; or {install}",
    )


def _kind(packages: PackageSettings) -> str:
    return "conda" if packages.specifications else "pypi"


def _not_made(step: StepPlan, packages: PackageSettings) -> Iterator[Finding]:
    """What is missing here for the environment itself."""

    def refused(what: str, why: str, fix: str) -> Finding:
        return Finding(
            code=NOT_MADE, level="error", where=f"{step.where} step '{step.name}'", what=what, why=why, fix=fix
        )

    if packages.specifications and not maker(packages):
        what = f"needs {', '.join(packages.specifications)} from conda, and there is none here"
        why = f"none of {', '.join(CONDA)} is on PATH"
        yield refused(what, why, "install micromamba, or take the packages from an index of Python's: @pypi")
    elif packages.environment == "uv" and not packages.specifications and not shutil.which(UV):
        yield refused("needs an environment made by uv", "uv is not on PATH", "pip install uv, or --environment=pypi")
    elif not maker(packages):
        what = f"needs Python {packages.python}, and this one is {VERSION}"
        why = f"there is no python{packages.python} on PATH, and no uv that could bring one"
        yield refused(what, why, "install it, or pip install uv")
    pickled = step.source.kind == "pickled" or any(hook.kind == "pickled" for hook in step.hooks.values())
    python = given(packages.python, "")
    if pickled and not is_this(".".join(python.split(".")[:2])):
        what = f"its function is sent as a pickle, which Python {python} does not read when {VERSION} made it"
        yield refused(what, "it is no module's and no file's", "define it in a file")


def _normal(version: str) -> str:
    """A version in which spellings of the same one are equal: lower case, no zeros at the end of its numbers."""
    text = re.sub(r"^v", "", version.strip().lower())
    match = re.match(r"(\d+(?:\.\d+)*)(.*)", text)
    if match is None:
        return text
    release = match[1].split(".")
    while len(release) > 1 and not int(release[-1]):
        release.pop()
    return ".".join(str(int(part)) for part in release) + re.sub(r"[-_.]", "", match[2])
