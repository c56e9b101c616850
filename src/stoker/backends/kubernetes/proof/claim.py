"""Finds out before a run whether its pods can mount the claim of the artifact store, and whether this machine may reach
it."""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.base.backend import settings_of
from stoker.backends.kubernetes.api.client import ApiError, items
from stoker.backends.kubernetes.api.rbac import CLAIM_RIGHTS, Api, Denied, account, grant_line, lacking_rights
from stoker.backends.kubernetes.objects import Object, joined, name
from stoker.backends.kubernetes.request.claims import ClaimStore
from stoker.backends.kubernetes.request.pods import HOSTNAME
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.errors import Away
from stoker.core.findings import Finding, Reporter
from stoker.core.plan import StepPlan, reporter_of

NO_CLAIM: Final = "STK258"
ONE_NODE: Final = "STK259"
NOT_REACHED: Final = "STK260"


def prove_claim(
    steps: Sequence[StepPlan], options: Mapping[str, Any], store: ClaimStore, cluster: Api, namespace: str
) -> Iterator[Finding]:
    """What of these steps cannot work with this claim; asks the cluster, and says nothing where it does not answer."""
    if not steps:
        return
    try:
        yield from _findings(steps, options, store, cluster, namespace)
    except Away:
        return  # the proof of nodes and rights says so


def _findings(
    steps: Sequence[StepPlan], options: Mapping[str, Any], store: ClaimStore, cluster: Api, namespace: str
) -> Iterator[Finding]:
    first = reporter_of(steps[0])
    usual, namespace = namespace, str(store.options.get("namespace") or namespace)
    yield from _rights(first, cluster, namespace)
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


def _rights(report: Reporter, cluster: Api, namespace: str) -> Iterator[Finding]:
    lacking = lacking_rights(cluster, namespace, [right for right in CLAIM_RIGHTS if right.needed])
    user = (account(cluster) or "USER") if lacking else ""
    for right in dict.fromkeys(right for right, _ in lacking):
        verbs = [verb for each, verb in lacking if each is right]
        denied = Denied(
            user=user, verb=",".join(verbs), resource=right.resource, group=right.group, namespace=namespace
        )
        yield report.error(
            NOT_REACHED,
            f"the account '{user}' may not {joined(verbs, last='or')} {right.resource} in the namespace '{namespace}'",
            f"it is needed to {right.use}",
            f"an administrator gives it by: {grant_line(denied)}",
        )


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
    try:
        return len(items(cluster, "/api/v1/nodes"))
    except ApiError as error:
        if error.status != 403:
            raise
        return None


def _has_place(cluster: Api, volume: str) -> bool | None:
    """Whether a volume says which nodes reach it; None where this account may not look."""
    try:
        found = cluster.get(f"/api/v1/persistentvolumes/{volume}")
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return None
    return bool((found.get("spec") or {}).get("nodeAffinity"))
