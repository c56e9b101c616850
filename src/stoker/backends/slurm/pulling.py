"""Who pulls the images of jobs on a cluster: enroot, Apptainer or Singularity, each with its own files of logins.

A cluster that is reached from this machine without a `host` shares the user's home with its nodes, so that the files
can be read here. Those of a cluster behind a login node cannot.
"""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from typing import Any, Callable, Final, Mapping

from stoker.backends.base.pulling import Puller
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.errors import BackendError
from stoker.images.credentials import Credentials, credentials
from stoker.images.reference import ImageReference

ENROOT_FIX: Final = "write a line into ~/.config/enroot/.credentials: machine {registry} login USER password TOKEN"
_APPTAINER_LOGIN: Final = "log in there: {program} registry login --username USER docker://{{registry}}"
_SINGULARITY_LOGIN: Final = "log in there: {program} remote login --username USER docker://{{registry}}"
_APPTAINER: Final[Mapping[str, str]] = {"apptainer": _APPTAINER_LOGIN, "singularity": _SINGULARITY_LOGIN}
"""Program → how one logs in. https://apptainer.org/docs/user/latest/docker_and_oci.html#authentication-for-private-images
and https://docs.sylabs.io/guides/latest/user-guide/singularity_and_docker.html"""


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
