"""Who we are at a registry: what `docker login` and `podman login` have kept, and the helpers that they name.

https://docs.docker.com/reference/cli/docker/login/ and
https://github.com/containers/image/blob/main/docs/containers-auth.json.5.md describe the files.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final, Iterator, Mapping

import attrs

from stoker.core.errors import BackendError
from stoker.core.imagenames import HUB
from stoker.images.reference import Reference

HUB_KEY: Final = "index.docker.io"
"""The name under which Docker Hub's password is kept, for historic reasons: https://index.docker.io/v1/."""
TOKEN_USER: Final = "<token>"
"""A helper answers with this name where its secret is not a password but a token to get tokens with.
https://github.com/docker/docker-credential-helpers#development"""
HELPER_SECONDS: Final = 30.0


@attrs.frozen(kw_only=True)
class Credentials:
    """A name and a password, or an identity token."""

    user: str = ""
    secret: str = attrs.field(default="", repr=lambda _: "***")
    source: str = ""
    """The file or the helper that they come from."""

    @property
    def identity(self) -> bool:
        """Whether the secret is an identity token."""
        return self.user == TOKEN_USER

    @property
    def basic(self) -> str:
        """The header's value for HTTP's basic scheme."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def credentials(reference: Reference, environ: Mapping[str, str] | None = None) -> Credentials | None:
    """What is kept for an image's registry; None if nothing is."""
    environ = os.environ if environ is None else environ
    for path in files(environ):
        document = _document(path)
        found = _of_helper(document, reference, environ) or _of_file(document, reference, path)
        if found is not None:
            return found
    return None


def files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where passwords may be kept, the first one first."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    if environ.get("REGISTRY_AUTH_FILE"):
        yield Path(environ["REGISTRY_AUTH_FILE"])
    yield Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime:
        yield Path(runtime) / "containers" / "auth.json"
    yield home / ".config" / "containers" / "auth.json"


def _document(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    except ValueError as error:
        raise BackendError(f"{path} is not JSON: {error}", fix="mend it, or move it away and log in again") from error
    return document if isinstance(document, dict) else {}


def _of_helper(document: Mapping[str, Any], reference: Reference, environ: Mapping[str, str]) -> Credentials | None:
    helpers = {_bare(key): helper for key, helper in (document.get("credHelpers") or {}).items()}
    keys = _keys(reference)
    helper = next((helpers[key] for key in keys if helpers.get(key)), "") or document.get("credsStore") or ""
    if not helper:
        return None
    server = f"https://{HUB_KEY}/v1/" if reference.registry == HUB else reference.registry
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
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
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        if "not found" in said.lower():  # "credentials not found in native keychain": nobody has logged in
            return None
        raise BackendError(f"'{program} get' failed: {said or done.returncode}", where=reference.registry)
    try:
        answer = json.loads(done.stdout)
        return Credentials(user=str(answer["Username"]), secret=str(answer["Secret"]), source=program)
    except (ValueError, KeyError, TypeError):
        raise BackendError(f"'{program} get' did not answer as helpers do", where=reference.registry) from None


def _of_file(document: Mapping[str, Any], reference: Reference, path: Path) -> Credentials | None:
    kept = {_bare(key): value for key, value in (document.get("auths") or {}).items() if isinstance(value, dict)}
    for key in _keys(reference):
        entry = kept.get(key)
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


def _keys(reference: Reference) -> list[str]:
    """Under what a registry's password may be kept, the most specific first: podman keeps them by repository too."""
    if reference.registry == HUB:
        return [*_paths(reference), HUB, HUB_KEY, reference.server]
    return [*_paths(reference), reference.registry]


def _paths(reference: Reference) -> list[str]:
    parts = reference.path.split("/")
    return ["/".join([reference.registry, *parts[:count]]) for count in range(len(parts), 0, -1)]


def _bare(key: str) -> str:
    """`https://host/v1/` is `host`."""
    text = key.partition("://")[2] or key
    for ending in ("/v1/", "/v2/", "/v1", "/v2", "/"):
        text = text.removesuffix(ending)
    return text
