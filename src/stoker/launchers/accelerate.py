"""`accelerate launch` on each node, so that it does what its arguments say.

Left to itself it reads a file in the user's home that may say otherwise, starts one process for `--cpu
--num_processes 2`, and several that each believe to be alone where it is not told of several GPUs (`_validate_launch_
command` and `launch_command`, https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/commands/launch.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Mapping

from stoker.core.launch_arguments import Argument
from stoker.launchers.accelerate_args import ARGUMENTS
from stoker.launchers.base import Argv, Launcher, Node, Started, known, target_of, words
from stoker.launchers.parsers import installed

PARADIGMS: Final = ("multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm")
"""Each says how several ranks work together; without any, only one is started."""
CONFIG: Final = Path(__file__).with_name("accelerate_config.json")
"""Says nothing beyond the defaults. Without a file, the one in the user's home would be read."""


def launched(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> Started:
    """`accelerate launch` for one node; its ranks learn their place from torch's variables."""
    given = {name: value for name, value in arguments.items() if value is not None}
    cpu = bool(given.pop("cpu", False)) or node.cpu
    given["num_processes"] = node.world_size
    given["num_machines"] = node.nodes
    given["main_process_port"] = given.get("main_process_port", node.port)
    given.setdefault("gpu_ids", ["all"])
    if node.nodes > 1:
        given |= {"machine_rank": node.rank, "main_process_ip": node.head}
        # "pdsh", its default, would start the other nodes by ssh from each of them.
        given.setdefault("deepspeed_multinode_launcher", "standard")
    environment = {"PET_RDZV_ID": node.rendezvous}
    if node.nodes > 1:
        # c10d would hand out this node's full name, which other nodes need not be able to resolve.
        environment["PET_LOCAL_ADDR"] = node.address
    given |= _paradigm(given, node, cpu)
    if cpu:
        environment["ACCELERATE_USE_CPU"] = "true"
    if "config_file" not in given:
        given["config_file"] = str(CONFIG)
    target = target_of(argv)
    shape = {"module": ["--module"], "script": [], "program": ["--no_python"]}[target.kind]
    python = target.python or (node.python,)
    return Started(
        argv=(
            *python,
            "-m",
            "accelerate.commands.launch",
            *words(known(ARGUMENTS, given, newer), given),
            *shape,
            target.name,
            *target.rest,
        ),
        environment=environment,
    )


def _paradigm(given: Mapping[str, Any], node: Node, cpu: bool) -> dict[str, Any]:
    """The flags that make as many ranks as are asked for."""
    said = any(given.get(name) for name in PARADIGMS)
    if node.world_size == 1:
        # One rank for itself: `--multi_gpu` would be refused.
        return {"cpu": cpu and not said}
    if cpu:
        # With `--cpu` one process would be started; ACCELERATE_USE_CPU makes these ranks use gloo.
        return {"cpu": False, "multi_gpu": True}
    # A config file of the user's own says it; a flag would hide what it says.
    return {} if said or "config_file" in given else {"multi_gpu": True}


def newer() -> Mapping[str, Argument]:
    """The arguments of the accelerate that is installed; importing it takes seconds."""
    return installed("accelerate.commands.launch:launch_command_parser", "accelerate")


LAUNCHER: Final = Launcher(
    name="accelerate", launched=launched, arguments=ARGUMENTS, newer=newer, port="main_process_port"
)
