"""Logins of image registries: those that `docker login` and `podman login` keep, and how to get the right one.

Credentials come from the files and the credential helpers of docker and podman. The table `REGISTRY_KINDS` has each
registry's names for the permissions to read and to write, and the command that logs in.

https://docs.docker.com/reference/cli/docker/login/ and
https://github.com/containers/image/blob/main/docs/containers-auth.json.5.md describe the config_files.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final, Iterator, Literal, Mapping, NamedTuple

import attrs

from stoker.core.errors import BackendError
from stoker.core.imagenames import HUB
from stoker.images.reference import ImageReference

HUB_KEY: Final = "index.docker.io"
"""The key of Docker Hub's password, for historic reasons: https://index.docker.io/v1/."""
TOKEN_USER: Final = "<token>"
"""The user name that a helper gives if its secret is an identity token and no password.
https://github.com/docker/docker-credential-helpers#development"""
HELPER_SECONDS: Final = 30.0


@attrs.frozen(kw_only=True)
class Credentials:
    """A name and a password, or an identity token."""

    user: str = ""
    secret: str = attrs.field(default="", repr=lambda _: "***")
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
        return Credentials(user=str(answer["Username"]), secret=str(answer["Secret"]), source=program)
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


class RegistryKind(NamedTuple):
    """One kind of registry, with its own words."""

    hosts: str
    """A regular expression of its host names."""
    pull: str
    """The permission to read an image."""
    push: str
    """The permission to write an image."""
    login: str
    """The command that logs in; `{registry}` is the host, `{name}` its first part."""


REGISTRY_KINDS: Final[tuple[RegistryKind, ...]] = (
    # https://docs.docker.com/security/access-tokens/
    RegistryKind(
        r"docker\.io",
        "an access token with 'Read-only', or 'Public Repo Read-only' for a public image",
        "an access token with 'Read & Write', and a repository below your own name or organization",
        "docker login",
    ),
    # https://docs.aws.amazon.com/AmazonECR/latest/userguide/image-push-iam.html
    RegistryKind(
        r"\d+\.dkr\.ecr\.[\w-]+\.amazonaws\.com(?:\.cn)?",
        "ecr:GetAuthorizationToken, ecr:BatchGetImage and ecr:GetDownloadUrlForLayer",
        "ecr:GetAuthorizationToken, ecr:BatchCheckLayerAvailability, ecr:InitiateLayerUpload, ecr:UploadLayerPart, "
        "ecr:CompleteLayerUpload and ecr:PutImage",
        "aws ecr get-login-password | docker login --username AWS --password-stdin {registry} (good for 12 hours)",
    ),
    # https://cloud.google.com/artifact-registry/docs/access-control
    RegistryKind(
        r"[\w-]+-docker\.pkg\.dev|(?:\w+\.)?gcr\.io",
        "the role roles/artifactregistry.reader",
        "the role roles/artifactregistry.writer",
        "gcloud auth configure-docker {registry}",
    ),
    # https://learn.microsoft.com/azure/container-registry/container-registry-roles
    RegistryKind(r"[\w-]+\.azurecr\.io", "the role AcrPull", "the role AcrPush", "az acr login --name {name}"),
    # https://docs.github.com/packages/working-with-a-github-packages-registry/working-with-the-container-registry
    RegistryKind(
        r"ghcr\.io",
        "a token with the scope read:packages",
        "a token with the scope write:packages",
        "docker login ghcr.io",
    ),
    # https://docs.gitlab.com/user/packages/container_registry/authenticate_with_container_registry/
    RegistryKind(
        r"registry\.gitlab\.com",
        "a token with the scope read_registry",
        "a token with the scopes read_registry and write_registry",
        "docker login registry.gitlab.com",
    ),
    # https://docs.nvidia.com/ngc/latest/ngc-user-guide.html; the user's name is $oauthtoken in letters.
    RegistryKind(
        r"nvcr\.io",
        "an NGC API key, and acceptance of the image's licence on its page",
        "an NGC API key of a member of the organization with the role Registry Admin",
        "docker login nvcr.io --username '$oauthtoken'",
    ),
    # https://docs.redhat.com/en/documentation/red_hat_quay/3/html/use_red_hat_quay/
    RegistryKind(r"quay\.io", "the permission Read", "the permission Write", "docker login quay.io"),
)
OTHER_REGISTRY: Final = RegistryKind("", "the permission to pull", "the permission to push", "docker login {registry}")


def registry_kind(reference: ImageReference) -> RegistryKind:
    """The kind of an image's registry."""
    return next((kind for kind in REGISTRY_KINDS if re.fullmatch(kind.hosts, reference.registry)), OTHER_REGISTRY)


def needed(reference: ImageReference, action: Action) -> str:
    """The permission for an action, in the registry's words."""
    kind = registry_kind(reference)
    return kind.pull if action == "pull" else kind.push


def login(reference: ImageReference) -> str:
    """The command that logs in to an image's registry."""
    kind = registry_kind(reference)
    if reference.registry == HUB:
        return kind.login
    return kind.login.format(registry=reference.registry, name=reference.registry.partition(".")[0])
