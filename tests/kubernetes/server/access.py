"""Who a request is from, and what they may do: tokens, roles and bindings."""

from __future__ import annotations

import secrets

from attrs import define, field, frozen
from tests.kubernetes.server.failures import Refused
from tests.kubernetes.server.objects import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    Object,
    Resource,
)
from tests.kubernetes.server.store import Store

READ = ["get", "list", "watch"]
WRITE = ["create", "delete", "deletecollection", "patch", "update"]
CLUSTER_ROLE_RULES: dict[str, list[Object]] = {
    "cluster-admin": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    "edit": [
        {
            "apiGroups": [""],
            "resources": ["configmaps", "events", "persistentvolumeclaims", "pods", "pods/log", "secrets", "services"],
            "verbs": READ + WRITE,
        },
        {"apiGroups": ["batch"], "resources": ["jobs", "jobs/status"], "verbs": READ + WRITE},
    ],
    "view": [
        {
            "apiGroups": [""],
            "resources": [
                "configmaps", "events", "limitranges", "namespaces", "persistentvolumeclaims", "pods", "pods/log",
                "resourcequotas", "serviceaccounts", "services",
            ],
            "verbs": READ,
        },
        {"apiGroups": ["batch"], "resources": ["jobs", "jobs/status"], "verbs": READ},
    ],
}  # fmt: skip
"""Roles that every cluster has, as far as they concern kinds that this server knows."""


@frozen
class User:
    """Who sends a request."""

    name: str
    groups: tuple[str, ...] = ()


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


@frozen
class Attempt:
    """What somebody would do."""

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def path(self) -> str:
        """The resource as rules name it: "pods", "pods/log"."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


@define(eq=False)
class Access:
    """The tokens of the cluster, and what their holders may do."""

    store: Store
    admin: str = field(factory=lambda: secrets.token_urlsafe(24))
    """The token of one who may do everything."""
    _users: dict[str, User] = field(factory=dict)

    def token(self, user: User) -> str:
        """A new token."""
        token = secrets.token_urlsafe(24)
        self._users[token] = user
        return token

    def account_token(self, namespace: str, name: str) -> str:
        """A new token of a service account."""
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return self.token(User(f"system:serviceaccount:{namespace}:{name}", groups))

    def user(self, authorization: str | None) -> User:
        """Who sent the header `Authorization`.

        Raises:
            Refused: 401 for a token that is not known.
        """
        if authorization is None:
            return ANONYMOUS
        token = authorization.removeprefix("Bearer ")
        if token == self.admin:
            return User("kubernetes-admin", ("system:masters", "system:authenticated"))
        if token not in self._users:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return self._users[token]

    def check(self, user: User, attempt: Attempt) -> None:
        """Refuse what `user` may not do.

        Raises:
            Refused: 403.
        """
        if self.allowed_by(user, attempt) is not None:
            return
        resource, name = attempt.resource, attempt.name
        subject = f'{resource.name} "{name}"' if name else resource.name
        place = f'in the namespace "{attempt.namespace}"' if attempt.namespace else "at the cluster scope"
        details: Object = {"name": name} if name else {}
        if resource.group:
            details["group"] = resource.group
        raise Refused(
            403,
            f'{subject} is forbidden: User "{user.name}" cannot {attempt.verb} resource "{attempt.path}" in API group '
            f'"{resource.group}" {place}',
            "Forbidden",
            {**details, "kind": resource.plural},
        )

    def allowed_by(self, user: User, attempt: Attempt) -> str | None:
        """Why `user` may do it, as an access review says; None if not."""
        if "system:masters" in user.groups:
            return ""
        for binding in self.store.all(CLUSTER_ROLE_BINDINGS):
            if (subject := _subject(binding, user)) and self._grants(binding, "", attempt):
                return self._words("ClusterRoleBinding", binding, subject)
        for binding in self.store.all(ROLE_BINDINGS, attempt.namespace) if attempt.namespace else []:
            if (subject := _subject(binding, user)) and self._grants(binding, attempt.namespace, attempt):
                return self._words("RoleBinding", binding, subject)
        return None

    def rules(self, user: User, namespace: str) -> list[Object]:
        """All rules that apply to `user` in a namespace, as `SelfSubjectRulesReview` lists them."""
        if "system:masters" in user.groups:
            return CLUSTER_ROLE_RULES["cluster-admin"]
        bindings = [(each, "") for each in self.store.all(CLUSTER_ROLE_BINDINGS)]
        bindings += [(each, namespace) for each in self.store.all(ROLE_BINDINGS, namespace)]
        return [rule for each, place in bindings if _subject(each, user) for rule in self._rules(each, place)]

    def _rules(self, binding: Object, namespace: str) -> list[Object]:
        reference = binding["roleRef"]
        resource, place = (CLUSTER_ROLES, "") if reference["kind"] == "ClusterRole" else (ROLES, namespace)
        role = self.store.get(resource, place, reference["name"])
        return role.get("rules") or [] if role is not None else []

    def _grants(self, binding: Object, namespace: str, attempt: Attempt) -> bool:
        return any(_covers(rule, attempt) for rule in self._rules(binding, namespace))

    def _words(self, kind: str, binding: Object, subject: Object) -> str:
        metadata, role = binding["metadata"], binding["roleRef"]
        name = "/".join([metadata["name"], *([metadata["namespace"]] if "namespace" in metadata else [])])
        who = f"{subject['name']}/{subject['namespace']}" if "namespace" in subject else subject["name"]
        return f'RBAC: allowed by {kind} "{name}" of {role["kind"]} "{role["name"]}" to {subject["kind"]} "{who}"'


def _subject(binding: Object, user: User) -> Object | None:
    for subject in binding.get("subjects") or []:
        name = subject["name"]
        if subject["kind"] == "ServiceAccount":
            place = subject.get("namespace", binding["metadata"].get("namespace", ""))
            matches = user.name == f"system:serviceaccount:{place}:{name}"
        else:
            matches = user.name == name if subject["kind"] == "User" else name in user.groups
        if matches:
            return dict(subject)
    return None


def _covers(rule: Object, attempt: Attempt) -> bool:
    names = rule.get("resourceNames") or []
    return (
        _among(attempt.verb, rule.get("verbs"))
        and _among(attempt.resource.group, rule.get("apiGroups"))
        and (_among(attempt.path, rule.get("resources")) or f"*/{attempt.subresource}" in (rule.get("resources") or []))
        and (not names or attempt.name in names)
    )


def _among(word: str, words: list[str] | None) -> bool:
    return words is not None and ("*" in words or word in words)
