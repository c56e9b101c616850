"""A fork server started ahead: it boots on another core while the driver still imports what it needs for the run.

It is idle until a backend takes it and sends a hello; one that is not taken ends when its socket closes. This module is
light, so that the server can be started first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from typing import IO, TYPE_CHECKING, Final

from stoker.core import wire

if TYPE_CHECKING:
    from stoker.core.packages import Interpreter

_ROOT: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_CODE: Final = f"import sys; sys.path.insert(0, {_ROOT!r}); from stoker.worker.forkserver import main; main()"


class SpawnedServer:
    """A fork server's process and our end of its socket; `interpreter` is given where it is another Python."""

    def __init__(self, interpreter: Interpreter | None = None) -> None:
        self.control, other_end = wire.packet_pair()
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 kept open as long as the server lives
        self.process = subprocess.Popen(
            [*_command(interpreter), str(other_end.fileno())],
            env=None if interpreter is None else {**os.environ, **interpreter.environment},
            pass_fds=[other_end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,
        )
        other_end.close()
        self.pid = self.process.pid

    def stderr_tail(self) -> str:
        """The last that it wrote to stderr."""
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode("utf-8", "replace").strip()

    def close(self, patience: float) -> None:
        """Hang up, and wait until it is gone."""
        self.control.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


def _command(interpreter: Interpreter | None) -> list[str]:
    if interpreter is None:
        return [sys.executable, "-c", _CODE]
    # Stoker is on its PYTHONPATH; a person's own packages for all environments (-s) are none of this one's.
    return [interpreter.executable, "-s", "-m", "stoker.worker.forkserver"]


_waiting: list[SpawnedServer] = []


def start() -> None:
    """Start a server, unless one waits already."""
    if not _waiting:
        _waiting.append(SpawnedServer())


def take() -> SpawnedServer:
    """The server that was started ahead, or a new one."""
    return _waiting.pop() if _waiting else SpawnedServer()


def discard() -> None:
    """End a server that was started ahead and not taken."""
    while _waiting:
        boot = _waiting.pop()
        with contextlib.suppress(OSError):
            boot.control.shutdown(socket.SHUT_RDWR)
        # It has no workers and may still be importing: there is nothing that it has to clean up.
        boot.process.kill()
        boot.close(10.0)
