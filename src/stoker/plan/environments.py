"""The environment of a step on this machine: the driver's if it has the packages, otherwise one of the step's own.

An environment's name is a digest of its packages, which the plan contains; `images.environments` makes the environment.
Packages that are missing and cannot be installed are a finding: a step never runs silently with other packages.
"""

from __future__ import annotations

import platform
import shutil
import sys
from importlib import metadata
from typing import Final, Iterable, Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from stoker.backends.base.backend import ProvidesPackages, RunningBackend, capability
from stoker.core.findings import Finding
from stoker.core.packages import PackageSettings, clauses, digest, name_of, requirement
from stoker.core.plan import StepPlan
from stoker.core.units import value_or
from stoker.images.installers import CONDA, UV, VERSION, is_this, maker
from stoker.plan.imagepackages import project
from stoker.plan.requirements import satisfies as specifier_allows

MISSING: Final = "STK114"
NO_ENVIRONMENT: Final = "STK115"


def environment_name(packages: PackageSettings | None) -> str:
    """The name of a step's own environment on this machine; empty for the driver's."""
    if packages is None or not packages.makes_environment or not any(differences(packages)):
        return ""
    machine = f"{sys.platform}-{platform.machine()}"
    return digest(packages, python=VERSION, platform=machine, more=project_lines(packages))


def project_lines(packages: PackageSettings) -> tuple[str, ...]:
    """The project's dependencies, as its lock has them, which uv's environments have beside a step's packages."""
    path = project() if packages.environment == "uv" else None
    if path is None:
        return ()
    from stoker.images.requirementlines import project_of
    from stoker.images.requirements import from_project

    own_names = {name_of(name) for name, version in value_or(packages.pypi, {}).items() if version is not None}
    return tuple(line for line in from_project(path).lines if project_of(line) not in own_names)


def differences(packages: PackageSettings) -> Iterator[tuple[str, str, str]]:
    """What the driver's environment lacks: (the setting's field, what is asked for, what is installed)."""
    if packages.empty:
        return
    python = value_or(packages.python, "")
    if not is_this(python):
        yield "python", f"Python {python}", f"Python {VERSION}"
    for field, requirements in (("pypi", packages.pypi), ("conda", packages.conda)):
        for name, version in sorted(value_or(requirements, {}).items()):
            if version is None:
                continue
            plain = name_of(name)
            here = installed(plain)
            if not here or not satisfies(here, version):
                yield f"{field}.{name}", requirement(name, version), f"{plain} {here}" if here else f"no {plain}"


def installed(name: str) -> str:
    """The version of a distribution in this Python; empty if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def satisfies(here: str, version: str) -> bool:
    """Whether an installed version satisfies a setting's version; an invalid specifier allows none.

    A local part (+cu124) counts if the setting names one.
    """
    if not version:
        return True
    try:
        return specifier_allows(here, SpecifierSet(clauses(version)))
    except InvalidSpecifier:
        return False


def findings(step: StepPlan, backend: RunningBackend) -> Iterable[Finding]:
    """The findings about a step's packages on its backend."""
    packages = step.settings.packages
    provides = capability(backend, ProvidesPackages)
    place = "" if provides is None else provides.packages_in
    if packages is None or packages.empty or place == "image":
        return
    missing = list(differences(packages))
    if not missing:
        return
    if packages.makes_environment and place == "environment":
        yield from _environment_findings(step, packages)
        return
    parts = [
        f"{wanted} ({step.origins.get(f'packages.{path}', step.where)}); here is {here}"
        for path, wanted, here in missing
    ]
    lines = " ".join(map(repr, packages.requirements))
    install = f"pip install {lines}, here" if lines else "install it here"
    alternative = (
        "an environment of its own, by --environment=pypi of a flow or --set packages.environment="
        f"{_package_manager(packages)}"
    )
    if packages.makes_environment:
        alternative = f"a backend that makes environments or images; '{backend.name}' has only the driver's own"
    yield Finding(
        code=MISSING,
        level="error",
        where=f"{step.where} step '{step.name}'",
        what=f"asks for {'; '.join(parts)}",
        why="it would run with other packages than it asks for",
        fix=f"take {alternative}; or {install}",
    )


def _package_manager(packages: PackageSettings) -> str:
    return "conda" if packages.specifications else "pypi"


def _environment_findings(step: StepPlan, packages: PackageSettings) -> Iterator[Finding]:
    """The findings about programs that making the environment needs."""

    def finding(what: str, why: str, fix: str) -> Finding:
        return Finding(
            code=NO_ENVIRONMENT, level="error", where=f"{step.where} step '{step.name}'", what=what, why=why, fix=fix
        )

    if packages.specifications and not maker(packages):
        what = f"needs {', '.join(packages.specifications)} from conda, and there is none here"
        why = f"none of {', '.join(CONDA)} is on PATH"
        yield finding(what, why, "install micromamba, or take the packages from an index of Python's: @pypi")
    elif packages.environment == "uv" and not packages.specifications and not shutil.which(UV):
        yield finding("needs an environment made by uv", "uv is not on PATH", "pip install uv, or --environment=pypi")
    elif not maker(packages):
        what = f"needs Python {packages.python}, and this one is {VERSION}"
        why = f"there is no python{packages.python} on PATH, and no uv that could bring one"
        yield finding(what, why, "install it, or pip install uv")
    pickled = step.source.kind == "pickled" or any(hook.kind == "pickled" for hook in step.hooks.values())
    python = value_or(packages.python, "")
    if pickled and not is_this(".".join(python.split(".")[:2])):
        what = f"its function is sent as a pickle, which Python {python} does not read when {VERSION} made it"
        yield finding(what, "it is no module's and no file's", "define it in a file")
