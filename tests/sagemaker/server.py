"""Our own double of SageMaker's training jobs over HTTP, from botocore's model, with moto behind it for S3, CloudWatch,
IAM and STS.

It is not the service. A job's instance is a process of this machine that runs the request's entry point, with a folder
for /opt/ml; a gang has one for each instance, and loopback addresses for the names "algo-1" and so on. Requests are
checked against botocore's model, its patterns too. What it does as the service's documentation says:

* a name is taken once; a channel's objects are below input/data; resourceconfig.json names the hosts
* lines go to the stream JOB/algo-N-SECONDS of /aws/sagemaker/TrainingJobs
* StopTrainingJob sends SIGTERM, and SIGKILL after 120 seconds; any exit code but 0 fails the job with output/failure
  as its reason

`POST /double` with {"hold": true} leaves jobs Starting until {"hold": false}; {"interrupt": NAME} takes a spot job's
instances away and starts it again; {"break": NAME} fails a job with an InternalServerError; {"deaf": true} does what
the next CreateTrainingJob says and answers 503; {"quota": N} lets N instances run; {"short": NAME} fails a job that is
Starting with a CapacityError; {"silent": NAME} answers 503 where the lines of a job are asked for, {"closed": true}
refuses logs to everybody; {"thin": SEED} has answers lack what they need not have, and have words that nobody knows,
until {"thin": null}. An answer that is not as botocore's model has it is an error.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterable

import botocore.session
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from tests.sagemaker.model import problems
from tests.servers.awsmodel import as_the_service
from werkzeug.serving import run_simple
from werkzeug.wrappers import Request, Response

GROUP = "/aws/sagemaker/TrainingJobs"
STOP = 120.0
ROOT = "/opt/ml"
SHORT = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
)
"""As AWS has it: https://github.com/DIAGNijmegen/rse-grand-challenge/issues/2631"""
ACCOUNT = "arn:aws:sagemaker:us-east-1:123456789012:training-job"


class Training:
    """One training job, run in a thread."""

    def __init__(self, request: dict[str, Any], front: Front, folder: Path) -> None:
        self.request, self.front, self.folder = request, front, folder
        self.name = request["TrainingJobName"]
        self.created = self.modified = time.time()
        self.status, self.reason = "InProgress", ""
        self.transitions: list[dict[str, Any]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.stopping = self.interrupted = self.broken = self.short = False
        self.turn("Starting", "Preparing the instances for training")
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def turn(self, secondary: str, message: str = "") -> None:
        """Go into a state."""
        self.secondary, self.modified = secondary, time.time()
        if self.transitions:
            self.transitions[-1]["EndTime"] = self.modified
        self.transitions.append({"Status": secondary, "StartTime": self.modified, "StatusMessage": message})

    def over(self, status: str, reason: str = "") -> None:
        """End."""
        self.reason = reason
        self.status = status
        self.turn(status)

    def run(self) -> None:
        """From its instances to its end."""
        try:
            while True:
                while self.front.hold and not self.stopping and not self.short:
                    time.sleep(0.05)
                if self.short:
                    return self.over("Failed", SHORT)
                if self.stopping:
                    return self.over("Stopped")
                codes = self.once()
                if self.broken:
                    return self.over(
                        "Failed", "InternalServerError: We encountered an internal error. Please try again."
                    )
                if self.interrupted and not self.stopping:
                    self.interrupted = False
                    self.turn("Interrupted")
                    continue
                break
            if self.stopping:
                return self.over("Stopped")
            wrong = [code for code in codes if code]
            if not wrong:
                self.turn("Uploading")
                return self.over("Completed")
            failure = next(iter(self.folder.glob("*/output/failure")), None)
            said = failure.read_text() if failure else ""
            code = wrong[0] if wrong[0] > 0 else 128 - wrong[0]
            self.over("Failed", f"AlgorithmError: {said}, exit code: {code}")
        except Exception as error:
            self.over("Failed", f"ClientError: {error}")

    def once(self) -> list[int]:
        """Run the containers; their exit codes."""
        count = self.request["ResourceConfig"]["InstanceCount"]
        hosts = [f"127.0.0.{number + 1}" for number in range(count)]
        self.turn("Downloading", "Downloading input data")
        started = int(time.time())
        readers = []
        self.processes = []
        for number, host in enumerate(hosts):
            root = self.folder / f"algo-{number + 1}-{len(self.transitions)}"
            self.fill(root, hosts, host)
            entry = self.request["AlgorithmSpecification"]["ContainerEntrypoint"]
            words = [str(root / word.removeprefix(f"{ROOT}/")) if word.startswith(ROOT) else word for word in entry]
            words[0] = sys.executable if words[0] == "python3" else words[0]
            process = subprocess.Popen(
                words,
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**self.front.environment, **self.request.get("Environment", {}), "HOME": str(root)},
            )
            self.processes.append(process)
            stream = f"{self.name}/algo-{number + 1}-{started}"
            readers.append(threading.Thread(target=self.front.keep_lines, args=(process, stream), daemon=True))
        self.turn("Training", "Training image download completed. Training in progress.")
        for reader in readers:
            reader.start()
        if self.stopping:
            self.signal(signal.SIGTERM)
        codes = [process.wait() for process in self.processes]
        for reader in readers:
            reader.join()
        return codes

    def fill(self, root: Path, hosts: list[str], host: str) -> None:
        """What SageMaker puts into /opt/ml."""
        (root / "input" / "config").mkdir(parents=True)
        (root / "output").mkdir()
        place = {"current_host": host, "hosts": hosts, "network_interface_name": "lo"}
        (root / "input" / "config" / "resourceconfig.json").write_text(json.dumps(place))
        for channel in self.request["InputDataConfig"]:
            bucket, _, prefix = channel["DataSource"]["S3DataSource"]["S3Uri"].removeprefix("s3://").partition("/")
            s3 = self.front.client("s3")
            rows = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
            if not rows:
                raise ValueError(f"Data download failed: No S3 objects found under S3 URL s3://{bucket}/{prefix}")
            for row in rows:
                file = root / "input" / "data" / channel["ChannelName"] / row["Key"].removeprefix(prefix)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(s3.get_object(Bucket=bucket, Key=row["Key"])["Body"].read())

    def signal(self, number: int) -> None:
        """Send the containers' first processes a signal."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after 120 seconds."""
        self.stopping = True
        self.status = "Stopping"
        self.turn("Stopping")
        self.signal(signal.SIGTERM)
        killer = threading.Timer(STOP, self.signal, (signal.SIGKILL,))
        killer.daemon = True
        killer.start()

    def take_away(self) -> None:
        """End everything in the containers at once, as when an instance goes."""
        for process in self.processes:
            if process.poll() is None:
                end_session(process.pid)
                process.kill()

    def summary(self) -> dict[str, Any]:
        """As ListTrainingJobs has it."""
        return {
            "TrainingJobName": self.name,
            "TrainingJobArn": f"{ACCOUNT}/{self.name}",
            "CreationTime": self.created,
            "LastModifiedTime": self.modified,
            "TrainingJobStatus": self.status,
            "SecondaryStatus": self.secondary,
            **({"TrainingEndTime": self.modified} if self.status in ("Completed", "Failed", "Stopped") else {}),
        }

    def description(self) -> dict[str, Any]:
        """As DescribeTrainingJob has it."""
        own = {name: part for name, part in self.request.items() if name != "Tags"}
        row = {**own, **self.summary(), "ModelArtifacts": {"S3ModelArtifacts": ""}}
        began = next((one["StartTime"] for one in self.transitions if one["Status"] == "Training"), None)
        row.update({} if began is None else {"TrainingStartTime": began})
        row["SecondaryStatusTransitions"] = list(self.transitions)
        return {**row, "FailureReason": self.reason} if self.reason else row


class Front:
    """The WSGI application."""

    def __init__(self, port: int, folder: Path) -> None:
        self.inner = DomainDispatcherApplication(create_backend_app)
        self.address, self.folder = f"http://127.0.0.1:{port}", folder
        self.jobs: dict[str, Training] = {}
        self.lock = threading.RLock()
        self.local = threading.local()
        self.hold = self.deaf = False
        self.quota = 1000
        self.silent = ""
        self.closed = False
        self.dice: random.Random | None = None
        self.calls: dict[str, int] = {}
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "TMPDIR", "LANG") if name in os.environ},
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
        }

    def client(self, service: str) -> Any:
        """botocore's client of this very server, one for each thread."""
        clients = self.local.__dict__.setdefault("clients", {})
        if service not in clients:
            words = {"aws_access_key_id": "tests", "aws_secret_access_key": "tests", "region_name": "us-east-1"}
            session = botocore.session.get_session()
            clients[service] = session.create_client(service, endpoint_url=self.address, **words)
        return clients[service]

    def keep_lines(self, process: subprocess.Popen[bytes], stream: str) -> None:
        """Bring a container's lines to CloudWatch."""
        logs = self.client("logs")
        with self.lock:
            groups = logs.describe_log_groups(logGroupNamePrefix=GROUP)["logGroups"]
            if not groups:
                logs.create_log_group(logGroupName=GROUP)
        logs.create_log_stream(logGroupName=GROUP, logStreamName=stream)
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if text:
                event = {"timestamp": int(time.time() * 1000), "message": text}
                logs.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=[event])

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        if request.path == "/double":
            return self._control(json.loads(request.get_data() or b"{}"))(environ, start_response)
        service, _, operation = request.headers.get("X-Amz-Target", "").partition(".")
        if service != "SageMaker":
            if self.closed and operation in ("GetLogEvents", "DescribeLogStreams"):
                return _error("AccessDeniedException", f"not authorized: logs:{operation}")(environ, start_response)
            if operation == "GetLogEvents" and self.silent and self.silent in request.get_data(as_text=True):
                return _error("ServiceUnavailableException", "not now", 503)(environ, start_response)
            environ["wsgi.input"] = (
                io.BytesIO(request.get_data()) if operation == "GetLogEvents" else environ["wsgi.input"]
            )
            return self.inner(environ, start_response)
        body = json.loads(request.get_data() or b"{}")
        with self.lock:
            self.calls[operation] = self.calls.get(operation, 0) + 1
            wrong = problems(operation, body)
            handler: Callable[..., Response] | None = getattr(self, f"on_{operation}", None)
            if wrong or handler is None:
                answer = _error("ValidationException", "; ".join(wrong) or f"{operation} is not in the double")
            else:
                answer = self._checked(operation, handler(body))
        return answer(environ, start_response)

    def _checked(self, operation: str, answer: Response) -> Response:
        """The answer as the service's model has it."""
        if answer.status_code != 200:
            return answer
        body, wrong = as_the_service("sagemaker", operation, json.loads(answer.get_data()), self.dice)
        return _error("InternalFailure", f"the double's answer: {wrong}", 500) if wrong else _json(body)

    def _control(self, words: dict[str, Any]) -> Response:
        with self.lock:
            self.hold = words.get("hold", self.hold)
            self.deaf = words.get("deaf", self.deaf)
            self.quota = words.get("quota", self.quota)
            self.silent = words.get("silent", self.silent)
            self.closed = words.get("closed", self.closed)
            if "thin" in words:
                self.dice = None if words["thin"] is None else random.Random(words["thin"])
            if "short" in words:
                self.jobs[words["short"]].short = True
            for word in ("interrupt", "break"):
                if word in words:
                    job = self.jobs[words[word]]
                    job.interrupted, job.broken = word == "interrupt", word == "break"
                    job.take_away()
            jobs = {name: job.description() for name, job in self.jobs.items()}
        return Response(json.dumps({"calls": self.calls, "jobs": jobs}), content_type="application/json")

    def on_CreateTrainingJob(self, body: dict[str, Any]) -> Response:  # noqa: N802  # the operation's name
        """Start a job."""
        name = body["TrainingJobName"]
        if name in self.jobs:
            return _error("ResourceInUse", f"Training job names must be unique within an AWS account: {name}")
        machine = body["ResourceConfig"]
        live = [job.request["ResourceConfig"] for job in self.jobs.values() if job.status in ("InProgress", "Stopping")]
        used = sum(one["InstanceCount"] for one in live)
        if used + machine["InstanceCount"] > self.quota:
            kind = machine["InstanceType"]
            text = (
                f"The account-level service limit '{kind} for training job usage' is {self.quota} Instances, with "
                f"current utilization of {used} Instances and a request delta of {machine['InstanceCount']} Instances. "
                "Please use AWS Service Quotas to request an increase for this quota."
            )
            return _error("ResourceLimitExceeded", text)
        self.jobs[name] = Training(body, self, self.folder / name)
        if self.deaf:
            self.deaf = False
            return _error("ServiceUnavailable", "not now", 503)
        return _json({"TrainingJobArn": f"{ACCOUNT}/{name}"})

    def on_DescribeTrainingJob(self, body: dict[str, Any]) -> Response:  # noqa: N802
        """A job."""
        job = self.jobs.get(body["TrainingJobName"])
        return (
            _error("ValidationException", "Requested resource not found.") if job is None else _json(job.description())
        )

    def on_StopTrainingJob(self, body: dict[str, Any]) -> Response:  # noqa: N802
        """End a job."""
        job = self.jobs.get(body["TrainingJobName"])
        if job is None:
            return _error("ValidationException", "Requested resource not found.")
        if job.status not in ("InProgress", "Stopping"):
            return _error("ValidationException", f"The request was rejected because the job is in status {job.status}.")
        if job.status == "InProgress":
            job.stop()
        return _json({})

    def on_ListTrainingJobs(self, body: dict[str, Any]) -> Response:  # noqa: N802
        """Pages of two jobs, the newest first."""
        rows = [job.summary() for job in self.jobs.values() if body.get("NameContains", "") in job.name]
        if "StatusEquals" in body:
            rows = [row for row in rows if row["TrainingJobStatus"] == body["StatusEquals"]]
        rows.sort(key=lambda row: -row["CreationTime"])
        at = int(body.get("NextToken") or 0)
        page: dict[str, Any] = {"TrainingJobSummaries": rows[at : at + 2]}
        return _json({**page, "NextToken": str(at + 2)} if len(rows) > at + 2 else page)


def end_session(leader: int) -> None:
    """Kill every process of a container: those that have its first one among their parents."""
    import psutil

    try:
        children = psutil.Process(leader).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for child in children:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue


def _json(body: dict[str, Any]) -> Response:
    return Response(json.dumps(body), content_type="application/x-amz-json-1.1")


def _error(code: str, message: str, status: int = 400) -> Response:
    text = json.dumps({"__type": code, "message": message})
    return Response(text, status=status, content_type="application/x-amz-json-1.1")


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    with tempfile.TemporaryDirectory() as folder:
        front = Front(port, Path(folder))

        def leave(number: int, frame: object) -> None:
            for job in front.jobs.values():
                job.take_away()
            raise SystemExit

        signal.signal(signal.SIGTERM, leave)
        run_simple("127.0.0.1", port, front, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
