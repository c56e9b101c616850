"""How a registry is spoken with, against a server on loopback that asks for tokens and sends elsewhere for blobs."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import attrs
import pytest
from tests.servers.loopback import reply, serving

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

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        authorization = request.headers.get("Authorization", "")
        state.asked.append((request.command, request.path, authorization))
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0)).decode()
        if request.path.startswith("/token"):
            query = parse_qs(urlparse(request.path).query) or parse_qs(body)
            state.asked.append(("token", query["scope"][0], query.get("refresh_token", [""])[0]))
            reply(request, 200, json.dumps({"token": "granted"}).encode())
        elif authorization != "Bearer granted":
            challenge = f'Bearer realm="http://{state.address}/token",service="registry",scope="ignored"'
            reply(request, 401, b"{}", {"WWW-Authenticate": challenge})
        elif state.answer:
            error = {"errors": [{"code": "DENIED", "message": "quota of the day"}]}
            reply(request, state.answer, json.dumps(error).encode(), {"Retry-After": "30"})
        elif "/manifests/" in request.path:
            digest = "sha256:" + hashlib.sha256(CONFIG).hexdigest()
            reply(request, 200, json.dumps({"config": {"digest": digest}, "layers": [{"size": 5}]}).encode())
        else:
            reply(request, 307, b"", {"Location": f"http://{state.storage}/blob"})

    def storage(request: http.server.BaseHTTPRequestHandler) -> None:
        state.asked.append(("storage", request.path, request.headers.get("Authorization", "")))
        reply(request, 200, state.config)

    with serving(answer) as state.address, serving(storage) as state.storage:
        yield state


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
