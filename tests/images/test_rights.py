"""Rights at registries: scopes of tokens, logins that a stack names, and registries that mean no good."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.images.test_registry import HTPASSWD, config, login, put
from tests.images.tokenserver import token_registry
from tests.servers.containers import running_registry
from tests.servers.loopback import reply, serving

from stoker.core.errors import BackendError
from stoker.core.secret import Secret
from stoker.images import transport
from stoker.images.credentials import Credentials, account_text, credentials, logged_in
from stoker.images.registries import REGISTRIES, ContainerRegistry, ImageReference, parse, registry_flavor
from stoker.images.registry import check_name, check_pull, check_push, digest_of, inspect
from stoker.worker import secrets

READER, WRITER, NOBODY = "reader:word-of-reader", "writer:word-of-writer", "nobody:at-all"


def account_of(text: str) -> Callable[[ImageReference], Credentials | None]:
    user, _, secret = text.partition(":")
    return lambda name: Credentials(user=user, secret=secret, source="the test")


def environ_of(folder: Path, address: str, text: str) -> dict[str, str]:
    user, _, secret = text.partition(":")
    (folder / "config.json").write_text(json.dumps({"auths": {address: {"username": user, "password": secret}}}))
    return {"DOCKER_CONFIG": str(folder), "HOME": str(folder), "PATH": os.environ["PATH"]}


def test_a_token_with_less_than_was_asked_for_is_a_finding(tmp_path: Path) -> None:
    with token_registry({READER: "pull", WRITER: "pull,push"}) as registry:
        image = f"{registry.address}/team/train:1"
        assert check_push(image, environ_of(tmp_path, registry.address, WRITER)) is None
        assert registry.scopes == ["repository:team/train:pull,push"], "the registry's token server was asked for both"
        given_up = ("DELETE", "/v2/team/train/blobs/uploads/upload?state=one")
        assert registry.requests[-1] == given_up
        finding = check_push(image, environ_of(tmp_path, registry.address, READER))
        assert finding is not None and finding.level == "error" and "as 'reader' (from " in finding.what
        assert f"a push to {registry.address}/team/train needs the permission to push" in finding.why
        assert f"docker login {registry.address}" in finding.fix and "word-of-reader" not in finding.text()
        unknown = check_push(image, environ_of(tmp_path, registry.address, NOBODY))
        assert unknown is not None and "incorrect username or password" in unknown.what


def test_an_expired_token_is_replaced_and_a_dead_login_is_refused(tmp_path: Path) -> None:
    with token_registry({WRITER: "pull,push"}) as registry:
        registry.lifetime = 1
        image = f"{registry.address}/team/train:1"
        environ = environ_of(tmp_path, registry.address, WRITER)
        assert check_push(image, environ) is None
        assert len(registry.scopes) == 2, "one token for the upload, another to give it up"
        registry.lifetime = 0  # the server grants tokens that the registry does not take any more
        finding = check_push(image, environ)
        assert finding is not None and "does not let us push as 'writer'" in finding.what
        assert len(registry.scopes) == 3, "no endless round"


def test_pull_rights_are_asked_with_the_login_of_the_place(tmp_path: Path) -> None:
    with token_registry({READER: "pull"}) as registry:
        image = f"{registry.address}/team/train:1"
        mine = environ_of(tmp_path, registry.address, READER)
        assert check_pull(image, account_of(READER), {}) is None, "that there is no such image yet is no refusal"
        refusal = check_pull(image, account_of(NOBODY), mine)
        assert refusal is not None and "does not let us pull as 'nobody' (from the test)" in str(refusal)
        assert check_pull(image, lambda name: None, mine) is not None, "my own login is not the job's"


def test_a_repository_that_must_exist(tmp_path: Path) -> None:
    with token_registry({WRITER: "pull,push"}) as registry:
        registry.create = False
        finding = check_push(f"{registry.address}/team/train:1", environ_of(tmp_path, registry.address, WRITER))
        assert finding is not None and "has no repository 'team/train'" in finding.what
    ecr = parse("123456789012.dkr.ecr.eu-central-1.amazonaws.com/ml/stoker")
    assert (
        registry_flavor(ecr).create(ecr)
        == "aws ecr create-repository --region eu-central-1 --repository-name ml/stoker"
    )
    gar = parse("europe-docker.pkg.dev/acme/ml/stoker")
    assert "repositories create ml --repository-format=docker --location=europe --project=acme" in registry_flavor(
        gar
    ).create(gar)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ghcr.io/team", ("ghcr.io/team", "ghcr", "ghcr.io/team/stoker")),
        ("registry.example.com:5000", ("registry.example.com:5000", "default", "registry.example.com:5000/stoker")),
        ({"flavor": "gcp", "uri": "europe-docker.pkg.dev/p/r"}, ("europe-docker.pkg.dev/p/r", "gar", None)),
        ({"flavor": "dockerhub", "uri": "docker.io/me"}, ("docker.io/me", "dockerhub", "docker.io/me/stoker")),
        ("https://team.azurecr.io/", ("team.azurecr.io", "acr", "team.azurecr.io/stoker")),
    ],
)
def test_the_registry_of_a_stack(value: Any, expected: tuple[str, str, str | None]) -> None:
    registry = ContainerRegistry.parse(value)
    assert (registry.uri, REGISTRIES.load(registry.flavor).name) == expected[:2]
    assert expected[2] is None or registry.repository() == expected[2]
    assert registry.repository("ghcr.io/other/images") == "ghcr.io/other/images"
    assert registry.repository("vision/train") == f"{registry.uri}/vision/train"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"uri": "ghcr.io/team", "user": "me", "password": "ghp_plain-text"}, "plain text"),
        ({"uri": "ghcr.io/team", "user": "me"}, "go together"),
        ({"uri": "ghcr.io/team", "credential_helper": "../evil"}, "credential_helper"),
        ({"flavor": "ecr", "uri": "ghcr.io/team"}, "is not Amazon ECR"),
        ({"flavor": "nothing", "uri": "ghcr.io/team"}, "no kind of container registry"),
        ({"flavor": "default"}, "no uri"),
        ({"uri": "ghcr.io/Team"}, "lower case"),
        ("team", "no host"),
        ({"url": "ghcr.io"}, "has no 'url', did you mean 'uri'"),
        (5, "no registry"),
    ],
)
def test_a_registry_that_cannot_be(value: Any, words: str) -> None:
    with pytest.raises(Exception, match=words) as caught:
        ContainerRegistry.parse(value)
    assert "ghp_plain" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("docker.io/me/group/train", "no namespace and one name"),
        ("docker.io/train", "official images only"),
        ("europe-docker.pkg.dev/project/train", "no path of a project's repository"),
        ("Team.azurecr.io/train", "capital letters"),
        ("ab.azurecr.io/train", "no registry's name"),
        ("ghcr.io/train", "names no owner"),
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com/x", "has 1 characters"),
    ],
)
def test_names_that_a_registry_does_not_take(name: str, words: str) -> None:
    finding = check_name(f"{name}:1")
    assert finding is not None and finding.code == "STK245" and words in finding.what and finding.fix
    for good in ("docker.io/me/train", "europe-docker.pkg.dev/p/r/train", "team5.azurecr.io/train", "r.example.com/x"):
        assert check_name(f"{good}:1") is None


def test_the_login_of_a_stack_is_nowhere_in_clear_text(
    tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del registry  # where there is none, this is skipped
    monkeypatch.setenv("TEAM_PASSWORD", "secret")
    home = tmp_path / "home"
    (home / "contexts").mkdir(parents=True)
    mine = login(home, "other.example", "mine")
    with running_registry(tmp_path, htpasswd=HTPASSWD) as guarded:
        stack = ContainerRegistry.parse({"uri": guarded, "user": "trainer", "password": "secret:env:TEAM_PASSWORD"})
        with logged_in(stack, {**mine, "PATH": os.environ["PATH"]}, secrets.read) as environ:
            folder = Path(environ["DOCKER_CONFIG"])
            assert check_push(f"{guarded}/team/train:1", environ) is None
            assert "as 'trainer' (from the stack's container_registry)" in account_text(
                credentials(parse(f"{guarded}/x"), environ)
            )
            other = credentials(parse("other.example/x"), environ)
            assert other is not None and other.secret == "mine", "other logins are as they were"
            assert (folder / "contexts").is_symlink() and folder.stat().st_mode & 0o077 == 0
            written = [path.read_text() for path in folder.rglob("*") if path.is_file()]
            encoded = base64.b64encode(b"trainer:secret").decode()
            assert len(written) == 2 and all("secret" not in text and encoded not in text for text in written)
            helper = folder / "bin" / "docker-credential-stoker-stack"
            words = [str(helper), "get"]
            told = subprocess.run(words, input=guarded, env=environ, capture_output=True, text=True, check=True)
            assert json.loads(told.stdout)["Secret"] == "secret", "the engine's own program is told it"
        assert not folder.exists()
        monkeypatch.setenv("TEAM_PASSWORD", "wrong")
        with logged_in(stack, {**mine, "PATH": os.environ["PATH"]}, secrets.read) as environ:
            wrong = check_push(f"{guarded}/team/train:1", environ)
            assert wrong is not None and "docker login" not in wrong.fix and "container_registry" in wrong.fix
        assert check_push(f"{guarded}/team/train:1", mine) is not None
    assert "secret" not in repr(stack)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = Path(tempfile.mkdtemp(prefix=f"stoker-login-{ended.pid}-"))
    with logged_in(stack, mine, secrets.read) as environ:
        assert not left.exists(), "what a killed process left goes"
        with logged_in(stack, mine, secrets.read):
            assert Path(environ["DOCKER_CONFIG"]).exists(), "what is in use stays"
    monkeypatch.delenv("TEAM_PASSWORD")
    with pytest.raises(secrets.SecretMissing, match="TEAM_PASSWORD"), logged_in(stack, mine, secrets.read):
        raise AssertionError("nothing is asked for without the password")


def test_a_helper_that_a_stack_names(tmp_path: Path) -> None:
    helper = tmp_path / "docker-credential-team"
    script = '#!/bin/sh\nread server\necho "{\\"Username\\": \\"$server\\", \\"Secret\\": \\"from helper\\"}"\n'
    helper.write_text(script)
    helper.chmod(0o755)
    base = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    for uri, server in (("r.example:5000/team", "r.example:5000"), ("docker.io/me", "https://index.docker.io/v1/")):
        stack = ContainerRegistry.parse({"uri": uri, "credential_helper": "team"})
        with logged_in(stack, base, partial(pytest.fail, "no secret is read")) as environ:
            account = credentials(parse(f"{uri}/x"), environ)
            assert account is not None and (account.user, account.secret) == (server, "from helper")
    assert Secret.parse("secret:env:X").name == "X"


HOSTILE: dict[str, tuple[Callable[[http.server.BaseHTTPRequestHandler], None], str]] = {
    "garbage": (lambda request: reply(request, 200, b"<html>please log in</html>"), "did not answer as registries do"),
    "a list": (lambda request: reply(request, 200, b"[]"), "no image that can be run"),
    "nested": (lambda request: reply(request, 200, b"[" * 200_000), "nested too deeply"),
    "wrong types": (
        lambda request: reply(request, 200, b'{"config": {"digest": 7}, "layers": [3]}'),
        "did not answer as registries do|answered HTTP|something else",
    ),
    "bad platforms": (lambda request: reply(request, 200, b'{"manifests": 5}'), "did not answer as registries do"),
    "another digest": (
        lambda request: reply(request, 200, b"{}", {"Docker-Content-Digest": "sha256:" + "0" * 64}),
        "something else than sha256:000",
    ),
    "a digest that is a path": (
        lambda request: reply(request, 200, b"{}", {"Docker-Content-Digest": "../../etc/passwd"}),
        "something else than",
    ),
    "the wrong length": (
        lambda request: reply(request, 200, b"{}", {"Content-Length": "100"}),
        "hung up after 2 of 100",
    ),
    "token of garbage": (
        lambda request: reply(
            request,
            *((200, b'["token"]') if request.path.startswith("/token") else (401, b"{}")),
            {"WWW-Authenticate": f'Bearer realm="http://{request.headers["Host"]}/token"'},
        ),
        "answered without a token",
    ),
    "token with a line break": (
        lambda request: reply(
            request,
            *((200, b'{"token": "a\\r\\nEvil: yes"}') if request.path.startswith("/token") else (401, b"{}")),
            {"WWW-Authenticate": f'Bearer realm="http://{request.headers["Host"]}/token"'},
        ),
        "answered without a token",
    ),
    "token from a file": (
        lambda request: reply(request, 401, b"{}", {"WWW-Authenticate": 'Bearer realm="file:///etc/passwd"'}),
        "as the place to get a token",
    ),
    "a circle": (lambda request: reply(request, 302, b"", {"Location": request.path}), "HTTP 302|does not answer"),
    "server error": (lambda request: reply(request, 503, b'{"errors": 5}'), "failed with HTTP 503"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_registry_that_means_no_good(kind: str, tmp_path: Path) -> None:
    answer, words = HOSTILE[kind]
    with serving(answer) as address:
        with pytest.raises(BackendError, match=words) as caught:
            inspect(f"{address}/team/train:1", environ={"HOME": str(tmp_path)})
        assert address in str(caught.value)
        push = check_push(f"{address}/team/train:1", {"HOME": str(tmp_path)})
        assert push is None or push.level == "error"


@pytest.mark.parametrize("endless", ["size", "time"])
def test_an_answer_that_never_ends(endless: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LARGEST", 1 << 20)
    if endless == "time":
        monkeypatch.setattr(transport, "LONGEST", 0.0)

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        with contextlib.suppress(OSError):
            while True:
                request.wfile.write(b" " * (1 << 16) if endless == "size" else b" ")

    words = "larger than 1 MiB" if endless == "size" else "has not ended its answer"
    with serving(answer) as address, pytest.raises(BackendError, match=words):
        inspect(f"{address}/team/train:1", environ={"HOME": str(tmp_path)})


def test_a_moved_tag_does_not_move_what_a_digest_names(registry: str) -> None:
    first = put(registry, "moved", "1", config(env=("CUDA_VERSION=12.1.0",)))
    pinned = f"{registry}/moved@{first['digest']}"
    put(registry, "moved", "1", config(env=("CUDA_VERSION=12.8.0",)))
    assert digest_of(f"{registry}/moved:1") != first["digest"] == digest_of(pinned)
    assert (inspect(pinned).cuda, inspect(f"{registry}/moved:1").cuda) == ("12.1.0", "12.8.0")
