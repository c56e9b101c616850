"""What every POSIX system can do, by psutil, which Stoker's driver has: macOS, and Linux by the switch.

A kernel without parent-death signals, subreapers, control groups and files about itself leaves more to the processes:
nothing here raises for want of them.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
from typing import IO, Any, Final, Iterator, NamedTuple

MESSAGE_LIMIT: Final = 4092
"""Bytes of a message that one of several readers gets whole: a record of `_Packets` and its length."""
STACKS: Final[int] = signal.SIGUSR2
"""The signal that asks a process for its stacks."""
PEAK_UNIT: Final = 1 if sys.platform == "darwin" else 1024
"""Bytes of what getrusage(2) counts `ru_maxrss` in."""

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_RECORD: Final = 4096
_LENGTH: Final = struct.Struct("!I")


class Stat(NamedTuple):
    """A process as others see it."""

    state: str
    """One letter of proc(5): "R" runs, "Z" is a zombie, "X" is dead."""
    parent: int
    """The parent's pid."""
    session: int
    """The session's id."""
    own_ticks: int
    """CPU time of the process, in clock ticks."""
    children_ticks: int
    """CPU time of the children that it has waited for, and of theirs, in clock ticks."""
    started: int
    """Its start in clock ticks: after the boot on Linux, elsewhere since the epoch."""


def stat_of(pid: int) -> Stat | None:
    """A process; None for one that has ended or may not be seen."""
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            state = {psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_DEAD: "X"}.get(process.status(), "R")
            times, started = process.cpu_times(), process.create_time()
            return Stat(
                state=state,
                parent=process.ppid(),
                session=os.getsid(pid),
                own_ticks=int((times.user + times.system) * _TICKS),
                children_ticks=int((times.children_user + times.children_system) * _TICKS),
                started=int(started * _TICKS),
            )
    except psutil.ZombieProcess:
        return Stat("Z", 0, 0, 0, 0, 0)
    except (psutil.Error, OSError):
        return None


def started_at(pid: int) -> float:
    """When a process started, in seconds since the epoch. Raises OSError for one that is not there."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        raise ProcessLookupError(pid) from None


def pids() -> set[int]:
    """The processes of this machine."""
    import psutil

    return set(psutil.pids())


def children_of(pid: int) -> list[int]:
    """Direct children of a process, whichever of its threads started them; none for one that is gone."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def threads_of(pid: int) -> list[str]:
    """A process's threads by their ids; none for one that is gone or may not be seen."""
    import psutil

    try:
        return [str(thread.id) for thread in psutil.Process(pid).threads()]
    except psutil.Error:
        return []


def environment_of(pid: int) -> bytes:
    """The environment with which a process started, a NUL behind each variable; empty where it may not be read."""
    import psutil

    try:
        variables = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return b""
    return b"".join(os.fsencode(f"{name}={value}\0") for name, value in variables.items())


def command_of(pid: int) -> str:
    """A process's command line; empty where it may not be read."""
    import psutil

    try:
        return " ".join(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        return ""


def name_of(pid: int) -> str:
    """A process's name, which `name_process` gave it; empty for one that is gone."""
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return ""


def memory_of(pid: int) -> tuple[int, int] | None:
    """A process's resident bytes, and how many of them are known to belong to files or shared memory."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss), 0
    except psutil.Error:
        return None


def proportional_of(pid: int) -> int | None:
    """PSS in bytes, each page divided by the processes that map it; None where the kernel does not count it."""
    return None


def descriptors_of(pid: int) -> Iterator[tuple[str, str]]:
    """A path to each descriptor of a process, and what it is; nothing where nobody may see them."""
    return iter(())


def namespace_of(pid: int) -> str:
    """The pid namespace of a process, such as "pid:[4026531836]"; empty where there are none or it may not be seen."""
    return ""


def kernel_file(name: str) -> bytes:
    """A file of the kernel's below /proc; empty where there is none, or it may not be read."""
    return b""


def reset_peak() -> None:
    """Let the kernel count this process's peak of memory anew, where it can."""


def name_process(name: bytes) -> None:
    """Set the name of this process. Raises OSError where it cannot be set."""
    raise OSError("this system names processes by their programs")


def libc() -> Any:
    """The C library of this process; None where there is none to load."""
    import ctypes

    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


def prctl(library: Any, option: int, value: int | bytes) -> None:
    """Ask the kernel for something by prctl(2), where there is such a call."""


def end_of(pid: int) -> int:
    """A descriptor that becomes readable when a process ends. Raises OSError where the system has none."""
    raise OSError("this system has no descriptors of processes")


def nameless_file(name: str) -> IO[bytes]:
    """An empty file that is gone when nobody has it open; `name` is seen among a process's descriptors on Linux."""
    import tempfile

    return tempfile.TemporaryFile()


def cpus(pid: int = 0) -> int:
    """CPUs that a process may use by its affinity; 0 is this process."""
    return os.cpu_count() or 1


def limits() -> tuple[int | None, int | None]:
    """CPUs and bytes of memory that a container leaves to this process; None for what is not limited."""
    return None, None


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep messages apart and in order, and tell of each other's end."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return packets(here.detach()), packets(there.detach())


def packets(descriptor: int) -> socket.socket:
    """One end of a `packet_pair` by its descriptor."""
    return _Packets(fileno=descriptor)


class _Packets(socket.socket):
    """Messages on a stream; the end of a datagram socket's other end is not heard of.

    A message has its length before it, and is filled up to whole records, of which each is read at once: two processes
    may read from one end.
    """

    def sendmsg(
        self, buffers: Any, ancdata: Any = (), flags: int = 0, address: Any = None
    ) -> int:  # what `socket.send_fds` calls
        """Send one message."""
        data = b"".join(buffers)
        whole = _LENGTH.pack(len(data)) + data
        whole += bytes(-len(whole) % _RECORD)
        sent = super().sendmsg([whole], ancdata, flags)
        while sent < len(whole):
            select.select([], [self], [])
            sent += super().send(whole[sent:])
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send one message."""
        return self.sendmsg([data], (), flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send one message."""
        self.sendmsg([data], (), flags)

    def recvmsg(self, bufsize: int, ancbufsize: int = 0, flags: int = 0) -> tuple[bytes, list[Any], int, Any]:
        """Receive one message, whole, whatever its size; empty where the other end is gone."""
        data, ancillary, state, address = super().recvmsg(_RECORD, ancbufsize, flags | socket.MSG_WAITALL)
        data = self._filled(data, _RECORD)
        if not data:
            return b"", ancillary, state, address
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + length
        return self._filled(data, end + -end % _RECORD)[_LENGTH.size : end], ancillary, state, address

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Receive one message, whole, whatever its size; empty where the other end is gone."""
        return self.recvmsg(bufsize, 0, flags)[0]

    def _filled(self, data: bytes, size: int) -> bytes:
        """What begins with `data`, read on to a size; empty where the other end is gone before it."""
        while data and len(data) < size:
            select.select([self], [], [])
            more = super().recv(size - len(data))
            data = data + more if more else b""
        return data


def widen(descriptor: int, size: int) -> None:
    """Let a pipe hold more bytes, where the system can."""
