"""What it means that a node cannot pull an image, from the runtime's message. Pure.

The words are those of containerd, CRI-O and the registries; a kubelet passes them on.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from stoker.core.status import REFUSED, SETUP_FAILED

WAITING: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""Reasons of waiting containers whose image is missing:
https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/images/types.go"""
_BACK_OFF: Final = re.compile(r"^Back-off pulling image \"[^\"]*\"(?:: \w+: )?")
_HOST: Final = re.compile(r"lookup (?P<host>[\w.-]+)")
_LOWER: Final = re.compile(r"must be lowercase")


@attrs.frozen(kw_only=True)
class PullProblem:
    """Why an image is not there."""

    kind: str
    """"unauthorized", "absent", "rate", "host", "network", "certificate", "architecture", "disk", "never", "name" or
    "other"."""
    text: str
    fix: str
    sure: bool
    """Whether the next try meets the same, so that few of them are enough."""
    passes: bool = False
    """Whether it passes by itself sooner or later."""

    @property
    def cause(self) -> str:
        """A word of `core.status`: whether another attempt may succeed."""
        return REFUSED if self.sure else SETUP_FAILED


def pull_problem(reason: str, message: str, image: str) -> PullProblem:
    """What a kubelet's reason and message for an image mean."""
    said = _BACK_OFF.sub("", " ".join(message.split()))
    lower = said.lower()

    def has(*patterns: str) -> bool:
        return any(re.search(pattern, lower) for pattern in patterns)

    if reason == "ErrImageNeverPull":
        return PullProblem(
            kind="never",
            text=f"the image {image} is not on the node, and image_pull_policy is Never",
            fix="load it onto the nodes, or let it be pulled: image_pull_policy = IfNotPresent",
            sure=True,
        )
    if reason == "InvalidImageName":
        capitals = " (capital letters)" if _LOWER.search(said) else ""
        return PullProblem(
            kind="name",
            text=f"the image name {image} is not valid{capitals}",
            fix="write it as a registry does",
            sure=True,
        )
    if has(r"toomanyrequests", r"\b429\b", r"rate limit"):
        return PullProblem(
            kind="rate",
            text=f"the registry lets nobody pull {image} for now: too many requests (429)",
            fix="wait; credentials (image_pull_secrets) or a mirror have higher limits",
            sure=False,
            passes=True,
        )
    if has(r"no match for platform", r"no matching manifest", r"exec format error"):
        return PullProblem(
            kind="architecture",
            text=f"the image {image} is not built for the node's architecture",
            fix="build it for that one, or choose nodes with the label kubernetes.io/arch",
            sure=True,
        )
    if has(r"no space left on device"):
        return PullProblem(
            kind="disk",
            text=f"the node's disk has no space for the image {image}",
            fix="use a smaller image, or have the node's disk cleared",
            sure=False,
        )
    if has(r"no such host", r"server misbehaving", r"temporary failure in name resolution"):
        lookup = _HOST.search(said)
        host = image.partition("/")[0] if lookup is None else lookup["host"]
        return PullProblem(
            kind="host",
            text=f"the registry's host name {host} does not resolve on the node",
            fix="check the image's name, and the DNS of the nodes",
            sure=False,
        )
    if has(r"x509", r"certificate"):
        return PullProblem(
            kind="certificate",
            text=f"the node does not trust the certificate of the registry of {image}",
            fix="have the registry's authority installed on the nodes",
            sure=False,
        )
    if has(
        r"\b401\b",
        r"\b403\b",
        r"unauthorized",
        r"authentication required",
        r"access denied",
        r"no basic auth",
        r"denied:",
    ):
        status = "401" if has(r"\b401\b", r"unauthorized") else "403" if has(r"\b403\b") else "denied"
        return PullProblem(
            kind="unauthorized",
            text=f"the registry wants credentials for {image} ({status})",
            fix="name a secret with them: image_pull_secrets (kubectl create secret docker-registry); a registry says "
            "the same of an image that does not exist",
            sure=True,
        )
    if has(r"not found", r"manifest unknown", r"name unknown", r"does not exist"):
        return PullProblem(
            kind="absent",
            text=f"the image {image} does not exist in the registry",
            fix="check name and tag, and whether it was pushed",
            sure=True,
        )
    if has(r"timeout", r"deadline exceeded", r"connection refused", r"connection reset", r"unreachable", r"\beof\b"):
        return PullProblem(
            kind="network",
            text=f"the node does not reach the registry of {image}",
            fix="check the network of the nodes",
            sure=False,
        )
    shown = said if len(said) <= 300 else said[:299] + "…"
    return PullProblem(kind="other", text=f"the image {image} cannot be pulled: {shown or reason}", fix="", sure=False)
