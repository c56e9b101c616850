"""Finds steps that a cluster can never run, before anything is submitted, by comparing their pods with its facts.

The caller hands over the pod template of each step as it will be sent. A step that only has to wait is no finding:
nodes that are busy, cordoned or silent count, as do pools that an autoscaler may add. Where the cluster does not answer
or an account may not ask, nothing is refused: what could not be proved is said.
"""

from __future__ import annotations

import itertools
import json
from decimal import Decimal
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.backend import settings_of
from stoker.backends.kubernetes.api.client import ApiError, items, seen_items
from stoker.backends.kubernetes.api.rbac import (
    CLAIM_RIGHTS,
    Api,
    Denied,
    Right,
    account,
    grant_line,
    lacking_rights,
    rights_with,
)
from stoker.backends.kubernetes.explain.nodes import (
    PROVISIONER,
    Amounts,
    ClusterNodes,
    add,
    amount_text,
    cluster_nodes,
    expression_fits,
    largest_text,
    plain_text,
    pod_request,
)
from stoker.backends.kubernetes.objects import Object, amount, joined, name
from stoker.backends.kubernetes.request.check import image_of
from stoker.backends.kubernetes.request.claims import ClaimStore
from stoker.backends.kubernetes.request.pods import (
    HOSTNAME,
    JOB_SETS,
    KUEUE,
    MANAGED_BY,
    PodRequest,
    admission,
    companions,
    pod_template,
)
from stoker.backends.kubernetes.request.pods import groups_of as groups_of_settings
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.errors import Away, BackendError
from stoker.core.findings import Finding, Reporter
from stoker.core.plan import StepPlan, reporter_of
from stoker.core.words import count_text, shown

NO_NODE: Final = "STK285"
ABOVE_QUOTA: Final = "STK286"
NO_RIGHT: Final = "STK287"
NOT_PROVED: Final = "STK288"
NOT_THERE: Final = "STK289"
INVALID: Final = "STK290"
KEPT_APART: Final = "STK263"
_NO_DRY_RUN: Final = "does not support dry run"
"""The server's word where a webhook of the cluster has side effects:
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#side-effects"""
VERBATIM: Final = (
    "labels", "annotations", "env", "env_from", "volumes", "volume_mounts", "affinity", "tolerations",
    "security_context", "pod_security_context", "pod_settings", "pod_resources", "pod_spec", "overlay",
)  # fmt: skip
"""The settings that are passed on as they are written."""
_AUTOSCALER: Final = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
_STANDARD: Final = ("cpu", "memory", "ephemeral-storage")


@attrs.frozen(kw_only=True)
class PodNeed:
    """The pods of a step."""

    step: StepPlan
    namespace: str
    template: Mapping[str, Any]
    """The pod template as it is sent: `metadata` and `spec`."""
    pods: int = 1
    """How many of them must be there at once: the nodes of a gang."""
    apis: Mapping[str, str] = attrs.field(factory=dict)
    """Groups of the API that its settings need besides Kubernetes' own → the setting, in words."""
    verbatim: Sequence[str] = ()
    """The settings in the API's own words, which the API server alone can check."""


def prove(
    needs: Sequence[PodNeed], cluster: Api, *, pools: Sequence[Mapping[str, Any]] = (), more: Iterable[Finding] = ()
) -> Iterator[Finding]:
    """What of these steps the cluster can never run; asks it. `pools` are of the settings; `more` asks, too, and is not
    begun where the cluster does not answer."""
    if not needs:
        return
    first = reporter_of(needs[0].step)
    try:
        yield from _Facts(cluster, pools).findings(needs)
        yield from _lacking_apis(needs, cluster)
        yield from _rejected(needs, cluster)
        yield from more
    except Away as error:
        why = "whether nodes, quotas and rights allow the steps is not proved"
        yield first.warning(NOT_PROVED, error.message, why, error.fix)
    except BackendError as error:
        yield first.warning(NOT_PROVED, error.message, "what the cluster allows is not proved", error.fix)


def has_other_place(
    step: StepPlan, options: Mapping[str, Any], cluster: Api, namespace: str, avoid: Sequence[str]
) -> bool:
    """Whether a step fits on nodes beside those to avoid; asks the cluster, and is true where it does not answer."""
    needs = needs_of([step], options, namespace, avoid=avoid)
    found = prove(needs, cluster, pools=KubernetesSettings(**options).get("pools", ()))
    return all((one.code, one.level) != (NO_NODE, "error") for one in found)


def needs_of(
    steps: Iterable[StepPlan], options: Mapping[str, Any], namespace: str, *, avoid: Sequence[str] = ()
) -> list[PodNeed]:
    """The pods of steps under the stack's settings; `namespace` is that of the context. Pure."""
    needs = []
    for step in steps:
        settings = settings_of(step, KubernetesSettings, options)
        pods = step.settings.resources.get("nodes", 1)
        request = PodRequest(
            resources=step.settings.resources,
            settings=settings,
            image=image_of(step, settings),
            command=("true",),
            nodes=pods,
            avoid=avoid,
        )
        where = str(settings.get("namespace") or namespace)
        needs.append(
            PodNeed(
                step=step,
                namespace=where,
                template=pod_template(request),
                pods=pods,
                apis=groups_of(request),
                verbatim=tuple(field for field in VERBATIM if settings.get(field)),
            )
        )
    return needs


def groups_of(request: PodRequest) -> dict[str, str]:
    """The groups of the API by which the settings have a step queued, started together or given devices."""
    settings = groups_of_settings(request.settings)
    made = {str(body["apiVersion"]).partition("/")[0] for body in companions(request)}
    made |= {JOB_SETS} if request.nodes > 1 else set()
    groups = {group: setting for group, setting in settings.items() if group in made}
    if admission(request).suspend:
        groups[KUEUE] = f"queue='{request.settings.get('queue')}'"
    return groups


def _lacking_apis(needs: Sequence[PodNeed], cluster: Api) -> Iterator[Finding]:
    """Queues, gang schedulers and claims that the cluster has not heard of."""
    there: dict[str, bool] = {}
    for need in needs:
        for group, setting in need.apis.items():
            if group not in there:
                try:
                    cluster.get(f"/apis/{group}")
                    there[group] = True
                except ApiError as error:
                    there[group] = error.status != 404
            if there[group]:
                continue
            report, what = reporter_of(need.step), f"has {setting}, and the cluster has no {group}"
            fix = f"remove {setting}, or have it installed"
            if group == KUEUE:
                yield report.warning(NOT_THERE, what, "its Job stays suspended until somebody lets it start", fix)
            else:
                yield report.error(NOT_THERE, what, "the objects that the step needs cannot be made", fix)


def _rejected(needs: Sequence[PodNeed], cluster: Api) -> Iterator[Finding]:
    """Pods that the API server would reject, by a dry run.

    What it says of rights, quotas and policies is found elsewhere, and may be otherwise when the step is sent.
    """
    asked: dict[str, str] = {}
    for need in needs:
        if not need.verbatim:
            continue
        metadata = {"name": "stoker-plan", "labels": {MANAGED_BY: "stoker"}}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": need.template}}
        path = f"/apis/batch/v1/namespaces/{need.namespace}/jobs"
        key = f"{path} {json.dumps(need.template, sort_keys=True)}"
        if key not in asked:
            asked[key] = ""
            try:
                cluster.create(path, body, dry_run=True)
            except ApiError as error:
                refused = error.status in (400, 422) and _NO_DRY_RUN not in error.words
                asked[key] = error.words if refused else ""
        if asked[key]:
            what = f"is a pod that the API server does not take: {asked[key]}"
            fix = f"correct {' or '.join(need.verbatim)} of its settings; `kubectl explain pod.spec` has the words"
            yield reporter_of(need.step).error(INVALID, what, "it was asked, and nothing was made", fix)


def denials(code: str, report: Reporter, cluster: Api, namespace: str, rights: Iterable[Right]) -> Iterator[Finding]:
    """The rights that this account lacks and nothing works without."""
    lacking = lacking_rights(cluster, namespace, [right for right in rights if right.needed])
    user = (account(cluster) or "USER") if lacking else ""
    for right in dict.fromkeys(right for right, _ in lacking):
        verbs = [verb for each, verb in lacking if each is right]
        denied = Denied(
            user=user, verb=",".join(verbs), resource=right.resource, group=right.group, namespace=namespace
        )
        who = f"the account '{user}' may not {joined(verbs, last='or')} {denied.qualified}"
        fix = f"an administrator gives it by: {grant_line(denied)}"
        yield report.error(code, f"{who} in the namespace '{namespace}'", f"it is needed to {right.use}", fix)


def scaling_status(cluster: Api) -> str | None:
    """The text of cluster-autoscaler's status; empty where there is none, None where it may not be read."""
    try:
        return str((cluster.get(_AUTOSCALER).get("data") or {}).get("status", ""))
    except ApiError as error:
        return "" if error.status == 404 else None


class _Facts:
    """What has been read of a cluster; each thing is asked for once."""

    def __init__(self, cluster: Api, pools: Sequence[Mapping[str, Any]]) -> None:
        self._cluster = cluster
        self._pools = pools
        self._nodes: list[dict[str, Any]] | None = None
        self._unread: dict[str, str] = {}
        self._there: dict[str, bool] = {}
        self._lists: dict[str, list[dict[str, Any]]] = {}

    def findings(self, needs: Sequence[PodNeed]) -> Iterator[Finding]:
        """All findings; what nobody may read is told once, at the first step."""
        names = list(dict.fromkeys(need.namespace for need in needs))
        for namespace in names:
            theirs = [need for need in needs if need.namespace == namespace]
            rights = rights_with(group for need in theirs for group in need.apis)
            problems = list(self._namespace(namespace, rights, reporter_of(theirs[0].step)))
            yield from problems
            if any(finding.level == "error" for finding in problems):
                return
        for need in needs:
            report = reporter_of(need.step)
            yield from self._places(need, report)
            yield from self._quotas(need, report)
            yield from self._names(need, report)
            yield from self._network(need, report)
        first = reporter_of(needs[0].step)
        for what, why in self._unread.items():
            yield first.info(NOT_PROVED, f"{what} is not proved", why)

    def _tell_unread(self, kind: str, thing: Object, resource: str, text: Any) -> None:
        """What the cluster says of itself and is not understood is told once."""
        why = f"the {kind} '{name(thing)}' says {shown(text)}, which is no quantity of Kubernetes"
        self._unread[f"whether the {kind} '{name(thing)}' allows the steps their {resource}"] = why

    # The namespace and the rights in it

    def _namespace(self, namespace: str, rights: Sequence[Right], report: Reporter) -> Iterator[Finding]:
        if self._exists(f"/api/v1/namespaces/{namespace}") is False:
            fix = f"create it (kubectl create namespace {namespace}), or name another with `namespace`"
            yield report.error(NOT_THERE, f"there is no namespace '{namespace}'", fix=fix)
            return
        yield from denials(NO_RIGHT, report, self._cluster, namespace, rights)

    def _exists(self, path: str) -> bool | None:
        """Whether an object is there; None where this account may not look."""
        if path not in self._there:
            try:
                self._cluster.get(path)
            except ApiError as error:
                if error.status == 404:
                    self._there[path] = False
                    return False
                if error.status in (401, 403):
                    return None
                raise
            self._there[path] = True
        return self._there[path]

    def _network(self, need: PodNeed, report: Reporter) -> Iterator[Finding]:
        """Policies that keep the nodes of a gang from each other. What cannot be read is passed over: the nodes try
        their ports themselves before the ranks start."""
        template = need.template
        if need.pods < 2 or (template.get("spec") or {}).get("hostNetwork"):
            return
        path = f"/apis/networking.k8s.io/v1/namespaces/{need.namespace}/networkpolicies"
        policies = self._listed(path, "")
        labels = {MANAGED_BY: "stoker", **((template.get("metadata") or {}).get("labels") or {})}
        names = policies_between(policies, labels, {"kubernetes.io/metadata.name": need.namespace})
        if names:
            which = joined([f"'{one}'" for one in names])
            yield report.warning(
                KEPT_APART,
                f"asks for {need.pods} nodes, which NetworkPolicies of '{need.namespace}' keep from each other's "
                f"ports: {which}",
                "ranks connect to ports that Linux chooses, on all nodes; they would wait for each other in vain",
                f"allow it with a policy for pods with the label {MANAGED_BY}=stoker, to and from such pods, for all "
                "ports; or host_network=true, which policies do not see",
            )

    # Nodes

    def _places(self, need: PodNeed, report: Reporter) -> Iterator[Finding]:
        nodes = self._read_nodes()
        spec = need.template.get("spec") or {}
        if nodes is None:
            return
        for resource in pod_request(spec):
            unread = [node for node in nodes.nodes if resource in node.unread]
            for node in unread[:1]:
                more = f" ({count_text(len(unread), 'node')})" if len(unread) > 1 else ""
                says = f"the node {node.name} says {shown(node.unread[resource])}"
                why = f"{says}, which is no quantity of Kubernetes{more}"
                self._unread[f"whether nodes have the {resource} that steps ask for"] = why
        if nodes.grows or nodes.places(spec, need.pods) >= need.pods:
            return
        grows = self._grows()
        if grows:
            return
        tell, why = report.error, "it would wait for ever"
        if grows is None or not nodes.nodes:
            tell, why = report.warning, "it waits until there is one, and whether an autoscaler adds it is not known"
        fix = "ask for less, or for what the nodes have; a pool that an autoscaler adds is named by `pools`"
        there = nodes.places(spec, need.pods)
        if need.pods > 1 and there:
            what = f"asks for {need.pods} nodes at once with {_asked(spec)} each, and the cluster has {there} such"
            yield tell(NO_NODE, what, why, fix)
            return
        wanted, known = largest_text(spec, nodes)
        what = f"asks for {wanted}: {known}" if wanted else f"no node can take its pod: {known}"
        if not nodes.nodes:
            what = "no node can take its pod: the cluster has none, and `pools` names none that it fits"
        yield tell(NO_NODE, what, why, fix)

    def _read_nodes(self) -> ClusterNodes | None:
        what = "whether any node can take the steps"
        if self._nodes is None and what not in self._unread:
            self._nodes = seen_items(self._cluster, "/api/v1/nodes")
            if self._nodes is None:
                self._unread[what] = "this account may not list nodes: the right is one on the whole cluster"
        return None if self._nodes is None else cluster_nodes(self._nodes, pools=self._pools)

    def _grows(self) -> bool | None:
        """Whether an autoscaler may add what nobody has named, None where this account may not know; asked for only
        before something is refused."""
        if self._pools:
            return False
        provisioned, status = self._exists(PROVISIONER), scaling_status(self._cluster)
        grows = cluster_nodes(self._nodes or (), status=status or "", provisioned=bool(provisioned)).grows
        return grows or (None if provisioned is None or status is None else False)

    # Quotas and ranges

    def _quotas(self, need: PodNeed, report: Reporter) -> Iterator[Finding]:
        quotas = self._listed(f"/api/v1/namespaces/{need.namespace}/resourcequotas", "quotas")
        ranges = self._listed(f"/api/v1/namespaces/{need.namespace}/limitranges", "limit ranges")
        spec = need.template.get("spec") or {}
        requests, limits = pod_request(spec), _limits(spec)
        defaults = _defaults(ranges)
        for quota in quotas:
            if (quota.get("spec") or {}).get("scopes") or (quota.get("spec") or {}).get("scopeSelector"):
                continue  # it may be another's
            for resource, text in ((quota.get("spec") or {}).get("hard") or {}).items():
                asked, most = _charged(resource, requests, limits, need.pods), amount(text)
                kind = resource.removeprefix("requests.").removeprefix("limits.")
                if asked is None:
                    continue
                if most is None:
                    self._tell_unread("quota", quota, resource, text)
                    continue
                if not asked and kind in _STANDARD and resource not in defaults and kind not in defaults:
                    which = "a limit" if resource.startswith("limits.") else "an amount"
                    yield report.error(
                        ABOVE_QUOTA,
                        f"asks for no {_words_of(kind)}, and the quota '{name(quota)}' of the namespace "
                        f"'{need.namespace}' demands {which}",
                        f"the API server refuses pods without {resource}",
                        f"say how much: resources.{_FIELDS.get(kind, kind)}",
                    )
                elif asked > most:
                    yield report.error(
                        ABOVE_QUOTA,
                        f"asks for {amount_text(kind, asked)}{' in all' if need.pods > 1 else ''}, and the quota "
                        f"'{name(quota)}' of the namespace '{need.namespace}' never gives more than "
                        f"{plain_text(kind, most)}",
                        "it would wait for ever",
                        "ask for less, have the quota raised, or use another namespace",
                    )
        yield from self._ranges(need, ranges, report)

    def _ranges(self, need: PodNeed, ranges: Sequence[Object], report: Reporter) -> Iterator[Finding]:
        """https://kubernetes.io/docs/concepts/policy/limit-range/"""
        containers = (need.template.get("spec") or {}).get("containers") or ()
        rules = [(each, rule) for each in ranges for rule in (each.get("spec") or {}).get("limits") or ()]
        for (each, rule), container in itertools.product(rules, containers):
            resources = container.get("resources") or {}
            for word, first, second in (("max", "limits", "requests"), ("min", "requests", "limits")):
                for resource, text in (rule.get(word) or {}).items() if rule.get("type") == "Container" else ():
                    asked, bound = _either(resources, resource, first, second), amount(text)
                    if bound is None:
                        self._tell_unread("limit range", each, resource, text)
                    elif asked is not None and (asked > bound if word == "max" else asked < bound):
                        yield _out_of_range(need, each, resource, asked, bound, report, above=word == "max")

    def _listed(self, path: str, words: str) -> list[dict[str, Any]]:
        """The objects of a list; none where this account may not see them, which is told in `words`."""
        if path not in self._lists:
            try:
                self._lists[path] = items(self._cluster, path)
            except ApiError as error:
                if words and error.status != 403:
                    raise
                self._lists[path] = []
                if words:
                    kind = path.rpartition("/")[2]
                    self._unread[f"whether {words} allow the steps"] = f"this account may not list {kind}"
        return self._lists[path]

    # What the pod names

    def _names(self, need: PodNeed, report: Reporter) -> Iterator[Finding]:
        for kind, named, setting in named_things(need.template.get("spec") or {}):
            path = _PATHS[kind].format(namespace=need.namespace, name=named)
            if self._exists(path) is False:
                where = "" if kind in _CLUSTER_WIDE else f" in the namespace '{need.namespace}'"
                yield report.error(
                    NOT_THERE,
                    f'names the {kind} "{named}", which does not exist{where}',
                    "its pod would wait for it for ever, or never be made",
                    f"create it, or name another: {setting}",
                )


_PATHS: Final[Mapping[str, str]] = {
    "secret": "/api/v1/namespaces/{namespace}/secrets/{name}",
    "config map": "/api/v1/namespaces/{namespace}/configmaps/{name}",
    "claim": "/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}",
    "service account": "/api/v1/namespaces/{namespace}/serviceaccounts/{name}",
    "priority class": "/apis/scheduling.k8s.io/v1/priorityclasses/{name}",
    "runtime class": "/apis/node.k8s.io/v1/runtimeclasses/{name}",
}
_CLUSTER_WIDE: Final = ("priority class", "runtime class")
_VARIABLES: Final = (("secretKeyRef", "name", "secret", "env"), ("configMapKeyRef", "name", "config map", "env"))
_SOURCES: Final = (("secretRef", "name", "secret", "secrets"), ("configMapRef", "name", "config map", "config_maps"))
_VOLUMES: Final = (
    ("secret", "secretName", "secret", "volumes"),
    ("configMap", "name", "config map", "volumes"),
    ("persistentVolumeClaim", "claimName", "claim", "persistent_volume_claims"),
)
"""Fields of variables, of sources of variables and of volumes that name something: where, as what, by which setting."""
_FIELDS: Final[Mapping[str, str]] = {"cpu": "cpu_count", "memory": "memory", "ephemeral-storage": "disk"}


def named_things(spec: Object) -> Iterator[tuple[str, str, str]]:
    """What a pod needs that it only names: kind, name, and the setting that names it; what is optional is left out."""
    for field, kind, setting in (
        ("serviceAccountName", "service account", "service_account"),
        ("priorityClassName", "priority class", "priority_class"),
        ("runtimeClassName", "runtime class", "runtime_class"),
    ):
        if spec.get(field) and spec[field] != "default":
            yield kind, str(spec[field]), setting
    # A pull secret that is missing is passed over by kubelets: it is refused only because pulling would fail.
    for each in spec.get("imagePullSecrets") or ():
        yield "secret", str(each.get("name")), "image_pull_secrets"
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    places = [
        *((each.get("valueFrom") or {}, _VARIABLES) for one in containers for each in one.get("env") or ()),
        *((each, _SOURCES) for one in containers for each in one.get("envFrom") or ()),
        *((each, _VOLUMES) for each in spec.get("volumes") or ()),
    ]
    for place, fields in places:
        for field, key, kind, setting in fields:
            if field in place and not place[field].get("optional"):
                yield kind, str(place[field].get(key)), setting


def _asked(spec: Object) -> str:
    request = pod_request(spec)
    texts = [amount_text(resource, wanted) for resource, wanted in request.items() if resource != "pods"]
    return joined(texts) if texts else "a place"


def _limits(spec: Object) -> Amounts:
    """The limits of all containers together; of a container without one nothing is counted."""
    total: dict[str, Decimal | None] = {}
    for container in spec.get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        add(total, {resource: amount(text) for resource, text in limits.items()})
    return total


def _charged(resource: str, requests: Amounts, limits: Amounts, pods: int) -> Decimal | None:
    """What a quota's resource counts of these pods; None for one that does not concern them.

    https://kubernetes.io/docs/concepts/policy/resource-quotas/
    """
    if resource in ("pods", "count/pods"):
        return Decimal(pods)
    if resource == "count/jobs.batch":
        return Decimal(1)
    kind = resource.removeprefix("requests.")
    if resource.startswith("limits."):
        each = limits.get(resource.removeprefix("limits."), Decimal(0))
    elif kind in _STANDARD or (kind != resource and "/" in kind and not kind.endswith("storage")):
        each = requests.get(kind, Decimal(0))
    else:
        return None
    return None if each is None else each * pods


def _defaults(ranges: Sequence[Object]) -> set[str]:
    """What a container gets that does not ask: quotas' names of the resources."""
    limits = [limit for each in ranges for limit in (each.get("spec") or {}).get("limits") or ()]
    own = [limit for limit in limits if limit.get("type") == "Container"]
    asked = {resource for limit in own for resource in limit.get("defaultRequest") or {}}
    most = {resource for limit in own for resource in limit.get("default") or {}}
    return {*asked, *most, *(f"requests.{each}" for each in asked), *(f"limits.{each}" for each in most)}


def _either(resources: Object, resource: str, first: str, second: str) -> Decimal | None:
    return amount((resources.get(first) or {}).get(resource, (resources.get(second) or {}).get(resource)))


def _out_of_range(
    need: PodNeed, rule: Object, resource: str, asked: Decimal, bound: Decimal, report: Reporter, *, above: bool
) -> Finding:
    allows = f"allows {plain_text(resource, bound)} at most" if above else f"demands {plain_text(resource, bound)}"
    return report.error(
        ABOVE_QUOTA,
        f"asks for {amount_text(resource, asked)}, and the limit range '{name(rule)}' of the namespace "
        f"'{need.namespace}' {allows}",
        "the API server refuses its pod",
        f"ask for {'less' if above else 'more'}: resources.{_FIELDS.get(resource, resource)}",
    )


def _words_of(kind: str) -> str:
    return {"cpu": "CPUs", "ephemeral-storage": "disk"}.get(kind, kind)


# Whether NetworkPolicies of a namespace keep the pods of a gang apart. A pod that any policy selects is reached only as
# the policies that select it allow, together; one that none selects is open.
# https://kubernetes.io/docs/concepts/services-networking/network-policies/

EPHEMERAL: Final = (32768, 60999)
"""The first and the last of the ports that Linux chooses, among which those of ranks are:
https://docs.kernel.org/networking/ip-sysctl.html (ip_local_port_range)."""
_DIRECTIONS: Final = (("Ingress", "ingress", "from"), ("Egress", "egress", "to"))


def policies_between(policies: Sequence[Object], labels: Mapping[str, str], namespace: Mapping[str, str]) -> list[str]:
    """The names of policies that keep pods with these labels from each other's ports; none where they let them through,
    or where that cannot be told. `namespace` are the labels of their namespace."""
    names: list[str] = []
    for word, field, side in _DIRECTIONS:
        selecting = [policy for policy in policies if _selects(policy, labels) and word in _types(policy)]
        rules = [rule for policy in selecting for rule in policy["spec"].get(field) or ()]
        if selecting and not any(_lets_through(rule, side, labels, namespace) for rule in rules):
            names += [name(policy) for policy in selecting if name(policy) not in names]
    return names


def _types(policy: Object) -> Sequence[str]:
    spec = policy["spec"]
    return spec.get("policyTypes") or (("Ingress", "Egress") if spec.get("egress") else ("Ingress",))


def _selects(policy: Object, labels: Mapping[str, str]) -> bool:
    return matches(policy["spec"].get("podSelector") or {}, labels)


def _lets_through(rule: Object, side: str, labels: Mapping[str, str], namespace: Mapping[str, str]) -> bool:
    """Whether a rule may let such pods through to any port that ranks choose."""
    ports, peers = rule.get("ports") or (), rule.get(side) or ()
    if ports and not any(_has_all_ports(port) for port in ports):
        return False
    return not peers or any(_is_peer(peer, labels, namespace) for peer in peers)


def _has_all_ports(port: Object) -> bool:
    first = port.get("port")
    if port.get("protocol", "TCP") != "TCP":
        return False
    if first is None:
        return True
    last = port.get("endPort", first)
    return isinstance(first, int) and first <= EPHEMERAL[0] and last >= EPHEMERAL[1]


def _is_peer(peer: Object, labels: Mapping[str, str], namespace: Mapping[str, str]) -> bool:
    if peer.get("ipBlock") is not None:
        return True  # the pods' addresses are not known yet
    spaces, pods = peer.get("namespaceSelector"), peer.get("podSelector")
    return (spaces is None or matches(spaces, namespace)) and (pods is None or matches(pods, labels))


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes an object with these labels; an empty one takes all."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(expression_fits(labels, each) for each in selector.get("matchExpressions") or ())


# Whether pods can mount the claim of the artifact store, and whether this machine may reach it

NO_CLAIM: Final = "STK258"
ONE_NODE: Final = "STK259"
NOT_REACHED: Final = "STK260"


def prove_claim(
    steps: Sequence[StepPlan], options: Mapping[str, Any], store: ClaimStore, cluster: Api, namespace: str
) -> Iterator[Finding]:
    """What of these steps cannot work with this claim; asks the cluster."""
    first = reporter_of(steps[0])
    usual, namespace = namespace, str(store.options.get("namespace") or namespace)
    yield from denials(NOT_REACHED, first, cluster, namespace, CLAIM_RIGHTS)
    for step in steps:
        own = settings_of(step, KubernetesSettings, options).get("namespace") or usual
        if own != namespace:
            what = f"runs in the namespace '{own}', and the artifact store's claim is in '{namespace}'"
            yield reporter_of(step).error(
                NO_CLAIM, what, "a pod mounts claims of its own namespace", f"leave it in '{namespace}'"
            )
    try:
        claim = cluster.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{store.claim}")
    except ApiError as error:
        if error.status == 404:
            yield first.error(
                NO_CLAIM,
                f"the artifact store is on the claim '{store.claim}', which the namespace '{namespace}' has not",
                "the pods of steps keep their inputs and outputs there",
                f"stoker stacks setup kubernetes --namespace {namespace} --artifact-store pvc://{store.claim} makes it",
            )
        elif error.status == 403:
            what = f"whether pods can mount the claim '{store.claim}' is not proved"
            yield first.info(ONE_NODE, what, "this account may not look at claims")
        else:
            raise
        return
    if (claim.get("status") or {}).get("phase") == "Lost":
        what = f"the claim '{store.claim}' of the artifact store has lost its volume"
        yield first.error(NO_CLAIM, what, "what was on it is gone", "delete it and make another, or name another")
        return
    yield from _modes(steps, options, claim, cluster)


def _modes(steps: Sequence[StepPlan], options: Mapping[str, Any], claim: Object, cluster: Api) -> Iterator[Finding]:
    """What follows from the claim's access modes.

    https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes
    """
    modes = set((claim.get("status") or {}).get("accessModes") or (claim.get("spec") or {}).get("accessModes") or ())
    if "ReadWriteMany" in modes or not modes:
        return
    first, called = reporter_of(steps[0]), name(claim)
    if "ReadWriteOnce" not in modes:
        why = "its one pod" if "ReadWriteOncePod" in modes else "nobody"
        what = f"the artifact store is on the claim '{called}', which {why} may write ({joined(sorted(modes))})"
        fix = "name a claim with the access mode ReadWriteMany, or ReadWriteOnce where one node suffices"
        yield first.error(NO_CLAIM, what, "the pods of all steps write it, and the pod by which it is read here", fix)
        return
    unpinned = [step for step in steps if not _is_pinned(settings_of(step, KubernetesSettings, options))]
    nodes = _count_nodes(cluster)
    if not unpinned or nodes == 1:
        return
    report = reporter_of(unpinned[0])
    what = f"the artifact store is on the claim '{called}' with the access mode ReadWriteOnce"
    volume = str((claim.get("spec") or {}).get("volumeName") or "")
    bound = _has_place(cluster, volume) if volume else None
    if bound:
        why = f"its volume {volume} says where it is: all pods of the run are placed there"
        yield report.info(ONE_NODE, what, why)
        return
    why = "pods on other nodes than the first cannot mount it, and wait for ever"
    fix = "name a claim with ReadWriteMany, or one node: node_selector = { 'kubernetes.io/hostname' = 'NODE' }"
    if bound is None or nodes is None:
        yield report.warning(ONE_NODE, what, f"if its volume is a disk of one node, {why}", fix)
    else:
        yield report.error(ONE_NODE, what, why, fix)


def _is_pinned(settings: KubernetesSettings) -> bool:
    return HOSTNAME in settings.get("node_selector", {})


def _count_nodes(cluster: Api) -> int | None:
    """How many nodes the cluster has; None where this account may not list them."""
    nodes = seen_items(cluster, "/api/v1/nodes")
    return None if nodes is None else len(nodes)


def _has_place(cluster: Api, volume: str) -> bool | None:
    """Whether a volume says which nodes reach it; None where this account may not look."""
    try:
        found = cluster.get(f"/api/v1/persistentvolumes/{volume}")
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return None
    return bool((found.get("spec") or {}).get("nodeAffinity"))
