"""Make an `ImageSpec` of docker settings: read the files that they name, and refuse what an image cannot hold.

No engine and no registry is asked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping

import attrs

from stoker.core.docker import DockerSettings, ImageFacts, Installer
from stoker.core.errors import SettingsError
from stoker.core.packages import Lock
from stoker.core.secret import SECRET_NAME
from stoker.core.units import UNSET, value_or
from stoker.images import parents
from stoker.images.context import listed_files
from stoker.images.dockerfile import (
    BUILD,
    PROJECT,
    SECRETS,
    WHEELS,
    ImageSpec,
    Python,
    RequirementList,
    dockerfile,
    final_parent,
    requirement_files,
)
from stoker.images.requirements import (
    TORCH,
    check_passwords,
    from_command,
    from_file,
    from_project,
    installed,
    listed,
    project_of,
    without_stoker,
)

__all__ = ["ImageSpec", "RequirementList", "context_files", "dockerfile", "spec_of"]

BUILD_FIELDS: Final = (
    *("dockerfile", "requirements", "pyproject_path", "required_extras", "replicate_local_python_environment"),
    "pyproject_export_command",
    *("apt_packages", "conda_packages", "conda_channels", "environment", "local_project_install_command"),
    *("build_context_root", "python_version", "python_package_installer_args", "build_config", "accelerator"),
)
"""Settings that only a build can honour."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
# https://www.debian.org/doc/debian-policy/ch-controlfields.html#source; apt adds :architecture, =version, /release.
_APT: Final = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?(=[A-Za-z0-9.+~:-]+|/[A-Za-z0-9.-]+)?")
# https://docs.conda.io/projects/conda-build/en/latest/resources/package-spec.html#package-match-specifications
_CONDA: Final = re.compile(r"[A-Za-z0-9_][^\s;&|`$\\\"']*( [^;&|`$\\\"']*)?")
_CHANNEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
_PLATFORM: Final = re.compile(r"[a-z0-9]+/[a-z0-9]+(/[a-z0-9]+)?")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_FLAG: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_SECRET_FIX: Final = "give it to the step: @step(environment={…}) is set when the step runs, and is in no image"


def spec_of(settings: DockerSettings | None, *, root: Path, python: str, worker: str = "") -> ImageSpec:
    """The image that settings ask for; paths in them are relative to `root`, and `python` is the driver's, "3.11".

    `worker` is the file name of Stoker's wheel (`images.wheel`); without it the image has no worker.
    """
    settings = settings if settings is not None else DockerSettings()
    if value_or(settings.skip_build, False):
        return _unbuilt_spec(settings, python)
    own_dockerfile = _own_dockerfile(settings, root)
    python = value_or(settings.python_version, python)
    parent, accelerator = _parent(settings, own_dockerfile, python)
    interpreter = _interpreter(settings, own_dockerfile, parent, python)
    if value_or(settings.python_version, "") and interpreter == "parent" and not value_or(settings.conda_packages, ()):
        parents.check_python(parent, python)
    groups, left_out = _requirement_lists(settings, root)
    groups, extras, removed = _without_duplicates(groups)
    wheels = accelerator.wheels or _wheels(groups)
    installer: Installer = value_or(settings.python_package_installer, "uv")
    arguments = tuple(_arguments(value_or(settings.python_package_installer_args, {}), installer))
    if installer == "pip" and wheels and not any("index-url=" in word for word in arguments):
        groups = tuple(part for group in groups for part in _split_torch(group, wheels))
    build_config = value_or(settings.build_config, {})
    options = _options(build_config)
    return ImageSpec(
        parent=parent,
        python=python,
        interpreter=interpreter,
        platform=_matching(value_or(settings.platform, ""), _PLATFORM, "platform", "linux/amd64"),
        own_dockerfile=own_dockerfile,
        build_arguments=tuple(sorted(_variable(name, "a build argument") for name in options.get("build_args", {}))),
        environment=_environment(settings.environment, "environment"),
        apt_packages=_matching_all(settings.apt_packages, _APT, "apt_packages", "libgl1"),
        conda_packages=_conda_packages(settings),
        conda_channels=_matching_all(settings.conda_channels, _CHANNEL, "conda_channels", "conda-forge"),
        installer=installer,
        arguments=arguments,
        requirements=groups,
        wheels=wheels,
        worker=worker,
        worker_extras=extras,
        project=value_or(settings.local_project_install_command, ""),
        runtime_environment=_environment(settings.runtime_environment, "runtime_environment"),
        user=_matching(value_or(settings.user, ""), _USER, "user", "1000:1000"),
        secrets=tuple(sorted(options.get("secrets", {}))),
        context_root=_context_root(settings, root),
        dockerignore=_dockerignore(build_config, root),
        options=options,
        left_out=(*left_out, *removed),
        **_target_fields(settings),
    )


def is_bare(spec: ImageSpec) -> bool:
    """Whether the parent image is known to have no Python packages but installers."""
    return not spec.own_dockerfile and (spec.interpreter != "parent" or parents.is_official(spec.parent))


def is_opaque(spec: ImageSpec, image: ImageFacts) -> bool:
    """Whether a look into the parent image would tell which packages the build finds."""
    return not (spec.skip_build or spec.own_dockerfile or is_bare(spec)) and image.distributions is None


def with_lock(spec: ImageSpec, lock: Lock | None) -> ImageSpec:
    """The image with exactly the packages of a lock; as it was without one.

    With one that does not say all, the installer chooses, beside the packages of the parent that the lock keeps.
    """
    if lock is None or spec.skip_build:
        return spec
    if not lock.whole:
        pins = tuple(f"{name}=={version}" for name, version in sorted(lock.kept.items()))
        hashed = any("--hash" in line for group in spec.requirements for line in group.lines)
        if not pins or hashed:
            return spec
        groups = [attrs.evolve(group, constraints=(*group.constraints, *pins)) for group in spec.requirements]
        return attrs.evolve(spec, requirements=tuple(groups))
    indexes = {group.name: group.index for group in spec.requirements}
    lists = [
        RequirementList(
            name=part.name, lines=part.lines, index=indexes.get(part.name, ""), origin=lock.resolver, locked=True
        )
        for part in lock.lists
    ]
    return attrs.evolve(spec, requirements=tuple(lists), locked=True)


def context_files(spec: ImageSpec, *, root: Path, wheel: Path | None = None) -> dict[str, bytes | Path]:
    """The build's context by path: bytes, or a file to copy."""
    files: dict[str, bytes | Path] = dict(requirement_files(spec))
    if wheel is not None and spec.worker:
        files[f"{BUILD}/{spec.worker}"] = wheel
    if spec.context_root:
        folder = Path(spec.context_root)
        ignored = Path(spec.dockerignore) if spec.dockerignore else folder / ".dockerignore"
        for name in listed_files(folder, ignored=ignored, docker=True):
            files.setdefault(name, folder / name)
    if spec.project:
        folder = Path(spec.context_root) if spec.context_root and not spec.own_dockerfile else root
        for name in listed_files(folder):
            files[f"{PROJECT}/{name}"] = folder / name
    return files


def _unbuilt_spec(settings: DockerSettings, python: str) -> ImageSpec:
    if not value_or(settings.parent_image, ""):
        raise SettingsError("skip_build needs a parent_image: it is the image that is used as it is")
    lost = [name for name in BUILD_FIELDS if value_or(getattr(settings, name), None)]
    if lost:
        raise SettingsError(
            f"skip_build: the image is used as it is, and {', '.join(lost)} would be ignored",
            fix=f"take back what it has from weaker settings ({lost[0]}=None), or let the image be built",
        )
    return ImageSpec(
        parent=_image_name(value_or(settings.parent_image, "")),
        python=python,
        skip_build=True,
        platform=_matching(value_or(settings.platform, ""), _PLATFORM, "platform", "linux/amd64"),
        runtime_environment=_environment(settings.runtime_environment, "runtime_environment"),
        user=_matching(value_or(settings.user, ""), _USER, "user", "1000:1000"),
        installer=value_or(settings.python_package_installer, "uv"),
        **_target_fields(settings),
    )


def _conda_packages(settings: DockerSettings) -> tuple[str, ...]:
    """What conda installs, with the Python that is asked for: a parent's own environment may have another."""
    packages = _matching_all(settings.conda_packages, _CONDA, "conda_packages", "ffmpeg=6")
    python = value_or(settings.python_version, "")
    return (f"python={python}", *packages) if packages and python else packages


def _target_fields(settings: DockerSettings) -> dict[str, Any]:
    return {
        "target_repository": value_or(settings.target_repository, ""),
        "image_tag": value_or(settings.image_tag, ""),
        "prevent_build_reuse": value_or(settings.prevent_build_reuse, False),
    }


def _own_dockerfile(settings: DockerSettings, root: Path) -> str:
    """The text of the user's Dockerfile; empty if there is none."""
    filename = value_or(settings.dockerfile, "")
    if not filename:
        return ""
    path = root / filename
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"dockerfile: it cannot be read: {error}", fix=f"paths are seen from {root}") from None
    if re.match(r"(?:\s*#[^\n]*\n)*\s*#\s*escape\s*=\s*`", text, re.IGNORECASE):
        raise SettingsError(f"dockerfile: {path} has another escape character, which is for Windows' images")
    if not re.search(r"(?im)^\s*FROM\s", text):
        raise SettingsError(f"dockerfile: {path} has no FROM")
    return text


def _parent(settings: DockerSettings, own: str, python: str) -> tuple[str, parents.Parent]:
    """The image that the build starts from, and the official image of the accelerator."""
    accelerator = value_or(settings.accelerator, "")
    default = parents.parent_for(accelerator, python=python) if accelerator else parents.plain(python)
    if own:
        return final_parent(own), default
    image = value_or(settings.parent_image, "")
    return _image_name(image) or default.image, default


def _interpreter(settings: DockerSettings, own: str, parent: str, python: str) -> Python:
    """Where the image's Python comes from; a user's Dockerfile and apt's packages are taken to bring one."""
    has_python = own or any(
        re.match(r"python3(?![-a-z])|python-is", name) for name in value_or(settings.apt_packages, ())
    )
    return "parent" if has_python else parents.interpreter_of(parent, python=python)


def _requirement_lists(settings: DockerSettings, root: Path) -> tuple[tuple[RequirementList, ...], tuple[str, ...]]:
    """The lists in the order of installation: this Python's packages, the project's, those of `requirements`."""
    groups: list[RequirementList] = []
    left_out: tuple[str, ...] = ()
    replicated = settings.replicate_local_python_environment
    if replicated is not UNSET and replicated:
        if isinstance(replicated, tuple):
            field = "replicate_local_python_environment"
            local, left_out = from_command(replicated, root, name="local", field=field, skip_local=True)
        else:
            local, left_out = installed()
        groups.append(local)
    extras = value_or(settings.required_extras, ())
    project = value_or(settings.pyproject_path, "")
    command = value_or(settings.pyproject_export_command, ())
    if command and extras:
        raise SettingsError(
            "required_extras: pyproject_export_command says what is installed", fix="name the extras in the command"
        )
    if project or extras or command:
        path = root / (project or "pyproject.toml")
        if not path.exists():
            raise SettingsError(
                f"there is no {path}", fix="pyproject_path= says where the project is, seen from its root"
            )
        folder = path if path.is_dir() else path.parent
        groups.append(
            from_command(command, folder, name="project", field="pyproject_export_command")[0]
            if command
            else from_project(path, extras)
        )
    requirements = value_or(settings.requirements, ())
    if isinstance(requirements, str):
        groups.append(from_file((root / requirements).resolve()))
    elif requirements:
        groups.append(listed(requirements, where="requirements", folder=root))
    return tuple(groups), left_out


def _without_duplicates(
    groups: Iterable[RequirementList],
) -> tuple[tuple[RequirementList, ...], tuple[str, ...], tuple[str, ...]]:
    """The lists without Stoker, without projects that a later list names, and without empty lists."""
    lists: list[RequirementList] = []
    extras: set[str] = set()
    left_out: list[str] = []
    later: set[str] = set()
    for group in reversed(list(groups)):
        filtered, own_extras, removed = without_stoker(group)
        extras.update(own_extras)
        left_out += removed
        lines = tuple(line for line in filtered.lines if project_of(line) not in later)
        later |= {project_of(line) for line in lines} - {""}
        if any(not line.startswith("-") for line in lines):
            lists.insert(0, attrs.evolve(filtered, lines=lines))
    return tuple(lists), tuple(sorted(extras)), tuple(left_out)


def _wheels(groups: Iterable[RequirementList]) -> str:
    """The platform in torch's version: "cu121" of torch==2.4.0+cu121; empty if there is none."""
    for group in groups:
        if any(
            line.startswith(("-i", "--index-url", "--extra-index-url", "-f", "--find-links")) for line in group.lines
        ):
            continue  # the list names its own index
        for line in group.lines:
            local = re.search(r"\+(cpu|xpu|cu\d+|rocm[\d.]+)\b", line)
            if project_of(line) in TORCH and local is not None:
                return local[1]
    return ""


def _split_torch(group: RequirementList, wheels: str) -> Iterator[RequirementList]:
    """Torch from its own index, then the other lines: of several indexes pip takes the newest version of all."""
    hashed = any("--hash" in line for line in group.lines)
    torch = tuple(line for line in group.lines if project_of(line) in TORCH)
    if not torch or hashed or any(re.match(r"-i|--index-url|--extra-index-url", line) for line in group.lines):
        yield group
        return
    yield attrs.evolve(group, name=f"{group.name}-torch", lines=torch, index=WHEELS + wheels)
    others = tuple(line for line in group.lines if line not in torch)
    if any(not line.startswith("-") for line in others):
        yield attrs.evolve(group, lines=others)


def _arguments(written: Mapping[str, Any], installer: str) -> Iterator[str]:
    """Flags as words: None and True give a bare flag, False none, a list repeats the flag."""
    for key, value in sorted(written.items()):
        flag = key.strip().lstrip("-").replace("_", "-")
        if not _FLAG.fullmatch(flag):
            raise SettingsError(f"python_package_installer_args: {key!r} is not the name of a flag")
        if installer == "pip" and flag == "system":
            continue  # pip always does what uv needs the flag for
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if item is False:
                continue
            if not (item is None or isinstance(item, (str, int, float))):
                raise SettingsError(f"python_package_installer_args: {key}={item!r} is neither a text nor a number")
            dashes = "-" if len(flag) == 1 else "--"
            joint = "" if len(flag) == 1 else "="
            word = f"{dashes}{flag}" if item is None or item is True else f"{dashes}{flag}{joint}{item}"
            check_passwords(word, "python_package_installer_args")
            yield _one_line(word, "python_package_installer_args")


def _options(build_config: Mapping[str, Any]) -> dict[str, Any]:
    options = build_config.get("options") or {}
    if not isinstance(options, Mapping):
        raise SettingsError(f"build_config.options: {options!r} does not map names to values")
    for name in ("build_args", "secrets"):
        if not isinstance(options.get(name, {}), Mapping):
            raise SettingsError(f"build_config.options.{name}: {options[name]!r} does not map names to values")
    for name in options.get("secrets", {}):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise SettingsError(
                f"build_config.options.secrets: {name!r} is not a name", fix=f"known: {', '.join(SECRETS)}"
            )
    return dict(options)


def _context_root(settings: DockerSettings, root: Path) -> str:
    folder_name = value_or(settings.build_context_root, "")
    if not folder_name:
        return ""
    if not (value_or(settings.dockerfile, "") or value_or(settings.local_project_install_command, "")):
        raise SettingsError(
            "build_context_root: nothing would be taken from there",
            fix="it is for a dockerfile= of your own, or for local_project_install_command=",
        )
    folder = root / folder_name
    if not folder.is_dir():
        raise SettingsError(f"build_context_root: there is no folder {folder}", fix=f"paths are seen from {root}")
    return str(folder)


def _dockerignore(build_config: Mapping[str, Any], root: Path) -> str:
    filename = build_config.get("dockerignore")
    if not filename:
        return ""
    if not isinstance(filename, str) or not (root / filename).is_file():
        raise SettingsError(
            f"build_config.dockerignore: there is no file {filename!r}", fix=f"paths are seen from {root}"
        )
    return str(root / filename)


def _environment(settings: Mapping[str, str | None] | None, field: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for name, value in value_or(settings, {}).items():
        if value is None or value is UNSET:
            continue
        _variable(name, field)
        _one_line(value, f"{field}: {name}")
        if value and SECRET_NAME.fullmatch(name):
            raise SettingsError(
                f"{field}: {name} looks like a secret, and everybody can read an image", fix=_SECRET_FIX
            )
        check_passwords(value, f"{field}: {name}")
        variables[name] = value
    return variables


def _variable(name: str, field: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise SettingsError(
            f"{field}: {name!r} is no name for a variable in a Dockerfile", fix="write letters, digits and _"
        )
    return name


def _matching_all(values: Iterable[str] | None, pattern: re.Pattern[str], field: str, example: str) -> tuple[str, ...]:
    return tuple(_matching(value.strip(), pattern, field, example) for value in value_or(values, ()))


def _image_name(value: str) -> str:
    value = value.strip()
    if value and not _IMAGE.fullmatch(value):
        raise SettingsError(
            f"parent_image: {value!r} does not name an image, and cannot be put into a Dockerfile",
            fix="write something like 'pytorch/pytorch:2.8.0'",
        )
    return value


def _matching(value: str, pattern: re.Pattern[str], field: str, example: str) -> str:
    value = value.strip()
    if value and not pattern.fullmatch(value):
        raise SettingsError(
            f"{field}: {value!r} cannot be put into a Dockerfile", fix=f"write something like {example!r}"
        )
    return value


def _one_line(value: str, what: str) -> str:
    if re.search(r"[\r\n\0]", value):
        raise SettingsError(f"{what} has a line break, which a Dockerfile cannot hold: {value!r}", fix=_SECRET_FIX)
    return value
