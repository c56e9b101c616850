"""What each kind of registry calls the permission to read and to write, and how one logs in to it.

Only a table and the words made from it.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from stoker.core.imagenames import HUB
from stoker.images.reference import Reference

Action = Literal["pull", "push"]


class Words(NamedTuple):
    """A kind of registry: the hosts that are of it, the permissions' names, and the login."""

    hosts: str
    pull: str
    push: str
    login: str


KINDS: Final[tuple[Words, ...]] = (
    # https://docs.docker.com/security/access-tokens/
    Words(
        r"docker\.io",
        "an access token with 'Read-only', or 'Public Repo Read-only' for a public image",
        "an access token with 'Read & Write', and a repository below your own name or organization",
        "docker login",
    ),
    # https://docs.aws.amazon.com/AmazonECR/latest/userguide/image-push-iam.html
    Words(
        r"\d+\.dkr\.ecr\.[\w-]+\.amazonaws\.com(?:\.cn)?",
        "ecr:GetAuthorizationToken, ecr:BatchGetImage and ecr:GetDownloadUrlForLayer",
        "ecr:GetAuthorizationToken, ecr:BatchCheckLayerAvailability, ecr:InitiateLayerUpload, ecr:UploadLayerPart, "
        "ecr:CompleteLayerUpload and ecr:PutImage",
        "aws ecr get-login-password | docker login --username AWS --password-stdin {registry} (good for 12 hours)",
    ),
    # https://cloud.google.com/artifact-registry/docs/access-control
    Words(
        r"[\w-]+-docker\.pkg\.dev|(?:\w+\.)?gcr\.io",
        "the role roles/artifactregistry.reader",
        "the role roles/artifactregistry.writer",
        "gcloud auth configure-docker {registry}",
    ),
    # https://learn.microsoft.com/azure/container-registry/container-registry-roles
    Words(r"[\w-]+\.azurecr\.io", "the role AcrPull", "the role AcrPush", "az acr login --name {name}"),
    # https://docs.github.com/packages/working-with-a-github-packages-registry/working-with-the-container-registry
    Words(
        r"ghcr\.io",
        "a token with the scope read:packages",
        "a token with the scope write:packages",
        "docker login ghcr.io",
    ),
    # https://docs.gitlab.com/user/packages/container_registry/authenticate_with_container_registry/
    Words(
        r"registry\.gitlab\.com",
        "a token with the scope read_registry",
        "a token with the scopes read_registry and write_registry",
        "docker login registry.gitlab.com",
    ),
    # https://docs.nvidia.com/ngc/latest/ngc-user-guide.html; the user's name is $oauthtoken in letters.
    Words(
        r"nvcr\.io",
        "an NGC API key, and acceptance of the image's licence on its page",
        "an NGC API key of a member of the organization with the role Registry Admin",
        "docker login nvcr.io --username '$oauthtoken'",
    ),
    # https://docs.redhat.com/en/documentation/red_hat_quay/3/html/use_red_hat_quay/
    Words(r"quay\.io", "the permission Read", "the permission Write", "docker login quay.io"),
)
ANY: Final = Words("", "the permission to pull", "the permission to push", "docker login {registry}")


def words(reference: Reference) -> Words:
    """Those of an image's registry."""
    return next((kind for kind in KINDS if re.fullmatch(kind.hosts, reference.registry)), ANY)


def needed(reference: Reference, action: Action) -> str:
    """The permission in the registry's own words."""
    kind = words(reference)
    return kind.pull if action == "pull" else kind.push


def login(reference: Reference) -> str:
    """The command by which one logs in."""
    kind = words(reference)
    if reference.registry == HUB:
        return kind.login
    return kind.login.format(registry=reference.registry, name=reference.registry.partition(".")[0])
