"""The rights that the backend needs, one by one, as RBAC's rules and as a kubectl line that gives them; and which of
them an account lacks, by the API server's own word.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from __future__ import annotations

import re
from typing import Any, Final, Iterable, Mapping, Protocol

import attrs

from stoker.backends.kubernetes.api.client import ApiError
from stoker.backends.kubernetes.objects import Object

ROLE: Final = "stoker"
"""The name of the role, which all accounts share that have it; a binding has the account's name behind it."""


class Api(Protocol):
    """What is asked of an API server: `client.Cluster`."""

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """An object, or a list."""

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object."""

    def delete(self, path: str, *, grace: float | None = None) -> dict[str, Any]:
        """Delete an object."""


@attrs.frozen(kw_only=True)
class Denied:
    """A right that an account lacks."""

    user: str
    """As the API server names it: "jane@example.org", "system:serviceaccount:team:runner"."""
    verb: str
    resource: str
    """With its part: "pods/log"."""
    group: str
    """The API group; "" for the core one."""
    namespace: str
    """Empty for the whole cluster."""

    @property
    def qualified(self) -> str:
        """As kubectl writes it: "jobs.batch", "pods/log"."""
        plain, slash, part = self.resource.partition("/")
        return f"{plain}.{self.group}{slash}{part}" if self.group else self.resource


@attrs.frozen
class Right:
    """A right that the backend uses, and what for."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    use: str
    """What becomes impossible without it."""
    needed: bool = attrs.field(default=True, kw_only=True)
    """Whether nothing runs without it."""
    cluster: bool = attrs.field(default=False, kw_only=True)
    """Whether it is a right on the whole cluster, which few people have."""


_EXEC: Final = ("create", "get")
"""A websocket begins with a GET, and recent versions of Kubernetes ask for `create` besides:
https://kubernetes.io/docs/reference/access-authn-authz/authorization/"""
_KEPT: Final = ("create", "get", "list", "patch", "delete")
_ENTER: Final = "let a pod take one step after another, and enter steps (stoker exec)"
_WAITS: Final = "say why a step waits: images that cannot be pulled, volumes that cannot be mounted, quotas"
_MOUNTS: Final = "say before a run whether its pods can mount the claim"
_NODES: Final = "refuse what no node can ever give before it is sent, and say what is free"
POOL_RIGHT: Final = Right("", "pods/exec", _EXEC, _ENTER, needed=False)
RIGHTS: Final = (
    Right("batch", "jobs", ("create", "get", "list", "watch", "delete"), "start, follow and end the jobs of steps"),
    Right("", "pods", ("get", "list", "watch", "delete"), "tell how a step goes and why it ended, and end it"),
    Right("", "pods/log", ("get",), "read the output and the results of steps"),
    Right("", "configmaps", _KEPT, "bring Stoker's worker into pods"),
    Right("", "secrets", _KEPT, "bring a job's document and its secrets into its pod"),
    Right("", "events", ("list", "watch"), _WAITS, needed=False),
    POOL_RIGHT,
    Right("", "services", ("create",), "give the pods of a step on several nodes names", needed=False),
    Right(
        *("networking.k8s.io", "networkpolicies", ("list",)),
        "say that a policy keeps the nodes of a step from each other",
        needed=False,
    ),
    Right("", "resourcequotas", ("list",), "refuse what a quota never allows before it is sent", needed=False),
    Right("", "nodes", ("list",), _NODES, needed=False, cluster=True),
)
"""What the backend does with the API server. Those that are not needed make it say less."""
CLAIM_RIGHTS: Final = (
    Right("", "pods", ("create",), "start the pod by which artifacts on a claim are reached"),
    Right("", "pods/exec", _EXEC, "read and write artifacts on a claim through its pod"),
    Right(
        "", "persistentvolumeclaims", ("get",), "say before a run whether its pods can mount the claim", needed=False
    ),
)
"""What the backend does where artifacts are on a claim."""
_GROUPS: Final = "make the group of pods that {} starts together (queueing='{}')"
_DEVICES: Final = "make the claim by which a pod asks for its devices (device_class)"
_SETS: Final = "start and end steps on several nodes as JobSets (jobset=True)"
GROUP_RIGHTS: Final[Mapping[str, Right]] = {
    right.group: right
    for right in (
        Right("jobset.x-k8s.io", "jobsets", ("create", "get", "delete"), _SETS),
        Right("scheduling.volcano.sh", "podgroups", ("create", "patch"), _GROUPS.format("Volcano", "volcano")),
        Right("scheduling.x-k8s.io", "podgroups", ("create", "patch"), _GROUPS.format(*["coscheduling"] * 2)),
        Right("resource.k8s.io", "resourceclaimtemplates", ("create", "patch"), _DEVICES),
    )
}
"""What the backend does with kinds that only some settings make, by the group of their API."""


def rights_with(groups: Iterable[str]) -> tuple[Right, ...]:
    """`RIGHTS`, and those on the kinds of these groups of the API."""
    return (*RIGHTS, *(GROUP_RIGHTS[group] for group in dict.fromkeys(groups) if group in GROUP_RIGHTS))


def driver_rights(groups: Iterable[str], *, claims: bool) -> tuple[Right, ...]:
    """What the service account of a detached driver needs: all that is no right on the whole cluster. `claims`:
    artifacts are on a claim."""
    rights = (*rights_with(groups), *(CLAIM_RIGHTS if claims else ()))
    return tuple(right for right in rights if not right.cluster)


def rules(rights: Iterable[Right]) -> list[dict[str, Any]]:
    """Rights as the rules of a Role."""
    return [{"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)} for right in rights]


def manifests(namespace: str, user: str, rights: Iterable[Right] = RIGHTS, *, cluster: bool = True) -> list[Any]:
    """The objects that give an account the rights: a Role and its binding, and with `cluster` a ClusterRole and its
    binding for those that are no namespace's."""
    rights = tuple(rights)
    words = re.sub(r"[^a-z0-9]+", "-", user.removeprefix("system:serviceaccount:").lower()).strip("-")[:40].strip("-")
    wide = [right for right in rights if right.cluster]
    narrow = _role("", ROLE, words, user, [right for right in rights if not right.cluster], {"namespace": namespace})
    return [*narrow, *(_role("Cluster", f"{ROLE}-nodes", words, user, wide, {}) if cluster and wide else ())]


def _role(
    prefix: str, name: str, words: str, user: str, rights: Iterable[Right], metadata: Mapping[str, str]
) -> list[Any]:
    """A role with rights, and its binding to an account."""
    group = "rbac.authorization.k8s.io"
    head = {"apiVersion": f"{group}/v1", "kind": f"{prefix}Role"}
    reference = {"apiGroup": group, "kind": f"{prefix}Role", "name": name}
    bound = {"metadata": {"name": f"{name}-{words}", **metadata}, "roleRef": reference, "subjects": [subject_of(user)]}
    return [
        {**head, "metadata": {"name": name, **metadata}, "rules": rules(rights)},
        {**head, "kind": f"{prefix}RoleBinding", **bound},
    ]


def subject_of(user: str) -> dict[str, Any]:
    """An account as a binding names it, from the API server's name for it."""
    match = re.fullmatch(r"system:serviceaccount:([^:]+):([^:]+)", user)
    if match is not None:
        return {"kind": "ServiceAccount", "namespace": match[1], "name": match[2]}
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}


def grant_line(denied: Denied) -> str:
    """The kubectl commands that give one right to the account that lacks it."""
    plain, _, part = denied.resource.partition("/")
    role = "-".join(filter(None, (ROLE, denied.verb.replace(",", "-"), plain, part)))
    resource = denied.qualified
    if denied.user == "system:anonymous":
        return "kubectl config use-context CONTEXT, with an account that is logged in"
    match = re.fullmatch(r"system:serviceaccount:([^:]+):([^:]+)", denied.user)
    who = f"--serviceaccount={match[1]}:{match[2]}" if match is not None else f"--user='{denied.user}'"
    kind, where = ("role", f" -n {denied.namespace}") if denied.namespace else ("clusterrole", "")
    binding = f"{kind}binding"
    return (
        f"kubectl create {kind} {role} --verb={denied.verb} --resource={resource}{where} && "
        f"kubectl create {binding} {role} --{kind}={role} {who}{where}"
    )


def allowed(cluster: Api, right: Right, verb: str, namespace: str) -> bool:
    """Whether this account has a right, by the API server's own word."""
    return _reviewed(cluster, "SelfSubjectAccessReview", right, verb, "" if right.cluster else namespace)


def _reviewed(cluster: Api, kind: str, right: Right, verb: str, namespace: str, **asked: Any) -> bool:
    """Whether a right is given, by a review of this kind."""
    resource, _, part = right.resource.partition("/")
    attributes = {"verb": verb, "group": right.group, "resource": resource, "subresource": part, "namespace": namespace}
    spec = {**asked, "resourceAttributes": {key: value for key, value in attributes.items() if value}}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = cluster.create(f"/apis/authorization.k8s.io/v1/{kind.lower()}s", body)
    return bool((answer.get("status") or {}).get("allowed"))


def lacking_rights(cluster: Api, namespace: str, rights: Iterable[Right]) -> list[tuple[Right, str]]:
    """The rights, verb by verb, that this account lacks.

    One request tells most of them; what it does not tell is asked for one by one, since a webhook may allow it.
    """
    spec = {"namespace": namespace}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": spec}
    answer = cluster.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body)
    rules = [rule for rule in (answer.get("status") or {}).get("resourceRules") or () if not rule.get("resourceNames")]
    return [
        (right, verb)
        for right in rights
        for verb in right.verbs
        if not any(_grants(rule, right, verb) for rule in rules) and not allowed(cluster, right, verb, namespace)
    ]


def rights_lacked_by(cluster: Api, user: str, namespace: str, rights: Iterable[Right]) -> dict[Right, list[str]] | None:
    """The verbs of each right that another account lacks; None where this account may not ask.

    `user` is a service account as the API server names it.
    """
    lacking: dict[Right, list[str]] = {}
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    for right in rights:
        for verb in right.verbs:
            try:
                given = _reviewed(cluster, "SubjectAccessReview", right, verb, namespace, user=user, groups=groups)
            except ApiError as error:
                if error.status not in (403, 404):
                    raise
                return None
            if not given:
                lacking.setdefault(right, []).append(verb)
    return lacking


def _grants(rule: Object, right: Right, verb: str) -> bool:
    def names(field: str, word: str) -> bool:
        words = rule.get(field) or ()
        return "*" in words or word in words

    _, slash, part = right.resource.partition("/")
    resource = names("resources", right.resource) or bool(slash and f"*/{part}" in (rule.get("resources") or ()))
    return names("verbs", verb) and names("apiGroups", right.group) and resource


def account(cluster: Api) -> str:
    """What the API server calls this account; empty where it does not say, as before Kubernetes 1.28."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = cluster.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    except ApiError:
        return ""
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username", ""))
