"""The text of a Dockerfile: rendered from an `ImageSpec`, and the base images of any Dockerfile read and pinned.

The same spec gives the same text, to the byte. No file is read here.

The order keeps layers that change rarely below those that change often: environment, apt, conda, the installer, the
requirements, Stoker's worker, the local project, the runtime environment, the user. The user's code is in none of
them, unless a local project is installed.

A *definition file*, from which Apptainer or Singularity build a step's image, has the Dockerfile's lines in their words
(https://apptainer.org/docs/user/latest/definition_files.html). It is what a site without a container engine and a
registry can build. The file stands for itself: requirements are written by it, nothing is copied into it, and Stoker's
worker is brought to the step as a folder.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any, Callable, Final, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.core.docker import DockerSettings, Installer
from stoker.core.errors import SettingsError
from stoker.core.units import value_or

BUILD: Final = "stoker-build"
"""The folder of the build context that holds what Stoker brings: requirements, and its worker's wheel."""
PROJECT: Final = "stoker-project"
"""The folder of the build context that holds the files of a local project that is to be installed."""
IMAGE_FOLDER: Final = "/opt/stoker"
"""The folder in the image with the requirement files and the wheel that were installed."""
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
"""Name in `build_config.options.secrets` → where it is mounted during an installation; it is in no layer."""
MICROMAMBA: Final = "mambaorg/micromamba:1.5.8"
"""The image from which micromamba is taken, as
https://micromamba-docker.readthedocs.io/en/latest/advanced_usage.html#adding-micromamba-to-an-existing-docker-image
does it; https://github.com/mamba-org/micromamba-docker/blob/main/Dockerfile has the version."""
CACHES: Final[Mapping[str, str]] = {"pip": "/var/cache/stoker-pip", "uv": "/var/cache/stoker-uv"}
"""Installer → the folder of its download cache, kept between builds and in no layer."""
WHEELS: Final = "https://download.pytorch.org/whl/"
"""PyTorch's own index, one below it for each platform: https://pytorch.org/get-started/locally/."""
CONDA: Final = "/opt/conda"
TARGET_ARGUMENTS: Final = frozenset({"system", "python", "target", "prefix", "root"})
"""Installer arguments that choose the Python to install into."""
SHARED_ARGUMENTS: Final = frozenset(
    {
        *TARGET_ARGUMENTS,
        *("break-system-packages", "user", "index", "index-url", "default-index", "extra-index-url", "find-links"),
        *("index-strategy", "no-index", "trusted-host", "allow-insecure-host", "cert", "client-cert", "native-tls"),
        *("keyring-provider", "proxy", "timeout", "default-timeout", "retries", "link-mode", "offline", "verbose"),
    }
)
"""Installer arguments that also apply to Stoker's own wheel; the others concern the user's requirements only."""

_WHERE: Final = frozenset(
    {"index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "client-cert", "proxy"}
)
_UV_TO_PIP: Final[Mapping[str, str]] = {
    # https://docs.astral.sh/uv/reference/cli/#uv-pip-install → https://pip.pypa.io/en/stable/cli/pip_install/
    "index-url": "index-url",
    "default-index": "index-url",
    "extra-index-url": "extra-index-url",
    "index": "extra-index-url",
    "find-links": "find-links",
    "no-index": "no-index",
    "allow-insecure-host": "trusted-host",
    "trusted-host": "trusted-host",
}
_DISTRIBUTION: Final = ("ca-certificates", "python3", "python3-pip", "python3-venv", "python-is-python3")
"""Debian's and Ubuntu's packages that install the distribution's Python."""
_FROM: Final = re.compile(r"(\s*FROM\s+(?:--\S+\s+)*)(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_FROM_FLAG: Final = re.compile(r"(\s*(?:COPY|ADD)\s+(?:--\S+\s+)*?--from=)(\S+)", re.IGNORECASE)
_MOUNTED: Final = re.compile(r"(--mount=(?:[^\s,]+,)*from=)([^\s,]+)")
_ARG: Final = re.compile(r"\s*ARG\s+(\w+)(?:=(\"[^\"]*\"|'[^']*'|\S*))?", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})")

Python = Literal["parent", "distribution", "uv"]


@attrs.frozen(kw_only=True)
class RequirementList:
    """The requirements of one installer call."""

    name: str
    """Part of the names of its files: "file", "project", "listed", "local"."""
    lines: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    """Lines that limit versions and install nothing."""
    index: str = ""
    """The only index to use; empty for the installer's usual ones."""
    origin: str = ""
    """Where the lines come from, for messages."""
    locked: bool = False
    """Whether the lines name every package that is to be installed, so that the installer looks for no others."""


@attrs.frozen(kw_only=True)
class ImageSpec:
    """Everything that an image is made of, resolved; `images.spec` makes it.

    The fields from `context_root` on do not change the text of the Dockerfile.
    """

    parent: str
    """The image that the build starts from, or that is used as it is."""
    python: str
    """The driver's Python, or the one that is asked for: "3.11"."""
    interpreter: Python = "parent"
    """Where the image's Python comes from: the parent, its distribution's packages, or uv."""
    platform: str = ""
    """The image's platform ("linux/amd64"); empty for the engine's own."""
    skip_build: bool = False
    """The parent is used as it is."""
    own_dockerfile: str = ""
    """The text of the user's Dockerfile, which Stoker's lines follow."""
    build_arguments: tuple[str, ...] = ()
    """Names of ARG instructions."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables that are set from the start of the build on."""
    apt_packages: tuple[str, ...] = ()
    conda_packages: tuple[str, ...] = ()
    conda_channels: tuple[str, ...] = ()
    """Empty for conda-forge."""
    installer: Installer = "uv"
    arguments: tuple[str, ...] = ()
    """The installer's arguments, each one word."""
    requirements: tuple[RequirementList, ...] = ()
    """In the order of installation."""
    wheels: str = ""
    """The platform of torch's wheels: "cu124", "cpu"; empty for the usual index."""
    locked: bool = False
    """Whether the lists are a lock, and have what Stoker's worker requires, too."""
    worker: str = ""
    """The file name of Stoker's wheel; empty for an image without a worker."""
    worker_extras: tuple[str, ...] = ()
    project: str = ""
    """The command that installs the local project."""
    runtime_environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables that are set at the end of the build."""
    user: str = ""
    """The USER of the image; empty for the parent's."""
    parent_user: str = ""
    """The parent's USER; empty if its configuration was not read."""
    secrets: tuple[str, ...] = ()
    """Names of the secrets that installations mount."""
    context_root: str = ""
    """The folder of the build context; empty for none."""
    dockerignore: str = ""
    """The path of its ignore file; empty for `.dockerignore` in `context_root`."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """`build_config.options`, as the user wrote them."""
    target_repository: str = ""
    image_tag: str = ""
    prevent_build_reuse: bool = False
    left_out: tuple[str, ...] = ()
    """What was asked for and is not installed, each with the reason."""


def dockerfile(spec: ImageSpec, *, cache_mounts: bool = True) -> str:
    """The text of the Dockerfile; empty if the parent is used as it is.

    Without `cache_mounts` the text has no instruction that Docker's older builder does not understand.
    """
    if spec.skip_build:
        return ""
    lines = [*_base_lines(spec), *_system_lines(spec), *_install_lines(spec, cache_mounts), *_final_lines(spec)]
    own = f"{spec.own_dockerfile.rstrip()}\n\n" if spec.own_dockerfile else ""
    return own + "\n".join(lines) + "\n"


def requirement_files(spec: ImageSpec) -> dict[str, bytes]:
    """The requirement files that COPY lines name, by their path in the context."""
    files: dict[str, bytes] = {}
    for number, group in enumerate(spec.requirements, 1):
        for name, lines in _group_files(number, group):
            files[f"{BUILD}/{name}"] = "".join(f"{line}\n" for line in lines).encode()
    return files


def assignment(name: str, value: str) -> str:
    """`NAME="value"` for ENV, LABEL and ARG, taken literally: a dollar sign expands to no variable."""
    # https://docs.docker.com/reference/dockerfile/#environment-replacement: within double quotes a backslash takes
    # back the meaning of these three.
    quoted = re.sub(r'(["\\$])', r"\\\1", _one_line(value, f"the value of {name}"))
    return f'{name}="{quoted}"'


def command(text: str, *, mounts: Sequence[str] = ()) -> str:
    """A RUN instruction for a shell command; in exec form where a Dockerfile would change the command's meaning."""
    flags = "".join(f"{mount} " for mount in mounts)
    if re.search(r"[\r\n]|<<|\\\s*$|^\s*(\[|--|#)", text):
        # A line break would end the instruction, << would begin a here-document, a bracket a list.
        return f"RUN {flags}" + json.dumps(["/bin/sh", "-ec", text])
    return f"RUN {flags}{text.strip()}"


def final_parent(text: str) -> str:
    """The image that the last stage of a Dockerfile is based on; stages and the defaults of ARGs are followed."""
    arguments: dict[str, str] = {}
    stages: dict[str, str] = {}
    parent = ""
    for line in re.sub(r"\\[ \t]*\r?\n", " ", text).splitlines():
        words = line.split()
        if len(words) < 2:
            continue
        if words[0].upper() == "ARG" and not parent:
            name, _, value = words[1].partition("=")
            arguments[name] = value.strip("\"'")
        elif words[0].upper() == "FROM":
            names = [word for word in words[1:] if not word.startswith("--")]
            if not names:
                continue
            image = re.sub(r"\$\{?(\w+)(?::-([^}]*))?\}?", lambda m: arguments.get(m[1]) or m[2] or "", names[0])
            parent = stages.get(image.lower(), image)
            if len(names) == 3 and names[1].upper() == "AS":
                stages[names[2].lower()] = parent
    return parent


def base_images(text: str, arguments: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The images that a build reads, in order, without the Dockerfile's own stages and `scratch`.

    `arguments` are the build's. A name with a variable that has no value is left out. The syntax is that of
    https://docs.docker.com/reference/dockerfile/.
    """
    images: dict[str, None] = {}

    def collect(name: str) -> str:
        images[name] = None
        return name

    _rewrite(text, arguments or {}, collect)
    return tuple(images)


def pin_images(text: str, images: Mapping[str, str], arguments: Mapping[str, str] | None = None) -> str:
    """The Dockerfile with each base image replaced by its entry in `images`; everything else stays as it is."""
    return _rewrite(text, arguments or {}, lambda name: images.get(name, name))


def _base_lines(spec: ImageSpec) -> Iterator[str]:
    if not spec.own_dockerfile:
        platform = f"--platform={spec.platform} " if spec.platform else ""
        yield f"FROM {platform}{spec.parent}"
    if spec.user or _user_of(spec):
        yield "USER root"
    for name in spec.build_arguments:
        yield f"ARG {name}"
    for name, value in sorted(spec.environment.items()):
        yield "ENV " + assignment(name, value)


def _system_lines(spec: ImageSpec) -> Iterator[str]:
    """The lines that install what Python's indexes do not have: apt's and conda's packages, the interpreter."""
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


def _install_lines(spec: ImageSpec, cache_mounts: bool) -> Iterator[str]:
    if not (spec.requirements or spec.worker or spec.project):
        return
    mounts = _mounts(spec, cache_mounts)
    # Debian's and Ubuntu's Pythons refuse installations (PEP 668), which an image need not respect. An ARG applies to
    # the rest of the build, and not to what runs in the image.
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
        words = " ".join(shlex.quote(word) for word in _pip_arguments(spec))
        yield command(
            f"command -v uv >/dev/null || python3 -m pip install {words} uv".replace("  ", " "), mounts=mounts
        )
    if spec.interpreter == "uv" and not spec.conda_packages:
        yield "ENV UV_PYTHON_INSTALL_DIR=/opt/python"  # root's home is closed to other users
        yield command(
            f"uv python install {spec.python} && "
            f'ln -s "$(dirname "$(dirname "$(uv python find --managed-python {spec.python})")")" /opt/python/current'
        )
        yield 'ENV PATH="/opt/python/current/bin:$PATH"'
    for number, group in enumerate(spec.requirements, 1):
        yield from _requirement_lines(spec, number, group, cache_mounts)
    if spec.worker:
        yield f"COPY {BUILD}/{spec.worker} {IMAGE_FOLDER}/"
        extras = f"[{','.join(spec.worker_extras)}]" if spec.worker_extras else ""
        wheel = shlex.quote(f"stoker{extras} @ file://{IMAGE_FOLDER}/{spec.worker}")
        arguments = tuple(word for word in spec.arguments if _name_of(word) in SHARED_ARGUMENTS)
        alone = " --no-deps" if spec.locked else ""
        yield command(f"{_install_command(spec, arguments)}{alone} {wheel}", mounts=mounts)
    yield f"WORKDIR {WORKDIR}"
    if spec.project:
        yield f"COPY {PROJECT}/ {WORKDIR}/"
        yield command(spec.project, mounts=mounts)


def _requirement_lines(spec: ImageSpec, number: int, group: RequirementList, cache_mounts: bool) -> Iterator[str]:
    names = [name for name, _ in _group_files(number, group)]
    yield f"COPY {' '.join(f'{BUILD}/{name}' for name in names)} {IMAGE_FOLDER}/"
    files = " ".join(f"{flag} {IMAGE_FOLDER}/{name}" for flag, name in zip(("-r", "-c"), names))
    chosen = {_name_of(word) for word in spec.arguments}
    extra = ""
    if group.index:
        extra = f"--index-url={shlex.quote(group.index)} "
    elif spec.wheels and spec.installer == "uv" and not chosen & {"torch-backend", "index-url", "default-index"}:
        extra = f"--torch-backend={shlex.quote(spec.wheels)} "
    if group.locked and "no-deps" not in chosen:
        extra += "--no-deps "
    yield command(f"{_install_command(spec, spec.arguments)} {extra}{files}", mounts=_mounts(spec, cache_mounts))


def _group_files(number: int, group: RequirementList) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield f"requirements-{number}-{group.name}.txt", group.lines
    if group.constraints:
        yield f"constraints-{number}-{group.name}.txt", group.constraints


def _install_command(spec: ImageSpec, words: Sequence[str]) -> str:
    parts = ["python3 -m pip install" if spec.installer == "pip" else "uv pip install"]
    if spec.installer == "uv" and not TARGET_ARGUMENTS.intersection(map(_name_of, words)):
        # uv alone would look for a virtual environment, and most images have none.
        parts.append('--python "$(command -v python3)"')
    return " ".join([*parts, *(shlex.quote(word) for word in words)])


def _pip_arguments(spec: ImageSpec) -> Iterator[str]:
    """The installer's arguments that say where packages are and whom to trust, in pip's words: pip installs uv."""
    for word in spec.arguments:
        name, equals, value = word.lstrip("-").partition("=")
        if spec.installer == "uv":
            name = _UV_TO_PIP.get(name, "")
        if name in _WHERE:
            yield f"--{name}{equals}{value}"


def _mounts(spec: ImageSpec, cache_mounts: bool) -> tuple[str, ...]:
    """Flags of RUN: https://docs.docker.com/reference/dockerfile/#run---mount."""
    caches = [CACHES["pip"], CACHES["uv"]] if spec.installer == "uv" else [CACHES["pip"]]
    mounts = [f"--mount=type=cache,target={cache}" for cache in caches] if cache_mounts else []
    for name in spec.secrets:
        target = SECRETS.get(name)
        mounts.append(f"--mount=type=secret,id={name}" + (f",target={target}" if target else ""))
    return tuple(mounts)


def _final_lines(spec: ImageSpec) -> Iterator[str]:
    if not (spec.requirements or spec.worker or spec.project):
        yield f"WORKDIR {WORKDIR}"
    # The container may run as any user, and the step writes into this folder.
    yield command(f"chmod 0777 {WORKDIR}")
    for name, value in sorted(spec.runtime_environment.items()):
        yield "ENV " + assignment(name, value)
    user = spec.user or _user_of(spec)
    if spec.user:
        account = spec.user.partition(":")[0]
        if not account.isdecimal():
            name = shlex.quote(account)
            yield command(
                f"id -u {name} >/dev/null 2>&1 || useradd --create-home {name} 2>/dev/null || adduser -D {name}"
            )
        yield command(f"chown -R {shlex.quote(spec.user)} {WORKDIR}")
    if user:
        yield f"USER {user}"


def _user_of(spec: ImageSpec) -> str:
    """The user of the parent's processes; empty if it is root or not known."""
    user = spec.parent_user
    if spec.own_dockerfile:
        # Only the last stage counts, and in it the last USER.
        stage = re.split(r"(?im)^\s*FROM\s", spec.own_dockerfile)[-1]
        users = re.findall(r"(?im)^[ \t]*USER[ \t]+(\S+)", stage)
        user = users[-1] if users else user
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


def _rewrite(text: str, arguments: Mapping[str, str], change: Callable[[str], str]) -> str:
    variables: dict[str, str] = {}
    stages: set[str] = set()
    in_stage = False
    lines = []
    for line in _instructions(text):
        argument = _ARG.match(line)
        if argument is not None and not in_stage:
            value = arguments.get(argument[1], (argument[2] or "").strip("\"'"))
            variables[argument[1]] = _expand(value, variables)
        base = _FROM.match(line)
        if base is not None:
            in_stage = True
            lines.append(_replace_image(line, base, variables, stages, change))
            stages.add((base[3] or "").lower())
            continue
        changed = line
        for pattern in (_FROM_FLAG, _MOUNTED) if not line.lstrip().startswith("#") else ():
            flag = pattern.search(changed)
            if flag is not None:
                changed = _replace_image(changed, flag, {}, stages, change)
        lines.append(changed)
    return "".join(lines)


def _replace_image(
    line: str, match: re.Match[str], variables: Mapping[str, str], stages: set[str], change: Callable[[str], str]
) -> str:
    name = _expand(match[2], variables)
    if not name or "$" in name or name.lower() in {*stages, "scratch"} or name.isdecimal():
        return line
    replacement = change(name)
    return line if replacement == name else line[: match.start(2)] + replacement + line[match.end(2) :]


def _expand(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        setting = variables.get(match[1] or match[2], "")
        if match[3] == "-":
            return setting or match[4]
        if match[3] == "+":
            return match[4] if setting else ""
        return setting or match[0]

    return _VARIABLE.sub(value, text)


def _instructions(text: str) -> Iterator[str]:
    """The instructions, each with its continued lines and its here-documents."""
    escape = "`" if re.match(r"\s*#\s*escape\s*=\s*`", text, re.IGNORECASE) else "\\"
    instruction = ""
    here_documents: list[str] = []
    for line in text.splitlines(keepends=True):
        comment = line.lstrip().startswith("#")
        instruction += line
        if here_documents:
            if line.strip() == here_documents[0]:
                here_documents.pop(0)
        elif comment and instruction != line:
            continue  # comments between continued lines do not end them
        elif not comment:
            here_documents = (
                re.findall(r"<<-?\s*[\"']?(\w+)[\"']?", line)
                if re.match(r"\s*(RUN|COPY|ADD)\b", instruction, re.IGNORECASE)
                else []
            )
            if line.rstrip().endswith(escape):
                continue
        if not here_documents:
            yield instruction
            instruction = ""
    if instruction:
        yield instruction


_HEAD: Final = "Bootstrap: docker\n"
_END: Final = "STOKER-FILE"
"""Ends a file that a definition writes; no requirement looks like that."""
OF_A_BUILD: Final = (
    *("dockerfile", "build_context_root", "build_config", "local_project_install_command", "conda_packages"),
    *("user", "platform"),
)
"""Settings that need a build's context, an engine's options or files of other images."""


def is_definition(image: str) -> bool:
    """Whether a step's image is the text of a definition, and not a name."""
    return image.startswith(_HEAD)


def undefinable(docker: DockerSettings) -> list[str]:
    """The settings of an image that no definition can have."""
    return [name for name in OF_A_BUILD if value_or(getattr(docker, name), None)]


def definition(spec: ImageSpec) -> str:
    """The definition of an image; a `SettingsError` for an instruction that has no words there."""
    files = {name.removeprefix(f"{BUILD}/"): data.decode() for name, data in requirement_files(spec).items()}
    post, environment = ["set -e"], []
    for line in dockerfile(spec, cache_mounts=False).splitlines():
        word, _, rest = line.partition(" ")
        if word == "ENV":
            environment.append(f"export {_quoted(rest)}")
            post.append(environment[-1])
        elif word == "ARG":
            post.append(f"export {rest}")
        elif word == "RUN":
            post.append(_command(rest))
        elif word == "WORKDIR":
            post.append(f"mkdir -p {rest} && cd {rest}")
        elif word == "COPY" and "--from=" not in rest:
            post += _written(rest, files)
        elif word not in ("FROM", "USER"):
            what = f"no definition of Apptainer can have the line '{line}'"
            raise SettingsError(
                what, fix="name a container_registry in the stack, to which an engine's image is pushed"
            )
    text = f"{_HEAD}From: {spec.parent}\n\n%post\n" + "\n".join(post) + "\n"
    return text + ("\n%environment\n" + "\n".join(environment) + "\n" if environment else "")


def _quoted(assignment: str) -> str:
    """An assignment of a Dockerfile for a shell, in which a backtick within double quotes begins a command."""
    return assignment.replace("`", "\\`")


def _command(text: str) -> str:
    """The shell's command of a RUN instruction without mounts."""
    if not text.startswith("["):
        return f"( {text} )"
    return shlex.join(json.loads(text))


def _written(words: str, files: dict[str, str]) -> Iterator[str]:
    """The lines that write the files of a COPY instruction."""
    *sources, target = words.split()
    yield f"mkdir -p {target}"
    for source in sources:
        name = source.removeprefix(f"{BUILD}/")
        yield f"cat > {target}{shlex.quote(name)} <<'{_END}'"
        yield re.sub(r"(?m)^%", " %", files[name]).rstrip("\n")
        yield _END
