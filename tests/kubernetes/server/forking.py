"""Python programs of containers, forked from one process that has their modules already.

Two cores start some twenty interpreters with a worker's modules in a second, and a run that is measured has a thousand
pods. Everything else is as with a process that is executed: words, environment, folder, output, exit code, and whose
child it is.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import define

REPOSITORY = Path(__file__).resolve().parents[3]
MESSAGE = 1 << 18
"""Bytes of a request at most: a program's text is a word, or a variable."""


@define
class Forked:
    """A process as `subprocess.Popen` shows it, as far as a container needs."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


class Forker:
    """The process that forks, and how it is asked to. `mark` is a variable of each process it forks, whose values have
    the same length: others read it in /proc, where only what a process was executed with stands."""

    def __init__(self, modules: Sequence[str], *, mark: str, length: int, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), mark, *modules],
                cwd=REPOSITORY,
                env={**os.environ, **environment, mark: "-" * length},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def takes(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether a command is a program for this interpreter that begins with what is imported here."""
        return list(command[:2]) == [sys.executable, "-c"] and not {"PYTHONPATH", "PYTHONHOME"} & environment.keys()

    def start(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, output: int) -> Forked:
        """Start a program whose output goes to a descriptor."""
        request = {"words": list(command[2:]), "environment": dict(environment), "folder": str(folder)}
        socket.send_fds(self._socket, [json.dumps(request).encode()], [output])
        return Forked(int(self._socket.recv(MESSAGE)))

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()


def serve(requests: socket.socket, mark: str) -> dict[str, object]:
    """Fork until nobody asks any more. In a process that was forked, returns what its program is to run in."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(mark.encode())
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, MESSAGE, 1)
        if not data:
            raise SystemExit
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if pid:
                os.write(writing, str(pid).encode())
                os._exit(0)
            # What is above this process is about to end: it becomes a child of the server, which adopts orphans.
            for descriptor in (reading, writing, requests.detach()):
                os.close(descriptor)
            return _become(json.loads(data), descriptors[0], mark, place)
        os.waitpid(between, 0)
        os.close(writing)
        os.close(descriptors[0])
        requests.send(os.read(reading, 64))
        os.close(reading)


def _become(request: dict[str, object], output: int, mark: str, place: int) -> dict[str, object]:
    """Have all of this process that a program sees be the program's; the namespace of its main module."""
    words, environment, folder = request["words"], request["environment"], request["folder"]
    assert isinstance(words, list) and isinstance(environment, dict) and isinstance(folder, str)
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    ctypes.memmove(place, environment[mark].encode(), len(environment[mark]))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:] = ["-c", *words[1:]]
    sys.orig_argv[:] = [sys.executable, "-c", *words]
    sys.path[0] = ""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["program"] = words[0]
    return main.__dict__


def _main(descriptor: str, mark: str, *modules: str) -> dict[str, object]:
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy all of it
    return serve(socket.socket(fileno=int(descriptor)), mark)


if __name__ == "__main__":
    space = _main(*sys.argv[1:])
    exec(compile(str(space.pop("program")), "<string>", "exec"), space)
