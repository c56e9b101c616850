"""What an engine is sent, to the letter; and what is refused before anything is sent."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from docker.errors import DockerException

from stoker.backends.base import messages
from stoker.backends.base.channel import Reader
from stoker.backends.base.messages import contents, credentials
from stoker.backends.docker import requests as containers
from stoker.backends.docker.backend import DockerBackend, check, device_files
from stoker.backends.docker.engines import Engine, EngineGone
from stoker.backends.docker.requests import EngineFacts, container_requests, warm_request
from stoker.backends.docker.settings import ContainerSettings
from stoker.core.codec import to_json
from stoker.core.devices import Device, Lease
from stoker.core.errors import BackendError, MissingPackage, SettingsError
from stoker.core.plan import Capacity, Job, Site, StepPlan
from stoker.core.protocol import MARK, FunctionSource, WorkerEvent
from stoker.core.settings import DockerSettings, ResourceSettings, StepSettings
from stoker.launchers.options import resolve_launch
from stoker.vendors.base import ContainerNeeds

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
FACTS = EngineFacts(user="1000:1000", store=SITE.artifacts)


def job(name: str = "train", *, attempt: int = 1, key: str = "", **settings: Any) -> Job:
    step = StepPlan(
        key=key or name,
        name=name,
        source=FunctionSource(
            kind="script",
            module="train",
            qualname=name,
            path="/home/me/project/train.py",
            root="/home/me/project",
        ),
        outputs=(),
        unpack=False,
        inputs={},
        settings=StepSettings(**settings),
        backend="orchestrator",
        code="1234",
        where="train.py:7",
        image="registry.example/ml@sha256:" + "ab" * 32,
    )
    return Job(name=f"run1/{step.key}/{attempt}", run="run1", key=step.key, attempt=attempt, step=step, inputs={})


def lease(kind: str, *uuids: str, index: int = 0) -> Lease:
    devices = tuple(
        Device(kind=kind, index=index + at, uuid=uuid, name="X", model="X", memory=1) for at, uuid in enumerate(uuids)
    )
    return Lease(devices=devices, samples="/home/me/.stoker/scratch/samples.jsonl")


def request(one: Job, node: int = 0, *, facts: EngineFacts = FACTS, **given: Any) -> dict[str, Any]:
    settings = given.pop("settings", ContainerSettings())
    made = container_requests(one, site=given.pop("site", SITE), settings=settings, facts=facts, **given)
    return dict(made[node].body)


PLAIN = job(environment={"WORD": "a b"})
BIG = job(
    resources=ResourceSettings(cpu_count=8, memory="64GiB", shared_memory="8GiB", gpu_count=2),
    timeout=60.0,
    docker=DockerSettings(
        parent_image="pytorch/pytorch:2.8.0", skip_build=True, runtime_environment={"HF_HOME": "/cache", "GONE": None}
    ),
)
EVERYTHING = ContainerSettings(
    network="ml",
    user="image",
    mounts=["/data:/mnt/data:ro", "cache:/cache"],
    python="/opt/conda/bin/python",
    run_options={
        "cap_add": ["SYS_PTRACE"],
        "ulimits": {"memlock": -1, "stack": 67108864},
        "extra_hosts": {"db": "10.0.0.9"},
        "group_add": ["7"],
        "sysctls": {"net.core.somaxconn": 1024},
        "tmpfs": {"/tmp": "size=1g"},
        "ipc_mode": "host",
        "init": True,
        "pids_limit": 4096,
    },
)
CASES: dict[str, Any] = {
    "plain": lambda: container_requests(PLAIN, site=SITE, settings=ContainerSettings(), facts=FACTS),
    "devices": lambda: container_requests(
        BIG, site=SITE, settings=EVERYTHING, facts=FACTS, leases=[lease("nvidia", "GPU-a", "GPU-b")]
    ),
    "cdi": lambda: container_requests(
        BIG, site=SITE, settings=ContainerSettings(gpus="cdi"), facts=FACTS, leases=[lease("nvidia", "GPU-a")]
    ),
    "amd": lambda: container_requests(
        BIG,
        site=SITE,
        settings=ContainerSettings(),
        facts=FACTS,
        leases=[lease("amd", "GPU-00000000000000ff")],
        files=ContainerNeeds(files=("/dev/kfd", "/dev/dri/renderD129"), groups=("44", "109")),
    ),
    "gang": lambda: container_requests(
        job(resources=ResourceSettings(nodes=2)), site=SITE, settings=ContainerSettings(), facts=FACTS, token="t0ken"
    ),
    "far": lambda: container_requests(
        BIG,
        site=attrs.evolve(SITE, artifacts="s3://bucket/store"),
        settings=ContainerSettings(),
        facts=EngineFacts(shares_files=False, rootless=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_request_is_this_one(case: str) -> None:
    made = [{"name": one.name, "request": one.body, "document": to_json(one.spec)} for one in CASES[case]()]
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    path = GOLDEN / f"{case}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert json.loads(text) == json.loads(path.read_text())


def test_selinux_does_not_stand_between_a_step_and_its_files() -> None:
    made = request(
        job(), facts=EngineFacts(selinux=True), settings=ContainerSettings(run_options={"security_opt": ["a=b"]})
    )
    assert made["HostConfig"]["SecurityOpt"] == ["a=b", "label=disable"]


def test_names_are_the_same_each_time_and_never_shared() -> None:
    names = [containers.container_name(job(key=key)) for key in ("a[1]", "a-1-", "a[2]", "ä", "x" * 300)]
    assert len(set(names)) == len(names)
    assert names == [containers.container_name(job(key=key)) for key in ("a[1]", "a-1-", "a[2]", "ä", "x" * 300)]
    for name in names:
        assert len(name) <= 160
        assert name.isascii()
    assert containers.container_name(job(key="train")) == "stoker-run1-train-1"


def test_attempts_that_do_the_same_have_one_digest() -> None:
    assert messages.request_digest(job(attempt=1)) == messages.request_digest(job(attempt=2))
    assert messages.request_digest(job()) != messages.request_digest(job(environment={"A": "b"}))
    changed = attrs.evolve(job(), step=attrs.evolve(job().step, code="5678"))
    assert messages.request_digest(job()) != messages.request_digest(changed)
    other = attrs.evolve(job(), inputs={"a": {"value": {"d": "x"}}})
    assert messages.request_digest(job()) != messages.request_digest(other)


# Settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mounts": ["data"]}, "is not a mount"),
        ({"mounts": ["/a:b"]}, "is not a mount"),
        ({"mounts": "/a:/b"}, "not a list"),
        ({"pull": "sometimes"}, "missing, always, never"),
        ({"user": "a b"}, "is not a user"),
        ({"secrets": {"../etc": "env:A"}}, "not a name for a secret"),
        ({"secrets": {"token": "env:"}}, "does not say where it comes from"),
        ({"run_options": {"cap_ad": []}}, "did you mean 'cap_add'"),
        ({"run_options": {"shm_size": 1}}, "given elsewhere"),
        ({"run_options": {"init": "yes"}}, "is not a bool"),
        ({"run_options": {"pids_limit": True}}, "is not a int"),
        ({"netwrk": "host"}, "did you mean 'network'"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ContainerSettings(**given)
    assert words in str(caught.value)


def test_a_secret_given_by_mistake_is_not_shown() -> None:
    with pytest.raises(SettingsError) as caught:
        ContainerSettings(secrets={"token": "env: "})
    assert "env: " not in caught.value.message


# Check

ROOM = Capacity(cpus=4, memory=16 << 30, slots=8)


def codes(one: Job, settings: ContainerSettings | None = None, room: Capacity | None = ROOM, **site: Any) -> list[str]:
    found = check(one.step, settings or ContainerSettings(), attrs.evolve(SITE, **site), room, leases=True)
    return [f"{finding.code} {finding.level}" for finding in found]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"cpu_count": 4, "memory": "16GiB", "shared_memory": "8GiB", "gpu_count": 1}, []),
        ({"cpu_count": 5}, ["STK101 error"]),
        ({"memory": "17GiB"}, ["STK102 error"]),
        ({"cpu_count": 3, "nodes": 2}, ["STK101 error", "STK104 translated"]),
        ({"nodes": 9}, ["STK104 error"]),
        ({"memory": "1GiB", "shared_memory": "2GiB"}, ["STK144 error"]),
        ({"extended": {"example.com/fpga": 1}}, ["STK106 error"]),
        ({"spot": True}, ["STK109 translated"]),
        ({"disk": "1000TB"}, ["STK108 error"]),
    ],
)
def test_every_field_is_honoured_translated_or_refused(resources: dict[str, Any], expected: list[str]) -> None:
    assert codes(job(resources=ResourceSettings(**resources))) == expected


def test_an_engine_elsewhere_needs_a_store_elsewhere() -> None:
    assert codes(job(), room=None) == ["STK142 error"]
    assert codes(job(), room=None, artifacts="s3://bucket") == []
    asks = job(resources=ResourceSettings(gpu_count=1, disk="1GB"))
    assert codes(asks, room=None, artifacts="s3://bucket") == ["STK147 translated", "STK141 error"]


def test_a_read_only_root_on_an_engine_elsewhere_is_refused() -> None:
    settings = ContainerSettings(run_options={"read_only": True})
    assert codes(job(), settings) == []
    assert codes(job(), settings, room=None, artifacts="s3://bucket") == ["STK240 error"]


def test_sources_that_are_not_there_are_found_before_the_run(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    settings = ContainerSettings(
        secrets={"a": "env:NO_SUCH_TOKEN", "b": str(tmp_path / "none")}, mounts=[f"{tmp_path}/gone:/x", "volume:/y"]
    )
    assert codes(job(), settings) == ["STK145 error"] * 3


def test_no_network_and_a_remote_store_do_not_go_together() -> None:
    off = ContainerSettings(network="none")
    assert codes(job(), off) == []
    assert codes(job(), off, artifacts="s3://bucket") == ["STK146 error"]
    assert codes(job(resources=ResourceSettings(nodes=2)), off) == ["STK104 translated", "STK146 error"]


def test_without_the_extra_its_name_is_told(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingPackage) as caught:
        DockerBackend(SITE, {})
    assert "stoker[docker]" in str(caught.value)


# Secrets and credentials


def test_credentials_are_those_of_the_stores_protocol() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "a", "AZURE_STORAGE_KEY": "b", "HOME": "/", "FSSPEC_SFTP": "c"}
    assert credentials("s3://bucket", environment) == {"AWS_ACCESS_KEY_ID": "a"}
    assert credentials("abfs://x", environment) == {"AZURE_STORAGE_KEY": "b"}
    assert credentials("sftp://x", environment) == {"FSSPEC_SFTP": "c"}
    assert credentials("/a/folder", environment) == {}
    assert credentials("file:///a/folder", environment) == {}


def test_secrets_are_read_when_they_are_needed(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("A_TOKEN", "geheim")
    (tmp_path / "key").write_bytes(b"\x00\xff")
    assert contents({"a": "env:A_TOKEN", "b": str(tmp_path / "key")}) == {"a": b"geheim", "b": b"\x00\xff"}
    monkeypatch.delenv("A_TOKEN")
    with pytest.raises(BackendError, match="A_TOKEN is not set"):
        contents({"a": "env:A_TOKEN"})


# Files of devices


def topology(root: Path) -> Path:
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    rows = {"0": "simd_count 0\nunique_id 0", "1": "simd_count 304\nunique_id 255\ndrm_render_minor 128"}
    rows |= {"2": "simd_count 304\nunique_id 4096\ndrm_render_minor 136"}
    for name, text in rows.items():
        (nodes / name).mkdir(parents=True)
        (nodes / name / "properties").write_text(text + "\n")
    return root


def test_amd_devices_are_files_found_by_their_id(tmp_path: Path) -> None:
    held = lease("amd", "GPU-0000000000001000").held
    assert device_files(held, topology(tmp_path)).files == ("/dev/kfd", "/dev/dri/renderD136")


def test_an_amd_device_that_the_kernel_does_not_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="does not list"):
        device_files(lease("amd", "GPU-0000000000000001").held, topology(tmp_path))


def test_neuron_devices_are_files_by_number(tmp_path: Path) -> None:
    held = lease("neuron", "neuron-cores:2-3", index=1).held
    assert device_files(held, tmp_path).files == ("/dev/neuron1",)


def test_devices_that_no_container_can_be_given_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="apple"):
        device_files(lease("apple", "mps-0").held, tmp_path)


def test_simulated_and_nvidia_devices_have_no_files(tmp_path: Path) -> None:
    held = [*lease("nvidia", "GPU-a").held, attrs.evolve(lease("tpu", "tpu-0").held[0], simulated=True)]
    assert device_files(held, tmp_path).files == ()


# Output


def told(reader: Reader, *pieces: tuple[str, bytes]) -> tuple[list[tuple[str, str]], list[Any]]:
    lines: list[tuple[str, str]] = []
    messages: list[Any] = []
    for stream, data in pieces:
        some, said = reader.read(stream, data)
        lines += [(line.stream, line.text) for line in some]
        messages += said
    some, said = reader.end()
    return lines + [(line.stream, line.text) for line in some], messages + said


def test_lines_come_whole_however_they_are_cut() -> None:
    found = told(Reader(), ("stdout", b"one\ntw"), ("stderr", b"err"), ("stdout", b"o\nthree"), ("stderr", b"or\n"))
    assert found[0] == [("stdout", "one"), ("stdout", "two"), ("stderr", "error"), ("stdout", "three")]


def test_messages_are_taken_out() -> None:
    reader = Reader()
    assert not reader.up
    up = f'{MARK}{{"kind": "up"}}\n'.encode()
    began = f'{MARK}{{"kind": "began", "time": 5}}\n'.encode()
    fake = f"{MARK}no message\n".encode()
    lines, messages = told(reader, ("stdout", up + b"hello\n" + began[:7]), ("stdout", began[7:] + fake))
    assert reader.up
    assert lines == [("stdout", "hello"), ("stdout", f"{MARK}no message")]
    assert messages == [WorkerEvent(kind="up"), WorkerEvent(kind="began", time=5.0)]


def test_what_was_read_before_a_break_is_passed_over() -> None:
    reader = Reader()
    reader.read("stdout", b"one\ntw")
    reader.restart()
    lines, _ = told(reader, ("stdout", b"on"), ("stdout", b"e\ntwo\nthree\n"))
    assert lines == [("stdout", "two"), ("stdout", "three")]


def test_an_engine_that_is_not_there_is_said_in_the_systems_words() -> None:
    with pytest.raises(EngineGone) as caught, Engine("unix:///none.sock")._translate_errors("connect"):
        try:
            raise FileNotFoundError(2, "No such file or directory")
        except OSError as error:
            raise DockerException("Error while fetching server API version") from error
    assert caught.value.message.endswith("does not answer (to connect): No such file or directory")


OWN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # why: the step's settings, the container's, a word of the reason
    "devices": ({"resources": ResourceSettings(gpu_count=1)}, {}, "devices"),
    "nodes": ({"resources": ResourceSettings(nodes=2)}, {}, "nodes"),
    "ranks": ({"launch": resolve_launch({"launcher": "torchrun"})}, {}, "ranks"),
    "a fresh process": ({"isolation": "fresh"}, {}, "isolation"),
    "secrets": ({}, {"secrets": {"token": "env:PATH"}}, "secrets"),
    "kept": ({}, {"keep": True}, "keep"),
    "others' processes": ({}, {"run_options": {"pid_mode": "host"}}, "pid_mode"),
}


@pytest.mark.parametrize("why", OWN)
def test_a_step_that_needs_its_own_container_is_refused_one_that_it_should_share(why: str) -> None:
    settings, container, word = OWN[why]
    step = job(**settings).step
    for reuse, expected in (("auto", []), (False, []), (True, ["STK254"])):
        found = check(step, ContainerSettings(reuse=reuse, **container), SITE, ROOM, leases=True)
        told = [finding for finding in found if finding.code == "STK254"]
        assert [finding.code for finding in told] == expected
        assert all(word in str(finding) for finding in told)
    shared = ContainerSettings(reuse=True)
    assert not list(check(job().step, shared, SITE, ROOM, leases=True))
    assert [one.code for one in check(job().step, shared, SITE, None, leases=True)][-1] == "STK254"


def test_jobs_of_one_shape_differ_in_what_is_their_own_alone() -> None:
    def shape(one: Job, number: int = 1, **settings: Any) -> str:
        given = ContainerSettings(**settings)
        return warm_request(one, number, site=SITE, settings=given, facts=FACTS).shape

    plain = shape(job())
    assert plain == shape(job("other", attempt=3)) == shape(job(timeout=5.0)) == shape(job(), 27)
    others = [
        shape(job(resources=ResourceSettings(memory="1GiB"))),
        shape(job(resources=ResourceSettings(cpu_count=1))),
        shape(job(environment={"WORD": "x"})),
        shape(attrs.evolve(job(), step=attrs.evolve(job().step, image="another"))),
        shape(job(), user="1:1"),
        shape(job(), network="host"),
        shape(job(), mounts=["/data"]),
        shape(job(), run_options={"pids_limit": 5}),
        shape(job(), idle_after=5),
        shape(job(), python="/usr/bin/python3"),
    ]
    assert len({plain, *others}) == 1 + len(others)


def test_folders_that_a_mount_brings_are_not_emptied() -> None:
    def emptied(**settings: Any) -> tuple[str, ...]:
        given = ContainerSettings(**settings)
        return warm_request(job(), 1, site=SITE, settings=given, facts=FACTS).pool.emptied

    assert emptied() == ("/tmp", "/var/tmp", "/dev/shm")
    assert emptied(mounts=["/data:/tmp"]) == ("/var/tmp", "/dev/shm")
    assert emptied(mounts=["/data:/var", "/x:/dev/"]) == ("/tmp",)
    assert emptied(mounts=["/data:/tmp/data", "/y:/tmpfiles"]) == ("/tmp", "/var/tmp", "/dev/shm"), (
        "it was there before"
    )
    assert emptied(run_options={"ipc_mode": "host"}) == ("/tmp", "/var/tmp")
