"""Where a step's packages are: in an environment of this machine, or in its image.

On this machine it is the driver's environment if that has the packages, otherwise one of the step's own. Its name is a
digest of its packages, which the plan contains; `images.environments` makes it. Packages that are missing and cannot be
installed are a finding: a step never runs silently with other packages.

For an image `PackageSettings` become part of `DockerSettings`. The functions work on the plain values that
`plan.layers` has merged, before they become a step's settings. A docker setting of a stronger layer overrides the
packages; one of the same or a weaker layer that contradicts them is an error with both origins.
"""

from __future__ import annotations

import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping, NoReturn

import attrs
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from stoker.backends.base.backend import ProvidesPackages, RunningBackend, capability
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.packages import PackageSettings, clauses, digest, name_of, requirement
from stoker.core.plan import StepPlan
from stoker.core.units import value_or
from stoker.images import parents
from stoker.images.environments import CONDA, UV, VERSION, is_this, maker
from stoker.images.requirements import project_of, same
from stoker.plan.requirements import satisfies as specifier_allows

PROJECT: Final = "pyproject.toml"
_INDEX: Final = ("index-url", "default-index", "i")
"""Arguments of pip and uv that stand in place of their own index."""


@attrs.frozen(kw_only=True)
class MergedSettings:
    """Settings as plain values, with the origin and the strength of each."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    """Dotted field → where it was given."""
    ranks: Mapping[str, int]
    """Dotted field → the number of its layer, the weakest first."""

    def place(self, *paths: str) -> str:
        """The origin of the first of these fields that was given; empty if none was."""
        return next((self.origins[path] for path in paths if path in self.origins), "")

    def rank(self, *paths: str) -> int:
        """The layer's number of the first of these fields that was given; -1 if none was."""
        return next((self.ranks[path] for path in paths if path in self.ranks), -1)


def with_image_packages(merged: MergedSettings) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a step that runs in an image, with its packages in `docker`, and their origins."""
    values, origins = dict(merged.values), dict(merged.origins)
    packages = PackageSettings(**_given_fields(values.get("packages")))
    docker = dict(values.get("docker") or {})
    DockerSettings(**_given_fields(docker))
    docker_before = dict(docker)
    if not value_or(packages.disabled, False):
        if packages.environment == "uv":
            _put_project(docker, packages, merged)
        if not packages.empty:
            _check_built(docker, merged)
            _put_python(docker, packages, merged)
            _put_requirements(docker, packages, merged)
            _put_conda(docker, packages, merged)
            _put_indexes(docker, packages, merged)
    if docker != docker_before:
        values["docker"] = docker
        for name, value in docker.items():
            if value != docker_before.get(name):
                docker_origin = origins.get(f"docker.{name}")
                package_origin = _package_origins(merged, name)
                origins[f"docker.{name}"] = f"{docker_origin}, {package_origin}" if docker_origin else package_origin
    return values, origins


def _check_built(docker: Mapping[str, Any], merged: MergedSettings) -> None:
    if docker.get("skip_build"):
        _refuse(
            "the image is used as it is (docker.skip_build), and the packages that the step asks for may be missing",
            merged,
            "docker.skip_build",
            "packages",
            "let the image be built, or take the packages back: packages=None, or --without pypi",
        )


def _put_project(docker: dict[str, Any], packages: PackageSettings, merged: MergedSettings) -> None:
    """The project's dependencies, as its lock has them: they are the environment of uv."""
    if docker.get("pyproject_path"):
        return
    path = project()
    if path is not None:
        docker["pyproject_path"] = str(path)
    elif packages.empty:
        raise SettingsError(
            f'packages.environment is "uv", and there is no {PROJECT} in {Path.cwd()} or above',
            where=merged.place("packages.environment"),
            fix="run it from the project's folder, or say which packages the step needs",
        )


def project() -> Path | None:
    """The nearest project, from the working directory upwards."""
    working_folder = Path.cwd()
    return next(
        (folder / PROJECT for folder in (working_folder, *working_folder.parents) if (folder / PROJECT).is_file()), None
    )


def _put_python(docker: dict[str, Any], packages: PackageSettings, merged: MergedSettings) -> None:
    python = value_or(packages.python, "")
    image_python = docker.get("python_version")
    if not python or _stronger(merged, "docker.python_version", "packages.python"):
        return
    if image_python and image_python != python:
        _differ(merged, "docker.python_version", image_python, "packages.python", python)
    image = docker.get("parent_image")
    if image and not docker.get("dockerfile") and not (docker.get("conda_packages") or packages.specifications):
        if _stronger(merged, "docker.parent_image", "packages.python"):
            return
        if parents.interpreter_of(image, python=python) == "parent":
            try:
                parents.check_python(image, python)
            except SettingsError as error:
                message = error.message.removeprefix("python_version: ")
                _refuse(message, merged, "docker.parent_image", "packages.python", error.fix)
    docker["python_version"] = python


def _put_requirements(docker: dict[str, Any], packages: PackageSettings, merged: MergedSettings) -> None:
    image_requirements = docker.get("requirements") or ()
    lines = [f"-r {image_requirements}"] if isinstance(image_requirements, str) else list(image_requirements)
    by_project = {project_of(line): line for line in lines if project_of(line)}
    for name, line in zip(sorted(_names(packages.pypi)), packages.requirements):
        image_line = by_project.get(name_of(name))
        if image_line is None:
            lines.append(line)
        elif not same(image_line, line) and not _stronger(merged, "docker.requirements", f"packages.pypi.{name}"):
            _differ(merged, "docker.requirements", image_line, f"packages.pypi.{name}", line)
    if lines and packages.requirements:
        docker["requirements"] = lines


def _put_conda(docker: dict[str, Any], packages: PackageSettings, merged: MergedSettings) -> None:
    lines = list(docker.get("conda_packages") or ())
    by_name = {name_of(_conda_name(line)): line for line in lines}
    for name, line in zip(sorted(_names(packages.conda)), packages.specifications):
        image_line = by_name.get(name_of(name))
        if image_line is None:
            lines.append(line)
        elif not same(image_line, line) and not _stronger(merged, "docker.conda_packages", f"packages.conda.{name}"):
            _differ(merged, "docker.conda_packages", image_line, f"packages.conda.{name}", line)
    if not packages.specifications:
        return
    docker["conda_packages"] = lines
    channels = list(value_or(packages.channels, ()))
    image_channels = list(docker.get("conda_channels") or ())
    if not channels or _stronger(merged, "docker.conda_channels", "packages.channels"):
        return
    if image_channels and image_channels != channels:
        _differ(merged, "docker.conda_channels", ", ".join(image_channels), "packages.channels", ", ".join(channels))
    docker["conda_channels"] = channels


def _put_indexes(docker: dict[str, Any], packages: PackageSettings, merged: MergedSettings) -> None:
    arguments = dict(docker.get("python_package_installer_args") or {})
    spelled = {name.strip().lstrip("-").replace("_", "-"): name for name in arguments}
    index, extra_urls = value_or(packages.index_url, ""), list(value_or(packages.extra_index_urls, ()))
    index_argument = next((spelled[name] for name in _INDEX if name in spelled), "")
    path = f"docker.python_package_installer_args.{index_argument}"
    if (
        index
        and index_argument
        and arguments[index_argument] != index
        and not _stronger(merged, path, "packages.index_url")
    ):
        _differ(merged, path, arguments[index_argument], "packages.index_url", index)
    if index and not index_argument:
        arguments["index-url"] = index
    if extra_urls:
        name = spelled.get("extra-index-url", "extra-index-url")
        urls = arguments.get(name) or []
        arguments[name] = list(dict.fromkeys([*([urls] if isinstance(urls, str) else urls), *extra_urls]))
    if index or extra_urls:
        docker["python_package_installer_args"] = arguments


def _stronger(merged: MergedSettings, docker: str, packages: str) -> bool:
    """Whether a docker setting comes from a stronger layer than a packages setting."""
    return merged.rank(docker) > merged.rank(packages, "packages") >= 0


def _differ(merged: MergedSettings, docker: str, docker_value: Any, packages: str, packages_value: Any) -> NoReturn:
    what = f"{docker} says {docker_value}, and {packages} says {packages_value}"
    _refuse(what, merged, docker, packages, "keep one of the two, or write the same in both")


def _refuse(what: str, merged: MergedSettings, docker: str, packages: str, fix: str) -> NoReturn:
    """Raise an error about two contradicting settings, with both origins."""
    package_place = merged.place(packages) or next(
        (place for path, place in merged.origins.items() if path.startswith(f"{packages}.")), ""
    )
    places = [
        f"{name} is from {place}"
        for name, place in ((docker, merged.place(docker)), (packages, package_place))
        if place
    ]
    raise SettingsError("; ".join([what, *places]), where=package_place, fix=fix)


def _package_origins(merged: MergedSettings, name: str) -> str:
    """The origins of the packages that were put into a field of `docker`."""
    parts = {
        "requirements": ("packages.pypi",),
        "conda_packages": ("packages.conda",),
        "conda_channels": ("packages.channels",),
        "python_version": ("packages.python",),
        "pyproject_path": ("packages.environment",),
        "python_package_installer_args": ("packages.index_url", "packages.extra_index_urls"),
    }[name]
    places = [
        place
        for path, place in merged.origins.items()
        if any(path == part or path.startswith(f"{part}.") for part in parts)
    ]
    return ", ".join(dict.fromkeys(places))


def _names(value: Mapping[str, str | None] | None) -> list[str]:
    return [name for name, version in value_or(value, {}).items() if version is not None]


def _conda_name(line: str) -> str:
    for number, letter in enumerate(line):
        if letter in "<>=!~ [":
            return line[:number]
    return line


def _given_fields(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if value is not None}


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
    from stoker.images.requirements import from_project, project_of

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
