"""The client of AWS: which account is asked, and what becomes of its errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from tests.backends.fields import BATCH
from tests.backends.test_every_field import SITE, job_of
from tests.servers.loopback import Request, reply, serving
from tests.servers.postgres import free_port

from stoker.backends.aws.api import TRIES, AwsError
from stoker.backends.aws.platform import StreamReader
from stoker.backends.aws_batch.backend import BatchHandle, BatchJob, BatchPlatform
from stoker.backends.aws_batch.client import BatchClient
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.core.errors import Away, BackendError
from stoker.core.settings import StepSettings


@attrs.define
class Service:
    """Answers each request with the next of `answers`, the last one for ever, and keeps the headers of requests."""

    address: str = ""
    answers: list[tuple[int, str, dict[str, Any]]] = attrs.field(factory=lambda: [(200, "", {"jobs": []})])
    headers: list[dict[str, str]] = attrs.field(factory=list)

    def answer(self, request: Request) -> None:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.headers.append(dict(request.headers))
        status, code, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        named = {"x-amzn-errortype": code} if code else {}
        reply(request, status, json.dumps(body).encode(), {"Content-Type": "application/json", **named})


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Service]:
    """A service on loopback, and credentials in the environment and in a profile."""
    config = tmp_path / "config"
    config.write_text("[profile other]\naws_access_key_id = OTHERKEY\naws_secret_access_key = b\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FIRSTKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a")
    service = Service()
    with serving(service.answer) as service.address:
        yield service


def client_of(service: Service, **settings: Any) -> BatchClient:
    words = {"region": "eu-west-1", "endpoint_url": f"http://{service.address}", **settings}
    return BatchClient(BatchSettings(**words), patience=5.0)


def test_the_account_that_is_asked(service: Service) -> None:
    client_of(service).jobs(["a"])
    client_of(service, profile="other", region=None).jobs(["a"])
    first, second = (headers["Authorization"] for headers in service.headers)
    assert "Credential=FIRSTKEY/" in first and "/eu-west-1/batch/" in first
    assert "Credential=OTHERKEY/" in second and "/eu-north-1/batch/" in second


def test_ids_are_asked_for_a_hundred_at_a_time(service: Service) -> None:
    client = client_of(service)
    client.jobs([str(number) for number in range(250)])
    assert len(service.headers) == client.calls["describe_jobs"] == 3


def test_a_throttled_call_is_repeated_and_a_submission_is_not(service: Service) -> None:
    busy = (429, "TooManyRequestsException", {"message": "Too Many Requests"})
    service.answers = [busy, (200, "", {"jobs": []})]
    client = client_of(service)
    client.jobs(["a"])
    assert len(service.headers) == 2
    service.answers, service.headers = [busy], []
    with pytest.raises(Away, match="TooManyRequestsException"):
        client.submit({"jobName": "a", "jobQueue": "q", "jobDefinition": "d"})
    assert len(service.headers) == 1
    with pytest.raises(Away):
        client.jobs(["a"])
    assert len(service.headers) == 1 + TRIES


def test_a_refusal_has_its_code_and_the_right_that_is_missing(service: Service) -> None:
    service.answers = [(403, "AccessDeniedException", {"message": "User: x is not authorized"})]
    with pytest.raises(AwsError, match="not authorized") as caught:
        client_of(service).jobs(["a"])
    assert caught.value.code == "AccessDeniedException" and "batch:describe_jobs" in caught.value.fix


def test_credentials_that_expire_end_nothing_that_runs(service: Service) -> None:
    expired = (403, "ExpiredTokenException", {"message": "The security token included in the request is expired"})
    service.answers = [expired]
    with pytest.raises(BackendError, match="does not take the credentials") as caught:
        client_of(service).jobs(["a"])
    assert not isinstance(caught.value, Away) and "aws sso login" in caught.value.fix
    client = client_of(service)
    service.answers = [(200, "", {"jobs": []}), expired]
    client.jobs(["a"])
    with pytest.raises(Away, match=r"expired.*aws sso login"):
        client.jobs(["a"])


def test_missing_credentials_regions_and_profiles_are_said_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BackendError, match="nobody") as caught:
        client_of(service, profile="nobody").jobs(["a"])
    assert "profile" in caught.value.fix
    with pytest.raises(BackendError, match="no region") as caught:
        BatchClient(BatchSettings()).jobs(["a"])
    assert "AWS_DEFAULT_REGION" in caught.value.fix
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(BackendError, match="no credentials") as caught:
        client_of(service).jobs(["a"])
    assert not isinstance(caught.value, Away) and "aws configure" in caught.value.fix
    assert not service.headers


def test_silence_is_counted_and_nothing_is_asked_when_the_driver_leaves(service: Service) -> None:
    client = client_of(service, endpoint_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Away, match="does not answer"):
        client.jobs(["a"])
    client.abandon()
    with pytest.raises(Away, match="leaves"):
        client.jobs(["a"])
    assert client.calls["describe_jobs"] == 1


def test_a_very_long_line_is_several_events_and_one_line(service: Service) -> None:
    """CloudWatch's lines and the copy's are counted alike: nothing is missing, and nothing comes twice."""
    whole = "é" * 131_059  # 262,118 bytes
    texts = ["first", whole, "x" * 262_116, "€ tail", "next", whole]  # the second is cut before a character
    events = [{"timestamp": 1, "message": text} for text in texts]
    page = {"events": events, "nextForwardToken": "f/1"}
    service.answers = [(200, "", page), (200, "", {"events": [], "nextForwardToken": "f/1"})]
    reader = StreamReader()
    reader.read(client_of(service), "group", "stream")
    lines = [line.decode() for line in reader.take()]
    assert lines[0] == "first" and lines[-1] == "next" and len(lines) == 3
    assert lines[1] == "".join(texts[1:4])
    reader.complete("\n".join([*lines, f"{whole} ends here", "", "last"]).encode())
    assert reader.take() == [f"{whole} ends here".encode(), b"last"] and reader.ended


def test_a_log_that_may_not_be_read_comes_from_the_copy(service: Service) -> None:
    service.answers = [(400, "", {"__type": "AccessDeniedException", "message": "not authorized: logs:GetLogEvents"})]
    client, reader = client_of(service), StreamReader()
    reader.read(client, "group", "stream")
    reader.read(client, "group", "stream")
    assert client.calls["get_log_events"] == 1 and reader.take() == []
    reader.complete(b"one\ntwo\n")
    assert reader.take() == [b"one", b"two"]


def test_a_job_whose_queue_may_not_be_seen_waits_all_the_same(service: Service) -> None:
    client = client_of(service)
    platform = BatchPlatform(SITE, {"queue": "q", "image": "i"}, client)
    row = {"jobId": "j-1", "jobName": "j", "jobQueue": "q", "status": "RUNNABLE", "jobDefinition": "d", "startedAt": 1}
    denied = {"message": "User is not authorized to perform: batch:DescribeJobQueues"}
    service.answers = [(200, "", {"jobs": [row]}), (403, "AccessDeniedException", denied)]
    place = BatchJob(id="j-1", name="j", queue="q", folder="s3://b/f", about=[{}], seen=0.0)
    report = platform.look({"a": BatchHandle(job=job_of(BATCH, StepSettings()), place=place)})["a"]
    assert report.status is None and "waits in its queue" in report.message
