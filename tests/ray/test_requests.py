"""What Ray is sent, to the letter; what is refused before that; how its answers are called. Without a cluster."""

from __future__ import annotations

import gc
import json
import os
import re
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from stoker.backends.base.platforms import Away
from stoker.backends.ray import tasks as raytasks
from stoker.backends.ray import words as raywords
from stoker.backends.ray.backend import RayBackend, check, prove
from stoker.backends.ray.jobs import Jobs, RecordLines, _frame, address_of, headers_of, is_loopback, nodes_of
from stoker.backends.ray.settings import ELSEWHERE, KINDS, RUNTIME_ENV, RaySettings
from stoker.core.errors import BackendError, SettingsError
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import DockerSettings, PackageSettings, ResourceSettings, Retry, StepSettings
from stoker.core.status import CANCELLED, HOST_OOM, NODE_LOST, REFUSED, WORKER_LOST
from stoker.launchers.options import resolve_launch

GOLDEN = Path(__file__).parent / "golden"
SITE = Site(
    artifacts="/home/me/.stoker/artifacts",
    scratch="/home/me/.stoker/scratch",
    path=("/home/me/project", "/usr/lib/python3.11"),
    folder="/home/me/project",
    checkpoints="/home/me/.stoker/checkpoints",
    package="c0de" * 16,
    code_root="/home/me/project",
    bundle="/home/me/.stoker/wheels/bundle-1",
)
FAR = Site(artifacts="s3://bucket/artifacts", scratch="/home/me/.stoker/scratch", bundle="/home/me/bundle-1")
LOCAL = {"address": "http://127.0.0.1:8265"}


def step(name: str = "train", **settings: Any) -> StepPlan:
    source = FunctionSource(
        kind="script", module="train", qualname=name, path="/home/me/project/train.py", root="/home/me/project"
    )
    return StepPlan(
        key=name,
        name=name,
        source=source,
        outputs=(),
        unpack=False,
        inputs={},
        settings=StepSettings(**settings),
        backend="orchestrator",
        code="1234",
        where="train.py:7",
    )


def job(name: str = "train", **settings: Any) -> Job:
    return Job(name=f"r1/{name}/1", run="r1", key=name, attempt=1, step=step(name, **settings), inputs={})


def settled(**given: Any) -> dict[str, Any]:
    return {"backend": {"orchestrator": given}}


CASES: dict[str, tuple[Site, dict[str, Any], Job]] = {
    "plain": (SITE, LOCAL, job()),
    "gang": (
        SITE,
        LOCAL,
        job(
            resources=ResourceSettings(nodes=2, accelerators="A100-80GB:4", cpu_count=8, memory="64GB"),
            launch=resolve_launch({"launcher": "torchrun"}),
            **settled(placement="SPREAD", labels={"zone": "in(a,b)"}),
        ),
    ),
    "far": (
        FAR,
        {"address": "https://ray.example", "python": "/opt/python/bin/python3"},
        job(
            resources=ResourceSettings(gpu_memory="20GB", share=True, accelerators="A100", extended={"license": 1}),
            **settled(runtime_env={"pip": ["six==1.16"], "py_modules": ["s3://b/m.zip"]}, resources={"fast": 0.5}),
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_sent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site, options, asked = CASES[name]
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    backend = RayBackend(site, options)
    made = backend.render(asked)
    backend.close()
    text = json.dumps(made, indent=2, sort_keys=True) + "\n"
    golden = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def codes(asked: StepPlan, *, site: Site = SITE, shares: bool = True, **options: Any) -> list[tuple[str, str]]:
    return [(one.code, one.level) for one in check(asked, {**LOCAL, **options}, site, shares=shares)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"resources": ResourceSettings(cpu_count=0.5, gpu_count=2, nodes=2, extended={"x": 1})}, []),
        ({"resources": ResourceSettings(accelerators="H100:2")}, []),
        ({"docker": DockerSettings(parent_image="x")}, [("STK180", "error")]),
        ({"packages": PackageSettings(pypi={"six": "1.16"})}, [("STK180", "error")]),
        ({"resources": ResourceSettings(accelerators="A100-80GB/1g.10gb")}, [("STK181", "error")]),
        ({"resources": ResourceSettings(accelerators="V100-32GB")}, [("STK181", "error")]),
        ({"resources": ResourceSettings(accelerators=["H100", "A100"])}, [("STK181", "translated")]),
        ({"resources": ResourceSettings(gpu_vendor="amd")}, [("STK181", "translated")]),
        ({"resources": ResourceSettings(gpu_memory="10GB", share=True)}, [("STK181", "error")]),
        (
            {"resources": ResourceSettings(gpu_memory="10GB", share=True, accelerators="A100")},
            [("STK182", "translated")],
        ),
        ({"resources": ResourceSettings(gpu_count=1), **settled(gpu_fraction=0.5)}, [("STK182", "translated")]),
        ({"resources": ResourceSettings(gpu_count=2), **settled(gpu_fraction=0.5)}, [("STK181", "error")]),
        ({"resources": ResourceSettings(memory="1GB")}, [("STK183", "translated")]),
        ({"resources": ResourceSettings(shared_memory="1GB")}, [("STK184", "translated")]),
        ({"resources": ResourceSettings(disk="1GB")}, [("STK184", "translated")]),
        ({"resources": ResourceSettings(spot=True)}, [("STK184", "translated")]),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "0"}}, [("STK112", "error")]),
        (
            {"resources": ResourceSettings(nodes=2), "launch": resolve_launch({"launcher": "mpi"})},
            [("STK181", "error")],
        ),
    ],
)
def test_field_by_field(settings: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert codes(step(**settings)) == expected


def test_what_a_far_cluster_sees() -> None:
    assert codes(step(), shares=False) == [("STK185", "error")]
    assert codes(step(retry=Retry(1)), site=FAR, shares=False) == [("STK186", "info")]
    assert codes(step(), site=FAR, shares=False) == []


@pytest.mark.parametrize(
    ("name", "cores"), [("inferentia:1", 4), ("inferentia2:2", 4), ("trainium:1", 2), ("trainium2:16", 64)]
)
def test_chips_are_asked_for_as_the_cores_that_ray_counts(name: str, cores: int) -> None:
    asked = step(resources=ResourceSettings(accelerators=name))
    assert codes(asked) == []
    [choice] = raytasks.ray_request(attrs.evolve(job(), step=asked), RaySettings())["choices"]
    assert choice == {"type": "aws-neuron-core", "resource": "neuron_cores", "count": cores}


def test_a_cluster_may_have_names_of_its_own() -> None:
    asked = step(resources=ResourceSettings(accelerators="V100-32GB:2"))
    assert codes(asked, accelerators={"V100-32GB": "V100"}) == []
    mine = Job(name="r/s/1", run="r", key="s", attempt=1, step=asked, inputs={})
    made = raytasks.ray_request(mine, RaySettings(accelerators={"V100-32GB": "V100"}))
    assert made["choices"] == [{"type": "V100", "resource": "GPU", "count": 2}]


def test_the_names_are_rays() -> None:
    accelerators = pytest.importorskip("ray.util.accelerators.accelerators")
    known = {text for name, text in vars(accelerators).items() if not name.startswith("_") and isinstance(text, str)}
    theirs = {kind.type for kind in KINDS.values()}
    # The others are what Ray makes of a product's name.
    named = {"P40", "T4G", "M60", "A2", "A10", "A16", "A30", "A40", "L40", "GH200"}
    assert theirs - known == {*named, "GeForce-RTX-4090", "GeForce-RTX-5090"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"adress": "auto"}, "did you mean 'address'"),
        ({"address": "head"}, "not the address"),
        ({"address": "htp://head:8265"}, "begins with 'htp', did you mean 'http' or 'https'"),
        ({"python": "3.11"}, "is a version, not a program"),
        ({"verify": "no"}, "'no' is read as a file"),
        ({"token": "s3cret"}, "does not say where"),
        ({"runtime_env": {"pipp": []}}, "did you mean 'pip'"),
        ({"runtime_env": {"image_uri": "x"}}, "no 'image_uri' here"),
        ({"runtime_env": {"working_dir": "."}}, "a folder of this machine"),
        ({"runtime_env": {"nsight": "default"}}, "no 'nsight' here"),
        ({"runtime_env": {"pip": "requirements.txt"}}, "a file, which the nodes do not have"),
        ({"runtime_env": {"uv": {"packages": "requirements.txt"}}}, "a file, which the nodes do not have"),
        ({"runtime_env": {"conda": "environment.yml"}}, "a file, which the nodes do not have"),
        ({"runtime_env": {"pip": ["six"], "conda": "mine"}}, "has pip and conda"),
        ({"runtime_env": {"pip": [1]}}, "names no packages"),
        ({"runtime_env": {"py_executable": ["python"]}}, "is not a text"),
        ({"runtime_env": {"env_vars": {"A": True}}}, 'write "true" in quotes'),
        ({"num_gpus": 1}, "gpu_fraction=…"),
        ({"pip": ["six"]}, "runtime_env = { pip = … }"),
        ({"address": "anyscale://mine"}, "the module 'anyscale' of Ray's own client"),
        ({"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": "0"}}}, "Stoker sets itself"),
        ({"resources": {"GPU": 1}}, "given elsewhere"),
        ({"placement": "STRICT"}, "not one of"),
        ({"gpu_fraction": 1.5}, "not a part of one GPU"),
        ({"labels": {"a": "b c"}}, "selects no labels"),
        ({"headers": {"a": "b\nc"}}, "not a text"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        RaySettings(**given)
    assert "s3cret" not in str(caught.value)


def test_each_key_of_a_runtime_environment_is_honoured_or_refused(repository: Path) -> None:
    known = pytest.importorskip("ray.runtime_env").RuntimeEnv.known_fields
    ours = {*RUNTIME_ENV, *ELSEWHERE}
    assert {name for name in known if not name.startswith("_")} <= ours
    page = (repository / "docs" / "guide" / "ray.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (honoured|refused): ", page, re.MULTILINE))
    assert rows == {**dict.fromkeys(RUNTIME_ENV, "honoured"), **dict.fromkeys(ELSEWHERE, "refused")}


def test_where_the_cluster_is(tmp_path: Path) -> None:
    assert address_of(RaySettings(), {}) == "http://127.0.0.1:8265"
    assert address_of(RaySettings(), {"RAY_ADDRESS": "head:6379"}) == "http://head:8265"
    both = {"RAY_ADDRESS": "http://a:1", "RAY_API_SERVER_ADDRESS": "http://b:2/"}
    assert address_of(RaySettings(), both) == "http://b:2"
    assert address_of(RaySettings(address="ray://head:10001"), both) == "http://head:8265"
    assert address_of(RaySettings(address="http://mine-head-svc.ns.svc:8265"), {}) == "http://mine-head-svc.ns.svc:8265"
    assert address_of(RaySettings(), {"RAY_ADDRESS": "127.0.0.2:6379"}) == "http://127.0.0.1:8265", "this machine"
    with pytest.raises(SettingsError, match="module 'anyscale'"):
        address_of(RaySettings(), {"RAY_ADDRESS": "anyscale://mine"})
    with pytest.raises(BackendError, match="no Ray cluster runs"):
        address_of(RaySettings(address="auto"), {"RAY_TMPDIR": str(tmp_path)})
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    assert address_of(RaySettings(address="auto"), {"RAY_TMPDIR": str(tmp_path)}) == "http://10.0.0.1:8265"
    assert is_loopback("http://127.0.0.1:1") and not is_loopback("http://10.0.0.1:1")


def test_who_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "t")
    file = tmp_path / "token"
    file.write_text("f\n")
    assert headers_of(RaySettings(), {}) == {}
    assert headers_of(RaySettings(), {"RAY_AUTH_TOKEN": "x"}) == {"Authorization": "Bearer x"}
    assert headers_of(RaySettings(), {"RAY_AUTH_TOKEN": "x", "RAY_AUTH_MODE": "disabled"}) == {}
    assert headers_of(RaySettings(), {"RAY_AUTH_TOKEN_PATH": str(file)}) == {"Authorization": "Bearer f"}
    assert headers_of(RaySettings(token="env:MINE"), {"MINE": "t"}) == {"Authorization": "Bearer t"}
    assert headers_of(RaySettings(headers={"X-Key": "env:MINE"}), {"MINE": "t"}) == {"X-Key": "t"}
    own = RaySettings(headers={"authorization": "Basic z"}, token="env:MINE")
    assert headers_of(own, {"MINE": "t"}) == {"authorization": "Basic z"}
    with pytest.raises(BackendError, match="NOBODY is not set") as unset:
        headers_of(RaySettings(token="env:NOBODY"), {})
    assert unset.value.fix == "export NOBODY=…"


def test_a_cluster_that_is_not_there_is_one_finding() -> None:
    jobs = Jobs(RaySettings(address="http://127.0.0.1:9"), {})
    found = list(prove([step(), step("other")], {}, jobs, shares=True))
    assert [(one.code, one.level) for one in found] == [("STK189", "error")]
    assert "does not answer" in found[0].what and "RAY_ADDRESS" in found[0].fix
    with pytest.raises(Away):
        jobs.jobs()


class Trouble(str):
    """The text of an answer with status 500."""

    __slots__ = ()


class Other(BaseHTTPRequestHandler):
    """Something else that answers at a dashboard's address, or a Ray that is not ours to start: too old, growing."""

    answers: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        found = self.answers.get(self.path.partition("?")[0], "hello")
        if found is None:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"{")
            return
        data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        self.send_response(500 if isinstance(found, Trouble) else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: Any) -> None:
        """Nothing."""


@pytest.fixture
def other() -> Any:
    """Its address, and its answers by path; a real one of that kind cannot be had on one machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Other.answers = {}
    yield f"http://127.0.0.1:{server.server_port}", Other.answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_kinds_of_clusters_are_told(other: Any) -> None:
    address, answers = other
    node = {"state": "ALIVE", "resources_total": {"CPU": 4, "memory": 8e9}, "labels": {"zone": "a"}}

    def found(*, mapping: dict[str, str] | None = None, ray: str = "2.60.0", python: str = "", **settings: Any) -> Any:
        report = {"autoscalerReport": {"nodeTypeMapping": mapping or {}}}
        answers["/api/version"] = {"ray_version": ray}
        answers["/api/v0/nodes"] = {"data": {"result": {"result": [node]}}}
        answers["/api/v0/cluster_metadata"] = {"data": {"pythonVersion": python}}
        answers["/api/cluster_status"] = {"data": {"clusterStatus": report}}
        jobs = Jobs(RaySettings(address=address), {})
        made = [(one.code, one.level) for one in prove([step(**settings)], {}, jobs, shares=True)]
        jobs.close()
        return made

    big: dict[str, Any] = {"resources": ResourceSettings(cpu_count=5)}
    assert found() == []
    assert found(**big) == [("STK188", "error")]
    assert found(mapping={"a": "node_a"}, **big) == [("STK188", "error")]
    assert found(mapping={"a": "workers"}, **big) == [("STK188", "translated")]
    assert found(resources=ResourceSettings(nodes=2)) == [("STK188", "error")]
    assert found(resources=ResourceSettings(nodes=2), **settled(placement="PACK")) == []
    assert found(resources=ResourceSettings(nodes=5), **settled(placement="PACK")) == [("STK188", "error")]
    assert found(resources=ResourceSettings(gpu_count=1)) == [("STK188", "error")]
    assert found(resources=ResourceSettings(gpu_count=1), accelerator_policy="prefer") == []
    assert found(**settled(labels={"zone": "in(a,b)"})) == []
    assert found(**settled(labels={"zone": "!a"})) == [("STK188", "error")]
    assert found(ray="2.40.0", **settled(labels={"zone": "a"})) == [("STK188", "error")]
    old: dict[str, Any] = {"ray": "2.40.0", "accelerator_policy": "prefer"}
    assert found(resources=ResourceSettings(gpu_count=1), **old) == [("STK264", "info")]
    assert found(ray="2.40.0") == [], "a step without devices has no faulty ones"
    assert found(ray="1.13.0") == [("STK189", "error")]
    devices: dict[str, Any] = {"resources": ResourceSettings(gpu_count=0), **settled(labels={"zone": "a"})}
    for unknown in ("", "nightly", "2.x", "2"):
        assert found(ray=unknown, **devices) == [("STK189", "info")], "what is not known is not too old"
    for total in (None, {"CPU": "4 cores", "memory": 8e9}):
        node["resources_total"] = total
        assert found(**big) == [], "what a node has is not known"
        assert nodes_of([{**node, "node_id": "a"}])[0].state == "alive, its resources are not understood"
    node["resources_total"] = {"CPU": 4, "memory": 8e9}
    assert found(python="3.9.1") == [("STK187", "error")]
    assert found(python="3.99.1") == [("STK187", "error")]
    assert found(python="3.99.1", **settled(python="python3")) == [("STK187", "info")]
    answers["/api/version"] = "hello"
    jobs = Jobs(RaySettings(address=address), {})
    assert [one.code for one in prove([step()], {}, jobs, shares=True)] == ["STK189"]
    jobs.close()


def test_no_connection_outlives_its_client(other: Any) -> None:
    """However it ends: a socket that is only collected warns of it in whatever runs then."""
    address, answers = other
    answers["/api/version"] = {"ray_version": "2.60.0"}
    made: list[HTTPConnection] = []

    class Seen(Jobs):
        gives_up = False

        def connect(self) -> HTTPConnection:
            if self.gives_up:
                self.abandon()  # another thread's call, at the one moment at which there is no socket yet
            made.append(super().connect())
            return made[-1]

    Other.protocol_version = "HTTP/1.1"  # it keeps connections, as Ray's dashboard does
    try:
        closed, abandoned, late, cut = (Seen(RaySettings(address=address), {}) for _ in range(4))
        for jobs in (closed, abandoned):
            assert jobs.version() == answers["/api/version"]
            jobs.connect().connect()  # that of a log
        closed.close()
        thread = threading.Thread(target=abandoned.abandon)
        thread.start()
        thread.join()
        with pytest.raises(Away, match="not asked any more"):
            abandoned.version()
        late.gives_up = True
        assert late.version() == answers["/api/version"]
        answers["/api/version"] = None  # an answer that is cut off
        with pytest.raises(Away):
            cut.version()
    finally:
        Other.protocol_version = "HTTP/1.0"
    assert len(made) == 6 and [connection.sock for connection in made] == [None] * 6
    made.clear()
    gc.collect()


def test_a_dashboard_whose_control_service_is_gone_is_asked_again(other: Any) -> None:
    """What Ray 2.60 answers in the half minute after its GCS server was killed."""
    address, answers = other
    jobs = Jobs(RaySettings(address=address), {})
    answers["/api/jobs/"] = Trouble("500 Internal Server Error\n\nServer got itself in trouble")
    with pytest.raises(Away, match="in trouble"):
        jobs.jobs()
    assert jobs.content("/api/jobs/") is None, "a log whose node is gone"
    answers["/api/jobs/"] = Trouble("Traceback …\nValueError: no such package")
    with pytest.raises(BackendError, match="no such package") as refused:
        jobs.jobs()
    assert not isinstance(refused.value, Away)
    jobs.close()


def test_how_rays_errors_are_called() -> None:
    """Ray's memory monitor cannot be made to kill one task on a machine that others use: its error is made here."""
    exceptions = pytest.importorskip("ray.exceptions")

    def called(error: Exception, *, node_alive: bool = True, asked: bool = False) -> str:
        return raywords.cause_of(error, node_alive=node_alive, asked=asked)[0]

    assert called(exceptions.OutOfMemoryError("12 of 12 GB")) == HOST_OOM
    assert called(exceptions.NodeDiedError("gone")) == NODE_LOST
    assert called(exceptions.LocalRayletDiedError()) == NODE_LOST
    assert called(exceptions.WorkerCrashedError()) == WORKER_LOST
    assert called(exceptions.WorkerCrashedError(), node_alive=False) == NODE_LOST
    assert called(exceptions.WorkerCrashedError(), asked=True) == CANCELLED
    assert called(exceptions.TaskCancelledError()) == CANCELLED
    assert called(exceptions.RuntimeEnvSetupError("no such package")) == REFUSED
    assert called(exceptions.OutOfMemoryError("x"), asked=True) == HOST_OOM
    assert all(hasattr(exceptions, name) for name in raywords.CAUSES)
    inner = "Traceback (most recent call last):\n  File \"x\", line 1, in f\n    g()\n    ^^^\nKeyError: 'conda'\n\n"
    tail = "pip ended. Last 50 lines of stdout:\n    ERROR: no such wheel"
    words = raywords.cause_of(exceptions.RuntimeEnvSetupError(inner + tail), node_alive=True, asked=False)[1]
    assert words.endswith("KeyError: 'conda' pip ended. Last 50 lines of stdout: ERROR: no such wheel"), words
    traced = f"[Node 10.0.0.1] {inner}During handling of the above exception, another exception occurred:\n\n{inner}"
    words = raywords.cause_of(exceptions.RuntimeEnvSetupError(traced), node_alive=True, asked=False)[1]
    assert words.endswith("[Node 10.0.0.1] KeyError: 'conda' KeyError: 'conda'"), words


def test_why_a_step_waits() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8, "GPU": 2, "memory": 8e9, "accelerator_type:H100": 1}},
        {"Alive": True, "Resources": {"CPU": 8}},
        {"Alive": False, "Resources": {"CPU": 64}},
    ]

    def waits(free: dict[str, float], gang: int = 1, **asked: Any) -> str:
        ask = {"num_cpus": 1, "memory": 0, "resources": {}, "choice": None, "labels": {}, **asked}
        return raywords.waits(ask, nodes=nodes, free=free, gang=gang, placement="STRICT_SPREAD")

    gpu = {"type": "H100", "resource": "GPU", "count": 2}
    assert waits({"CPU": 8, "GPU": 1}, choice=gpu) == "waits for 1 CPU, 2 GPUs of H100: 1 of 2 GPUs free"
    assert "the most that a node has is 8 CPUs" in waits({"CPU": 8}, num_cpus=64)
    assert "1 of 2 nodes have as much" in waits({"CPU": 16, "GPU": 2}, gang=2, choice=gpu)
    assert "enough is free" in waits({"CPU": 8})
    assert "0 B of 8 GB of memory free" in waits({"CPU": 8}, memory=4e9)
    ask = {"num_cpus": 1, "memory": 0, "resources": {}, "choice": None, "labels": {}}
    making = raywords.waits(ask, nodes=nodes, free={"CPU": 8}, environment=["env_vars", "pip"])
    assert making.endswith("or its runtime environment (pip) is being made")


def test_the_first_kind_that_is_there_is_taken() -> None:
    nodes = [{"Alive": True, "Resources": {"GPU": 4, "accelerator_type:A100": 1}}]
    choices = [{"type": "H100", "resource": "GPU", "count": 1}, {"type": "A100", "resource": "GPU", "count": 2}]
    assert raywords.chosen({"choices": choices, "prefer": False}, nodes) == choices[1]
    assert raywords.chosen({"choices": choices[:1], "prefer": False}, nodes) == choices[0]
    assert raywords.chosen({"choices": choices[:1], "prefer": True}, nodes) is None


def test_records_and_frames_are_put_together_again() -> None:
    lines = RecordLines(b"> ")
    assert list(lines.feed(b'noise\n> {"a": 1}\n> {"b"')) == [{"a": 1}]
    assert list(lines.feed(b": 2}\n> broken\n")) == [{"b": 2}] and lines.words == ["noise"]
    short, middle, long = (
        b"\x81\x02hi",
        b"\x82\x7e\x01\x00" + bytes(256),
        b"\x82\x7f" + bytes(5) + b"\x01\x00\x00" + bytes(65536),
    )
    for whole, length in ((short, 2), (middle, 256), (long, 65536)):
        frame = _frame(whole + b"rest")
        assert frame is not None and len(frame[1]) == length and frame[2] == b"rest"
        assert _frame(whole[:-1]) is None and _frame(whole[:1]) is None
