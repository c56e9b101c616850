"""Whether a launch fits what the step asks of the hardware: findings, before anything runs.

Pure: what the chips can do is asked of a function that is handed in, because the catalog is another room's.
"""

from __future__ import annotations

from typing import Any, Callable, Final, Iterator, Mapping

import attrs

from stoker.core.findings import Finding
from stoker.core.launch import Launch, load_launcher
from stoker.core.resources import ResourceSettings
from stoker.launchers import mpi, torchrun
from stoker.launchers.base import on_cpus, processes_per_node

Capability = Callable[[str], tuple[int, int] | None]
"""The compute capability of an NVIDIA model by its name; None where it is not known."""

# bf16 in tensor cores from Ampere on, fp8 from Ada Lovelace on:
# https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html and
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#arithmetic-instructions
PRECISIONS: Final[Mapping[str, tuple[int, int]]] = {"bf16": (8, 0), "fp8": (8, 9)}
EXCLUSIVE: Final = ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp")
"""Of these `accelerate launch` takes one at a time (`_validate_launch_command`)."""


@attrs.frozen(kw_only=True)
class _Asked:
    """A launch and the hardware that it is held against."""

    launch: Launch
    arguments: Mapping[str, Any]
    nodes: int
    devices: int
    cpu: bool
    processes: int

    @property
    def launcher(self) -> str:
        return self.launch.launcher


def check(
    launch: Launch, resources: ResourceSettings, *, where: str = "", capability: Capability | None = None
) -> Iterator[Finding]:
    """What does not fit; `launch` is resolved (`core.launch.resolved`). `where` is the step's name and line."""
    nodes = int(resources.get("nodes", 1))
    devices = resources.gpus_per_node
    cpu = on_cpus(launch)
    asked = _Asked(
        launch=launch,
        arguments={name: value for name, value in (launch.arguments or {}).items() if value is not None},
        nodes=nodes,
        devices=devices,
        cpu=cpu,
        processes=processes_per_node(launch, nodes=nodes, devices=devices, cpu=cpu),
    )
    found = [*_counts(asked), *_devices(asked), *_nodes(asked), *_arguments(asked)]
    if capability is not None:
        found += _precision(asked, resources, capability)
    yield from (attrs.evolve(finding, where=where) for finding in found)


def _counts(asked: _Asked) -> Iterator[Finding]:
    total, each = asked.launch.num_processes, asked.launch.processes_per_node
    if total and each and total != each * asked.nodes:
        yield Finding(
            code="STK133",
            level="error",
            what=f"{total} processes in all and {each} on each of {_nodes_text(asked.nodes)} disagree",
            fix=f"give one of the two: num_processes={each * asked.nodes}, or processes_per_node={each}",
        )
    elif total and total % asked.nodes:
        more = -(-total // asked.nodes) * asked.nodes
        yield Finding(
            code="STK133",
            level="error",
            what=f"{total} processes cannot be shared out evenly to {_nodes_text(asked.nodes)}",
            why="num_processes counts the processes of all nodes together",
            fix=f"ask for num_processes={more}, or processes_per_node={more // asked.nodes}",
        )


def _devices(asked: _Asked) -> Iterator[Finding]:
    processes, devices = asked.processes, asked.devices
    if asked.cpu and devices:
        yield Finding(
            code="STK131",
            level="info",
            what=f"cpu=True leaves the {_devices_text(devices)} of {_each(asked)} without work",
            fix="remove cpu=True, or ask for no accelerator",
        )
    elif asked.cpu or load_launcher(asked.launcher).crowded:
        return
    elif devices and processes > devices:
        yield Finding(
            code="STK130",
            level="error",
            what=f"{processes} processes on {_each(asked)}, which has {_devices_text(devices)}",
            why="each process needs an accelerator of its own: two on one fail with NCCL, or share its memory unsaid",
            fix=f"ask for resources.gpu_count={processes}, or for {_lower(asked)}"
            + (", or compute on the CPUs with cpu=True" if asked.launcher == "accelerate" else ""),
        )
    elif devices and processes < devices and not (asked.launcher == "jax" and devices % processes == 0):
        yield Finding(
            code="STK131",
            level="info",
            what=f"{_processes_text(processes)} on {_each(asked)}, which has {_devices_text(devices)}: "
            f"{devices - processes} would stay idle",
            fix="leave the number of processes out: each accelerator gets one",
        )
    elif (
        not devices
        and asked.launcher == "accelerate"
        and processes * asked.nodes > 1
        and not asked.arguments.get("tpu")
    ):
        yield Finding(
            code="STK132",
            level="error",
            what=f"{processes * asked.nodes} processes without an accelerator, and cpu=True is not said",
            why="Accelerate would start processes that each take themselves for the only one",
            fix="write cpu=True for ranks on CPUs, or ask for resources.gpu_count",
        )


def _nodes(asked: _Asked) -> Iterator[Finding]:
    for name, argument in load_launcher(asked.launcher).arguments.items():
        value = asked.arguments.get(name)
        if argument.means != "nodes" or value is None:
            continue
        least, _, most = str(value).partition(":")
        if not (least.isdigit() and (most or least).isdigit()):
            yield _disagree(name, value, asked, "it is neither a number nor a range such as 1:4")
        elif not int(least) <= asked.nodes <= int(most or least):
            yield _disagree(name, value, asked, "resources.nodes says how many nodes the step gets, all at once")
    if asked.nodes > 1 and asked.launcher == "accelerate" and asked.arguments.get("tpu"):
        yield Finding(
            code="STK138",
            level="error",
            what=f"tpu=True on {asked.nodes} nodes",
            why="Accelerate starts a pod's other hosts itself, by ssh, where Stoker would not see them",
            fix="launch with Jax(…), or ask for resources.nodes=1",
        )


def _disagree(name: str, value: Any, asked: _Asked, why: str) -> Finding:
    return Finding(
        code="STK134",
        level="error",
        what=f"{name}={value} and resources.nodes={asked.nodes} disagree",
        why=why,
        fix=f"remove {name}, or ask for resources.nodes={str(value).partition(':')[0]}",
    )


def _arguments(asked: _Asked) -> Iterator[Finding]:
    given = asked.arguments
    if asked.launcher == "accelerate":
        yield from _accelerate(asked)
    if asked.launcher == "torchrun":
        yield from _torchrun(asked)
    if asked.launcher == "mpi" and mpi.foreign(given):
        program, wrong = given.get("program", "mpirun"), mpi.foreign(given)
        other = "mpirun" if program == "srun" else "srun"
        yield _together(
            f"{', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not of {program}",
            why=f"{other} has {'it' if len(wrong) == 1 else 'them'}",
            fix=f'remove {", ".join(wrong)}, or write program="{other}"',
        )
    port = load_launcher(asked.launcher).port
    if given.get(port):
        yield Finding(
            code="STK137",
            level="info",
            what=f"{port}={given[port]} is fixed",
            why="two steps on one host cannot both have it, and an attempt may meet what is left of the one before",
            fix=f"remove {port}: a free port is found for each attempt",
        )


def _accelerate(asked: _Asked) -> Iterator[Finding]:
    given = asked.arguments
    said = [name for name in EXCLUSIVE if given.get(name)]
    if len(said) > 1:
        yield _together(
            f"{' and '.join(f'{name}=True' for name in said)} exclude each other",
            why="accelerate launch takes one of them at a time",
            fix=f"keep {said[-1]}=True" if "multi_gpu" in said[:-1] else "keep one of them",
        )
    if given.get("cpu") and given.get("use_megatron_lm"):
        yield _together("cpu=True and use_megatron_lm=True exclude each other", fix="keep one of them")
    if given.get("multi_gpu") and asked.processes * asked.nodes < 2 and not given.get("cpu"):
        yield _together(
            "multi_gpu=True with one process",
            why="accelerate launch wants at least 2 processes for it",
            fix="remove multi_gpu, which follows from the number of processes, or ask for resources.gpu_count=2",
        )
    version = str(given.get("fsdp_version", "1"))
    if given.get("use_parallelism_config") and not (given.get("use_fsdp") and version == "2"):
        yield _together(
            "use_parallelism_config=True without use_fsdp=True and fsdp_version=2",
            why="accelerate launch refuses it",
            fix='write use_fsdp=True and fsdp_version="2"',
        )


def _torchrun(asked: _Asked) -> Iterator[Finding]:
    given = asked.arguments
    backend = given.get("rdzv_backend")
    own = backend is None or backend in torchrun.OWN_RENDEZVOUS
    if own and given.get("rdzv_endpoint"):
        yield _together(
            f"rdzv_endpoint={given['rdzv_endpoint']!r} with rdzv_backend={backend or 'static'!r}",
            why="the nodes meet at the head of their gang, whose address and port are known when they start",
            fix='remove rdzv_endpoint, or name the service that it belongs to: rdzv_backend="etcd-v2"',
            code="STK139",
        )
    if not own and not given.get("rdzv_endpoint"):
        yield _together(
            f"rdzv_backend={backend!r} without rdzv_endpoint",
            why="it is a service of its own, of which Stoker does not know the address",
            fix="give rdzv_endpoint",
            code="STK139",
        )
    if given.get("standalone") and asked.nodes > 1:
        yield _together(
            f"standalone=True on {asked.nodes} nodes",
            why="each node would be a world of its own",
            fix="remove standalone",
            code="STK139",
        )
    if backend == "static" and torchrun.elastic(given) and asked.nodes > 1:
        yield _together(
            'rdzv_backend="static" for ranks that may start again on several nodes',
            why="nodes that meet once cannot meet again",
            fix='remove rdzv_backend, or write "c10d"',
            code="STK139",
        )


def _together(what: str, *, why: str = "", fix: str = "", code: str = "STK135") -> Finding:
    return Finding(code=code, level="error", what=what, why=why, fix=fix)


def _precision(asked: _Asked, resources: ResourceSettings, capability: Capability) -> Iterator[Finding]:
    precision = str(asked.arguments.get("mixed_precision", ""))
    least = PRECISIONS.get(precision)
    if least is None or asked.cpu:
        return
    for kind in resources.get("accelerators", ()):
        has = capability(kind.model.name)
        if has is not None and has < least:
            yield Finding(
                code="STK136",
                level="error",
                what=f'mixed_precision="{precision}" on {kind.model.name}',
                why=f"it computes {precision} from compute capability {_dotted(least)} on, and has {_dotted(has)}",
                fix='write mixed_precision="fp16"'
                + (', or "bf16"' if has >= PRECISIONS["bf16"] else "")
                + ", or ask for another accelerator",
            )


def _lower(asked: _Asked) -> str:
    if asked.launch.processes_per_node:
        return f"processes_per_node={asked.devices}"
    return f"num_processes={asked.devices * asked.nodes}"


def _each(asked: _Asked) -> str:
    return "each node" if asked.nodes > 1 else "a node"


def _nodes_text(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _devices_text(count: int) -> str:
    return "1 accelerator" if count == 1 else f"{count} accelerators"


def _processes_text(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
