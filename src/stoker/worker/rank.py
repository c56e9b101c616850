"""One rank of a distributed step: the program that a launcher starts, once for each.

It is two processes. The first stays small, passes signals on, and reports how the second ended, also if that was by
SIGKILL, which launchers report in their own words or not at all. When the agent is gone, it ends the second and all
that is below it. The second is the rank. Both speak with the node's
agent (`worker.agent`) over a Unix socket, in frames:

    watcher  → {"op": "hello", "rank", "local_rank", "world_size", "pid", "child"} … {"op": "exit", "rank", "status"}
    streams  → {"op": "stream", "rank", "name"}, and then what the rank writes, as it is
    the rank → {"op": "begin", "rank"} ← the job, → {"op": "result", "rank", "result"}
             → {"op": "witness", "rank"} ← a byte, → {"op": "account", "rank", "account"}, as often as it is asked
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Final, Iterator, Mapping

import attrs

from stoker.core import wire
from stoker.core.errors import StokerError
from stoker.core.status import WRONG_WORLD
from stoker.launchers.base import Launcher, Place
from stoker.launchers.registry import LAUNCHERS, place_of
from stoker.system import system
from stoker.worker import evidence, nativestack, processes
from stoker.worker.imports import call_once_imported, replace
from stoker.worker.rankstate import AGENT, STACKS, stacks_file

if TYPE_CHECKING:
    from stoker.core.devices import Lease

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
    watcher, library = os.getpid(), system.libc()
    processes.become_subreaper(library)
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
    with contextlib.suppress(OSError):
        poll.register(system.end_of(child), select.POLLIN)
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
    processes.die_with(parent, signal.SIGKILL, library)


def _rank(address: str, position: Place, launcher: Launcher) -> None:
    """Run the step as this rank, and exit as Python does, so that the framework can clean up."""
    from stoker.core.codec import from_json, to_json
    from stoker.core.protocol import StepTask, WorkerJob
    from stoker.store.blobs import Blobs
    from stoker.worker import failure, gate
    from stoker.worker.notice import Notice
    from stoker.worker.treememory import childrens_peak, own_peak
    from stoker.worker.worker import Worker, failure_result, prepare

    connection = connect(address, {"op": "begin", "rank": position.rank})
    spec = _receive_job(connection)
    sys.path[:] = spec["path"]
    os.chdir(spec["cwd"])
    stacks = open(stacks_file(spec["folder"], position.rank), "wb", buffering=0)  # noqa: SIM115  as long as the process
    faulthandler.register(STACKS, file=stacks, all_threads=True)
    nativestack.enable()
    evidence.Trail(evidence.trail_file(spec["folder"], position.rank)).watch()
    witness = evidence.RankWitness(lambda error: to_json(failure.describe_exception(error)))
    witness.listen()
    asked = connect(address, {"op": "witness", "rank": position.rank})
    threading.Thread(target=_give_accounts, args=(asked, position.rank, witness), daemon=True).start()
    # Composer and others ask for it, and torchrun, accelerate and mpirun do not say it.
    if not launcher.takes_command or "NODE_RANK" not in os.environ:  # one's own command may set it itself
        os.environ["NODE_RANK"] = str(position.node)
    prepare()
    notice = Notice(spec["grace"])
    notice.listen()
    job, step = from_json(WorkerJob, spec["job"], strict=False), from_json(StepTask, spec["step"], strict=False)
    nodes = max(1, position.world_size // position.local_world_size)
    job = attrs.evolve(job, context={**job.context, **attrs.asdict(position), "nodes": nodes})
    step = attrs.evolve(step, discards=bool(position.rank and spec["gathers"] == "main"))
    if spec["one_world"]:
        watch(launcher, position)
    adaptations = launcher.adaptations
    call_once_imported(adaptations, lambda name: adaptations[name](sys.modules[name]))
    if launcher.join is not None:
        launcher.join(os.environ)
    proof = gate.GateProof()
    if spec["lease"]:
        from stoker.core.codec import from_json  # these only for steps with devices
        from stoker.core.devices import Lease

        # The agent has opened the gate; what is imported is seen here.
        lease = own_part(from_json(Lease, spec["lease"], strict=False), position)
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
            verify(launcher, position.world_size)
        except WrongWorld as error:
            result = failure_result(error.cause, error)
    result = attrs.evolve(result, fallback=proof.fallback, peak=max(own_peak(), childrens_peak()))
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(wire.framed({"op": "result", "rank": position.rank, "result": to_json(result)}))
    connection.close()
    sys.exit(0 if result.ok else 1)


def own_part(lease: Lease, position: Place) -> Lease:
    """The part of its node's lease that a rank uses: of slices one, which alone is visible from now on, because CUDA
    shows a process the first one only; of whole devices all.
    """
    devices = lease.held
    if not all(device.parent for device in devices) or position.local_world_size != len(devices):
        return lease
    from stoker.vendors.registry import environment_of

    own = devices[position.local_rank]
    os.environ.update(environment_of([own]))
    return attrs.evolve(lease, devices=(own,))


def _give_accounts(connection: socket.socket, rank: int, witness: evidence.RankWitness) -> None:
    """Answer the agent each time that it asks where this rank stands."""
    with contextlib.suppress(OSError):  # it is gone
        while connection.recv(1):
            try:
                account = witness.account()
            except Exception:  # it looks at the user's own objects
                account = {}
            connection.sendall(wire.framed({"op": "account", "rank": rank, "account": account}))


def _receive_job(connection: socket.socket) -> dict[str, Any]:
    frames = wire.Frames()
    while data := connection.recv(1 << 18):
        for document in frames.feed(data):
            spec: dict[str, Any] = document
            return spec
    raise EOFError("the agent hung up before it said what to do")


_FIT: Final = "fit"
_INITIALISERS: Final = {
    "torch.distributed.distributed_c10d": ("", "init_process_group"),
    "accelerate.state": ("PartialState", "__init__"),
    "lightning.pytorch.trainer.trainer": ("Trainer", _FIT),
    "pytorch_lightning.trainer.trainer": ("Trainer", _FIT),
    "jax._src.distributed": ("", "initialize"),
}
"""Module → class and function after which its framework has a world; before which, where it trains."""
_JAX: Final = "initialize"
_MPI: Final = ("OMPI_", "MV2_", "PMI_")
"""Begin the variables of ranks that MPI started: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html"""


class WrongWorld(StokerError):
    """A framework of a rank counts another number of ranks than were started."""

    cause = WRONG_WORLD

    def __init__(self, words: str, count: int, world_size: int, fix: str) -> None:
        ranks = "1 rank" if count == 1 else f"{count} ranks"
        super().__init__(
            f"{words} {ranks} here, and {world_size} were started: they do not work together",
            fix=f"{fix}; where ranks are meant to be apart, say one_world=False in the launch",
        )


def watch(launcher: Launcher, position: Place) -> None:
    """Check the world whenever this process initialises a framework; raises `WrongWorld` out of that call."""
    world_size, nodes = position.world_size, position.world_size // position.local_world_size

    def check(name: str, arguments: Any, keywords: Mapping[str, Any], made: bool) -> None:
        if made:
            verify(launcher, world_size)
        elif name == evidence.INIT:
            _refuse_larger(world_size, arguments, keywords)
        elif name == _FIT and (count := getattr(arguments[0], "world_size", world_size)) != world_size:
            # A Trainer of one device makes no world that could be asked. Testing with one is what its authors advise.
            fix = f'write Trainer(devices={position.local_world_size}, num_nodes={nodes}, strategy="ddp")'
            raise WrongWorld("Lightning's Trainer counts", count, world_size, fix)
        elif name == _JAX and (asked := evidence.asked_of_jax(arguments, keywords)[0]) > world_size:
            fix = "launch the step with Jax(…), which calls jax.distributed.initialize itself"
            raise WrongWorld("jax.distributed.initialize is called for a world that has", asked, world_size, fix)

    def wrap(name: str) -> None:
        owner, function = _INITIALISERS[name]
        module = sys.modules[name]
        place: Any = getattr(module, owner, None) if owner else module
        original = getattr(place, function, None)
        if original is not None:
            put = setattr if owner else replace
            put(place, function, _checked(original, functools.partial(check, function)))

    call_once_imported(_INITIALISERS, wrap)


def verify(launcher: Launcher, world_size: int) -> None:
    """Raise `WrongWorld` where a framework that this process has initialised counts another number of ranks."""
    for framework, count, fix in _worlds(launcher):
        if count != world_size:
            raise WrongWorld(f"{framework} counts", count, world_size, fix)


def _checked(function: Callable[..., Any], check: Callable[[Any, Mapping[str, Any], bool], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        check(arguments, keywords, False)
        value = function(*arguments, **keywords)
        check(arguments, keywords, True)
        return value

    return call


def _refuse_larger(world_size: int, arguments: Any, keywords: Mapping[str, Any]) -> None:
    """Raise `WrongWorld` before `init_process_group` waits for ranks that nobody has started."""
    asked, _ = evidence.asked_world(arguments, keywords)
    if asked > world_size:
        own = evidence.asked_world((), {})[0] != asked
        who = "its argument world_size" if own else "WORLD_SIZE, which the step's code has changed,"
        fix = "call init_process_group without rank and world_size, and leave RANK and WORLD_SIZE alone"
        raise WrongWorld(f"init_process_group is called for a world that {who} says has", asked, world_size, fix)


def _worlds(launcher: Launcher) -> Iterator[tuple[str, int, str]]:
    """(framework, the ranks that it counts, what to do where that is wrong), of those that are initialised."""
    yield from _accelerate()
    yield from _torch()
    yield from _jax()
    if any(names.rank.startswith(_MPI) and names.rank in os.environ for names in launcher.variables):
        yield from _mpi()


def _accelerate() -> Iterator[tuple[str, int, str]]:
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    shared = getattr(state, "_shared_state", {})
    # With XLA it counts devices, of which one process may have several.
    if shared.get("num_processes") and shared.get("backend") != "xla":
        fix = "launch the step with Accelerate(cpu=True, …) for ranks on CPUs, or write PartialState(cpu=True)"
        yield "accelerate", int(shared["num_processes"]), fix


def _torch() -> Iterator[tuple[str, int, str]]:
    distributed: Any = sys.modules.get("torch.distributed")
    # The backend "fake" of torch's own tests counts ranks that are nowhere.
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_backend() != "fake":
        fix = "call init_process_group without rank and world_size: it reads RANK and WORLD_SIZE"
        yield "torch.distributed", int(distributed.get_world_size()), fix


def _jax() -> Iterator[tuple[str, int, str]]:
    jax: Any = sys.modules.get("jax")
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    # Without jax.distributed, each rank computes with its own JAX, as a loader of data may.
    if jax is None or getattr(state, "client", None) is None:
        return
    fix = "launch the step with Jax(…), which calls jax.distributed.initialize itself"
    if state is not None and state.num_processes:
        yield "jax.distributed", int(state.num_processes), fix
    # The number of processes starts JAX's devices, if nothing has yet.
    bridge = sys.modules.get("jax._src.xla_bridge")
    if getattr(bridge, "backends_are_initialized", bool)():
        yield "jax", int(jax.process_count()), fix


def _mpi() -> Iterator[tuple[str, int, str]]:
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        fix = "build mpi4py for the MPI whose mpirun starts the ranks; mpi4py.MPI.Get_library_version() names its own"
        yield "MPI", int(mpi.COMM_WORLD.Get_size()), fix


if __name__ == "__main__":
    main()
