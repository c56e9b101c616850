"""What builders elsewhere are told, against files that were read and compared with the services' own documentation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import SettingsError
from stoker.images.builders import BUILDERS, BuildOrder, RenderedBuild, check_options, choose

EXPECTED = Path(__file__).with_name("expected") / "builders"
ORDER = BuildOrder(
    tag="123456789012.dkr.ecr.eu-central-1.amazonaws.com/ml/stoker:0123456789abcdef01234567",
    name="0123456789abcdef01234567",
    platform="linux/arm64",
    arguments={"TORCH": "2.8.0", "MIRROR": "https://mirror.example/a b"},
    target="runtime",
)
PLAIN = BuildOrder(tag="ghcr.io/team/stoker:abc", name="abc", platform="linux/amd64")
CASES: dict[str, tuple[dict[str, Any], BuildOrder]] = {
    "kaniko-bucket": (
        {
            "flavor": "kaniko",
            "context": "s3://builds/contexts/",
            "namespace": "ml",
            "secret": "regcred",
            "service_account": "builder",
            "cache_repository": "ghcr.io/team/cache",
        },
        ORDER,
    ),
    "kaniko-stdin": ({"flavor": "kaniko", "cache": False}, PLAIN),
    "buildctl": (
        {
            "flavor": "remote-buildkit",
            "address": "tcp://buildkitd.example.com:1234",
            "ca": "/certs/ca.pem",
            "cert": "/certs/cert.pem",
            "key": "/certs/key.pem",
            "server_name": "buildkitd",
            "cache": "ghcr.io/team/cache",
        },
        ORDER,
    ),
    "buildx": (
        {"flavor": "remote-buildkit", "address": "tcp://b.example:1234", "client": "buildx", "ca": "/certs/ca.pem"},
        ORDER,
    ),
    "gcp": (
        {
            "flavor": "cloud",
            "provider": "gcp",
            "bucket": "gs://builds/contexts",
            "project": "acme",
            "region": "europe-west1",
            "service_account": "builder@acme.iam.gserviceaccount.com",
            "machine": "E2_HIGHCPU_32",
        },
        ORDER,
    ),
    "aws": ({"flavor": "cloud", "provider": "aws", "bucket": "s3://builds/contexts", "project": "images"}, ORDER),
    "azure": ({"flavor": "cloud", "provider": "azure"}, PLAIN),
}


def rendered(name: str) -> RenderedBuild:
    options, order = CASES[name]
    choice = choose(options, BUILDERS.load)
    render = BUILDERS.load(choice.flavor).render
    assert render is not None
    return render(order, choice.settings)


@pytest.mark.parametrize("name", CASES)
def test_what_a_builder_is_told(name: str) -> None:
    told = rendered(name)
    text = json.dumps({"files": told.files, "commands": told.commands}, indent=2, ensure_ascii=False) + "\n"
    path = EXPECTED / f"{name}.json"
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("nothing", "no image builder called 'nothing'"),
        ({"flavor": "kaniko", "context": "/tmp/here"}, "no place that kaniko reads"),
        ({"flavor": "kaniko", "contxt": "s3://a"}, "has no 'contxt', did you mean 'context'"),
        ({"flavor": "remote-buildkit"}, "needs address"),
        ({"flavor": "remote-buildkit", "address": "buildkitd:1234"}, "no address of a BuildKit daemon"),
        ({"flavor": "remote-buildkit", "address": "tcp://b:1", "cert": "/a"}, "go together"),
        ({"flavor": "remote-buildkit", "address": "tcp://b:1;reboot"}, "not a name, an address or a path"),
        ({"flavor": "cloud"}, "needs provider"),
        ({"flavor": "cloud", "provider": "gpc"}, "did you mean 'gcp'"),
        ({"flavor": "cloud", "provider": "gcp", "project": "p"}, "needs a bucket"),
        ({"flavor": "cloud", "provider": "aws", "bucket": "s3://b"}, "needs a project"),
        (5, "names no flavor"),
    ],
)
def test_a_builder_that_cannot_be(options: Any, words: str) -> None:
    with pytest.raises(Exception, match=words):
        choose(options, BUILDERS.load)


def test_options_that_only_an_engine_honours() -> None:
    kaniko = BUILDERS.load("kaniko")
    check_options({"build_args": {"A": "1"}, "labels": {"a": "b"}, "squash": False}, kaniko)
    for name in ("secrets", "network", "squash", "extra_hosts"):
        with pytest.raises(SettingsError, match=f"cannot be told build_config's option '{name}'"):
            check_options({name: {"x": "y"}}, kaniko)
