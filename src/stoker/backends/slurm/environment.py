"""The lines of a batch script that make a step's environment: modules, lines of the stack, conda or venv; and who pulls
its image: enroot, Apptainer or Singularity, each with its own files of logins.

They run in this order, so that `setup` can put conda on the path. The first that fails ends the job, and is written to
its stderr behind `SETUP_FAILED_MARK`.

A cluster that is reached from this machine without a `host` shares the user's home with its nodes, so that the files
can be read here. Those of a cluster behind a login node cannot.
"""

from __future__ import annotations

import hashlib
import netrc
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Callable, Final, Iterator, Mapping

from stoker.backends.base.pulling import Puller
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import SETUP_FAILED_MARK
from stoker.core.errors import BackendError
from stoker.core.plan import Job
from stoker.images.credentials import Credentials, credentials
from stoker.images.registries import ImageReference

OWN: Final = sys.executable
"""The interpreter on nodes that see this machine's folders, unless settings name another one."""
_END_OF_DEFINITION: Final = "STOKER-DEFINITION"
_PLACES: Final = ("miniforge3", "mambaforge", "miniconda3", "anaconda3")
"""Folders in the home into which the installers of conda go unless told otherwise."""
# A line of the script may fail inside a function, such as `conda activate`, or a file that it reads: ERR is inherited
# there (-E); the line is that of the outermost call. Some failures end the shell without ERR: "." of a missing file,
# ${NAME:?}, an unset name under `set -u`, `exit`. At EXIT LINENO is 1, the line of "#!". A subshell says nothing: what
# becomes of its end is its caller's affair. Bash 4.2 has no negative indexes.
_ON_FAILURE: Final = (
    '[ "$BASH_SUBSHELL" = 0 ] || exit; trap - ERR EXIT; depth=${#BASH_LINENO[@]}; line=$LINENO; '
    '[ "$depth" -lt 2 ] || line=${BASH_LINENO[depth - 2]}; '
    'line=$(sed -n "${line}p" "${BASH_SOURCE[depth > 0 ? depth - 1 : 0]:-$0}" 2>/dev/null || :); '
    'case $line in "#!"*) line= ;; esac; '
    f'echo "{SETUP_FAILED_MARK}${{line:-$BASH_COMMAND}}" >&2'
)
_CHECK: Final = """\
import os, sys
version, prefix, exact = sys.version.split()[0], sys.argv[1], sys.argv[2]
if prefix and os.path.realpath(sys.prefix) != os.path.realpath(prefix):
    sys.exit("%s is not of the environment %s: install Python there" % (sys.executable, prefix))
if exact and version.split(".")[:2] != exact.split("."):
    sys.exit("%s is Python %s, and the step is sent as a pickle of Python %s: define it in a file"
             % (sys.executable, version, exact))"""
"""Runs on any Python, also on version 2. That it is new enough for the worker says the worker itself."""
ENROOT_FIX: Final = "write a line into ~/.config/enroot/.credentials: machine {registry} login USER password TOKEN"
_APPTAINER_LOGIN: Final = "log in there: {program} registry login --username USER docker://{{registry}}"
_SINGULARITY_LOGIN: Final = "log in there: {program} remote login --username USER docker://{{registry}}"
_APPTAINER: Final[Mapping[str, str]] = {"apptainer": _APPTAINER_LOGIN, "singularity": _SINGULARITY_LOGIN}
"""Program → how one logs in. https://apptainer.org/docs/user/latest/docker_and_oci.html#authentication-for-private-images
and https://docs.sylabs.io/guides/latest/user-guide/singularity_and_docker.html"""


def uses_own_python(settings: SlurmSettings) -> bool:
    """Whether steps without an image run on the interpreter that runs the pipeline."""
    return settings.shares and node_python(settings) == OWN


def node_python(settings: SlurmSettings) -> str:
    """The interpreter of a step that runs in no image."""
    if settings.get("conda") or settings.get("venv"):
        return str(settings.get("python", "python"))
    return str(settings.get("python", OWN if settings.shares else "python3"))


def setup_lines(settings: SlurmSettings, definition: str = "", folder: str = "") -> list[str]:
    """The lines that make the environment, and the image of a definition; empty where nothing is asked for."""
    lines = [*_modules(settings), *settings.get("setup", ()), *_conda(settings), *_venv(settings)]
    if definition:
        lines += _image(definition, str(settings.get("container")), folder)
    return [*_guarded(lines)] if lines else []


def image_file(definition: str, folder: str) -> str:
    """The file of an image that is built of a definition, in a folder that the nodes share."""
    return f"{folder.rstrip('/')}/images/{hashlib.sha256(definition.encode()).hexdigest()[:24]}.sif"


def _image(definition: str, program: str, folder: str) -> Iterator[str]:
    """Build the image where it is missing: one job does, and the others wait for it.

    `--fakeroot` is what a user's own build needs: https://apptainer.org/docs/user/latest/fakeroot.html. On a network
    disk without locks two jobs may build the same image; the file is whole in any case.
    """
    yield f"image={shlex.quote(image_file(definition, folder))}"
    yield 'if [ ! -e "$image" ]; then'
    yield '  mkdir -p "${image%/*}"'
    yield '  exec 9>"$image.lock"'
    yield "  flock 9 || true"
    yield '  if [ ! -e "$image" ]; then'
    yield "    building=$image.$SLURM_JOB_ID"
    yield f"    cat > \"$building.def\" <<'{_END_OF_DEFINITION}'"
    yield definition.rstrip("\n")
    yield _END_OF_DEFINITION
    yield f'    {program} build --fakeroot "$building.sif" "$building.def" >&2 || {{ rm -f "$building".*; false; }}'
    yield '    mv "$building.sif" "$image"'
    yield '    rm -f "$building.def" "$image.lock"'
    yield "  fi"
    yield "  exec 9>&-"
    yield "fi"


def python_lines(job: Job, settings: SlurmSettings) -> list[str]:
    """The lines that end the job where its interpreter is not the environment's, or cannot read a pickled step; empty
    where neither can be."""
    pickled = job.step.source.kind == "pickled" or (job.hook is not None and job.hook.kind == "pickled")
    exact = ".".join(map(str, sys.version_info[:2])) if pickled else ""
    prefix = '"$CONDA_PREFIX"' if settings.get("conda") else '"$VIRTUAL_ENV"' if settings.get("venv") else "''"
    if uses_own_python(settings) or (prefix == "''" and not exact):
        return []
    lines = [
        f'python_fits() {{ "$1" -c {shlex.quote(_CHECK)} "$2" "$3" || return; }}',
        f"python_fits {shlex.quote(node_python(settings))} {prefix} {shlex.quote(exact)}",
    ]
    return [*_guarded(lines)]


def _guarded(lines: list[str]) -> Iterator[str]:
    yield f"trap {shlex.quote(_ON_FAILURE)} ERR EXIT"
    yield "set -eE"
    yield from lines
    yield "trap - ERR EXIT"


def _modules(settings: SlurmSettings) -> Iterator[str]:
    modules = settings.get("modules", ())
    if modules:
        # A shell that is no login shell may lack it. Failures in profiles do not count.
        yield "if ! command -v module >/dev/null; then . /etc/profile || true; fi"
        yield f"module load {shlex.join(modules)}"


def _conda(settings: SlurmSettings) -> Iterator[str]:
    """https://docs.conda.io/projects/conda/en/stable/dev-guide/deep-dives/activation.html and
    https://mamba.readthedocs.io/en/latest/user_guide/micromamba.html"""
    name = settings.get("conda")
    if not name:
        return
    environment = _path(name)
    places = " ".join(f'"$HOME"/{place}' for place in _PLACES)
    yield f'for place in "${{CONDA_EXE%/bin/conda}}" {places} /opt/conda; do'
    yield '  command -v conda micromamba mamba >/dev/null || [ ! -x "$place"/bin/conda ] || PATH=$place/bin:$PATH'
    yield "done"
    yield "if command -v conda >/dev/null || ! command -v micromamba mamba >/dev/null; then"
    yield '  eval "$(conda shell.bash hook)"'
    yield f"  conda activate {environment}"
    yield "elif command -v micromamba >/dev/null; then"
    yield '  eval "$(micromamba shell hook --shell bash)"'
    yield f"  micromamba activate {environment}"
    yield "else"
    yield '  eval "$(mamba shell hook --shell bash)"'
    yield f"  mamba activate {environment}"
    yield "fi"


def _venv(settings: SlurmSettings) -> Iterator[str]:
    """https://docs.python.org/3/library/venv.html#how-venvs-work"""
    folder = settings.get("venv")
    if folder:
        yield f". {_path(folder)}/bin/activate"


def _path(text: str) -> str:
    """A word of the shell, in which a "~/" is the node's home."""
    return f'"$HOME"/{shlex.quote(text[2:])}' if text.startswith("~/") else shlex.quote(text)


def puller_of(options: Mapping[str, Any]) -> Puller | None:
    """Who pulls on the nodes, under these settings of the backend; None where nothing runs images."""
    settings = SlurmSettings(**options)
    container = settings.get("container", "")
    if not container:
        return None
    host = settings.get("host", "")
    if container == "pyxis":
        who, fix, account = "enroot on the cluster's nodes", ENROOT_FIX, enroot_account(os.environ)
    else:
        who, fix = f"{container} on the cluster's nodes", _APPTAINER[container].format(program=container)
        account = apptainer_account(container, os.environ)
    defines = container != "pyxis"
    if host:
        return Puller(who=who, fix=fix, unseen=f"its logins are on the cluster behind {host}", defines=defines)
    return Puller(who=who, fix=fix, account=account, defines=defines)


def enroot_account(environ: Mapping[str, str]) -> Callable[[ImageReference], Credentials | None]:
    """The logins of enroot: a file in the format of netrc, in which a password may be a shell's expression.

    https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md; the folder is ENROOT_CONFIG_PATH, by default
    ~/.config/enroot (https://github.com/NVIDIA/enroot/blob/master/conf/enroot.conf.in).
    """
    home = environ.get("HOME") or os.path.expanduser("~")
    config = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    path = Path(environ.get("ENROOT_CONFIG_PATH") or os.path.join(config, "enroot"), ".credentials")

    def account(name: ImageReference) -> Credentials | None:
        try:
            entry = netrc.netrc(str(path)).authenticators(name.server)
        except FileNotFoundError:
            return None
        except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as error:
            raise BackendError(f"{path} cannot be read: {getattr(error, 'msg', error)}") from error
        if entry is None:
            return None
        user, _, password = entry
        if str(password).startswith("$"):
            raise BackendError(f"the password for {name.server} in {path} is what a command prints there")
        return Credentials(user=user or "", secret=password or "", source=str(path))

    return account


def apptainer_account(program: str, environ: Mapping[str, str]) -> Callable[[ImageReference], Credentials | None]:
    """The logins of Apptainer or Singularity: variables, then its own file in docker's format, then docker's."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    prefixes = ("APPTAINER", "SINGULARITY") if program == "apptainer" else ("SINGULARITY",)
    folder = Path(environ.get(f"{program.upper()}_CONFIGDIR") or home / f".{program}")

    def account(name: ImageReference) -> Credentials | None:
        for prefix in prefixes:
            user, secret = (environ.get(f"{prefix}_DOCKER_{word}", "") for word in ("USERNAME", "PASSWORD"))
            if user and secret:
                return Credentials(user=user, secret=secret, source=f"{prefix}_DOCKER_USERNAME")
        return credentials(name, {**environ, "REGISTRY_AUTH_FILE": str(folder / "docker-config.json")})

    return account
