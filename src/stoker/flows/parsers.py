"""Parsers for `Config(…, parser=…)` by Metaflow's names: each makes a dict of a file's text.

What a file of packages says becomes `{"packages": {name: version}, "python": version}`, the words of `@pypi`.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from stoker.flows.exceptions import MetaflowException

_CONDA = re.compile(r"([A-Za-z0-9_.\-]+)\s*((?:[=<>!~].*)?)")


class ParserValueError(MetaflowException):
    """A line that a parser cannot read."""

    headline = "Value error"


def yaml_parser(content: str) -> Any:
    """What a YAML text says."""
    import yaml

    return yaml.safe_load(content)


def requirements_txt_parser(content: str) -> dict[str, Any]:
    """The packages of a requirements.txt: one requirement a line, without environment markers."""
    return _packages(line for line in _lines(content) if line != "-e file:.")  # Rye's line for the project itself


def pyproject_toml_parser(content: str) -> dict[str, Any]:
    """The packages and the Python that a pyproject.toml's `[project]` depends on."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    project = tomllib.loads(content).get("project", {})
    parsed = _packages(line.strip() for line in project.get("dependencies", ()))
    python = project.get("requires-python")
    if python is not None and parsed["python"] is not None:
        raise ParserValueError("python is said twice: in requires-python and in dependencies", fix="say it once")
    return parsed if python is None else {**parsed, "python": python.lstrip("=").strip()}


def conda_environment_yml_parser(content: str) -> dict[str, Any]:
    """The packages of a conda environment.yml; a list of pip's inside of it is refused."""
    packages: dict[str, str] = {}
    python: str | None = None
    inside = False
    for line in _lines(content):
        if not line.startswith("-"):
            inside = line.lower().startswith("dependencies:")
            continue
        if not inside:
            continue
        text = line.lstrip("-").strip()
        match = _CONDA.fullmatch(text)
        if match is None:
            raise ParserValueError(
                f"{text!r} is no package of conda's", fix="write NAME or NAME=VERSION; pip's packages go into @pypi"
            )
        name, version = match[1], match[2].strip()
        version = version.lstrip("=").strip() if version.startswith("=") else version
        if name.lower() != "python":
            packages[name] = version
        elif python is not None and version:
            raise ParserValueError(f"python is said twice: {text!r}", fix="say it once")
        else:
            python = version
    return {"packages": packages, "python": python}


def _lines(content: str) -> list[str]:
    """Lines that say something, without comments."""
    stripped = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in content.splitlines())
    return [line for line in stripped if line]


def _packages(lines: Any) -> dict[str, Any]:
    from packaging.requirements import InvalidRequirement, Requirement

    packages: dict[str, str] = {}
    python: str | None = None
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise ParserValueError(f"{line!r} is no requirement: {error}", fix="write NAME==VERSION") from None
        if requirement.marker is not None:
            raise ParserValueError(f"{line!r} has an environment marker", fix="leave what follows the ; out")
        version = str(requirement.specifier).lstrip(" =")
        if requirement.name.lower() == "python":
            if python is not None and version:
                raise ParserValueError(f"python is said twice: {line!r}", fix="say it once")
            python = version or None
            continue
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        packages[requirement.name + extras + (f"@{requirement.url}" if requirement.url else "")] = version
    return {"packages": packages, "python": python}
