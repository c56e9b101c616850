"""The settings of the image in which a step runs, which `images` renders and builds; and the facts of an image, which
`images.registry` reads and `plan.preflight` checks.

An empty field means that a fact is not known, never that the image lacks something.
"""

from __future__ import annotations

import shlex
from typing import Any, ClassVar, Final, Iterable, Literal, Mapping

import attrs

from stoker.core.errors import SettingsError, nearest
from stoker.core.units import UNSET, parse_flag, parse_mapping, parse_text, parse_texts, strict
from stoker.core.values import frozen, lazy_pattern

Installer = Literal["uv", "pip"]
INSTALLERS: Final[tuple[Installer, ...]] = ("uv", "pip")
BUILD_KEYS: Final = ("options", "dockerignore")
OLDEST: Final = (3, 10)
"""The oldest Python that Stoker's worker runs on: `requires-python` of the project."""
_PYTHON: Final = lazy_pattern(r"(\d+)\.(\d+)(\.\d+)?")


_EXPORTS: Final[Mapping[str, bool | tuple[str, ...]]] = {
    "pip_freeze": True,
    "poetry_export": ("poetry", "export", "--format=requirements.txt", "--without-hashes"),
}
"""ZenML's names of the commands that print an environment's packages."""
_APART: Final = "remove it: the code is not in the image, it travels apart from it, through the artifact store"
_BRINGS: Final = "remove it: Stoker installs what it needs by itself"
_INSTEAD: Final[Mapping[str, str]] = {
    "required_integrations": 'add the packages that the steps import to requirements: ["torch", "wandb"]',
    "install_stack_requirements": _BRINGS,
    "install_deployment_requirements": _BRINGS,
    "disable_automatic_requirements_detection": "remove it: only requirements and pyproject_path are installed",
    "parent_image_build_config": "write build_config: it is that of the Dockerfile, too",
    "build_options": 'write build_config={"options": {…}}',
    "dockerignore": 'write build_config={"dockerignore": "…"}',
    "python_package_installer_cache_mount": "remove it: builds keep what they download where the engine can",
    "allow_including_files_in_images": _APART,
    "allow_download_from_code_repository": _APART,
    "allow_download_from_artifact_store": _APART,
    "copy_files": _APART,
    "source_files": _APART,
    "copy_global_config": "remove it: there is no global configuration in an image",
    "required_hub_plugins": "remove it: there is no hub",
}


def parse_requirements(value: str | Iterable[str] | None) -> str | tuple[str, ...] | None:
    """The path of a requirements file, or a list of requirements."""
    return value if isinstance(value, str) and value.strip() else parse_texts(value)


def parse_command(value: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """A command as words, of a text or a list of words."""
    return tuple(shlex.split(value)) if isinstance(value, str) else parse_texts(value)


def parse_replicated(value: bool | str | Iterable[str] | None) -> bool | tuple[str, ...] | None:
    """`replicate_local_python_environment`: a flag, a command, or one of ZenML's names of commands."""
    if value is None or isinstance(value, bool) or value is UNSET:
        return value
    known = _EXPORTS.get(str(getattr(value, "value", value)).lower())
    return parse_command(value) if known is None else known


def parse_environment(value: Mapping[str, str | float | None] | None) -> Mapping[str, str | None] | None:
    """Environment variables; numbers become text, None takes back a variable that a weaker layer sets."""
    raw: Any = parse_mapping(value)
    if raw is None or raw is UNSET:
        return raw
    variables: dict[str, str | None] = {}
    for name, text in raw.items():
        if not name or "=" in name or "\0" in name:
            raise SettingsError(f"{name!r} is not a name for an environment variable")
        if isinstance(text, bool) or not (text is None or isinstance(text, (str, int, float))):
            raise SettingsError(f"{name}={text!r} is not a text", fix=f'write "{str(text).lower()}" in quotes')
        variables[name] = text if text is None else str(text)
    return variables


def parse_build_config(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`build_config`: the build's options and its ignore file."""
    config = parse_mapping(value)
    for key in config or ():
        if key not in BUILD_KEYS:
            raise SettingsError(f"build_config has no key '{key}'{nearest(key, BUILD_KEYS)}")
    return config


def parse_installer(value: str | None) -> Installer | None:
    """`python_package_installer`."""
    raw: Any = value
    if raw is None or raw is UNSET:
        return None if raw is None else UNSET
    for installer in INSTALLERS:
        if raw == installer:
            return installer
    raise SettingsError(f"{value!r} is not one of {' and '.join(INSTALLERS)}", fix='write "uv" or "pip"')


def parse_python(value: str | None) -> str | None:
    """A version of Python, such as "3.11" or "3.11.7"."""
    raw: Any = value
    if raw is None or raw is UNSET:
        return raw
    match = _PYTHON.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None:
        raise SettingsError(f"{value!r} is not a version of Python", fix='write a text such as "3.11"')
    if (int(match[1]), int(match[2])) < OLDEST:
        raise SettingsError(f"{value!r}: Stoker's worker needs Python 3.10 or later", fix='write "3.10" or later')
    return match[0]


@strict
@frozen(kw_only=True)
class DockerSettings:
    """The image in which a step runs. What is not given is `UNSET`; `None` takes back what weaker layers say."""

    INSTEAD: ClassVar[Mapping[str, str]] = _INSTEAD
    """Fields that people know from ZenML, and what to write instead."""

    parent_image: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The image to start from; without one, an official one for `accelerator` (`images.parents`)."""
    python_version: str | None = attrs.field(default=UNSET, converter=parse_python)
    """Of the image's Python; the driver's where none is given."""
    dockerfile: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The path of a Dockerfile that makes the parent image."""
    build_context_root: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The folder whose files that Dockerfile, or `local_project_install_command`, may use."""
    requirements: str | tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_requirements)
    """The path of a requirements file, or a list of requirements."""
    pyproject_path: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The project whose dependencies are installed."""
    required_extras: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_texts)
    """Extras of that project."""
    pyproject_export_command: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_command)
    """The command that prints that project's requirements, as words; "{directory}" is the project's folder."""
    replicate_local_python_environment: bool | tuple[str, ...] | None = attrs.field(
        default=UNSET, converter=parse_replicated
    )
    """Whether the packages of the driver's environment are installed; or the command that prints them."""
    apt_packages: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_texts)
    """Packages of the distribution."""
    conda_packages: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_texts)
    """Packages that micromamba installs from `conda_channels`."""
    conda_channels: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_texts)
    """Conda-forge where none is given."""
    environment: Mapping[str, str | None] | None = attrs.field(default=UNSET, converter=parse_environment)
    """Variables that are set before packages are installed."""
    runtime_environment: Mapping[str, str | None] | None = attrs.field(default=UNSET, converter=parse_environment)
    """Variables that are set after packages are installed."""
    user: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The user of the image's processes, such as "1000:1000"."""
    skip_build: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """Whether the parent image is used as it is."""
    prevent_build_reuse: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """Whether an image is built even if an equal one exists."""
    target_repository: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The repository that the image is pushed to."""
    image_tag: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The tag of the image."""
    build_config: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_build_config)
    """The build's options and its ignore file."""
    python_package_installer: Installer | None = attrs.field(default=UNSET, converter=parse_installer)
    """Uv unless given."""
    python_package_installer_args: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_mapping)
    """Flag → value; None is a bare flag: `{"system": None}` is `--system`."""
    local_project_install_command: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The command that installs the local project."""
    platform: str | None = attrs.field(default=UNSET, converter=parse_text)
    """Such as "linux/amd64"."""
    accelerator: str | None = attrs.field(default=UNSET, converter=parse_text)
    """What the image is for, such as "cuda12.4": it picks the parent image and torch's wheels."""


@frozen(kw_only=True)
class ImageFacts:
    """An image's configuration in the words of the checks."""

    reference: str
    """As a person wrote it."""
    digest: str = ""
    """"sha256:…" of the manifest or index behind the reference now."""
    architectures: tuple[str, ...] = ()
    """As registries write them ("amd64", "arm64"); of an index all that it has."""
    os: str = ""
    cuda: str = ""
    """A version ("12.4.1"), as of `cudnn`, `python`, `rocm` and `neuron`; "?" for one of unknown version."""
    cudnn: str = ""
    python: str = ""
    frameworks: Mapping[str, str] = attrs.field(factory=dict)
    """Distribution → version, with a local part where it is known: `{"torch": "2.4.0+cu124"}`."""
    distributions: Mapping[str, str] | None = None
    """All installed Python distributions: canonical name → version; None if nobody read the image's layers."""
    env: Mapping[str, str] = attrs.field(factory=dict)
    """The configuration's environment."""
    labels: Mapping[str, str] = attrs.field(factory=dict)
    rocm: str = ""
    neuron: str = ""
    libc: str = ""
    """The C library: "glibc" or "musl", for which most wheels with code for devices are not made."""
    archs: tuple[str, ...] = ()
    """The chips for which the image's own framework was built, as frameworks list them ("sm_90", "compute_90")."""
    size: int | None = None
    """Bytes of the compressed layers."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    base: str = "registry"
    """Where the facts come from: "registry", "engine", or "name" where only the reference's own words are known."""
    unreadable: str = ""
    """Why neither registry nor engine could be read."""
    refused: bool = False
    """The registry answered that there is no such image or that it may not be read; else it was not reached."""
    unknown: tuple[str, ...] = ()
    """Facts that were looked for and could not be determined."""
