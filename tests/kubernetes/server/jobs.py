"""The Job controller: pods for each Job, back-off, failure policies, and the conditions at the end."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field, frozen
from tests.kubernetes.server.admission import Admission
from tests.kubernetes.server.deletion import Deletion
from tests.kubernetes.server.failures import Refused
from tests.kubernetes.server.objects import FINISHED, JOBS, PODS, Object, condition_of, copied, name_ending, seconds_of
from tests.kubernetes.server.store import Change
from tests.kubernetes.server.world import Rounds, World

TRACKING = "batch.kubernetes.io/job-tracking"
"""Finalizer by which a pod stays until it is counted."""
INDEX = "batch.kubernetes.io/job-completion-index"
BACK_OFF = 10.0
"""Seconds until the first pod that failed is replaced; doubled with each further one."""
LONGEST_BACK_OFF = 600.0
CREATED_AT_ONCE = 50
"""Pods that one sync creates at most; the next one follows at once, and in between the server answers requests."""
SYNC = 1.0
"""Seconds for which news of pods are gathered."""


@frozen
class Verdict:
    """What ends a Job."""

    type: str
    """The condition that says so before the last one: "SuccessCriteriaMet" or "FailureTarget"."""
    reason: str
    message: str

    @property
    def last(self) -> str:
        """The condition at the very end."""
        return "Complete" if self.type == "SuccessCriteriaMet" else "Failed"


REACHED = Verdict("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods")
DEADLINE = Verdict("FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline")
BACKOFF_LIMIT = Verdict("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
FAILED_INDEXES = Verdict("FailureTarget", "FailedIndexes", "Job has failed indexes")
TOO_MANY_INDEXES = Verdict(
    "FailureTarget", "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
)


@define
class Progress:
    """What one sync finds out about a Job."""

    job: Object
    active: list[Object]
    """Pods that have not ended and are not being deleted."""
    terminating: list[Object]
    succeeded: list[Object]
    """Pods that have succeeded and are not counted yet."""
    failed: list[Object]
    """Pods that count as failures and are not counted yet."""
    ignored: list[Object]
    """Pods that have failed, but not by the Job's fault."""
    completed: set[int]
    """Indexes that have succeeded."""
    failed_indexes: set[int]
    verdict: Verdict | None = None

    @property
    def indexed(self) -> bool:
        """Whether the Job's pods have indexes."""
        return bool(self.job["spec"]["completionMode"] == "Indexed")

    def status(self, uncounted: bool) -> Object:
        """The status to write; `uncounted` while the finalizers of the pods that ended are still there."""
        before, spec = self.job["status"], self.job["spec"]
        status: Object = {}
        if conditions := before.get("conditions"):
            status["conditions"] = conditions
        if "startTime" in before:
            status["startTime"] = before["startTime"]
        if self.active:
            status["active"] = len(self.active)
        status["terminating"] = len(self.terminating)
        if "backoffLimitPerIndex" in spec:
            status["failedIndexes"] = ranges(self.failed_indexes)
        waiting: Object = {}
        for word, pods in (("succeeded", [] if self.indexed else self.succeeded), ("failed", self.failed)):
            if uncounted and pods:
                waiting[word] = [pod["metadata"]["uid"] for pod in pods]
        status["uncountedTerminatedPods"] = waiting
        status["ready"] = sum(_is_ready(pod) for pod in self.active)
        succeeded = before.get("succeeded", 0)
        if self.indexed:
            succeeded = len(self.completed)
        elif not uncounted:
            succeeded += len(self.succeeded)
        failed = before.get("failed", 0) + (0 if uncounted else len(self.failed))
        status |= {name: value for name, value in (("succeeded", succeeded), ("failed", failed)) if value}
        if self.completed:
            status["completedIndexes"] = ranges(self.completed)
        return status


@define(eq=False)
class JobController:
    """Works on all Jobs."""

    world: World
    admission: Admission
    deletion: Deletion
    _rounds: Rounds = field(init=False)
    _jobs: dict[str, Object] = field(factory=dict)
    _failures: dict[str, list[float]] = field(factory=dict)
    """When the pods of a Job, or of one of its indexes, failed since the last success; in seconds since 1970."""
    _refusals: dict[str, int] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._rounds = Rounds(self._sync)
        self.world.store.listen(self._heard)

    def forget(self) -> None:
        """Stop the work on all Jobs."""
        self._rounds.forget()
        self._jobs.clear()
        self._failures.clear()
        self._refusals.clear()

    def _heard(self, change: Change) -> None:
        metadata = change.object["metadata"]
        if change.resource is JOBS:
            uid = metadata["uid"]
            self._jobs[uid] = change.object
            before = (change.before or {}).get("metadata", {}).get("generation")
            if change.type == "DELETED" or before != metadata["generation"]:
                self._rounds.ask(uid)
        elif change.resource is PODS:
            for reference in metadata.get("ownerReferences", []):
                if reference["uid"] in self._jobs and _tells(change):
                    self._rounds.ask(reference["uid"], self.world.pace(SYNC))

    def _sync(self, uid: str) -> None:
        store = self.world.store
        known = self._jobs.get(uid)
        if known is None:
            return  # it went after this round was asked for
        job = store.current(JOBS, known)
        pods = store.controlled_by(PODS, uid)
        if job is None:
            self._let_go(pods)
            self._jobs.pop(uid, None)
            return
        if condition_of(job, "Complete") or condition_of(job, "Failed"):
            self._let_go(pods)
            self._expire(job)
            return
        if job["metadata"].get("deletionTimestamp"):
            self._write(job, self._progress(job, pods).status(uncounted=False))
            self._let_go(pods)
            return
        progress = self._progress(job, pods)
        if progress.verdict is None:
            self._go_on(progress)
        if progress.verdict is not None or progress.failed or progress.succeeded or progress.ignored:
            self._settle(progress)

    def _progress(self, job: Object, pods: list[Object]) -> Progress:
        spec, status = job["spec"], job["status"]
        replaced_at_once = spec["podReplacementPolicy"] == "TerminatingOrFailed"
        ended = [pod for pod in pods if pod["status"]["phase"] in FINISHED]
        open = [pod for pod in pods if pod["status"]["phase"] not in FINISHED]
        terminating = [pod for pod in open if pod["metadata"].get("deletionTimestamp")]
        active = [pod for pod in open if not pod["metadata"].get("deletionTimestamp")]
        tracked = [pod for pod in ended if TRACKING in pod["metadata"].get("finalizers", [])]
        progress = Progress(
            job,
            active,
            terminating,
            succeeded=[pod for pod in tracked if pod["status"]["phase"] == "Succeeded"],
            failed=[],
            ignored=[],
            completed=numbers(status.get("completedIndexes", "")),
            failed_indexes=numbers(status.get("failedIndexes", "")),
            verdict=_verdict_of(job),
        )
        for pod in tracked:
            if pod["status"]["phase"] == "Failed":
                self._judge(progress, pod)
        if replaced_at_once:
            progress.failed += [pod for pod in terminating if TRACKING in pod["metadata"].get("finalizers", [])]
        if progress.indexed:
            progress.completed |= {index_of(pod) for pod in progress.succeeded}
        if progress.verdict is None:
            progress.verdict = self._verdict(progress)
        return progress

    def _judge(self, progress: Progress, pod: Object) -> None:
        """Count a failed pod by the Job's failure policy."""
        spec = progress.job["spec"]
        rule, text = matching_rule(spec.get("podFailurePolicy", {}).get("rules", []), pod)
        action = rule["action"] if rule is not None else "Count"
        if action == "Ignore":
            progress.ignored.append(pod)
            return
        progress.failed.append(pod)
        if action == "FailJob" and progress.verdict is None:
            progress.verdict = Verdict("FailureTarget", "PodFailurePolicy", text)
        over = "backoffLimitPerIndex" in spec and _index_failures(pod) >= spec["backoffLimitPerIndex"]
        if action == "FailIndex" or over:
            progress.failed_indexes.add(index_of(pod))

    def _verdict(self, progress: Progress) -> Verdict | None:
        job = progress.job
        spec, status = job["spec"], job["status"]
        failures = status.get("failed", 0) + len(progress.failed)
        if spec["template"]["spec"]["restartPolicy"] == "OnFailure":
            restarts = sum(_restarts(pod) for pod in progress.active)
            failures = max(failures, restarts - 1 if restarts and spec["backoffLimit"] else restarts)
        if failures > spec["backoffLimit"]:
            return BACKOFF_LIMIT
        if "maxFailedIndexes" in spec and len(progress.failed_indexes) > spec["maxFailedIndexes"]:
            return TOO_MANY_INDEXES
        if self._seconds_left(job) <= 0:
            return DEADLINE
        wanted = spec.get("completions")
        succeeded = (
            len(progress.completed) if progress.indexed else status.get("succeeded", 0) + len(progress.succeeded)
        )
        if wanted is not None and succeeded >= wanted:
            return REACHED
        if wanted is None and succeeded and not progress.active:
            return REACHED
        if progress.failed_indexes and len(progress.completed | progress.failed_indexes) >= (wanted or 0):
            return FAILED_INDEXES
        return None

    def _seconds_left(self, job: Object) -> float:
        """Seconds until the Job's deadline."""
        seconds, begun = job["spec"].get("activeDeadlineSeconds"), job["status"].get("startTime")
        if seconds is None or begun is None:
            return float("inf")
        return seconds_of(begun) + float(seconds) - self.world.clock.now()

    def _go_on(self, progress: Progress) -> None:
        """Hold or resume the Job, and create the pods that are missing."""
        job, now = progress.job, self.world.clock.stamp()
        status = progress.status(uncounted=True)
        if job["spec"]["suspend"]:
            self._suspend(progress, status)
            return
        held = condition_of(job, "Suspended")
        if held is not None and held["status"] == "True":
            status["conditions"] = _with_condition(status, "Suspended", "False", "JobResumed", "Job resumed", now)
        else:
            held = None
        status.setdefault("startTime", now)
        progress.job = job = {**job, "status": status}
        created = self._create_missing(progress)
        if created:
            progress.active = progress.active + created
            status["active"] = len(progress.active)
        progress.job = self._write(job, status)
        if held is not None:
            self._event(job, "Normal", "Resumed", "Job resumed")
        left = self._seconds_left(progress.job)
        if left != float("inf"):
            self._rounds.ask(job["metadata"]["uid"], max(left, 0.0) + 0.001)

    def _suspend(self, progress: Progress, status: Object) -> None:
        job, now = progress.job, self.world.clock.stamp()
        held = condition_of(job, "Suspended")
        if held is None or held["status"] != "True":
            status["conditions"] = _with_condition(status, "Suspended", "True", "JobSuspended", "Job suspended", now)
            self._event(job, "Normal", "Suspended", "Job suspended")
        for pod in progress.active:
            self._delete(job, self._untracked(pod))
        if progress.active:
            progress.active, progress.terminating = [], progress.terminating + progress.active
            status |= {"terminating": len(progress.terminating), "ready": 0}
            status.pop("active", None)
        status.pop("startTime", None)
        progress.job = self._write(job, status)

    def _create_missing(self, progress: Progress) -> list[Object]:
        job = progress.job
        spec, uid = job["spec"], job["metadata"]["uid"]
        busy = list(progress.active)
        if spec["podReplacementPolicy"] == "Failed":
            busy += progress.terminating
        room = min(spec["parallelism"] - len(busy), CREATED_AT_ONCE)
        created: list[Object] = []
        if progress.indexed:
            taken = {index_of(pod) for pod in busy} | progress.completed | progress.failed_indexes
            for index in range(spec["completions"]):
                if len(created) >= room:
                    break
                key = f"{uid}/{index}" if "backoffLimitPerIndex" in spec else uid
                if index in taken or self._must_wait(uid, key, progress):
                    continue
                pod = self._create(progress, index)
                if pod is None:
                    break
                created.append(pod)
            if len(created) == CREATED_AT_ONCE:
                self._rounds.ask(uid)
            return created
        if "completions" in spec:
            done = job["status"].get("succeeded", 0) + len(progress.succeeded)
            room = min(room, spec["completions"] - done - len(busy))
        elif job["status"].get("succeeded", 0) + len(progress.succeeded):
            room = 0
        if room > 0 and not self._must_wait(uid, uid, progress):
            for _ in range(room):
                pod = self._create(progress, None)
                if pod is None:
                    break
                created.append(pod)
        if len(created) == CREATED_AT_ONCE:
            self._rounds.ask(uid)
        return created

    def _must_wait(self, uid: str, key: str, progress: Progress) -> bool:
        """Whether a back-off is in force; the Job is looked at again when it is over."""
        failures = self._failures.get(key, [])
        for pod in progress.failed + progress.ignored:
            if key == uid or key == f"{uid}/{index_of(pod)}":
                failures = [*failures, self._ended_at(pod)]
        if not failures:
            return False
        wait = min(BACK_OFF * 2 ** (len(failures) - 1), LONGEST_BACK_OFF)
        left = failures[-1] + self.world.pace(wait) - self.world.clock.now()
        if left > 0:
            self._rounds.ask(uid, left + 0.001)
        return left > 0

    def _ended_at(self, pod: Object) -> float:
        """When a pod failed, in seconds since 1970; whole seconds are too coarse for a fast cluster."""
        uid = pod["metadata"]["uid"]
        return self._failures.setdefault(uid, [self.world.clock.now()])[0]

    def _create(self, progress: Progress, index: int | None) -> Object | None:
        job = progress.job
        namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
        try:
            pod, _ = self.admission.prepared(PODS, namespace, self._template(job, index))
        except Refused as refused:
            self._event(job, "Warning", "FailedCreate", f"Error creating: {refused.message}")
            self._refusals[uid] = self._refusals.get(uid, 0) + 1
            self._rounds.ask(uid, self.world.pace(min(2.0 ** (self._refusals[uid] - 1), 600.0)))
            return None
        pod = self.world.store.put(PODS, pod)
        self._event(job, "Normal", "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
        return pod

    def _template(self, job: Object, index: int | None) -> Object:
        metadata, template = job["metadata"], copied(job["spec"]["template"])
        prefix = f"{metadata['name']}-" if index is None else f"{metadata['name']}-{index}-"
        labels, annotations = template["metadata"]["labels"], template["metadata"].get("annotations") or {}
        spec = template["spec"]
        if index is not None:
            labels[INDEX] = annotations[INDEX] = str(index)
            if "backoffLimitPerIndex" in job["spec"]:
                failures = len(self._failures.get(f"{metadata['uid']}/{index}", []))
                annotations["batch.kubernetes.io/job-index-failure-count"] = str(failures)
            spec["hostname"] = f"{metadata['name']}-{index}"
            reference = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}
            for container in spec["containers"] + spec.get("initContainers", []):
                variables = container.setdefault("env", [])
                if all(each["name"] != "JOB_COMPLETION_INDEX" for each in variables):
                    variables.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": dict(reference)}})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
        return {
            "metadata": {
                "name": (prefix[:58] if len(prefix) > 58 else prefix) + name_ending(),
                "generateName": prefix,
                "labels": labels,
                **({"annotations": annotations} if annotations else {}),
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
                "finalizers": [TRACKING],
            },
            "spec": spec,
        }

    def _settle(self, progress: Progress) -> None:
        """Count the pods that have ended, and end the Job where that is its end."""
        job, now, verdict = progress.job, self.world.clock.stamp(), progress.verdict
        if verdict is not None and verdict.last == "Failed" and _verdict_of(job) is None:
            for pod in progress.active:
                self._delete(job, pod)
            progress.failed = progress.failed + progress.active
            progress.terminating = progress.terminating + progress.active
            progress.active = []
        status = progress.status(uncounted=True)
        if verdict is not None and _verdict_of(job) is None:
            status["conditions"] = _with_condition(status, verdict.type, "True", verdict.reason, verdict.message, now)
        progress.job = job = self._write(job, status)
        self._remember_failures(progress)
        self._let_go(progress.succeeded + progress.failed + progress.ignored)
        status = progress.status(uncounted=False)
        if verdict is not None and not progress.terminating:
            status["conditions"] = _with_condition(status, verdict.last, "True", verdict.reason, verdict.message, now)
            if verdict.last == "Complete":
                status["completionTime"] = now
        self._write(job, status)
        if verdict is not None and not progress.terminating:
            if verdict.last == "Complete":
                self._event(job, "Normal", "Completed", "Job completed")
            else:
                self._event(job, "Warning", verdict.reason, verdict.message)
            self._expire(job)
        elif verdict is None:
            self._rounds.ask(job["metadata"]["uid"])

    def _remember_failures(self, progress: Progress) -> None:
        """What the next back-off of the Job, or of one of its indexes, counts from."""
        uid, per_index = progress.job["metadata"]["uid"], "backoffLimitPerIndex" in progress.job["spec"]
        if progress.succeeded and not per_index:
            self._failures.pop(uid, None)
        for pod in progress.failed + progress.ignored:
            key = f"{uid}/{index_of(pod)}" if per_index else uid
            self._failures.setdefault(key, []).append(self._ended_at(pod))

    def _expire(self, job: Object) -> None:
        """Delete a finished Job when its time to live is over."""
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        newest = self.world.store.current(JOBS, job)
        if seconds is None or newest is None or newest["metadata"].get("deletionTimestamp"):
            return
        last = condition_of(newest, "Complete") or condition_of(newest, "Failed")
        assert last is not None
        left = seconds_of(last["lastTransitionTime"]) + float(seconds) - self.world.clock.now()
        if left > 0:
            self._rounds.ask(job["metadata"]["uid"], left + 0.001)
        else:
            self.deletion.delete(JOBS, newest, {"propagationPolicy": "Foreground"})

    def _delete(self, job: Object, pod: Object) -> None:
        self.deletion.delete(PODS, pod, {})
        self._event(job, "Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")

    def _let_go(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            self._untracked(pod)

    def _untracked(self, pod: Object) -> Object:
        newest = self.world.store.current(PODS, pod)
        if newest is None or TRACKING not in newest["metadata"].get("finalizers", []):
            return newest or pod
        metadata = dict(newest["metadata"])
        rest = [each for each in metadata.pop("finalizers") if each != TRACKING]
        if rest:
            metadata["finalizers"] = rest
        return self.world.store.put(PODS, {**newest, "metadata": metadata})

    def _write(self, job: Object, status: Object) -> Object:
        newest = self.world.store.current(JOBS, job)
        return self.world.store.put(JOBS, {**newest, "status": status}) if newest is not None else job

    def _event(self, job: Object, type: str, reason: str, message: str) -> None:
        self.world.recorder.write(job, type, reason, message, "job-controller")


def matching_rule(rules: list[Object], pod: Object) -> tuple[Object | None, str]:
    """The first rule of a failure policy that fits a failed pod, and what the Job's condition says of it."""
    metadata = pod["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    statuses = pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])
    for number, rule in enumerate(rules):
        action = rule["action"]
        for wanted in rule.get("onPodConditions", []):
            condition = condition_of(pod, wanted["type"])
            if condition is not None and condition["status"] == wanted.get("status", "True"):
                return rule, f"Pod {name} has condition {wanted['type']} matching {action} rule at index {number}"
        codes = rule.get("onExitCodes")
        for status in statuses if codes else []:
            ended = status.get("state", {}).get("terminated")
            if codes is None or ended is None or codes.get("containerName", status["name"]) != status["name"]:
                continue
            code = ended["exitCode"]
            if code != 0 and (code in codes["values"]) == (codes["operator"] == "In"):
                text = f"Container {status['name']} for pod {name} failed with exit code {code}"
                return rule, f"{text} matching {action} rule at index {number}"
    return None, ""


def ranges(indexes: Iterable[int]) -> str:
    """Indexes as a Job's status has them: "0-3,5,7"."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    # Two neighbours are listed one by one.
    words = [
        str(first) if first == last else f"{first},{last}" if last == first + 1 else f"{first}-{last}"
        for first, last in runs
    ]
    return ",".join(words)


def numbers(text: str) -> set[int]:
    """The indexes in a text that `ranges` made."""
    indexes: set[int] = set()
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        indexes |= set(range(int(first), int(last or first) + 1))
    return indexes


def index_of(pod: Object) -> int:
    """The index of an Indexed Job's pod; 0 for a pod without one."""
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, 0))


def _index_failures(pod: Object) -> int:
    annotations = pod["metadata"].get("annotations") or {}
    return int(annotations.get("batch.kubernetes.io/job-index-failure-count", 0))


def _restarts(pod: Object) -> int:
    statuses = pod["status"].get("containerStatuses", []) + pod["status"].get("initContainerStatuses", [])
    return sum(status["restartCount"] for status in statuses)


def _is_ready(pod: Object) -> bool:
    condition = condition_of(pod, "Ready")
    return condition is not None and condition["status"] == "True"


def _tells(change: Change) -> bool:
    """Whether a change of a pod is of interest to its Job."""
    if change.before is None or change.type == "DELETED":
        return change.type == "DELETED"
    before, after = change.before, change.object
    return _summary(before) != _summary(after)


def _summary(pod: Object) -> tuple[object, ...]:
    phase, deleted = pod["status"]["phase"], pod["metadata"].get("deletionTimestamp")
    return phase, deleted, _is_ready(pod), _restarts(pod)


def _verdict_of(job: Object) -> Verdict | None:
    """The verdict that the Job's conditions tell of."""
    for type in ("FailureTarget", "SuccessCriteriaMet"):
        if condition := condition_of(job, type):
            return Verdict(type, condition["reason"], condition["message"])
    return None


def _with_condition(status: Object, type: str, value: str, reason: str, message: str, now: str) -> list[Object]:
    condition = {
        "type": type,
        "status": value,
        "lastProbeTime": now,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }
    conditions = list(status.get("conditions", []))
    for position, each in enumerate(conditions):
        if each["type"] == type:
            conditions[position] = condition
            return conditions
    return [*conditions, condition]
