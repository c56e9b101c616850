"""Requests of any kind: valid by botocore's model, within AWS's limits, never more Neuron devices than there are."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some
from tests.aws_batch.test_definitions import ARN, METAFLOW, OTHERS, valid
from tests.aws_batch.test_queues import ENVIRONMENTS, queue

from stoker.backends.aws_batch.definitions import BatchRequest, job_definition, neuron_total, submission
from stoker.backends.aws_batch.queues import NoQueue, choose, queues_of_account
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.core.errors import SettingsError
from stoker.core.resources import ResourceSettings

FIELDS = {**METAFLOW, **OTHERS, "platform": "EC2"}
ASKED = some.fixed_dictionaries(
    {},
    optional={
        "cpu_count": some.sampled_from([0.25, 1, 2.5, 16, 200]),
        "memory": some.integers(1, 2**42),
        "shared_memory": some.integers(1, 2**34),
        "gpu_count": some.integers(0, 16),
        "accelerators": some.sampled_from(
            ["A100", "A100:8", "H100:8", "V100:1", "trainium:4", "trainium:16", "trainium2", "inferentia2:12"]
        ),
        "gpu_memory": some.sampled_from(["10GB", "80GB"]),
        "nodes": some.integers(1, 8),
        "spot": some.booleans(),
        "extended": some.just({"licence": 1.5}),
    },
)


def _asked(words: dict[str, Any]) -> ResourceSettings | None:
    try:
        return ResourceSettings(**words)
    except SettingsError:
        return None


@settings(max_examples=60, deadline=None)
@given(
    words=ASKED,
    names=some.sets(some.sampled_from(sorted(FIELDS))),
    environments=some.sets(some.sampled_from([each["computeEnvironmentName"] for each in ENVIRONMENTS]), min_size=1),
    elements=some.integers(1, 10_000),
    step=some.text(max_size=40),
)
def test_any_request(words: dict[str, Any], names: set[str], environments: set[str], elements: int, step: str) -> None:
    resources = _asked(words)
    if resources is None:
        return
    own = BatchSettings(**{name: FIELDS[name] for name in names if name != "queue"})
    queues = queues_of_account([queue(f"{name}-q", name) for name in sorted(environments)], ENVIRONMENTS)
    choice = choose(resources, own, queues)
    if isinstance(choice, NoQueue):
        assert choice.what and choice.why and choice.fix and "None" not in f"{choice.what}{choice.why}"
        return
    for each in choice.types:
        assert each.vcpus >= resources.get("cpu_count", 0) and each.count >= resources.gpus_per_node
        kinds = [kind.name for kind in resources.get("accelerators", ())]
        assert not kinds or each.accelerator in kinds
    request = BatchRequest(
        resources=resources,
        settings=own,
        image="team/train:1",
        command=("python3", "-c", "pass"),
        name=step,
        nodes=resources.get("nodes", 1),
        elements=elements,
        seconds=5.0,
        fargate=choice.fargate,
        types=choice.types,
    )
    definition, sent = job_definition(request), submission(request, choice.queue, ARN, name=step)
    valid("RegisterJobDefinition", definition)
    valid("SubmitJob", sent)
    # https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html
    assert len(json.dumps(definition)) < 24 * 1024 and len(json.dumps(sent)) < 30 * 1024
    total = neuron_total(request)
    assert not total or resources.gpus_per_node <= total <= min((each.count for each in choice.types), default=total)
    assert job_definition(request)["jobDefinitionName"] == definition["jobDefinitionName"]
