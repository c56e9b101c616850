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
_REFUSALS: Final = (
    # The server's words; the kind; what is refused and the fix, in which {what} and {name} stand for theirs, and {in}
    # and {flag} for the namespace.
    (
        r'violates PodSecurity "(?P<name>[^":]+)[^"]*": (?P<what>.+)',
        "policy",
        "the namespace's pod security level '{name}' forbids {what}",
        "leave that out of the settings, or use a namespace with a level that allows it",
    ),
    (
        r'serviceaccount "(?P<name>[^"]+)" not found',
        "account",
        'service account "{name}" does not exist{in}',
        "create it (kubectl create serviceaccount {name}{flag}), or name another with `service_account`",
    ),
    (
        r"no PriorityClass with name (?P<name>\S+) was found",
        "priority",
        'priority class "{name}" does not exist',
        "name one that does: kubectl get priorityclasses",
    ),
    (
        r'admission webhook "(?P<name>[^"]+)" denied the request: (?P<what>(?s:.+))',
        "webhook",
        "the cluster's own check {name} refuses it: {what}",
        "meet the rule, or ask the cluster's administrators",
    ),
    (
        r"(?P<what>(?:(?:max|min)imum \S+ usage per (?:Container|Pod) is|\S+ max limit to request ratio) .+?)[, \]]*$",
        "range",
        "a LimitRange{in} does not allow the request: {what}",
        "ask for an amount within it: kubectl describe limitrange{flag}",
    ),
    (
        r'namespaces "(?P<name>[^"]+)" not found',
        "namespace",
        "there is no namespace '{name}'",
        "create it (kubectl create namespace {name}), or name another with `namespace`",
    ),
)
_PREFIX: Final = "Error creating: "
_THINGS: Final[Mapping[str, str]] = {
    "count/jobs.batch": "Jobs", "pods": "pods", "count/pods": "pods", "requests.cpu": "CPUs", "cpu": "CPUs",
    "limits.cpu": "CPUs (limits)", "requests.memory": "memory", "memory": "memory", "limits.memory": "memory (limits)",
    "requests.ephemeral-storage": "local storage", "requests.storage": "storage of claims",
    "configmaps": "config maps", "count/configmaps": "config maps", "secrets": "secrets", "count/secrets": "secrets",
}  # fmt: skip


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
    for pattern, kind, what, fix in _REFUSALS:
        match = re.search(pattern, text)
        if match is not None:
            said = {name: " ".join(part.split()) for name, part in match.groupdict().items()}
            said["what"] = _policy_words(said["what"]) if kind == "policy" else said.get("what", "")
            said["in"] = f" in the namespace '{namespace}'" if namespace else ""
            said["flag"] = f" -n {namespace}" if namespace else ""
            message, advice = what.format_map(said), fix.format_map(said)
            return ServerRefusal(cause=REFUSED, kind=kind, message=message, fix=advice, passes=kind == "account")
    kind, words = "invalid" if status in (400, 413, 422) else "other", f"({status}): {text}"
    return ServerRefusal(cause=REFUSED, kind=kind, message=f"the API server refuses the object {words}", fix="")


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
        thing = _THINGS.get(name) or name.removeprefix("requests.").removeprefix("limits.")
        free = f"{used.get(name, '0')} of {limited.get(name, '?')} in use"
        sentences.append(f"{requested[name]} {thing} asked for, {free}")
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


def _kind_words(denied: Denied) -> str:
    plain, _, part = denied.resource.partition("/")
    words = {"jobs": "Jobs", "configmaps": "config maps", "serviceaccounts": "service accounts"}.get(plain, plain)
    return f"{words} ({part})" if part else words


def _policy_words(what: str) -> str:
    """ "host namespaces (hostNetwork=true)" → the words of the pod's field first."""
    fields = re.findall(r"\(([^()]*)\)", what)
    short = [field.replace("=true", "") for field in fields]
    return f"{', '.join(short)} ({what})" if short and len(short) == 1 and "=true" in fields[0] else what


# What it means that a node cannot pull an image, from the runtime's message. The words are those of containerd, CRI-O
# and the registries; a kubelet passes them on.

WAITING: Final = frozenset({
    "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
    "RegistryUnavailable", "SignatureValidationFailed",
})  # fmt: skip
"""Reasons of waiting containers whose image is missing:
https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/images/types.go"""
_BACK_OFF: Final = re.compile(r"^Back-off pulling image \"[^\"]*\"(?:: \w+: )?")
_SAME: Final = "the same of an image that does not exist"
_HOST: Final = re.compile(r"lookup (?P<host>[\w.-]+)")
_PULL_REASONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "ErrImageNeverPull": (
        "never",
        "the image {image} is not on the node, and image_pull_policy is Never",
        "load it onto the nodes, or let it be pulled: image_pull_policy = IfNotPresent",
    ),
    "InvalidImageName": ("name", "the image name {image} is not valid{capitals}", "write it as a registry does"),
}
"""Reasons that say all by themselves, and are sure."""
_PULLS: Final = (
    # What the message holds, in small letters; the kind; what that means and the fix; whether that is sure, so that the
    # next try meets the same.
    (
        r"toomanyrequests|\b429\b|rate limit",
        "rate",
        "the registry lets nobody pull {image} for now: too many requests (429)",
        "wait; credentials (image_pull_secrets) or a mirror have higher limits",
        False,
    ),
    (
        r"no match for platform|no matching manifest|exec format error",
        "architecture",
        "the image {image} is not built for the node's architecture",
        "build it for that one, or choose nodes with the label kubernetes.io/arch",
        True,
    ),
    (
        r"no space left on device",
        "disk",
        "the node's disk has no space for the image {image}",
        "use a smaller image, or have the node's disk cleared",
        False,
    ),
    (
        r"no such host|server misbehaving|temporary failure in name resolution",
        "host",
        "the registry's host name {host} does not resolve on the node",
        "check the image's name, and the DNS of the nodes",
        False,
    ),
    (
        r"x509|certificate",
        "certificate",
        "the node does not trust the certificate of the registry of {image}",
        "have the registry's authority installed on the nodes",
        False,
    ),
    (
        r"\b401\b|\b403\b|unauthorized|authentication required|access denied|no basic auth|denied:",
        "unauthorized",
        "the registry wants credentials for {image} ({status})",
        "name a secret with them: image_pull_secrets (kubectl create secret docker-registry); a registry says {same}",
        True,
    ),
    (
        r"not found|manifest unknown|name unknown|does not exist",
        "absent",
        "the image {image} does not exist in the registry",
        "check name and tag, and whether it was pushed",
        True,
    ),
    (
        r"timeout|deadline exceeded|connection refused|connection reset|unreachable|\beof\b",
        "network",
        "the node does not reach the registry of {image}",
        "check the network of the nodes",
        False,
    ),
)


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
    if reason in _PULL_REASONS:
        kind, text, fix = _PULL_REASONS[reason]
        capitals = " (capital letters)" if "must be lowercase" in said else ""
        return PullProblem(kind=kind, text=text.format(image=image, capitals=capitals), fix=fix, sure=True)
    for pattern, kind, text, fix, sure in _PULLS:
        if re.search(pattern, lower):
            lookup = _HOST.search(said)
            host = image.partition("/")[0] if lookup is None else lookup["host"]
            status = "401" if re.search(r"\b401\b|unauthorized", lower) else "403"
            status = status if re.search(r"\b40[13]\b|unauthorized", lower) else "denied"
            words = text.format(image=image, host=host, status=status)
            return PullProblem(kind=kind, text=words, fix=fix.format(same=_SAME), sure=sure, passes=kind == "rate")
    shown = said if len(said) <= 300 else said[:299] + "…"
    return PullProblem(kind="other", text=f"the image {image} cannot be pulled: {shown or reason}", fix="", sure=False)
