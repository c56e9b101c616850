"""A double of the Hugging Face Hub: its API and its downloads as `huggingface_hub` uses them, in a thread.

It answers as the hub's documentation and its package's own code have it: commits, trees in pages, redirects of large
files to another address with `X-Linked-Etag`, ranges, and refusals with `X-Error-Code`
(https://huggingface.co/docs/hub/api, `huggingface_hub.utils.hf_raise_for_status`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs

_ROW = re.compile(r"/api/(models|datasets|spaces)/(.+?)(?:/(revision|tree|auth-check)(?:/([^/?]+))?)?")
_FILE = re.compile(r"/(?:(datasets|spaces)/)?(.+?)/resolve/([^/]+)/(.+)")
PAGE = 3
"""Files in a page of a tree."""


@attrs.define
class Repository:
    """A repository of one commit; files of `large` are kept apart, as the hub keeps those of git-lfs."""

    files: dict[str, bytes]
    large: frozenset[str] = frozenset()
    gated: bool = False
    private: bool = False
    readers: frozenset[str] = frozenset()
    """Tokens that may read it where it is gated or private."""

    @property
    def commit(self) -> str:
        text = "".join(f"{path} {blob(data)}\n" for path, data in sorted(self.files.items()))
        return hashlib.sha1(text.encode()).hexdigest()


def blob(data: bytes) -> str:
    """The digest that git gives to a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@attrs.define
class Hub:
    """What there is, and what goes wrong: each is done to one request, and then forgotten."""

    address: str = ""
    repositories: dict[str, Repository] = attrs.field(factory=dict)
    """By kind and name: "models/org/net"."""
    faults: list[tuple[str, Any]] = attrs.field(factory=list)
    """For downloads, in their order: ("status", 503), ("cut", bytes), ("spoil", None)."""
    asked: Counter[str] = attrs.field(factory=Counter)
    """How often each path was fetched, without HEAD."""
    sent: int = 0
    """Bytes of files."""
    gate: threading.Event = attrs.field(factory=threading.Event)
    """Downloads wait for it."""
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def environment(self) -> Mapping[str, str]:
        return {"HF_ENDPOINT": self.address, "HF_HUB_DISABLE_XET": "1"}

    def fault(self) -> tuple[str, Any] | None:
        with self.lock:
            return self.faults.pop(0) if self.faults else None


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """A hub that lives as long as the block."""
    hub = Hub()
    hub.gate.set()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with _Server(("127.0.0.1", 0), handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.gate.set()
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: who downloads was killed."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *words: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        url = urllib.parse.urlsplit(self.path)
        path, query = urllib.parse.unquote(url.path), urllib.parse.parse_qs(url.query)
        if body:
            with self.hub.lock:
                self.hub.asked[path] += 1
        if path.startswith("/lfs/"):
            kind, name, file = path.removeprefix("/lfs/").split("|", 2)
            self._send_file(self.hub.repositories[f"{kind}/{name}"].files[file], {}, body=body)
            return
        row, resolved = _ROW.fullmatch(path), _FILE.fullmatch(path)
        if row:
            kind, name, word, revision = row.groups()
        elif resolved:
            kind, name, revision, file = resolved.groups()
            kind = kind or "models"
        else:
            self._send(404, {"error": "no such page"})
            return
        repository = self.hub.repositories.get(f"{kind}/{name}")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        allowed = repository is not None and token in repository.readers
        if repository is None or (repository.private and not allowed):
            self._send(404 if token else 401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return
        revision = urllib.parse.unquote(revision or "main")
        if revision not in ("main", "v1", repository.commit):
            self._send(404, {"error": f"Invalid rev id: {revision}"}, {"X-Error-Code": "RevisionNotFound"})
            return
        refused = repository.gated and not allowed
        if refused and (resolved or word == "auth-check"):
            self._send(403 if token else 401, {"error": "Access is restricted"}, {"X-Error-Code": "GatedRepo"})
            return
        if resolved:
            self._send_resolved(repository, kind, name, file, body=body)
            return
        if word == "tree":
            self._send_tree(repository, query)
            return
        facts = {"id": name, "sha": repository.commit, "gated": "auto" if repository.gated else False, "tags": []}
        self._send(200, {**facts, "private": repository.private, "downloads": 0, "likes": 0, "siblings": []})

    def _send_tree(self, repository: Repository, query: Mapping[str, list[str]]) -> None:
        start, rows = int(query.get("cursor", ["0"])[0]), []
        for path, data in sorted(repository.files.items())[start : start + PAGE]:
            row = {"type": "file", "path": path, "size": len(data), "oid": blob(data)}
            if path in repository.large:
                row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            rows.append(row)
        headers = {}
        if start + PAGE < len(repository.files):
            page = f"{self.path.partition('?')[0]}?recursive=True&cursor={start + PAGE}"
            headers["Link"] = f'<{self.hub.address}{page}>; rel="next"'
        self._send(200, rows, headers)

    def _send_resolved(self, repository: Repository, kind: str, name: str, file: str, *, body: bool) -> None:
        data = repository.files.get(file)
        if data is None:
            self._send(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": repository.commit}
        if file not in repository.large:
            self._send_file(data, {**headers, "ETag": f'"{blob(data)}"'}, body=body)
            return
        headers["X-Linked-Etag"] = f'"{hashlib.sha256(data).hexdigest()}"'
        headers["X-Linked-Size"] = str(len(data))
        elsewhere = self.hub.address.replace("127.0.0.1", "localhost")  # the hub has another host for them
        headers["Location"] = f"{elsewhere}/lfs/{urllib.parse.quote(f'{kind}|{name}|{file}')}"
        self._send(302, {}, headers)

    def _send_file(self, data: bytes, headers: Mapping[str, str], *, body: bool) -> None:
        fault = self.hub.fault() if body else None
        if fault is not None and fault[0] == "status":
            self._send(fault[1], {"error": "busy"}, {"Retry-After": "0"})
            return
        if fault is not None and fault[0] == "spoil":
            data = bytes([data[0] ^ 1]) + data[1:]
        start = int(self.headers["Range"].removeprefix("bytes=").partition("-")[0]) if "Range" in self.headers else 0
        more = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        rest = data[start:]
        self.send_response(206 if start else 200)
        for name, text in {**headers, **more, "Content-Length": str(len(rest)), "Accept-Ranges": "bytes"}.items():
            self.send_header(name, text)
        self.end_headers()
        if not body:
            return
        self.hub.gate.wait()
        if fault is not None and fault[0] == "cut":
            self.close_connection = True
            rest = rest[: fault[1]]
        with contextlib.suppress(ConnectionError):
            for begin in range(0, len(rest), 1 << 16):
                self.wfile.write(rest[begin : begin + (1 << 16)])
        with self.hub.lock:
            self.hub.sent += len(rest)

    def _send(self, status: int, document: Any, headers: Mapping[str, str] | None = None) -> None:
        text = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        if "error" in document:
            self.send_header("X-Error-Message", document["error"])
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
