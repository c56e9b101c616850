"""The agent of one node: starts the ranks of a distributed step, collects their results, and returns one for all.

The chosen launcher starts the ranks; each of them (`worker.rank`) connects to the agent by itself, so that its output,
its error and its end are known whatever the launcher does with them. The error of the first rank that fails is the
step's, and the other ranks are ended. Where all succeed, the result is the main rank's.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Callable, Final, Mapping

import attrs

from stoker.core import wire
from stoker.core.codec import from_json, to_json
from stoker.core.errors import BackendError, SettingsError
from stoker.core.protocol import (
    ASIDE,
    DIED,
    RESIZED,
    STRAGGLER,
    RankEvidence,
    StepError,
    StepResult,
    StepTask,
    WorkerEvent,
    WorkerJob,
)
from stoker.core.settings import Launch
from stoker.core.status import (
    CANCELLED,
    GANG_INCOMPLETE,
    HANG,
    NODE_LOST,
    NOT_STARTED,
    RENDEZVOUS,
)
from stoker.core.words import dashed_name
from stoker.launchers.base import LOOPBACK, Argv, Node, NodeCommand
from stoker.launchers.registry import LAUNCHERS
from stoker.store.checkpoints import Checkpoints
from stoker.system import system
from stoker.worker import blame, cluster, hang, mpigang, outcome, processes, reach
from stoker.worker.notice import Notice
from stoker.worker.rankstate import RankOutput, RankState, evidence_of, waited_by, was_ended
from stoker.worker.secrets import Masker
from stoker.worker.treememory import TreePeaks

if TYPE_CHECKING:
    from stoker.core.devices import Lease

SETTLE: Final = 0.5
"""Seconds after the first failure in which others are collected: the first to fail need not be the first to report."""
GRACE: Final = 5.0
"""Seconds between SIGTERM and SIGKILL for the other ranks when one has failed."""
LEAVE: Final = 60.0
"""Seconds that ranks may take to exit when all have delivered their results; threads and pools may never end."""
KILL_PATIENCE: Final = 10.0
"""Seconds in which processes must have died of SIGKILL. What has not is left to the fork server."""
CANCELLED_GRACE: Final = 3600.0
"""Seconds after which a cancelled agent stops waiting for its ranks; it is killed long before."""
_WORDS: Final = 60
"""Lines of a launcher's last words in which the reason of its end is looked for."""
_CHUNK: Final = 1 << 18
_TURN: Final = 0.005
"""Seconds between two looks at processes that were killed."""

RANK_GRACE: Final = 9.0
"""Seconds that ranks get after SIGTERM: a little less than the node does."""

Emit = Callable[[WorkerEvent], None]


def run(job: WorkerJob, step: StepTask, blobs: str, *, emit: Emit, notice: Notice | None) -> StepResult:
    """The result of a distributed step on this node."""
    if notice is not None:
        notice.look()  # SIGTERM comes to this process alone, which passes it on, so that ranks can write checkpoints
    launch = job.launch
    assert launch is not None  # callers have checked
    lease = job.accelerators
    devices = () if lease is None else lease.held
    launcher = LAUNCHERS.load(launch.launcher)
    cpu = launcher.uses_cpus(launch) or not devices
    gang = None if job.gang is None else cluster.gang_of(job.gang)
    node = Node(
        port=0 if gang is not None or launcher.finds_port else cluster.free_port(LOOPBACK),
        rendezvous=dashed_name(job.job),
        processes=launcher.processes_per_node(
            launch, nodes=1 if gang is None else gang.member.nodes, devices=len(devices), cpu=cpu
        ),
        devices=tuple(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))),
        cpu=cpu,
    )
    return Agent(job, step, launch, node, gang, lease=lease, blobs=blobs, emit=emit).run()


class Agent:
    """Runs one attempt of a distributed step on one node. `emit` sends lines and events on while it runs."""

    def __init__(
        self,
        job: WorkerJob,
        step: StepTask,
        launch: Launch,
        node: Node,
        gang: cluster.Gang | None,
        *,
        lease: Lease | None,
        blobs: str,
        emit: Emit,
    ) -> None:
        self._job = job
        self._step = step
        self._launch = launch
        self._launcher = LAUNCHERS.load(launch.launcher)
        self._node = node
        self._gang = gang
        self._blobs = blobs
        self._emit = emit
        self._masker = Masker(job.secrets) if job.secrets else None
        self._cancelled = False
        self._handlers = {
            "hello": self._on_hello,
            "begin": self._on_begin,
            "result": self._on_result,
            "exit": self._on_exit,
            "witness": self._on_witness,
            "account": self._on_account,
        }
        self._peaks = TreePeaks()
        self._lost: float | None = None
        self._restarting: float | None = None
        self._resized_at = 0.0
        self._changes: list[str] = []
        """Which nodes went away or came since the step began."""
        self._clear()

    def _clear(self) -> None:
        """Forget the ranks of the nodes that were there before."""
        self._selector = selectors.DefaultSelector()
        self._ranks: dict[int, RankState] = {}
        self._watchers: dict[socket.socket, int] = {}
        self._outputs: list[RankOutput] = []
        self._starters: list[subprocess.Popen[bytes]] = []
        self._started_at = 0.0
        self._failed_at = 0.0
        self._gave_up_at: float | None = None
        self._ending_since = 0.0
        self._swept_since = 0.0
        self._left: set[int] = set()
        self._killed = False
        self._delivered_at = 0.0
        self._cause = ""
        self._launchers_words: deque[str] = deque(maxlen=_WORDS)
        self._witnesses: dict[int, socket.socket] = {}
        self._asked = False
        self._evidence: tuple[RankEvidence, ...] = ()
        self._earlier: list[str] = []
        """Why each start of the ranks failed after which the launcher started them again."""
        self._hang_detector = hang.HangDetector(self._launch.hang_after, self._job.accelerators)
        self._stragglers = hang.StragglerDetector()
        # How often the launcher started the ranks, when it did last, and when the first of them failed since.
        self._round = 0
        self._began_at = 0.0
        self._broke_at = 0.0
        self._failed_rounds: set[int] = set()

    def run(self) -> StepResult:
        """Wait for the other nodes, start the ranks, wait for them, and return the result."""
        with contextlib.ExitStack() as stack:
            stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, self._on_sigterm))
            if self._gang is None:
                return self._run_here()
            stack.callback(self._gang.close)
            while True:
                result = self._gather(self._gang) or self._run_together(self._gang)
                if result is not None:
                    return result

    def _gather(self, gang: cluster.Gang) -> StepResult | None:
        """Wait for the other nodes; a result where they do not come."""
        try:
            if not gang.gather(lambda: self._cancelled):
                return StepResult(ok=False, cause=CANCELLED)
        except cluster.GangIncomplete as error:
            cause = NODE_LOST if self._changes else GANG_INCOMPLETE
            message = "; ".join([*self._changes, str(error)])
            return StepResult(ok=False, cause=cause, error=StepError(message=message))
        except cluster.NodeFailed as error:
            return error.result
        except cluster.GangBlocked as error:
            return StepResult(ok=False, cause=RENDEZVOUS, error=StepError(message=f"{error}\n  fix: {reach.FIX}"))
        return None

    def _run_together(self, gang: cluster.Gang) -> StepResult | None:
        """The result of ranks on the nodes that are there; None where nodes went away or came, and all gather again."""
        self._node = attrs.evolve(
            self._node,
            rank=gang.rank,
            nodes=len(gang.nodes),
            port=gang.port,
            hosts=gang.hosts,
            head=gang.hosts[0],
            address=gang.hosts[gang.rank],
            rendezvous=dashed_name(self._job.job) + (f"-{gang.round}" if gang.round > 1 else ""),
        )
        if self._changes:
            message = f"{self._changes[-1]}: {self._node.nodes} of {gang.member.nodes} nodes go on"
            self._emit(WorkerEvent(kind="noted", job=self._job.job, note=RESIZED, data={"message": message}))
        for connection in gang.connections():
            self._selector.register(connection, selectors.EVENT_READ, partial(self._hear_node, gang, connection))
        if gang.listener is not None:
            self._selector.register(gang.listener, selectors.EVENT_READ, partial(self._hear_comer, gang))
        result = self._run_here()
        if not gang.is_head:
            if self._cancelled and gang.is_elastic:
                return result  # it is this node that has to go: the others go on without it
            gang.report(result)
            if not gang.is_elastic or not gang.gather_again(lambda: self._cancelled):
                return result
        else:
            whole = outcome.of_all(result, gang.results, gang.lost, self._node, self._launch, blobs=self._blobs)
            if whole.ok or self._cancelled or not gang.changes:
                return whole
            self._changes.append(gang.change_text())
        self._lost = result.lost
        broke_at = self._broke_at
        self._clear()
        self._resized_at = broke_at or time.time()
        return None

    def _run_here(self) -> StepResult:
        with tempfile.TemporaryDirectory(prefix="stoker-") as folder, contextlib.ExitStack() as stack:
            stack.callback(self._selector.close)
            self._folder = folder
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._listener.bind(os.path.join(folder, "agent"))
            self._listener.listen(256)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            port = self._launch.arguments.get(self._launcher.port)
            if port and self._node.rank == 0 and not cluster.port_is_free(port):
                return self._port_taken(self._launcher.port, port)
            try:
                self._start()
                while not self._over():
                    self._turn()
            finally:
                self._end_all(hard=True)
                self._await_end()
                self._close()
            evidence = self._evidence or self._collected()
            if self._broke_at:
                self._lost = (self._lost or 0.0) + self._unsaved()
            result = outcome.of_node(
                self._ranks,
                self._node,
                self._launch,
                launchers=outcome.LaunchersEnd(
                    codes=tuple(starter.returncode for starter in self._starters),
                    words=tuple(self._launchers_words),
                    at=self._gave_up_at,
                ),
                cause=CANCELLED if self._cancelled else self._cause,
                report=self._hang_detector.report,
                evidence=evidence,
                blobs=self._blobs,
            )
            if result.error is not None and self._earlier:
                result = attrs.evolve(result, error=attrs.evolve(result.error, earlier="; ".join(self._earlier)))
            return attrs.evolve(
                result,
                left=len(self._left),
                peak=self._peaks.whole,
                rank_peaks=self._rank_peaks(),
                rank_waits=self._rank_waits(),
                lost=self._lost,
                restarting=self._restarting,
                evidence=() if self._gang is None else tuple(map(outcome.for_head, evidence)),
            )

    def _hear_node(self, gang: cluster.Gang, connection: socket.socket) -> None:
        if connection.fileno() in self._selector.get_map() and not gang.hear(connection):
            self._selector.unregister(connection)
        if gang.failed and not self._failed_at:
            self._failed_at = time.monotonic()
        if gang.should_end and not self._ending_since:
            self._cause = CANCELLED
            self._failed_at = self._failed_at or time.monotonic()

    def _hear_comer(self, gang: cluster.Gang) -> None:
        if gang.hear_comer() and not self._failed_at:
            self._failed_at = time.monotonic()

    def _on_sigterm(self, number: int, frame: Any) -> None:
        self._cancelled = True

    # Starting

    def _port_taken(self, argument: str, port: int) -> StepResult:
        """The result where another program listens on the port that the launch names."""
        if self._gang is not None:
            self._gang.end()
        holder = reach.holder(port)
        by = f": {holder}" if holder else ""
        message = f"{argument}={port}: another program listens on port {port} of this machine{by}"
        fix = f"give another port, or remove {argument}: a free one is found for each attempt"
        error = StepError(message=f"{message}\n  fix: {fix}")
        return StepResult(ok=False, cause=RENDEZVOUS, error=error, failed_at=time.time())

    def _start(self) -> None:
        self._started_at = time.monotonic()
        address = os.path.join(self._folder, "agent")
        argv = (sys.executable, "-m", "stoker.worker.rank", self._launcher.name, address)
        command: NodeCommand = mpigang.start_command(
            self._launcher, argv, self._node, self._arguments(), self._job.gang
        )
        environment = _environment_for(command, self._node, self._folder)
        for variables in command.ranks or ([{}] if command.argv else []):
            self._spawn(command.argv, {**environment, **variables})

    def _arguments(self) -> Mapping[str, Any]:
        arguments = dict(self._launch.arguments)
        return {**arguments, "command": self._launch.command} if self._launch.command else arguments

    def _spawn(self, argv: Argv, environment: Mapping[str, str]) -> None:
        process, outputs = _spawn(argv, environment)
        self._starters.append(process)
        with contextlib.suppress(OSError):  # where there are none, the pause between turns is short
            descriptor = system.end_of(process.pid)
            self._selector.register(descriptor, selectors.EVENT_READ, partial(self._launcher_ended, descriptor))
        for name, source in outputs:
            self._listen(RankOutput(name, None, source, self._masker))

    def _launcher_ended(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)  # `_turn` polls its process

    # Receiving

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._pause()):
            key.data()
        now = time.monotonic()
        for starter in self._starters:
            if starter.poll() and not self._failed_at:
                self._failed_at, self._gave_up_at = now, time.time()  # no rank starts again
        if self._cancelled and not self._ending_since:
            # SIGTERM only: a rank may write a checkpoint; who cancelled sends SIGKILL when time is up.
            self._ending_since = now
            self._signal_all(signal.SIGTERM)
            if self._gang is not None and self._gang.is_head:
                self._gang.end()
        self._look_for_a_hang(now)
        self._look_for_missing_ranks(now)
        self._look_for_a_straggler(now)
        if self._failed_at and not self._asked:
            self._ask()
        self._peaks.look(now, os.getpid(), {rank: state.child for rank, state in self._ranks.items()})
        if self._failed_at and not self._ending_since and now >= self._failed_at + SETTLE:
            self._evidence = self._collected()
            self._end_all(hard=False)
        grace = CANCELLED_GRACE if self._cancelled else self._grace
        if self._ending_since and now >= self._ending_since + grace:
            self._end_all(hard=True)  # in each turn: what is killed may have forked meanwhile
        late = self._delivered_at and now >= self._delivered_at + LEAVE
        if not self._ending_since and (late or self._left_behind()):
            self._sweep(now)

    def _pause(self) -> float:
        pause = 0.1 if self._failed_at or self._ending_since or self._starters_are_gone() else 1.0
        return min(pause, self._peaks.pause(time.monotonic()))

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            frames = wire.Frames()
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(connection, frames))

    def _hear(self, connection: socket.socket, frames: wire.Frames) -> None:
        try:
            # The first frame of a stream is followed by what the rank writes, which is no frame.
            data = connection.recv(_CHUNK)
        except ConnectionResetError:
            data = b""
        if not data:
            self._forget(connection)
            self._on_hang_up(connection)
            return
        try:
            for message in frames.feed(data):
                if message["op"] == "stream":
                    output = RankOutput(message["name"], message["rank"], connection, self._masker)
                    self._selector.unregister(connection)
                    connection.setblocking(False)
                    self._listen(output)
                    self._emit_lines(output.feed(frames.rest()))
                    return
                self._handlers[message["op"]](connection, message)
        except (BackendError, SettingsError, KeyError, TypeError):  # it speaks another language: it is no rank's
            self._forget(connection)
            self._on_hang_up(connection)

    def _on_hello(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        rank = message["rank"]
        earlier = self._ranks.get(rank)
        restarts = 0 if earlier is None else earlier.restarts + 1
        self._began_at = self._began_at or time.time()
        if self._resized_at:
            self._restarting = (self._restarting or 0.0) + time.time() - self._resized_at
            self._resized_at = 0.0
        if restarts:
            if restarts > self._round:
                self._begin_round(restarts)
            self._note_start(restarts)
            facts = {"rank": rank, "times": restarts, **outcome.end_of(earlier)}
            self._emit(WorkerEvent(kind="noted", job=self._job.job, note="restarted", data=facts))
            self._failed_at, self._asked = 0.0, False
        self._watchers[connection] = rank
        self._ranks[rank] = RankState(rank=rank, watcher=message["pid"], child=message["child"], restarts=restarts)

    def _begin_round(self, number: int) -> None:
        """Count what the failure before these ranks cost."""
        now = time.time()
        broke_at = self._broke_at or now
        self._lost = (self._lost or 0.0) + self._unsaved()
        self._restarting = (self._restarting or 0.0) + now - broke_at
        self._round, self._began_at, self._broke_at = number, now, 0.0

    def _unsaved(self) -> float:
        """Seconds from the last checkpoint of these ranks, or their beginning, to their first failure."""
        broke_at, context = self._broke_at or time.time(), self._job.context
        saved = Checkpoints(context["checkpoints"]).last_saved(context["run"], context["key"], broke_at)
        return max(0.0, broke_at - max(saved or 0.0, self._began_at))

    def _note_start(self, number: int) -> None:
        """Remember why the ranks' start of a number failed, when the first rank of the next one reports."""
        if number <= len(self._earlier):
            return
        verdict = blame.verdict(self._collected())
        if verdict is not None and (verdict.own or self._gang is None):
            failure = outcome.blamed(verdict, self._collected(), self._node.world_size).error or StepError()
            self._earlier.append(f"start {number}: {outcome.in_short(failure)}")
        else:
            self._earlier.append(f"start {number}: {outcome.OF_OTHERS}")

    def _on_hang_up(self, connection: socket.socket) -> None:
        """Note a watcher that hung up without a report as killed, and its rank with it."""
        rank = self._watchers.pop(connection, None)
        state = None if rank is None else self._ranks.get(rank)
        if state is not None and state.status is None:
            state.status, state.ended_at = -signal.SIGKILL, time.time()
            if state.result is None:
                self._fail(state)

    def _on_begin(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        spec = {
            "path": list(sys.path),
            "cwd": os.getcwd(),
            "blobs": self._blobs,
            "folder": self._folder,
            "grace": RANK_GRACE,
            "lease": None if self._job.accelerators is None else to_json(self._job.accelerators),
            "job": to_json(attrs.evolve(self._job, launch=None, accelerators=None)),
            "step": to_json(self._step),
            "gathers": self._launch.outputs,
            # Nodes that start the step themselves, without a launcher, need not belong together.
            "one_world": self._launch.one_world and not self._launcher.one_per_node,
        }
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(wire.framed(spec))

    def _on_result(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        state = self._ranks.get(message["rank"])
        if state is None:
            return
        state.result = from_json(StepResult, message["result"], strict=False)
        if not state.result.ok:
            self._fail(state)
        elif len(self._ranks) == self._node.processes and all(other.succeeded for other in self._ranks.values()):
            self._delivered_at = time.monotonic()

    def _on_exit(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        state = self._ranks.get(message["rank"])
        if state is not None:
            state.status, state.ended_at = message["status"], time.time()
            if state.result is None:
                self._fail(state)
            elif state.status < 0:
                self._emit(WorkerEvent(kind=DIED, job=self._job.job))

    def _on_witness(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        self._witnesses[message["rank"]] = connection

    def _ask(self) -> None:
        """Ask each rank that runs where it stands; what they answer comes before they are ended."""
        self._asked = True
        for rank, state in self._ranks.items():
            if state.status is None and rank in self._witnesses:
                with contextlib.suppress(OSError):
                    self._witnesses[rank].sendall(b"?")

    def _on_account(self, connection: socket.socket, message: Mapping[str, Any]) -> None:
        state = self._ranks.get(message["rank"])
        if state is not None:
            state.account = message["account"]

    def _collected(self) -> tuple[RankEvidence, ...]:
        return tuple(evidence_of(self._ranks[rank], self._folder) for rank in sorted(self._ranks))

    def _fail(self, state: RankState) -> None:
        state.failed_at = time.monotonic()
        self._broke_at = self._broke_at or time.time()
        if not was_ended(state):
            self._failed_rounds.add(self._round)
        state.outside = was_ended(state) and not (self._failed_at or self._ending_since or self._cancelled)
        error = None if state.result is None else state.result.error
        if error is None or error.type != "SystemExit":
            self._emit(WorkerEvent(kind=DIED, job=self._job.job))
        if not self._failed_at and not self._starts_again():
            self._failed_at = state.failed_at
            if self._gang is not None and not self._gang.is_head:
                self._gang.warn()

    def _starts_again(self) -> bool:
        """Whether the launcher itself will start ranks again; until it gives up, no rank is ended. It counts what
        failed on this node."""
        limit = int(self._launch.arguments.get(self._launcher.restarts) or 0)
        return bool(limit) and len(self._failed_rounds) <= limit

    def _listen(self, output: RankOutput) -> None:
        self._outputs.append(output)
        self._selector.register(output.source, selectors.EVENT_READ, lambda: self._drain(output))

    def _drain(self, output: RankOutput) -> None:
        data = output.read(_CHUNK)
        if data is None:
            return
        if not data:
            self._emit_lines(output.end())
            self._forget(output.source)
            self._outputs.remove(output)
            return
        self._emit_lines(output.feed(data))

    def _forget(self, source: Any) -> None:
        self._selector.unregister(source)
        source.close()

    def _emit_lines(self, lines: list[tuple[float, str, int | None, str]]) -> None:
        for _, stream, rank, text in lines:
            if stream == "stderr" and rank in self._ranks:
                self._ranks[rank].said.append(text)
        if lines:
            self._launchers_words.extend(text for _, stream, rank, text in lines if rank is None and stream == "stderr")
            # What a launcher says of ranks that failed, or of its own end, is long; ended ranks complain of that.
            launchers = all(rank is None for _, _, rank, _ in lines)
            if self._cancelled:
                aside = launchers
            else:
                aside = bool(self._failed_at and (launchers or self._ending_since))
            note = ASIDE if aside else ""
            self._emit(WorkerEvent(kind="lines", job=self._job.job, lines=tuple(lines), note=note))

    # Ending

    def _over(self) -> bool:
        if not self._starters_are_gone() or not self._others_are_done():
            return False
        if (self._ending_since or self._swept_since) and not processes.descendants(os.getpid()):
            return True
        # What the ranks wrote last may still be on its way.
        ended = not self._outputs and all(state.status is not None for state in self._ranks.values())
        return ended and not processes.descendants(os.getpid())

    def _left_behind(self) -> bool:
        """Whether launcher and ranks have all ended: processes that still run, or hold their output, are leftovers."""
        return self._starters_are_gone() and all(state.status is not None for state in self._ranks.values())

    def _rank_peaks(self) -> dict[str, int]:
        """The peak of each rank: by its own account and that of its processes, and by the samples of all of them."""
        own = {rank: state.result.peak for rank, state in self._ranks.items() if state.result is not None}
        ranks = sorted({*own, *self._peaks.parts})
        return {str(rank): max(own.get(rank, 0), self._peaks.parts.get(rank, 0)) for rank in ranks}

    def _rank_waits(self) -> dict[str, float]:
        """The share of its time that each rank spent in collective operations; empty where none was in any."""
        now = time.time()
        shares = {
            str(rank): waited_by(state, self._folder) / max(0.001, (state.ended_at or now) - state.started_at)
            for rank, state in sorted(self._ranks.items())
        }
        return {rank: round(share, 4) for rank, share in shares.items()} if any(shares.values()) else {}

    def _others_are_done(self) -> bool:
        gang = self._gang
        if gang is None or not gang.is_head or gang.complete:
            return True
        return bool(self._ending_since) and time.monotonic() > self._ending_since + self._grace + SETTLE + 1.0

    @property
    def _grace(self) -> float:
        """Seconds from SIGTERM to SIGKILL for ranks that did not fail; ranks that will go on save a checkpoint."""
        return RANK_GRACE + 1.0 if self._gang is not None and self._gang.is_elastic else GRACE

    def _starters_are_gone(self) -> bool:
        return all(starter.returncode is not None for starter in self._starters)

    def _look_for_a_hang(self, now: float) -> None:
        if self._ending_since or self._failed_at:
            return
        ranks = {rank: state.child for rank, state in self._ranks.items() if state.result is None}
        if self._hang_detector.hangs(ranks, now, self._folder):
            self._cause = HANG
            self._failed_at = now

    def _look_for_missing_ranks(self, now: float) -> None:
        if self._ending_since or self._failed_at or self._launch.start_timeout is None:
            return
        if len(self._ranks) < self._node.processes and now >= self._started_at + self._launch.start_timeout:
            self._cause = NOT_STARTED
            self._failed_at = now - SETTLE

    def _look_for_a_straggler(self, now: float) -> None:
        if self._ending_since or self._failed_at:
            return
        running = [state for state in self._ranks.values() if state.result is None]
        found = self._stragglers.look(lambda: {state.rank: waited_by(state, self._folder) for state in running}, now)
        if found is not None:
            rank, share = found
            message = f"rank {rank} is slower than the others, which wait for it {share:.0%} of the time"
            facts = {"rank": rank, "share": round(share, 3), "message": message}
            self._emit(WorkerEvent(kind="noted", job=self._job.job, note=STRAGGLER, data=facts))

    def _end_all(self, *, hard: bool) -> None:
        if self._gang is not None and self._gang.is_head and not self._ending_since:
            self._gang.end()
        self._ending_since = self._ending_since or time.monotonic()
        self._killed = self._killed or hard
        self._signal_all(signal.SIGKILL if hard else signal.SIGTERM)

    def _await_end(self) -> None:
        """Kill what is below this process until nothing is left that can die."""
        deadline = time.monotonic() + KILL_PATIENCE
        while processes.descendants(os.getpid()) and time.monotonic() < deadline:
            self._signal_all(signal.SIGKILL)
            time.sleep(_TURN)

    def _sweep(self, now: float) -> None:
        """End processes that a step left behind on this node; other nodes may still be at work."""
        own = {starter.pid for starter in self._starters}
        own.update(pid for state in self._ranks.values() for pid in (state.watcher, state.child))
        self._left.update(set(processes.descendants(os.getpid())) - own)
        if not self._swept_since:
            self._swept_since = now
            self._signal_all(signal.SIGTERM)
        elif now >= self._swept_since + GRACE:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in processes.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _close(self) -> None:
        for starter in self._starters:
            with contextlib.suppress(subprocess.TimeoutExpired):
                starter.wait(GRACE)
        for output in list(self._outputs):
            while data := output.read(_CHUNK):
                self._emit_lines(output.feed(data))
            self._emit_lines(output.end())
            self._forget(output.source)


def _environment_for(launch_command: NodeCommand, node: Node, folder: str) -> dict[str, str]:
    """The variables of a launcher's processes: Stoker's, those that it asks for, and those of the flight recorder.

    torchrun would give each rank one thread, with a long warning; here they share the CPUs. The flight recorder of
    torch writes what each rank did last with NCCL when something is written into its pipe:
    https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
    """
    return {
        "OMP_NUM_THREADS": str(max(1, system.cpus() // node.processes)),
        "TORCH_FR_BUFFER_SIZE": "2000",
        **os.environ,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": os.path.join(folder, "nccl-"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": os.path.join(folder, "nccl-pipe-"),
        **launch_command.environment,
    }


def _spawn(argv: Argv, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], list[tuple[str, IO[bytes]]]]:
    """A process, and its output by the name of the stream."""
    ends = [os.pipe() for _ in range(2)]
    agent, library = os.getpid(), system.libc()
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=ends[0][1],
        stderr=ends[1][1],
        env=dict(environment),
        # Nothing is imported and no lock is taken between fork and exec: the library is loaded.
        preexec_fn=lambda: processes.die_with(agent, signal.SIGKILL, library),  # noqa: PLW1509
    )
    for _, write in ends:
        os.close(write)
    return process, [(name, os.fdopen(read, "rb", buffering=0)) for name, (read, _) in zip(("stdout", "stderr"), ends)]
