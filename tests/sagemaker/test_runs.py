"""Whole runs with SageMaker as the orchestrator and as a step operator, against our own double of its training jobs."""

from __future__ import annotations

import signal
import uuid
from typing import Any

import pytest
from tests.sagemaker.account import SagemakerAccount
from tests.servers.aws import HELPER, PATIENCE, PIPELINES, refuse_named_secrets, started
from tests.waiting import until

SPOT = PIPELINES.replace("(cache=False)\ndef wait", "(cache=False, resources=ResourceSettings(spot=True))\ndef wait")
long = pytest.mark.usefixtures("long_run")


@pytest.fixture
def long_run(long_form: bool) -> None:
    """Of the whole runs, two are in `make test`: each takes a driver, a service and several interpreters."""
    if not long_form:
        pytest.skip("a further whole run: with --long, as `make test-all` has it")


@pytest.fixture
def aws(project: Any, sagemaker_account: SagemakerAccount, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project whose stack is the account."""
    for name, text in sagemaker_account.environment.items():
        monkeypatch.setenv(name, text)
    stacks = sagemaker_account.stacks(sagemaker_account.bucket(f"s-{uuid.uuid4().hex[:12]}"))
    (project.folder / "shared").mkdir(parents=True)
    return project.write({"stoker.toml": stacks, "train.py": SPOT, "helper.py": HELPER})


def test_a_pipeline_whose_answer_to_a_request_is_lost(aws: Any, sagemaker_account: SagemakerAccount) -> None:
    before = set(sagemaker_account.control(deaf=True)["jobs"])
    done = aws.run("train.py", "learn", timeout=300.0)
    assert "total 5" in done.stdout, done.stdout + done.stderr
    log = aws.stoker("logs", "last", "make").stdout
    assert log.count("made in") == log.count("a word aside") == 1, log
    assert len(set(sagemaker_account.control()["jobs"]) - before) == 4, "each step ran once"
    assert not sagemaker_account.live()


def test_a_step_operator_and_a_failure(aws: Any, sagemaker_account: SagemakerAccount) -> None:
    before = set(sagemaker_account.control(thin=1)["jobs"])
    done = aws.run("train.py", "mixed", env={"STOKER_STACK": "mixed"}, timeout=300.0)
    sagemaker_account.control(thin=None)
    assert "trained by algo-1" in done.stdout and "on 3" in done.stdout, done.stdout + done.stderr
    failed = aws.run("train.py", "wrong", code=None, timeout=300.0)
    assert failed.returncode and "three is too much" in failed.stdout + failed.stderr
    jobs = sagemaker_account.control()["jobs"]
    first, second = (jobs[name] for name in jobs if name not in before)
    assert first["TrainingJobStatus"] == "Completed"
    assert "AlgorithmError: the step failed on 127.0.0.1" in second["FailureReason"]
    assert second["FailureReason"].endswith("exit code: 1")


def test_no_request_has_a_secret_of_the_secrets_manager(aws: Any, sagemaker_account: SagemakerAccount) -> None:
    before = set(sagemaker_account.control()["jobs"])
    refuse_named_secrets(aws)
    assert set(sagemaker_account.control()["jobs"]) == before


@long
def test_a_gang_is_one_job_of_several_instances(aws: Any, sagemaker_account: SagemakerAccount) -> None:
    done = aws.run("train.py", "gang", timeout=300.0)
    assert "'rank': 1, 'node': 1, 'of': 2" in done.stdout, done.stdout + done.stderr
    assert not sagemaker_account.live()


@long
def test_a_killed_driver_is_taken_over_and_a_cancelled_step_ends_in_time(
    aws: Any, sagemaker_account: SagemakerAccount
) -> None:
    folder = aws.folder / "shared"
    driver = started(aws, folder)
    until(lambda: list(folder.glob("begun-*")), "the step")
    driver.kill()
    driver.communicate()
    before = set(sagemaker_account.control()["jobs"])
    assert len(sagemaker_account.live()) == 1, "the job goes on without its driver"
    (folder / "go").touch()
    aws.stoker("resume", "last", timeout=300.0)
    assert set(sagemaker_account.control()["jobs"]) == before, "the job was taken over, and none sent"
    assert len(list(folder.glob("begun-*"))) == 1
    assert "waiting" in aws.stoker("logs", "last", "wait").stdout
    # Cancelled: the worker gets SIGTERM, and the step ends by itself.
    (folder / "go").unlink()
    driver = started(aws, folder)
    until(lambda: len(list(folder.glob("begun-*"))) == 2, "the second run")
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode, output
    until(lambda: not sagemaker_account.live(), "the end of the job")
    assert (folder / "stopped").exists(), output


@long
def test_instances_that_go_cost_no_retry(aws: Any, sagemaker_account: SagemakerAccount) -> None:
    folder = aws.folder / "shared"
    driver = started(aws, folder)
    until(lambda: list(folder.glob("begun-*")), "the step")
    (name,) = sagemaker_account.live()
    sagemaker_account.control(interrupt=name)  # SageMaker starts it again itself
    until(lambda: len(list(folder.glob("begun-*"))) == 2, "the second start")
    assert sagemaker_account.live() == [name]
    sagemaker_account.control(**{"break": name})  # Stoker sends it again
    until(lambda: len(list(folder.glob("begun-*"))) == 3, "the third start")
    assert len(sagemaker_account.live()) == 1 and sagemaker_account.live() != [name]
    (folder / "go").touch()
    output, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, output
    assert len(aws.client().run("last").steps["wait"].attempts) == 1
    assert aws.stoker("logs", "last", "wait").stdout.count("waiting") >= 2
    assert not sagemaker_account.live()


@long
def test_a_full_quota_is_waited_for_and_what_is_left_is_ended(aws: Any, sagemaker_account: SagemakerAccount) -> None:
    folder = aws.folder / "shared"
    driver = started(aws, folder)
    until(lambda: list(folder.glob("begun-*")), "the step")
    driver.kill()
    driver.communicate()
    sagemaker_account.control(quota=1)
    try:
        other = started(aws, folder)
        calls = sagemaker_account.control()["calls"]["CreateTrainingJob"]
        until(lambda: sagemaker_account.control()["calls"]["CreateTrainingJob"] > calls + 1, "further requests")
        assert len(list(folder.glob("begun-*"))) == 1 and other.poll() is None
        first = aws.client().runs()[-1].id
        cancelled = aws.stoker("cancel", first, code=None, timeout=200.0)
        until(lambda: len(list(folder.glob("begun-*"))) == 2, f"the second: {cancelled.stdout}{cancelled.stderr}")
        other.kill()
        other.communicate()
        assert len(sagemaker_account.live()) == 1
        aws.stoker("gc", "--force", code=None, timeout=200.0)
        until(lambda: not sagemaker_account.live(), "the end of the job")
    finally:
        sagemaker_account.control(quota=1000)
