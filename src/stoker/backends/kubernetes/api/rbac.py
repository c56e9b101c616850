"""The rights that the backend needs, one by one, as RBAC's rules, as YAML, and as a kubectl line that gives them; and
which of them an account lacks, by the API server's own word.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from __future__ import annotations

import re
from typing import Any, Final, Iterable, Mapping, Protocol, Sequence

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

    def delete(self, path: str, *, grace: float | None = None, propagation: str = "Background") -> dict[str, Any]:
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


@attrs.frozen(kw_only=True)
class Right:
    """A right that the backend uses, and what for."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    use: str
    """What becomes impossible without it."""
    needed: bool = True
    """Whether nothing runs without it."""
    cluster: bool = False
    """Whether it is a right on the whole cluster, which few people have."""


POOL_RIGHT: Final = Right(
    group="",
    resource="pods/exec",
    verbs=("create", "get"),
    use="let a pod take one step after another, and enter steps (stoker exec)",
    needed=False,
)
"""A websocket begins with a GET, and recent versions of Kubernetes ask for `create` besides:
https://kubernetes.io/docs/reference/access-authn-authz/authorization/"""
RIGHTS: Final = (
    Right(
        group="batch",
        resource="jobs",
        verbs=("create", "get", "list", "watch", "delete"),
        use="start, follow and end the jobs of steps",
    ),
    Right(
        group="",
        resource="pods",
        verbs=("get", "list", "watch", "delete"),
        use="tell how a step goes and why it ended, and end it",
    ),
    Right(group="", resource="pods/log", verbs=("get",), use="read the output and the results of steps"),
    Right(
        group="",
        resource="configmaps",
        verbs=("create", "get", "list", "patch", "delete"),
        use="bring Stoker's worker into pods",
    ),
    Right(
        group="",
        resource="secrets",
        verbs=("create", "get", "list", "patch", "delete"),
        use="bring a job's document and its secrets into its pod",
    ),
    Right(
        group="",
        resource="events",
        verbs=("list", "watch"),
        use="say why a step waits: images that cannot be pulled, volumes that cannot be mounted, quotas",
        needed=False,
    ),
    POOL_RIGHT,
    Right(
        group="",
        resource="services",
        verbs=("create",),
        use="give the pods of a step on several nodes names",
        needed=False,
    ),
    Right(
        group="networking.k8s.io",
        resource="networkpolicies",
        verbs=("list",),
        use="say that a policy keeps the nodes of a step from each other",
        needed=False,
    ),
    Right(
        group="",
        resource="resourcequotas",
        verbs=("list",),
        use="refuse what a quota never allows before it is sent",
        needed=False,
    ),
    Right(
        group="",
        resource="nodes",
        verbs=("list",),
        use="refuse what no node can ever give before it is sent, and say what is free",
        needed=False,
        cluster=True,
    ),
)
"""What the backend does with the API server. Those that are not needed make it say less."""


CLAIM_RIGHTS: Final = (
    Right(group="", resource="pods", verbs=("create",), use="start the pod by which artifacts on a claim are reached"),
    Right(
        group="",
        resource="pods/exec",
        verbs=("create", "get"),
        use="read and write artifacts on a claim through its pod",
    ),
    Right(
        group="",
        resource="persistentvolumeclaims",
        verbs=("get",),
        use="say before a run whether its pods can mount the claim",
        needed=False,
    ),
)
"""What the backend does where artifacts are on a claim."""
GROUP_RIGHTS: Final[Mapping[str, Right]] = {
    right.group: right
    for right in (
        Right(
            group="jobset.x-k8s.io",
            resource="jobsets",
            verbs=("create", "get", "delete"),
            use="start and end steps on several nodes as JobSets (jobset=True)",
        ),
        Right(
            group="scheduling.volcano.sh",
            resource="podgroups",
            verbs=("create", "patch"),
            use="make the group of pods that Volcano starts together (queueing='volcano')",
        ),
        Right(
            group="scheduling.x-k8s.io",
            resource="podgroups",
            verbs=("create", "patch"),
            use="make the group of pods that coscheduling starts together (queueing='coscheduling')",
        ),
        Right(
            group="resource.k8s.io",
            resource="resourceclaimtemplates",
            verbs=("create", "patch"),
            use="make the claim by which a pod asks for its devices (device_class)",
        ),
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
    binding = f"{ROLE}-{words}"
    subject = subject_of(user)
    objects: list[Any] = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": ROLE, "namespace": namespace},
            "rules": rules(right for right in rights if not right.cluster),
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": binding, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE},
            "subjects": [subject],
        },
    ]
    wide = [right for right in rights if right.cluster]
    if not cluster or not wide:
        return objects
    role = f"{ROLE}-nodes"
    return [
        *objects,
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": rules(wide),
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{role}-{words}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        },
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


def yaml_text(objects: Sequence[Any]) -> str:
    """Objects as YAML documents; only what they hold, which is texts, lists and mappings."""
    return "---\n".join("".join(f"{line}\n" for line in _yaml(each, 0)) for each in objects)


def _yaml(value: Any, depth: int) -> list[str]:
    pad = "  " * depth
    lines: list[str] = []
    if isinstance(value, Mapping):
        for key, each in value.items():
            if isinstance(each, (Mapping, list)) and each and not _is_plain(each):
                lines += [f"{pad}{key}:", *_yaml(each, depth + (isinstance(each, Mapping)))]
            else:
                lines.append(f"{pad}{key}: {_flow(each)}")
        return lines
    for each in value:
        first, *others = _yaml(each, depth + 1)
        lines += [f"{pad}- {first.strip()}", *others]
    return lines


def _is_plain(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _flow(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_flow(each) for each in value)}]"
    text = str(value)
    plain = re.fullmatch(r"[A-Za-z][\w./-]*", text) and text.lower() not in ("yes", "no", "on", "off", "true", "null")
    return text if plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def allowed(cluster: Api, right: Right, verb: str, namespace: str) -> bool:
    """Whether this account has a right, by the API server's own word."""
    resource, _, part = right.resource.partition("/")
    attributes = {"verb": verb, "group": right.group, "resource": resource, "subresource": part}
    if not right.cluster:
        attributes["namespace"] = namespace
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    answer = cluster.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool((answer.get("status") or {}).get("allowed"))


def lacking_rights(cluster: Api, namespace: str, rights: Iterable[Right]) -> list[tuple[Right, str]]:
    """The rights, verb by verb, that this account lacks.

    One request tells most of them; what it does not tell is asked for one by one, since a webhook may allow it.
    """
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
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
        resource, _, part = right.resource.partition("/")
        for verb in right.verbs:
            attributes = {"verb": verb, "group": right.group, "resource": resource, "subresource": part}
            given = {key: value for key, value in {**attributes, "namespace": namespace}.items() if value}
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "groups": groups, "resourceAttributes": given},
            }
            try:
                answer = cluster.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
            except ApiError as error:
                if error.status not in (403, 404):
                    raise
                return None
            if not (answer.get("status") or {}).get("allowed"):
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
