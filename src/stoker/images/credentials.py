"""Logins of image registries: those that `docker login` and `podman login` keep, and how to get the right one.

Credentials come from the files and the credential helpers of docker and podman, or from those that a stack names
(`logged_in`). `registries` has each registry's names for the permissions to read and to write.

https://docs.docker.com/reference/cli/docker/login/ and
https://github.com/containers/image/blob/main/docs/containers-auth.json.5.md describe the config_files.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Final, Iterator, Literal, Mapping

import attrs

from stoker.core.errors import BackendError
from stoker.core.imagenames import HUB
from stoker.core.secret import MASK, Secret
from stoker.images.registries import ContainerRegistry, ImageReference, registry_flavor

HUB_KEY: Final = "index.docker.io"
"""The key of Docker Hub's password, for historic reasons: https://index.docker.io/v1/."""
TOKEN_USER: Final = "<token>"
"""The user name that a helper gives if its secret is an identity token and no password.
https://github.com/docker/docker-credential-helpers#development"""
HELPER_SECONDS: Final = 30.0
_LOGIN_FOLDER: Final = "stoker-login-"
STACK_HELPER: Final = "stoker-stack"
"""The X of the helper `docker-credential-X` that gives the login of a stack's registry."""
STACK_SOURCE: Final = "the stack's container_registry"
"""Where that login comes from, in words."""
_USER_VARIABLE: Final = "STOKER_REGISTRY_USER"
_PASSWORD_VARIABLE: Final = "STOKER_REGISTRY_PASSWORD"
_HELPER_SCRIPT: Final = f"""#!{sys.executable}
import json, os, sys
if sys.argv[1:] == ["get"]:
    server = sys.stdin.read().strip()
    login = {{"ServerURL": server, "Username": os.environ["{_USER_VARIABLE}"]}}
    print(json.dumps({{**login, "Secret": os.environ["{_PASSWORD_VARIABLE}"]}}))
"""
"""A program that answers as https://github.com/docker/docker-credential-helpers#development says. It has no secret."""


@attrs.frozen(kw_only=True)
class Credentials:
    """A name and a password, or an identity token."""

    user: str = ""
    secret: str = attrs.field(default="", repr=lambda _: MASK)
    source: str = ""
    """The path of the file, or the name of the helper, that they come from."""

    @property
    def identity(self) -> bool:
        """Whether the secret is an identity token."""
        return self.user == TOKEN_USER

    @property
    def basic(self) -> str:
        """The value of the `Authorization` header in HTTP's basic scheme."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def credentials(reference: ImageReference, environ: Mapping[str, str] | None = None) -> Credentials | None:
    """The login for an image's registry; None if there is none."""
    environ = os.environ if environ is None else environ
    for path in config_files(environ):
        document = _read_config(path)
        entry = _from_helper(document, reference, environ) or _from_file(document, reference, path)
        if entry is not None:
            return entry
    return None


@contextlib.contextmanager
def logged_in(
    registry: ContainerRegistry | None, environ: Mapping[str, str], read: Callable[[Secret], str]
) -> Iterator[dict[str, str]]:
    """An environment in which docker, podman, buildah and `credentials` use the login that a stack names.

    `read` reads the value of the stack's secret, which is in this environment only: the configuration that is made
    names a helper program that takes it from there. All other logins and settings of docker stay as they are.
    """
    if registry is None or not (registry.user or registry.credential_helper):
        yield dict(environ)
        return
    user_folder = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or os.path.expanduser("~"), ".docker"))
    _remove_left_logins()
    with tempfile.TemporaryDirectory(prefix=f"{_LOGIN_FOLDER}{os.getpid()}-") as name:
        folder = Path(name)
        changed = dict(environ, DOCKER_CONFIG=name, REGISTRY_AUTH_FILE=str(folder / "config.json"))
        if registry.user:
            program = folder / "bin" / f"docker-credential-{STACK_HELPER}"
            program.parent.mkdir()
            program.write_text(_HELPER_SCRIPT, encoding="utf-8")
            program.chmod(0o700)
            changed["PATH"] = os.pathsep.join([str(program.parent), environ.get("PATH", os.defpath)])
            changed[_USER_VARIABLE] = registry.user
            changed[_PASSWORD_VARIABLE] = read(Secret.parse(registry.password))
        for entry in user_folder.iterdir() if user_folder.is_dir() else ():
            if entry.name not in ("config.json", "bin"):  # plugins such as buildx, contexts
                (folder / entry.name).symlink_to(entry)
        config = _merged_config(config_files(environ))
        host = registry.uri.partition("/")[0]
        key = f"https://{HUB_KEY}/v1/" if host == HUB else host
        helper = STACK_HELPER if registry.user else registry.credential_helper
        config["credHelpers"] = {**config.get("credHelpers", {}), key: helper}
        config["auths"] = {name: entry for name, entry in config.get("auths", {}).items() if _host(name) != _host(key)}
        path = folder / "config.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config), encoding="utf-8")
        yield changed


def _remove_left_logins() -> None:
    """Remove the folders of this user's processes that were killed: they have copies of docker's other logins."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_LOGIN_FOLDER}*-*"):
        pid = folder.name.removeprefix(_LOGIN_FOLDER).partition("-")[0]
        try:
            if pid.isdecimal() and folder.stat().st_uid == os.getuid():
                os.kill(int(pid), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # somebody else's process, or a folder that has just gone


def _merged_config(paths: Iterator[Path]) -> dict[str, Any]:
    """The configuration of several files; what an earlier one says goes first."""
    merged: dict[str, Any] = {}
    for path in paths:
        for key, value in _read_config(path).items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**value, **merged[key]} if both else merged.get(key, value)
    return merged


def account_text(account: Credentials | None) -> str:
    """A login in words; without it "without a login"."""
    if account is None:
        return "without a login"
    who = "with a token" if account.identity else f"as '{account.user}'"
    return f"{who} (from {account.source})"


def login_advice(
    reference: ImageReference, account: Credentials | None, environ: Mapping[str, str] | None = None
) -> str:
    """What to do where a registry refuses a login: `docker login` changes nothing for the login of a stack."""
    if account is not None and account.source == STACK_SOURCE:
        return f"check the user and the password of {STACK_SOURCE} (in stoker.toml)"
    return f"log in with: {login(reference, environ)}"


def config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """The files that may have logins, in the order in which they are read."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    if environ.get("REGISTRY_AUTH_FILE"):
        yield Path(environ["REGISTRY_AUTH_FILE"])
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime:
        yield Path(runtime) / "containers" / "auth.json"
    yield home / ".config" / "containers" / "auth.json"


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    except ValueError as error:
        raise BackendError(f"{path} is not JSON: {error}", fix="mend it, or move it away and log in again") from error
    return document if isinstance(document, dict) else {}


def _from_helper(
    config: Mapping[str, Any], reference: ImageReference, environ: Mapping[str, str]
) -> Credentials | None:
    helpers = {_host(key): helper for key, helper in (config.get("credHelpers") or {}).items()}
    keys = _keys(reference)
    helper = next((helpers[key] for key in keys if helpers.get(key)), "") or config.get("credsStore") or ""
    if not helper:
        return None
    server = f"https://{HUB_KEY}/v1/" if reference.registry == HUB else reference.registry
    program = f"docker-credential-{helper}"
    try:
        result = subprocess.run(
            [program, "get"],
            input=server,
            capture_output=True,
            text=True,
            timeout=HELPER_SECONDS,
            check=False,
            env=dict(environ),
        )
    except FileNotFoundError:
        raise BackendError(
            f"docker's configuration names the credential helper '{program}', which is not installed",
            where=reference.registry,
            fix="install it, or take it out of the configuration and log in again",
        ) from None
    except subprocess.TimeoutExpired:
        raise BackendError(f"'{program} get' does not answer", where=reference.registry) from None
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()
        if "not found" in output.lower():  # "credentials not found in native keychain": nobody has logged in
            return None
        raise BackendError(f"'{program} get' failed: {output or result.returncode}", where=reference.registry)
    try:
        answer = json.loads(result.stdout)
        source = STACK_SOURCE if helper == STACK_HELPER else program
        return Credentials(user=str(answer["Username"]), secret=str(answer["Secret"]), source=source)
    except (ValueError, KeyError, TypeError):
        raise BackendError(f"'{program} get' did not answer as helpers do", where=reference.registry) from None


def _from_file(config: Mapping[str, Any], reference: ImageReference, path: Path) -> Credentials | None:
    entries = {_host(key): value for key, value in (config.get("auths") or {}).items() if isinstance(value, dict)}
    for key in _keys(reference):
        entry = entries.get(key)
        if not entry:
            continue
        if entry.get("identitytoken"):
            return Credentials(user=TOKEN_USER, secret=str(entry["identitytoken"]), source=str(path))
        user, secret = entry.get("username", ""), entry.get("password", "")
        if entry.get("auth"):
            try:
                user, _, secret = base64.b64decode(entry["auth"]).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError) as error:
                raise BackendError(
                    f"the password for {key} in {path} cannot be read: {error}", fix=f"docker login {key}"
                ) from error
        if user:
            return Credentials(user=user, secret=secret.rstrip("\0"), source=str(path))
    return None


def _keys(reference: ImageReference) -> list[str]:
    """The keys of a registry's login, the most specific first: podman keeps logins by repository, too."""
    if reference.registry == HUB:
        return [*_repository_keys(reference), HUB, HUB_KEY, reference.server]
    return [*_repository_keys(reference), reference.registry]


def _repository_keys(reference: ImageReference) -> list[str]:
    parts = reference.path.split("/")
    return ["/".join([reference.registry, *parts[:count]]) for count in range(len(parts), 0, -1)]


def _host(key: str) -> str:
    """The host of a key: "host" of "https://host/v1/"."""
    text = key.partition("://")[2] or key
    for ending in ("/v1/", "/v2/", "/v1", "/v2", "/"):
        text = text.removesuffix(ending)
    return text


Action = Literal["pull", "push"]


def needed(reference: ImageReference, action: Action) -> str:
    """The permission for an action, in the registry's words."""
    flavor = registry_flavor(reference)
    return flavor.pull if action == "pull" else flavor.push


def login(reference: ImageReference, environ: Mapping[str, str] | None = None) -> str:
    """The command that logs in to an image's registry, by the first of docker, podman and buildah that is here."""
    flavor = registry_flavor(reference)
    command = flavor.login
    if reference.registry != HUB:
        command = command.format(registry=reference.registry, name=reference.registry.partition(".")[0])
    path = (os.environ if environ is None else environ).get("PATH")
    programs = ("docker", "podman", "buildah")
    program = next((name for name in programs if shutil.which(name, path=path)), "docker")
    return command.replace("docker login", f"{program} login")
