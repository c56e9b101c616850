"""Explains what the API server refuses: rights, quotas, policies and invalid objects, by status and message; and what a
registry refuses to a node, by the runtime's message. Pure.

The API server's sentences come in two ways: as the reply to a request, and, where the Job was taken and its pods are
not, in `FailedCreate` events of the Job.
"""

from __future__ import annotations

import re
from typing import Final, Mapping

import attrs

from stoker.backends.kubernetes.api.rbac import Denied, grant_line
from stoker.backends.kubernetes.objects import amount
from stoker.core.status import QUOTA, REFUSED, SETUP_FAILED

_RIGHT: Final = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_QUOTA: Final = re.compile(
    r"exceeded quota: (?P<quota>[^,]+), requested: (?P<requested>.+), used: (?P<used>.+), limited: (?P<limited>.+)"
)
_POLICY: Final = re.compile(r'violates PodSecurity "(?P<level>[^":]+)[^"]*": (?P<what>.+)')
_ACCOUNT: Final = re.compile(r'serviceaccount "(?P<name>[^"]+)" not found')
_PRIORITY: Final = re.compile(r"no PriorityClass with name (?P<name>\S+) was found")
_WEBHOOK: Final = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request: (?P<what>.+)', re.DOTALL)
_RANGE: Final = re.compile(
    r"(?P<what>(?:maximum|minimum) \S+ usage per (?:Container|Pod) is .+|\S+ max limit to request ratio .+)"
)
_NAMESPACE: Final = re.compile(r'namespaces "(?P<name>[^"]+)" not found')
_PREFIX: Final = "Error creating: "
_THINGS: Final[Mapping[str, str]] = {
    "count/jobs.batch": "Jobs",
    "pods": "pods",
    "count/pods": "pods",
    "requests.cpu": "CPUs",
    "cpu": "CPUs",
    "limits.cpu": "CPUs (limits)",
    "requests.memory": "memory",
    "memory": "memory",
    "limits.memory": "memory (limits)",
    "requests.ephemeral-storage": "local storage",
    "requests.storage": "storage of claims",
    "configmaps": "config maps",
    "count/configmaps": "config maps",
    "secrets": "secrets",
    "count/secrets": "secrets",
}


@attrs.frozen(kw_only=True)
class ServerRefusal:
    """Why the API server does not take an object."""

    cause: str
    """A word of `core.status`."""
    kind: str
    """What it is about: "quota", "rights", "credentials", "policy", "account", "priority", "webhook", "range",
    "namespace", "invalid" or "other"."""
    message: str
    """What is refused and why, without the fix."""
    fix: str
    passes: bool = False
    """Whether it may pass by itself: a quota that others use up for now, or an account that is still to be made."""

    @property
    def text(self) -> str:
        """Message and fix in one."""
        return f"{self.message}; {self.fix}" if self.fix else self.message


def refusal_of(status: int, message: str, *, namespace: str = "") -> ServerRefusal:
    """What a refusal of the API server means; `status` is HTTP's, 403 for an event's message."""
    text = message.removeprefix(_PREFIX)
    if status == 401:
        return ServerRefusal(
            cause=REFUSED,
            kind="credentials",
            message="the API server does not accept the credentials (401)",
            fix="log in again with the cluster's own tool (kubectl shows the same), or name another context",
        )
    right = _RIGHT.search(text)
    if right is not None:
        return _of_right(Denied(**{key: value or "" for key, value in right.groupdict().items()}))
    quota = _QUOTA.search(text)
    if quota is not None:
        return _of_quota(quota.groupdict())
    match = _POLICY.search(text)
    if match is not None:
        return ServerRefusal(
            cause=REFUSED,
            kind="policy",
            message=f"the namespace's pod security level '{match['level']}' forbids {_policy_words(match['what'])}",
            fix="leave that out of the settings, or use a namespace with a level that allows it",
        )
    match = _ACCOUNT.search(text)
    if match is not None:
        return ServerRefusal(
            cause=REFUSED,
            kind="account",
            message=f'service account "{match["name"]}" does not exist{_in(namespace)}',
            fix=f"create it (kubectl create serviceaccount {match['name']}{_flag(namespace)}), or name another with "
            "`service_account`",
            passes=True,
        )
    match = _PRIORITY.search(text)
    if match is not None:
        return ServerRefusal(
            cause=REFUSED,
            kind="priority",
            message=f'priority class "{match["name"]}" does not exist',
            fix="name one that does: kubectl get priorityclasses",
        )
    match = _WEBHOOK.search(text)
    if match is not None:
        return ServerRefusal(
            cause=REFUSED,
            kind="webhook",
            message=f"the cluster's own check {match['name']} refuses it: {' '.join(match['what'].split())}",
            fix="meet the rule, or ask the cluster's administrators",
        )
    match = _RANGE.search(text)
    if match is not None:
        return ServerRefusal(
            cause=REFUSED,
            kind="range",
            message=f"a LimitRange{_in(namespace)} does not allow the request: {match['what'].rstrip(', ]')}",
            fix=f"ask for an amount within it: kubectl describe limitrange{_flag(namespace)}",
        )
    match = _NAMESPACE.search(text)
    if match is not None:
        return ServerRefusal(
            cause=REFUSED,
            kind="namespace",
            message=f"there is no namespace '{match['name']}'",
            fix=f"create it (kubectl create namespace {match['name']}), or name another with `namespace`",
        )
    invalid = status in (400, 413, 422)
    return ServerRefusal(
        cause=REFUSED,
        kind="invalid" if invalid else "other",
        message=f"the API server refuses the object ({status}): {text}",
        fix="",
    )


def _of_right(denied: Denied) -> ServerRefusal:
    what = "make" if denied.verb == "create" else denied.verb
    where = f"in the namespace '{denied.namespace}'" if denied.namespace else "in the whole cluster"
    who = "an account that is not logged in" if denied.user == "system:anonymous" else f"the account '{denied.user}'"
    return ServerRefusal(
        cause=REFUSED,
        kind="rights",
        message=f"{who} may not {what} {_kind_words(denied)} {where}: it lacks the verb '{denied.verb}' on "
        f"{denied.qualified}",
        fix=f"an administrator gives it by: {grant_line(denied)}",
    )


def _of_quota(parts: Mapping[str, str]) -> ServerRefusal:
    requested, used, limited = (_pairs(parts[key]) for key in ("requested", "used", "limited"))
    pairs = ((name, amount(text), amount(limited.get(name))) for name, text in requested.items())
    never = [name for name, asked, most in pairs if asked is not None and most is not None and asked > most]
    sentences = []
    for name in never or requested:
        free = f"{used.get(name, '0')} of {limited.get(name, '?')} in use"
        sentences.append(f"{requested[name]} {_thing(name)} asked for, {free}")
    whose = f"the namespace's quota '{parts['quota']}'"
    if never:
        message = f"{whose} does not allow this: {'; '.join(sentences)}: more than it ever gives"
        fix = "ask for less, or have the quota raised"
    else:
        message = f"{whose} is used up: {'; '.join(sentences)}"
        fix = "it goes on when other jobs of the namespace end; or have the quota raised"
    return ServerRefusal(cause=QUOTA, kind="quota", message=message, fix=fix, passes=not never)


def _pairs(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(",")) if value}


def _thing(name: str) -> str:
    if name in _THINGS:
        return _THINGS[name]
    return name.removeprefix("requests.").removeprefix("limits.")


def _kind_words(denied: Denied) -> str:
    plain, _, part = denied.resource.partition("/")
    words = {"jobs": "Jobs", "configmaps": "config maps", "serviceaccounts": "service accounts"}.get(plain, plain)
    return f"{words} ({part})" if part else words


def _policy_words(what: str) -> str:
    """ "host namespaces (hostNetwork=true)" → the words of the pod's field first."""
    fields = re.findall(r"\(([^()]*)\)", what)
    short = [field.replace("=true", "") for field in fields]
    return f"{', '.join(short)} ({what})" if short and len(short) == 1 and "=true" in fields[0] else what


def _in(namespace: str) -> str:
    return f" in the namespace '{namespace}'" if namespace else ""


def _flag(namespace: str) -> str:
    return f" -n {namespace}" if namespace else ""


# What it means that a node cannot pull an image, from the runtime's message. The words are those of containerd, CRI-O
# and the registries; a kubelet passes them on.

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
