"""Images read from a real registry without pulling them, and what a registry's refusals are turned into."""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.servers.containers import Engine, running_registry
from tests.servers.postgres import free_port

from stoker.core.errors import BackendError
from stoker.images.credentials import credentials
from stoker.images.registries import parse
from stoker.images.registry import digest_of, image_facts, inspect
from stoker.images.transport import RegistryRefused, RegistryUnreachable

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
# "trainer" with the password "secret", as `htpasswd -nbB` writes it.
HTPASSWD = "trainer:$2b$05$U42yuEpAv5oVF7QO2qxaWeiyPhB0EZ00oSJRl9cyUR/Z1sdUr15wy\n"


def put(registry: str, name: str, tag: str, config: Mapping[str, Any], **platform: str) -> dict[str, Any]:
    """An image of one empty layer at the registry, by its own API; its descriptor."""
    layer, document = b"layer " + name.encode(), json.dumps(config).encode()
    for blob in (layer, document):
        place = call(registry, "POST", f"/v2/{name}/blobs/uploads/").headers["Location"]
        place += ("&" if "?" in place else "?") + f"digest={sha256(blob)}"
        call(registry, "PUT", place, blob, "application/octet-stream")
    body = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", document),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", layer)],
        }
    ).encode()
    call(registry, "PUT", f"/v2/{name}/manifests/{tag}", body, MANIFEST)
    return {**descriptor(MANIFEST, body), **({"platform": platform} if platform else {})}


def descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": sha256(content), "size": len(content)}


def sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


class Reply(NamedTuple):
    """A registry's answer, read to its end."""

    headers: Message
    body: bytes


def call(registry: str, method: str, path: str, body: bytes = b"", kind: str = "") -> Reply:
    url = path if "://" in path else f"http://{registry}{path}"
    request = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": kind} if kind else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return Reply(answer.headers, answer.read())


def config(architecture: str = "amd64", *, env: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    inner = {"Env": ["PATH=/usr/bin", *env], **more.pop("config", {})}
    return {"architecture": architecture, "os": "linux", "config": inner, **more}


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, registry: str) -> Iterator[str]:
    """A registry that only `trainer` may read and write."""
    del registry  # where there is no registry at all, this one is skipped too
    with running_registry(tmp_path_factory.mktemp("guarded"), htpasswd=HTPASSWD) as address:
        yield address


def login(folder: Path, registry: str, password: str = "secret") -> dict[str, str]:
    """What `docker login` leaves; the environment in which it is found."""
    auth = base64.b64encode(f"trainer:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {registry: {"auth": auth}}}))
    return {"DOCKER_CONFIG": str(folder), "HOME": str(folder)}


def test_an_image_is_read_without_pulling(registry: str) -> None:
    put(
        registry,
        "team/train",
        "1",
        config(
            env=("CUDA_VERSION=12.4.1", "NV_CUDNN_VERSION=9.1.0.70-1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4", "EMPTY="),
            config={"Labels": {"team": "vision"}, "Entrypoint": ["/start"], "User": "1000"},
            history=[
                {"created_by": "ARG PYTHON_VERSION=3.11"},
                {"created_by": "RUN /bin/sh -c pip install --no-cache-dir torch==2.4.0+cu124 && rm -rf /tmp/*"},
            ],
        ),
    )
    found = inspect(f"{registry}/team/train:1")
    assert (found.cuda, found.cudnn, found.python) == ("12.4.1", "9.1.0.70", "3.11")
    assert found.frameworks == {"torch": "2.4.0+cu124"}
    assert found.env["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.4" and found.env["EMPTY"] == ""
    assert found.labels == {"team": "vision"} and found.entrypoint == ("/start",) and found.user == "1000"
    assert found.architectures == ("amd64",) and found.os == "linux" and found.size == len(b"layer team/train")
    assert found.digest == digest_of(f"{registry}/team/train:1")
    assert found.base == "registry" and set(found.unknown) == {"rocm", "neuron"}
    assert inspect(f"{registry}/team/train@{found.digest}").cuda == "12.4.1"


def test_an_index_has_several_architectures(registry: str) -> None:
    images = [
        put(registry, "many", "amd", config(env=("CUDA_VERSION=12.1.0",)), os="linux", architecture="amd64"),
        put(registry, "many", "arm", config("arm64", env=("CUDA_VERSION=12.2.0",)), os="linux", architecture="arm64"),
        # What BuildKit adds about how an image came to be is no image.
        put(registry, "many", "proof", config("unknown"), os="unknown", architecture="unknown"),
    ]
    body = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": images}).encode()
    call(registry, "PUT", "/v2/many/manifests/all", body, INDEX)
    found = inspect(f"{registry}/many:all")
    assert found.architectures == ("amd64", "arm64") and found.cuda == "12.1.0" and found.digest == sha256(body)
    assert inspect(f"{registry}/many:all", platform="linux/arm64").cuda == "12.2.0"
    with pytest.raises(BackendError, match=r"no image for linux/s390x(.|\n)*linux/amd64, linux/arm64"):
        inspect(f"{registry}/many:all", platform="linux/s390x")


def test_the_os_version_is_not_taken_for_a_framework(registry: str) -> None:
    labels = {"org.opencontainers.image.version": "22.04"}
    put(registry, "labelled", "1", config(config={"Labels": labels}))
    assert inspect(f"{registry}/labelled:1").frameworks == {}


def test_a_missing_tag_names_the_nearest(registry: str) -> None:
    put(registry, "tagged", "2.1.0-cuda12.1", config())
    with pytest.raises(RegistryRefused, match=r"no tag '2.1.0-cuda12.2', did you mean '2.1.0-cuda12.1'") as caught:
        inspect(f"{registry}/tagged:2.1.0-cuda12.2")
    assert caught.value.status == 404
    assert digest_of(f"{registry}/tagged:nothing") is None
    with pytest.raises(RegistryRefused, match="no such image"):
        inspect(f"{registry}/nobody/has:this")


def test_an_unreadable_image_is_known_by_its_name() -> None:
    reference = f"127.0.0.1:{free_port()}/train:1"
    with pytest.raises(RegistryUnreachable, match="does not answer"):
        inspect(reference)
    found = image_facts(reference)
    assert found.base == "name" and "does not answer" in found.unreadable and not found.refused


def test_refused_is_told_from_unreachable(registry: str) -> None:
    found = image_facts(f"{registry}/nobody/has:this")
    assert found.refused and "no such image" in found.unreadable


def test_a_guarded_registry_wants_a_login(guarded: str, tmp_path: Path) -> None:
    nobody = {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}
    with pytest.raises(RegistryRefused, match=r"does not let us pull without a login(.|\n)*docker login 127"):
        inspect(f"{guarded}/train:1", environ=nobody)
    with pytest.raises(RegistryRefused, match=r"as 'trainer' \(from .*config.json\)"):
        inspect(f"{guarded}/train:1", environ=login(tmp_path, guarded, "wrong"))
    # Who is let in learns that there is nothing.
    with pytest.raises(RegistryRefused) as caught:
        inspect(f"{guarded}/train:1", environ=login(tmp_path, guarded))
    assert caught.value.status == 404


def test_an_engine_that_has_the_image_is_asked_first(engine: Engine, base_image: str, registry: str) -> None:
    from stoker.images.engine import find

    there = find({**engine_environment(engine)})
    assert there is not None
    found = inspect(base_image, engine=there)
    assert found.base == "engine" and found.python.startswith("3.") and found.command == ("/bin/sh",)
    assert found.digest.startswith("sha256:") and found.architectures
    tag = f"{registry}/base:1"
    engine.run("tag", base_image, tag)
    engine.run("push", tag)
    pushed = inspect(tag)
    assert pushed.base == "registry" and pushed.python == found.python and (pushed.size or 0) > 1_000_000
    assert inspect(tag, engine=there).digest == pushed.digest, "both know it by the registry's digest"


def engine_environment(engine: Engine) -> dict[str, str]:
    import os

    return {**os.environ, **engine.environment}


def test_credentials_of_helpers(tmp_path: Path) -> None:
    helper = tmp_path / "docker-credential-vault"
    helper.write_text(
        '#!/bin/sh\nread server\n[ "$1" = get ] || exit 1\ncase $server in\n'
        '*index.docker.io/v1/) echo \'{"Username": "hub", "Secret": "one"}\' ;;\n'
        'quiet.example) echo "credentials not found in native keychain"; exit 1 ;;\n'
        'broken.example) echo "no agent"; exit 1 ;;\n'
        '*) echo \'{"Username": "<token>", "Secret": "two"}\' ;;\nesac\n'
    )
    helper.chmod(0o755)
    environ = {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "vault", "credHelpers": {"lost.example": "lost"}}))
    hub = credentials(parse("python:3.11"), environ)
    assert hub is not None and (hub.user, hub.secret, hub.source) == ("hub", "one", "docker-credential-vault")
    assert "one" not in repr(hub), "a secret is not shown"
    token = credentials(parse("team.azurecr.io/train"), environ)
    assert token is not None and token.identity
    assert credentials(parse("quiet.example/train"), environ) is None
    with pytest.raises(BackendError, match="no agent"):
        credentials(parse("broken.example/train"), environ)
    with pytest.raises(BackendError, match=r"docker-credential-lost.*not installed"):
        credentials(parse("lost.example/train"), environ)


def test_credentials_of_files(tmp_path: Path) -> None:
    def auth(user: str) -> dict[str, str]:
        return {"auth": base64.b64encode(f"{user}:pass:word".encode()).decode()}

    path = tmp_path / "auth.json"
    path.write_text(
        json.dumps(
            {
                "auths": {
                    "https://index.docker.io/v1/": auth("hub"),
                    "quay.io": auth("all"),
                    "quay.io/team": auth("team"),
                }
            }
        )
    )
    environ = {"REGISTRY_AUTH_FILE": str(path), "HOME": str(tmp_path)}
    users = {
        name: getattr(credentials(parse(name), environ), "user", None)
        for name in ("pytorch/pytorch", "quay.io/team/train", "quay.io/other/train", "ghcr.io/team/train")
    }
    assert users == {
        "pytorch/pytorch": "hub",
        "quay.io/team/train": "team",
        "quay.io/other/train": "all",
        "ghcr.io/team/train": None,
    }
    found = credentials(parse("quay.io/team/train"), environ)
    assert found is not None and found.secret == "pass:word"
    path.write_text("{")
    with pytest.raises(BackendError, match="is not JSON"):
        credentials(parse("quay.io/team/train"), environ)
