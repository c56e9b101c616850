"""What is kept of watched objects says as much as the whole objects, in less memory."""

from __future__ import annotations

import copy
import json

import pytest
from tests.kubernetes.recordings import names, recording

from stoker.backends.kubernetes.api.follow import Specs, kept_job
from stoker.backends.kubernetes.explain.causes import element_end, end_of
from stoker.backends.kubernetes.explain.pending import no_news, why_pending
from stoker.backends.kubernetes.objects import Object, index_of, uid


def owned(job: Object, pods: list[Object]) -> list[Object]:
    """The pods of a Job."""
    owners = {uid(pod): [each["uid"] for each in pod["metadata"].get("ownerReferences") or ()] for pod in pods}
    return [pod for pod in pods if uid(job) in owners[uid(pod)]]


@pytest.mark.parametrize("name", names())
def test_it_says_the_same_of_every_recording(name: str) -> None:
    """After each event: how the Job and its elements ended, and why they wait."""
    specs, whole, kept, gone = Specs(), {}, {}, set()
    events: list[Object] = []
    for event in recording(name).events:
        key = uid(event.object)
        if event.type == "DELETED":
            gone.add(key)
        if event.resource not in ("pods", "jobs"):
            events += [event.object] if event.resource == "events" else []
            continue
        whole[key] = event.object
        keep = specs.pod if event.resource == "pods" else kept_job
        kept[key] = keep(copy.deepcopy(event.object), kept.get(key))
        jobs = [key for key, one in whole.items() if one["kind"] == "Job"]
        pods = [key for key, one in whole.items() if one["kind"] == "Pod"]
        for key in jobs:
            said = []
            for source in (whole, kept):
                job, mine = source[key], owned(source[key], [source[each] for each in pods])
                answers: list[object] = [end_of(job, mine, gone=gone), why_pending(job, mine, events)]
                for index in {index_of(pod) for pod in mine} - {None}:
                    own = [pod for pod in mine if index_of(pod) == index]
                    answers.append(element_end(job, index or 0, own, gone=gone))
                said.append([*answers, no_news(mine)])
            assert said[0] == said[1]


def test_the_pods_of_a_job_have_one_spec() -> None:
    """Also when each has a node: of a thousand pods little more is kept than of their states."""
    template = next(event.object for event in recording("01-succeed").events if event.resource == "pods")
    program = {"name": "PROGRAM", "value": "x" * 10_000}
    specs, kept = Specs(), {}
    for number in range(100):
        pod = copy.deepcopy(template)
        pod["metadata"].update(name=f"p-{number}", uid=f"u-{number}")
        pod["spec"]["containers"][0].setdefault("env", []).append(dict(program))
        pod["spec"]["volumes"] = [{"name": f"token-{number}"}]
        kept[number] = specs.pod(pod, None)
        bound = copy.deepcopy(pod)
        bound["spec"]["nodeName"] = "node-1"
        kept[number] = specs.pod(bound, kept[number])
    assert len({id(one["spec"]) for one in kept.values()}) == 1
    assert kept[0]["spec"]["nodeName"] == "node-1"
    assert "PROGRAM" not in json.dumps(kept[0])


def test_the_names_of_elements_are_kept_once() -> None:
    notes = json.dumps([{"key": f"plus[{number}]"} for number in range(1000)])
    job: dict[str, object] = {
        "metadata": {"name": "j", "annotations": {"stoker/jobs": notes}},
        "spec": {"template": {}},
    }
    first = kept_job(json.loads(json.dumps(job)), None)
    second = kept_job(json.loads(json.dumps(job)), first)
    assert second["metadata"]["annotations"] is first["metadata"]["annotations"]
    assert second["metadata"] == job["metadata"] and second["spec"] == {}
