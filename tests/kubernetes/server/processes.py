"""The processes of a container: started in a session of their own, watched, and ended with all their children."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import define
from tests.kubernetes.server.forking import Forked, Forker
from tests.kubernetes.server.logs import LogBook

MARK = "TEST_KUBELET_CONTAINER"
"""Environment variable that all processes of a container have; its value names the container."""
NICENESS: list[int] = []
"""The last one is that of new containers, where it is not the server's own."""
FORKERS: list[Forker] = []
"""The last one starts the programs of new containers that it takes."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


def adopt_orphans() -> None:
    """Have processes whose parent ends become children of this one, so that none gets lost."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


@define(eq=False)
class ContainerProcess:
    """A container's main process and what it started."""

    id: str
    """Names the container in the environment of its processes."""
    log: LogBook
    _process: subprocess.Popen[bytes] | Forked
    _ended: asyncio.Future[int]
    _descriptor: int = -1
    _output: int = -1

    @classmethod
    def start(
        cls, id: str, command: Sequence[str], environment: Mapping[str, str], folder: Path, log: LogBook
    ) -> ContainerProcess:
        """Start a process.

        Raises:
            OSError: The command does not exist or cannot be executed.
        """
        output, end = os.pipe()
        try:
            process = _process(command, marked(environment, id), folder, end)
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(end)
        loop = asyncio.get_running_loop()
        started = cls(id, log, process, loop.create_future())
        started._output = output
        os.set_blocking(output, False)
        loop.add_reader(output, started._read)
        if NICENESS:
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS[-1])
        _MAINS.add(process.pid)
        started._descriptor = os.pidfd_open(process.pid)
        loop.add_reader(started._descriptor, started._exited)
        return started

    def marked(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of a further process of the container, which ends with it."""
        return marked(environment, self.id)

    @property
    def pid(self) -> int:
        """The main process."""
        return self._process.pid

    async def ended(self) -> int:
        """The exit code as a container has it: 128 + N after signal N."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Send SIGTERM to the main process; as process 1 of its container it gets it only if it has a handler."""
        if not self._ended.done() and _handles(self.pid, signal.SIGTERM):
            self._process.terminate()

    def kill(self) -> None:
        """End the main process; with it goes the container."""
        if not self._ended.done():
            self._process.kill()

    def largest(self, limit: int) -> int | None:
        """The process that takes most memory, if all together take more than `limit` bytes."""
        sizes = {pid: _memory(pid) for pid in self._pids()}
        if sum(sizes.values()) <= limit:
            return None
        return max(sizes, key=lambda pid: sizes[pid])

    def _pids(self) -> Iterator[int]:
        yield self.pid
        yield from _descendants(self.pid)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._output, 1 << 16)
            if data:
                self.log.add(data)
            else:
                asyncio.get_running_loop().remove_reader(self._output)

    def _exited(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        _MAINS.discard(self.pid)
        end_strays(self.id)
        loop.remove_reader(self._output)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output, 1 << 16):
                self.log.add(data)
        os.close(self._output)
        self.log.close()
        self._ended.set_result(code if code >= 0 else 128 - code)


def _process(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, output: int
) -> subprocess.Popen[bytes] | Forked:
    if FORKERS and FORKERS[-1].takes(command, environment):
        return FORKERS[-1].start(command, environment, folder, output)
    return subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def fork_from(modules: Sequence[str], environment: Mapping[str, str]) -> None:
    """Fork the Python programs of new containers from a process that has these modules and variables."""
    FORKERS.append(Forker(modules, mark=MARK, length=len(new_id()), environment=environment))


def no_forks() -> None:
    """Execute all programs of new containers."""
    while FORKERS:
        FORKERS.pop().close()


def new_id() -> str:
    """A name for a container, as long as any other's."""
    return f"containerd://{secrets.token_hex(32)}"


def marked(environment: Mapping[str, str], id: str) -> dict[str, str]:
    """An environment that names the container."""
    return {**environment, MARK: id}


def end_strays(id: str) -> None:
    """Kill what is left of a container whose main process has ended: they are children of this process now."""
    for _ in range(100):
        strays = [pid for pid in _descendants(os.getpid(), without=_MAINS) if _marked(pid, id)]
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in strays:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if not strays:
            return


_MAINS: set[int] = set()
"""The main processes of containers that run; what is below them is theirs."""


def _descendants(pid: int, *, without: Collection[int] = ()) -> Iterator[int]:
    """All processes below one, but those that are named and what is below them."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                if child not in without:
                    yield child
                    yield from _descendants(child, without=without)


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), 16)
    return bool(caught >> (number - 1) & 1)


def _marked(pid: int, id: str) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={id}".encode() in variables


def _memory(pid: int) -> int:
    """Bytes of memory that are a process's own."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE
