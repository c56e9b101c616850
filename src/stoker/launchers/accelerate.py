"""`accelerate launch` on each node, with options that make it follow its arguments.

By default it also reads a file in the user's home that may contradict them, starts one process for `--cpu
--num_processes 2`, and starts processes that each take themselves for the only one without `--multi_gpu`
(`_validate_launch_command` and `launch_command`,
https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/commands/launch.py). The table of arguments is
from its own parser in the same file.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Final, Iterator, Mapping

from stoker.core.findings import Finding
from stoker.core.settings import Launch
from stoker.launchers import torchrun
from stoker.launchers.arguments import Argument, argument_table, installed_arguments
from stoker.launchers.base import (
    Argv,
    FlowWords,
    Launcher,
    Layout,
    Node,
    NodeCommand,
    complete_table,
    constructor,
    module_command,
    refusal,
)

PARADIGMS: Final = ("multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm")
"""Ways in which several ranks work together; without one, only one rank is started."""
CONFIG: Final = Path(__file__).with_name("accelerate_config.json")
"""A file with the defaults only. Without it, the one in the user's home would be read."""
EXCLUSIVE: Final = ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp")
"""Flags of which it takes one at a time."""

# bf16 in tensor cores from Ampere on, fp8 from Ada Lovelace on:
# https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html and
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#arithmetic-instructions
PRECISIONS: Final[Mapping[str, tuple[int, int]]] = {"bf16": (8, 0), "fp8": (8, 9)}


ARGUMENTS: Final[Mapping[str, Argument]] = argument_table("accelerate.txt")
"""Every argument of version 1.15 by Python name, in the groups of the command's help. `newer` reads those of newer
versions."""


@constructor
def Accelerate(**options: Any) -> Launch:  # noqa: N802  a value by its name, as in Retry(3)
    """Ranks by `accelerate launch`, which takes every argument by its Python name.

    `num_processes` is the number of ranks on all machines, as Accelerate has it. Several processes with `cpu=True` are
    several ranks that talk through gloo; the command itself would start one.
    """
    return LAUNCHER.launch(**options)


def command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
    """`accelerate launch` for one node; its ranks learn their place from torch's variables."""
    values = {name: value for name, value in arguments.items() if value is not None}
    cpu = bool(values.pop("cpu", False)) or node.cpu
    values["num_processes"] = node.world_size
    values["num_machines"] = node.nodes
    values["main_process_port"] = values.get("main_process_port", node.port)
    values.setdefault("gpu_ids", ["all"])
    if node.nodes > 1:
        values |= {"machine_rank": node.rank, "main_process_ip": node.head}
        # Its default, "pdsh", would start the other nodes by ssh from each node.
        values.setdefault("deepspeed_multinode_launcher", "standard")
    environment = {"PET_RDZV_ID": node.rendezvous, **(torchrun.RESTARTS if torchrun.elastic(values) else {})}
    if node.nodes > 1:
        # c10d would publish this node's full name, which other nodes may not resolve.
        environment["PET_LOCAL_ADDR"] = node.address
    values |= _paradigm(values, node, cpu)
    if cpu:
        environment["ACCELERATE_USE_CPU"] = "true"
    if "config_file" not in values:
        values["config_file"] = str(CONFIG)
    return NodeCommand(
        argv=module_command("accelerate.commands.launch", argv, node, complete_table(ARGUMENTS, values, newer), values),
        environment=environment,
    )


def _paradigm(values: Mapping[str, Any], node: Node, cpu: bool) -> dict[str, Any]:
    """The flags that start as many ranks as requested."""
    has_paradigm = any(values.get(name) for name in PARADIGMS)
    if node.world_size == 1:
        # `--multi_gpu` is refused for a single rank.
        return {"cpu": cpu and not has_paradigm}
    if cpu:
        # With `--cpu` one process would be started; ACCELERATE_USE_CPU makes these ranks use gloo.
        return {"cpu": False, "multi_gpu": True}
    # A flag would override the user's own config file.
    return {} if has_paradigm or "config_file" in values else {"multi_gpu": True}


def join_on_cpus(state: Any) -> None:
    """Make `PartialState` heed ACCELERATE_USE_CPU, as `Accelerator` does.

    Without it a rank on a CPU that asks `PartialState()` is told that it is the only one, in a world of one
    (`PartialState._prepare_backend`, https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/state.py).
    """
    original = state.PartialState.__init__

    @functools.wraps(original)
    def initialise(self: Any, cpu: bool = False, **keywords: Any) -> None:
        original(self, cpu or state.parse_flag_from_env("ACCELERATE_USE_CPU"), **keywords)

    state.PartialState.__init__ = initialise


def newer() -> Mapping[str, Argument]:
    """The arguments of the accelerate that is installed; importing it takes seconds."""
    return installed_arguments("accelerate.commands.launch:launch_command_parser", "accelerate")


def hardware(layout: Layout) -> Iterator[Finding]:
    """Refuse ranks that would each take themselves for the only one, and pods whose hosts are started by ssh."""
    tpu = layout.arguments.get("tpu")
    if not layout.cpu and not layout.devices and layout.world_size > 1 and not tpu:
        yield refusal(
            f"{layout.world_size} processes without an accelerator, and cpu=True is not said",
            why="Accelerate would start processes that each take themselves for the only one",
            fix="write cpu=True for ranks on CPUs, or ask for resources.gpu_count",
            code="STK132",
        )
    if layout.nodes > 1 and tpu:
        yield refusal(
            f"tpu=True on {layout.nodes} nodes",
            why="Accelerate starts a pod's other hosts itself, by ssh, where Stoker would not see them",
            fix="launch with Jax(…), or ask for resources.nodes=1",
            code="STK138",
        )


def exclusive(layout: Layout) -> Iterator[Finding]:
    """Refuse arguments that exclude each other (`_validate_launch_command`)."""
    arguments = layout.arguments
    flags = [name for name in EXCLUSIVE if arguments.get(name)]
    if len(flags) > 1:
        yield refusal(
            f"{' and '.join(f'{name}=True' for name in flags)} exclude each other",
            why="accelerate launch takes one of them at a time",
            fix=f"keep {flags[-1]}=True" if "multi_gpu" in flags[:-1] else "keep one of them",
        )
    if arguments.get("cpu") and arguments.get("use_megatron_lm"):
        yield refusal("cpu=True and use_megatron_lm=True exclude each other", fix="keep one of them")
    if arguments.get("multi_gpu") and layout.world_size < 2 and not arguments.get("cpu"):
        yield refusal(
            "multi_gpu=True with one process",
            why="accelerate launch wants at least 2 processes for it",
            fix="remove multi_gpu, which follows from the number of processes, or ask for resources.gpu_count=2",
        )
    version = str(arguments.get("fsdp_version", "1"))
    if arguments.get("use_parallelism_config") and not (arguments.get("use_fsdp") and version == "2"):
        yield refusal(
            "use_parallelism_config=True without use_fsdp=True and fsdp_version=2",
            why="accelerate launch refuses it",
            fix='write use_fsdp=True and fsdp_version="2"',
        )


def precision(layout: Layout) -> Iterator[Finding]:
    """Refuse a precision that the accelerators do not support."""
    name = str(layout.arguments.get("mixed_precision", ""))
    needed = PRECISIONS.get(name)
    if needed is None or layout.cpu or layout.capability is None:
        return
    for model in layout.models:
        capability = layout.capability(model)
        if capability is not None and capability < needed:
            yield refusal(
                f'mixed_precision="{name}" on {model}',
                why=f"it computes {name} from compute capability {_version_text(needed)} on, "
                f"and has {_version_text(capability)}",
                fix='write mixed_precision="fp16"'
                + (', or "bf16"' if capability >= PRECISIONS["bf16"] else "")
                + ", or ask for another accelerator",
                code="STK136",
            )


def _version_text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


LAUNCHER: Final = Launcher(
    name="accelerate",
    command=command,
    arguments=ARGUMENTS,
    newer=newer,
    package="accelerate",
    brought_by=frozenset({"accelerate", "peft", "trl"}),
    requirement="stoker[accelerate]",
    checks=(hardware, exclusive, precision),
    port="main_process_port",
    finds_port=True,
    on_cpus="cpu",
    devices="multi_gpu",
    adaptations={"accelerate.state": join_on_cpus},
    restarts="max_restarts",
    # It has no default of its own for ranks that start again.
    numbers_nodes=lambda arguments: torchrun.numbers_nodes({"rdzv_backend": "static", **arguments}),
    flow=FlowWords(current="accelerate", title="accelerate launch"),
)
