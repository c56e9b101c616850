"""`current.torch.run("train.py")` and its like: a program in ranks on the nodes of a `num_parallel`, from a step.

Every node's task runs the launcher for its own node; the launchers are those of `launchers`, and where the nodes meet
is what the gang's agent put into the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Final, Mapping, Sequence

from stoker.core.errors import RunFailed, UsageError
from stoker.core.launch import load_launcher
from stoker.core.words import dashed
from stoker.launchers.base import LOOPBACK, Node
from stoker.runtime.cluster import free_port
from stoker.runtime.context import context

LAUNCHERS: Final[Mapping[str, str]] = {
    "torch": "torchrun",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "mpi": "mpi",
}
"""The word of `current` → the launcher, which is also the decorator's name."""
_PLACE: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
"""What the task itself was told of its place; its ranks are told theirs by their launcher."""


class Launching:
    """Starts ranks by one launcher. `options` are those of the step's decorator."""

    def __init__(self, launcher: str, options: Mapping[str, Any]) -> None:
        self._launcher = launcher
        self._options = options

    def run(
        self,
        entrypoint: str,
        entrypoint_args: Mapping[str, Any] | Sequence[str] | None = None,
        nproc_per_node: int | None = None,
        **arguments: Any,
    ) -> None:
        """Run a Python script, or a module by its dotted name, in ranks, and wait; `RunFailed` if one of them failed.

        As many ranks as the node has accelerators, or one, unless `nproc_per_node` says it.
        """
        if self._launcher == "mpi" and context.nodes > 1:
            raise UsageError("mpirun reaches other nodes by ssh, and a task has none", fix="use current.torch.run")
        given = nproc_per_node or self._options.get("nproc_per_node")
        devices = tuple(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
        node = Node(
            rank=context.node,
            nodes=context.nodes,
            head=os.environ.get("MASTER_ADDR", LOOPBACK),
            port=int(os.environ.get("MASTER_PORT") or 0) or free_port(LOOPBACK),
            rendezvous=dashed(f"{context.run_id}-{context.step}"),
            processes=int(given or len(context.devices) or 1),
            devices=devices,
            cpu=not context.devices,
            python=sys.executable,
        )
        shape = (entrypoint,) if entrypoint.endswith(".py") or os.path.exists(entrypoint) else ("-m", entrypoint)
        argv = (sys.executable, *shape, *_words(entrypoint_args))
        started = load_launcher(self._launcher).launched(argv, node, arguments)
        if not started.argv and not started.ranks:
            return
        environment = {name: value for name, value in os.environ.items() if name not in _PLACE}
        environment |= dict(started.environment)
        ranks: Sequence[Mapping[str, str]] = started.ranks or ({},)
        running = [subprocess.Popen(started.argv, env={**environment, **own}) for own in ranks]
        codes = [process.wait() for process in running]
        bad = next((code for code in codes if code), 0)
        if bad:
            raise RunFailed(
                f"{self._launcher} ended with exit code {bad}", where=f"node {context.node}", fix="see its log"
            )


def _words(given: Mapping[str, Any] | Sequence[str] | None) -> list[str]:
    """The script's own arguments: a mapping's names become options."""
    if given is None:
        return []
    if not isinstance(given, Mapping):
        return [str(word) for word in given]
    words: list[str] = []
    for name, value in given.items():
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words.append(str(value))
    return words
