"""How a registry is spoken with, against a server on loopback that asks for tokens and sends elsewhere for blobs."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import attrs
import pytest

from stoker.images.registry import check_push, inspect
from stoker.images.transport import RegistryRefused

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Env": ["CUDA_VERSION=12.8.1"]}}).encode()


@attrs.define
class Registry:
    """Two servers: a registry with tokens, and the storage of its blobs on another host."""

    address: str = ""
    storage: str = ""
    asked: list[tuple[str, str, str]] = attrs.field(factory=list)
    """(method, path, authorization)"""
    answer: int = 0
    """If not 0, how every request with a token is refused."""
    config: bytes = CONFIG


@pytest.fixture
def tokens() -> Iterator[Registry]:
    state = Registry()

    class Storage(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(("storage", self.path, self.headers.get("Authorization", "")))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(state.config)

        def log_message(self, *_: Any) -> None:
            return

    class Handler(Storage):
        def do_GET(self) -> None:
            authorization = self.headers.get("Authorization", "")
            state.asked.append((self.command, self.path, authorization))
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length).decode()
            if self.path.startswith("/token"):
                query = parse_qs(urlparse(self.path).query) or parse_qs(body)
                state.asked.append(("token", query["scope"][0], query.get("refresh_token", [""])[0]))
                return self.reply(200, json.dumps({"token": "granted"}).encode())
            if authorization != "Bearer granted":
                challenge = f'Bearer realm="http://{state.address}/token",service="registry",scope="ignored"'
                return self.reply(401, b"{}", {"WWW-Authenticate": challenge})
            if state.answer:
                error = {"errors": [{"code": "DENIED", "message": "quota of the day"}]}
                return self.reply(state.answer, json.dumps(error).encode(), {"Retry-After": "30"})
            if "/manifests/" in self.path:
                digest = "sha256:" + hashlib.sha256(CONFIG).hexdigest()
                document = {"config": {"digest": digest}, "layers": [{"size": 5}]}
                return self.reply(200, json.dumps(document).encode())
            if "/blobs/sha256" in self.path:
                return self.reply(307, b"", {"Location": f"http://{state.storage}/blob"})
            return self.reply(202, b"", {"Location": "/v2/team/train/blobs/uploads/one?state=two"})

        def do_POST(self) -> None:
            self.do_GET()

        def do_DELETE(self) -> None:
            self.do_GET()

        def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in (Handler, Storage)]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    state.address, state.storage = (f"127.0.0.1:{server.server_port}" for server in servers)
    yield state
    for server, thread in zip(servers, threads):
        server.shutdown()
        server.server_close()
        thread.join()


def environment(folder: Path, registry: Registry, entry: dict[str, str]) -> dict[str, str]:
    (folder / "config.json").write_text(json.dumps({"auths": {registry.address: entry}}))
    return {"DOCKER_CONFIG": str(folder), "HOME": str(folder)}


def test_a_token_is_got_once_and_stays_at_its_registry(tokens: Registry, tmp_path: Path) -> None:
    auth = base64.b64encode(b"me:word").decode()
    found = inspect(f"{tokens.address}/team/train:1", environ=environment(tmp_path, tokens, {"auth": auth}))
    assert found.cuda == "12.8.1"
    granted = [entry for entry in tokens.asked if entry[0] == "token"]
    assert granted == [("token", "repository:team/train:pull", "")]
    (asked,) = [entry for entry in tokens.asked if entry[1].startswith("/token")]
    assert asked[2] == f"Basic {auth}", "the token is asked for with the password"
    assert ("storage", "/blob", "") in tokens.asked, "the storage of blobs is not shown the token"


def test_an_identity_token_is_exchanged(tokens: Registry, tmp_path: Path) -> None:
    environ = environment(tmp_path, tokens, {"identitytoken": "long-lived"})
    assert inspect(f"{tokens.address}/team/train:1", environ=environ).cuda == "12.8.1"
    assert ("token", "repository:team/train:pull", "long-lived") in tokens.asked


def test_a_push_is_asked_for_and_given_up(tokens: Registry, tmp_path: Path) -> None:
    assert check_push(f"{tokens.address}/team/train:1", environment(tmp_path, tokens, {})) is None
    assert ("token", "repository:team/train:pull,push", "") in tokens.asked
    assert tokens.asked[-1][:2] == ("DELETE", "/v2/team/train/blobs/uploads/one?state=two")


def test_the_rate_limit_is_explained(tokens: Registry, tmp_path: Path) -> None:
    tokens.answer = 429
    with pytest.raises(RegistryRefused, match=r"too many requests(.|\n)*wait 30 s") as caught:
        inspect(f"{tokens.address}/team/train:1", environ=environment(tmp_path, tokens, {}))
    assert caught.value.status == 429 and "quota of the day" in str(caught.value)


def test_a_missing_permission_is_named(tokens: Registry, tmp_path: Path) -> None:
    tokens.answer = 403
    finding = check_push(f"{tokens.address}/team/train:1", environment(tmp_path, tokens, {}))
    assert finding is not None and "without a login (quota of the day)" in finding.what
    assert "needs the permission to push" in finding.why


def test_a_configuration_that_is_another_is_refused(tokens: Registry, tmp_path: Path) -> None:
    tokens.config = b'{"architecture": "amd64"}'
    with pytest.raises(Exception, match="something else than sha256"):
        inspect(f"{tokens.address}/team/train:1", environ=environment(tmp_path, tokens, {}))
