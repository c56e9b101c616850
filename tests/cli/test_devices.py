"""`stoker devices`, and what `stoker doctor` says of accelerators, frameworks, container engines and clusters."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.devices.conftest import Machine, compiled

from stoker.backends.docker.registration import answers, docker_socket
from stoker.cli import doctor
from stoker.core.accelerators import Accelerator
from stoker.core.devices import Claim, Holder, Inventory, Lease
from stoker.devices.leases import Ledger
from stoker.devices.probe import parse_simulation, processes

TWO = """
    driver = 535.104.05
    cuda = 12020
    [gpu]
    name = NVIDIA A100-SXM4-80GB
    uuid = GPU-aaaa
    memory = 85899345920
    capability = 8.0
    nvlink = 1
    process = 4242:1073741824
    process = 4243
    [gpu]
    name = NVIDIA A100-SXM4-80GB
    uuid = GPU-bbbb
    memory = 85899345920
    capability = 8.0
    nvlink = 0
    [gpu]
    fails = 15
"""


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What whoever runs the tests has set for devices, containers and clusters is gone; so are the machine's leases."""
    monkeypatch.setenv("STOKER_LEASES", str(tmp_path / "leases"))
    for name in ("CUDA_VISIBLE_DEVICES", "DOCKER_HOST", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(tmp_path: Path, library: Path) -> Callable[[str], Mapping[str, str]]:
    """`nvml(scenario)`: the environment of a process that finds the driver of a scenario, and nothing else."""
    folder = tmp_path / "machine"
    folder.mkdir()
    machine = Machine(folder, lambda: library)

    def variables(scenario: str) -> Mapping[str, str]:
        return machine.nvml(scenario).variables()

    return variables


def test_devices(stoker: Any, nvml: Callable[[str], Mapping[str, str]]) -> None:
    env = nvml(TWO)
    found = stoker.json("devices", env=env, code=4)
    assert (found["driver"], found["cuda"], found["simulated"]) == ("535.104.05", "12.2", False)
    first, second = found["devices"]
    assert (first["index"], first["model"], first["uuid"], first["capability"]) == (0, "A100-80GB", "GPU-aaaa", "8.0")
    assert (first["memory"], first["links"]) == (85899345920, ["GPU-bbbb"])
    assert first["used_by"] == [{"pid": 4242, "memory": 1073741824}, {"pid": 4243, "memory": None}]
    assert second["used_by"] == []
    (finding,) = found["findings"]
    assert (finding["code"], finding["level"], finding["where"]) == ("STK123", "error", "GPU 2")
    lines = stoker("devices", env=env, code=4).stdout.splitlines()
    assert lines[0].split() == ["index", "model", "memory", "capability", "links", "used", "by", "uuid", "name"]
    assert lines[1].split()[:6] == ["0", "A100-80GB", "85.9", "GB", "8.0", "1"]
    assert "pid 4242 (1.07 GB), pid 4243  GPU-aaaa  NVIDIA A100-SXM4-80GB" in lines[1]
    assert lines[3] == "2 devices, NVIDIA driver 535.104.05, CUDA up to 12.2"
    assert lines[4] == "STK123 error: GPU 2: the GPU is lost"
    assert [line.split(":")[0] for line in lines[5:]] == ["  why", "  fix"]


def test_a_driver_that_is_broken(stoker: Any, nvml: Callable[[str], Mapping[str, str]]) -> None:
    env = nvml("init = 18\n")
    text = stoker("devices", env=env, code=4).stdout
    assert text.startswith("no accelerators\n") and "STK121 error: " in text and "  fix: restart the machine" in text
    problem = next(check for check in stoker.json("doctor", env=env, code=4)["checks"] if check["problem"])
    assert problem["name"] == "STK121" and "different versions" in problem["problem"] and problem["fix"]


def test_simulated_devices(stoker: Any) -> None:
    text = "2xH100-80GB,3xA100-80GB/1g.10gb;driver=535.104.05"
    lines = stoker("devices", "--simulate", text).stdout.splitlines()
    assert "H100" in lines[1] and "1g.10gb" in lines[3]
    assert lines[-1] == "5 devices (simulated), NVIDIA driver 535.104.05, CUDA up to 12.2"
    by_option = stoker.json("devices", "--simulate", text)
    assert by_option["simulated"] and all(device["simulated"] for device in by_option["devices"])
    # The option goes before the variable.
    assert by_option == stoker.json("devices", env={"STOKER_SIMULATE": text})
    assert len(stoker.json("devices", "--simulate", "1xL4", env={"STOKER_SIMULATE": text})["devices"]) == 1


def test_who_holds_devices_and_who_waits(stoker: Any) -> None:
    text = "2xH100,1xA10"
    ledger = Ledger(lambda: parse_simulation(text), processes)
    started = psutil.Process().create_time()

    def claimed(run: str, attempt: int, claim: Claim) -> str:
        return ledger.claim(claim, Holder(run=run, key="train", attempt=attempt, pid=os.getpid(), started=started))

    whole = claimed("7f2", 1, Claim(count=1, choices=(Accelerator.parse("H100:1"),)))
    part = claimed("9ab", 2, Claim(count=1, memory=10 * 10**9, share=True, choices=(Accelerator.parse("A10:1"),)))
    assert all(isinstance(ledger.answer(ticket), Lease) for ticket in (whole, part))
    claimed("c0d", 1, Claim(count=2, choices=(Accelerator.parse("H100:2"),)))
    reason = "waiting for 2 of 2 H100: 1 leased to run 7f2, 1 free"
    lines = stoker("devices", "--simulate", text).stdout.splitlines()
    assert lines[0].split()[:7] == ["index", "model", "memory", "capability", "links", "leased", "to"]
    assert "  run 7f2 train #1  " in lines[1] and "run" not in lines[2]
    assert "  run 9ab train #2 (10 GB)  " in lines[3]
    assert lines[4:] == ["3 devices (simulated)", f"run c0d step 'train' attempt 1: {reason}"]
    found = stoker.json("devices", "--simulate", text)
    first, second, third = found["devices"]
    holder = {"run": "7f2", "step": "train", "attempt": 1, "pid": os.getpid()}
    assert first["leased_to"] == [{**holder, "memory": 0}] and second["leased_to"] == []
    assert third["leased_to"] == [{"run": "9ab", "step": "train", "attempt": 2, "pid": os.getpid(), "memory": 10**10}]
    assert found["leases"][0] == {**holder, "devices": [first["uuid"]], "memory": 0} and len(found["leases"]) == 2
    (waiting,) = found["waiting"]
    assert (waiting["run"], waiting["why"], waiting["claim"]["choices"]) == ("c0d", reason, ["H100:2"])
    # Another machine's are none of these.
    other = stoker.json("devices", "--simulate", "2xA10")
    assert other["leases"] == other["waiting"] == other["devices"][0]["leased_to"] == []


def test_a_ledger_that_cannot_be_read(stoker: Any, tmp_path: Path) -> None:
    ledger = Ledger(lambda: parse_simulation("1xL4"), processes)
    ledger.path.parent.mkdir()
    ledger.path.mkdir()
    finished = stoker("devices", "--simulate", "1xL4")
    assert "1 device (simulated)" in finished.stdout
    assert "cannot be used" in finished.stderr and "  fix: " in finished.stderr


def test_a_wrong_simulation(stoker: Any) -> None:
    for argv, env in ((["devices", "--simulate", "4xH10"], {}), (["devices"], {"STOKER_SIMULATE": "4xH10"})):
        told = stoker(*argv, env=env, code=2).stderr
        assert "did you mean 'H100'" in told and "  fix: write counts and names" in told
    found = stoker.json("doctor", env={"STOKER_SIMULATE": "4xH10"}, code=4)
    (problem,) = (check for check in found["checks"] if check["problem"])
    assert problem["name"] == "devices" and "did you mean 'H100'" in problem["problem"]


def test_doctor_on_devices(stoker: Any, nvml: Callable[[str], Mapping[str, str]]) -> None:
    env = {**nvml(TWO.partition("    [gpu]\n    fails")[0]), "CUDA_VISIBLE_DEVICES": "0"}
    found = stoker.json("doctor", env=env, code=None)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["devices"]["found"] == "1 × A100-80GB"
    assert checks["driver"]["found"] == "NVIDIA 535.104.05, CUDA up to 12.2"
    assert "leaves 1 of 2 devices" in checks["STK129"]["found"] and not checks["STK129"]["problem"]
    text = stoker("doctor", env=env, code=None).stdout
    assert "fix: unset CUDA_VISIBLE_DEVICES" in text
    simulated = stoker.json("doctor", env={"STOKER_SIMULATE": "2xL4,1xA100/1g.5gb"})
    assert next(c["found"] for c in simulated["checks"] if c["name"] == "devices") == (
        "2 × L4, 1 × A100/1g.5gb (simulated)"
    )


def framework(project: Any, name: str, version: str, files: Mapping[str, str] | None = None) -> dict[str, str]:
    """Install a framework that consists of its metadata; the environment in which it is found, and first."""
    plain = name.replace("-", "_")
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    project.write({f"site/{plain}-{version}.dist-info/METADATA": metadata})
    project.write({f"site/{path}": text for path, text in (files or {}).items()})
    # To import one is to fail: it must be read.
    project.write({f"site/{plain}/__init__.py": "raise SystemExit(f'{__name__} was imported')"})
    return {"PYTHONPATH": str(project.folder / "site")}


TENSORFLOW = "tensorflow/python/platform/build_info.py"


@pytest.mark.parametrize(
    ("name", "version", "files", "said"),
    [
        ("torch", "2.13.0+cpu", {}, "2.13.0+cpu, built for the CPU"),
        ("torch", "2.4.0+cu121", {}, "2.4.0+cu121, built for CUDA 12.1"),
        ("torch", "2.12.0+cu130", {}, "2.12.0+cu130, built for CUDA 13.0"),
        ("torch", "2.6.0+rocm6.2.4", {}, "2.6.0+rocm6.2.4, built for ROCm 6.2.4"),
        (
            "torch",
            "2.4.0",
            {"torch/version.py": "cuda: Optional[str] = '12.1'\nhip = None"},
            "2.4.0, built for CUDA 12.1",
        ),
        (
            "torch",
            "2.4.0",
            {"torch/version.py": "cuda = None\nhip = '6.1.40091-a8dbc0c19'"},
            "2.4.0, built for ROCm 6.1.40091",
        ),
        ("torch", "2.4.0", {"torch/version.py": "cuda: Optional[str] = None\n"}, "2.4.0, built for the CPU"),
        ("torch", "2.6.0a0+ecf3bae40a.nv25.1", {}, "2.6.0a0+ecf3bae40a.nv25.1"),
        (
            "tensorflow",
            "2.17.0",
            {TENSORFLOW: "dict([('cuda_version', '12.3'), ('x', 1)])"},
            "2.17.0, built for CUDA 12.3",
        ),
        ("tensorflow", "2.17.0", {TENSORFLOW: "dict([('is_cuda_build', False)])"}, "2.17.0, built for the CPU"),
        ("jax", "0.6.0", {}, "0.6.0, built for the CPU"),
    ],
)
def test_frameworks(
    name: str, version: str, files: Mapping[str, str], said: str, project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(framework(project, name, version, files)["PYTHONPATH"])
    assert next(check.found for check in doctor.frameworks(Inventory()) if check.name == name) == said


def test_jax_is_told_by_its_plugins(stoker: Any) -> None:
    framework(stoker.project, "jax", "0.6.0")
    framework(stoker.project, "jax-cuda12-plugin", "0.6.0")
    env = framework(stoker.project, "libtpu", "0.0.15")
    checks = stoker.json("doctor", env=env)["checks"]
    assert next(check["found"] for check in checks if check["name"] == "jax") == "0.6.0, built for CUDA 12, TPU"


def test_a_framework_for_the_cpu_where_there_are_gpus(stoker: Any, nvml: Callable[[str], Mapping[str, str]]) -> None:
    env = {**nvml("[gpu]\nuuid = GPU-1\n"), **framework(stoker.project, "torch", "2.13.0+cpu")}
    found = stoker.json("doctor", env=env, code=4)
    problems = {check["name"]: check for check in found["checks"] if check["problem"]}
    assert problems["torch"]["problem"] == "this torch cannot use the NVIDIA devices"
    assert problems["torch"]["fix"] == "install torch again, in a build for CUDA"
    # Pretended devices are there to try things on such a machine.
    assert stoker.json("doctor", env={**env, "STOKER_SIMULATE": "1xL4"})["ok"]


def commands(folder: Path, *names: str) -> str:
    """A PATH of commands that only have to be there."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\nexit 9\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_container_engines(stoker: Any, tmp_path: Path) -> None:
    address = tmp_path / "docker.sock"
    env = {"PATH": commands(tmp_path / "bin", "docker", "buildah"), "DOCKER_HOST": f"unix://{address}"}
    checks = {check["name"]: check for check in stoker.json("doctor", env=env)["checks"]}
    assert "does not answer" in checks["docker"]["found"] and "start Docker" in checks["docker"]["fix"]
    assert not checks["docker"]["problem"] and checks["containers"]["found"] == "buildah"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen()
        checks = {check["name"]: check for check in stoker.json("doctor", env=env)["checks"]}
    assert (checks["docker"]["found"], checks["docker"]["fix"]) == (f"docker at unix://{address}", "")
    env["PATH"] = commands(tmp_path / "empty")
    checks = {check["name"]: check for check in stoker.json("doctor", env=env)["checks"]}
    assert checks["containers"]["found"] == "none of docker, podman, buildah (optional)" and "docker" not in checks


def test_where_docker_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert docker_socket() == "unix:///var/run/docker.sock"
    (tmp_path / "docker.sock").touch()
    assert docker_socket() == f"unix://{tmp_path}/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", "tcp://builder:2375")
    assert docker_socket() == "tcp://builder:2375"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert answers(f"tcp://127.0.0.1:{port}")
    assert not answers(f"tcp://127.0.0.1:{port}")
    assert not answers("tcp://nowhere")
    assert answers("ssh://builder")


def test_clusters(stoker: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    nothing = {"HOME": str(home), "PATH": commands(tmp_path / "none")}
    names = ("kubernetes", "aws", "slurm", "ray", "skypilot")
    checks = {check["name"]: check["found"] for check in stoker.json("doctor", env=nothing)["checks"]}
    assert {checks[name] for name in names} == {"nothing to reach it with (optional)"}
    for path in (".kube/config", ".aws/credentials", ".sky/config.yaml"):
        (home / path).parent.mkdir(parents=True)
        (home / path).write_text("secret")
    env = {"HOME": str(home), "PATH": commands(tmp_path / "bin", "sbatch"), "RAY_ADDRESS": "ray://secret:10001"}
    text = stoker("doctor", env={**env, "AWS_ACCESS_KEY_ID": "secret"}).stdout
    assert "secret" not in text
    checks = {check["name"]: check["found"] for check in stoker.json("doctor", env=env)["checks"]}
    assert checks["kubernetes"] == f"{home}/.kube/config"
    assert checks["aws"] == f"{home}/.aws/credentials"
    assert checks["slurm"] == f"{tmp_path}/bin/sbatch"
    assert checks["ray"] == "RAY_ADDRESS"
    assert checks["skypilot"] == f"{home}/.sky"
    other = stoker.json("doctor", env={**env, "KUBECONFIG": str(home / "none")})["checks"]
    assert next(c["found"] for c in other if c["name"] == "kubernetes").startswith("nothing")
    shutil.rmtree(home)


BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def toy(stoker: Any, repository: Path, tmp_path: Path) -> Any:
    """`stoker` with the walk-through's distribution on the path, and its step in train.py."""
    page = (repository / "docs/dev/adding/vendor.md").read_text(encoding="utf-8")
    vendor, program = BLOCK.findall(page)
    site = tmp_path / "toy-site"
    information = site / "stoker_toy-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "stoker_toy.py").write_text(vendor)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stoker-toy\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[stoker.vendors]\ntoy = stoker_toy:VENDOR\n")
    devices = tmp_path / "toys"
    devices.write_text("toy-a\ntoy-b\ntoy-c\n")
    stoker.project.write({"train.py": program})

    def run(*argv: str, real: bool = True, **options: Any) -> Any:
        found = {"TOY_DEVICES": str(devices)} if real else {}
        return stoker(*argv, env={"PYTHONPATH": str(site), **found}, **options)

    run.project = stoker.project  # type: ignore[attr-defined]
    return run


def test_a_step_holds_proves_and_measures_them(toy: Any) -> None:
    document = json.loads(toy("devices", "--json").stdout)
    toys = [device for device in document["devices"] if device["kind"] == "toy"]
    assert [(device["uuid"], device["model"]) for device in toys] == [(f"toy-{one}", "toy1") for one in "abc"]
    toy("run", "train.py")
    step = toy.project.client().run("latest").steps["train"]
    assert step.load() == "toy-a,toy-b {'toy'}"
    receipt = step.receipt
    assert receipt.proved["devices"] == "2 visible, as leased"
    assert [(use.kind, use.model, use.utilization_peak) for use in receipt.devices] == [("toy", "toy1", 50.0)] * 2
    assert receipt.verdict == "used"


def test_pretended_ones_are_given_and_none_is_refused(toy: Any) -> None:
    assert "toy1:2" in toy("run", "train.py", real=False, code=3).stderr
    toy("run", "train.py", "--simulate", "2xtoy1", real=False)
    step = toy.project.client().run("latest").steps["train"]
    assert step.load().count("toy-simulated") == 2 and step.receipt.simulated
