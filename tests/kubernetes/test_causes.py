"""Every recorded scenario, replayed event by event: the end is told when it is certain, never before, and rightly."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Sequence

import pytest
from tests.kubernetes.recordings import Recording, WatchEvent, names, recording

from stoker.backends.kubernetes.api.follow import Specs, kept_job
from stoker.backends.kubernetes.explain import causes
from stoker.backends.kubernetes.explain.causes import JobEnd
from stoker.backends.kubernetes.objects import INDEX, uid
from stoker.core import status

Object = dict[str, Any]


class Expected(NamedTuple):
    """The end of a Job of a scenario."""

    state: str
    cause: str
    words: Sequence[str]
    """What the message must hold."""
    index: int | None = None
    code: int | None = None
    free: bool = False


EXPECTED: dict[str, Any] = json.loads((Path(__file__).parent / "expected.json").read_text())
"""Scenario → what is said of it: how its Jobs ended ("ends"; those that have not are left out), what is said last of
one that waits ("waits"), and of which Job what is said on the way."""
ENDS = {name: {job: Expected(**end) for job, end in row.get("ends", {}).items()} for name, row in EXPECTED.items()}


class World:
    """What a client knows that has seen the events so far: of pods and Jobs what is kept of them."""

    def __init__(self) -> None:
        self._keep = {"pods": Specs().pod, "jobs": kept_job}
        self.jobs: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.events: dict[str, Object] = {}
        self.gone: set[str] = set()

    def see(self, event: WatchEvent) -> None:
        kinds = {"jobs": self.jobs, "pods": self.pods, "events": self.events}
        if event.resource in kinds:
            known, key = kinds[event.resource], uid(event.object)
            keep = self._keep.get(event.resource)
            known[key] = keep(event.object, known.get(key)) if keep else event.object
            if event.type == "DELETED":
                self.gone.add(uid(event.object))

    def pods_of(self, job: Object) -> list[Object]:
        return [
            pod
            for pod in self.pods.values()
            if uid(job) in [owner["uid"] for owner in pod["metadata"].get("ownerReferences", [])]
            or pod["metadata"].get("labels", {}).get("batch.kubernetes.io/controller-uid") == uid(job)
        ]

    def ends(self) -> Iterator[tuple[Object, JobEnd | None]]:
        for job in self.jobs.values():
            yield job, causes.end_of(job, self.pods_of(job), gone=self.gone)


def replay(scenario: Recording) -> Iterator[tuple[WatchEvent, World]]:
    world = World()
    for event in scenario.events:
        world.see(event)
        yield event, world


def named(jobs: Sequence[Object]) -> list[str]:
    """The names of Jobs; of two of one name the second is "NAME again"."""
    seen: list[str] = []
    for job in jobs:
        name = job["metadata"]["name"]
        seen.append(f"{name} again" if name in seen else name)
    return seen


@pytest.mark.parametrize("name", names())
def test_the_end_is_told_rightly_and_at_no_point_wrongly(name: str) -> None:
    scenario = recording(name)
    first: dict[str, JobEnd] = {}
    world = World()
    for event, world in replay(scenario):
        for job, end in world.ends():
            if end is None:
                assert uid(job) not in first, f"the end was taken back at {event.t}"
                continue
            earlier = first.setdefault(uid(job), end)
            assert (end.state, end.cause, end.index, end.exit_code, end.free) == (
                earlier.state,
                earlier.cause,
                earlier.index,
                earlier.exit_code,
                earlier.free,
            ), f"{earlier} became {end} at {event.t}"
    jobs = list(world.jobs.values())
    ends = {name: first.get(uid(job)) for name, job in zip(named(jobs), jobs)}
    assert {name for name, end in ends.items() if end is not None} == set(ENDS[name])
    for which, expected in ENDS[name].items():
        end = ends[which]
        assert end is not None
        assert (end.state, end.cause) == (expected.state, expected.cause), end
        assert (end.index, end.exit_code, end.free) == (expected.index, expected.code, expected.free), end
        assert all(words in end.message for words in expected.words), end.message


@pytest.mark.parametrize("name", names())
def test_watches_that_arrive_in_another_order_give_no_wrong_end(name: str) -> None:
    """Pods' events may come late, also after all of the Job's, or the Jobs' may: each kind comes in its own order."""
    scenario = recording(name)
    for late, behind in itertools.product(("jobs", "pods"), (4, 1000)):
        order: list[WatchEvent] = []
        waiting: list[WatchEvent] = []
        for event in scenario.events:
            (waiting if event.resource == late else order).append(event)
            order += waiting[:-behind] if len(waiting) > behind else []
            waiting = waiting[-behind:]
        assert len([*order, *waiting]) == len(scenario.events)
        world = World()
        for event in [*order, *waiting]:
            world.see(event)
            for which, (_, end) in zip(named(list(world.jobs.values())), list(world.ends())):
                expected = ENDS[name].get(which)
                if end is not None:
                    assert expected is not None, f"{which} was told to have ended: {end}"
                    assert (end.state, end.cause, end.index) == (expected.state, expected.cause, expected.index), end


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("12-preempted", status.PREEMPTED),
        ("12b-evicted-by-api-drain", status.PREEMPTED),
        ("16-node-lost-then-back", status.NODE_LOST),
        ("16b-node-removed", status.NODE_LOST),
    ],
)
def test_a_job_that_makes_no_second_pod_ends_with_the_interruption(name: str, cause: str) -> None:
    """The same pods under a Job without a podFailurePolicy, whose controller gives up after the first one."""
    world = World()
    seen: JobEnd | None = None
    for _, world in replay(recording(name)):
        job, *_ = world.jobs.values()
        plain = {key: value for key, value in job["spec"].items() if key != "podFailurePolicy"}
        pods = sorted(world.pods_of(job), key=lambda pod: int(pod["metadata"]["resourceVersion"]))[:1]
        end = causes.end_of({**job, "spec": {**plain, "backoffLimit": 0}, "status": {}}, pods, gone=world.gone)
        if end is not None and len(world.pods_of(job)) == 1:
            seen = seen or end
            assert (end.state, end.cause, end.free) == ("interrupted", cause, True)
    assert seen is not None and "checkpoints" in seen.message


def test_hints_and_last_words() -> None:
    scenario = recording("04-child-oom-main-exits-0")
    end = causes.end_of(scenario.jobs[0], scenario.pods)
    assert end is not None and "a child process was killed for memory" in end.hint
    scenario = recording("02b-user-error-termination-message")
    end = causes.end_of(scenario.jobs[0], scenario.pods)
    assert end is not None and "ValueError: bad learning rate" in end.last_words


def test_elements_of_a_fan_out_end_one_by_one() -> None:
    """The Indexed Job whose rank 2 fails while the others finish, taken as a fan-out."""
    first: dict[int, tuple[float, JobEnd]] = {}
    for event, world in replay(recording("15c-gang-member-fails-per-index")):
        for job in world.jobs.values():
            for index in range(4):
                mine = [pod for pod in world.pods_of(job) if pod["metadata"]["labels"][INDEX] == str(index)]
                end = causes.element_end(job, index, mine, gone=world.gone)
                if end is not None:
                    first.setdefault(index, (event.t, end))
                    assert end.state == first[index][1].state
    assert {index: end.state for index, (_, end) in first.items()} == {
        0: "succeeded",
        1: "succeeded",
        2: "failed",
        3: "succeeded",
    }
    assert first[2][1].index == 2 and first[2][1].message.startswith("the step's code failed with exit code 1")
    assert first[2][0] < first[0][0], "the failure is told before the others have finished"


def pod_of(terminated: Object | None = None, **status_more: Any) -> Object:
    """A failed pod of a Job, with one container."""
    container: Object = {"name": "main", "image": "registry.example.com/step:1", "resources": {}}
    container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    statuses = [{"name": "main", "state": {"terminated": terminated}}] if terminated else []
    return {
        "metadata": {"name": "train-x", "uid": "pod", "creationTimestamp": "2026-11-21T04:48:00Z"},
        "spec": {"containers": [container], "nodeName": "n1", "restartPolicy": "Never"},
        "status": {"phase": "Failed", "containerStatuses": statuses, **status_more},
    }


LOW = "The node was low on resource: {}. Threshold quantity: 100Mi, available: 50Mi. Container main was using 5Gi."


@pytest.mark.parametrize(
    ("pod", "cause", "words"),
    [
        (
            pod_of({"exitCode": 128, "reason": "StartError", "message": 'exec: "python": exec format error'}),
            status.REFUSED,
            "built for another architecture than the node n1 has",
        ),
        (
            pod_of({"exitCode": 137}, reason="Evicted", message=LOW.format("memory")),
            status.HOST_OOM,
            "the node n1 ran short of memory",
        ),
        (
            pod_of({"exitCode": 137}, reason="Evicted", message=LOW.format("ephemeral-storage")),
            status.DISK_FULL,
            "the disk of the node n1 ran full",
        ),
        (
            pod_of(
                {"exitCode": 137}, reason="Evicted", message='Usage of EmptyDir volume "shm" exceeds the limit "1Gi".'
            ),
            status.SHM_TOO_SMALL,
            "raise shared_memory",
        ),
        (pod_of({"exitCode": 139}), status.CRASHED, "segmentation fault"),
        (pod_of({"exitCode": 143}), status.KILLED, "SIGTERM"),
        (
            pod_of(
                {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "The container could not be located"}
            ),
            status.WORKER_LOST,
            "ended is not known: The container could not be located",
        ),
        (pod_of({"reason": "Error"}), status.WORKER_LOST, "ended is not known"),
        (
            pod_of(None, reason="OutOfcpu", message="Node didn't have enough resource: cpu, requested: 4000"),
            status.SETUP_FAILED,
            "had no cpu left",
        ),
        (
            pod_of(
                {
                    "exitCode": 128,
                    "reason": "StartError",
                    "message": "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8",
                }
            ),
            status.DRIVER_TOO_OLD,
            "cuda>=12.8",
        ),
        (
            pod_of(None, reason="Terminated", message="Pod was terminated in response to imminent node shutdown."),
            status.NODE_LOST,
            "shut down",
        ),
    ],
)
def test_ends_that_were_not_recorded(pod: Object, cause: str, words: str) -> None:
    job = {"metadata": {"name": "train", "uid": "job"}, "spec": {"completions": 1, "backoffLimit": 0}, "status": {}}
    end = causes.end_of(job, [pod])
    assert end is not None
    assert (end.cause, words in end.message) == (cause, True), end


def test_a_gang_whose_rank_was_preempted_is_not_blamed_on_those_that_missed_it() -> None:
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    gone["lastTransitionTime"] = "2026-11-21T05:00:00Z"
    job = {
        "metadata": {"name": "gang", "uid": "job"},
        "spec": {"completions": 2, "completionMode": "Indexed", "backoffLimit": 0},
        "status": {
            "failed": 2,
            "conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}],
        },
    }
    pods = []
    for index, moment, conditions in ((0, "05:00:02", []), (1, "05:00:09", [gone])):
        pod = pod_of({"exitCode": 1 + 142 * index, "finishedAt": f"2026-11-21T{moment}Z"}, conditions=conditions)
        pod["metadata"] = {**pod["metadata"], "uid": f"pod{index}", "labels": {INDEX: str(index)}}
        pods.append(pod)
    end = causes.end_of(job, pods)
    assert end is not None
    assert (end.state, end.cause, end.index, end.free) == ("interrupted", status.PREEMPTED, 1, True)
    assert end.message.startswith("rank 1: preempted by a higher priority pod; the other ranks were stopped")
    # Without the disruption the one that failed first is to blame.
    other = {**pods[1], "status": {**pods[1]["status"], "conditions": []}}
    first = causes.end_of(job, [pods[0], other])
    assert first is not None and (first.index, first.exit_code) == (0, 1)


def test_a_job_whose_pods_nobody_has_seen_is_not_certain_until_that_is_settled() -> None:
    for name, cause in (("02-user-error-exit-1", status.WORKER_LOST), ("10-job-deadline", status.TIMED_OUT)):
        [job] = recording(name).jobs
        end = causes.end_of(job, [])
        assert (end is None) == (cause == status.WORKER_LOST), "a deadline is the Job's own word"
        settled = causes.end_of(job, [], settled=True)
        assert settled is not None and (settled.state, settled.cause) == ("failed", cause)
    [job] = recording("11-delete-background-sigterm").last("jobs")
    assert causes.end_of(job, [], gone={uid(job)}) is None
    deleted = causes.end_of(job, [], gone={uid(job)}, settled=True)
    assert deleted is not None and deleted.state == "cancelled"


def test_a_pod_that_went_without_a_last_word_did_not_fail_by_itself() -> None:
    """A client that lists instead of watching sees the pod run, and then no more; failed pods stay."""
    scenario = recording("16b-node-removed")
    running = next(event for event in scenario.events if event.resource == "pods" and event.t > 0.47)
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    [job] = scenario.jobs
    plain = {key: value for key, value in job["spec"].items() if key != "podFailurePolicy"}
    job = {**job, "spec": plain, "status": {"failed": 1, "conditions": [failed]}}
    end = causes.end_of(job, [running.object], gone={uid(running.object)})
    assert end is not None
    assert (end.state, end.cause, end.free) == ("interrupted", status.KILLED, False)
    assert "its node gpu-node-1 was lost" in end.message


def test_elements_that_the_deadline_of_their_job_ended() -> None:
    """One had finished, one is seen to have been ended, and one still stops: that one's end waits for the Job's."""
    target = {"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}
    job: Object = {
        "metadata": {"name": "fan", "uid": "job"},
        "spec": {"completions": 3, "completionMode": "Indexed", "backoffLimitPerIndex": 0, "activeDeadlineSeconds": 60},
        "status": {"completedIndexes": "0", "conditions": [target]},
    }
    ended, stops = pod_of({"exitCode": 143, "finishedAt": "2026-11-21T05:01:00Z"}), pod_of(None, phase="Running")
    assert causes.element_end(job, 0, []).state == "succeeded"
    end = causes.element_end(job, 1, [ended])
    assert end is not None and (end.cause, end.index, "(60 s)" in end.message) == (status.TIMED_OUT, 1, True), end
    assert causes.element_end(job, 2, [stops]) is None
    job["status"]["conditions"].append({**target, "type": "Failed"})
    last = causes.element_end(job, 2, [stops])
    assert last is not None and (last.cause, last.index) == (status.TIMED_OUT, 2), last
    # Ended because of the others, an element has its own end.
    job["status"]["conditions"] = [{**target, "reason": "MaxFailedIndexesExceeded"}]
    other = causes.element_end(job, 1, [ended])
    assert other is not None and other.cause == status.KILLED, other


def test_a_container_that_was_put_first_decides_nothing_where_an_annotation_names_another() -> None:
    pod = pod_of({"exitCode": 139})
    pod["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "main"}
    pod["spec"]["containers"].insert(0, {"name": "proxy"})
    pod["status"]["containerStatuses"].insert(0, {"name": "proxy", "state": {"terminated": {"exitCode": 0}}})
    job = {"metadata": {"name": "train", "uid": "job"}, "spec": {"completions": 1, "backoffLimit": 0}, "status": {}}
    end = causes.end_of(job, [pod])
    assert end is not None and (end.cause, end.exit_code) == (status.CRASHED, 139), end
