"""Why a Job's pods do not run yet: numbers, and the fix in words.

`why_pending` is pure, and `Explanations` asks the cluster for what it reads. The caller hands over the Job and all its
pods as for `causes`, the events about both and no others, since each call reads them all, and the cluster's nodes where
it may list them (`nodes.cluster_nodes`; with the pods of all namespaces, so that free amounts are known). Without
events it is not known how often a node has tried something, nor why a volume is not mounted, nor why no pod is made;
without nodes the scheduler's own words are translated.

`Pending.key` stays the same while the reason does: a change of the numbers alone need not be reported.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.platforms import Away
from stoker.backends.kubernetes.api.client import PAGE, ApiError, Cluster, Inquiry, next_page
from stoker.backends.kubernetes.explain import nodelabels
from stoker.backends.kubernetes.explain.nodes import (
    PROVISIONER,
    ClusterNodes,
    amount_text,
    cluster_nodes,
    largest_text,
    obstacles_text,
    pod_request,
)
from stoker.backends.kubernetes.explain.refusals import WAITING, pull_problem, refusal_of
from stoker.backends.kubernetes.objects import (
    Object,
    clock_text,
    condition,
    denied_condition,
    event_count,
    event_time,
    events_of,
    first_time,
    index_of,
    is_deleted,
    main_container,
    main_status,
    node_of,
    phase,
    seconds,
    uid,
    waiting,
)
from stoker.backends.kubernetes.objects import name as name_of
from stoker.backends.kubernetes.settings import PULL_TIMEOUT, KubernetesSettings
from stoker.core.codec import parse_object
from stoker.core.errors import SettingsError
from stoker.core.status import REFUSED
from stoker.core.words import count_text, time_text

QUEUE_LABELS: Final = ("kueue.x-k8s.io/queue-name", "volcano.sh/queue-name")
_CONFIG: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_MISSING: Final = re.compile(
    r'(?P<kind>secret|configmap|persistentvolumeclaim) "?(?P<name>[\w./-]+)"? not found'
    r"|couldn't find key (?P<key>\S+) in (?P<of>Secret|ConfigMap) \S+?/(?P<in>[\w.-]+)",
    re.IGNORECASE,
)
_CREATE: Final = "create it, or name another"
_CHANGE: Final = "change the step's node selector, affinity, accelerators or tolerations"
_NO_PULL: Final = "Failed to pull image"
_AVAILABLE: Final = re.compile(r"(?P<fit>\d+)/(?P<all>\d+) nodes are available: (?P<reasons>.+?)(?:\. |\.$|$)")
_ITEM: Final = re.compile(r"(\d+) (.+?)(?=, \d+ |$)")
_ADDS_NODES: Final = ("TriggeredScaleUp", "Nominated")
"""Events of cluster-autoscaler and of Karpenter on a pod for which nodes are added."""
_WORDS: Final = (
    # The scheduler's words for a number of nodes, and ours. https://github.com/kubernetes/kubernetes/tree/master/pkg/
    # scheduler/framework/plugins
    (r"Insufficient (?P<what>\S+)", "{nodes} {have} too little free of {what}"),
    (r"Too many pods", "{nodes} {have} as many pods as they may"),
    (r"node\(s\) had untolerated taint(?:\(s\))? ?\{?(?P<what>[^}]*)\}?", "{nodes} {have} the taint {what}"),
    (r"node\(s\) didn't match Pod's node affinity/selector", "{nodes} {have} not the labels that the step asks for"),
    (r"node\(s\) were unschedulable", "{nodes} {are} cordoned"),
    (r"node\(s\) had volume node affinity conflict", "{nodes} {are} where the step's volume is not"),
    (
        r"node\(s\) didn't match pod anti-affinity rules",
        "{nodes} {have} a pod already beside which the step may not be",
    ),
    (r"node\(s\) didn't have free ports.*", "{nodes} {have} the step's host port in use"),
    (r"node\(s\) didn't match pod topology spread constraints.*", "{nodes} would break the spread over nodes"),
)


@attrs.frozen(kw_only=True)
class Patience:
    """After how much a wait is given up."""

    sure: int = 2
    """Tries of a kubelet at what cannot go well, such as an image that does not exist."""
    unsure: int = 5
    """Tries at what may pass, such as a registry that does not answer; they come after 10 s, 20 s, 40 s …"""
    missing: int = 5
    """Tries with a secret, config map or service account that somebody may still make; they are some 12 s apart."""
    mounts: int = 9
    """Tries to mount what does not exist; they come after 0.5 s, 1 s, 2 s … up to 2 minutes."""
    seconds: float | None = None
    """Seconds of any wait; None for no limit."""
    pull: float = PULL_TIMEOUT
    """Seconds in which tries to pull the image fail: of a registry that no node reaches each may say something else."""


@attrs.frozen(kw_only=True)
class Pending:
    """Why a Job, or an element of it, waits."""

    text: str
    """The reason with its numbers, and the fix."""
    key: str
    """Equal for the same reason."""
    hopeless: bool = False
    """Whether waiting does not help, so that the Job is ended with `cause` and `text`."""
    fix: str = ""
    """The fix alone; empty where waiting is all that is to be done."""
    cause: str = ""
    """A word of `core.status` for a wait that is given up."""
    since: float | None = None
    """When the wait began, in seconds since the epoch."""
    pull_failed: float | None = None
    """When the image could not be pulled for the first time; None where that is not what is waited for."""


USUAL: Final = Patience()


def patience_of(settings: KubernetesSettings) -> Patience:
    """How long a step's settings wait."""
    return Patience(seconds=settings.get("pod_startup_timeout"), pull=settings.get("pull_timeout", PULL_TIMEOUT))


def why_pending(
    job: Object,
    pods: Sequence[Object],
    events: Iterable[Object] = (),
    nodes: ClusterNodes | None = None,
    *,
    gang: bool | None = None,
    now: float | None = None,
    patience: Patience = USUAL,
) -> Pending | None:
    """Why a Job waits, or, with the pods of one index alone, an element of a fan-out; None where nothing does.

    `gang` says that its indexes are ranks of one step; without it an Indexed Job whose pods all run at once counts so.
    `now`, in seconds since the epoch, is needed for `Patience.seconds` alone.
    """
    events = tuple(events)
    if any(condition(job, kind) for kind in ("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet")):
        return None
    if is_deleted(job):
        return None
    gang = _is_gang(job) if gang is None else gang
    found = _of_job(job, pods, events, gang, patience)
    if found is None:
        waits = [pod for pod in pods if _waits(pod)]
        if not waits:
            return None
        found = _of_pods(job, pods, waits, events, nodes, gang, patience)
    return _limited(found, job, now, patience)


def no_news(pods: Iterable[Object]) -> str:
    """Which node of a running pod does not answer, and since when, by the pods' own condition; empty where all do."""
    for pod in pods:
        state, ready = (main_status(pod) or {}).get("state") or {}, denied_condition(pod, "Ready")
        # The node controller denies it for the silent node, and gives no reason, unlike the kubelet.
        if phase(pod) == "Running" and node_of(pod) and ready and state.get("running") and not ready.get("reason"):
            since = seconds(ready.get("lastTransitionTime"))
            when = f" since {clock_text(since)}" if since is not None else ""
            fate = "the step may go on there, and what it does is told when the node is back"
            return f"the node {node_of(pod)} does not answer{when}; {fate}"
    return ""


# The Job as a whole


def _of_job(
    job: Object, pods: Sequence[Object], events: Sequence[Object], gang: bool, patience: Patience
) -> Pending | None:
    """What keeps a Job's pods from being made."""
    if (job.get("spec") or {}).get("suspend") or condition(job, "Suspended"):
        return _suspended(job, events)
    # A Job of a thousand elements has an event for each, and this is asked for each of them: the events are read only
    # where no pod is there.
    live = any(not is_deleted(pod) for pod in pods)
    refused = [] if live else events_of(job, events, "FailedCreate")
    made = events_of(job, events, "SuccessfulCreate") if refused else []
    if refused and (not made or event_time(refused[-1]) > event_time(made[-1])):
        refusal = refusal_of(403, str(refused[-1].get("message", "")), namespace=_namespace(job))
        tries = sum(map(event_count, refused))
        enough = patience.missing if refusal.passes else patience.sure
        return Pending(
            text=refusal.text,
            key=f"refused {refusal.kind}",
            fix=refusal.fix,
            cause=refusal.cause,
            hopeless=tries >= enough and not (refusal.passes and refusal.kind == "quota"),
            since=_began(job),
        )
    if not pods:
        spec = job.get("spec") or {}
        at_once = int(spec.get("parallelism") or 1)
        if not gang and int(spec.get("completions") or 1) > at_once:
            text = f"it waits for its turn: {count_text(at_once, 'element')} may run at once"
            return Pending(text=text, key="turn", since=_began(job))
        return Pending(text="its pods are not made yet", key="new", since=_began(job))
    return None


def _suspended(job: Object, events: Sequence[Object]) -> Pending:
    labels = (job.get("metadata") or {}).get("labels") or {}
    queue = next((str(labels[label]) for label in QUEUE_LABELS if labels.get(label)), "")
    # Kueue says why on the Workload that it makes of the Job: https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/
    own = []
    for each in events:
        about, told = (
            each.get("involvedObject") or {},
            each.get("reason") in ("Pending", "QuotaReserved", "Inadmissible"),
        )
        if told and about.get("kind") == "Workload" and str(about.get("name", "")).startswith(f"job-{name_of(job)}-"):
            own.append(each)
    why = f": {max(own, key=event_time).get('message', '')}" if own else ""
    text = f"held by the queue{f' {queue}' if queue else ''} (the Job is suspended){why}"
    return Pending(text=text, key="suspended", since=_began(job))


def _of_pods(
    job: Object,
    pods: Sequence[Object],
    waits: Sequence[Object],
    events: Sequence[Object],
    nodes: ClusterNodes | None,
    gang: bool,
    patience: Patience,
) -> Pending:
    groups: dict[str, list[tuple[Object, Pending]]] = {}
    by_words: dict[tuple[str, ...], Pending] = {}
    for pod in waits:
        words = (*words_of(pod), "" if not gang and len(waits) > _FEW else uid(pod))
        if words not in by_words:
            by_words[words] = _of_pod(pod, events, nodes, patience)
        groups.setdefault(by_words[words].key, []).append((pod, by_words[words]))
    chosen = max(groups.values(), key=lambda group: (group[0][1].hopeless, len(group)))
    pending = max((each for _, each in chosen), key=lambda each: each.hopeless)
    total = int((job.get("spec") or {}).get("completions") or 1)
    if total == 1 or (not gang and len({index_of(pod) for pod in pods}) == 1):
        return pending
    noun = "rank" if gang else "element"
    settled = [pod for pod in pods if not _waits(pod) or node_of(pod)]
    if not gang or len(chosen) == total or not pending.key.startswith("unschedulable"):
        return attrs.evolve(pending, text=f"{count_text(len(chosen), noun)} of {total}: {pending.text}")
    devices = any(nodelabels.is_device(resource) for resource in pod_request(chosen[0][0].get("spec") or {}))
    what = "have GPUs" if devices else "have a place"
    # Those that have a place hold what they have until the others come.
    fix = "a queue that starts all ranks or none avoids that two such steps block each other: queue of the settings"
    return attrs.evolve(
        pending,
        text=f"{len(settled)} of {total} {noun}s {what}; {len(chosen)} {'is' if len(chosen) == 1 else 'are'} waiting: "
        f"{pending.text}; {fix}",
        key=f"{pending.key} partly",
        fix=pending.fix or fix,
    )


_FEW: Final = 16
"""Waiting pods of a Job that are looked at one by one; of more, those with the same words are taken as one."""


def _limited(pending: Pending, job: Object, now: float | None, patience: Patience) -> Pending:
    if now is None or pending.since is None or pending.hopeless:
        return pending
    waited = now - pending.since
    if pending.pull_failed is not None and now - pending.pull_failed >= patience.pull:
        text = f"no node could pull the image for {time_text(now - pending.pull_failed)} (pull_timeout): {pending.text}"
        return attrs.evolve(pending, text=text, hopeless=True)
    if patience.seconds is None or waited < patience.seconds:
        return pending
    text = f"Job {name_of(job)} has waited for {time_text(waited)}, longer than it may: {pending.text}"
    return attrs.evolve(pending, text=text, hopeless=True, cause=pending.cause or REFUSED)


# One pod


def _waits(pod: Object) -> bool:
    """Whether a pod has not begun, or does not begin again."""
    if is_deleted(pod):
        return False
    if phase(pod) in ("", "Pending"):
        return not ((main_status(pod) or {}).get("state") or {}).get("terminated")
    state = waiting(pod)
    return phase(pod) == "Running" and state is not None and state.get("reason") == "CrashLoopBackOff"


def words_of(pod: Object) -> tuple[str, ...]:
    """What a pod says of its wait: the same for pods that wait for the same."""
    unscheduled = denied_condition(pod, "PodScheduled") or {}
    state = waiting(pod) or {}
    return (
        str(unscheduled.get("reason", "")),
        str(unscheduled.get("message", "")),
        str(state.get("reason", "")),
        str(state.get("message", "")),
        "bound" if node_of(pod) else "",
    )


def _of_pod(pod: Object, events: Sequence[Object], nodes: ClusterNodes | None, patience: Patience) -> Pending:
    own = events_of(pod, events)
    unscheduled = denied_condition(pod, "PodScheduled")
    if unscheduled is not None:
        return attrs.evolve(_unscheduled(pod, unscheduled, own, nodes, patience), since=_began(pod))
    state = waiting(pod)
    if state is not None:
        return attrs.evolve(_waiting(pod, state, own, patience), since=_began(pod))
    return attrs.evolve(_starting(pod, own, patience), since=_began(pod))


def _unscheduled(
    pod: Object, unscheduled: Object, own: Sequence[Object], nodes: ClusterNodes | None, patience: Patience
) -> Pending:
    said = " ".join(str(unscheduled.get("message") or "").split())
    if unscheduled.get("reason") == "SchedulingGated":
        gates = ", ".join(str(each.get("name")) for each in (pod.get("spec") or {}).get("schedulingGates") or ())
        text = f"held by the queue (scheduling gate {gates})" if gates else "held by the queue"
        return Pending(text=text, key="gated")
    missing = _missing_words(said)
    if missing:
        tries = sum(event_count(each) for each in own if each.get("reason") == "FailedScheduling")
        return _absent(f"{missing}; {_CREATE}", f"missing {missing}", tries >= patience.missing)
    if "unbound immediate PersistentVolumeClaims" in said:
        text = "a claim that it mounts is not bound to a volume yet; see `kubectl get pvc` and its storage class"
        return Pending(text=text, key="claim", fix="see `kubectl get pvc` and its storage class")
    added = [each for each in own if each.get("reason") in _ADDS_NODES]
    if added:
        text = f"an autoscaler adds nodes for it: {' '.join(str(added[-1].get('message', '')).split())}"
        return Pending(text=text, key="unschedulable scale-up")
    spec = pod.get("spec") or {}
    if nodes is not None and not nodes.may_fit(spec):
        return _never(spec, nodes)
    in_use = "No preemption victims found" in said
    text = _obstacles(spec, said, nodes)
    refused = [each for each in own if each.get("reason") == "NotTriggerScaleUp"]
    if refused:
        text = f"{text}; the autoscaler adds no node for it"
    devices = [resource for resource in pod_request(spec) if nodelabels.is_device(resource)]
    if in_use and devices:
        text = f"waiting for GPUs (all in use): {text}"
    return Pending(text=text, key="unschedulable")


def _never(spec: Object, nodes: ClusterNodes) -> Pending:
    """A pod that no node can ever take."""
    wanted, there = largest_text(spec, nodes)
    if not nodes.nodes and not nodes.pools:
        return Pending(text="the cluster has no nodes; it waits until there are some", key="unschedulable none")
    what = f"no node has {wanted} ({there})" if wanted else there
    fix = "ask for less, or for what the nodes have" if wanted else _CHANGE
    text = f"{what}: this never starts as it is; {fix}, or name the pool that an autoscaler adds: `pools`"
    return Pending(text=text, key="unschedulable never", fix=fix, hopeless=True, cause=REFUSED)


def _obstacles(spec: Object, said: str, nodes: ClusterNodes | None) -> str:
    """Why no node takes a pod now: from the nodes where what is free is known, else from the scheduler's words."""
    known = nodes is not None and all(node.free is not None for node in nodes.nodes)
    if nodes is not None and known and all(each is not None for _, each in nodes.obstacles(spec)):
        return obstacles_text(spec, nodes)
    needs = " and ".join(
        amount_text(resource, wanted)
        for resource, wanted in pod_request(spec).items()
        if nodelabels.is_device(resource) or f"Insufficient {resource}" in said
    )
    translated = scheduler_words(said)
    return f"needs {needs}: {translated}" if needs else translated


def scheduler_words(said: str) -> str:
    """A scheduler's message for people: "0/8 nodes are available: 3 Insufficient …"."""
    if said.startswith("no nodes available"):
        return "the cluster has no nodes"
    available = _AVAILABLE.search(said)
    if available is None:
        return f"the scheduler says: {said}" if said else "the scheduler has found no node yet"
    parts = []
    for number, reason in _ITEM.findall(available["reasons"]):
        count = int(number)
        for pattern, words in _WORDS:
            match = re.fullmatch(pattern, reason.strip())
            if match is not None:
                what = (match.groupdict().get("what") or "").replace(": ", "=").rstrip("= ")
                have, are = ("has", "is") if count == 1 else ("have", "are")
                parts.append(words.format(nodes=count_text(count, "node"), have=have, are=are, what=what))
                break
        else:
            parts.append(f"{count_text(count, 'node')}: {reason.strip()}")
    return (
        f"of {count_text(int(available['all']), 'node')}, {', '.join(parts)}"
        if parts
        else f"the scheduler says: {said}"
    )


def _waiting(pod: Object, state: Object, own: Sequence[Object], patience: Patience) -> Pending:
    reason, said = str(state.get("reason", "")), " ".join(str(state.get("message") or "").split())
    image = str(state.get("image") or main_container(pod).get("image", ""))
    if reason in WAITING:
        problem = pull_problem(reason, said, image)
        tries = _pull_tries(own)
        enough = patience.sure if problem.sure else patience.unsure
        return Pending(
            text=f"{problem.text}; {problem.fix}" if problem.fix else problem.text,
            key=f"image {problem.kind}",
            fix=problem.fix,
            cause=problem.cause,
            hopeless=tries >= enough and not problem.passes,
            pull_failed=min(map(first_time, _failed_pulls(own)), default=None),
        )
    if reason in _CONFIG:
        missing = _missing_words(said)
        hopeless = sum(event_count(each) for each in own if each.get("reason") == "Failed") >= patience.missing
        if missing:
            return _absent(f"{missing}; {_CREATE}", f"config {missing}", hopeless)
        text, key = f"the container cannot be made: {said or reason}", f"config {reason}"
        return Pending(text=text, key=key, cause=REFUSED, hopeless=hopeless)
    if reason == "CrashLoopBackOff":
        return Pending(text="its container ended, and is started again after a pause", key="restart")
    return Pending(text=f"its container waits: {': '.join(filter(None, [reason, said]))}", key=f"waiting {reason}")


def _starting(pod: Object, own: Sequence[Object], patience: Patience) -> Pending:
    """A pod that has a node and whose container is on its way, or one that no scheduler has looked at."""
    if not node_of(pod):
        return Pending(text="it is new: the scheduler has not looked at it yet", key="new")
    problems = [
        each
        for each in own
        if each.get("reason") in ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume")
    ]
    later = [each for each in own if each.get("reason") in ("Pulling", "Pulled", "Created", "Started")]
    if problems and (not later or event_time(later[-1]) < event_time(problems[-1])):
        said = " ".join(str(problems[-1].get("message", "")).split())
        missing = _missing_words(said)
        if missing:
            text = f"waiting for {missing.replace(' does not exist', '')}, which does not exist; create it"
            return _absent(text, f"mount {missing}", max(map(event_count, problems)) >= patience.mounts)
        text = f"the node {node_of(pod)} cannot prepare the pod: {said}"
        return Pending(text=text, key=f"mount {problems[-1]['reason']}")
    pulling = [each for each in own if each.get("reason") in ("Pulling", "Pulled")]
    if pulling and pulling[-1].get("reason") == "Pulling":
        text = f"the node {node_of(pod)} pulls the image {main_container(pod).get('image', '')}"
        return Pending(text=text, key="pulling")
    return Pending(text=f"its container is being made on the node {node_of(pod)}", key="starting")


# Small readers


def _pull_tries(own: Sequence[Object]) -> int:
    """How often a kubelet has failed to have an image. Each message is an event of its own: one that names the port of
    a connection is another each time."""
    return sum(map(event_count, _failed_pulls(own)))


def _failed_pulls(own: Sequence[Object]) -> list[Object]:
    return [
        each
        for each in own
        if each.get("reason") in ("ErrImageNeverPull", "InspectFailed")
        or (each.get("reason") == "Failed" and str(each.get("message", "")).startswith(_NO_PULL))
    ]


def _absent(text: str, key: str, hopeless: bool) -> Pending:
    """Something that is named and does not exist."""
    return Pending(text=text, key=key, fix=_CREATE, cause=REFUSED, hopeless=hopeless)


def _missing_words(said: str) -> str:
    """What does not exist: 'secret "hub-token" does not exist'; empty for another message."""
    match = _MISSING.search(said)
    if match is None:
        return ""
    if match["key"]:
        kind = {"secret": "secret", "configmap": "config map"}[match["of"].lower()]
        return f'{kind} "{match["in"]}" has no key {match["key"]}'
    kinds = {"secret": "secret", "configmap": "configmap", "persistentvolumeclaim": "claim"}
    return f'{kinds[match["kind"].lower()]} "{match["name"]}" does not exist'


def _is_gang(job: Object) -> bool:
    spec = job.get("spec") or {}
    total = int(spec.get("completions") or 1)
    return spec.get("completionMode") == "Indexed" and int(spec.get("parallelism") or 1) >= total > 1


def _began(item: Object) -> float | None:
    return seconds((item.get("metadata") or {}).get("creationTimestamp"))


def _namespace(item: Object) -> str:
    return str((item.get("metadata") or {}).get("namespace", ""))


# Asks the cluster, as seldom as that is useful. Nothing here waits for an answer: a list of events or of pods may be
# megabytes, and the same thread hears of every end.

PAUSES: Final = (2.0, 5.0, 15.0, 60.0)
"""Seconds between two questions for the events of one job, longer while it waits."""
SPACING: Final = 0.25
"""Seconds between two questions for events at least, however many jobs wait."""
ALIKE: Final = 1.0
"""Seconds for which pods of a Job that say the same wait for the same."""
RECENT: Final = 1000
"""Explanations that are remembered at most."""
NODES: Final = 60.0
"""Seconds for which an answer about the nodes is good: many nodes and pods are megabytes."""
NODES_AWAITED: Final = 5.0
"""Seconds for which nothing is said of pods without a node, as long as the first answer about the nodes may come."""
_BOUND: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
_NODES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "nodes": ("/api/v1/nodes", {"limit": PAGE}),
    "pods": ("/api/v1/pods", {"fieldSelector": _BOUND, "limit": PAGE}),
    "autoscaler": ("/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status", {}),
    "provisioner": (PROVISIONER, {}),
}
"""What is asked about nodes, by its kind: path and parameters."""


class Explanations:
    """Asks for events and nodes, and says why a job waits. What may not be read is not asked for again."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings) -> None:
        self._cluster = cluster
        self._pools = settings.get("pools", ())
        self._events: dict[str, dict[str, dict[str, Any]]] = {}
        """By the uid of what they are about, and their own."""
        self._asked: dict[str, int] = {}
        """How often the events of something were asked for."""
        self._due: dict[str, float] = {}
        self._next = 0.0
        self._denied: set[str] = set()
        """Kinds of objects that this account may not read."""
        self._inquiries: dict[str, Inquiry] = {}
        """Questions that are not answered: by the uid of what events are about, or the kind of object."""
        self._answers: dict[str, Mapping[str, Any]] = {}
        """Answers about the nodes, by the kind of object."""
        self._recent: dict[tuple[str, ...] | None, tuple[float, Pending]] = {}
        """Explanations by the Job's uid and what a pod of it says, and until when they are good."""
        self._nodes: ClusterNodes | None = None
        self._nodes_due = 0.0
        self._nodes_since = 0.0
        """When the nodes were first asked for, on the monotonic clock."""

    def why(
        self,
        namespace: str,
        job: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        *,
        gang: bool,
        now: float,
        patience: Patience = USUAL,
    ) -> Pending | None:
        """Why a job waits: a Job, or one of its elements with that one's pods; None where it does not.

        `patience`: after how much the wait is given up. Of the elements of a fan-out whose pods say the same, one is
        explained, and the others for a moment like it.
        """
        alike = None if gang or len(pods) != 1 or uid(pods[0]) in self._events else (uid(job), *words_of(pods[0]))
        if alike in self._recent and now < self._recent[alike][0]:
            return self._recent[alike][1]
        # A Job of a thousand elements has an event for each: they say why no pod is there, and nothing of one that is.
        things = (*pods,) if any(not is_deleted(pod) for pod in pods) else (job, *pods)
        for thing in (things[0], *pods[:1]):
            self._ask_events(namespace, thing, now)
        events = [event for thing in things for event in self._events.get(uid(thing), {}).values()]
        nodes = None
        if any(denied_condition(pod, "PodScheduled") for pod in pods):
            nodes = self._cluster_nodes(now)
            awaited = any(kind in self._inquiries for kind in _NODES)
            if nodes is None and awaited and now < self._nodes_since + NODES_AWAITED:
                return None
        pending = why_pending(job, pods, events, nodes, gang=gang, now=time.time(), patience=patience)
        if alike is not None and uid(pods[0]) not in self._events and pending is not None and not pending.hopeless:
            if len(self._recent) >= RECENT:
                self._recent.clear()
            self._recent[alike] = now + ALIKE, pending
        return pending

    def forget(self, *things: Mapping[str, Any]) -> None:
        """Let go of what is known of objects."""
        for key in map(uid, things):
            self._events.pop(key, None)
            self._asked.pop(key, None)
            self._due.pop(key, None)
            if key in self._inquiries:
                self._inquiries.pop(key).close()

    def _ask_events(self, namespace: str, thing: Mapping[str, Any], now: float) -> None:
        key = uid(thing)
        if key in self._inquiries:
            answer = self._take(key, "events")
            if answer is not None:
                known = self._events.setdefault(key, {})
                known.update({uid(event): event for event in answer.get("items") or ()})
            return
        if "events" in self._denied or now < self._next:
            return
        if key not in self._due:
            self._due[key] = now + PAUSES[0]  # most jobs start before there is anything to say
            return
        if now < self._due[key]:
            return
        times = self._asked[key] = self._asked.get(key, 0) + 1
        self._due[key] = now + PAUSES[min(times, len(PAUSES) - 1)]
        self._next = now + SPACING
        path = f"/api/v1/namespaces/{namespace}/events"
        self._inquiries[key] = self._cluster.inquire(path, fieldSelector=f"involvedObject.uid={key}")

    def _cluster_nodes(self, now: float) -> ClusterNodes | None:
        if now >= self._nodes_due:
            self._nodes_due = now + NODES
            self._nodes_since = self._nodes_since or now
            self._answers.clear()
            for kind, (path, params) in _NODES.items():
                if kind not in self._denied and kind not in self._inquiries:
                    self._inquiries[kind] = self._cluster.inquire(path, **params)
        asked = [kind for kind in _NODES if kind in self._inquiries]
        for kind in asked:
            answer = self._take(kind, kind)
            if answer is not None:
                self._add(kind, answer)
            elif kind not in self._inquiries:
                self._answers.pop(kind, None)  # some pages are not all
        if asked and not any(kind in self._inquiries for kind in _NODES):
            nodes, pods, status, provisioner = (self._answers.get(kind) for kind in _NODES)
            self._nodes = None
            if nodes is not None:
                self._nodes = cluster_nodes(
                    nodes.get("items") or (),
                    None if pods is None else pods.get("items") or (),
                    pools=self._pools,
                    status=str(((status or {}).get("data") or {}).get("status") or ""),
                    provisioned=provisioner is not None,
                )
            self._answers.clear()
        return self._nodes

    def _add(self, kind: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer about the nodes, and ask for its next page. Of a thousand pods, each of which carries its
        program, only what they take of their nodes is kept."""
        items = [_taken(one) if kind == "pods" else one for one in answer.get("items") or ()]
        known = self._answers.get(kind, {}).get("items") or []
        self._answers[kind] = {**answer, "items": [*known, *items]}
        token = next_page(answer)
        if token:
            path, params = _NODES[kind]
            self._inquiries[kind] = self._cluster.inquire(path, **params, **{"continue": token})

    def _take(self, key: str, kind: str) -> Mapping[str, Any] | None:
        """An answer; None while it is not there, or where none came. What is refused is not asked for again."""
        try:
            text = self._inquiries[key].take()
            if text is None:
                return None
            del self._inquiries[key]
            return parse_object(text)
        except Away:
            del self._inquiries[key]
        except ApiError as error:
            del self._inquiries[key]
            if error.status == 401:
                self._cluster.access.renew()
            elif error.status != 410:  # a page came too late
                self._denied.add(kind)
        except SettingsError:
            pass  # no JSON: something between here and the server answers
        return None


def _taken(pod: Mapping[str, Any]) -> dict[str, Any]:
    """What `cluster_nodes` reads of a pod."""
    spec = pod.get("spec") or {}
    kept: dict[str, Any] = {name: spec[name] for name in ("nodeName", "overhead", "resources") if name in spec}
    for name in ("containers", "initContainers"):
        kept[name] = [
            {field: one[field] for field in ("resources", "restartPolicy") if field in one}
            for one in spec.get(name) or ()
        ]
    return {"spec": kept}
