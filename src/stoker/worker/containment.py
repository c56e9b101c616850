"""cgroups: every process of a group is known to the kernel, whatever its parent, its session or its environment.

A group is made below the cgroup of the process that opens it, in the first hierarchy where that is allowed: cgroup v2,
then the freezer and the pids controller of v1. Root may make one, and so may a user to whom the folder is delegated,
as systemd delegates `user@UID.service`. Elsewhere there is none, and processes are contained by subreapers and
parent-death signals alone (`worker.survivors`).

A group is made in the memory hierarchy too, where there is one that counts: its peak is that of all processes of the
group together. https://docs.kernel.org/admin-guide/cgroup-v2.html and .../cgroup-v1/.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final, Iterator, Sequence

from stoker.system import system

PREFIX: Final = "stoker-"
"""Begins the name of every group that Stoker makes."""
_TURN: Final = 0.005
"""Seconds between two looks at a group whose processes were killed."""
V2: Final = ""
"""The name of the v2 hierarchy among those of v1's controllers, as /proc/PID/cgroup has it."""
ORDER: Final = (V2, "freezer", "pids")
"""The hierarchies, the best first: v2 kills a whole group at once, a frozen group of v1 cannot fork meanwhile."""
V1_COUNTER: Final = "memory.oom_control"
"""The file of a group of v1 that counts what the kernel killed in it for want of memory."""


class Containment:
    """One cgroup. `folder` holds its processes; `memory` is the folder that counts theirs, empty where none does."""

    def __init__(self, folder: str, memory: str = "") -> None:
        self.folder = folder
        self.memory = memory

    @classmethod
    def open(cls, name: str, *, below: Containment | None = None, order: Sequence[str] = ORDER) -> Containment | None:
        """Make the group `PREFIX` + `name`, in this process's cgroup or in another group; None where none can be made.

        It is empty: `add` puts processes into it, and their children are born there.
        """
        own = own_cgroups()
        folders = [below.folder] if below is not None else [own[kind] for kind in order if kind in own]
        folder = next((path for parent in folders if (path := _make(parent, name))), "")
        if not folder:
            return None
        if os.path.exists(os.path.join(folder, "memory.peak")):
            return cls(folder, folder)
        counting = own.get("memory", "") if below is None else below.memory
        return cls(folder, _make(counting, name) if counting else "")

    def add(self, pid: int) -> None:
        """Move a process into the group; 0 is this process. Raises OSError where the kernel refuses."""
        for folder in dict.fromkeys(filter(None, (self.folder, self.memory))):
            _write(os.path.join(folder, "cgroup.procs"), str(pid))

    def processes(self) -> list[int]:
        """The pids in the group and in groups below it; those that have ended are not among them."""
        return [pid for folder in _tree(self.folder) for pid in _pids(folder)]

    def kill(self) -> None:
        """Send SIGKILL to every process of the group; none of them can fork its way out."""
        if _write_if_there(os.path.join(self.folder, "cgroup.kill"), "1"):  # v2, Linux 5.14
            return
        # v1: frozen processes do not fork, and die when they are thawed. Without the freezer the caller repeats it.
        state = os.path.join(self.folder, "freezer.state")
        frozen = _write_if_there(state, "FROZEN")
        try:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            if frozen:
                _write_if_there(state, "THAWED")

    def end(self, patience: float) -> list[int]:
        """Kill until the group is empty or `patience` seconds are over; returns the pids that are left."""
        deadline = time.monotonic() + patience
        while remaining := self.processes():
            if time.monotonic() >= deadline:
                return remaining
            self.kill()
            time.sleep(_TURN)
        return []

    def close(self, *, with_memory: bool = True) -> None:
        """Remove the group, and groups below it, where they are empty; without `with_memory` not the one that counts
        memory."""
        for folder in dict.fromkeys(filter(None, (self.folder, self.memory))):
            if with_memory or folder != self.memory:
                remove_empty(folder)


def siblings() -> Iterator[str]:
    """Folders of the groups that Stoker made in this process's own cgroups."""
    own = own_cgroups()
    for parent in (own[kind] for kind in (*ORDER, "memory") if kind in own):
        with contextlib.suppress(OSError):
            yield from (os.path.join(parent, name) for name in os.listdir(parent) if name.startswith(PREFIX))


def groups_in(parent: str) -> list[str]:
    """Folders of the groups that Stoker made below a group, and of those below them."""
    try:
        names = [name for name in os.listdir(parent) if name.startswith(PREFIX)]
    except OSError:
        return []
    return [folder for name in names for folder in _tree(os.path.join(parent, name))]


def named(mark: str) -> list[Containment]:
    """The groups of this machine whose name is a mark, or one with a number behind it, wherever they are."""
    whole, beginning = f"{PREFIX}{mark}", f"{PREFIX}{mark}-"
    return [
        Containment(os.path.join(folder, name))
        for point in {point for point, _ in _mounts().values()}
        for folder, names, _ in os.walk(point)
        for name in names
        if name == whole or name.startswith(beginning)
    ]


def remove_empty(folder: str) -> None:
    """Remove a group and those below it; the kernel refuses where a process is in one of them."""
    for path in _tree(folder):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def own_cgroups() -> dict[str, str]:
    """This process's folder in each hierarchy: by the controller of v1, "" for v2."""
    return cgroups_of(os.getpid())


def cgroups_of(pid: int) -> dict[str, str]:
    """A process's folder in each hierarchy, as `own_cgroups` has them; empty for one that is gone."""
    paths: dict[str, str] = {}
    for line in system.kernel_file(f"{pid}/cgroup").decode().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    folders: dict[str, str] = {}
    for controller, (point, root) in _mounts().items():
        path = paths.get(controller, "")
        if path and (root in ("/", path) or path.startswith(root + "/")):
            folders[controller] = point + (path if root == "/" else path[len(root) :])
    return folders


def _mounts() -> dict[str, tuple[str, str]]:
    """Where each hierarchy is mounted, and which of its groups is there, by controller as in `own_cgroups`."""
    points: dict[str, tuple[str, str]] = {}
    for line in os.fsdecode(system.kernel_file("self/mountinfo")).splitlines():
        # proc(5): … root, mount point, options, optional fields, "-", type, source, options of the file system.
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = before.split(" ")[3:5]
            for controller in [V2] if kind == "cgroup2" else options.split(","):
                points.setdefault(controller, (point, root))
    return points


def _make(parent: str, name: str) -> str:
    """The folder of a new group; empty where it may not be made."""
    folder = os.path.join(parent, PREFIX + name)
    try:
        os.mkdir(folder)
    except FileExistsError:
        return folder
    except OSError:
        return ""
    return folder


def _tree(folder: str) -> list[str]:
    """A group and those below it, the deepest first."""
    return [path for path, _, _ in os.walk(folder, topdown=False)]


def _pids(folder: str) -> list[int]:
    """The pids in a group. The kernel lists a process of an outer pid namespace as 0, which is no pid to signal."""
    try:
        with open(os.path.join(folder, "cgroup.procs")) as file:
            return [pid for line in file if (pid := int(line))]
    except OSError:
        return []


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _write_if_there(path: str, text: str) -> bool:
    try:
        _write(path, text)
    except OSError:
        return False
    return True
