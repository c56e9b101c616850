"""The JobSet controller: the Jobs and the headless Service of a JobSet, and in its conditions how it ended.

It does what that project's own does for JobSets without rules and dependencies: https://jobset.sigs.k8s.io/docs/concepts/
"""

from __future__ import annotations

from attrs import define, field
from tests.kubernetes.server.admission import Admission
from tests.kubernetes.server.deletion import Deletion
from tests.kubernetes.server.extensions import JOB_SETS, replicas
from tests.kubernetes.server.objects import JOBS, SERVICES, Object, condition_of, copied
from tests.kubernetes.server.store import Change
from tests.kubernetes.server.world import Rounds, World

_SET, _REPLICATED, _INDEX = (
    "jobset.sigs.k8s.io/jobset-name",
    "jobset.sigs.k8s.io/replicatedjob-name",
    "jobset.sigs.k8s.io/job-index",
)


@define(eq=False)
class JobSetController:
    """Works on all JobSets."""

    world: World
    admission: Admission
    deletion: Deletion
    _rounds: Rounds = field(init=False)
    _sets: dict[str, Object] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._rounds = Rounds(self._sync)
        self.world.store.listen(self._heard)

    def forget(self) -> None:
        """Stop the work on all JobSets."""
        self._rounds.forget()
        self._sets.clear()

    def _heard(self, change: Change) -> None:
        if change.resource is JOB_SETS:
            uid = change.object["metadata"]["uid"]
            if change.type == "DELETED":
                self._sets.pop(uid, None)
            else:
                self._sets[uid] = change.object
                self._rounds.ask(uid)
        elif change.resource is JOBS:
            for owner in change.object["metadata"].get("ownerReferences", []):
                if owner["uid"] in self._sets:
                    self._rounds.ask(owner["uid"])

    def _sync(self, uid: str) -> None:
        current = self.world.store.current(JOB_SETS, self._sets[uid]) if uid in self._sets else None
        if current is None or current["metadata"].get("deletionTimestamp"):
            return
        if condition_of(current, "Completed") or condition_of(current, "Failed"):
            return
        self._make_service(current)
        jobs = [self._job(current, replicated, number) for replicated, number in replicas(current)]
        if all(condition_of(job, "Complete") for job in jobs):
            self._end(current, "Completed", "AllJobsCompleted", "jobset completed successfully")
        elif any(condition_of(job, "Failed") for job in jobs):
            for job in jobs:
                if not condition_of(job, "Failed") and not condition_of(job, "Complete"):
                    self.deletion.delete(JOBS, job, {"propagationPolicy": "Foreground"})
            self._end(current, "Failed", "FailedJobs", "jobset failed due to one or more job failures")

    def _make_service(self, current: Object) -> None:
        network = current["spec"].get("network") or {}
        metadata = current["metadata"]
        name = network.get("subdomain") or metadata["name"]
        if network.get("enableDNSHostnames") is False:
            return
        if self.world.store.get(SERVICES, metadata["namespace"], name) is None:
            body = {
                "metadata": {"name": name, "ownerReferences": [_owner(current)]},
                "spec": {
                    "clusterIP": "None",
                    "selector": {_SET: metadata["name"]},
                    "publishNotReadyAddresses": network.get("publishNotReadyAddresses", True),
                },
            }
            service, _ = self.admission.prepared(SERVICES, metadata["namespace"], body)
            self.world.store.put(SERVICES, service)

    def _job(self, current: Object, replicated: Object, number: int) -> Object:
        """A Job of the set, which is made if it is not there, and held for as long as the set is."""
        metadata, spec = current["metadata"], current["spec"]
        suspend = bool(spec.get("suspend"))
        name = f"{metadata['name']}-{replicated['name']}-{number}"
        job = self.world.store.get(JOBS, metadata["namespace"], name)
        if job is not None:
            if bool(job["spec"].get("suspend")) != suspend:
                generation = job["metadata"]["generation"] + 1
                changed = {"spec": {**job["spec"], "suspend": suspend}}
                job = {**job, **changed, "metadata": {**job["metadata"], "generation": generation}}
                job = self.world.store.put(JOBS, job)
            return job
        template = copied(replicated["template"])
        marks = {_SET: metadata["name"], _REPLICATED: replicated["name"], _INDEX: str(number)}
        pod = template["spec"]["template"]
        pod["metadata"] = _marked(pod.get("metadata") or {}, marks)
        pod["spec"]["subdomain"] = (spec.get("network") or {}).get("subdomain") or metadata["name"]
        body = {
            "metadata": {
                **_marked(template.get("metadata") or {}, marks),
                "name": name,
                "ownerReferences": [_owner(current)],
            },
            "spec": {**template["spec"], "suspend": suspend},
        }
        job, _ = self.admission.prepared(JOBS, metadata["namespace"], body)
        return self.world.store.put(JOBS, job)

    def _end(self, current: Object, kind: str, reason: str, message: str) -> None:
        newest = self.world.store.current(JOB_SETS, current)
        if newest is not None:
            condition = {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": self.world.clock.stamp(),
            }
            self.world.store.put(
                JOB_SETS, {**newest, "status": {"conditions": [condition], "terminalState": kind, "restarts": 0}}
            )


def _marked(metadata: Object, marks: dict[str, str]) -> Object:
    labels = {**(metadata.get("labels") or {}), **marks}
    return {**metadata, "labels": labels, "annotations": {**(metadata.get("annotations") or {}), **marks}}


def _owner(current: Object) -> Object:
    metadata = current["metadata"]
    owner = {"apiVersion": current["apiVersion"], "kind": current["kind"], "name": metadata["name"]}
    return {**owner, "uid": metadata["uid"], "controller": True, "blockOwnerDeletion": True}
