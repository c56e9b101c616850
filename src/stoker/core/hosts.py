"""Another machine as a setting names it: "ssh://me@login:2222", or "ssh://alias" for a host of ~/.ssh/config; and a
folder there: "ssh://login/scratch/me", or "ssh://login/~/runs" below the home."""

from __future__ import annotations

import re
from typing import Any, Final

from stoker.core.errors import SettingsError
from stoker.core.units import UNSET
from stoker.core.values import frozen

_FIX: Final = (
    'write "ssh://login.example.org", "ssh://me@login:2222", or "ssh://alias" for a host of your ~/.ssh/config'
)
# Whatever else is in a name would reach a command line; an alias of ~/.ssh/config may have all of these.
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%:-]*")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]*")


@frozen
class Address:
    """Where ssh goes; empty and 0 where its own configuration says."""

    host: str
    user: str = ""
    port: int = 0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ssh://{f'{self.user}@' if self.user else ''}{host}{f':{self.port}' if self.port else ''}"


def ssh_address(text: str) -> Address:
    """What "ssh://USER@HOST:PORT" means; `SettingsError` for anything else."""
    from urllib.parse import unquote, urlsplit  # it takes milliseconds, and few stacks have a host

    raw: Any = text
    if not isinstance(raw, str) or not raw.startswith("ssh://"):
        host = raw if isinstance(raw, str) and _HOST.fullmatch(raw) else ""
        raise SettingsError(f"{text!r} is not the address of a host", fix=f'write "ssh://{host}"' if host else _FIX)
    try:
        parts = urlsplit(raw)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"{text!r} is not the address of a host: {error}", fix=_FIX) from None
    if parts.password is not None:
        raise SettingsError(
            f"the address of {parts.hostname} has a password in it, which others could read",
            fix="take it out, and let ssh find a key without asking: ssh-agent, or IdentityFile in ~/.ssh/config",
        )
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise SettingsError(
            f"{text!r} has more than a host in it", fix="take away what follows the host; folder=… says where files go"
        )
    if port == 0:
        raise SettingsError(f"{text!r} names port 0, which nobody listens on", fix=_FIX)
    name, _, location = parts.netloc.rpartition("@")
    user = unquote(name)
    # As it was written: an alias of ~/.ssh/config may have capitals, which `hostname` would make small.
    host = re.sub(r":\d*$", "", location) if not location.startswith("[") else location[1:].partition("]")[0]
    if not _HOST.fullmatch(host) or (user and not _USER.fullmatch(user)):
        raise SettingsError(f"{text!r} is not the address of a host", fix=_FIX)
    return Address(host, user, port or 0)


def is_folder_elsewhere(uri: str) -> bool:
    """Whether a URI names a folder of another machine, or on a claim of a cluster: no step reaches it by its URI."""
    return uri.startswith(("ssh://", "pvc://"))


def folder_uri(host: str, folder: str) -> str:
    """The URI of a folder of a host: an absolute path, or one that begins with "~/"."""
    return f"{host}/{folder.removeprefix('/')}"


def folder_elsewhere(uri: str) -> tuple[Address, str]:
    """The host and the path of "ssh://login/scratch/me" or "ssh://login/~/runs"; `SettingsError` without a path."""
    host, slash, path = uri.removeprefix("ssh://").partition("/")
    path = path.strip("/")
    if not slash or path in ("", "~") or not path.isprintable():
        raise SettingsError(f"{uri!r} names no folder", fix='write "ssh://login/scratch/me/artifacts"')
    return ssh_address(f"ssh://{host}"), path if path.startswith("~/") else f"/{path}"


def parse_host(value: str | None) -> str | None:
    """A setting that names a machine: its address in one spelling."""
    return value if value is None or value is UNSET else str(ssh_address(value))
