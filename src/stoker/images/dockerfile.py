"""The text of a Dockerfile from an `ImageSpec`: the same spec, the same text, to the byte. Reads no file.

The order keeps layers that change rarely below those that change often: environment, apt, conda, the installer, the
requirements, Stoker's worker, the local project, the runtime environment, the user. The user's code is in none of
them, unless a local project is installed.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, Final, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.core.docker import Installer
from stoker.core.errors import SettingsError

BUILD: Final = "stoker-build"
"""The folder of the build context that holds what Stoker brings: requirements, and its worker's wheel."""
PROJECT: Final = "stoker-project"
"""The folder of the build context that holds the files of a local project that is to be installed."""
INSIDE: Final = "/opt/stoker"
"""Where in the image the requirements and the wheel lie, for whoever wonders what was installed."""
WORKDIR: Final = "/app"
NETRC: Final = "/run/secrets/netrc"
SECRETS: Final[Mapping[str, str]] = {
    # The passwords that pip and uv look up, in the file that $NETRC names, and their files for a whole machine:
    # https://pip.pypa.io/en/stable/topics/authentication/ and .../topics/configuration/,
    # https://docs.astral.sh/uv/concepts/configuration-files/
    "netrc": NETRC,
    "pip.conf": "/etc/pip.conf",
    "uv.toml": "/etc/uv/uv.toml",
}
"""`build_config.options.secrets`: the name → where it is during an installation, and never in a layer."""
MICROMAMBA: Final = "mambaorg/micromamba:1.5.8"
"""The image from which micromamba is taken, as
https://micromamba-docker.readthedocs.io/en/latest/advanced_usage.html#adding-micromamba-to-an-existing-docker-image
does it; https://github.com/mamba-org/micromamba-docker/blob/main/Dockerfile has the version."""
CACHES: Final[Mapping[str, str]] = {"pip": "/var/cache/stoker-pip", "uv": "/var/cache/stoker-uv"}
"""Where what an installer downloads is kept from one build to the next, in no layer."""
WHEELS: Final = "https://download.pytorch.org/whl/"
"""PyTorch's own index, one below it for each platform: https://pytorch.org/get-started/locally/."""
CONDA: Final = "/opt/conda"
TARGETS: Final = frozenset({"system", "python", "target", "prefix", "root"})
"""Arguments by which a person says himself into which Python is installed."""
PLACES: Final = frozenset(
    {
        *TARGETS,
        *("break-system-packages", "user", "index", "index-url", "default-index", "extra-index-url", "find-links"),
        *("index-strategy", "no-index", "trusted-host", "allow-insecure-host", "cert", "client-cert", "native-tls"),
        *("keyring-provider", "proxy", "timeout", "default-timeout", "retries", "link-mode", "offline", "verbose"),
    }
)
"""Arguments that Stoker's own wheel is installed with, too: the others are about the person's requirements."""

Python = Literal["parent", "distribution", "uv"]


@attrs.frozen(kw_only=True)
class Requirements:
    """Lines for one call of the installer. `index` is the only place to look in, where that is not everywhere.

    `constraints` are lines that limit versions and install nothing. `origin` says where the lines come from.
    """

    name: str
    lines: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    index: str = ""
    origin: str = ""


@attrs.frozen(kw_only=True)
class ImageSpec:
    """Everything that an image is made of, resolved and JSON all through; `images.spec` makes it.

    `python` is the driver's, or what is asked for, "3.11"; `interpreter` says how the image comes by one. `own` is the
    text of a person's own Dockerfile, after which Stoker's lines come. `wheels` is the platform of torch's wheels,
    "cu124". `arguments` are the installer's, each a word. `worker` is the file name of Stoker's wheel. `parent_user` is
    the USER of the parent, where somebody has looked. `secrets` are the names of those that the build is to mount.
    `conda_channels` are conda-forge where there are none. `left_out` says what was
    asked for and is not installed, and why. The fields from `context_root` on change nothing of the text.
    """

    parent: str
    python: str
    interpreter: Python = "parent"
    platform: str = ""
    skip_build: bool = False
    own: str = ""
    build_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = attrs.field(factory=dict)
    apt_packages: tuple[str, ...] = ()
    conda_packages: tuple[str, ...] = ()
    conda_channels: tuple[str, ...] = ()
    installer: Installer = "uv"
    arguments: tuple[str, ...] = ()
    requirements: tuple[Requirements, ...] = ()
    wheels: str = ""
    worker: str = ""
    worker_extras: tuple[str, ...] = ()
    project: str = ""
    runtime_environment: Mapping[str, str] = attrs.field(factory=dict)
    user: str = ""
    parent_user: str = ""
    secrets: tuple[str, ...] = ()
    context_root: str = ""
    dockerignore: str = ""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    target_repository: str = ""
    image_tag: str = ""
    prevent_build_reuse: bool = False
    left_out: tuple[str, ...] = ()


def dockerfile(spec: ImageSpec, *, cache_mounts: bool = True) -> str:
    """The Dockerfile; empty where the parent is used as it is.

    Without `cache_mounts` it holds nothing that only BuildKit and buildah understand, for Docker's older builder.
    """
    if spec.skip_build:
        return ""
    lines = [*_beginning(spec), *_system(spec), *_installing(spec, cache_mounts), *_ending(spec)]
    own = f"{spec.own.rstrip()}\n\n" if spec.own else ""
    return own + "\n".join(lines) + "\n"


def requirement_files(spec: ImageSpec) -> dict[str, bytes]:
    """The files that the Dockerfile's COPY lines name, by their path in the context; without wheel and project."""
    found: dict[str, bytes] = {}
    for number, group in enumerate(spec.requirements, 1):
        for name, lines in _files(number, group):
            found[f"{BUILD}/{name}"] = "".join(f"{line}\n" for line in lines).encode()
    return found


def assignment(name: str, value: str) -> str:
    """`NAME="value"` for ENV, LABEL and ARG, taken literally: no variable is put in for a dollar sign."""
    # https://docs.docker.com/reference/dockerfile/#environment-replacement: within double quotes a backslash takes
    # back the meaning of these three.
    quoted = re.sub(r'(["\\$])', r"\\\1", _one_line(value, f"the value of {name}"))
    return f'{name}="{quoted}"'


def command(text: str, *, mounts: Sequence[str] = ()) -> str:
    """RUN for a shell's command. What a Dockerfile would read in its own way goes to the shell as a list."""
    flags = "".join(f"{mount} " for mount in mounts)
    if re.search(r"[\r\n]|<<|\\\s*$|^\s*(\[|--|#)", text):
        # A line break would end the instruction, << would begin a here-document, a bracket a list.
        return f"RUN {flags}" + json.dumps(["/bin/sh", "-ec", text])
    return f"RUN {flags}{text.strip()}"


def _beginning(spec: ImageSpec) -> Iterator[str]:
    if not spec.own:
        platform = f"--platform={spec.platform} " if spec.platform else ""
        yield f"FROM {platform}{spec.parent}"
    if spec.user or _user_of(spec):
        yield "USER root"
    for name in spec.build_arguments:
        yield f"ARG {name}"
    for name, value in sorted(spec.environment.items()):
        yield "ENV " + assignment(name, value)


def _system(spec: ImageSpec) -> Iterator[str]:
    """What does not come from Python's indexes: apt, conda, the interpreter."""
    packages = list(spec.apt_packages)
    if spec.interpreter != "parent" and not spec.conda_packages:
        packages = [*_DISTRIBUTION, *(name for name in packages if name not in _DISTRIBUTION)]
    if packages:
        names = " ".join(shlex.quote(name) for name in packages)
        yield command(
            "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "
            f"{names} && rm -rf /var/lib/apt/lists/*"
        )
    if spec.conda_packages:
        names = " ".join(shlex.quote(name) for name in spec.conda_packages)
        python = shlex.quote(f"python={spec.python}")
        channels = " ".join(f"-c {shlex.quote(name)}" for name in spec.conda_channels or ("conda-forge",))
        yield f"COPY --from={MICROMAMBA} /bin/micromamba /usr/local/bin/micromamba"
        # A parent that has a conda environment there, as PyTorch's older images have, keeps it and its Python.
        yield command(
            f"if [ -d {CONDA}/conda-meta ]; then set -- install; else set -- create {python} pip; fi; "
            f'micromamba "$@" -y -p {CONDA} {channels} --override-channels {names} && micromamba clean -a -y'
        )
        yield f'ENV PATH="{CONDA}/bin:$PATH"'


_DISTRIBUTION: Final = ("ca-certificates", "python3", "python3-pip", "python3-venv", "python-is-python3")
"""The packages of Debian and Ubuntu that make an image without a Python one with its distribution's."""


def _installing(spec: ImageSpec, cache_mounts: bool) -> Iterator[str]:
    if not (spec.requirements or spec.worker or spec.project):
        return
    mounts = _mounts(spec, cache_mounts)
    # Debian's and Ubuntu's Pythons refuse to be installed into (PEP 668); an image is nobody's desktop. An ARG is seen
    # by what follows in the build, and not by what runs in the image.
    uv = spec.installer == "uv" or (spec.interpreter == "uv" and not spec.conda_packages)
    yield "ARG PIP_BREAK_SYSTEM_PACKAGES=1"
    yield "ARG PIP_ROOT_USER_ACTION=ignore"
    yield f"ARG PIP_CACHE_DIR={CACHES['pip']}" if cache_mounts else "ARG PIP_NO_CACHE_DIR=1"
    if "netrc" in spec.secrets:
        yield f"ARG NETRC={NETRC}"
    if uv:
        yield "ARG UV_BREAK_SYSTEM_PACKAGES=1"
        yield "ARG UV_LINK_MODE=copy"  # the cache is another file system, and uv would warn that it cannot link
        yield f"ARG UV_CACHE_DIR={CACHES['uv']}" if cache_mounts else "ARG UV_NO_CACHE=1"
        yield command("command -v uv >/dev/null || python3 -m pip install uv", mounts=mounts)
    if spec.interpreter == "uv" and not spec.conda_packages:
        yield "ENV UV_PYTHON_INSTALL_DIR=/opt/python"  # root's home is closed to other users
        yield command(
            f"uv python install {spec.python} && "
            f'ln -s "$(dirname "$(dirname "$(uv python find --managed-python {spec.python})")")" /opt/python/current'
        )
        yield 'ENV PATH="/opt/python/current/bin:$PATH"'
    for number, group in enumerate(spec.requirements, 1):
        yield from _group(spec, number, group, cache_mounts)
    if spec.worker:
        yield f"COPY {BUILD}/{spec.worker} {INSIDE}/"
        extras = f"[{','.join(spec.worker_extras)}]" if spec.worker_extras else ""
        wheel = shlex.quote(f"stoker{extras} @ file://{INSIDE}/{spec.worker}")
        kept = tuple(word for word in spec.arguments if _name_of(word) in PLACES)
        yield command(f"{_call(spec, kept)} {wheel}", mounts=mounts)
    yield f"WORKDIR {WORKDIR}"
    if spec.project:
        yield f"COPY {PROJECT}/ {WORKDIR}/"
        yield command(spec.project, mounts=mounts)


def _group(spec: ImageSpec, number: int, group: Requirements, cache_mounts: bool) -> Iterator[str]:
    names = [name for name, _ in _files(number, group)]
    yield f"COPY {' '.join(f'{BUILD}/{name}' for name in names)} {INSIDE}/"
    files = " ".join(f"{flag} {INSIDE}/{name}" for flag, name in zip(("-r", "-c"), names))
    chosen = {_name_of(word) for word in spec.arguments}
    extra = ""
    if group.index:
        extra = f"--index-url={shlex.quote(group.index)} "
    elif spec.wheels and spec.installer == "uv" and not chosen & {"torch-backend", "index-url", "default-index"}:
        extra = f"--torch-backend={shlex.quote(spec.wheels)} "
    yield command(f"{_call(spec, spec.arguments)} {extra}{files}", mounts=_mounts(spec, cache_mounts))


def _files(number: int, group: Requirements) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield f"requirements-{number}-{group.name}.txt", group.lines
    if group.constraints:
        yield f"constraints-{number}-{group.name}.txt", group.constraints


def _call(spec: ImageSpec, words: Sequence[str]) -> str:
    parts = ["python3 -m pip install" if spec.installer == "pip" else "uv pip install"]
    if spec.installer == "uv" and not TARGETS.intersection(map(_name_of, words)):
        # uv alone would look for a virtual environment, and most images have none.
        parts.append('--python "$(command -v python3)"')
    return " ".join([*parts, *(shlex.quote(word) for word in words)])


def _mounts(spec: ImageSpec, cache_mounts: bool) -> tuple[str, ...]:
    """Flags of RUN: https://docs.docker.com/reference/dockerfile/#run---mount."""
    caches = [CACHES["pip"], CACHES["uv"]] if spec.installer == "uv" else [CACHES["pip"]]
    found = [f"--mount=type=cache,target={cache}" for cache in caches] if cache_mounts else []
    for name in spec.secrets:
        target = SECRETS.get(name)
        found.append(f"--mount=type=secret,id={name}" + (f",target={target}" if target else ""))
    return tuple(found)


def _ending(spec: ImageSpec) -> Iterator[str]:
    if not (spec.requirements or spec.worker or spec.project):
        yield f"WORKDIR {WORKDIR}"
    # Whoever runs the container may be any user: the folder is the step's own.
    yield command(f"chmod 0777 {WORKDIR}")
    for name, value in sorted(spec.runtime_environment.items()):
        yield "ENV " + assignment(name, value)
    user = spec.user or _user_of(spec)
    if spec.user:
        account = spec.user.partition(":")[0]
        if not account.isdigit():
            name = shlex.quote(account)
            yield command(
                f"id -u {name} >/dev/null 2>&1 || useradd --create-home {name} 2>/dev/null || adduser -D {name}"
            )
        yield command(f"chown -R {shlex.quote(spec.user)} {WORKDIR}")
    if user:
        yield f"USER {user}"


def _user_of(spec: ImageSpec) -> str:
    """Who the parent's processes are, as far as it is known and not root."""
    user = spec.parent_user
    if spec.own:
        # Only the last stage counts, and in it the last USER.
        stage = re.split(r"(?im)^\s*FROM\s", spec.own)[-1]
        named = re.findall(r"(?im)^[ \t]*USER[ \t]+(\S+)", stage)
        user = named[-1] if named else user
    return "" if user.partition(":")[0] in ("", "root", "0") else user


def _name_of(word: str) -> str:
    return word.lstrip("-").partition("=")[0]


def _one_line(value: str, what: str) -> str:
    if re.search(r"[\r\n\0]", value):
        raise SettingsError(
            f"{what} has a line break, which a Dockerfile cannot hold: {value!r}",
            fix="give it to the step: @step(environment={…}) is set when the step runs",
        )
    return value
