"""Image registries: the reference of an image there, what each kind calls its permissions, and where built images of a
stack go.

A `RegistryFlavor` is what is known of one kind of registry: its host names, its words for the permissions to read and
to write, the command that logs in, and its rules for names. A `ContainerRegistry` is the one that a stack names. Its
password is a reference here; `credentials.logged_in` is given what reads it.

`core.imagenames` parses names; here a text that is no image's name is an error.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Final, Mapping

import attrs

from stoker.core import imagenames
from stoker.core.errors import SettingsError, nearest
from stoker.core.imagenames import ECR_HOST, HUB
from stoker.core.plugins import Registry
from stoker.core.secret import is_reference

HUB_SERVER: Final = "registry-1.docker.io"
"""Docker Hub's server; https://github.com/distribution/reference/blob/main/normalize.go has the names."""
_LOOPBACK: Final = re.compile(r"(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?")
BAD_NAME: Final = "STK245"
"""Finding: the registry takes no repository of this name."""
IMAGE_NAME: Final = "stoker"
"""The last part of the repository of built images where the settings name none (`target_repository`)."""
OPTIONS: Final = ("flavor", "uri", "user", "password", "credential_helper")
_HELPER: Final = re.compile(r"[A-Za-z0-9][\w.-]*")
# https://github.com/distribution/reference/blob/main/regexp.go: the host, and names in lower case below it.
_HOST: Final = re.compile(
    r"(?:localhost|\[[0-9a-fA-F:]+\]|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:))(?::\d+)?"
)
RepositoryProblem = tuple[str, str]
"""(what is wrong with a repository's name, what to write instead)."""


@attrs.frozen(kw_only=True)
class ImageReference:
    """`registry/path:tag@digest`; a name without tag and digest has the tag "latest"."""

    registry: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        """The full name without tag and digest."""
        return f"{self.registry}/{self.path}"

    @property
    def server(self) -> str:
        """The host that serves the registry."""
        return HUB_SERVER if self.registry == HUB else self.registry

    @property
    def loopback(self) -> bool:
        """Whether the registry is on this machine; engines then use HTTP, too."""
        return _LOOPBACK.fullmatch(self.registry) is not None

    def at(self, digest: str) -> str:
        """The name of this repository's image with a digest."""
        return f"{self.repository}@{digest}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> ImageReference:
    """Parse a name such as "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime"; a `SettingsError` if it is none."""
    parts = imagenames.parse(text)
    if parts is None:
        capital = text.partition("@")[0].rpartition(":")[0] or text
        why = ": a repository has no capital letters" if capital != capital.lower() else ""
        raise SettingsError(
            f"'{text}' does not name an image{why}", fix="write repository:tag, such as python:3.11-slim"
        )
    tag = parts.tag or ("" if parts.digest else "latest")
    return ImageReference(registry=parts.registry, path=parts.repository, tag=tag, digest=parts.digest)


def _any_name(name: ImageReference) -> RepositoryProblem | None:
    return None


def _no_command(name: ImageReference) -> str:
    return ""


@attrs.frozen(kw_only=True)
class RegistryFlavor:
    """What is known of one kind of registry."""

    name: str
    """The flavor, as `container_registry = {flavor = "…"}` in stoker.toml names it."""
    title: str
    """What it is called in texts."""
    hosts: str
    """A regular expression of its host names; empty for a flavor that only stoker.toml names."""
    pull: str
    """The permission to read an image."""
    push: str
    """The permission to write an image."""
    login: str
    """The command that logs in; `{registry}` is the host, `{name}` its first part."""
    create: Callable[[ImageReference], str] = _no_command
    """The command that makes a repository; empty for a registry that makes it when an image is pushed."""
    uri: str = "registry.example.com/team"
    """An example of a `uri`."""
    check_name: Callable[[ImageReference], RepositoryProblem | None] = _any_name
    """What is wrong with the name of a repository; None if nothing is."""


def _hub_name(name: ImageReference) -> RepositoryProblem | None:
    # https://docs.docker.com/docker-hub/repos/create/: a namespace and a name of 2 to 255 characters, no further level.
    parts = name.path.split("/")
    if len(parts) != 2:
        return f"'{name.path}' is no namespace and one name", "write docker.io/NAMESPACE as the uri"
    if parts[0] == "library":
        return "'library' holds Docker's official images only", "write your own name: docker.io/NAMESPACE"
    return None


def _ecr_name(name: ImageReference) -> RepositoryProblem | None:
    # https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_CreateRepository.html
    if not 2 <= len(name.path) <= 256:
        return f"'{name.path}' has {len(name.path)} characters", "a repository of ECR has 2 to 256"
    return None


def _ecr_command(name: ImageReference) -> str:
    # https://docs.aws.amazon.com/cli/latest/reference/ecr/create-repository.html
    match = re.fullmatch(ECR_HOST, name.registry)
    region = f"--region {match['region']} " if match is not None else ""
    return f"aws ecr create-repository {region}--repository-name {name.path}"


def _gar_name(name: ImageReference) -> RepositoryProblem | None:
    # https://cloud.google.com/artifact-registry/docs/docker/names
    least, form = (3, "PROJECT/REPOSITORY") if name.registry.endswith("-docker.pkg.dev") else (2, "PROJECT")
    if len(name.path.split("/")) < least:
        return f"'{name.path}' is no path of a project's repository", f"write {name.registry}/{form} as the uri"
    return None


def _gar_command(name: ImageReference) -> str:
    # https://cloud.google.com/sdk/gcloud/reference/artifacts/repositories/create
    location, mark, _ = name.registry.partition("-docker.pkg.dev")
    project, repository = name.path.split("/")[:2]
    options = f"--repository-format=docker --location={location} --project={project}"
    return f"gcloud artifacts repositories create {repository} {options}" if mark else ""


def _acr_name(name: ImageReference) -> RepositoryProblem | None:
    # https://learn.microsoft.com/azure/container-registry/container-registry-concepts: login servers in lower case;
    # https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules: 5 to 50 letters, digits.
    if name.registry != name.registry.lower():
        return f"'{name.registry}' has capital letters", f"write {name.registry.lower()}"
    if not re.fullmatch(r"[a-z0-9]{5,50}", name.registry.partition(".")[0]):
        return f"'{name.registry}' is no registry's name", "it has 5 to 50 letters and digits"
    return None


def _owned_name(name: ImageReference) -> RepositoryProblem | None:
    if "/" not in name.path:
        return f"'{name.path}' names no owner", f"write {name.registry}/OWNER as the uri"
    return None


DEFAULT: Final = RegistryFlavor(
    name="default",
    title="a registry",
    hosts="",
    pull="the permission to pull",
    push="the permission to push",
    login="docker login {registry}",
)
# https://docs.docker.com/security/access-tokens/
DOCKERHUB: Final = RegistryFlavor(
    name="dockerhub",
    title="Docker Hub",
    hosts=r"docker\.io",
    pull="an access token with 'Read-only', or 'Public Repo Read-only' for a public image",
    push="an access token with 'Read & Write', and a repository below your own name or organization",
    login="docker login",
    uri="docker.io/NAMESPACE",
    check_name=_hub_name,
)
# https://docs.aws.amazon.com/AmazonECR/latest/userguide/image-push-iam.html
ECR: Final = RegistryFlavor(
    name="ecr",
    title="Amazon ECR",
    hosts=ECR_HOST,
    pull="ecr:GetAuthorizationToken, ecr:BatchGetImage and ecr:GetDownloadUrlForLayer",
    push="ecr:GetAuthorizationToken, ecr:BatchCheckLayerAvailability, ecr:InitiateLayerUpload, ecr:UploadLayerPart, "
    "ecr:CompleteLayerUpload and ecr:PutImage",
    login="aws ecr get-login-password | docker login --username AWS --password-stdin {registry} (good for 12 hours)",
    create=_ecr_command,
    uri="123456789012.dkr.ecr.eu-central-1.amazonaws.com",
    check_name=_ecr_name,
)
# https://cloud.google.com/artifact-registry/docs/access-control
GAR: Final = RegistryFlavor(
    name="gar",
    title="Google Artifact Registry",
    hosts=r"[\w-]+-docker\.pkg\.dev|(?:\w+\.)?gcr\.io",
    pull="the role roles/artifactregistry.reader",
    push="the role roles/artifactregistry.writer",
    login="gcloud auth configure-docker {registry}",
    create=_gar_command,
    uri="europe-docker.pkg.dev/PROJECT/REPOSITORY",
    check_name=_gar_name,
)
# https://learn.microsoft.com/azure/container-registry/container-registry-roles
ACR: Final = RegistryFlavor(
    name="acr",
    title="Azure Container Registry",
    hosts=r"(?i:[\w-]+\.azurecr\.(?:io|cn|us))",
    pull="the role AcrPull",
    push="the role AcrPush",
    login="az acr login --name {name}",
    uri="NAME.azurecr.io",
    check_name=_acr_name,
)
# https://docs.github.com/packages/working-with-a-github-packages-registry/working-with-the-container-registry
GHCR: Final = RegistryFlavor(
    name="ghcr",
    title="GitHub's container registry",
    hosts=r"ghcr\.io",
    pull="a token with the scope read:packages",
    push="a token with the scope write:packages",
    login="docker login ghcr.io",
    uri="ghcr.io/OWNER",
    check_name=_owned_name,
)
# https://docs.gitlab.com/user/packages/container_registry/authenticate_with_container_registry/
GITLAB: Final = RegistryFlavor(
    name="gitlab",
    title="GitLab's container registry",
    hosts=r"registry\.gitlab\.com",
    pull="a token with the scope read_registry",
    push="a token with the scopes read_registry and write_registry",
    login="docker login registry.gitlab.com",
    uri="registry.gitlab.com/GROUP/PROJECT",
    check_name=_owned_name,
)
# https://docs.nvidia.com/ngc/latest/ngc-user-guide.html; the user's name is $oauthtoken in letters.
NGC: Final = RegistryFlavor(
    name="ngc",
    title="NVIDIA's NGC",
    hosts=r"nvcr\.io",
    pull="an NGC API key, and acceptance of the image's licence on its page",
    push="an NGC API key of a member of the organization with the role Registry Admin",
    login="docker login nvcr.io --username '$oauthtoken'",
    uri="nvcr.io/ORGANIZATION",
    check_name=_owned_name,
)
# https://docs.redhat.com/en/documentation/red_hat_quay/3/html/use_red_hat_quay/
QUAY: Final = RegistryFlavor(
    name="quay",
    title="Quay",
    hosts=r"quay\.io",
    pull="the permission Read",
    push="the permission Write",
    login="docker login quay.io",
    uri="quay.io/ORGANIZATION",
    check_name=_owned_name,
)
_NAMES: Final[Mapping[str, str]] = {
    "default": "DEFAULT",
    "dockerhub": "DOCKERHUB",
    "ecr": "ECR",
    "gar": "GAR",
    "gcp": "GAR",
    "acr": "ACR",
    "ghcr": "GHCR",
    "gitlab": "GITLAB",
    "ngc": "NGC",
    "quay": "QUAY",
}
"""Flavor → the constant of this module; `gcp` is ZenML's name for `gar`."""
REGISTRIES: Final[Registry[RegistryFlavor]] = Registry(
    group="stoker.registries",
    noun="kind of container registry",
    kind=RegistryFlavor,
    builtin={name: (f"{__name__}:{constant}", "") for name, constant in _NAMES.items()},
)
"""The kinds of registry; other distributions add theirs by the entry points `stoker.registries`."""


def registry_flavor(name: ImageReference) -> RegistryFlavor:
    """The kind of an image's registry, by its host."""
    for _, flavor in REGISTRIES.parts():
        if flavor.hosts and re.fullmatch(flavor.hosts, name.registry):
            return flavor
    return DEFAULT


@attrs.frozen(kw_only=True)
class ContainerRegistry:
    """The registry of a stack: where built images go that run elsewhere than on the engine that builds them."""

    uri: str
    """The host, and the path below which repositories are: "ghcr.io/team"."""
    flavor: str
    """The kind of registry: a name of `REGISTRIES`."""
    user: str = ""
    """The user to log in as; empty where the logins of docker and podman are used."""
    password: str = attrs.field(default="", repr=False)
    """The reference of the password or token, "secret:env:NAME"; never the value."""
    credential_helper: str = ""
    """The X of the program `docker-credential-X` that has the login."""

    @classmethod
    def parse(cls, value: Any) -> ContainerRegistry:
        """The registry of a text or a table in stoker.toml; `SettingsError` says what is wrong with it."""
        options = {"uri": value} if isinstance(value, str) else value
        if not isinstance(options, Mapping):
            raise SettingsError(f"container_registry = {value!r} is no registry", fix=_example(DEFAULT))
        for key, text in options.items():
            if key not in OPTIONS:
                raise SettingsError(f"a container registry has no '{key}'{nearest(key, OPTIONS)}")
            if not isinstance(text, str) or not text:
                raise SettingsError(f"container_registry: {key} is no text")
        flavor = REGISTRIES.load(options["flavor"]) if "flavor" in options else None
        uri = str(options.get("uri", "")).removeprefix("https://").rstrip("/")
        if not uri:
            raise SettingsError("container_registry has no uri", fix=_example(flavor or DEFAULT))
        host, _, path = uri.partition("/")
        if not _HOST.fullmatch(host) or any(mark in path for mark in ("@", ":", " ")) or path != path.lower():
            raise SettingsError(
                f"container_registry: '{uri}' is no host with a path in lower case below it",
                fix=_example(flavor or DEFAULT),
            )
        named = registry_flavor(parse(f"{uri}/{IMAGE_NAME}"))
        if flavor is not None and flavor.hosts and named.name != flavor.name:
            raise SettingsError(f"container_registry: {host} is not {flavor.title}", fix=_example(flavor))
        registry = cls(
            uri=uri,
            flavor=(flavor or named).name,
            user=str(options.get("user", "")),
            password=str(options.get("password", "")),
            credential_helper=str(options.get("credential_helper", "")),
        )
        registry._check_login()
        return registry

    def _check_login(self) -> None:
        reference = 'write password = "secret:env:REGISTRY_PASSWORD", or log in with docker and leave it out'
        if self.password and not is_reference(self.password):
            # The value itself is not repeated.
            raise SettingsError("container_registry: password is a plain text, which files keep", fix=reference)
        if bool(self.user) != bool(self.password):
            raise SettingsError("container_registry: user and password go together", fix=reference)
        if self.credential_helper and (self.user or not _HELPER.fullmatch(self.credential_helper)):
            raise SettingsError(
                "container_registry: credential_helper is the X of a program docker-credential-X, without user",
                fix='write credential_helper = "ecr-login"',
            )

    def repository(self, target: str = "") -> str:
        """The repository of built images: `target` below the uri, or as it is where it names a host itself."""
        host, slash, _ = target.partition("/")
        if slash and ("." in host or ":" in host or host == "localhost"):
            return target
        return f"{self.uri}/{target or IMAGE_NAME}"


def _example(flavor: RegistryFlavor) -> str:
    return f'write container_registry = {{flavor = "{flavor.name}", uri = "{flavor.uri}"}}'
