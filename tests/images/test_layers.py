"""What images hold, read from their layers: made here, at a real registry, and in a real engine."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.images.test_registry import MANIFEST, call, config, descriptor, engine_environment, sha256
from tests.servers.containers import Engine

from stoker.core.errors import BackendError
from stoker.core.imagenames import merge_facts
from stoker.images.engine import find
from stoker.images.layers import (
    FOLDER,
    LayerCache,
    LayerContents,
    LayerReading,
    contents_of,
    read_layer,
    saved_layers,
)
from stoker.images.registry import examine, image_facts

CONDA = "opt/conda/lib/python3.11/site-packages"
LOCAL = "usr/local/lib/python3.11/site-packages"
TORCH = "from typing import Optional\n__version__ = '2.4.0+cu121'\ncuda: Optional[str] = '12.1'\nhip = None\n"


def layer(files: Iterable[str] | Mapping[str, str] = (), links: Mapping[str, str] | None = None) -> bytes:
    """A layer with these files, as builders write one: folders first, names with "./" in places."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        texts = files if isinstance(files, Mapping) else dict.fromkeys(files, "x" * 700)
        for name, text in texts.items():
            member = tarfile.TarInfo(f"./{name}" if len(name) % 2 else name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return stream.getvalue()


def dists(site: str, *names: str) -> dict[str, str]:
    return {f"{site}/{name}.dist-info/{part}": "Name: it\n" for name in names for part in ("METADATA", "RECORD")}


def contents(*layers: bytes, path: str = "/usr/local/bin:/usr/bin:/bin") -> Any:
    return contents_of([read_layer(io.BytesIO(one)) for one in layers], path)


PYTHON = {"usr/local/bin/python3.11": "", "usr/lib/x86_64-linux-gnu/libc.so.6": ""}
PYTHON_LINKS = {"usr/local/bin/python3": "python3.11", "usr/local/bin/python": "python3"}


def test_distributions_and_libraries_of_an_image() -> None:
    held = contents(
        layer({**PYTHON, **dists(LOCAL, "pip-24.0", "numpy-1.26.4")}, PYTHON_LINKS),
        layer(["usr/local/cuda-12.4/lib64/libcudart.so.12", "usr/local/cuda-12.4/lib64/libcublas.so.12"]),
        layer({"usr/lib/x86_64-linux-gnu/libcudnn.so.9": "", "usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0": ""}),
        layer({**dists(LOCAL, "torch-2.4.0", "flash_attn-2.6.3"), f"{LOCAL}/torch/version.py": TORCH}),
    )
    assert held.distributions == {
        "flash-attn": "2.6.3",
        "numpy": "1.26.4",
        "pip": "24.0",
        "torch": "2.4.0+cu121",  # PyPI's metadata has no local part, torch's own version has
    }
    assert (held.python, held.cuda, held.cudnn, held.libc) == ("3.11", "12.4", "9.1.0", "glibc")


def test_whiteouts_remove_what_lower_layers_have() -> None:
    base = layer({**PYTHON, **dists(LOCAL, "pip-24.0", "torch-2.3.0", "numpy-1.26.4")}, PYTHON_LINKS)
    gone = f"{LOCAL}/.wh.torch-2.3.0.dist-info"
    assert contents(base, layer([gone])).distributions == {"numpy": "1.26.4", "pip": "24.0"}
    again = layer({gone: "", **dists(LOCAL, "torch-2.4.0")})
    assert contents(base, again).distributions["torch"] == "2.4.0"
    # What a layer removes is what is below it, not what it brings, in whatever order they stand.
    both = layer({**dists(LOCAL, "torch-2.3.0"), gone: ""})
    assert contents(base, both).distributions["torch"] == "2.3.0"
    opaque = layer({f"{LOCAL}/.wh..wh..opq": "", **dists(LOCAL, "six-1.16.0")})
    assert contents(base, opaque).distributions == {"six": "1.16.0"}
    assert contents(base, layer(["usr/local/.wh.lib"])).distributions == {}
    assert contents(base, layer(["usr/local/.wh.li"])).distributions["torch"] == "2.3.0"


def test_the_python_that_a_command_finds_first() -> None:
    system = {"usr/bin/python3.10": "", **dists("usr/lib/python3/dist-packages", "six-1.16.0")}
    local = dists("usr/local/lib/python3.10/dist-packages", "six-1.17.0", "torch-2.5.1")
    conda = {
        "opt/conda/bin/python3.11": "",
        "opt/conda/conda-meta/pytorch-2.4.0-py3.11_cuda12.1_cudnn9.1.0_0.json": "{}",
        f"{CONDA}/torch-2.4.0-py3.11.egg-info/PKG-INFO": "",
        f"{CONDA}/torch/version.py": "__version__ = '2.4.0'\ncuda = '12.1'\n",
    }
    image = layer({**system, **local, **conda}, {"opt/conda/bin/python": "python3.11", "usr/bin/python3": "python3.10"})
    first = contents(image, path="/opt/conda/bin:/usr/bin")
    assert (first.python, first.distributions) == ("3.11", {"torch": "2.4.0+cu121"})
    second = contents(image, path="/usr/bin:/opt/conda/bin")
    assert (second.python, second.distributions) == ("3.10", {"six": "1.17.0", "torch": "2.5.1"})
    # Builds of others than the PyTorch project have code for chips that no table knows: no local part.
    others = {name.replace("py3.11_cuda12.1_cudnn9.1.0_0", "cuda126_py311h0_200"): text for name, text in conda.items()}
    image = layer(others, {"opt/conda/bin/python": "python3.11"})
    assert contents(image, path="/opt/conda/bin").distributions == {"torch": "2.4.0"}
    assert contents(layer(["bin/sh"]), path="/bin").distributions == {}
    musl = contents(layer(["lib/ld-musl-x86_64.so.1", "usr/local/bin/python3.12"], PYTHON_LINKS))
    assert (musl.libc, musl.distributions) == ("musl", {})


def test_compressed_layers_and_streams_that_end() -> None:
    plain = layer({**PYTHON, **dists(LOCAL, "torch-2.4.0"), "big": "y" * 3_000_000}, PYTHON_LINKS)
    expected = read_layer(io.BytesIO(plain))
    assert expected.paths
    packed = gzip.compress(plain)
    several = gzip.compress(plain[:10_000]) + gzip.compress(plain[10_000:]) + b"\0" * 512
    assert read_layer(io.BytesIO(packed)) == read_layer(io.BytesIO(several)) == expected
    if shutil.which("zstd"):
        small = subprocess.run(["zstd", "-c"], input=plain, stdout=subprocess.PIPE, check=True).stdout
        assert read_layer(io.BytesIO(small)) == expected
    shuffled = random.Random(7)
    for _ in range(40):
        cut = shuffled.randrange(len(packed) - 20)
        with pytest.raises(BackendError, match="cannot be read"):
            read_layer(io.BytesIO(packed[:cut]))
        damaged = bytearray(packed)
        damaged[cut] ^= 0xFF
        try:
            read_layer(io.BytesIO(bytes(damaged)))
        except BackendError as error:
            assert "cannot be read" in error.message
    with pytest.raises(BackendError, match="too long"):
        read_layer(io.BytesIO(packed), deadline=time.monotonic() - 1)


def test_a_cache_forgets_what_it_cannot_read(tmp_path: Path) -> None:
    cache, digest = LayerCache(tmp_path), "sha256:" + "a" * 64
    held = LayerContents(paths={"usr/bin/python3": "python3.11"}, removed=("a",), emptied=("b",))
    assert cache.get(digest) is None
    cache.put(digest, held, held)
    assert cache.get(digest) == held and cache.layers(digest) == (held, held)
    [file] = (tmp_path / FOLDER).iterdir()
    text = file.read_text()
    for damaged in (text[: len(text) // 2], "[]", '{"format": 99, "layers": []}', '{"format": 1, "layers": [1]}'):
        file.write_text(damaged)
        assert cache.get(digest) is None


def put_layers(registry: str, name: str, *layers: bytes, env: tuple[str, ...] = ()) -> str:
    """An image of these layers at the registry; its reference."""
    document = json.dumps(config(env=env)).encode()
    for blob in (*layers, document):
        place = call(registry, "POST", f"/v2/{name}/blobs/uploads/").headers["Location"]
        place += ("&" if "?" in place else "?") + f"digest={sha256(blob)}"
        call(registry, "PUT", place, blob, "application/octet-stream")
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    body = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor("application/vnd.oci.image.config.v1+json", document),
        "layers": [descriptor(kind, one) for one in layers],
    }
    call(registry, "PUT", f"/v2/{name}/manifests/1", json.dumps(body).encode(), MANIFEST)
    return f"{registry}/{name}:1"


def test_layers_of_a_registry_are_read_once_and_beat_the_name(registry: str, tmp_path: Path) -> None:
    base = gzip.compress(layer({**PYTHON, **dists(LOCAL, "pip-24.0", "torch-2.3.0")}, PYTHON_LINKS))
    torch = {
        f"{LOCAL}/.wh.torch-2.3.0.dist-info": "",
        f"{LOCAL}/torch/version.py": TORCH,
        **dists(LOCAL, "torch-2.4.0"),
    }
    top = gzip.compress(layer(torch))
    reference = put_layers(registry, "deep/one", base, top, env=("PATH=/usr/local/bin:/usr/bin",))
    reading = LayerReading(cache=LayerCache(tmp_path), largest_download=len(base) + len(top))
    found = examine(reference, layers=reading)
    assert found.facts.distributions == {"pip": "24.0", "torch": "2.4.0+cu121"}
    assert found.facts.frameworks == {"torch": "2.4.0+cu121"} and found.sources["torch"] == "its layers"
    assert (found.facts.python, found.facts.libc, found.layers) == ("3.11", "glibc", "read")
    # Nothing more may be downloaded, and nothing has to be; a second image has one new layer.
    nothing = LayerReading(cache=LayerCache(tmp_path), largest_download=0)
    assert examine(reference, layers=nothing).layers == "read before"
    newer = gzip.compress(layer(dists(LOCAL, "accelerate-1.0.0")))
    other = put_layers(registry, "deep/two", base, top, newer, env=("PATH=/usr/local/bin:/usr/bin",))
    refused = examine(other, layers=nothing)
    assert refused.facts.distributions is None
    assert refused.layers.startswith("not read: ") and "would have to be downloaded" in refused.layers
    added = examine(other, layers=LayerReading(cache=LayerCache(tmp_path), largest_download=len(newer)))
    assert added.facts.frameworks == {"accelerate": "1.0.0", "torch": "2.4.0+cu121"}
    # What is there replaces what the name says is there.
    said = merge_facts(image_facts(reference, layers=nothing), "pytorch/pytorch:2.9.1-cuda13.0-cudnn9-runtime")
    assert said.frameworks == {"torch": "2.4.0+cu121"}


def test_a_damaged_layer_leaves_the_image_unread(registry: str, tmp_path: Path) -> None:
    good = gzip.compress(layer(dists(LOCAL, "torch-2.4.0")))
    reference = put_layers(registry, "deep/cut", good[: len(good) // 2])
    found = examine(reference, layers=LayerReading(cache=LayerCache(tmp_path)))
    assert found.facts.distributions is None and found.layers.startswith("not read: a layer cannot be read")
    assert not list(tmp_path.glob(f"{FOLDER}/*"))


def test_layers_of_an_engine(engine: Engine, base_image: str, tmp_path: Path) -> None:
    there = find(engine_environment(engine))
    assert there is not None
    site = engine.run(
        "run",
        "--rm",
        "--network",
        "host",
        base_image,
        "python3",
        "-c",
        "import sysconfig; print(sysconfig.get_path('purelib'))",
    ).stdout.strip()
    dockerfile = (
        f"FROM {base_image}\nRUN mkdir -p {site}/torch-2.4.0.dist-info {site}/old-1.0.dist-info"
        f" && touch {site}/torch-2.4.0.dist-info/METADATA {site}/old-1.0.dist-info/METADATA\n"
        f"RUN rm -r {site}/old-1.0.dist-info\n"
    )
    (tmp_path / "Dockerfile").write_text(dockerfile)
    tag = "localhost/deep-engine:1"
    engine.run("build", "--network", "host", "-t", tag, str(tmp_path))
    shown = engine.run(
        "run", "--rm", "--network", "host", tag, "python3", "-m", "pip", "list", "--format", "json"
    ).stdout
    cache = LayerCache(tmp_path)
    found = examine(tag, engine=there, layers=LayerReading(cache=cache))
    assert found.layers == "read" and found.facts.distributions is not None
    assert found.facts.frameworks["torch"] == "2.4.0" and "old" not in found.facts.distributions
    installed = {row["name"].lower().replace("_", "-") for row in json.loads(shown)} - {"torch"}
    assert installed <= set(found.facts.distributions)
    assert examine(tag, engine=there, layers=LayerReading(cache=cache, largest_export=0)).layers == "read before"
    unread = examine(tag, engine=there, layers=LayerReading(cache=LayerCache(tmp_path / "other"), largest_export=0))
    assert unread.facts.distributions is None and "would have to be exported" in unread.layers


def test_an_archive_of_an_engine_that_ends_early() -> None:
    with pytest.raises(BackendError, match="archive of the image"):
        saved_layers(io.BytesIO(os.urandom(4096)))
    with pytest.raises(BackendError, match="lacks a layer"):
        saved_layers(io.BytesIO(layer({"manifest.json": '[{"Layers": ["a/layer.tar"]}]'})))
