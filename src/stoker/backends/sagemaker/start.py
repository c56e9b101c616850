"""What the container of a training job runs first: it learns the node's place, and starts the job's program.

    python3 /opt/ml/input/data/stoker/stoker_start.py

SageMaker downloads this module's text and the program (`base.storeprogram`) as the channel "stoker". It uses the
standard library only. The names of the job's nodes are "algo-1", "algo-2" and so on.
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback

PROGRAM = "stoker_program.py"


def main(path: str) -> int:
    """Run the job of this container; the exit code is 0 where it succeeds. `path` is that of this file."""
    channel = os.path.dirname(os.path.abspath(path))
    root = os.path.dirname(os.path.dirname(os.path.dirname(channel)))
    with open(os.path.join(root, "input", "config", "resourceconfig.json"), encoding="utf-8") as file:
        place = json.load(file)
    hosts = sorted(place["hosts"], key=number)
    node = hosts.index(place["current_host"])
    if len(hosts) > 1:
        # As `worker.cluster` reads them of nodes that Stoker itself starts.
        os.environ.update(STOKER_NODE_RANK=str(node), STOKER_NODES=str(len(hosts)), STOKER_HEAD_ADDR=hosts[0])
        os.environ["STOKER_NODE_ADDR"] = place["current_host"]
        interface = place.get("network_interface_name")
        if interface:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    # Nothing in the channel's folder is to be imported instead of a module of the user's.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != channel]
    spec = importlib.util.spec_from_file_location("stoker_program", os.path.join(channel, PROGRAM))
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    words = f"the step failed on {place['current_host']}; `stoker logs` and the job's log say why"
    try:
        code: int = program.main(0, node)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        if isinstance(error.code, str):
            words = error.code
            sys.stderr.write(f"{words}\n")
    except Exception as error:  # the artifact store's, whatever its library raises
        traceback.print_exc()
        code, words = 1, f"{type(error).__name__}: {error}"
    if code:
        # What DescribeTrainingJob gives as FailureReason, before the exit code.
        output = os.path.join(root, "output")
        os.makedirs(output, exist_ok=True)
        with open(os.path.join(output, "failure"), "w", encoding="utf-8") as file:
            file.write(words)
    return code


def number(host: str) -> tuple[int, str]:
    """A key that sorts "algo-10" behind "algo-9"."""
    digits = host.rpartition("-")[2]
    return (int(digits) if digits.isdecimal() else 0, host)


if __name__ == "__main__":
    sys.exit(main(__file__))
