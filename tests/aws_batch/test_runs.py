"""Whole runs on a stack whose orchestrator is AWS Batch: moto runs the containers, and our double what moto lacks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from typing import Any

import pytest
from tests.aws_batch.cluster import BatchAccount
from tests.cli.byhand import code, paste, scripts
from tests.servers.aws import HELPER, PATIENCE, PIPELINES, refuse_named_secrets, started
from tests.waiting import until

FLOW = """
import os, sys

from stoker.flow import FlowSpec, batch, current, environment, step

class Placed(FlowSpec):
    @batch(cpu=1, memory=512, queue="cpu-q", shared_memory=64, aws_batch_tags={"team": "ml"})
    @environment(vars={"LR": "0.1"})
    @step
    def start(self):
        self.lr, self.there = os.environ["LR"], bool(os.environ.get("STOKER_JOB"))
        self.items = [1, 2]
        self.next(self.square, foreach="items")

    @batch
    @step
    def square(self):
        self.squared, self.element = self.input**2, os.environ.get("AWS_BATCH_JOB_ARRAY_INDEX")
        self.next(self.join)

    @step
    def join(self, inputs):
        self.total, self.parts = sum(one.squared for one in inputs), sorted(one.element for one in inputs)
        self.merge_artifacts(inputs, include=["lr", "there"])
        self.next(self.end)

    @step
    def end(self):
        print("placed", self.lr, self.there, self.total, self.parts, bool(os.environ.get("STOKER_JOB")))

if __name__ == "__main__":
    Placed()
"""
# What the script asks of AWS's command line, which may not be installed where tests run, by botocore.
AWS = """#!{python}
import json, sys
import botocore.session

words = sys.argv[1:]
session = botocore.session.get_session()

def told(word):
    return json.load(open(words[words.index(word) + 1].removeprefix("file://")))

if words[:2] == ["s3", "ls"]:
    bucket, _, key = words[2].removeprefix("s3://").partition("/")
    sys.exit(not session.create_client("s3").list_objects_v2(Bucket=bucket, Prefix=key).get("Contents"))
elif words[:2] == ["s3", "cp"]:
    bucket, _, key = words[3].removeprefix("s3://").partition("/")
    session.create_client("s3").put_object(Bucket=bucket, Key=key, Body=open(words[2], "rb").read())
elif words[:2] == ["batch", "register-job-definition"]:
    session.create_client("batch").register_job_definition(**told("--cli-input-json"))
elif words[:2] == ["batch", "submit-job"]:
    answer = session.create_client("batch").submit_job(**told("--cli-input-json"))
    print(json.dumps({{"jobId": answer["jobId"]}}))
else:
    sys.exit(f"unknown: {{words}}")
"""


@pytest.fixture
def aws(project: Any, batch_account: BatchAccount, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project whose stack is the account; its containers see the project's folder."""
    for name, text in batch_account.environment.items():
        monkeypatch.setenv(name, text)
    stack = batch_account.stack(f"b-{uuid.uuid4().hex[:12]}")
    shared = project.folder / "shared"
    shared.mkdir()
    stack = stack.replace("host_volumes = {", f'host_volumes = {{"{shared}" = "{shared}", ')
    return project.write({"stoker.toml": stack, "train.py": PIPELINES, "helper.py": HELPER})


@pytest.mark.slow
def test_a_pipeline_with_a_fan_out(aws: Any, batch_account: BatchAccount) -> None:
    before = batch_account.control()["submissions"]
    done = aws.run("train.py", "learn", timeout=300.0)
    assert "total 5" in done.stdout, done.stdout
    log = aws.stoker("logs", "last", "make").stdout
    assert log.count("made in") == log.count("a word aside") == 1, log
    assert batch_account.control()["submissions"] - before == 3, "the fan-out is one array"
    failed = aws.run("train.py", "wrong", code=None, timeout=300.0)
    assert failed.returncode and "three is too much" in failed.stdout + failed.stderr
    assert not batch_account.live()


@pytest.mark.long  # as on SageMaker: tests/sagemaker/test_runs.py
@pytest.mark.slow
def test_no_request_has_a_secret_of_the_secrets_manager(aws: Any, batch_account: BatchAccount) -> None:
    before = batch_account.control()["submissions"]
    refuse_named_secrets(aws)
    assert batch_account.control()["submissions"] == before


@pytest.mark.slow
def test_a_gang_is_a_multi_node_parallel_job(aws: Any, batch_account: BatchAccount) -> None:
    done = aws.run("train.py", "gang", timeout=300.0)
    assert "'rank': 1, 'node': 1, 'of': 2" in done.stdout, done.stdout
    assert not batch_account.live()


@pytest.mark.slow
def test_a_killed_driver_is_taken_over_and_a_cancelled_step_ends_in_time(aws: Any, batch_account: BatchAccount) -> None:
    folder = aws.folder / "shared"
    driver = started(aws, folder)
    until(lambda: list(folder.glob("begun-*")), "the step")
    driver.kill()
    driver.communicate()
    before = batch_account.control()["submissions"]
    assert len(batch_account.live()) == 1, "the job goes on without its driver"
    (folder / "go").touch()
    resumed = aws.stoker("resume", "last", timeout=300.0)
    assert resumed.returncode == 0
    assert batch_account.control()["submissions"] == before, "the job was taken over, and none sent"
    assert len(list(folder.glob("begun-*"))) == 1
    assert "waiting" in aws.stoker("logs", "last", "wait").stdout
    assert not batch_account.live()
    # Cancelled: the worker gets SIGTERM, and the step ends by itself.
    (folder / "go").unlink()
    driver = started(aws, folder)
    until(lambda: len(list(folder.glob("begun-*"))) == 2, "the second run")
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode, output
    until(lambda: not batch_account.live(), "the end of the job")
    assert (folder / "stopped").exists(), output


@pytest.mark.long
@pytest.mark.slow
def test_a_reclaimed_instance_costs_no_retry(aws: Any, batch_account: BatchAccount) -> None:
    folder = aws.folder / "shared"
    driver = started(aws, folder)
    until(lambda: list(folder.glob("begun-*")), "the step")
    (job,) = batch_account.live()
    batch_account.control(reclaim=job["jobId"])
    until(lambda: len(list(folder.glob("begun-*"))) == 2, "the second start")
    (folder / "go").touch()
    output, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, output
    assert len(aws.client().run("last").steps["wait"].attempts) == 1
    assert not batch_account.live()


@pytest.mark.long
@pytest.mark.slow
def test_thousands_of_lines_come_while_they_are_written_and_once(aws: Any) -> None:
    """15,000 lines in pages of 1,000: streamed by the double, which has the lines of running containers, and read by a
    second driver from the beginning when the first is killed."""
    folder = aws.folder / "shared"
    arguments = [sys.executable, "train.py", "talk", str(folder)]
    environment = {**os.environ, "STOKER_HOME": str(aws.home)}
    driver = subprocess.Popen(
        arguments, cwd=aws.folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(
        lambda: aws.client().runs("talkative") and "before 2499 " in aws.stoker("logs", "last", code=None).stdout,
        "the lines of a step that runs",
    )
    driver.kill()
    driver.wait()
    (folder / "go").touch()
    aws.stoker("resume", "last", timeout=300.0)
    run = aws.client().run("last")
    assert run.steps["talk"].output.load() == 7
    lines = [
        line for line in aws.stoker("logs", "last", "talk").stdout.splitlines() if "before" in line or "after" in line
    ]
    words = [line[line.index("before" if "before" in line else "after") :].split()[:2] for line in lines]
    expected = [["before", str(number)] for number in range(2500)] + [["after", str(number)] for number in range(12500)]
    assert words == expected, (len(words), words[:3], words[-3:])


@pytest.mark.slow
def test_a_flow_with_decorators_and_with_words(aws: Any, batch_account: BatchAccount, long_form: bool) -> None:
    text = (aws.folder / "stoker.toml").read_text()
    parts = "[stacks.batch.step_operators.cloud]"
    aws.write({"flow.py": FLOW, "stoker.toml": text.replace("[stacks.batch.orchestrator]", parts)})
    before = batch_account.control()["submissions"]
    here = [word for name in ("join", "end") for word in ("--set", f"steps.{name}.docker=null")]
    done = aws.run("flow.py", "run", *here, timeout=300.0)
    assert "placed 0.1 True 5 ['0', '1'] False" in done.stdout + done.stderr, done.stdout + done.stderr
    assert batch_account.control()["submissions"] - before == 2, "one job, and an array"
    if long_form:
        plain = FLOW.replace("    @batch\n", "").replace("    @batch(", "    #").replace(", batch,", ",")
        aws.write({"flow.py": plain})
        done = aws.run("flow.py", "run", "--with", "batch:queue=cpu-q,memory=256", timeout=300.0)
        assert "placed 0.1 True 5 ['0', '1'] True" in done.stdout + done.stderr, done.stdout + done.stderr
    refused = aws.run("flow.py", "run", "--with", "batch:que=cpu-q", code=None)
    assert refused.returncode and "did you mean 'queue'" in refused.stderr
    assert not batch_account.live()


@pytest.mark.slow
def test_a_job_is_sent_by_hand(aws: Any, batch_account: BatchAccount, tmp_path: Any) -> None:
    """By AWS's own command line where it is installed."""
    aws.write({"train.py": code()})
    load, total = scripts(aws)
    path = os.environ["PATH"]
    if shutil.which("aws") is None:
        command = tmp_path / "programs" / "aws"
        command.parent.mkdir()
        command.write_text(AWS.format(python=sys.executable))
        command.chmod(0o755)
        path = f"{command.parent}{os.pathsep}{path}"
    assert "Stoker's worker, which the first run puts there" in paste(load, aws.folder, PATH=path).stderr
    aws.run("train.py", timeout=300.0)
    assert "*** stands for each" in paste(load, aws.folder, PATH=path).stderr  # AWS_SECRET_ACCESS_KEY of the stack
    done = paste(load.replace('"***"', '"tests"'), aws.folder, PATH=path)
    found = re.search(r'"jobId": "([^"]+)"', done.stdout)
    assert found is not None, done.stdout + done.stderr
    client = batch_account.client()
    until(lambda: client.jobs([found[1]])[found[1]]["status"] == "SUCCEEDED", "the job's end")
    client.close()
    place = done.stdout.partition("its result: ")[2].split()[0]
    bucket, _, key = place.removeprefix("s3://").partition("/")
    document = json.loads(batch_account.client().call("s3", "get_object", Bucket=bucket, Key=key)["Body"].read())
    assert document["outputs"]["output"]["i"] == "[0,1,2]", document
    assert "missing: the inputs numbers of total" in paste(total, aws.folder, PATH=path).stderr


@pytest.mark.long
@pytest.mark.slow
def test_gc_ends_what_is_left_and_deregisters_definitions(aws: Any, batch_account: BatchAccount) -> None:
    folder = aws.folder / "shared"
    driver = started(aws, folder)
    until(lambda: list(folder.glob("begun-*")), "the step")
    driver.kill()
    driver.communicate()
    assert len(batch_account.live()) == 1
    cancelled = aws.stoker("cancel", "last", code=None, timeout=200.0)
    until(lambda: not batch_account.live(), f"the end of the job: {cancelled.stdout}{cancelled.stderr}")
    aws.stoker("gc", timeout=200.0)
    client = batch_account.client()
    left = [row for row in client.definitions() if row.get("tags", {}).get("stoker") == "definition"]
    client.close()
    assert not left
