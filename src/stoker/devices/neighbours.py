"""The ledgers of a machine's users: where this user's is, what the others' say, and whether a ticket's process runs.

Each user has a folder of his own among the temporary files, in which only he can write. Beside a ledger lies a list of
the devices that it has leased, which everybody can read: a plain file that is replaced as a whole, because whoever may
read an SQLite file may lock it, too. Another user can therefore neither change nor hold up this user's ledger; he can
only say that he holds devices, for processes that are his.

A folder, a link or a file of somebody else that has the name of this user's folder is passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.core.devices import Holder
from stoker.core.errors import BackendError
from stoker.devices.choosing import Ticket
from stoker.system import system

SAME_START: Final = 2.0
"""Seconds by which two readings of one process's start may differ: they are rounded, and relative to the kernel's time
of the boot, which moves a little when the clock is set. A pid is not reused that fast."""

_GONE: Final = ("Z", "X", "x")
"""States of proc(5) of a process that has ended: zombie and dead."""


def birth_of(pid: int, started: float | None) -> str:
    """A process's start in the kernel's count, which setting the clock does not move; empty for one that has ended.

    `started` is the start that was recorded, in seconds since the epoch: a process with another start is not the same.
    None where the process is known to be the one that is meant.
    """
    status = system.stat_of(pid)
    if started is None:
        return "" if status is None or status.state in _GONE else f"{_boot()} {status.started}"
    if status is None:
        return f"?{pid}" if _is_alive_without_proc(pid, started) else ""
    # This process runs, however far the clock was set since its start was recorded.
    if status.state in _GONE or (pid != os.getpid() and not _has_start(pid, started)):
        return ""
    return f"{_boot()} {status.started}"


def is_alive(pid: int, started: float, birth: str) -> bool:
    """Whether the process with this pid and `birth_of` still runs."""
    status = system.stat_of(pid)
    if status is None:
        return _is_alive_without_proc(pid, started)
    if status.state in _GONE:
        return False
    return birth == f"{_boot()} {status.started}" if " " in birth else _has_start(pid, started)


def family(pid: int) -> frozenset[int]:
    """The pids of a process and of its ancestors; none for one that cannot be seen from here."""
    import psutil

    try:
        process = psutil.Process(pid)
        return frozenset((pid, *(parent.pid for parent in process.parents())))
    except psutil.Error:
        return frozenset()


def has_ended(pid: int) -> bool:
    """Whether no process has a pid; False inside a container, where drivers list the pids of the host."""
    if namespace():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # another user's process
    return False


def is_this_boot(boot: str) -> bool:
    """Whether the machine has not been started again since a `birth_of` was taken: `boot` is its first word."""
    return boot == _boot()


def namespace() -> str:
    """The id of a container's pid namespace, which tells it from others that share a folder; empty outside of
    containers.
    """
    # The first namespace has had this number since Linux 3.8: PROC_PID_INIT_INO in include/linux/proc_ns.h.
    link = system.namespace_of(os.getpid())
    return "" if link == f"pid:[{0xEFFFFFFC}]" else link.partition("[")[2].rstrip("]")


def _boot() -> str:
    global _BOOT
    if not _BOOT:
        _BOOT = system.kernel_file("sys/kernel/random/boot_id").decode("ascii").strip() or "boot"
    return _BOOT


_BOOT = ""


def _has_start(pid: int, started: float) -> bool:
    import psutil

    try:
        return abs(psutil.Process(pid).create_time() - started) <= SAME_START
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _is_alive_without_proc(pid: int, started: float) -> bool:
    """Whether a process runs that /proc does not show: none has the pid, this is not Linux, or it is hidden."""
    import psutil

    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's process
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and _has_start(pid, started)
    except psutil.Error:
        # Hidden (proc(5), hidepid): only its existence is known.
        return True


PREFIX: Final = "stoker-leases-"
"""What the folders' names begin with; the user's id follows."""
VERSION: Final = 1
"""The version of the lists; lists of other versions are not read."""
_LARGEST: Final = 1_000_000
"""Bytes of a list that are read: a thousand leases have 300 kB."""
_FIELDS: Final[Mapping[str, type]] = {
    "ticket": str,
    "run": str,
    "key": str,
    "attempt": int,
    "pid": int,
    "started": float,
    "birth": str,
    "devices": str,
    "memory": int,
}
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_.\[\]/-]")


def own_folder(*, make: bool) -> Path:
    """The folder of this user's ledgers. Where there is none: with `make` a new one, else the path that one would have.

    `BackendError` where every place for it is taken by somebody else.
    """
    candidates = list(_candidates())
    for folder in candidates:
        if _owner(folder) == os.geteuid():
            return folder
    for folder in candidates:
        if not make:
            if not os.path.lexists(folder):
                return folder
            continue
        with contextlib.suppress(OSError):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Not readable: whoever can open a folder can hold its lock. Who knows a list's name can read the list.
            folder.mkdir(mode=0o711)
        if _owner(folder) == os.geteuid():
            return folder
    places = ", ".join(map(str, candidates))
    raise BackendError(
        f"there is no place for the ledger of devices: {places} cannot be made, or belong to others",
        fix="set STOKER_LEASES to a folder in which only you can write",
    )


def publish(ledger: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the list of the devices that a ledger has leased; `rows` have the columns of its tickets."""
    path = _list_path(ledger)
    text = json.dumps({"version": VERSION, "leases": [{name: row[name] for name in _FIELDS} for row in rows]})
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8") == text:
            return
    elsewhere = path.with_suffix(".new")  # the ledger's lock is held: nobody else writes it
    descriptor = os.open(elsewhere, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o644)
        file.write(text)
    os.replace(elsewhere, path)


def leases_of_others(ledger: Path) -> list[Ticket]:
    """The leases in the lists of all other ledgers of the same devices, of processes that live and are their users'."""
    tickets = []
    for folder in _folders():
        if folder == ledger.parent:
            continue
        user = _owner(folder)
        if user is not None:
            tickets += [
                ticket for row in _rows(folder / _list_path(ledger).name, user) for ticket in _ticket(row, user)
            ]
    return tickets


def _candidates() -> Iterator[Path]:
    """Where this user's folder may be: among the temporary files, where others look for it, else in the home."""
    yield Path(tempfile.gettempdir(), f"{PREFIX}{os.geteuid()}").absolute()
    with contextlib.suppress(RuntimeError):  # a user without a home
        # A home may be on several machines at once. /run/user is no place: it goes when the user logs out.
        yield Path.home() / ".cache" / "stoker" / f"leases-{os.uname().nodename}"


def _folders() -> list[Path]:
    """All folders of ledgers, those of other users and this user's."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        return [Path(entry.path).absolute() for entry in entries if entry.name.startswith(PREFIX)]
    return []


def _owner(folder: Path) -> int | None:
    """The user who alone can write in a folder; None for anything else, as for a link to a folder."""
    try:
        status = os.lstat(folder)
    except OSError:
        return None
    return status.st_uid if stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022 else None


def _list_path(ledger: Path) -> Path:
    return ledger.with_suffix(".leases.json")


def _rows(path: Path, user: int) -> list[Mapping[str, Any]]:
    """The rows of a list that a user wrote; none of one that is no such list. Waits for nothing, follows no link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != user or status.st_size > _LARGEST:
            return []
        try:
            document = json.loads(file.read(_LARGEST))
        except (ValueError, RecursionError):
            return []
    rows = document.get("leases") if isinstance(document, dict) and document.get("version") == VERSION else ()
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _ticket(row: Mapping[str, Any], user: int) -> Iterator[Ticket]:
    """The ticket of a row, if it is well formed and its process lives and belongs to the user, or the user is root."""
    if any(type(row.get(name)) is not kind for name, kind in _FIELDS.items()):
        return
    pid = row["pid"]
    if not 0 < pid < 2**31 or not is_alive(pid, row["started"], row["birth"]):
        return
    if user and _user_of(pid) not in (user, None):
        return
    run = f"{_NOT_PLAIN.sub('?', row['run'])[:80]} of {_name_of(user)}"
    yield Ticket(
        id=f"{user}:{row['ticket']}",
        holder=Holder(
            run=run, key=_NOT_PLAIN.sub("?", row["key"])[:200], attempt=row["attempt"], pid=pid, started=row["started"]
        ),
        claim=None,
        view=(),
        devices=tuple(row["devices"].split()),
        memory=max(0, row["memory"]),
    )


def _user_of(pid: int) -> int | None:
    """The user of a process; None where that is hidden (proc(5), hidepid)."""
    import psutil

    try:
        return int(psutil.Process(pid).uids().effective)
    except psutil.Error:
        return None


def _name_of(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
