"""One rank of a distributed step: the program that a launcher starts, once for each.

It is two processes. The first stays small, passes signals on, and tells how the second ended, also if that was SIGKILL;
a launcher tells this to nobody, or in words of its own. The second is the rank. Both speak with the node's agent
(`worker.agent`) over a Unix socket, in frames:

    watcher  → {"op": "hello", "rank", "local_rank", "world_size", "pid", "child"} … {"op": "exit", "rank", "status"}
    streams  → {"op": "stream", "rank", "name"}, and then what the rank writes, as it is
    the rank → {"op": "begin", "rank"} ← the job, → {"op": "result", "rank", "result"}
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import socket
import sys
from typing import Any, Final, Mapping

import attrs

from stoker.core import wire
from stoker.launchers.base import Launcher, Place
from stoker.launchers.registry import LAUNCHERS, place_of
from stoker.worker.rankstate import AGENT, STACKS, stacks_file

PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_PR_SET_PDEATHSIG: Final = 1


def connected(address: str, first: Mapping[str, Any]) -> socket.socket:
    """A connection to the agent, begun with a message."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    connection.sendall(wire.framed(first))
    return connection


def main() -> None:
    """`python -m stoker.worker.rank LAUNCHER ADDRESS`: the launcher says by variables which rank this is."""
    launcher = LAUNCHERS.load(sys.argv[1])
    address = os.environ.pop(AGENT, sys.argv[2])
    place = place_of(os.environ, launcher)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = connected(address, {"op": "stream", "rank": place.rank, "name": name})
        os.dup2(stream.fileno(), descriptor)
        stream.close()
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    # Asked for its stacks before it can write them, a process must not die of it.
    signal.signal(STACKS, signal.SIG_IGN)
    watcher = os.getpid()
    announced, announce = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(announce)
        _die_with(watcher)
        os.read(announced, 1)  # its end: a result of a rank that nobody has announced would be lost
        os.close(announced)
        _rank(address, place, launcher)
        return
    os.close(announced)
    _watch(address, place, child, announce)


def _watch(address: str, place: Place, child: int, announce: int) -> None:
    """Stay until the rank has ended, say how, and end in the same way: the launcher looks at that."""
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: _pass_on(child, number))
    hello = {"op": "hello", **attrs.asdict(place), "pid": os.getpid(), "child": child}
    connection = connected(address, hello)
    os.close(announce)
    _, status = os.waitpid(child, 0)
    try:
        connection.sendall(wire.framed({"op": "exit", "rank": place.rank, "status": os.waitstatus_to_exitcode(status)}))
        connection.close()
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the agent is gone, and with it everybody who could want to know
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has left its own
        if os.WTERMSIG(status) in PASSED_ON:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _pass_on(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return


def _die_with(parent: int) -> None:
    """End when the watcher does: a launcher that kills it means the rank."""
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _rank(address: str, place: Place, launcher: Launcher) -> None:
    """Run the step as this rank, and leave as Python leaves, so that the framework can clean up after itself."""
    from stoker.core.codec import from_json, to_json
    from stoker.core.protocol import StepTask, WorkerJob
    from stoker.store.blobs import Blobs
    from stoker.worker import gate
    from stoker.worker.notice import Notice
    from stoker.worker.worker import Worker, failed, prepare

    connection = connected(address, {"op": "begin", "rank": place.rank})
    spec = _received(connection)
    sys.path[:] = spec["path"]
    os.chdir(spec["cwd"])
    stacks = open(stacks_file(spec["folder"], place.rank), "wb", buffering=0)  # noqa: SIM115  as long as the process
    faulthandler.register(STACKS, file=stacks, all_threads=True)
    prepare()
    notice = Notice(spec["grace"])
    notice.listen()
    job, step = from_json(WorkerJob, spec["job"], strict=False), from_json(StepTask, spec["step"], strict=False)
    nodes = max(1, place.world_size // place.local_world_size)
    job = attrs.evolve(job, context={**job.context, **attrs.asdict(place), "nodes": nodes})
    step = attrs.evolve(step, discards=bool(place.rank and spec["gathers"] == "main"))
    if launcher.join is not None:
        launcher.join(os.environ)
    proof = gate.Proof()
    if spec["lease"]:
        from stoker.core.codec import from_json  # these only for steps with devices
        from stoker.core.devices import Lease

        # The agent has opened the gate; what is imported is seen here.
        gate.watch_imports(from_json(Lease, spec["lease"], strict=False), proof)
    result = Worker(Blobs(spec["blobs"]), notice=notice).run(job, step)
    if proof.refused is not None and result.ok:
        result = failed(proof.refused.cause, proof.refused)
    result = attrs.evolve(result, fallback=proof.fallback)
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(wire.framed({"op": "result", "rank": place.rank, "result": to_json(result)}))
    connection.close()
    sys.exit(0 if result.ok else 1)


def _received(connection: socket.socket) -> dict[str, Any]:
    frames = wire.Frames()
    while data := connection.recv(1 << 18):
        for document in frames.feed(data):
            spec: dict[str, Any] = document
            return spec
    raise EOFError("the agent hung up before it said what to do")


if __name__ == "__main__":
    main()
