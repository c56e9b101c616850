"""moto's server over HTTP, and in front of it our own double of what moto does not model of AWS Batch.

moto runs a job's container with the Docker engine of `DOCKER_HOST`, keeps definitions, queues and tags, and puts the
container's lines into its CloudWatch. What is ours:

* an array is a moto job for each element, with `AWS_BATCH_JOB_ARRAY_INDEX`, and a multi-node parallel job one for each
  node, with `AWS_BATCH_JOB_NODE_INDEX`, `_NUM_NODES` and the main node's address, on loopback; the other nodes are
  ended with the main one. `ID:3` and `ID#1` are described as AWS does
* a job that is ended gets SIGTERM and 30 seconds, as ECS gives them; moto kills it at once
* a container has the secrets of its definition as variables, of AWS Secrets Manager
* exit codes are in what DescribeJobs tells
* `POST /double` with {"faults": N} has the next N calls fail with TooManyRequestsException; {"reclaim": ID} kills a
  job's container and says that its spot instance was terminated; {"queues": {NAME: {…}}} changes what DescribeJobQueues
  says of a queue; {"hold": true} leaves jobs RUNNABLE until {"hold": false}
* compute environments are managed ones of EC2, without instances
* an answer that is not as botocore's model has it is an error
* a line of a log begins with MARK's first letter again, which moto takes for white space
* the log stream of a running container is there, with the lines that it has written until now, which moto keeps until
  its end; GetLogEvents has pages of 1,000 lines, where CloudWatch and moto have 10,000
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import uuid
from typing import Any, Callable, Iterable

import docker
from botocore.validate import ParamValidator
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from tests.servers.awsmodel import as_the_service, operation, projected, service
from werkzeug.serving import run_simple
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

MODEL = service("batch")
OVER = ("SUCCEEDED", "FAILED")
STOP = 30
PAGE = 1000


class Front:
    """The WSGI application."""

    def __init__(self) -> None:
        self.inner = DomainDispatcherApplication(create_backend_app)
        self.moto = Client(self.inner, Response)
        self.lock = threading.RLock()
        self.parents: dict[str, dict[str, Any]] = {}
        """Arrays and multi-node parallel jobs by id: the submission, and the ids of their moto jobs."""
        self.faults = 0
        self.ended: dict[str, str] = {}
        """By moto's id: the reason for which a job was ended."""
        self.reclaimed: set[str] = set()
        self.queues: dict[str, dict[str, Any]] = {}
        self.held: dict[str, tuple[dict[str, Any], dict[str, str]]] = {}
        """Jobs that wait, by id: their submissions."""
        self.alias: dict[str, str] = {}
        """The id that a job had while it waited, and moto's."""
        self.hold = False
        self.submissions = 0
        self.calls: dict[str, int] = {}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        if request.path == "/double":
            return self._control(json.loads(request.get_data() or b"{}"))(environ, start_response)
        path = request.path.removeprefix("/v1/") if request.path.startswith("/v1/") else ""
        handler: Callable[..., Any] | None = getattr(self, f"on_{path}", None) if path else None
        target = request.headers.get("X-Amz-Target", "")
        if target.endswith(".GetLogEvents"):
            environ["wsgi.input"] = _Body(data := request.get_data())
            answer = self._log_events(environ, data)
            return answer(environ, start_response)
        if not path:
            return self.inner(environ, start_response)
        body = json.loads(request.get_data() or b"{}")
        with self.lock:
            self.calls[path] = self.calls.get(path, 0) + 1
            if self.faults:
                self.faults -= 1
                return _error("TooManyRequestsException", "Too Many Requests", 429)(environ, start_response)
        problem = _problem(operation("batch", path), body)
        if problem:
            return _error("ClientException", problem)(environ, start_response)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "content-length"}
        if handler is None:
            answer = self._moto(path, body, headers)
        else:
            answer = handler(body, headers)
        if handler is not None and answer.status_code == 200:
            _, wrong = as_the_service("batch", operation("batch", path), json.loads(answer.get_data()), None)
            answer = _error("ServerException", f"the double's answer: {wrong}", 500) if wrong else answer
        return answer(environ, start_response)

    def _moto(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Response:
        return self.moto.post(f"/v1/{path}", data=json.dumps(body), headers=headers)

    def _control(self, words: dict[str, Any]) -> Response:
        with self.lock:
            self.faults = words.get("faults", self.faults)
            self.queues.update(words.get("queues", {}))
            self.hold = words.get("hold", self.hold)
            released = [] if self.hold else list(self.held.items())
        for id, (body, headers) in released:
            self._release(id, body, headers)
        if "reclaim" in words:
            moto_id = self.alias.get(words["reclaim"], words["reclaim"])
            self.reclaimed.add(moto_id)
            for container in _containers(moto_id):
                container.kill()
        state = {"calls": self.calls, "submissions": self.submissions, "held": list(self.held)}
        return Response(json.dumps(state), content_type="application/json")

    # Jobs

    def on_submitjob(self, body: dict[str, Any], headers: dict[str, str]) -> Response:
        """Plain jobs are moto's; the others are one for each part."""
        with self.lock:
            self.submissions += 1
            if self.hold:
                id = str(uuid.uuid4())
                self.held[id] = (body, headers)
                return _json({"jobId": id, "jobName": body["jobName"], "jobArn": f"arn:aws:batch:::job/{id}"})
        return self._start(body, headers, str(uuid.uuid4()))

    def _release(self, id: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        answer = json.loads(self._start(body, headers, id).get_data())
        with self.lock:
            self.alias[id] = answer["jobId"]
            del self.held[id]

    def _start(self, body: dict[str, Any], headers: dict[str, str], id: str) -> Response:
        size = (body.get("arrayProperties") or {}).get("size", 0)
        definition = self._definition(body["jobDefinition"], headers)
        nodes = (definition.get("nodeProperties") or {}).get("numNodes", 0)
        if not size and not nodes:
            body = {**body, "containerOverrides": self._with_secrets(definition, body, headers)}
            return self._moto("submitjob", body, headers)
        parts = []
        for number in range(size or nodes):
            part = {key: value for key, value in body.items() if key not in ("arrayProperties", "nodeOverrides")}
            part["jobName"] = f"{body['jobName'][:110]}-{number}-part"
            if size:
                extra = {"AWS_BATCH_JOB_ARRAY_INDEX": str(number)}
                overrides = (body.get("containerOverrides") or {}).get("environment", [])
            else:
                extra = {
                    "AWS_BATCH_JOB_NODE_INDEX": str(number),
                    "AWS_BATCH_JOB_NUM_NODES": str(nodes),
                    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
                }
                if number:
                    extra["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "127.0.0.1"
                rows = (body.get("nodeOverrides") or {}).get("nodePropertyOverrides", [])
                overrides = rows[0]["containerOverrides"].get("environment", []) if rows else []
                part["jobDefinition"] = self._plain_definition(definition, headers)
            environment = [*overrides, *({"name": name, "value": text} for name, text in extra.items())]
            part["containerOverrides"] = {"environment": environment}
            parts.append(json.loads(self._moto("submitjob", part, headers).get_data())["jobId"])
        with self.lock:
            self.parents[id] = {
                "body": body,
                "parts": parts,
                "array": bool(size),
                "nodes": definition.get("nodeProperties"),
                "created": time.time(),
            }
        if nodes:
            threading.Thread(target=self._end_with_main, args=(id, headers), daemon=True).start()
        return _json({"jobId": id, "jobName": body["jobName"], "jobArn": f"arn:aws:batch:::job/{id}"})

    def _definition(self, name: str, headers: dict[str, str]) -> dict[str, Any]:
        from moto.batch.models import batch_backends

        region = _region(headers)
        found = batch_backends["123456789012"][region].get_job_definition(name)
        return {} if found is None else {**found.describe(), "nodeProperties": found.node_properties}

    def _with_secrets(
        self, definition: dict[str, Any], body: dict[str, Any], headers: dict[str, str]
    ) -> dict[str, Any]:
        """A job's overrides with the values of its definition's secrets, which ECS reads as the execution role."""
        from moto.secretsmanager.models import secretsmanager_backends

        overrides = body.get("containerOverrides") or {}
        backend = secretsmanager_backends["123456789012"][_region(headers)]
        values = []
        for secret in (definition.get("containerProperties") or {}).get("secrets") or ():
            # https://docs.aws.amazon.com/batch/latest/userguide/specifying-sensitive-data-secrets.html
            parts = secret["valueFrom"].split(":")
            text = backend.get_secret_value(":".join(parts[:7]), None, None)["SecretString"]
            field = parts[7] if len(parts) > 7 else ""
            values.append({"name": secret["name"], "value": json.loads(text)[field] if field else text})
        return {**overrides, "environment": [*overrides.get("environment", []), *values]} if values else overrides

    def _plain_definition(self, definition: dict[str, Any], headers: dict[str, str]) -> str:
        container = definition["nodeProperties"]["nodeRangeProperties"][0]["container"]
        body = {
            "jobDefinitionName": f"{definition['jobDefinitionName'][:100]}-node",
            "type": "container",
            "containerProperties": container,
        }
        return str(json.loads(self._moto("registerjobdefinition", body, headers).get_data())["jobDefinitionArn"])

    def _end_with_main(self, id: str, headers: dict[str, str]) -> None:
        parts = self.parents[id]["parts"]
        while self._rows([parts[0]], headers)[0]["status"] not in OVER:
            time.sleep(0.2)
        for part in parts[1:]:
            self._stop(part, "Main node ended", headers)

    def on_describejobs(self, body: dict[str, Any], headers: dict[str, str]) -> Response:
        """Jobs, elements and nodes."""
        rows = []
        for id in body["jobs"]:
            if id in self.held:
                waiting = self.held[id][0]
                rows.append(self._row_of(id, waiting, "RUNNABLE"))
                continue
            real = self.alias.get(id, id)
            parent, mark, number = real.partition(":") if ":" in real else real.partition("#")
            if mark and parent in self.alias:
                parent = self.alias[parent]
            if mark and parent in self.parents and int(number) < len(self.parents[parent]["parts"]):
                (row,) = self._rows([self.parents[parent]["parts"][int(number)]], headers)
                row["jobName"] = self.parents[parent]["body"]["jobName"]
                if mark == ":":
                    row["arrayProperties"] = {"index": int(number)}
                else:
                    row["nodeDetails"] = {"nodeIndex": int(number), "isMainNode": number == "0"}
                rows.append({**row, "jobId": id})
            elif real in self.parents:
                rows.append({**self._parent_row(real, headers), "jobId": id})
            else:
                rows += [{**row, "jobId": id} for row in self._rows([real], headers)]
        return _json({"jobs": [{"startedAt": 0, **row} for row in rows]})  # the model requires it of all

    def _row_of(self, id: str, body: dict[str, Any], status: str) -> dict[str, Any]:
        return {
            "jobId": id,
            "jobName": body["jobName"],
            "jobQueue": body["jobQueue"],
            "jobDefinition": body["jobDefinition"],
            "status": status,
            "tags": body.get("tags", {}),
            "createdAt": int(time.time() * 1000),
        }

    def _parent_row(self, id: str, headers: dict[str, str]) -> dict[str, Any]:
        parent = self.parents[id]
        rows = self._rows(parent["parts"], headers)
        states = [row["status"] for row in rows]
        if not parent["array"]:
            row = {**self._row_of(id, parent["body"], states[0]), **_ends(rows[0])}
            row["nodeProperties"] = {**parent["nodes"], "numNodes": len(rows), "mainNode": 0}
            return row
        status = "PENDING"
        if all(state in OVER for state in states):
            status = "FAILED" if "FAILED" in states else "SUCCEEDED"
        row = self._row_of(id, parent["body"], status)
        row["arrayProperties"] = {
            "size": len(states),
            "statusSummary": {state: states.count(state) for state in set(states)},
        }
        return row

    def _rows(self, ids: list[str], headers: dict[str, str]) -> list[dict[str, Any]]:
        from moto.batch.models import batch_backends

        rows = json.loads(self._moto("describejobs", {"jobs": ids}, headers).get_data()).get("jobs", [])
        backend = batch_backends["123456789012"][_region(headers)]
        rows = _without_null(rows)
        for row in rows:
            job = backend.get_job_by_id(row["jobId"])
            row.get("container", {}).pop("vcpus", None)  # moto has a fraction of what is in resourceRequirements
            if job.exit_code is not None and row["status"] in OVER:
                row.setdefault("container", {})["exitCode"] = job.exit_code
                if row["jobId"] in self.ended and job.exit_code:
                    row["status"] = "FAILED"
            if row["status"] == "RUNNING":
                row.setdefault("container", {})["logStreamName"] = job._stream_name
            if row["jobId"] in self.ended and row["status"] == "FAILED":
                row.update(statusReason=self.ended[row["jobId"]], isTerminated=True)
            if row["jobId"] in self.reclaimed and row["status"] in OVER:
                row.update(status="FAILED", statusReason="Host EC2 (instance i-0123456789abcdef0) terminated.")
                row.get("container", {}).pop("exitCode", None)
            elif row["status"] == "FAILED" and "statusReason" not in row:
                row["statusReason"] = "Essential container in task exited"
        return rows

    def on_listjobs(self, body: dict[str, Any], headers: dict[str, str]) -> Response:
        """Pages of two rows: moto has no pages. Arrays and multi-node parallel jobs stand for their parts."""
        filters = body.get("filters") or [{"name": "", "values": ["*"]}]
        wanted = filters[0]["values"][0]
        rows = json.loads(self._moto("listjobs", {"jobQueue": body["jobQueue"]}, headers).get_data())
        listed = [
            {**row, **self._summary(row, headers)}
            for row in rows["jobSummaryList"]
            if not row["jobName"].endswith("-part")
        ]
        for id, parent in self.parents.items():
            if parent["body"]["jobQueue"].rpartition("/")[2] == body["jobQueue"].rpartition("/")[2]:
                listed.append(self._parent_row(id, headers))
        listed += [self._row_of(id, sent[0], "RUNNABLE") for id, sent in self.held.items()]
        back = {real: id for id, real in self.alias.items()}
        matching = [
            {**row, "jobId": back.get(row["jobId"], row["jobId"])}
            for row in listed
            if (row["jobName"].startswith(wanted[:-1]) if wanted.endswith("*") else row["jobName"] == wanted)
        ]
        at = int(body.get("nextToken") or 0)
        page = {"jobSummaryList": [projected(row, MODEL.shape_for("JobSummary")) for row in matching[at : at + 2]]}
        return _json({**page, "nextToken": str(at + 2)} if len(matching) > at + 2 else page)

    def _summary(self, row: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        (described,) = self._rows([row["jobId"]], headers)
        return {"status": described["status"]}

    def on_canceljob(self, body: dict[str, Any], headers: dict[str, str]) -> Response:
        """Ends what has not started."""
        return self.on_terminatejob(body, headers)

    def on_terminatejob(self, body: dict[str, Any], headers: dict[str, str]) -> Response:
        """SIGTERM, and after 30 seconds SIGKILL."""
        id = body["jobId"]
        if id in self.held:
            self._release(id, *self.held[id])
        real = self.alias.get(id, id)
        parent, mark, number = real.partition(":")
        if mark:
            targets = [self.parents[self.alias.get(parent, parent)]["parts"][int(number)]]
        else:
            targets = self.parents[real]["parts"] if real in self.parents else [real]
        for target in targets:
            self._stop(target, body["reason"], headers)
        return _json({})

    def _stop(self, id: str, reason: str, headers: dict[str, str]) -> None:
        def stop() -> None:
            while self._rows([id], headers)[0]["status"] not in OVER:
                for container in _containers(id):
                    container.stop(timeout=STOP)
                time.sleep(0.1)

        rows = self._rows([id], headers)
        if not rows or rows[0]["status"] in OVER:
            return
        with self.lock:
            fresh = id not in self.ended
            self.ended.setdefault(id, reason)
        if fresh:
            threading.Thread(target=stop, daemon=True).start()

    def on_describecomputeenvironments(self, body: dict[str, Any], headers: dict[str, str]) -> Response:
        """moto's, as managed ones: those need subnets, roles and instances there."""
        answer = _without_null(json.loads(self._moto("describecomputeenvironments", body, headers).get_data()))
        for row in answer["computeEnvironments"]:
            resources = {"type": "EC2", "maxvCpus": 64, "instanceTypes": ["m5.4xlarge"], "subnets": ["subnet-1"]}
            row.update(type="MANAGED", status="VALID", computeResources=resources)
        return _json(answer)

    def on_describejobqueues(self, body: dict[str, Any], headers: dict[str, str]) -> Response:
        """moto's, with what a test says of them."""
        answer = _without_null(json.loads(self._moto("describejobqueues", body, headers).get_data()))
        for row in answer["jobQueues"]:
            row.update(self.queues.get(row["jobQueueName"], {}))
        return _json(answer)

    def _log_events(self, environ: dict[str, Any], data: bytes) -> Response:
        """A page of a log: of a container that runs what it has written, and of others what moto has."""
        words = json.loads(data)
        container = _running(words["logStreamName"])
        if container is None:
            body = json.dumps({**words, "limit": PAGE}).encode()
            environ = {**environ, "wsgi.input": _Body(body), "CONTENT_LENGTH": str(len(body))}
            answer = self.moto.open(environ_overrides=environ, **_target(environ))
            if answer.status_code != 200:
                return answer
            page = json.loads(answer.get_data())
        else:
            # The numbers of moto's tokens, so that the next page may be moto's.
            last = words.get("nextToken", "")
            start = int(last[2:]) + 1 if last else 0
            lines = container.split("\n")[:-1][start : start + PAGE]
            events = [{"timestamp": 0, "ingestionTime": 0, "message": line.strip()} for line in lines]
            page = {"events": events, "nextForwardToken": f"f/{start + len(lines) - 1:056d}"}
        for event in page.get("events", ()):
            if event["message"].startswith("stoker {"):
                event["message"] = "\x1e" + event["message"]
        return _json(page)


def _without_null(value: Any) -> Any:
    """What moto says, without the fields that it has no value for: AWS leaves them out."""
    if isinstance(value, dict):
        return {name: _without_null(part) for name, part in value.items() if part is not None}
    return [_without_null(part) for part in value] if isinstance(value, list) else value


def _target(environ: dict[str, Any]) -> dict[str, Any]:
    return {"path": environ["PATH_INFO"], "method": environ["REQUEST_METHOD"]}


class _Body:
    """A request's body that is read again."""

    def __init__(self, data: bytes) -> None:
        import io

        self._file = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        """Bytes."""
        return self._file.read(size)

    def readline(self, size: int = -1) -> bytes:
        """A line."""
        return self._file.readline(size)


def _problem(name: str, body: dict[str, Any]) -> str:
    """What botocore's model of the service says against a request."""
    if not name:
        return "there is no such operation"
    shape = MODEL.operation_model(name).input_shape
    report = ParamValidator().validate(body, shape) if shape is not None else None
    return report.generate_report() if report is not None and report.has_errors() else ""


def _ends(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("statusReason", "isTerminated", "startedAt", "stoppedAt") if key in row} | {
        "container": {key: row["container"][key] for key in ("exitCode", "reason") if key in row.get("container", {})}
    }


def _running(stream: str) -> str | None:
    """What the container of a log stream has written; None for one that does not run."""
    for container in _containers(stream.rpartition("/")[2]):
        try:
            return str(container.logs(stdout=True, stderr=False).decode())
        except docker.errors.APIError:
            continue  # it has just been removed
    return None


def _containers(id: str) -> list[Any]:
    client = docker.from_env()
    try:
        return [one for one in client.containers.list() if one.name.endswith(id)]
    finally:
        client.close()


def _region(headers: dict[str, str]) -> str:
    credential = next((value for name, value in headers.items() if name.lower() == "authorization"), "")
    return credential.split("/")[2] if credential.count("/") > 2 else "us-east-1"


def _json(body: dict[str, Any]) -> Response:
    return Response(json.dumps(body), content_type="application/json")


def _error(code: str, message: str, status: int = 400) -> Response:
    return Response(
        json.dumps({"message": message}),
        status=status,
        content_type="application/json",
        headers={"x-amzn-errortype": code},
    )


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    run_simple("127.0.0.1", port, Front(), threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
