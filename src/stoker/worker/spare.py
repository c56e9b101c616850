"""A fork server started ahead: it boots on another core while the driver still imports what it needs for the run.

It is idle until a backend takes it and sends a hello; one that is not taken ends when its socket closes. This module is
light, so that the server can be started first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Final, Sequence

from stoker.core.errors import BackendError
from stoker.system import system
from stoker.worker.processes import MARK, mark_of

if TYPE_CHECKING:
    from stoker.core.packages import Interpreter

_KILL_PATIENCE: Final = 5.0
"""Seconds in which what a fork server left must have died of SIGKILL."""
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_CODE: Final = (
    "import gc, sys; gc.disable(); "  # until the server has imported what is ours: that stays
    f"sys.path.insert(0, {_ROOT!r}); from stoker.worker.forkserver import main; main()"
)


class SpawnedServer:
    """A fork server, by the process of its supervisor, and our end of its socket.

    `interpreter` is given where it is another Python, `imports` are modules of Stoker's that it imports at once.
    """

    def __init__(self, interpreter: Interpreter | None = None, imports: Sequence[str] = ()) -> None:
        self.control, other_end = system.packet_pair()
        self.mark = f"{mark_of(os.getpid())}-{next(_numbers)}"
        """Names the fork server and everything below it, in their environment and as their cgroup."""
        self.errors = system.nameless_file("stoker-stderr")
        command = _command(interpreter)
        try:
            self.process = subprocess.Popen(
                [*command, str(other_end.fileno()), *imports],
                env={**os.environ, **({} if interpreter is None else interpreter.environment), MARK: self.mark},
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                start_new_session=True,
            )
        except OSError as error:  # a limit of processes, no memory, or a Python that may not be executed
            self.control.close()
            raise BackendError(
                f"no process can be started with {command[0]}: {error.strerror}",
                fix="raise the limits that `ulimit -a` shows, or let the user execute that file",
            ) from error
        finally:
            other_end.close()
        self.pid = self.process.pid

    def stderr_tail(self) -> str:
        """The last that it wrote to stderr."""
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode("utf-8", "replace").strip()

    def close(self, patience: float) -> tuple[int, ...]:
        """Hang up, and wait until it is gone; returns the pids of processes below it that do not end."""
        self.control.close()
        try:
            self._wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()
        if self.process.returncode == 0:
            return ()  # the supervisor saw the last one end
        from stoker.worker import survivors

        return survivors.end(self.mark, _KILL_PATIENCE)

    def _wait(self, patience: float) -> None:
        """Wait for the end of the process. `Popen.wait` with a limit sleeps up to 50 ms between two looks."""
        try:
            descriptor = system.end_of(self.pid)
        except OSError:
            self.process.wait(patience)
            return
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(patience * 1000)
        os.close(descriptor)
        self.process.wait(0)


def _command(interpreter: Interpreter | None) -> list[str]:
    if interpreter is None:
        return [sys.executable, "-c", _CODE]
    # Stoker is on its PYTHONPATH; a person's own packages for all environments (-s) are none of this one's.
    return [interpreter.executable, "-s", "-m", "stoker.worker.forkserver"]


_numbers = itertools.count()
_waiting: list[SpawnedServer] = []


def start(imports: Sequence[str]) -> None:
    """Start a server that imports these modules of Stoker's, unless one waits already."""
    if not _waiting:
        _waiting.append(SpawnedServer(imports=imports))


def take() -> SpawnedServer:
    """The server that was started ahead, or a new one."""
    return _waiting.pop() if _waiting else SpawnedServer()


def discard() -> None:
    """End a server that was started ahead and not taken."""
    while _waiting:
        boot = _waiting.pop()
        with contextlib.suppress(OSError):
            boot.control.shutdown(socket.SHUT_RDWR)
        # It has no workers and may still be importing: its supervisor ends it at once.
        boot.process.terminate()
        boot.process.wait()
        boot.control.close()
        boot.errors.close()
