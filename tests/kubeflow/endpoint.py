"""An endpoint of Kubeflow Pipelines for tests: the API's HTTP, and KFP's own local runner for the pipelines.

No Kubeflow can be installed on a test machine. The runs are executed by `kfp.local` (`execute.py`):
KFP's own code reads the pipeline, orders its tasks, fills in their arguments, loops, and starts their programs.
"""

from __future__ import annotations

import contextlib
import datetime
import http.server
import json
import re
import ssl
import threading
import urllib.parse
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import yaml
from tests.kubeflow.execute import begin

NEVER = "1970-01-01T00:00:00Z"
"""What the endpoint says for a time that has not come."""
_FORM = b"<html><form method=post><input name=login><input name=password></form></html>"


class Endpoint:
    """The server and the runs that it was given."""

    def __init__(
        self,
        folder: Path,
        *,
        token: str = "",
        login: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.folder = folder
        self.token = token
        self.login = login
        self.experiments: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.proxy_authorizations: list[str] = []
        """What requests say to a proxy before the endpoint."""
        self.lose_next_answer = False
        """Whether the answer to the next run that is created is lost on its way."""
        self.answer_with: tuple[int, bytes, str] | None = None
        """What every request gets instead of an answer: status, body and type."""
        self.sessions = 0
        """Counted up, so that earlier sessions of the login are not valid any more."""
        self._processes: dict[str, BaseProcess] = {}
        self._lock = threading.Lock()
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.handle(self, "GET")

            def do_POST(self) -> None:
                endpoint.handle(self, "POST")

            def log_message(self, *words: Any) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.host = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Endpoint:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for id, process in self._processes.items():
            if process.exitcode is None:
                self.kill(id)
            process.join()

    # The API

    def handle(self, request: http.server.BaseHTTPRequestHandler, method: str) -> None:
        parts = urllib.parse.urlsplit(request.path)
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.requests.append(f"{method} {parts.path}")
        if request.headers.get("Proxy-Authorization"):
            self.proxy_authorizations.append(request.headers["Proxy-Authorization"])
        if self.answer_with is not None:
            status, page, kind = self.answer_with
            return _page(request, status, page, kind=kind)
        if self.login is not None and not self._let_in(request, method, parts, body):
            return None
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _answer(request, 401, {"error": "no valid token"})
        query = dict(urllib.parse.parse_qsl(parts.query))
        status, document = self._call(method, parts.path, query, json.loads(body) if body else {})
        if self.lose_next_answer and method == "POST" and parts.path.endswith("/runs"):
            self.lose_next_answer = False
            request.close_connection = True
            return None
        return _answer(request, status, document)

    def _let_in(
        self, request: http.server.BaseHTTPRequestHandler, method: str, parts: urllib.parse.SplitResult, body: bytes
    ) -> bool:
        """Dex: every request without the cookie is sent to a form."""
        if f"session=valid{self.sessions}" in (request.headers.get("Cookie") or ""):
            return True
        if parts.path == "/dex/auth" or (parts.path == "/dex/auth/local" and method == "GET"):
            _page(request, 200, _FORM)
        elif parts.path == "/dex/auth/local":
            given = dict(urllib.parse.parse_qsl(body.decode()))
            if (given.get("login"), given.get("password")) != self.login:
                _page(request, 200, _FORM)
            else:
                _redirect(request, "/apis/v2beta1/healthz", cookie=f"session=valid{self.sessions}; Path=/")
        else:
            _redirect(request, "/dex/auth")
        return False

    def _call(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        route = path.removeprefix("/apis/v2beta1/")
        if route == "healthz":
            return 200, {
                "commit_sha": "unknown",
                "tag_name": "2.17.0",
                "multi_user": False,
                "pipeline_store": "database",
            }
        if route in ("experiments", "runs") and method == "GET":
            known = self.experiments if route == "experiments" else self.runs
            [predicate] = json.loads(query["filter"])["predicates"]
            wanted = predicate.get("string_value") or predicate["stringValue"]  # both spellings of protobuf's JSON
            found = [one for one in known.values() if one[predicate["key"]] == wanted]
            return 200, {route: [self._reported(one) for one in found]} if found else {}
        if route == "experiments":
            id = f"experiment-{len(self.experiments)}"
            self.experiments[id] = {
                "experiment_id": id,
                "created_at": "2026-01-01T00:00:00Z",
                "last_run_created_at": NEVER,
                "storage_state": "AVAILABLE",
                **body,
            }
            return 200, self.experiments[id]
        if route == "runs":
            return 200, self._create(body)
        match = re.fullmatch(r"runs/([^/:]+)(:terminate)?", route)
        if match is None or match[1] not in self.runs:
            return 404, {"error": "not found"}
        if match[2]:
            self.runs[match[1]]["terminated"] = True
            self._processes[match[1]].terminate()
            return 200, {}
        return 200, self._reported(self.runs[match[1]])

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            id = f"run-{len(self.runs)}"
            self.runs[id] = {
                "run_id": id,
                "created_at": _now(),
                "scheduled_at": _now(),
                "finished_at": NEVER,
                "storage_state": "AVAILABLE",
                "service_account": "pipeline-runner",
                "state": "PENDING",
                "state_history": [{"update_time": _now(), "state": "PENDING"}],
                **body,
            }
        spec = body["pipeline_spec"]
        documents = [spec["pipeline_spec"], spec["platform_spec"]] if "pipeline_spec" in spec else [spec]
        (self.folder / f"{id}.yaml").write_text(yaml.safe_dump_all(documents))
        self._processes[id] = begin(self.folder / f"{id}.yaml", self.folder / f"{id}.log")
        return self._reported(self.runs[id])

    def _reported(self, document: dict[str, Any]) -> dict[str, Any]:
        process = self._processes.get(document.get("run_id", ""))
        if process is None:
            return document
        code = process.exitcode
        state = "RUNNING" if code is None else "SUCCEEDED" if code == 0 else "FAILED"
        state = "CANCELED" if document.get("terminated") and code is not None else state
        history = document["state_history"]
        if history[-1]["state"] != state:
            history.append({"update_time": _now(), "state": state})
        ended = {} if code is None else {"finished_at": history[-1]["update_time"]}
        failure = {"error": {"code": 2, "message": "the workflow failed"}} if state == "FAILED" else {}
        shown = {name: value for name, value in document.items() if name != "terminated"}
        details = {"run_details": {"task_details": self._details(document["run_id"], state)}}
        return {**shown, **ended, **failure, **details, "state": state}

    def _details(self, id: str, state: str) -> list[dict[str, Any]]:
        """The tasks as the endpoint tells them: a node of the workflow each, its drivers and the whole among them."""
        history = self.runs[id]["state_history"]
        names = [name for task in self.tasks(id) for name in (f"{task}-driver", task, "executor")]
        return [
            {
                "run_id": id,
                "task_id": f"{id}-{number}",
                "display_name": name,
                "create_time": history[0]["update_time"],
                "start_time": history[0]["update_time"],
                "end_time": NEVER if state == "RUNNING" else history[-1]["update_time"],
                "state": state,
                "state_history": history,
                "child_tasks": [{"pod_name": f"{id}-{number + 1}"}],
            }
            for number, name in enumerate(["root-driver", "root", *names])
        ]

    def wait(self, id: str, seconds: float = 60.0) -> int:
        """The exit code of a run's execution."""
        self._processes[id].join(seconds)
        code = self._processes[id].exitcode
        assert code is not None, f"{id} goes on"
        return code

    def kill(self, id: str) -> None:
        """End a run at once, with all its programs, as the end of its pods would."""
        root = psutil.Process(self._processes[id].pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def tasks(self, id: str) -> dict[str, Any]:
        """The tasks of a run's pipeline."""
        spec = self.runs[id]["pipeline_spec"]
        tasks: dict[str, Any] = spec.get("pipeline_spec", spec)["root"]["dag"]["tasks"]
        return tasks

    def log(self, id: str) -> str:
        """What the execution of a run has written."""
        return (self.folder / f"{id}.log").read_text()


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _answer(request: http.server.BaseHTTPRequestHandler, status: int, document: Any) -> None:
    _page(request, status, json.dumps(document).encode(), kind="application/json")


def _page(request: http.server.BaseHTTPRequestHandler, status: int, data: bytes, kind: str = "text/html") -> None:
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)


def _redirect(request: http.server.BaseHTTPRequestHandler, place: str, cookie: str = "") -> None:
    request.send_response(302)
    request.send_header("Location", place)
    if cookie:
        request.send_header("Set-Cookie", cookie)
    request.send_header("Content-Length", "0")
    request.end_headers()
