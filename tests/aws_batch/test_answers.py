"""The double of AWS Batch answers what botocore's model of the service has, whatever a job is doing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.aws_batch.cluster import QUEUE, BatchAccount
from tests.servers.containers import BASE_IMAGE


def test_every_answer_is_one_of_the_models(batch_account: BatchAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in batch_account.environment.items():
        monkeypatch.setenv(name, text)
    client = batch_account.client()

    def call(operation: str, **words: Any) -> Any:
        return client.call("batch", operation, once=True, **words)

    sizes = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    container = {"image": BASE_IMAGE, "command": ["true"], "resourceRequirements": sizes}
    call("register_job_definition", jobDefinitionName="plain", type="container", containerProperties=container)
    groups = [{"targetNodes": "0:", "container": container}]
    nodes = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": groups}
    call("register_job_definition", jobDefinitionName="gang", type="multinode", nodeProperties=nodes)
    batch_account.control(hold=True)
    words = {"jobQueue": QUEUE, "jobDefinition": "plain"}
    ids = [
        call("submit_job", jobName="answers-1", **words)["jobId"],
        call("submit_job", jobName="answers-2", **words, arrayProperties={"size": 2})["jobId"],
        call("submit_job", jobName="answers-3", jobQueue=QUEUE, jobDefinition="gang")["jobId"],
    ]
    ids += [f"{ids[1]}:{index}" for index in range(2)] + [f"{ids[2]}#{index}" for index in range(2)]
    assert {row["status"] for row in call("describe_jobs", jobs=ids)["jobs"]} == {"RUNNABLE"}
    batch_account.control(hold=False)
    for id in ids[:3]:
        call("terminate_job", jobId=id, reason="over")
    rows = call("describe_jobs", jobs=ids)["jobs"]
    assert len(rows) == len(ids), json.dumps(rows, default=str)
    assert call("list_jobs", jobQueue=QUEUE, filters=[{"name": "JOB_NAME", "values": ["answers-*"]}])["jobSummaryList"]
    for operation in ("describe_job_queues", "describe_compute_environments", "describe_job_definitions"):
        assert call(operation)
    client.close()
