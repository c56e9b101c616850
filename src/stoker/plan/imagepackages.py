"""The packages that a step needs become part of the image that it runs in: `PackageSettings` inside `DockerSettings`.

Works on plain values, as `plan.layers` has merged them, before they are a step's settings. What a stronger layer
says of the image goes before; what one of the same strength, or a weaker one, says differently is refused, with both
places.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Mapping, NoReturn

import attrs

from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.core.packages import PackageSettings, name_of
from stoker.core.units import value_or
from stoker.images import parents
from stoker.images.requirementlines import project_of, same

PROJECT: Final = "pyproject.toml"
_INDEX: Final = ("index-url", "default-index", "i")
"""Arguments of pip and uv that stand in place of their own index."""


@attrs.frozen(kw_only=True)
class Told:
    """Plain values of settings, and for each dotted field its place and the number of its layer, weakest first."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    ranks: Mapping[str, int]

    def place(self, *paths: str) -> str:
        """Where the first of these fields that somebody gave was given."""
        return next((self.origins[path] for path in paths if path in self.origins), "")

    def rank(self, *paths: str) -> int:
        """The strength of the first of these fields that somebody gave; less than any where nobody did."""
        return next((self.ranks[path] for path in paths if path in self.ranks), -1)


def laid_in(told: Told) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a step that runs in an image, and where they come from, with its packages in `docker`."""
    values, origins = dict(told.values), dict(told.origins)
    packages = PackageSettings(**_kept(values.get("packages")))
    docker = dict(values.get("docker") or {})
    DockerSettings(**_kept(docker))
    before = dict(docker)
    if not value_or(packages.disabled, False):
        if packages.environment == "uv":
            _put_project(docker, packages, told)
        if not packages.empty:
            _check_built(docker, told)
            _put_python(docker, packages, told)
            _put_requirements(docker, packages, told)
            _put_conda(docker, packages, told)
            _put_indexes(docker, packages, told)
    if docker != before:
        values["docker"] = docker
        for name, value in docker.items():
            if value != before.get(name):
                theirs = origins.get(f"docker.{name}")
                ours = _from(told, name)
                origins[f"docker.{name}"] = f"{theirs}, {ours}" if theirs else ours
    return values, origins


def _check_built(docker: Mapping[str, Any], told: Told) -> None:
    if docker.get("skip_build"):
        _refuse(
            "the image is used as it is (docker.skip_build), and the packages that the step asks for may be missing",
            told,
            "docker.skip_build",
            "packages",
            "let the image be built, or take the packages back: packages=None, or --without pypi",
        )


def _put_project(docker: dict[str, Any], packages: PackageSettings, told: Told) -> None:
    """uv's environment is that of the project: its dependencies, as its lock has them."""
    if docker.get("pyproject_path"):
        return
    path = project()
    if path is not None:
        docker["pyproject_path"] = str(path)
    elif packages.empty:
        raise SettingsError(
            f'packages.environment is "uv", and there is no {PROJECT} in {Path.cwd()} or above',
            where=told.place("packages.environment"),
            fix="run it from the project's folder, or say which packages the step needs",
        )


def project() -> Path | None:
    """The nearest project, from the working directory upwards."""
    here = Path.cwd()
    return next((folder / PROJECT for folder in (here, *here.parents) if (folder / PROJECT).is_file()), None)


def _put_python(docker: dict[str, Any], packages: PackageSettings, told: Told) -> None:
    wanted = value_or(packages.python, "")
    theirs = docker.get("python_version")
    if not wanted or _stronger(told, "docker.python_version", "packages.python"):
        return
    if theirs and theirs != wanted:
        _differ(told, "docker.python_version", theirs, "packages.python", wanted)
    image = docker.get("parent_image")
    if image and not docker.get("dockerfile") and not (docker.get("conda_packages") or packages.specifications):
        if _stronger(told, "docker.parent_image", "packages.python"):
            return
        if parents.interpreter_of(image, python=wanted) == "parent":
            try:
                parents.check_python(image, wanted)
            except SettingsError as error:
                message = error.message.removeprefix("python_version: ")
                _refuse(message, told, "docker.parent_image", "packages.python", error.fix)
    docker["python_version"] = wanted


def _put_requirements(docker: dict[str, Any], packages: PackageSettings, told: Told) -> None:
    written = docker.get("requirements") or ()
    lines = [f"-r {written}"] if isinstance(written, str) else list(written)
    theirs = {project_of(line): line for line in lines if project_of(line)}
    for name, line in zip(sorted(_names(packages.pypi)), packages.requirements):
        other = theirs.get(name_of(name))
        if other is None:
            lines.append(line)
        elif not same(other, line) and not _stronger(told, "docker.requirements", f"packages.pypi.{name}"):
            _differ(told, "docker.requirements", other, f"packages.pypi.{name}", line)
    if lines and packages.requirements:
        docker["requirements"] = lines


def _put_conda(docker: dict[str, Any], packages: PackageSettings, told: Told) -> None:
    lines = list(docker.get("conda_packages") or ())
    theirs = {name_of(_conda_name(line)): line for line in lines}
    for name, line in zip(sorted(_names(packages.conda)), packages.specifications):
        other = theirs.get(name_of(name))
        if other is None:
            lines.append(line)
        elif not same(other, line) and not _stronger(told, "docker.conda_packages", f"packages.conda.{name}"):
            _differ(told, "docker.conda_packages", other, f"packages.conda.{name}", line)
    if not packages.specifications:
        return
    docker["conda_packages"] = lines
    channels = list(value_or(packages.channels, ()))
    written = list(docker.get("conda_channels") or ())
    if not channels or _stronger(told, "docker.conda_channels", "packages.channels"):
        return
    if written and written != channels:
        _differ(told, "docker.conda_channels", ", ".join(written), "packages.channels", ", ".join(channels))
    docker["conda_channels"] = channels


def _put_indexes(docker: dict[str, Any], packages: PackageSettings, told: Told) -> None:
    arguments = dict(docker.get("python_package_installer_args") or {})
    spelled = {name.strip().lstrip("-").replace("_", "-"): name for name in arguments}
    index, more = value_or(packages.index_url, ""), list(value_or(packages.extra_index_urls, ()))
    own = next((spelled[name] for name in _INDEX if name in spelled), "")
    path = f"docker.python_package_installer_args.{own}"
    if index and own and arguments[own] != index and not _stronger(told, path, "packages.index_url"):
        _differ(told, path, arguments[own], "packages.index_url", index)
    if index and not own:
        arguments["index-url"] = index
    if more:
        name = spelled.get("extra-index-url", "extra-index-url")
        there = arguments.get(name) or []
        arguments[name] = list(dict.fromkeys([*([there] if isinstance(there, str) else there), *more]))
    if index or more:
        docker["python_package_installer_args"] = arguments


def _stronger(told: Told, docker: str, packages: str) -> bool:
    """Whether somebody said it of the image in a stronger layer."""
    return told.rank(docker) > told.rank(packages, "packages") >= 0


def _differ(told: Told, docker: str, theirs: Any, packages: str, ours: Any) -> NoReturn:
    what = f"{docker} says {theirs}, and {packages} says {ours}"
    _refuse(what, told, docker, packages, "keep one of the two, or write the same in both")


def _refuse(what: str, told: Told, docker: str, packages: str, fix: str) -> NoReturn:
    """Refuse what contradicts each other, with both places."""
    mine = told.place(packages) or next(
        (place for path, place in told.origins.items() if path.startswith(f"{packages}.")), ""
    )
    places = [f"{name} is from {place}" for name, place in ((docker, told.place(docker)), (packages, mine)) if place]
    raise SettingsError("; ".join([what, *places]), where=mine, fix=fix)


def _from(told: Told, name: str) -> str:
    """Where what was laid into a field of `docker` comes from."""
    parts = {
        "requirements": ("packages.pypi",),
        "conda_packages": ("packages.conda",),
        "conda_channels": ("packages.channels",),
        "python_version": ("packages.python",),
        "pyproject_path": ("packages.environment",),
        "python_package_installer_args": ("packages.index_url", "packages.extra_index_urls"),
    }[name]
    found = [
        place
        for path, place in told.origins.items()
        if any(path == part or path.startswith(f"{part}.") for part in parts)
    ]
    return ", ".join(dict.fromkeys(found))


def _names(value: Mapping[str, str | None] | None) -> list[str]:
    return [name for name, version in value_or(value, {}).items() if version is not None]


def _conda_name(line: str) -> str:
    for number, letter in enumerate(line):
        if letter in "<>=!~ [":
            return line[:number]
    return line


def _kept(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if value is not None}
