"""How objects go: grace for pods, and what becomes of the objects that another one owns."""

from __future__ import annotations

from attrs import define, field
from tests.kubernetes.server.failures import another_uid, another_version
from tests.kubernetes.server.objects import EVENTS, FINISHED, JOBS, PODS, Object, Resource, condition_of
from tests.kubernetes.server.store import Change
from tests.kubernetes.server.world import Rounds, World

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
"""Finalizers that the garbage collector works on."""
COLLECTION = 0.02
"""Seconds until the dependents of a deleted object are looked at."""


@define(eq=False)
class Deletion:
    """Deletes objects, and collects what is left of their dependents."""

    world: World
    _rounds: Rounds = field(init=False)
    _heirs: dict[str, tuple[Resource, Object]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._rounds = Rounds(self._collect)
        self.world.store.listen(self._heard)

    def delete(self, resource: Resource, object: Object, options: Object) -> Object:
        """Begin to delete an object.

        Args:
            resource: Its kind.
            object: Its newest state.
            options: The request's `DeleteOptions`.

        Returns:
            The body of the reply: a Status if the object is gone, else the object.

        Raises:
            Refused: 409, as another uid or version is expected.
        """
        metadata = object["metadata"]
        wanted = (options.get("preconditions") or {}).get("uid", metadata["uid"])
        if wanted != metadata["uid"]:
            raise another_uid(resource, metadata["name"], wanted, metadata["uid"])
        version = (options.get("preconditions") or {}).get("resourceVersion", metadata["resourceVersion"])
        if version != metadata["resourceVersion"]:
            raise another_version(resource, metadata["name"], version, metadata["resourceVersion"])
        if resource is PODS:
            return self._delete_pod(object, options.get("gracePeriodSeconds"))
        policy = options.get("propagationPolicy") or ("Orphan" if resource is JOBS else "Background")
        finalizer = {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(policy)
        finalizers = metadata.get("finalizers", [])
        if finalizer and finalizer not in finalizers:
            finalizers = [*finalizers, finalizer]
        if finalizers:
            return self.world.store.put(resource, self._marked(object, 0, finalizers))
        gone = self.world.store.remove(resource, object)
        details: Object = {"name": metadata["name"]}
        if resource.group:
            details["group"] = resource.group
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details | {"kind": resource.plural, "uid": gone["metadata"]["uid"]},
        }

    def forget(self) -> None:
        """Forget all owners whose dependents are still to be collected."""
        self._rounds.forget()
        self._heirs.clear()

    def end_pod(self, pod: Object) -> None:
        """Take a pod out of the API whose containers have ended; it stays as long as a finalizer holds it."""
        newest = self.world.store.current(PODS, pod)
        if newest is not None:
            finalizers = newest["metadata"].get("finalizers", [])
            marked = self._marked(newest, 0, finalizers)
            marked["metadata"]["deletionGracePeriodSeconds"] = 0
            self.world.store.put(PODS, marked)

    def _delete_pod(self, pod: Object, grace: int | None) -> Object:
        metadata, spec = pod["metadata"], pod["spec"]
        if grace is None:
            grace = spec.get("terminationGracePeriodSeconds", 30)
        if not spec.get("nodeName") or pod["status"]["phase"] in FINISHED:
            grace = 0
        if metadata.get("deletionTimestamp") and grace >= metadata["deletionGracePeriodSeconds"]:
            return pod
        marked = self._marked(pod, grace, metadata.get("finalizers", []))
        return self.world.store.put(PODS, marked)

    def _marked(self, object: Object, grace: int, finalizers: list[str]) -> Object:
        metadata = dict(object["metadata"])
        if "deletionTimestamp" not in metadata:
            metadata["generation"] = metadata.get("generation", 0) + 1
            metadata["deletionTimestamp"] = self.world.clock.stamp(grace)
            metadata["deletionGracePeriodSeconds"] = grace
        metadata["deletionGracePeriodSeconds"] = min(grace, metadata["deletionGracePeriodSeconds"])
        metadata.pop("finalizers", None)
        if finalizers:
            metadata["finalizers"] = finalizers
        return {**object, "metadata": metadata}

    def _heard(self, change: Change) -> None:
        """What a change means for dependents and owners; the work is done a moment later."""
        if change.resource is EVENTS:
            return
        metadata = change.object["metadata"]
        if change.type == "DELETED" or {FOREGROUND, ORPHAN} & set(metadata.get("finalizers", [])):
            self._heirs[metadata["uid"]] = change.resource, change.object
            self._rounds.ask(metadata["uid"], COLLECTION)
        for reference in metadata.get("ownerReferences", []):
            if reference["uid"] in self._heirs:
                self._rounds.ask(reference["uid"])

    def _collect(self, uid: str) -> None:
        if uid not in self._heirs:  # asked for once more before an earlier round was done
            return
        resource, last = self._heirs[uid]
        owner = self.world.store.current(resource, last)
        dependents = self.world.store.owned_by(uid)
        finalizers = [] if owner is None else owner["metadata"].get("finalizers", [])
        if ORPHAN in finalizers:
            for kind, each in dependents:
                references = [one for one in each["metadata"]["ownerReferences"] if one["uid"] != uid]
                metadata = {**each["metadata"], "ownerReferences": references}
                if not references:
                    del metadata["ownerReferences"]
                self.world.store.put(kind, {**each, "metadata": metadata})
            dependents = []
        else:
            for kind, each in dependents:
                self._let_go(kind, each, uid)
            dependents = self.world.store.owned_by(uid)
        if owner is None:
            if not dependents:
                self._heirs.pop(uid, None)
            return
        if not dependents:
            metadata = {**owner["metadata"]}
            rest = [each for each in finalizers if each not in (FOREGROUND, ORPHAN)]
            if rest:
                self.world.store.put(resource, {**owner, "metadata": {**metadata, "finalizers": rest}})
            else:
                # The last state that a watch shows still has the finalizer.
                self.world.store.remove(resource, owner)

    def _let_go(self, resource: Resource, object: Object, uid: str) -> None:
        """Delete what `uid` owned, unless another owner still wants it."""
        others = [each["uid"] for each in object["metadata"]["ownerReferences"] if each["uid"] != uid]
        if others and any(other not in self._heirs for other in others):
            references = [each for each in object["metadata"]["ownerReferences"] if each["uid"] != uid]
            metadata = {**object["metadata"], "ownerReferences": references}
            self.world.store.put(resource, {**object, "metadata": metadata})
        elif not object["metadata"].get("deletionTimestamp"):
            self.delete(resource, object, {"propagationPolicy": "Background"})


def disrupted(world: World, pod: Object, reason: str, message: str) -> Object:
    """The pod with the condition that says why somebody ends it."""
    if condition_of(pod, "DisruptionTarget") is not None:
        return pod
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": world.clock.stamp(),
        "reason": reason,
        "message": message,
    }
    status = {**pod["status"], "conditions": [*pod["status"].get("conditions", []), condition]}
    return world.store.put(PODS, {**pod, "status": status})
