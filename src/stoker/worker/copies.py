"""What the program of a job elsewhere does for the copies of its checkpoints: starts `worker.checkpointer` when the
step first asks for its folder, tells it what becomes of the step, and waits for the last copy."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, Callable, Final

from stoker.core import wire
from stoker.core.codec import to_json
from stoker.core.protocol import StepResult, WorkerEvent, WorkerJob
from stoker.system import system

if TYPE_CHECKING:
    from stoker.core.orders import BootSpec

NOTE: Final = "checkpoints"
"""What events of copies are called in a run's record."""
SPARE: Final = 0.5
"""Seconds of a grace that remain for the job's result when the last copy had all the others."""
_RESTARTS: Final = 3
"""How often the program is started again after its death: the kernel may choose it when memory is short."""
_KILL: Final = 5.0
"""Seconds after which a program that should have ended is killed."""


class Copies:
    """The copies of one job's checkpoints. `tell` writes a line into the step's log, and an event for its record."""

    def __init__(self, spec: BootSpec, node: int, tell: Callable[[str, WorkerEvent], None]) -> None:
        self._spec = spec
        self._node = node
        self._tell = tell
        self._folder = tempfile.mkdtemp(prefix="stoker-")
        self.address = os.path.join(self._folder, "socket")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.address)
        self.listener.listen(256)
        self.control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._doubted = float("-inf")
        self._deaths = 0
        self._restored = False
        """Whether the step has its folder, which nothing may be restored into any more."""
        self._over = False

    def start(self) -> socket.socket:
        """Start the program, which answers whoever connected; returns the socket on which it speaks."""
        from stoker.store.checkpoints import Checkpoints, step_place
        from stoker.worker.checkpointer import CopyTask
        from stoker.worker.context import document_of

        document = document_of(self._spec.job, self._spec.checkpoints)
        run, key = document["run"], document["key"]
        task = CopyTask(
            folder=str(Checkpoints(self._spec.checkpoints).path(run, key)),
            place=step_place(self._spec.blobs, run, key),
            node=self._node,
            attempt=document["attempt"],
            keep=self._spec.keep,
            again=self._restored,
        )
        self.control, other_end = system.packet_pair()
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
        with other_end:
            descriptors = (other_end.fileno(), self.listener.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stoker.worker.checkpointer", *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=descriptors,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # it outlives a signal to the job's group
            )
        self.control.sendall(wire.packed(to_json(task)))
        return self.control

    def restart(self) -> socket.socket | None:
        """Start the program again after its death, unless it died too often; returns the socket on which it speaks."""
        assert self.control is not None and self._process is not None
        self.control.close()
        code = self._process.wait()
        self._deaths += 1
        ending = f"signal {-code}" if code < 0 else f"code {code}"
        again = self._deaths <= _RESTARTS
        what = "is started again" if again else "is not started again: checkpoints do not leave this node any more"
        self._note(f"the program that copies checkpoints ended with {ending}, and {what}", {"died": ending})
        self.control = None
        if again:
            return self.start()
        self.listener.close()
        return None

    def read(self) -> bool:
        """Pass on what the program says; returns False once it has ended."""
        assert self.control is not None
        try:
            data = self.control.recv(wire.DATAGRAM_LIMIT)
        except OSError:
            data = b""
        if not data:
            return False
        message = wire.unpacked(data)
        self._over = message["op"] == "over"
        if message["op"] == "ready":
            self._restored = True
        elif not self._over:
            self._note(message["text"], message["facts"])
        return not self._over

    def _note(self, text: str, facts: dict[str, Any]) -> None:
        self._tell(text, WorkerEvent(kind="noted", job=self._spec.job.job, note=NOTE, time=time.time(), data=facts))

    def doubt(self) -> None:
        """Tell that a process of the step died, so that what it was writing may be half-written."""
        self._doubted = time.monotonic()
        self._send({"op": "doubt"})

    def finish(self, result: StepResult | None, seconds_left: Callable[[], float | None], wakeup: int) -> None:
        """Wait for the last copy; `seconds_left` of the job's grace bounds it once the job is to end, which makes
        `wakeup` readable."""
        if self.control is not None and self._process is not None:
            left = seconds_left()
            from stoker.worker.settled import DOUBT

            orderly = left_in_order(result) and time.monotonic() > self._doubted + DOUBT
            self._send({"op": "end", "orderly": orderly, "seconds": left})
            hurried = left is not None
            deadline = None if left is None else time.monotonic() + left + SPARE
            while True:
                pause = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = select.select([self.control.fileno(), *([] if hurried else [wakeup])], [], [], pause)[0]
                if not ready:
                    break
                if self.control.fileno() in ready and not self.read():
                    if not self._over:
                        text = "the last checkpoint did not leave this node: the program that copies it died"
                        self._note(text, {"failed": text})
                    break
                if wakeup in ready and (left := seconds_left()) is not None:
                    hurried, deadline = True, time.monotonic() + left + SPARE
                    self._send({"op": "seconds", "seconds": left})
            self.control.close()
            try:
                self._process.wait(_KILL if deadline is None else max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, message: dict[str, Any]) -> None:
        if self.control is not None:
            with contextlib.suppress(OSError):  # it has ended, and `read` has said so
                self.control.sendall(wire.packed(message))


def left_in_order(result: StepResult | None) -> bool:
    """Whether a step ended where its own code wanted it to: it returned, or called `sys.exit`.

    An exception may have left a file half-written, and so may a signal.
    """
    if result is None or result.exited is not None:
        return False
    return result.ok or (result.error is not None and result.error.type == "SystemExit")


def with_address(job: WorkerJob, address: str) -> WorkerJob:
    """The job with the address at which its processes ask for their checkpoints."""
    import attrs

    return attrs.evolve(job, context={**job.context, "copier": address})
