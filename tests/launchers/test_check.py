"""Whether a launch fits what is asked of the hardware."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.config import MPI, Accelerate, Command, DeepSpeed, Jax, Launch, Torchrun
from stoker.core.findings import Finding
from stoker.core.resources import ResourceSettings
from stoker.core.settings import plain
from stoker.launchers.options import check, resolve_launch
from stoker.vendors.nvidia.chips import capability


def findings(launch: Launch, **resources: Any) -> list[Finding]:
    complete = resolve_launch(plain(launch))
    assert complete is not None
    return list(check(complete, ResourceSettings(**resources), where="step 'train'", capability=capability))


FINE = [
    (Accelerate(), {}),
    (Accelerate(), {"gpu_count": 4}),
    (Accelerate(cpu=True, num_processes=2), {}),
    (Accelerate(num_processes=4, multi_gpu=True), {"gpu_count": 4}),
    (Accelerate(num_processes=8), {"gpu_count": 4, "nodes": 2}),
    (Accelerate(num_machines=2), {"gpu_count": 4, "nodes": 2}),
    (Accelerate(mixed_precision="bf16"), {"accelerators": "A100-80GB:2"}),
    (Accelerate(mixed_precision="fp8"), {"accelerators": "H100:2"}),
    (Accelerate(use_fsdp=True, fsdp_version=2, use_parallelism_config=True), {"gpu_count": 2}),
    (Torchrun(num_processes=2), {}),
    (Torchrun(nproc_per_node=2, nnodes="1:4"), {"gpu_count": 2, "nodes": 3}),
    (Torchrun(rdzv_backend="etcd-v2", rdzv_endpoint="etcd:2379"), {}),
    (DeepSpeed(num_gpus=2, num_nodes=2), {"gpu_count": 2, "nodes": 2}),
    (MPI(np=16), {"gpu_count": 4}),
    (MPI(program="srun", ntasks_per_node=2, label=True), {"nodes": 2}),
    (Jax(processes_per_node=1), {"gpu_count": 4}),
    (Command(["x"], num_processes=9), {"gpu_count": 1, "nodes": 3}),
]


@pytest.mark.parametrize(("launch", "resources"), FINE)
def test_what_fits(launch: Launch, resources: dict[str, Any]) -> None:
    assert findings(launch, **resources) == []


WRONG = [
    (Accelerate(num_processes=4), {"gpu_count": 2}, "STK130", "error", "4 processes on a node, which has 2"),
    (Torchrun(nproc_per_node=4), {"gpu_count": 2}, "STK130", "error", "4 processes"),
    (DeepSpeed(num_gpus=4), {"accelerators": "H100:2"}, "STK130", "error", "4 processes"),
    (Accelerate(num_processes=8), {"gpu_count": 2, "nodes": 2}, "STK130", "error", "4 processes on each node"),
    (Jax(num_processes=4), {"gpu_count": 2}, "STK130", "error", "4 processes"),
    (Torchrun(num_processes=2), {"gpu_count": 4}, "STK131", "info", "2 would stay idle"),
    (Jax(num_processes=3), {"gpu_count": 4}, "STK131", "info", "1 would stay idle"),
    (Accelerate(cpu=True, num_processes=2), {"gpu_count": 1}, "STK131", "info", "cpu=True leaves the 1 accelerator"),
    (Accelerate(num_processes=2), {}, "STK132", "error", "2 processes without an accelerator"),
    (Accelerate(), {"nodes": 2}, "STK132", "error", "2 processes without an accelerator"),
    (Torchrun(num_processes=3), {"nodes": 2}, "STK133", "error", "3 processes cannot be shared out evenly"),
    (Torchrun(num_processes=3, processes_per_node=2), {"nodes": 2}, "STK133", "error", "3 processes in all and 2"),
    (Accelerate(num_machines=2), {"gpu_count": 1}, "STK134", "error", "num_machines=2 and resources.nodes=1"),
    (Torchrun(nnodes="2:4"), {}, "STK134", "error", "nnodes=2:4 and resources.nodes=1"),
    (Torchrun(nnodes="many"), {}, "STK134", "error", "nnodes=many"),
    (Accelerate(multi_gpu=True), {"gpu_count": 1}, "STK135", "error", "multi_gpu=True with one process"),
    (Accelerate(cpu=True, use_fsdp=True), {}, "STK135", "error", "cpu=True and use_fsdp=True exclude"),
    (Accelerate(cpu=True, use_megatron_lm=True), {}, "STK135", "error", "exclude each other"),
    (Accelerate(use_parallelism_config=True), {}, "STK135", "error", "without use_fsdp=True"),
    (MPI(label=True), {}, "STK135", "error", "label is not of mpirun"),
    (MPI(program="srun", oversubscribe=True), {}, "STK135", "error", "oversubscribe is not of srun"),
    (
        Accelerate(mixed_precision="bf16"),
        {"accelerators": "V100:1"},
        "STK136",
        "error",
        'mixed_precision="bf16" on V100',
    ),
    (Accelerate(mixed_precision="fp8"), {"accelerators": "A100:1"}, "STK136", "error", 'mixed_precision="fp8" on A100'),
    (Accelerate(main_process_port=29511), {}, "STK137", "info", "main_process_port=29511 is fixed"),
    (Torchrun(master_port=29511), {}, "STK137", "info", "master_port=29511 is fixed"),
    (Accelerate(tpu=True), {"nodes": 2}, "STK138", "error", "tpu=True on 2 nodes"),
    (Torchrun(rdzv_endpoint="a:1"), {}, "STK139", "error", "rdzv_endpoint='a:1' with"),
    (Torchrun(rdzv_backend="etcd"), {}, "STK139", "error", "without rdzv_endpoint"),
    (Torchrun(standalone=True), {"nodes": 2}, "STK139", "error", "standalone=True on 2 nodes"),
    (Torchrun(rdzv_backend="static", max_restarts=1), {"nodes": 2}, "STK139", "error", "may start again"),
]


@pytest.mark.parametrize(("launch", "resources", "code", "level", "words"), WRONG)
def test_what_does_not_fit(launch: Launch, resources: dict[str, Any], code: str, level: str, words: str) -> None:
    found = findings(launch, **resources)
    assert [(finding.code, finding.level) for finding in found] == [(code, level)]
    assert words in found[0].what
    assert found[0].fix
    assert found[0].where == "step 'train'"


def test_a_chip_of_which_nothing_is_known_is_let_pass() -> None:
    assert findings(Accelerate(mixed_precision="fp8"), accelerators="MI300X:1") == []
