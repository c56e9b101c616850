"""How a Job ended and why, from the objects of the API. Pure.

The caller hands over, as plain dicts: the Job in its last state; all pods of that Job (by the uid of their owner) that
any watch or list has shown, each in its last state, also those that are deleted meanwhile; and with `gone` the uids of
the objects, Job or pods, whose DELETED event has been seen. The functions may be called after each event, in any order
of events between different watches: they return None until the end is certain, and then always the same. A Job whose
pods are not shown as ended yet, or not at all, is not certain: `settled` says that nothing more will come of them,
because the caller has listed them after the Job's end, or waited long enough.

A Job's conditions say that it ended, its pods why. What is read first decides: the Job's condition, the pod's
`DisruptionTarget`, the pod's `status.reason`, its `deletionTimestamp`, and at last how its containers ended.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Final, Literal, Mapping, Sequence

import attrs

from stoker.backends.kubernetes.objects import (
    Object,
    condition,
    creation,
    denied_condition,
    failed_init,
    has_ended,
    has_index,
    index_of,
    is_deleted,
    main_container,
    main_name,
    main_status,
    newest,
    node_of,
    phase,
    seconds,
    uid,
)
from stoker.backends.kubernetes.objects import name as name_of
from stoker.core.status import (
    CANCELLED,
    CRASHED,
    DISK_FULL,
    HOST_OOM,
    KILLED,
    NO_GPU,
    NODE_LOST,
    PREEMPTED,
    REFUSED,
    SETUP_FAILED,
    SHM_TOO_SMALL,
    TIMED_OUT,
    USER_ERROR,
    WORKER_LOST,
)

Outcome = Literal["succeeded", "failed", "cancelled", "interrupted"]

_SIGNALS: Final[Mapping[int, str]] = {
    132: "an illegal instruction (SIGILL)",
    134: "SIGABRT",
    135: "SIGBUS",
    136: "SIGFPE",
    139: "a segmentation fault (SIGSEGV)",
}
"""Exit codes by which a process died of its own making: 128 and the signal's number."""
_KILLED: Final = 137
_TERMINATED: Final = 143
_START_REASONS: Final = ("StartError", "ContainerCannotRun", "RunContainerError")
_DISRUPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    # https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    "PreemptionByScheduler": (PREEMPTED, "preempted by a higher priority pod"),
    "EvictionByEvictionAPI": (PREEMPTED, "evicted (node drained)"),
    "DeletionByTaintManager": (NODE_LOST, "the node{node} stopped answering, or was tainted against the pods on it"),
    "DeletionByPodGC": (NODE_LOST, "the node{node} was removed from the cluster"),
    "TerminationByKubelet": (NODE_LOST, "ended by the node{node}: it shuts down"),
}
"""The reason of `DisruptionTarget` → cause and words. None of them is the step's own fault."""
_ADVICE: Final[Mapping[str, str]] = {
    PREEMPTED: "a priority class keeps it from being preempted; checkpoints let it go on where it was",
    NODE_LOST: "checkpoints let it go on where it was",
}
_ACTIONS: Final[Mapping[str, Literal["ignored", "fails"]]] = {
    "Ignore": "ignored", "FailJob": "fails", "FailIndex": "fails",
}  # fmt: skip
_EMPTY_DIR: Final = re.compile(r'EmptyDir volume "(?P<volume>[^"]+)" exceeds the limit "(?P<limit>[^"]+)"')
_OWN_STORAGE: Final = re.compile(
    r"ephemeral local storage usage exceeds the total limit of containers (?P<limit>\S+?)\.?\s*$"
    r"|Container (?P<container>\S+) exceeded its local ephemeral storage limit \"(?P<own>[^\"]+)\""
)
_LOW: Final = re.compile(r"node was low on resource: (?P<resource>[\w-]+)")
_DEVICES: Final = re.compile(
    r"devices unavailable for (?P<resource>\S+)\. Requested: (?P<wanted>\d+), Available: (?P<there>\d+)"
)
_NO_FILE: Final = re.compile(r'exec: "(?P<path>[^"]+)": (?:stat \S+: no such file|executable file not found)')
_NO_RIGHT: Final = re.compile(r'exec: "(?P<path>[^"]+)": permission denied')
_FAILED_POD: Final = re.compile(r"for pod [^/\s]+/(?P<pod>\S+) failed")


@attrs.frozen(kw_only=True)
class JobEnd:
    """How a Job, or one pod of it, ended."""

    state: Outcome
    """"interrupted": the platform or a person took the pod away, and the step's code is not to blame."""
    cause: str = ""
    """A word of `core.status`. Of "succeeded" it is empty, or says how the pod was being taken away when it left with
    exit code 0: that counts where the step left no result."""
    message: str = ""
    """What happened and what to do, in words; of "succeeded" how it went."""
    index: int | None = None
    """The rank that decided, or the element; None for a Job without indexes."""
    exit_code: int | None = None
    free: bool = False
    """Whether the end uses up none of the user's retries: preempted, evicted by a drain, the node lost."""
    pod: str = ""
    """The name of the pod that decided; empty where none did."""
    node: str = ""
    """The node where that pod ran."""
    last_words: str = ""
    """What the container left as its termination message, or the end of its log where the pod asks for that."""
    hint: str = ""
    """Of "succeeded": what the user should know all the same, such as a child process killed for memory."""


def end_of(job: Object, pods: Sequence[Object], *, gone: Collection[str] = (), settled: bool = False) -> JobEnd | None:
    """How a Job ended as a whole, be it one pod or a gang; None as long as it has not, or the end is not certain."""
    succeeded = condition(job, "Complete") or condition(job, "SuccessCriteriaMet")
    if succeeded is not None:
        return _success(job, pods)
    failed = condition(job, "Failed")
    target = failed or condition(job, "FailureTarget")
    if target is not None:
        # The controller says why at once, and Failed when the last pod is gone: as long as one runs, nothing is over.
        if failed is not None and target.get("reason") == "DeadlineExceeded":
            return _deadline(job, newest(pods))
        if not (settled and failed is not None) and not _all_are_shown(job, pods, gone):
            return None
        return _failure(job, target, pods, gone)
    if _completions(job) == 1:
        end = _pod_decides(job, newest(pods), pods, gone, per_index=False)
        if end is not None:
            return end
    return _deletion(job, pods, gone, settled=settled)


def element_end(
    job: Object, index: int, pods: Sequence[Object], *, gone: Collection[str] = (), settled: bool = False
) -> JobEnd | None:
    """How one element of a fan-out ended, an Indexed Job whose elements know nothing of each other.

    `pods` are those of this index alone. An element ends before its Job does.
    """
    status = job.get("status") or {}
    last = newest(pods)
    if condition(job, "Complete") or has_index(status.get("completedIndexes", ""), index):
        return attrs.evolve(_success(job, pods), index=index)
    end = _pod_decides(job, last, pods, gone, per_index=True)
    shown = settled or (last is not None and has_ended(last, gone) and phase(last) != "Succeeded")
    failed = condition(job, "Failed")
    target = failed or condition(job, "FailureTarget")
    # The whole Job may be ended: by its deadline, or because too many others failed.
    late = target is not None and target.get("reason") == "DeadlineExceeded" and (failed is not None or shown)
    if end is None and shown and (has_index(status.get("failedIndexes") or "", index) or (target and not late)):
        end = _blamed(job, last, pods, gone) if last is not None else _unseen(job)
    elif end is None and late:
        end = _deadline(job, last)
    end = end or _deletion(job, pods, gone, settled=settled)
    return None if end is None else attrs.evolve(end, index=index)


# What the Job says


def _success(job: Object, pods: Sequence[Object]) -> JobEnd:
    done = [pod for pod in pods if phase(pod) == "Succeeded"]
    last = newest(done)
    end = _pod_success(last) if last is not None else JobEnd(state="succeeded", message="finished")
    hints = [hint for hint in map(_hint, done) if hint]
    end = attrs.evolve(end, hint=hints[0] if hints else "")
    if _completions(job) != 1:
        return attrs.evolve(end, index=None, pod="", node="", exit_code=0)
    if len(pods) > 1:
        return attrs.evolve(end, message=f"attempt {len(pods)} succeeded")
    return end


def _pod_success(pod: Object) -> JobEnd:
    restarts = int((main_status(pod) or {}).get("restartCount") or 0)
    times = "once" if restarts == 1 else "twice" if restarts == 2 else f"{restarts} times"
    disruption = condition(pod, "DisruptionTarget")
    taken = _disrupted(pod, disruption) if disruption is not None else None
    how = f"finished after it was restarted in place {times}" if restarts else "finished"
    return JobEnd(
        state="succeeded",
        message=how if taken is None else taken.message,
        cause="" if taken is None else taken.cause,
        free=taken is not None and taken.free,
        index=index_of(pod),
        exit_code=0,
        hint=_hint(pod),
        **_whose(pod),
    )


def _hint(pod: Object) -> str:
    """The kernel's killing of a child process, which the container outlived."""
    ended = _terminated(main_status(pod))
    if ended is not None and ended.get("reason") == "OOMKilled" and not ended.get("exitCode"):
        return f"a child process was killed for memory{_limit_words(pod, ', whose limit is {}')}"
    return ""


def _failure(job: Object, target: Object, pods: Sequence[Object], gone: Collection[str]) -> JobEnd:
    if target.get("reason") == "DeadlineExceeded":
        return _deadline(job, newest(pods))
    culprit = _culprit(job, target, pods, gone)
    if culprit is None:
        return _unseen(job, target)
    end = _blamed(job, culprit, pods, gone)
    if _completions(job) == 1:
        return end
    index = index_of(culprit)
    finished = (job.get("status") or {}).get("completedIndexes", "")
    others = "the others finished" if target.get("reason") == "FailedIndexes" and finished else "the others were ended"
    others = "the other ranks were stopped" if others.endswith("ended") else others
    what, semicolon, advice = end.message.partition("; ")
    what = what.removeprefix("the step ")
    link = " " if what.startswith(("failed", "needed", "wrote", "ran")) else ": "
    return attrs.evolve(end, index=index, message=f"rank {index}{link}{what}; {others}{semicolon}{advice}")


def _deadline(job: Object, pod: Object | None) -> JobEnd:
    message = f"{_too_long(job)}; time in the queue counts, too: raise the limit, or the step's timeout"
    return attrs.evolve(_failed(TIMED_OUT, message), **_whose(pod))


def _too_long(thing: Object) -> str:
    limit = (thing.get("spec") or {}).get("activeDeadlineSeconds")
    return f"the step ran longer than its limit{f' ({limit} s)' if limit else ''}"


def _unseen(job: Object, target: Object | None = None) -> JobEnd:
    """The end of a Job without a pod that tells more."""
    said = ": ".join(filter(None, (str((target or {}).get("reason", "")), str((target or {}).get("message", "")))))
    why = f" ({said})" if said else ""
    return _failed(WORKER_LOST, f"Job {name_of(job)} failed, and none of its pods is left to say why{why}")


def _blamed(job: Object, pod: Object, pods: Sequence[Object], gone: Collection[str]) -> JobEnd:
    """What the decisive pod says, with the number of attempts that the Job made of it."""
    end = _reading(pod) if _is_shown(pod) or uid(pod) not in gone else _vanished(pod)
    failures = sum(has_ended(each, gone) and _counts(job, each) != "ignored" for each in pods)
    if failures > 1 and _completions(job) == 1 and end.message.startswith("the step's code failed with"):
        words = end.message.replace("the step's code failed with", f"the step's code failed {failures} times with", 1)
        return attrs.evolve(end, message=words)
    return end


def _culprit(job: Object, target: Object, pods: Sequence[Object], gone: Collection[str]) -> Object | None:
    """The pod that the Job failed of: the first that failed by itself; others are ended because of it."""
    ended = [pod for pod in pods if has_ended(pod, gone) and phase(pod) != "Succeeded"] or list(pods)
    failed_indexes = (job.get("status") or {}).get("failedIndexes") or ""
    named = _FAILED_POD.search(str(target.get("message", "")))
    for choice in (
        [pod for pod in ended if named is not None and name_of(pod) == named["pod"]],
        [pod for pod in ended if failed_indexes and has_index(failed_indexes, index_of(pod) or 0)],
        ended,
    ):
        # Of an index that was tried several times the last one counts.
        last = {index_of(pod): pod for pod in sorted(choice, key=creation)}
        counted = [pod for pod in last.values() if _counts(job, pod) != "ignored"] or list(last.values())
        if counted:
            return min(counted, key=lambda pod: (not _is_shown(pod), *_order_of_blame(pod)))
    return None


def _is_shown(pod: Object) -> bool:
    """Whether what is known of a pod tells how it ends: a pod may go between two lists, with no last word."""
    return phase(pod) in ("Succeeded", "Failed") or is_deleted(pod) or condition(pod, "DisruptionTarget") is not None


def _vanished(pod: Object) -> JobEnd:
    """The end of a pod that was seen to run, and then was gone: one that fails by itself stays."""
    message = (
        f"the pod was removed before its end was seen: its node{_named(pod)} was lost, it was preempted, or somebody "
        "deleted it"
    )
    return JobEnd(state="interrupted", cause=KILLED, message=message, index=index_of(pod), **_whose(pod))


def _order_of_blame(pod: Object) -> tuple[int, float, int, int]:
    disruption = condition(pod, "DisruptionTarget")
    own = disruption is not None or bool((pod.get("status") or {}).get("reason")) or not is_deleted(pod)
    moment = seconds(disruption.get("lastTransitionTime")) if disruption is not None else _end_moment(pod)
    # Times have whole seconds: of several in one second the one that says more comes first.
    telling = _reading(pod).cause not in (USER_ERROR, KILLED, CRASHED, WORKER_LOST)
    return (not own, moment if moment is not None else float("inf"), not telling, index_of(pod) or 0)


def _all_are_shown(job: Object, pods: Sequence[Object], gone: Collection[str]) -> bool:
    """Whether the pods that a failed Job counts are all known, and shown as ended."""
    counted = [pod for pod in pods if has_ended(pod, gone) and phase(pod) != "Succeeded"]
    status = job.get("status") or {}
    uncounted = len((status.get("uncountedTerminatedPods") or {}).get("failed") or ())
    return (
        bool(counted)
        and all(has_ended(pod, gone) for pod in pods)
        and len(counted) >= max(int(status.get("failed") or 0), uncounted)
    )


def _deletion(job: Object, pods: Sequence[Object], gone: Collection[str], *, settled: bool) -> JobEnd | None:
    """The end of a Job that was deleted; None as long as anything of it runs, or its pods are not known."""
    job_gone = uid(job) in gone
    if not (job_gone or is_deleted(job)):
        return None
    active = int((job.get("status") or {}).get("active") or 0)
    if not all(has_ended(pod, gone) for pod in pods) or (not pods and not (job_gone and (settled or not active))):
        return None
    last = newest(pods)
    if last is not None and not is_deleted(last):
        # The pods were left behind by the deletion, and ended by themselves.
        return _pod_success(last) if phase(last) == "Succeeded" else _reading(last)
    ended = None if last is None else _terminated(main_status(last))
    forced = " (killed after the grace period)" if ended is not None and ended.get("exitCode") == _KILLED else ""
    message = f"cancelled{forced}: Job {name_of(job)} was deleted"
    return JobEnd(state="cancelled", cause=CANCELLED, message=message, exit_code=_exit_code(ended), **_whose(last))


# What a pod decides before its Job says so


def _pod_decides(
    job: Object, pod: Object | None, pods: Sequence[Object], gone: Collection[str], *, per_index: bool
) -> JobEnd | None:
    """The end of a Job of one pod, or of one element, where what the controller will make of the pod is certain."""
    if pod is None or uid(job) in gone or is_deleted(job) or condition(job, "FailureTarget"):
        return None
    if phase(pod) == "Succeeded" and not is_deleted(pod):
        return _pod_success(pod) if per_index else _success(job, pods)
    # Whoever deleted it may have deleted its Job, or suspended it: the Job has the word.
    if phase(pod) != "Failed" or _is_suspended(job) or (is_deleted(pod) and not condition(pod, "DisruptionTarget")):
        return None
    spec = job.get("spec") or {}
    limit = spec.get("backoffLimitPerIndex") if per_index else spec.get("backoffLimit")
    counts = _counts(job, pod)
    if counts == "fails" or (counts == "counted" and limit == 0):
        return _blamed(job, pod, pods, gone)
    return None


def _counts(job: Object, pod: Object) -> Literal["ignored", "counted", "fails"]:
    """What the Job's podFailurePolicy makes of a failed pod: the first rule that fits.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
    """
    rules = (((job.get("spec") or {}).get("podFailurePolicy")) or {}).get("rules") or ()
    for rule in rules:
        if _fits(rule, pod):
            return _ACTIONS.get(rule.get("action", ""), "counted")
    return "counted"


def _fits(rule: Object, pod: Object) -> bool:
    codes = rule.get("onExitCodes")
    if codes:
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            ended = _terminated(status)
            code = 0 if ended is None else ended.get("exitCode") or 0
            if code and codes.get("containerName") in (None, "", status.get("name")):
                listed = code in (codes.get("values") or ())
                if listed == (codes.get("operator") == "In"):
                    return True
        return False
    for wanted in rule.get("onPodConditions") or ():
        find = condition if wanted.get("status", "True") == "True" else denied_condition
        if find(pod, str(wanted.get("type"))) is not None:
            return True
    return False


# What a pod says


def _reading(pod: Object) -> JobEnd:
    """How a pod ended that did not succeed, read in the order in which its parts are to be believed."""
    disruption = condition(pod, "DisruptionTarget")
    status = pod.get("status") or {}
    reason, said = str(status.get("reason") or ""), " ".join(str(status.get("message") or "").split())
    if reason == "Evicted":
        end = _evicted(pod, said, disrupted=disruption is not None)
    elif disruption is not None:
        end = _disrupted(pod, disruption)
    elif reason == "DeadlineExceeded":
        end = _failed(TIMED_OUT, f"{_too_long(pod)}; raise the limit, or the step's timeout")
    elif reason in ("NodeLost", "NodeShutdown", "Shutdown", "Terminated"):
        message = f"the node{_named(pod)} shut down or stopped answering"
        end = JobEnd(state="interrupted", cause=NODE_LOST, message=f"{message}; {_ADVICE[NODE_LOST]}", free=True)
    elif reason and not status.get("containerStatuses"):
        end = _rejected(pod, reason, said)
    elif is_deleted(pod):
        message = "the pod was deleted, by a person or a program and not by its Job"
        end = JobEnd(state="interrupted", cause=KILLED, message=message)
    else:
        end = _containers(pod, reason, said)
    ended = _terminated(main_status(pod))
    return attrs.evolve(
        end,
        index=index_of(pod),
        exit_code=end.exit_code if end.exit_code is not None else _exit_code(ended),
        **_whose(pod),
        last_words="" if ended is None else str(ended.get("message") or ""),
    )


def _disrupted(pod: Object, disruption: Object) -> JobEnd:
    reason = str(disruption.get("reason", ""))
    said = " ".join(str(disruption.get("message") or "").split())
    cause, words = _DISRUPTIONS.get(reason, (PREEMPTED, f"taken away by the platform ({reason}: {said})"))
    if reason == "DeletionByPodGC" and "no longer exists" not in said:
        words = f"given up by the cluster because of its node{{node}} ({said})"
    message = words.replace("{node}", _named(pod))
    return JobEnd(state="interrupted", cause=cause, message=f"{message}; {_ADVICE[cause]}", free=True)


def _evicted(pod: Object, said: str, *, disrupted: bool) -> JobEnd:
    """A pod that the kubelet ended: for its own limits, or because the node ran short of something."""
    volume, own, low = _EMPTY_DIR.search(said), _OWN_STORAGE.search(said), _LOW.search(said)
    resource = "" if low is None else low["resource"]
    if volume is not None:
        mount = _mount_of(pod, volume["volume"])
        where, shared = f" ({mount})" if mount else "", mount == "/dev/shm"
        fix = "raise shared_memory" if shared else "raise the limit, or write less there"
        words = f'volume "{volume["volume"]}"{where} is larger than its limit ({volume["limit"]}); {fix}'
        return _failed(SHM_TOO_SMALL if shared else DISK_FULL, words)
    if own is not None:
        words = f"the step wrote more than its ephemeral-storage limit ({own['limit'] or own['own']})"
        return _failed(DISK_FULL, f"{words}; ask for more disk, or write to a volume")
    if resource == "memory":
        words = f"evicted: the node{_named(pod)} ran short of memory, and the step held more than it had asked for"
        return _failed(HOST_OOM, f"{words} ({said}); ask for as much memory as it needs")
    if resource in ("ephemeral-storage", "nodefs", "imagefs", "inodes"):
        words = f"evicted: the disk of the node{_named(pod)} ran full ({said})"
        return _failed(DISK_FULL, f"{words}; ask for the disk that the step needs, or write to a volume")
    words = f"evicted by the node{_named(pod)}: {said or 'it does not say why'}"
    return JobEnd(state="interrupted", cause=PREEMPTED if disrupted else KILLED, message=words, free=disrupted)


def _rejected(pod: Object, reason: str, said: str) -> JobEnd:
    """A pod that its node did not take: no container of it ever was."""
    devices = _DEVICES.search(said)
    if devices is not None:
        message = (
            f"the node{_named(pod)} could not give {devices['wanted']} × {devices['resource']}: "
            f"it has {devices['there']} ({reason}); its device plugin may have restarted, or a device be faulty"
        )
        return _failed(NO_GPU, message)
    message = f"the node{_named(pod)} refused the pod ({reason}): {said}"
    if reason.startswith("OutOf"):
        message = f"the node{_named(pod)} had no {reason.removeprefix('OutOf')} left when the pod came to it: {said}"
    return _failed(SETUP_FAILED, message)


def _containers(pod: Object, reason: str, said: str) -> JobEnd:
    init = failed_init(pod)
    if init is not None:
        failure = _terminated(init) or {}
        code = failure.get("exitCode")
        killed = failure.get("reason") == "OOMKilled"
        why = " for want of memory" if killed else ""
        words = f'init container "{init.get("name")}" failed with exit code {code}{why}'
        log = f"see its log: kubectl logs {name_of(pod)} -c {init['name']}"
        return _failed(HOST_OOM if killed else SETUP_FAILED, f"{words}; {log}", exit_code=code)
    ended = _terminated(main_status(pod))
    if ended is None:
        words = ": ".join(filter(None, (reason, said))) or "it does not say why"
        return _failed(WORKER_LOST, f"pod {name_of(pod)} failed: {words}")
    code = _exit_code(ended)
    if code is None:
        words = f"how container {main_name(pod)} of pod {name_of(pod)} ended is not known"
        why = " ".join(str(ended.get("message") or "").split())
        return _failed(WORKER_LOST, f"{words}{f': {why}' if why else ''}")
    if code and ended.get("reason") == "OOMKilled":
        return _out_of_memory(pod, code)
    if ended.get("reason") in _START_REASONS:
        return _not_started(pod, str(ended.get("message") or ""))
    return _exit(pod, code, int(ended.get("signal") or 0))


def _out_of_memory(pod: Object, code: int) -> JobEnd:
    fix = "ask for more memory"
    if code == _KILLED:
        message = f"the step needed more than its memory limit{_limit_words(pod, ' ({})')}; {fix}"
    else:
        limit = _limit_words(pod, ", whose limit is {}")
        message = f"the step failed with exit code {code} after a child process was killed for memory{limit}; {fix}"
    return _failed(HOST_OOM, message, exit_code=code)


def _not_started(pod: Object, said: str) -> JobEnd:
    from stoker.worker.signatures import find_signature

    said = " ".join(said.split())
    row = find_signature([said], said)  # the GPU's runtime refuses a container in the same place
    if row is not None:
        return _failed(row[0].cause, f"{row[0].why}: {row[1]}; {row[0].advice}")
    no_file, no_right = _NO_FILE.search(said), _NO_RIGHT.search(said)
    image = main_container(pod).get("image", "")
    if "exec format error" in said:
        message = (
            f"the image {image} is built for another architecture than the node{_named(pod)} has (exec format error); "
            "build it for that one, or choose nodes with the label kubernetes.io/arch"
        )
    elif no_file is not None:
        message = f"the command {no_file['path']} does not exist in the image {image}; name another image or command"
    elif no_right is not None:
        message = f"the command is not executable: {no_right['path']} in the image {image}; chmod +x it in the image"
    else:
        message = f"the container could not be started: {said}"
    return _failed(REFUSED, message)


def _exit(pod: Object, code: int, signal: int) -> JobEnd:
    cause = KILLED
    if code in _SIGNALS:
        cause, message = CRASHED, f"the step's process crashed by {_SIGNALS[code]} (exit code {code})"
    elif code == _KILLED or signal == _KILLED - 128:
        message = f"the process was killed (exit code {code}), not by the container's memory limit; look who did it"
    elif code == _TERMINATED:
        message = f"the process was ended by SIGTERM (exit code {code}), and nothing says by whom"
    elif code == 0:
        cause, message = WORKER_LOST, f"container {main_name(pod)} left with exit code 0 in a pod that failed"
    else:
        detail = {126: ": command not executable", 127: ": command not found"}.get(code, "")
        cause, message = USER_ERROR, f"the step's code failed with exit code {code}{detail}; see the end of its log"
    return _failed(cause, message, exit_code=code)


# Small readers


def _failed(cause: str, message: str, *, exit_code: int | None = None) -> JobEnd:
    return JobEnd(state="failed", cause=cause, message=message, exit_code=exit_code)


def _whose(pod: Object | None) -> dict[str, Any]:
    """The fields of an end that say which pod it is of, and where that was."""
    return {} if pod is None else {"pod": name_of(pod), "node": node_of(pod)}


def _terminated(status: Object | None) -> Object | None:
    return ((status or {}).get("state") or {}).get("terminated") or None


def _exit_code(ended: Object | None) -> int | None:
    """None where it is not known: of a container that it has lost sight of, the kubelet makes up 137."""
    code = None if ended is None or ended.get("reason") == "ContainerStatusUnknown" else ended.get("exitCode")
    return None if code is None else int(code)


def _end_moment(pod: Object) -> float | None:
    ended = _terminated(main_status(pod))
    moment = seconds(ended.get("finishedAt")) if ended is not None else None
    if moment is None:
        disruption = condition(pod, "DisruptionTarget")
        moment = seconds(disruption.get("lastTransitionTime")) if disruption is not None else None
    return moment if moment is not None else seconds((pod.get("metadata") or {}).get("deletionTimestamp"))


def _limit_words(pod: Object, template: str) -> str:
    limit = ((main_container(pod).get("resources") or {}).get("limits") or {}).get("memory")
    return template.format(limit) if limit else ""


def _mount_of(pod: Object, volume: str) -> str:
    mounts = main_container(pod).get("volumeMounts") or ()
    return next((str(each.get("mountPath", "")) for each in mounts if each.get("name") == volume), "")


def _named(pod: Object) -> str:
    return f" {node_of(pod)}" if node_of(pod) else ""


def _completions(job: Object) -> int | None:
    """How many pods must succeed; None where the Job leaves it open."""
    spec = job.get("spec") or {}
    number = spec.get("completions")
    if number is None:
        return 1 if spec.get("parallelism") in (None, 1) else None
    return int(number)


def _is_suspended(job: Object) -> bool:
    return bool((job.get("spec") or {}).get("suspend")) or condition(job, "Suspended") is not None
