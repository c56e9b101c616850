"""A client of Ray's Jobs API and of the rest of its dashboard, over one connection; Ray itself is not imported.

https://docs.ray.io/en/latest/cluster/running-applications/job-submission/openapi.html
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import select
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Protocol, TypeVar

from stoker.backends.base.backend import NodeDevices, PlatformNode
from stoker.backends.base.messages import missing_source, source_fix
from stoker.backends.base.platforms import Answers, Away
from stoker.backends.ray.settings import PORT, RaySettings, refuse_module
from stoker.core.codec import parse_json, parse_object
from stoker.core.errors import BackendError, SettingsError
from stoker.core.protocol import MARK

TIMEOUT: Final = 60.0
"""Seconds for one answer: the dashboard itself gives up after 60 on a job agent that does not come."""
ASKED: Final = 5.0
"""Seconds for an answer while a person waits, who is told of each question without one."""
ABANDONED: Final = 0.3
"""Seconds for a request that was broken off to end; where it does not, its own thread closes what it has opened."""
CURRENT: Final = "ray/ray_current_cluster"
"""Where Ray leaves the address of the cluster on this machine, below RAY_TMPDIR or /tmp."""
OVER: Final = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
"""States of a Ray job from which it does not come back."""
_VERSION: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_AGAIN: Final = frozenset({429, 502, 503, 504})
_LAME: Final = ("No available agent", "Server got itself in trouble", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RpcError")
"""How the dashboard says, with status 500, that its node is not ready yet, or that Ray's control service is gone or
starts again."""

Answer = TypeVar("Answer")


def address_of(settings: RaySettings, environment: Mapping[str, str]) -> str:
    """Where the dashboard is: as the settings say, else as Ray's own client finds it. `BackendError` where "auto" finds
    nothing, `SettingsError` for an address of a module.

    An address of Ray's other services ("ray://", or a bare "host:port") is taken for the same host's dashboard.
    """
    address = settings.get("address") or environment.get("RAY_API_SERVER_ADDRESS") or environment.get("RAY_ADDRESS")
    if address is None or address == "local":
        return f"http://127.0.0.1:{PORT}"
    if address == "auto":
        folder = environment.get("RAY_TMPDIR") or "/tmp"
        try:
            with open(os.path.join(folder, CURRENT), encoding="utf-8") as file:
                address = file.read().strip()
        except OSError:
            raise BackendError(
                f"no Ray cluster runs on this machine: there is no {folder}/{CURRENT}",
                fix="start one (ray start --head), or give its address to RaySettings or RAY_ADDRESS",
            ) from None
    if address.startswith(("http://", "https://")):
        return str(address).rstrip("/")
    refuse_module(address)
    host = urllib.parse.urlsplit(address if "://" in address else f"ray://{address}").hostname
    if host and _is_own(host):
        host = "127.0.0.1"  # `ray start --head` serves its dashboard there alone
    return f"http://{f'[{host}]' if host and ':' in host else host}:{PORT}"


def version_numbers(version: Any) -> tuple[int, ...]:
    """The first two numbers of a version such as "2.60.0" or "3.0.0.dev0"; () for what is none, which is not known."""
    match = _VERSION.match(str(version))
    return () if match is None else (int(match[1]), int(match[2]))


def resources_of(node: Mapping[str, Any]) -> Mapping[str, float] | None:
    """What a node has by Ray's names, where what it lacks is 0; None where the cluster does not tell it in numbers."""
    total = node.get("resources_total")
    if not isinstance(total, Mapping) or not all(type(amount) in (int, float) for amount in total.values()):
        return None
    return total


def _is_own(host: str) -> bool:
    """Whether an IP address is one of this machine's: nobody else can listen there."""
    with contextlib.suppress(OSError, ValueError):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.inet_pton(family, host)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            return True
    return False


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    return urllib.parse.urlsplit(address).hostname in ("127.0.0.1", "localhost", "::1")


def headers_of(settings: RaySettings, environment: Mapping[str, str]) -> dict[str, str]:
    """The headers of every request, with the token as Ray finds it: https://docs.ray.io/en/latest/ray-security/token-auth.html"""
    headers = {}
    for name, text in settings.get("headers", {}).items():
        if text is not None:
            headers[name] = environment.get(text.removeprefix("env:"), "") if text.startswith("env:") else text
    if any(name.lower() == "authorization" for name in headers):
        return headers
    token = _token(settings, environment)
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def _token(settings: RaySettings, environment: Mapping[str, str]) -> str:
    source = settings.get("token")
    if source:
        missing = missing_source(source)
        if missing:
            raise BackendError(f"the token of the Ray cluster is not there: {missing}", fix=source_fix(source))
        if source.startswith("env:"):
            return environment.get(source.removeprefix("env:"), "").strip()
        return _content(os.path.expanduser(source))
    if environment.get("RAY_AUTH_MODE", "token").lower() != "token":
        return ""
    if environment.get("RAY_AUTH_TOKEN"):
        return environment["RAY_AUTH_TOKEN"].strip()
    return _content(environment.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token"))


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


class Jobs:
    """A client of the dashboard. Used by one thread at a time; `request_count` counts the requests."""

    def __init__(self, settings: RaySettings, environment: Mapping[str, str], *, patience: float = TIMEOUT) -> None:
        self._patience = patience
        self.address = address_of(settings, environment)
        self.headers = headers_of(settings, environment)
        self.answers = Answers(f"the Ray cluster at {self.address}")
        self.request_count = 0
        self._abandoned = threading.Event()
        self._release: tuple[int, ...] | None = None
        self._verify = settings.get("verify", True)
        self._connection: http.client.HTTPConnection | None = None
        self._connections: list[http.client.HTTPConnection] = []
        """All that are open, also those of logs."""
        self.in_use = threading.RLock()
        """Held by the thread that asks or reads: connections are closed by it, or when nobody holds it."""

    def version(self) -> Mapping[str, Any]:
        """The cluster's Ray, and the name of its session, which is another one after a restart."""
        return self._json("GET", "/api/version")

    def release(self) -> tuple[int, ...]:
        """The first two numbers of the cluster's version, asked once; () where it does not say."""
        if self._release is None:
            self._release = version_numbers(self.version().get("ray_version"))
        return self._release

    def python(self) -> str:
        """The version of the cluster's Python; empty where the cluster does not report it."""
        with contextlib.suppress(BackendError):
            return str(self._json("GET", "/api/v0/cluster_metadata")["data"].get("pythonVersion", ""))
        return ""

    def nodes(self) -> list[Mapping[str, Any]]:
        """The nodes that are alive: https://docs.ray.io/en/latest/ray-observability/reference/doc/ray.util.state.list_nodes.html"""
        answer = self._json("GET", "/api/v0/nodes?detail=True&limit=10000")
        return [one for one in answer["data"]["result"]["result"] if one["state"] == "ALIVE"]

    def is_alive(self, node: str) -> bool:
        """Whether a node is alive; asks for this one alone."""
        one = urllib.parse.urlencode({"filter_keys": "node_id", "filter_predicates": "=", "filter_values": node})
        answer = self._json("GET", f"/api/v0/nodes?{one}")
        return any(row["state"] == "ALIVE" for row in answer["data"]["result"]["result"])

    def autoscales(self) -> bool:
        """Whether nodes come and go by themselves: then what is there says little of what may come."""
        answer = self._json("GET", "/api/cluster_status")["data"].get("clusterStatus") or {}
        types = (answer.get("autoscalerReport") or {}).get("nodeTypeMapping") or {}
        # Without an autoscaler, each node is its own kind: node_<its id>.
        return any(kind != f"node_{node}" for node, kind in types.items())

    def jobs(self) -> list[Mapping[str, Any]]:
        """All jobs that were submitted, in one call."""
        status, text = self.ask("GET", "/api/jobs/")
        jobs = self._parse_answer("GET", "/api/jobs/", status, text, list)
        return [job for job in jobs if job["type"] == "SUBMISSION"]

    def job(self, id: str) -> Mapping[str, Any] | None:
        """One job; None where there is none."""
        status, text = self.ask("GET", f"/api/jobs/{id}")
        return None if status == 404 else self._parse_answer("GET", f"/api/jobs/{id}", status, text, dict)

    def submit(self, body: Mapping[str, Any]) -> None:
        """Start a job. An id that is taken makes it fail: ask first."""
        self._json("POST", "/api/jobs/", body)

    def stop(self, id: str) -> None:
        """Have a job end: SIGTERM, and SIGKILL after 3 seconds. One that is gone is fine."""
        status, text = self.ask("POST", f"/api/jobs/{id}/stop")
        if status != 404:
            self._parse_answer("POST", f"/api/jobs/{id}/stop", status, text, dict)

    def delete(self, id: str) -> None:
        """Forget a job that is over. One that is gone is fine."""
        status, text = self.ask("DELETE", f"/api/jobs/{id}")
        if status != 404:
            self._parse_answer("DELETE", f"/api/jobs/{id}", status, text, dict)

    def log(self, id: str) -> str:
        """All that a job has written by now."""
        return str(self._json("GET", f"/api/jobs/{id}/logs").get("logs") or "")

    def nodes_of(self, task: str) -> list[str]:
        """The ids of the nodes on which tasks of a name run."""
        words = [("filter_keys", "name"), ("filter_predicates", "="), ("filter_values", task)]
        answer = self._json("GET", f"/api/v0/tasks?{urllib.parse.urlencode([*words, ('detail', 'True')])}")
        tasks = [one for one in answer["data"]["result"]["result"] if str(one["state"]).startswith("RUNNING")]
        return [str(one["node_id"]) for one in tasks if one.get("node_id")]

    def content(self, path: str) -> bytes | None:
        """The bytes of a file that the dashboard serves; None where it has none, or its node is gone."""
        try:
            status, text = self.ask("GET", path)
        except Away as error:
            if error.__cause__ is None:
                return None  # it was an answer
            raise
        return text.encode() if status == 200 else None

    def has_package(self, name: str) -> bool:
        """Whether the cluster has a package; if so, it keeps it for some minutes."""
        status, text = self.ask("GET", f"/api/packages/gcs/{name}")
        if status not in (200, 404):
            self._parse_answer("GET", f"/api/packages/gcs/{name}", status, text, object)
        return status == 200

    def put_package(self, name: str, data: bytes) -> None:
        """Hand a package to the cluster."""
        status, text = self.ask("PUT", f"/api/packages/gcs/{name}", data)
        self._parse_answer("PUT", f"/api/packages/gcs/{name}", status, text or "{}", object)

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections):
            self.drop(connection)

    def drop(self, connection: http.client.HTTPConnection) -> None:
        """Close a connection."""
        connection.close()
        with contextlib.suppress(ValueError):  # it was closed already
            self._connections.remove(connection)
        if connection is self._connection:
            self._connection = None

    def abandon(self) -> None:
        """Break off the request that waits for an answer, from another thread: it raises `Away`, as all later ones."""
        self._abandoned.set()
        for connection in list(self._connections):
            if (sock := connection.sock) is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        if self.in_use.acquire(timeout=ABANDONED):
            try:
                self.close()
            finally:
                self.in_use.release()

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Within the block this thread uses connections; what it has opened is closed after `abandon`."""
        with self.in_use:
            try:
                if self._abandoned.is_set():
                    raise self._away("it is not asked any more")
                yield
            finally:
                if self._abandoned.is_set():
                    self.close()

    # Requests

    def ask(self, method: str, path: str, data: bytes | None = None) -> tuple[int, str]:
        """Status and text of an answer; `Away` where there is none."""
        with self.answers.question(f"{method} {path}"), self.using():
            return self._ask(method, path, data)

    def _ask(self, method: str, path: str, data: bytes | None) -> tuple[int, str]:
        self.request_count += 1
        headers = dict(self.headers)
        if data is not None:
            headers["Content-Type"] = "application/json" if data[:1] == b"{" else "application/octet-stream"
        fresh = self._connection is None
        connection = self._connection or self.connect()
        self._connection = connection
        try:
            prefix = urllib.parse.urlsplit(self.address).path
            connection.request(method, prefix + path, data, headers)
            with connection.getresponse() as answer:
                text = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            self.drop(connection)
            if not fresh and method in ("GET", "PUT") and not self._abandoned.is_set():
                return self._ask(method, path, data)  # the server closed the kept connection
            raise self._away(str(error) or type(error).__name__) from error
        if answer.status in _AGAIN or (answer.status == 500 and any(words in text for words in _LAME)):
            raise self._away(f"status {answer.status}: {text[:200].strip()}")
        return answer.status, text

    def connect(self) -> http.client.HTTPConnection:
        """A new connection, which `drop` or `close` closes."""
        parts = urllib.parse.urlsplit(self.address)
        connection: http.client.HTTPConnection
        if parts.scheme != "https":
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=self._patience)
        else:
            context = ssl.create_default_context(cafile=self._verify if isinstance(self._verify, str) else None)
            if self._verify is False:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            host, port = parts.hostname or "", parts.port or 443
            connection = http.client.HTTPSConnection(host, port, timeout=self._patience, context=context)
        self._connections.append(connection)
        return connection

    def _away(self, why: str) -> Away:
        fix = (
            "start one here by `ray start --head`, or give its dashboard's address: RaySettings(address=…), RAY_ADDRESS"
        )
        return Away(f"the Ray cluster at {self.address} does not answer: {why}", fix=fix)

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        status, text = self.ask(method, path, None if body is None else json.dumps(body).encode())
        return self._parse_answer(method, path, status, text, dict)

    def _parse_answer(self, method: str, path: str, status: int, text: str, kind: type[Answer]) -> Answer:
        """The document of an answer, which is an object or a list as `kind` says; `BackendError` for any other."""
        if status in (401, 403):
            raise BackendError(
                f"the Ray cluster at {self.address} does not let us in: {text[:200].strip()}",
                fix="set RAY_AUTH_TOKEN, or say where the token is: RaySettings(token='env:NAME')",
            )
        if status >= 400:
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
            raise BackendError(f"the Ray cluster at {self.address} refuses {method} {path} ({status}): {last[:500]}")
        try:
            answer = parse_json(text)
        except SettingsError:
            answer = None
        if not isinstance(answer, kind):
            fix = "name the address of Ray's dashboard, with the port that `ray start` shows"
            raise BackendError(f"what answers at {self.address} is not Ray", fix=fix)
        return answer


# For `stoker top`

_TYPE: Final = "accelerator_type:"
_DEVICES: Final = ("GPU", "TPU", "neuron_cores", "HPU", "NPU")
"""The resources in which Ray counts accelerators:
https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html"""


def nodes(options: Mapping[str, Any]) -> list[PlatformNode]:
    """The nodes that are alive; a `BackendError` where the dashboard does not answer."""
    with contextlib.closing(Jobs(RaySettings(**options), os.environ)) as jobs:
        return nodes_of(jobs.nodes())


def nodes_of(rows: Iterable[Mapping[str, Any]]) -> list[PlatformNode]:
    """The nodes of the dashboard's rows. What tasks use of them, it does not tell."""
    return [_node(row) for row in rows]


def _node(row: Mapping[str, Any]) -> PlatformNode:
    total = resources_of(row)
    state = str(row["state"]).lower()
    if total is None:
        total, state = {}, f"{state}, its resources are not understood"
    model = next((name.removeprefix(_TYPE) for name in total if name.startswith(_TYPE)), "")
    return PlatformNode(
        name=str(row.get("node_name") or row.get("node_ip") or row["node_id"]),
        state=state,
        cpus=total.get("CPU"),
        memory=int(total["memory"]) if "memory" in total else None,
        devices=tuple(
            NodeDevices(model=model or name, count=float(total[name])) for name in _DEVICES if total.get(name)
        ),
    )


# The records of a program


MOST: Final = 1 << 22
"""Bytes that are read at one poll; what is more at the next."""

STREAMS: Final = (2, 60)
"""The first Ray whose stream is known to be the log's bytes alone: older ones put a byte before each piece."""
INTERVAL: Final = 0.02
"""Seconds between two looks of the dashboard at the log's end."""
AGAIN: Final = 0.2
"""Seconds before a log that is not there yet is asked for again."""


class RecordSource(Protocol):
    """A journal or a log."""

    def read(self) -> list[Mapping[str, Any]]:
        """The complete records since the last call."""

    def close(self) -> None:
        """Close what is open."""


class RecordLines:
    """Cuts bytes into records; the last other lines are kept in `words`."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._rest = b""
        self.words: list[str] = []

    def feed(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        """The complete records."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            if line.startswith(self._mark):
                with contextlib.suppress(SettingsError):
                    yield parse_object(line[len(self._mark) :])
            else:
                self.words = [*self.words[-9:], line.decode("utf-8", "replace")]


class JournalFile:
    """A journal in a folder that this machine sees; it is opened anew for each look, as a network disk wants it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines = RecordLines(b"")
        self._offset = 0

    def read(self) -> list[Mapping[str, Any]]:
        """The complete records since the last call."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read(MOST)
            self._offset += len(data)
            return list(self._lines.feed(data))
        return []

    def close(self) -> None:
        """Nothing is open between two calls."""


class DashboardLog:
    """A job's log at the dashboard."""

    def __init__(self, jobs: Jobs, id: str) -> None:
        self._jobs = jobs
        self._id = id
        self._lines = RecordLines(MARK.encode())
        self._read_bytes = self._skip = 0
        self._connection: http.client.HTTPConnection | None = None
        self._split: Callable[[bytes], tuple[int, bytes, bytes] | None] = _frame
        self._data = b""
        self._next_try = 0.0
        self._whole = False

    def read(self) -> list[Mapping[str, Any]]:
        """The complete records since the last call; `Away` where the dashboard does not answer."""
        records: list[Mapping[str, Any]] = []
        with self._jobs.using():
            self._read(records)
        return records

    def _read(self, records: list[Mapping[str, Any]]) -> None:
        if self._connection is None and not self._whole and time.monotonic() >= self._next_try:
            self._next_try = time.monotonic() + AGAIN
            records += self._take(self._open())
        for data in self._pieces():
            records += self._take(data)

    def close(self) -> None:
        """Close the connection; a later `read` opens another one."""
        self._next_try = 0.0
        if self._connection is not None:
            self._jobs.drop(self._connection)
            self._connection = None

    def _take(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        """The records of a piece, without what was read over an earlier connection."""
        rest = data[min(self._skip, len(data)) :]
        self._skip -= len(data) - len(rest)
        self._read_bytes += len(rest)
        return self._lines.feed(rest)

    def _open(self) -> bytes:
        """Follow the log of a job that runs; all of it at once, if the job is over."""
        job = self._jobs.job(self._id) or {}
        node = job.get("driver_node_id")
        self._skip, self._data = self._read_bytes, b""
        query = urllib.parse.urlencode({"node_id": node, "filename": f"job-driver-{self._id}.log", "lines": -1})
        if job.get("status") in OVER:
            self._whole = True
            return self._jobs.content(f"/api/v0/logs/file?{query}") or b""
        if job.get("status") != "RUNNING":
            return b""
        if node and self._jobs.release() >= STREAMS:
            path = f"/api/v0/logs/stream?{query}&interval={INTERVAL}"
            self._connect(path, {}, "200", _chunk)
        else:
            key = base64.b64encode(os.urandom(16)).decode()
            upgrade = {"Upgrade": "websocket", "Connection": "Upgrade"}
            upgrade.update({"Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"})
            self._connect(f"/api/jobs/{self._id}/logs/tail", upgrade, "101", _frame)
        return b""

    def _connect(
        self,
        path: str,
        headers: Mapping[str, str],
        status: str,
        split: Callable[[bytes], tuple[int, bytes, bytes] | None],
    ) -> None:
        connection = self._jobs.connect()
        prefix = urllib.parse.urlsplit(self._jobs.address).path
        self._jobs.request_count += 1
        try:
            connection.request("GET", prefix + path, headers={**self._jobs.headers, **headers})
            # Not by getresponse: that reads beyond the header, into what the socket is to give us.
            header = _header(connection.sock)
        except (OSError, http.client.HTTPException) as error:
            self._jobs.drop(connection)
            raise Away(f"the log of the Ray job {self._id} cannot be read: {error}") from error
        if f" {status} ".encode() not in header.partition(b"\r\n")[0]:
            self._jobs.drop(connection)
            raise Away(f"the log of the Ray job {self._id} cannot be read: {header[:80]!r}")
        connection.sock.settimeout(10.0)
        self._connection, self._split = connection, split

    def _pieces(self) -> Iterator[bytes]:
        """What has arrived; after the connection's end, a later call reads what another connection brings."""
        while self._connection is not None:
            sock = self._connection.sock
            if not select.select([sock], [], [], 0)[0] and not _pending(sock):
                return
            try:
                data = sock.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._data += data
            while (piece := self._split(self._data)) is not None:
                code, payload, self._data = piece
                if code == 8:  # the job is over, or the dashboard leaves
                    self.close()
                    return
                if code == 9:
                    with contextlib.suppress(OSError):
                        sock.sendall(bytes([0x8A, 0x80 | len(payload)]) + bytes(4) + payload)  # masked with zeros
                elif code in (0, 1, 2):
                    yield payload


def _pending(sock: Any) -> bool:
    """Whether TLS has buffered data."""
    pending = getattr(sock, "pending", None)
    return bool(pending and pending())


def _header(sock: Any) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            raise ConnectionError("the connection was closed")
        data += byte
    return data


def _frame(data: bytes) -> tuple[int, bytes, bytes] | None:
    """The first frame's code and payload, and what follows; None while it is not whole. Servers do not mask."""
    if len(data) < 2:
        return None
    length, start = data[1] & 0x7F, 2
    if length == 126:
        start = 4
    elif length == 127:
        start = 10
    if len(data) < start:
        return None
    if start > 2:
        (length,) = struct.unpack("!H" if start == 4 else "!Q", data[2:start])
    if len(data) < start + length:
        return None
    return data[0] & 0x0F, data[start : start + length], data[start + length :]


def _chunk(data: bytes) -> tuple[int, bytes, bytes] | None:
    """As `_frame`, of a body in chunks (https://www.rfc-editor.org/rfc/rfc9112#section-7.1); the last one is empty."""
    size, newline, rest = data.partition(b"\r\n")
    if not newline:
        return None
    length = int(size.partition(b";")[0], 16)
    if len(rest) < length + 2:
        return None
    return (2 if length else 8), rest[:length], rest[length + 2 :]
