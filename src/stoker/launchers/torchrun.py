"""`torchrun` on each node, static or elastic.

Options: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/run.py
"""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.core.launch_arguments import Argument
from stoker.launchers.base import LOOPBACK, Argv, Launcher, Node, Started, bracketed, known, target_of, words
from stoker.launchers.parsers import installed

SCRIPT: Final = "what is launched is Stoker's worker, which calls the step"
PLACE: Final = "each node learns its place, the head's address and a free port when it starts"

_TEXT: Final = Argument("text")
ARGUMENTS: Final[Mapping[str, Argument]] = {
    "nnodes": Argument("text", means="nodes"),
    "nproc_per_node": Argument("int", ("auto", "gpu", "xpu"), flag="--nproc-per-node", means="processes_per_node"),
    "rdzv_backend": Argument("text", flag="--rdzv-backend"),
    "rdzv_endpoint": Argument("text", flag="--rdzv-endpoint"),
    "rdzv_id": Argument("text", flag="--rdzv-id", owned="it is unique to the run, the step and the attempt"),
    "rdzv_conf": Argument("pairs", flag="--rdzv-conf"),
    "standalone": Argument("flag"),
    "max_restarts": Argument("int", flag="--max-restarts"),
    "monitor_interval": Argument("float", flag="--monitor-interval"),
    "start_method": Argument("text", ("spawn", "fork", "forkserver"), flag="--start-method"),
    "event_log_handler": Argument("text", flag="--event-log-handler"),
    "role": _TEXT,
    "module": Argument("flag", owned=SCRIPT),
    "no_python": Argument("flag", flag="--no-python", owned=SCRIPT),
    "run_path": Argument("flag", flag="--run-path", owned=SCRIPT),
    "log_dir": Argument("text", flag="--log-dir"),
    "redirects": _TEXT,
    "tee": _TEXT,
    "local_ranks_filter": Argument("names", flag="--local-ranks-filter"),
    "duplicate_stdout_filters": Argument("names", flag="--duplicate-stdout-filters"),
    "duplicate_stderr_filters": Argument("names", flag="--duplicate-stderr-filters"),
    "node_rank": Argument("int", flag="--node-rank", owned=PLACE),
    "master_addr": Argument("text", flag="--master-addr", owned=PLACE),
    "master_port": Argument("int", flag="--master-port"),
    "local_addr": Argument("text", flag="--local-addr", owned=PLACE),
    "logs_specs": Argument("text", flag="--logs-specs"),
    "numa_binding": Argument("text", ("node", "socket", "exclusive", "core-complex"), flag="--numa-binding"),
    "signals_to_handle": Argument("names", flag="--signals-to-handle"),
    "shutdown_timeout": Argument("int", flag="--shutdown-timeout"),
    "virtual_local_rank": Argument("flag", flag="--virtual-local-rank"),
    "training_script": Argument("text", owned=SCRIPT),
    "training_script_args": Argument("text", owned=SCRIPT),
}
OWN_RENDEZVOUS: Final = frozenset({"static", "c10d"})
"""Rendezvous that the nodes make among themselves; others, such as etcd, are a service with an address of its own."""


def launched(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> Started:
    """`torchrun` for one node."""
    given = {name: value for name, value in arguments.items() if value is not None}
    # On one node the c10d store takes any free port and knows its id, which `--standalone` would overwrite.
    given.pop("standalone", None)
    given["nnodes"] = given.get("nnodes", node.nodes)
    given["nproc_per_node"] = node.processes
    given["rdzv_id"] = node.rendezvous
    port = given.pop("master_port", node.port)
    given |= _rendezvous(given, node, port)
    target = target_of(argv)
    shape = {"module": ["--module"], "script": [], "program": ["--no-python"]}[target.kind]
    python = target.python or (node.python,)
    return Started(
        argv=(
            *python,
            "-m",
            "torch.distributed.run",
            *words(known(ARGUMENTS, given, newer), given),
            *shape,
            target.name,
            *target.rest,
        )
    )


def elastic(arguments: Mapping[str, Any]) -> bool:
    """Whether ranks may start again or nodes may come and go."""
    return bool(arguments.get("max_restarts")) or ":" in str(arguments.get("nnodes", ""))


def _rendezvous(given: Mapping[str, Any], node: Node, port: int) -> dict[str, Any]:
    backend = given.get("rdzv_backend")
    if backend is not None and backend not in OWN_RENDEZVOUS:
        return {"local_addr": node.address}
    if node.nodes == 1 and backend != "static":
        endpoint = f"{LOOPBACK}:{port}"
        return {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "local_addr": LOOPBACK}
    if backend == "c10d" or (elastic(given) and backend != "static"):
        # Ranks that start again meet anew, which the static rendezvous cannot do across nodes.
        endpoint = f"{bracketed(node.head)}:{port}"
        return {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "local_addr": node.address}
    return {
        "rdzv_backend": "static",
        "node_rank": node.rank,
        "master_addr": node.head,
        "master_port": port,
        "local_addr": node.address,
    }


def newer() -> Mapping[str, Argument]:
    """The arguments of the torch that is installed; importing it takes seconds."""
    return installed("torch.distributed.run:get_args_parser", "")


LAUNCHER: Final = Launcher(name="torchrun", launched=launched, arguments=ARGUMENTS, newer=newer, port="master_port")
