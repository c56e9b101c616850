"""What registries and engines say of images, over the whole of the grammars: what is not understood is not known.

https://github.com/opencontainers/image-spec/blob/main/config.md, image-index.md and descriptor.md,
https://www.rfc-editor.org/rfc/rfc3339, https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import random
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.loopback import reply, serving

from stoker.images.facts import ARCHITECTURES, MACHINES, architecture_of, created_of, read
from stoker.images.layers import LayerCache, LayerReading
from stoker.images.registry import INDEXES, MANIFESTS, examine
from stoker.images.transport import retry_after

SEEDS = st.integers(0, 2**32).map(random.Random)
UTC = timezone.utc
YEARS = [datetime(year, 1, 1, tzinfo=UTC).replace(tzinfo=None) for year in (2013, 9999)]

# Times


@given(st.datetimes(YEARS[0], YEARS[1]), st.text("0123456789", max_size=9), st.booleans())
def test_every_time_of_an_image_is_one(moment: datetime, fraction: str, zone: bool) -> None:
    text = f"{moment:%Y-%m-%dT%H:%M:%S}{f'.{fraction}' if fraction else ''}{'+02:00' if zone else 'Z'}"
    assert created_of(text) == text


@pytest.mark.parametrize(
    "value",
    ["", None, 0, 1764000000, "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-01T00:00:01Z", "yesterday",
     "1980-01-01T00:00:00Z", "2026-11-28", {}],
)  # fmt: skip
def test_a_time_that_is_hidden_or_none_is_unknown(value: Any) -> None:
    assert created_of(value) == ""


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_every_form_of_retry_after(seconds: int, later: int) -> None:
    now = datetime(2026, 11, 28, 7, 0, tzinfo=UTC)
    then = now + timedelta(seconds=later)
    assert retry_after(str(seconds), now.timestamp()) == seconds
    forms = (format_datetime(then, usegmt=True), f"{then:%A, %d-%b-%y %H:%M:%S} GMT", f"{then:%a %b %e %H:%M:%S %Y}")
    assert retry_after(forms[0], now.timestamp()) == retry_after(forms[1], now.timestamp()) == later
    assert retry_after(forms[0], now.timestamp() + 10**7) == 0, "it is past"


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "1e3", "٣", "30s", "9" * 20, "Sat, 28 Nov", "0x10"])
def test_a_retry_after_that_is_neither_is_unknown(text: str) -> None:
    assert retry_after(text, 0.0) is None


# Processors


@given(st.sampled_from(sorted(ARCHITECTURES | MACHINES.keys())), st.booleans())
def test_every_processor(name: str, large: bool) -> None:
    assert architecture_of(name.upper() if large else name) == MACHINES.get(name, name)


@pytest.mark.parametrize("value", ["", None, "unknown", "any", "noarch", "amd64 ", 64, [], "x86"])
def test_what_is_no_processor_is_unknown(value: Any) -> None:
    assert architecture_of(value) == ""


# Configurations


CONFIG: Mapping[str, Any] = {
    "architecture": "amd64",
    "os": "linux",
    "created": "2026-10-01T10:00:00.123456789Z",
    "config": {
        "Env": ["CUDA_VERSION=12.8.1", "NV_CUDNN_VERSION=9.8.0.87-1", "PYTHON_VERSION=3.12.4", "PYTORCH_VERSION=2.7.0"],
        "Labels": {"framework": "pytorch", "framework_version": "2.7.0", "com.nvidia.cudnn.version": "9.8.0.87"},
        "Entrypoint": ["python3"],
        "User": "1000",
    },
    "history": [{"created_by": "RUN pip install torch==2.7.0"}],
}
WRONG = (None, "", "unknown", "N/A", "latest", "v", "12", "<no value>")


@given(SEEDS)
def test_a_configuration_that_says_less_says_nothing_else(dice: random.Random) -> None:
    inner = CONFIG["config"]
    env = [
        dice.choice([text, text.partition("=")[0], f"{text.partition('=')[0]}={dice.choice(WRONG)}"])
        for text in inner["Env"]
    ]
    labels = {name: str(dice.choice([text, *WRONG])) for name, text in inner["Labels"].items()}
    less = {"Env": dice.choice([env, None]), "Labels": dice.choice([labels, None])}
    changed = {
        name: dice.choice([value, *WRONG]) for name, value in CONFIG.items() if name not in {"config", "history"}
    }
    kept = {name: value for name, value in {**changed, "config": {**inner, **less}}.items() if dice.random() > 0.2}
    known, found = read("team/train:1", CONFIG), read("team/train:1", kept)
    for name in ("cuda", "cudnn", "python"):
        assert getattr(found.facts, name) in ("", getattr(known.facts, name)), name
    assert found.facts.frameworks.items() <= known.facts.frameworks.items()
    assert found.facts.architectures in ((), ("amd64",)) and found.created in ("", known.created)
    assert set(found.facts.unknown) >= {name for name in ("cuda", "cudnn", "python") if not getattr(found.facts, name)}


def test_a_variable_without_a_value_is_none() -> None:
    facts = read("a", {"config": {"Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES", "EMPTY=", "A=b=c"]}}).facts
    assert facts.env == {"PATH": "/bin", "EMPTY": "", "A": "b=c"}


# A registry


@attrs.define
class Files:
    """A registry that has what is put into it."""

    address: str = ""
    answers: dict[str, tuple[str, bytes]] = attrs.field(factory=dict)

    def put(self, kind: str, document: Any, *, tag: str = "", **descriptor: Any) -> dict[str, Any]:
        body = json.dumps(document).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        folder = "manifests" if kind in (*INDEXES, *MANIFESTS) else "blobs"
        for name in filter(None, (tag, digest)):
            self.answers[f"/v2/team/train/{folder}/{name}"] = (kind, body)
        return {"mediaType": kind, "digest": digest, "size": len(body), **descriptor}

    def image(self, processor: str, **layer: Any) -> dict[str, Any]:
        config = self.put("application/vnd.oci.image.config.v1+json", {**CONFIG, "architecture": processor})
        layers = [{"mediaType": "application/of.a.newer.one", "digest": f"sha256:{'0' * 64}", "size": 10, **layer}]
        return {"schemaVersion": 2, "config": config, "layers": layers}


@pytest.fixture
def files() -> Iterator[Files]:
    state = Files()

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        kind, body = state.answers.get(request.path, ("", b""))
        reply(request, 200 if kind else 404, body, {"Content-Type": kind})

    with serving(answer) as state.address:
        yield state


ARM = {"os": "linux", "architecture": "arm64"}


@pytest.mark.parametrize(
    ("platforms", "architectures"),
    [
        ([{**ARM, "variant": "v8"}, {"os": "linux", "architecture": "amd64"}], ("arm64", "amd64")),
        ([None], ("amd64",)),
        ([{"os": "linux", "architecture": "x86_64"}], ("amd64",)),
        ([{"os": "unknown", "architecture": "unknown"}, None], ("amd64",)),
        ([{"os": "linux", "architecture": "of-tomorrow"}], ("amd64",)),
        ([ARM, {}], ("arm64", "amd64")),
    ],
)  # fmt: skip
def test_an_index_need_not_say_for_what_its_images_are(
    files: Files, platforms: list[Any], architectures: tuple[str, ...]
) -> None:
    entries = []
    for platform in platforms:
        processor = (platform or {}).get("architecture", "amd64")
        document = files.image("arm64" if processor == "arm64" else "amd64")
        entry = files.put(MANIFESTS[0], document, **({} if platform is None else {"platform": platform}))
        entries.append(entry)
    files.put(INDEXES[0], {"schemaVersion": 2, "manifests": entries}, tag="1")
    found = examine(f"{files.address}/team/train:1")
    assert found.facts.architectures == architectures and found.architecture == "amd64"
    assert found.facts.cuda == "12.8.1"


@pytest.mark.parametrize("layer", [{"size": None}, {"size": "10"}, {"size": -1}, {"size": True}, {"size": 10.5}])
def test_a_layer_of_unknown_size_is_not_small(files: Files, layer: dict[str, Any], tmp_path: Path) -> None:
    files.put(MANIFESTS[0], files.image("amd64", **layer), tag="1")
    reading = LayerReading(cache=LayerCache(tmp_path), largest_download=10**9)
    found = examine(f"{files.address}/team/train:1", layers=reading)
    assert found.facts.size is None
    assert found.layers == "not read: an unknown number of bytes would have to be downloaded"
