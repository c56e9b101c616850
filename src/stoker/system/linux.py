"""Linux, by /proc and calls of its own: without psutil, which takes 20 ms to import and is not pure Python.

https://man7.org/linux/man-pages/man5/proc.5.html
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
from typing import IO, Any, Final, Iterator

from stoker.system.portable import Stat
from stoker.system.portable import libc as libc  # noqa: PLC0414  # a name of this module, too

MESSAGE_LIMIT: Final = 96 * 1024
"""Bytes of a message that one of several readers gets whole. Linux allows about 200 KiB by default."""
STACKS: Final[int] = signal.SIGRTMIN + 11
"""The signal that asks a process for its stacks; users and schedulers use SIGUSR1 and SIGUSR2."""
PEAK_UNIT: Final = 1024
"""Bytes of what getrusage(2) counts `ru_maxrss` in."""
PROC: Final = "/proc"

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SET_PIPE_SIZE: Final = 1031  # F_SETPIPE_SZ of <fcntl.h>; named in fcntl from Python 3.10 on Linux only


def stat_of(pid: int) -> Stat | None:
    """A process; None for one that has ended or may not be seen."""
    data = _read(f"{PROC}/{pid}/stat", 1024)
    # The name is in parentheses and may have blanks and parentheses in it.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        own_ticks=int(fields[11]) + int(fields[12]),
        children_ticks=int(fields[13]) + int(fields[14]),
        started=int(fields[19]),
    )


def started_at(pid: int) -> float:
    """When a process started, in seconds since the epoch. Raises OSError for one that is not there."""
    stat = stat_of(pid)
    if stat is None:
        raise ProcessLookupError(pid)
    # Reading these two files takes 0.1 ms.
    with open("/proc/stat") as boot:
        booted = next(int(line.split()[1]) for line in boot if line.startswith("btime"))
    return booted + stat.started / _TICKS


def pids() -> set[int]:
    """The processes of this machine."""
    try:
        return {int(name) for name in os.listdir(PROC) if name.isdecimal()}
    except OSError:
        return set()


def children_of(pid: int) -> list[int]:
    """Direct children of a process, whichever of its threads started them; none for one that is gone."""
    found: list[int] = []
    try:
        for thread in threads_of(pid):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        return found
    return found


def threads_of(pid: int) -> list[str]:
    """A process's threads by their ids; none for one that is gone or may not be seen."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def environment_of(pid: int) -> bytes:
    """The environment with which a process started, a NUL behind each variable; empty where it may not be read."""
    return kernel_file(f"{pid}/environ")


def command_of(pid: int) -> str:
    """A process's command line; empty where it may not be read."""
    return kernel_file(f"{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()


def name_of(pid: int) -> str:
    """A process's name, which `name_process` gave it; empty for one that is gone."""
    return kernel_file(f"{pid}/comm").decode("utf-8", "replace").strip()


def memory_of(pid: int) -> tuple[int, int] | None:
    """A process's resident bytes, and how many of them are known to belong to files or shared memory."""
    fields = _read(f"{PROC}/{pid}/statm", 256).split()
    return (int(fields[1]) * mmap.PAGESIZE, int(fields[2]) * mmap.PAGESIZE) if len(fields) > 2 else None


def proportional_of(pid: int) -> int | None:
    """PSS in bytes, each page divided by the processes that map it; None where the kernel does not count it."""
    for line in _read(f"{PROC}/{pid}/smaps_rollup", 4096).splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return None


def descriptors_of(pid: int) -> Iterator[tuple[str, str]]:
    """A path to each descriptor of a process, and what it is; nothing where nobody may see them."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        path = f"/proc/{pid}/fd/{name}"
        try:
            yield path, os.readlink(path)
        except OSError:  # closed since the list was made
            continue


def namespace_of(pid: int) -> str:
    """The pid namespace of a process, such as "pid:[4026531836]"; empty where there are none or it may not be seen."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def kernel_file(name: str) -> bytes:
    """A file of the kernel's below /proc; empty where there is none, or it may not be read."""
    try:
        with open(f"/proc/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def reset_peak() -> None:
    """Let the kernel count this process's peak of memory anew, where it can.

    5 in clear_refs resets the high-water mark that getrusage reports (proc(5)); 10 microseconds.
    """
    try:
        _write("/proc/self/clear_refs", b"5")
    except OSError:
        return


def name_process(name: bytes) -> None:
    """Set the name of this process. Raises OSError where it cannot be set."""
    _write("/proc/self/comm", name)


def prctl(library: Any, option: int, value: int | bytes) -> None:
    """Ask the kernel for something by prctl(2), where there is such a call."""
    if library is not None:
        library.prctl(option, value, 0, 0, 0)


def end_of(pid: int) -> int:
    """A descriptor that becomes readable when a process ends. Raises OSError where the system has none."""
    if not hasattr(os, "pidfd_open"):  # a Python that was built on Linux before 5.3
        raise OSError("this Python has no descriptors of processes")
    return os.pidfd_open(pid)


def nameless_file(name: str) -> IO[bytes]:
    """An empty file that is gone when nobody has it open; `name` is seen among a process's descriptors on Linux."""
    return os.fdopen(os.memfd_create(name), "w+b")


def cpus(pid: int = 0) -> int:
    """CPUs that a process may use by its affinity; 0 is this process."""
    try:
        return len(os.sched_getaffinity(pid))
    except OSError:
        return os.cpu_count() or 1


def limits() -> tuple[int | None, int | None]:
    """CPUs and bytes of memory that a container leaves to this process; None for what is not limited."""
    quota, _, period = _read("/sys/fs/cgroup/cpu.max", 256).partition(b" ")
    memory = _read("/sys/fs/cgroup/memory.max", 256).strip()
    return (
        max(1, round(int(quota) / int(period))) if quota.isdigit() else None,
        int(memory) if memory.isdigit() else None,
    )


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep messages apart and in order, and tell of each other's end."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (here, there):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MESSAGE_LIMIT)
    return here, there


def packets(descriptor: int) -> socket.socket:
    """One end of a `packet_pair` by its descriptor."""
    return socket.socket(fileno=descriptor)


def widen(descriptor: int, size: int) -> None:
    """Let a pipe hold more bytes, where the system can."""
    try:
        fcntl.fcntl(descriptor, _SET_PIPE_SIZE, size)
    except OSError:
        return  # over the user's limit for pipes: the default size works too


def _read(path: str, size: int) -> bytes:
    """The beginning of a file; empty where it cannot be read. Called for every process, many times a second."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(size)
    except OSError:
        return b""


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)  # `open` takes ten times as long, for every step
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
