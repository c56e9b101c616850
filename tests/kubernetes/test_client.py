"""The client of an API server: credentials, answers that are put off, and streams that break off at any byte."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import os
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kubernetes.recordings import recording
from tests.kubernetes.server.cluster import LocalCluster
from tests.servers.authority import certificate

from stoker.backends.kubernetes.api.client import ApiError, Cluster, Stream
from stoker.backends.kubernetes.api.execution import Execution
from stoker.backends.kubernetes.api.follow import Follower, Log, Specs, Watch, kept_job
from stoker.backends.kubernetes.explain.nodes import ClusterNodes
from stoker.backends.kubernetes.explain.pending import Explanations
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.errors import Away, BackendError, SettingsError

Answer = tuple[int, dict[str, str], bytes]


class Server:
    """Answers each request by the function that a test gives it."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.answer: Callable[[str, str, dict[str, str]], Answer | list[bytes]] = lambda *request: (200, {}, b"{}")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self.rfile.read(length)
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.command, self.path, headers))
                answer = outer.answer(self.command, self.path, headers)
                if isinstance(answer, list):  # bytes as they are, and then the connection is cut
                    for piece in answer:
                        self.wfile.write(piece)
                        self.wfile.flush()
                    self.close_connection = True
                    return
                status, more, body = answer
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # whoever asked may be gone
                    self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_one  # noqa: N815 as http.server calls them

            def log_message(self, *words: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


def kubeconfig(path: Path, url: str, user: Any = None, **cluster: Any) -> Path:
    """A kubeconfig with one context."""
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def client(path: Path, **settings: Any) -> Cluster:
    return Cluster(KubernetesSettings(kubeconfig=str(path), **settings), os.environ, patience=10.0)


def whole(thing: dict[str, Any], before: Any) -> dict[str, Any]:
    """Have a watch keep all of an object."""
    return thing


def awaited(take: Callable[[], Any]) -> Any:
    """The first answer of `take` that is not None."""
    until = time.monotonic() + 60.0
    while (answer := take()) is None and time.monotonic() < until:
        time.sleep(0.005)
    return answer


def status(code: int, reason: str, message: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message}).encode()


def test_a_plugin_is_asked_again_when_its_token_ends(server: Server, tmp_path: Path) -> None:
    """Once for both reasons: the time that it names, and a server that refuses the token before."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, os, pathlib, time\n"
        f"counter = pathlib.Path({str(tmp_path / 'asked')!r})\n"
        "asked = int(counter.read_text()) + 1 if counter.exists() else 1\n"
        "counter.write_text(str(asked))\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert info['spec']['cluster']['server'].startswith('http'), info\n"
        "ends = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(time.time() + (3600 if asked > 1 else 1)))\n"
        "status = {'token': f'{os.environ[\"WORD\"]}-{asked}', 'expirationTimestamp': ends}\n"
        "print(json.dumps({'apiVersion': info['apiVersion'], 'kind': 'ExecCredential', 'status': status}))\n"
    )
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(plugin)],
            "env": [{"name": "WORD", "value": "token"}],
            "provideClusterInfo": True,
        }
    }
    refused = {"Bearer token-2"}
    server.answer = lambda method, path, headers: (
        (401, {}, status(401, "Unauthorized", "no")) if headers["authorization"] in refused else (200, {}, b"{}")
    )
    cluster = client(kubeconfig(tmp_path / "config", server.url, user))
    assert cluster.namespace == "team"
    cluster.get("/version")
    cluster.get("/version")  # the first token ends within the margin
    cluster.get("/version")
    tokens = [headers["authorization"] for _, _, headers in server.requests]
    assert tokens == ["Bearer token-1", "Bearer token-2", "Bearer token-3", "Bearer token-3"]
    cluster.close()
    for ends, fits in (("2100-01-01T00:00:00.12+02:00", True), ("soon", False)):
        plugin.write_text(f"print({json.dumps({'status': {'token': 'x', 'expirationTimestamp': ends}})!r})")
        cluster = client(kubeconfig(tmp_path / "config", server.url, user))
        if fits:
            cluster.get("/version")
        else:
            with pytest.raises(BackendError, match="ends at 'soon', which is no time"):
                cluster.get("/version")
        cluster.close()


class SmallProxy:
    """An HTTP proxy that takes CONNECT alone, and who proves to be somebody."""

    def __init__(self, credentials: str) -> None:
        self.targets: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                if self.headers.get("Proxy-Authorization") != f"Basic {credentials}":
                    self.send_error(407)
                    return
                outer.targets.append(self.path)
                host, _, port = self.path.rpartition(":")
                with socket.create_connection((host, int(port))) as there:
                    self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    back = threading.Thread(target=self._copy, args=(there, self.connection), daemon=True)
                    back.start()
                    self._copy(self.connection, there)
                    back.join()

            def _copy(self, source: socket.socket, target: socket.socket) -> None:
                with contextlib.suppress(OSError):
                    while data := source.recv(1 << 16):
                        target.sendall(data)
                    target.shutdown(socket.SHUT_WR)

            def log_message(self, *words: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_the_proxy_of_a_kubeconfig(cluster: LocalCluster, tmp_path: Path) -> None:
    """Requests, watches and commands in pods go through it, with the user that its URL names."""
    proxy = SmallProxy(base64.b64encode(b"me:p@ss").decode())
    user = {"token": cluster.token}
    try:
        path = kubeconfig(tmp_path / "config", cluster.url, user, **{"proxy-url": f"http://me:p%40ss@{proxy.address}"})
        one = client(path)
        assert one.get("/version")["major"] == "1"
        nodes = one.get("/api/v1/nodes")
        assert nodes["items"]
        stream = one.open_watch("/api/v1/nodes", resource_version="0")
        deadline = time.monotonic() + 60
        while not stream.read() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert stream.status == 200
        with pytest.raises(ApiError, match="404"):
            Execution(one, "default", "nobody", ["true"], container="step")
        one.close()
        assert len(proxy.targets) == 3 and set(proxy.targets) == {cluster.url.removeprefix("http://")}
        stranger = client(
            kubeconfig(tmp_path / "config", cluster.url, user, **{"proxy-url": f"http://{proxy.address}"})
        )
        with pytest.raises(Away, match="407"):
            stranger.get("/version")
        stranger.close()
    finally:
        proxy.close()
    with pytest.raises(Away):
        client(path).get("/version")


def test_what_the_kubeconfig_lacks_is_said(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "")
    with pytest.raises(SettingsError, match=r"there is no kubeconfig: .*/\.kube/config does not exist"):
        assert Cluster(KubernetesSettings(), os.environ).access
    path = kubeconfig(tmp_path / "config", server.url)
    with pytest.raises(SettingsError, match="has no context 'hera', did you mean 'here'"):
        assert client(path, context="hera").access
    with pytest.raises(SettingsError, match="behind the proxy socks5"):
        assert client(kubeconfig(tmp_path / "proxied", server.url, **{"proxy-url": "socks5://x"})).access
    (tmp_path / "broken").write_text("clusters: [")
    with pytest.raises(SettingsError, match=r"cannot be read: while parsing [^\n]*\n  fix") as broken:
        assert client(tmp_path / "broken").access
    assert "kubectl config view" in broken.value.fix
    with pytest.raises(SettingsError, match=f"there is no kubeconfig: {tmp_path} is a folder"):
        assert client(tmp_path).access
    (tmp_path / "list").write_text("[1]")
    with pytest.raises(SettingsError, match="is not a kubeconfig") as listed:
        assert client(tmp_path / "list").access
    assert "clusters, users and contexts" in listed.value.fix
    missing = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}}
    with pytest.raises(BackendError, match="plugin no-such-plugin is not installed"):
        client(kubeconfig(tmp_path / "plugin", server.url, missing)).get("/version")
    # Two files are one kubeconfig, and the first that says something is right.
    other = kubeconfig(tmp_path / "other", "http://192.0.2.1")
    monkeypatch.setenv("KUBECONFIG", f"{path}{os.pathsep}{other}")
    cluster = Cluster(KubernetesSettings(), os.environ)
    assert cluster.get("/version") == {}
    cluster.close()


def test_a_token_that_is_not_accepted(cluster: LocalCluster, tmp_path: Path) -> None:
    expired = client(kubeconfig(tmp_path / "config", cluster.url, {"token": "expired"}))
    with pytest.raises(BackendError, match="401 Unauthorized") as refused:
        expired.get("/api/v1/namespaces/default/pods")
    assert "log in again as for kubectl" in refused.value.fix
    expired.close()


def test_a_server_with_certificates(tmp_path: Path) -> None:
    """TLS with a client's certificate, whose name is another than that of the address; also for streams."""
    for name in ("me", "it"):
        (tmp_path / name).mkdir()
    mine, theirs = certificate(tmp_path / "me", "127.0.0.3"), certificate(tmp_path / "it", "127.0.0.2")
    context = theirs.server()
    context.load_verify_locations(mine.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))
    line = b'{"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "7"}}}\n'

    def serve() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with context.wrap_socket(connection, server_side=True) as tls:
                request = tls.recv(1 << 16)
                if b"watch=true" in request:
                    tls.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    for at in range(len(line)):  # one byte a chunk
                        tls.sendall(b"1\r\n" + line[at : at + 1] + b"\r\n")
                    tls.sendall(b"0\r\n\r\n")
                else:
                    tls.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"minor": "36"}')

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    files = {"certificate": mine.file, "key": mine.key}
    user = {f"client-{kind}-data": base64.b64encode(path.read_bytes()).decode() for kind, path in files.items()}
    trust = {"certificate-authority": str(theirs.authority.relative_to(tmp_path)), "tls-server-name": "127.0.0.2"}
    cluster = client(kubeconfig(tmp_path / "config", f"https://127.0.0.1:{listener.getsockname()[1]}", user, **trust))
    assert cluster.get("/version") == {"minor": "36"}
    stream, taken = cluster.open_watch("/p", resource_version="1"), b""
    while (data := stream.read()) is not None:
        taken += data
    assert taken == line
    cluster.close()
    thread.join(10.0)
    listener.close()


def test_answers_that_are_put_off_or_refused(server: Server, tmp_path: Path) -> None:
    cluster = client(kubeconfig(tmp_path / "config", server.url, {"token": "t"}))
    answers: list[Answer] = [(429, {"Retry-After": "0"}, b""), (429, {"Retry-After": "0"}, b""), (201, {}, b'{"a": 1}')]
    server.answer = lambda *request: answers.pop(0)
    assert cluster.create("/x", {}, dry_run=True) == {"a": 1}
    assert server.requests[0][1] == "/x?fieldValidation=Strict&dryRun=All"
    answers += [(503, {}, b"busy"), (200, {}, b"{}")]
    cluster.get("/x")
    answers += [(500, {}, status(500, "InternalError", "etcd is gone"))]
    with pytest.raises(Away, match=r"does not answer: status 500: etcd is gone"):
        cluster.delete("/x", grace=3)
    answers += [(403, {}, status(403, "Forbidden", "jobs is forbidden"))]
    with pytest.raises(ApiError, match=r"refuses POST /x \(403 Forbidden\): jobs is forbidden") as caught:
        cluster.create("/x", {})
    assert (caught.value.status, caught.value.reason) == (403, "Forbidden")
    answers += [(200, {}, b"<html>")]
    with pytest.raises(BackendError, match="is no Kubernetes API server"):
        cluster.get("/x")
    server.close()
    began = time.monotonic()
    with pytest.raises(Away, match="does not answer"):
        cluster.get("/x")
    with pytest.raises(Away, match="does not answer"):
        cluster.stream("/x", {})
    assert time.monotonic() < began + 5.0, "a refused connection is noticed at once"
    cluster.close()


def test_a_request_is_broken_off(tmp_path: Path) -> None:
    """`abandon` ends a request that waits for a server which accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cluster = client(kubeconfig(tmp_path / "config", f"http://127.0.0.1:{listener.getsockname()[1]}"))
        errors: list[BackendError] = []

        def ask() -> None:
            try:
                cluster.get("/version")
            except Away as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        connection, _ = listener.accept()
        connection.recv(1)
        cluster.abandon()
        thread.join(5.0)
        assert not thread.is_alive() and errors
        with pytest.raises(Away, match="not asked any more"):
            cluster.get("/version")
        connection.close()


def _events(stamps: list[tuple[str, str]]) -> bytes:
    return b"".join(f"{stamp} {text}\n".encode() for stamp, text in stamps)


def test_a_log_that_breaks_off_anywhere_has_each_line_once(server: Server, tmp_path: Path) -> None:
    """The connection is cut behind each byte of the log in turn: also within a time that several lines have."""
    lines = [
        ("2026-11-21T04:53:50.1Z", "a"),
        ("2026-11-21T04:53:50.12Z", "b"),
        ("2026-11-21T04:53:50.12Z", "b"),
        ("2026-11-21T04:53:50.12Z", "c"),
        ("2026-11-21T04:53:51Z", ""),
        ("2026-11-21T04:53:51.000000001Z", "d e"),
    ]
    whole = _events(lines)
    cluster = client(kubeconfig(tmp_path / "config", server.url))
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for cut in range(1, len(whole)):
        cuts = [cut]

        def answer(method: str, path: str, headers: dict[str, str], cuts: list[int] = cuts) -> list[bytes]:
            since = path.partition("sinceTime=")[2].partition("&")[0].replace("%3A", ":")
            body = _events([one for one in lines if one[0][:19] >= since[:19]])
            if cuts:
                body = body[: cuts.pop()]
                return [head, b"%x\r\n" % len(body) + body + b"\r\n"]
            return [head, b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"]

        server.answer = answer
        log = Log(job="j", index=None, pod="p", container="step", ended=True)
        _read_whole(log, cluster)
        assert log.lines == [text.encode() for _, text in lines], f"cut behind byte {cut}"
    cluster.close()


def test_a_line_without_a_time_is_the_kubelets_own_and_kept(server: Server, tmp_path: Path) -> None:
    said = b"unable to retrieve container logs for containerd://0123"
    body = _events([("2026-11-21T04:53:50.1Z", "a")]) + said + b"\n" + _events([("2026-11-21T04:53:51.25+00:00", "b")])
    server.answer = lambda method, path, headers: (200, {}, body)
    cluster = client(kubeconfig(tmp_path / "config", server.url))
    log = Log(job="j", index=None, pod="p", container="step", ended=True)
    _read_whole(log, cluster)
    assert log.lines == [b"a", said, b"b"]
    cluster.close()


def _read_whole(log: Log, cluster: Cluster) -> None:
    until = time.monotonic() + 30.0
    while not log.complete and time.monotonic() < until:
        if log.stream is None:
            log.open(cluster, "team")
        log.read()
    assert log.complete


def test_a_log_that_never_comes_is_given_up(tmp_path: Path) -> None:
    """A log that is not followed is an answer as any other: the thread that waits for it has other things to do."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = kubeconfig(tmp_path / "config", f"http://127.0.0.1:{silent.getsockname()[1]}")
        one = Cluster(KubernetesSettings(kubeconfig=str(path)), os.environ, patience=0.05)
        with pytest.raises(Away, match="nothing came for"):
            list(one.log("team", "train"))
        one.close()


def test_a_watch_goes_on_after_each_kind_of_end(server: Server, tmp_path: Path) -> None:
    """A cut line, an end, an expired version and a refusal: what is known afterwards is what the server has."""

    def thing(name: str, version: int) -> dict[str, Any]:
        return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}

    def event(kind: str, **rest: Any) -> bytes:
        return json.dumps({"type": kind, **rest}).encode() + b"\n"

    def chunks(*lines: bytes, cut: int = 0) -> list[bytes]:
        body = b"".join(lines)
        whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
        return [whole[: len(whole) - cut]]

    lists = [[thing("a", 1)], [thing("a", 1), thing("c", 9)], [thing("c", 9)]]
    watches: list[Answer | list[bytes]] = [
        chunks(event("ADDED", object=thing("b", 3)), event("BOOKMARK", object=thing("", 5)), event("MODIFIED"), cut=16),
        chunks(event("DELETED", object=thing("b", 6))),
        chunks(event("ERROR", object={"code": 410, "reason": "Expired"})),
        (410, {}, status(410, "Expired", "too old")),
        (429, {"Retry-After": "1"}, b""),
        chunks(event("MODIFIED", object=thing("c", 11))),
    ]
    versions = []

    def answer(method: str, path: str, headers: dict[str, str]) -> Answer | list[bytes]:
        if "watch=true" not in path:
            body = {"metadata": {"resourceVersion": str(1 + 8 * (3 - len(lists)))}, "items": lists.pop(0)}
            return 200, {}, json.dumps(body).encode()
        versions.append(path.partition("resourceVersion=")[2].partition("&")[0])
        return watches.pop(0) if watches else (429, {}, b"")

    server.answer = answer
    cluster = client(kubeconfig(tmp_path / "config", server.url))
    watch = Watch(cluster, "/api/v1/namespaces/team/pods", "stoker/run=r", whole)
    changes: list[tuple[str, str]] = []
    until = time.monotonic() + 60.0
    while (watches or watch.things.get("c") != thing("c", 11)) and time.monotonic() < until:
        changes += [(kind, one["metadata"]["name"]) for kind, one in watch.read()]
        time.sleep(0.01)
    assert changes == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("DELETED", "b"),
        ("ADDED", "c"),
        ("DELETED", "a"),
        ("MODIFIED", "c"),
    ]
    assert versions[:6] == ["1", "5", "6", "9", "17", "17"], versions
    watch.close()
    cluster.close()


def test_a_list_is_told_whose_watch_cannot_be_opened(server: Server, tmp_path: Path) -> None:
    """The server takes no further connection between the two: what it has listed is not asked for again."""
    one = {"metadata": {"name": "a", "uid": "a", "resourceVersion": "1"}}
    body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": [one]}).encode()
    server.answer = lambda method, path, headers: (200, {}, body)
    cluster = client(kubeconfig(tmp_path / "config", server.url))
    watch = Watch(cluster, "/api/v1/namespaces/team/pods", "stoker/run=r", whole)
    address = server.url.rpartition(":")[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "open_watch", client(kubeconfig(tmp_path / "gone", f"{address}:1")).open_watch)
        assert watch.read() == [("ADDED", one)]
    watch.close()
    cluster.close()


def test_a_list_comes_in_pages(server: Server, tmp_path: Path) -> None:
    """A watch goes on from the version of the first page. Where a page comes too late, the list begins again."""

    def thing(name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}}

    expired = json.dumps({"kind": "Status", "reason": "Expired", "message": "too old", "code": 410}).encode()
    pages: list[Answer] = [
        (200, {}, json.dumps({"metadata": {"resourceVersion": "4", "continue": "x"}, "items": [thing("a")]}).encode()),
        (410, {}, expired),
        (200, {}, json.dumps({"metadata": {"resourceVersion": "6", "continue": "y"}, "items": [thing("b")]}).encode()),
        (200, {}, json.dumps({"metadata": {"resourceVersion": "8"}, "items": [thing("c")]}).encode()),
    ]
    asked = []

    def answer(method: str, path: str, headers: dict[str, str]) -> Answer | list[bytes]:
        query = urllib.parse.parse_qs(path.partition("?")[2])
        asked.append(query.get("continue", query.get("resourceVersion", [""]))[0])
        return [b"HTTP/1.1 200 OK\r\n\r\n"] if "watch" in query else pages.pop(0)

    server.answer = answer
    cluster = client(kubeconfig(tmp_path / "config", server.url))
    watch = Watch(cluster, "/api/v1/namespaces/team/pods", "stoker/run=r", whole)
    assert watch.read() == [] and not watch.things
    assert [one["metadata"]["name"] for _, one in watch.read()] == ["b", "c"]
    awaited(lambda: asked[4:] or None)
    assert asked == ["", "x", "", "y", "6"]
    watch.close()
    cluster.close()


def test_what_is_free_is_known_from_all_pages_of_pods(server: Server, tmp_path: Path) -> None:
    """Of a cluster's pods only those that have a node are asked for. Where a page is refused, nothing is said to be
    free until the nodes are asked for again."""
    room = {"cpu": "8", "pods": "2"}
    status = {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    there = [{"metadata": {"name": name}, "status": status} for name in ("n1", "n2")]
    first = [{"metadata": {"name": "a"}, "spec": {"nodeName": "n1", "containers": [asking("3")]}}]
    second = [{"metadata": {"name": "b"}, "spec": {"nodeName": "n1", "containers": [asking("4", "1")]}}]
    refuses = [False]
    fields = []

    def answer(method: str, path: str, headers: dict[str, str]) -> Answer:
        place, _, text = path.partition("?")
        query = {name: values[0] for name, values in urllib.parse.parse_qs(text).items()}
        if place.endswith("cluster-autoscaler-status"):
            return 404, {}, b"{}"
        if place == "/api/v1/events" or "namespaces" in place:
            return 200, {}, json.dumps({"metadata": {}, "items": []}).encode()
        items, token = there, ""
        if place == "/api/v1/pods":
            fields.append(query["fieldSelector"])
            if "continue" in query and refuses[0]:
                return 410, {}, b"{}"
            items, token = (second, "") if "continue" in query else (first, "more")
        return 200, {}, json.dumps({"metadata": {"continue": token}, "items": items}).encode()

    server.answer = answer
    cluster = client(kubeconfig(tmp_path / "config", server.url))
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
    pod = {
        "metadata": {"name": "p", "uid": "p"},
        "spec": {"containers": [asking("6")]},
        "status": {"phase": "Pending", "conditions": [unscheduled]},
    }
    explanations = Explanations(cluster, KubernetesSettings())
    job = {"metadata": {"name": "j", "uid": "j"}}

    def nodes(now: float) -> ClusterNodes:
        def known() -> ClusterNodes | None:
            explanations.why("team", job, [pod], gang=True, now=now)
            over = not any(kind in explanations._inquiries for kind in ("nodes", "pods", "autoscaler"))
            return explanations._nodes if over else None

        return awaited(known)

    free = {one.name: one.free for one in nodes(10.0).nodes}
    assert free == {"n1": {"cpu": 1, "pods": 0}, "n2": {"cpu": 8, "pods": 2}}
    assert len(fields) == 2 and set(fields[0].split(",")) >= {"spec.nodeName!="}
    refuses[0] = True
    assert [one.free for one in nodes(100.0).nodes] == [None, None]
    refuses[0] = False
    assert {one.name: one.free for one in nodes(200.0).nodes} == free, "the refusal of a page is none of the pods"
    cluster.close()


def asking(cpu: str, limit: str = "") -> dict[str, Any]:
    """A container that asks for CPUs."""
    limits = {"limits": {"cpu": limit}} if limit else {}
    return {"name": "main", "command": ["x" * 100], "resources": {"requests": {"cpu": cpu}, **limits}}


def test_a_stream_in_pieces_of_one_byte() -> None:
    """A chunk's length, its end and the head itself may be cut anywhere."""
    here, there = socket.socketpair()
    stream = Stream(here, "/x", lambda stream: None)
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nab\n\r\n2\r\nc\n\r\n0\r\n\r\n"
    taken = b""
    for at in range(len(whole)):
        there.sendall(whole[at : at + 1])
        taken += stream.read() or b""
    there.close()
    assert (taken, stream.read(), stream.broken) == (b"ab\nc\n", None, False)
    stream.close()


def test_an_answer_is_taken_once_it_is_there(server: Server, tmp_path: Path) -> None:
    """Nobody waits for it: of a server that holds it back, one that refuses, one that breaks off, and one that is
    silent."""
    held = threading.Event()

    def answer(method: str, path: str, headers: dict[str, str]) -> Answer | list[bytes]:
        if "held" in path:
            assert held.wait(30.0)
        if "broken" in path:
            return [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"]
        return (200, {}, b'{"kind": "PodList"}') if "held" in path else (403, {}, status(403, "Forbidden", "no"))

    server.answer = answer
    cluster = client(kubeconfig(tmp_path / "config", server.url))
    inquiry = cluster.inquire("/api/v1/held", limit=1)
    assert inquiry.take() is None
    held.set()
    assert json.loads(awaited(inquiry.take)) == {"kind": "PodList"}
    assert inquiry.fileno() == -1
    refused, broken = cluster.inquire("/api/v1/refused"), cluster.inquire("/api/v1/broken")
    with pytest.raises(ApiError, match="no") as caught:
        awaited(refused.take)
    assert caught.value.status == 403
    with pytest.raises(Away, match="ended before an answer came"):
        awaited(broken.take)
    held.clear()
    impatient = Cluster(KubernetesSettings(kubeconfig=str(tmp_path / "config")), os.environ, patience=0.05)
    silent = impatient.inquire_log("team", "held")
    with pytest.raises(Away, match=r"nothing came for 0\.05 s"):
        awaited(silent.take)
    held.set()
    cluster.close()
    impatient.close()


def test_a_command_is_asked_for_without_waiting(server: Server, tmp_path: Path) -> None:
    """A node that does not answer, one that refuses, and what no websocket answers."""
    released, refusals = threading.Event(), [(403, status(403, "Forbidden", "may not")), (503, b"busy"), (200, b"{}")]

    def answer(method: str, path: str, headers: dict[str, str]) -> Answer | list[bytes]:
        assert released.wait(30.0)
        code, body = refusals.pop(0)
        return code, {}, body

    server.answer = answer
    cluster = client(kubeconfig(tmp_path / "config", server.url))
    for error, words in ((ApiError, "may not"), (Away, "status 503"), (ApiError, "refuses")):
        execution = Execution(cluster, "team", "p", ["true"], container="step", wait=False)
        if not released.is_set():
            assert execution.take() == b"" and not execution.is_open
            released.set()
        with pytest.raises(error, match=words):
            awaited(lambda execution=execution: execution.take() or None)
        assert not execution.is_open
        execution.close()
    cluster.close()


def test_pods_are_asked_for_whose_watch_is_late(server: Server, tmp_path: Path) -> None:
    """What the watch tells afterwards of an older state changes nothing."""

    def pod(name: str, version: int, phase: str) -> dict[str, Any]:
        labels = {"batch.kubernetes.io/job-name": "fan", "batch.kubernetes.io/job-completion-index": "7"}
        metadata = {"name": name, "uid": name, "resourceVersion": str(version), "labels": labels}
        return {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}, "status": {"phase": phase}}

    lists = {"jobs": [[]], "pods": [[pod("a", 3, "Running")], [pod("a", 9, "Succeeded"), pod("b", 8, "Failed")]]}
    late = json.dumps({"type": "MODIFIED", "object": pod("a", 5, "Running")}).encode() + b"\n"
    selectors = []

    def answer(method: str, path: str, headers: dict[str, str]) -> Answer | list[bytes]:
        kind = "jobs" if "/jobs" in path else "pods"
        if "watch=true" in path:
            return [b"HTTP/1.1 200 OK\r\n\r\n", late if kind == "pods" else b""]
        selectors.append(urllib.parse.unquote(path.partition("labelSelector=")[2].partition("&")[0]))
        return 200, {}, json.dumps({"metadata": {"resourceVersion": "4"}, "items": lists[kind].pop(0)}).encode()

    server.answer = answer
    cluster = client(kubeconfig(tmp_path / "config", server.url))
    follower = Follower(cluster, "team", "stoker/run=r")
    follower.watched_pods.read()
    follower.late["fan"] = {7, 3}
    follower.ask_late(100.0)
    follower.late["fan"] = {9}
    follower.ask_late(101.0)  # too soon
    wanted = "batch.kubernetes.io/job-name=fan,batch.kubernetes.io/job-completion-index+in+(3,7)"
    assert selectors == ["stoker/run=r", f"stoker/run=r,{wanted}"]
    assert follower.news == {("fan", 7)}
    phases = {name: one["status"]["phase"] for name, one in follower.pods["fan"].items()}
    assert phases == {"a": "Succeeded", "b": "Failed"}
    stream = follower.watched_pods.stream
    assert stream is not None
    awaited(lambda: follower.watched_pods.read() or follower.watched_pods.stream is not stream or None)
    assert follower.watched_pods.things["a"]["status"]["phase"] == "Succeeded"
    follower.close()
    cluster.close()


def test_the_pods_of_a_job_have_one_spec() -> None:
    """Also when each has a node: of a thousand pods little more is kept than of their states."""
    template = next(event.object for event in recording("01-succeed").events if event.resource == "pods")
    program = {"name": "PROGRAM", "value": "x" * 10_000}
    specs, kept = Specs(), {}
    for number in range(100):
        pod = copy.deepcopy(template)
        pod["metadata"].update(name=f"p-{number}", uid=f"u-{number}")
        pod["spec"]["containers"][0].setdefault("env", []).append(dict(program))
        pod["spec"]["volumes"] = [{"name": f"token-{number}"}]
        kept[number] = specs.pod(pod, None)
        bound = copy.deepcopy(pod)
        bound["spec"]["nodeName"] = "node-1"
        kept[number] = specs.pod(bound, kept[number])
    assert len({id(one["spec"]) for one in kept.values()}) == 1
    assert kept[0]["spec"]["nodeName"] == "node-1"
    assert "PROGRAM" not in json.dumps(kept[0])


def test_the_names_of_elements_are_kept_once() -> None:
    notes = json.dumps([{"key": f"plus[{number}]"} for number in range(1000)])
    job: dict[str, object] = {
        "metadata": {"name": "j", "annotations": {"stoker/jobs": notes}},
        "spec": {"template": {}},
    }
    first = kept_job(json.loads(json.dumps(job)), None)
    second = kept_job(json.loads(json.dumps(job)), first)
    assert second["metadata"]["annotations"] is first["metadata"]["annotations"]
    assert second["metadata"] == job["metadata"] and second["spec"] == {}
