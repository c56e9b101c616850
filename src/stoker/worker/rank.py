"""One rank of a distributed step: the program that a launcher starts, once for each.

It is two processes. The first stays small, passes signals on, and reports how the second ended, also if that was by
SIGKILL, which launchers report in their own words or not at all. When the agent is gone, it ends the second and all
that is below it. The second is the rank. Both speak with the node's
agent (`worker.agent`) over a Unix socket, in frames:

    watcher  → {"op": "hello", "rank", "local_rank", "world_size", "pid", "child"} … {"op": "exit", "rank", "status"}
    streams  → {"op": "stream", "rank", "name"}, and then what the rank writes, as it is
    the rank → {"op": "begin", "rank"} ← the job, → {"op": "result", "rank", "result"}
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any, Final, Mapping

import attrs

from stoker.core import wire
from stoker.launchers.base import Launcher, Place
from stoker.launchers.registry import LAUNCHERS, place_of
from stoker.worker import prctl, processes
from stoker.worker.rankstate import AGENT, STACKS, stacks_file

PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_LOOK: Final = 0.2
"""Seconds between two looks at the rank where the kernel has no descriptors of processes (Linux before 5.3, macOS)."""
_REAP: Final = 1.0
"""Seconds between two looks for processes of the rank's that have ended and nobody waits for."""
_TURN: Final = 0.005
_KILL_PATIENCE: Final = 10.0
"""Seconds in which processes must have died of SIGKILL."""


def connect(address: str, first: Mapping[str, Any]) -> socket.socket:
    """Connect to the agent, and send a first message."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    connection.sendall(wire.framed(first))
    return connection


def main() -> None:
    """`python -m stoker.worker.rank LAUNCHER ADDRESS`; the launcher's variables tell which rank this is."""
    launcher = LAUNCHERS.load(sys.argv[1])
    address = os.environ.pop(AGENT, sys.argv[2])
    position = place_of(os.environ, launcher)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = connect(address, {"op": "stream", "rank": position.rank, "name": name})
        os.dup2(stream.fileno(), descriptor)
        stream.close()
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    # Asked for its stacks before it can write them, a process must not die of it.
    signal.signal(STACKS, signal.SIG_IGN)
    watcher, library = os.getpid(), prctl.libc()
    prctl.become_subreaper(library)
    announced, announce = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(announce)
        _die_with(watcher, library)
        os.read(announced, 1)  # returns at the pipe's end: the result of an unannounced rank would be lost
        os.close(announced)
        _rank(address, position, launcher)
        return
    os.close(announced)
    _watch(address, position, child, announce)


def _watch(address: str, position: Place, child: int, announce: int) -> None:
    """Wait for the rank's end, report it, and end in the same way, which is what the launcher sees."""
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: _pass_on(child, number))
    hello = {"op": "hello", **attrs.asdict(position), "pid": os.getpid(), "child": child}
    connection = connect(address, hello)
    os.close(announce)
    status = _status(child, connection)
    if status is None:
        _end_below()
        os._exit(1)
    try:
        connection.sendall(
            wire.framed({"op": "exit", "rank": position.rank, "status": os.waitstatus_to_exitcode(status)})
        )
        connection.close()
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the agent is gone: nothing is left to report to
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has written its own core file
        if os.WTERMSIG(status) in PASSED_ON:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _status(child: int, connection: socket.socket) -> int | None:
    """The rank's status when it has ended; None as soon as the agent is gone, which sends nothing here."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    timeout = _LOOK * 1000
    with contextlib.suppress(OSError, AttributeError):
        poll.register(os.pidfd_open(child), select.POLLIN)
        timeout = _REAP * 1000
    while True:
        # This process is the subreaper of all that the rank starts: what ends there is reaped here.
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                return ended[1]
        if any(descriptor == connection.fileno() for descriptor, _ in poll.poll(timeout)):
            return None


def _end_below() -> None:
    """Kill the rank and all that it started: the agent that would do it was killed, and nobody else may be left."""
    deadline = time.monotonic() + _KILL_PATIENCE
    while (below := processes.descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in below:
            _pass_on(pid, signal.SIGKILL)
        time.sleep(_TURN)


def _pass_on(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return


def _die_with(parent: int, library: Any) -> None:
    """End when the watcher does: a launcher that kills the watcher means the rank."""
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    prctl.die_with(parent, signal.SIGKILL, library)


def _rank(address: str, position: Place, launcher: Launcher) -> None:
    """Run the step as this rank, and exit as Python does, so that the framework can clean up."""
    from stoker.core.codec import from_json, to_json
    from stoker.core.protocol import StepTask, WorkerJob
    from stoker.store.blobs import Blobs
    from stoker.worker import gate, world
    from stoker.worker.imports import call_on_import
    from stoker.worker.notice import Notice
    from stoker.worker.treememory import childrens_peak, own_peak
    from stoker.worker.worker import Worker, failure_result, prepare

    connection = connect(address, {"op": "begin", "rank": position.rank})
    spec = _receive_job(connection)
    sys.path[:] = spec["path"]
    os.chdir(spec["cwd"])
    stacks = open(stacks_file(spec["folder"], position.rank), "wb", buffering=0)  # noqa: SIM115  as long as the process
    faulthandler.register(STACKS, file=stacks, all_threads=True)
    faulthandler.enable(file=2, all_threads=False)
    prepare()
    notice = Notice(spec["grace"])
    notice.listen()
    job, step = from_json(WorkerJob, spec["job"], strict=False), from_json(StepTask, spec["step"], strict=False)
    nodes = max(1, position.world_size // position.local_world_size)
    job = attrs.evolve(job, context={**job.context, **attrs.asdict(position), "nodes": nodes})
    step = attrs.evolve(step, discards=bool(position.rank and spec["gathers"] == "main"))
    if spec["one_world"]:
        world.watch(launcher, position.world_size)
    adaptations = launcher.adaptations
    call_on_import(adaptations, lambda name: adaptations[name](sys.modules[name]))
    if launcher.join is not None:
        launcher.join(os.environ)
    proof = gate.GateProof()
    if spec["lease"]:
        from stoker.core.codec import from_json  # these only for steps with devices
        from stoker.core.devices import Lease

        # The agent has opened the gate; what is imported is seen here.
        lease = from_json(Lease, spec["lease"], strict=False)
        proof = gate.GateProof.of_rank(lease)
        gate.watch_imports(lease, proof)
    own_pid = os.getpid()
    result = Worker(Blobs(spec["blobs"]), notice=notice).run(job, step)
    if os.getpid() != own_pid:
        os._exit(0 if result.ok else 1)  # a process that the step forked returned here: it is no rank
    if proof.refused is not None and result.ok:
        result = failure_result(proof.refused.cause, proof.refused)
    if spec["one_world"] and result.ok:
        try:
            world.verify(launcher, position.world_size)
        except world.WrongWorld as error:
            result = failure_result(error.cause, error)
    result = attrs.evolve(result, fallback=proof.fallback, peak=max(own_peak(), childrens_peak()))
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(wire.framed({"op": "result", "rank": position.rank, "result": to_json(result)}))
    connection.close()
    sys.exit(0 if result.ok else 1)


def _receive_job(connection: socket.socket) -> dict[str, Any]:
    frames = wire.Frames()
    while data := connection.recv(1 << 18):
        for document in frames.feed(data):
            spec: dict[str, Any] = document
            return spec
    raise EOFError("the agent hung up before it said what to do")


if __name__ == "__main__":
    main()
