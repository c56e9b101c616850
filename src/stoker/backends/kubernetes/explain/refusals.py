"""Explains what the API server refuses: rights, quotas, policies and invalid objects, by status and message. Pure.

The same sentences come in two ways: as the reply to a request, and, where the Job was taken and its pods are not, in
`FailedCreate` events of the Job.
"""

from __future__ import annotations

import re
from typing import Final, Mapping

import attrs

from stoker.backends.kubernetes.api.rbac import Denied, grant_line
from stoker.backends.kubernetes.objects import amount
from stoker.core.status import QUOTA, REFUSED

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
