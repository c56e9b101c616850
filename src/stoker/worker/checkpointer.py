"""The program beside a step that copies its checkpoint folder to the artifact store, and back for another attempt.

    python -m stoker.worker.checkpointer CONTROL LISTENER, and a `CopyTask` as the first message on CONTROL

CONTROL and LISTENER are descriptors of sockets of `worker.boot`, which starts the program when the step first asks for
its folder. It is a process of its own, at low priority, so that it neither takes the step's interpreter nor dies with
its worker. Processes of the step connect to LISTENER:

    {"op": "restore"} → {"error": ""} once the folder has what the last attempt saved
    {"op": "saved"}   → {"error": ""} once what is there now cannot be lost by a later change of the folder

On CONTROL it gets "doubt" (a rank died), "end" (the step is over) and "seconds" (how long it may still take), and says
what the person should know. When CONTROL is closed, the job's program is dead: the last copy is finished all the same.

Below STORE/checkpoints/RUN/STEP (`checkpoints.step_place`), each node of the step has a place of its own:

    node-0/saved/000002-00000007-5b1c….json   a snapshot: every file of the folder with its digest
    node-0/objects/…                          the files by their digest, each stored once
    node-0/attempts/000002                    attempt 2 has begun: earlier ones write nothing more

A snapshot is written after its files, under a name with a part of its own digest, and an older one is removed after
that, so that at every moment the newest snapshot that can be read is whole. STORE is a folder or a URI that fsspec
knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import queue
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from functools import partial
from typing import Any, ClassVar, Final, Mapping, Sequence

import attrs

from stoker.core import wire
from stoker.core.codec import from_json, parse_json, to_json
from stoker.core.errors import BackendError, DamagedArtifact, SettingsError
from stoker.core.words import memory_text
from stoker.store import notes
from stoker.store.access import make_folders
from stoker.store.blobs import Blobs, remove_tree
from stoker.store.hashing import CHUNK, digest_of, file_has_digest
from stoker.store.remote import RemoteBlobs, open_remote
from stoker.system import system
from stoker.worker.settled import CONTAINERS, Completeness, FileState, FolderEntry, Renames, open_files, scan

PATIENCE: Final = 60.0
"""Seconds for which a store that does not answer is asked again before a step begins, and after it has ended."""
_LOOK: Final = 0.5
"""Seconds between two looks at the folder while something in it changes."""
_REST: Final = 2.0
"""Seconds between two looks while nothing does."""
_LOOK_AT_OPEN: Final = 10.0
"""Seconds between two looks at whether a file that nobody writes to is still open for writing."""
_AGAIN: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds until a copy that failed is tried again: the last of them for as long as it takes."""
_NICE: Final = 10


@attrs.frozen(kw_only=True)
class CopyTask:
    """What is copied, and where to."""

    folder: str
    """The step's checkpoint folder on this node."""
    place: str
    """The step's place in the artifact store (`worker.checkpointer.step_place`)."""
    node: int
    """The number of this node among the step's."""
    attempt: int
    keep: int
    """How many snapshots stay."""
    again: bool = False
    """Whether an earlier program for the same attempt died: the step uses the folder, and nothing is restored."""


@attrs.frozen(kw_only=True)
class Held:
    """Entries whose files are linked in a folder of their own, where the step cannot remove them."""

    entries: tuple[FolderEntry, ...]
    folder: str
    time: float


@attrs.frozen(kw_only=True)
class Copied:
    """How a copy went: what is stored of each entry now, or why it failed."""

    entries: tuple[FolderEntry, ...] = ()
    size: int = 0
    error: str = ""
    superseded: int = 0


class Copier:
    """Stores snapshots, one after another, in a thread of its own."""

    def __init__(self, task: CopyTask, snapshots: Snapshots) -> None:
        self._task = task
        self._snapshots = snapshots
        self.number = 1
        """The number of the next snapshot."""
        self._digests: dict[FileState, str] = {}
        self._stored: dict[str, Snapshot] = {}
        """By entry, the last snapshot's part of it."""
        self._orders: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[Copied] = queue.SimpleQueue()
        self.wakeup = wire.Wakeup()
        self.busy = False
        self._thread = threading.Thread(target=self._work, name="stoker-copies", daemon=True)
        self._thread.start()

    def begin_with(self, snapshot: Snapshot, entries: Sequence[FolderEntry]) -> None:
        """Take over what was restored from this node's own snapshot: it is stored already."""
        files = {file.path: file for file in snapshot.files}
        for entry in entries:
            states = [state for state in entry.files if state.path in files]
            links = {path: target for path, target in entry.links if path in snapshot.links}
            folders = [folder for folder in entry.folders if folder in snapshot.folders]
            if states or links or folders:
                self._digests.update({state: files[state.path].digest for state in states})
                part = attrs.evolve(entry, files=tuple(states), links=tuple(links.items()), folders=tuple(folders))
                self._stored[entry.name] = self._part(part, snapshot.time)

    def order(self, held: Held) -> None:
        """Store a snapshot next."""
        self.busy = True
        self._orders.put(held)

    def _work(self) -> None:
        while (held := self._orders.get()) is not None:
            try:
                copied = self._copy(held)
            except Exception as error:  # every file system behind fsspec has errors of its own; the step goes on
                copied = Copied(error=str(error) or type(error).__name__)
            remove_tree(held.folder)
            self.results.put(copied)
            self.wakeup.set()

    def _copy(self, held: Held) -> Copied:
        task = self._task
        later = self._snapshots.later_attempt(task.attempt)
        if later:
            return Copied(superseded=later)
        stored = dict(self._stored)
        for name in stored.keys() - {entry.name for entry in held.entries}:
            if not os.path.lexists(os.path.join(task.folder, name)):
                del stored[name]  # the step has removed it
        copied = []
        for entry in held.entries:
            if self._store_files(entry, held.folder):
                stored[entry.name] = self._part(entry, held.time)
                copied.append(entry)
        parts = [stored[name] for name in sorted(stored)]
        snapshot = Snapshot(
            attempt=task.attempt,
            time=held.time,
            files=tuple(file for part in parts for file in part.files),
            links={path: target for part in parts for path, target in part.links.items()},
            folders=tuple(folder for part in parts for folder in part.folders),
        )
        later = self._snapshots.later_attempt(task.attempt)
        if later:
            return Copied(superseded=later)
        self._snapshots.write(snapshot, self.number)
        self.number += 1
        self._stored = stored
        self._snapshots.prune(task.keep)
        present = {state for entry in held.entries for state in entry.files}
        self._digests = {state: digest for state, digest in self._digests.items() if state in present}
        return Copied(entries=tuple(copied), size=snapshot.size)

    def _store_files(self, entry: FolderEntry, folder: str) -> bool:
        """Store the files of an entry; False where one was written to meanwhile, so that its bytes are two states'."""
        for state in entry.files:
            if state in self._digests:
                continue
            path = os.path.join(folder, state.path)
            try:
                digest = self._snapshots.put(path)
                status = os.stat(path)
            except FileNotFoundError:
                return False  # where it could not be linked, and the step removed it
            if (status.st_ino, status.st_size, status.st_mtime_ns) != (state.inode, state.size, state.modified):
                return False
            self._digests[state] = digest
        return True

    def _part(self, entry: FolderEntry, moment: float) -> Snapshot:
        files = [
            SavedFile(
                path=state.path,
                digest=self._digests[state],
                size=state.size,
                mode=state.mode,
                modified=state.modified,
            )
            for state in entry.files
        ]
        return Snapshot(
            attempt=self._task.attempt,
            time=moment,
            files=tuple(files),
            links=dict(entry.links),
            folders=entry.folders,
        )


class Checkpointer:
    """The program's loop."""

    def __init__(self, task: CopyTask, control: socket.socket, listener: socket.socket) -> None:
        self._task = task
        self._control = control
        self._snapshots = Snapshots(task.place, task.node)
        self._copier = Copier(task, self._snapshots)
        self._state = Completeness()
        self._renames = Renames()
        self._holding = f"{os.path.dirname(task.folder)}/.held-{os.path.basename(task.folder)}-{os.getpid()}"
        self._holds = itertools.count()
        self._marked: Held | None = None
        """What the step said is complete, until it is copied."""
        self._copied: dict[str, FolderEntry] = {}
        self._restored: dict[str, FolderEntry] = {}
        """What was restored: as long as the step does not change it, some node's place has it."""
        self._open: dict[str, tuple[FolderEntry, float]] = {}
        """Entries that were held open, and when to look again."""
        self._failures = 0
        self._failing_since = 0.0
        self._error = ""
        self._retry_at = 0.0
        self._over = False
        self._deadline = float("inf")
        self._superseded = 0
        self._count = 0
        self._last = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._hear_control)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
        self._selector.register(self._copier.wakeup.descriptor, selectors.EVENT_READ, self._copier.wakeup.clear)
        if self._renames.descriptor >= 0:
            self._selector.register(self._renames.descriptor, selectors.EVENT_READ, self._renames.read)
        self._restore_error = ""

    def run(self) -> None:
        """Restore, and copy until the step is over and all that is complete is stored."""
        try:
            restored, own = self._restore()
        except Exception as error:  # every file system behind fsspec has errors of its own: the step raises it
            self._restore_error = f"the checkpoints of earlier attempts in {self._task.place} cannot be read: {error}"
            restored, own = False, None
        os.nice(_NICE)
        if not self._restore_error:
            self._send({"op": "ready"})
        make_folders(self._task.folder)
        self._look()
        if restored:
            self._state.all_complete()
            entries = scan(self._task.folder)
            self._restored = entries
            if own is not None:
                self._copier.begin_with(own, list(entries.values()))
        while True:
            for key, _ in self._selector.select(self._pause()):
                key.data()
            self._look()
            self._take_results()
            idle = self._copy_next()
            now = time.monotonic()
            if self._over and (idle or now >= self._deadline or self._gave_up(now)):
                self._end(complete=idle and not self._error)
                return

    # Before the step

    def _restore(self) -> tuple[bool, Snapshot | None]:
        """Fill the folder with what the nodes saved; returns whether there was anything, and this node's own."""
        task = self._task
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._copier.number = self._snapshots.begin(task.attempt)
                return (False, None) if task.again else self._fetch(nodes_of(task.place))
            except Exception:  # as above
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_AGAIN[0])

    def _fetch(self, nodes: Sequence[int]) -> tuple[bool, Snapshot | None]:
        task, own, beginning = self._task, None, time.monotonic()
        parent = os.path.dirname(task.folder)
        make_folders(parent)
        scratch = tempfile.mkdtemp(prefix=".restored-", dir=parent)
        taken = []
        try:
            whole = os.path.join(scratch, "folder")
            os.mkdir(whole)
            for node in sorted(nodes, key=lambda number: (number != task.node, number)):
                snapshots = self._snapshots if node == task.node else Snapshots(task.place, node)
                snapshot = self._fetch_newest(snapshots, scratch, whole)
                if snapshot is not None:
                    taken.append(snapshot)
                    own = snapshot if node == task.node else own
            if not taken:
                return False, None
            remove_tree(task.folder)
            os.rename(whole, task.folder)
        finally:
            remove_tree(scratch)
        newest = max(taken, key=lambda snapshot: (snapshot.attempt, snapshot.time))
        size = sum(snapshot.size for snapshot in taken)
        files = sum(len(snapshot.files) for snapshot in taken)
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(newest.time))
        seconds = time.monotonic() - beginning
        self._say(
            f"checkpoints restored: {files} files, {memory_text(size)}, saved {moment} by attempt "
            f"{newest.attempt}, in {seconds:.1f} s",
            restored={"attempt": newest.attempt, "time": newest.time, "files": files, "bytes": size},
        )
        return True, own

    def _fetch_newest(self, snapshots: Snapshots, scratch: str, whole: str) -> Snapshot | None:
        """The newest snapshot that is whole, put into a folder beside what is there already."""
        tried: set[str] = set()
        while names := [name for name in reversed(snapshots.names()) if name not in tried]:
            tried.add(names[0])
            folder = os.path.join(scratch, str(len(tried)))
            try:
                snapshot = snapshots.read(names[0])
                fetch_all(snapshot, snapshots, folder)
            except DamagedArtifact as error:
                self._say(f"a copy of the checkpoints is damaged, and the one before it is taken: {error}")
                remove_tree(folder)
                continue
            _merge(folder, whole)
            remove_tree(folder)
            return snapshot
        return None

    # While the step runs

    def _pause(self) -> float:
        now = time.monotonic()
        pause = _LOOK if self._state.pending(time.time()) else _REST
        if self._over:
            pause = min(_LOOK / 5, self._deadline - now)
        if self._retry_at > now:
            pause = min(pause, self._retry_at - now)
        return max(0.0, pause)

    def _look(self) -> None:
        folder = self._task.folder
        for watched in (folder, *(os.path.join(folder, name) for name in CONTAINERS)):
            self._renames.watch(watched)
        self._renames.read()
        self._state.look(scan(folder), time.time())
        self._renames.read()  # what was written to while it was looked at does not count as renamed
        for parent, name in self._renames.entries:
            path = os.path.relpath(os.path.join(parent, name), folder)
            self._state.renamed(path)

    def _copy_next(self) -> bool:
        """Order the next copy; returns whether nothing is left to be copied."""
        if self._superseded or self._restore_error:
            return True
        if self._copier.busy or time.monotonic() < self._retry_at:
            return False
        if self._marked is not None:
            held, self._marked = self._marked, None
            self._copier.order(held)
            return False
        entries = self._to_copy(self._state.complete(time.time(), self._is_open))
        if all(self._copied.get(entry.name) == entry for entry in entries):
            return True
        self._copier.order(self._hold(entries))
        return False

    def _is_open(self, entry: FolderEntry) -> bool:
        """Whether a process may still write to an entry. One that is held open, a log, is looked at seldom."""
        now = time.monotonic()
        before, again = self._open.get(entry.name, (None, 0.0))
        if before == entry and now < again:
            return True
        inodes = open_files(self._task.folder)
        is_open = any(state.inode in inodes for state in entry.files)
        if is_open:
            self._open[entry.name] = (entry, now + _LOOK_AT_OPEN)
        return is_open

    def _to_copy(self, entries: Sequence[FolderEntry]) -> list[FolderEntry]:
        return [entry for entry in entries if self._restored.get(entry.name) != entry]

    def _hold(self, entries: Sequence[FolderEntry]) -> Held:
        """Link the files of entries beside the folder; where that cannot be, their copy takes them as they are."""
        folder = f"{self._holding}/{next(self._holds)}"
        os.makedirs(folder, mode=0o700)
        whole = []
        for entry in entries:
            try:
                for path in entry.folders:
                    os.makedirs(os.path.join(folder, path), exist_ok=True)
                for state in entry.files:
                    target = os.path.join(folder, state.path)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    _link(os.path.join(self._task.folder, state.path), target)
            except FileNotFoundError:
                continue  # the step has just removed it
            whole.append(entry)
        return Held(entries=tuple(whole), folder=folder, time=time.time())

    def _take_results(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                copied = self._copier.results.get_nowait()
                self._copier.busy = False
                if copied.error:
                    self._failed(copied.error)
                elif copied.superseded:
                    self._superseded = copied.superseded
                    self._say(f"checkpoints are copied no more: attempt {copied.superseded} of the step has begun")
                else:
                    self._succeeded(copied)

    def _failed(self, error: str) -> None:
        now = time.monotonic()
        self._retry_at = now + _AGAIN[min(self._failures, len(_AGAIN) - 1)]
        self._failures += 1
        if not self._error:
            self._failing_since = now
            self._say(
                f"checkpoints do not leave this node: {error}\n  the step goes on, and the copy is tried again until "
                "it works",
                failed=error,
            )
        self._error = error

    def _succeeded(self, copied: Copied) -> None:
        if self._error:
            self._say(f"checkpoints are copied again, after {time.monotonic() - self._failing_since:.0f} s", failed="")
        self._failures, self._error, self._retry_at = 0, "", 0.0
        self._copied.update({entry.name: entry for entry in copied.entries})
        self._count += 1
        self._last = time.time()

    # Connections

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            self._selector.register(connection, selectors.EVENT_READ, lambda: self._serve(connection))

    def _serve(self, connection: socket.socket) -> None:
        """Answer the one question that comes over a connection."""
        self._selector.unregister(connection)
        with connection, contextlib.suppress(OSError, BackendError):  # the process is gone
            question = wire.unpacked(connection.recv(wire.DATAGRAM_LIMIT))
            if question["op"] == "saved" and not self._restore_error:
                self._mark()
            connection.sendall(wire.packed({"error": self._restore_error}))

    def _mark(self) -> None:
        self._look()
        self._state.all_complete()
        entries = self._to_copy(self._state.complete(time.time(), lambda entry: False))
        if self._marked is not None:
            remove_tree(self._marked.folder)  # the newer one takes its place
        self._marked = self._hold(entries)

    def _hear_control(self) -> None:
        try:
            data = self._control.recv(wire.DATAGRAM_LIMIT)
        except OSError:
            data = b""
        message: dict[str, Any] = wire.unpacked(data) if data else {"op": "end", "orderly": False, "seconds": PATIENCE}
        if not data:
            self._selector.unregister(self._control)
        if message["op"] == "doubt":
            self._look()
            self._state.doubt(time.time())
        elif message["op"] == "end" and not self._over:
            self._over = True
            self._look()
            if message["orderly"]:
                self._state.all_complete()
            else:
                self._state.doubt(time.time())
            self._retry_at = 0.0
            self._failures = 0
            self._failing_since = time.monotonic()
        if message.get("seconds") is not None:
            self._deadline = min(self._deadline, time.monotonic() + message["seconds"])

    def _gave_up(self, now: float) -> bool:
        """Whether the store has failed for so long after the step's end that nobody waits for it any more."""
        return bool(self._error) and now - self._failing_since >= PATIENCE

    def _end(self, *, complete: bool) -> None:
        left_out = self._left_out() if complete and not self._superseded and not self._restore_error else []
        if left_out:
            self._say(
                "not copied, because the step failed within seconds of writing it, or what it may refer to: "
                f"{', '.join(left_out)}\n  nobody knows whether it is whole; write a checkpoint beside and rename it, "
                "or call context.checkpoint_saved()"
            )
        if not complete and not self._superseded:
            why = self._error or "there was no time left"
            last = f"the last copy is {time.time() - self._last:.0f} s old" if self._last else "there is no copy"
            self._say(f"the last checkpoint did not leave this node: {why}\n  {last}", failed=why)
        remove_tree(self._holding)
        if complete and not self._superseded and not self._restore_error:
            remove_tree(self._task.folder)
        self._send({"op": "over", "copies": self._count, "complete": complete})

    def _left_out(self) -> list[str]:
        entries = scan(self._task.folder)
        here = {**self._restored, **self._copied}
        return sorted(name for name, entry in entries.items() if here.get(name) != entry)

    def _say(self, text: str, **facts: Any) -> None:
        self._send({"op": "say", "text": text, "facts": facts})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the job's program is dead
            self._control.sendall(wire.packed(message)[: wire.DATAGRAM_LIMIT])


def fetch_all(snapshot: Snapshot, snapshots: Snapshots, folder: str) -> None:
    """Write all that a snapshot has into a new folder; raises `DamagedArtifact` where something of it is lost."""
    os.mkdir(folder, 0o700)
    for path in snapshot.folders:
        os.makedirs(os.path.join(folder, path), exist_ok=True)
    for file in snapshot.files:
        target = os.path.join(folder, file.path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        snapshots.fetch(file, target)
    for path, target in snapshot.links.items():
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        os.symlink(target, os.path.join(folder, path))


def _merge(source: str, target: str) -> None:
    """Move what a folder has into another one; what is there already stays."""
    for parent, folders, files in os.walk(source):
        there = os.path.join(target, os.path.relpath(parent, source))
        os.makedirs(there, exist_ok=True)
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in (*files, *links):
            if not os.path.lexists(os.path.join(there, name)):
                os.rename(os.path.join(parent, name), os.path.join(there, name))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        os.symlink(source, target)  # a file system without hard links: the file is read where it is


def main() -> None:
    """Run until the step is over."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # platforms signal every process of a job; the step's end is told
    control = system.packets(int(sys.argv[1]))
    listener = socket.socket(fileno=int(sys.argv[2]))
    listener.setblocking(False)
    task = from_json(CopyTask, wire.unpacked(control.recv(wire.DATAGRAM_LIMIT)), strict=False)
    Checkpointer(task, control, listener).run()
    os._exit(0)  # a copy that nobody waits for any more may still be under way


_NODE: Final = "node-"


@attrs.frozen(kw_only=True)
class SavedFile:
    """One file of a snapshot."""

    COMPACT: ClassVar = True
    path: str
    """Below the checkpoint folder."""
    digest: str
    size: int
    """Bytes."""
    mode: int
    """Its permissions."""
    modified: int
    """Nanoseconds since the epoch."""


@attrs.frozen(kw_only=True)
class Snapshot:
    """A checkpoint folder as it was at one moment."""

    attempt: int
    """The attempt of the step that wrote it."""
    time: float
    """Seconds since the epoch, when it was found to be complete."""
    files: tuple[SavedFile, ...]
    links: Mapping[str, str] = attrs.field(factory=dict)
    """Symbolic links: path → target."""
    folders: tuple[str, ...] = ()
    """Every folder, an upper one before those below it."""
    version: int = 1

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def nodes_of(place: str) -> list[int]:
    """The numbers of the nodes that have copies at a step's place."""
    names = [name.removeprefix(_NODE) for name in notes.names(place) if name.startswith(_NODE)]
    return sorted(int(name) for name in names if name.isdecimal())


class Snapshots:
    """The snapshots of one node of a step. Store errors other than damage are raised as they come."""

    def __init__(self, place: str, node: int) -> None:
        self.uri = f"{place}/{_NODE}{node}"
        self._blobs: Blobs | None = None
        self._remote: RemoteBlobs | None = None
        if "://" in place:
            self._remote = open_remote(self.uri)
        else:
            self._blobs = Blobs(self.uri)
        self._stored: set[str] = set()

    # Reading

    def names(self) -> list[str]:
        """The names of all snapshots, the oldest first."""
        return sorted(name for name in notes.names(f"{self.uri}/saved") if name.endswith(".json"))

    def read(self, name: str) -> Snapshot:
        """A snapshot; raises `DamagedArtifact` for one that is not whole."""
        data = notes.get(f"{self.uri}/saved/{name}")
        digest = name.removesuffix(".json").rpartition("-")[2]
        if data is None or not hashlib.sha256(data).hexdigest().startswith(digest):
            raise DamagedArtifact(f"the snapshot {name} in {self.uri} is damaged", digest=digest)
        try:
            return from_json(Snapshot, parse_json(data), strict=False)
        except SettingsError as error:
            raise DamagedArtifact(f"the snapshot {name} in {self.uri} is damaged: {error}", digest=digest) from error

    def fetch(self, file: SavedFile, path: str) -> None:
        """Write a file of a snapshot to a path; raises `DamagedArtifact` where its bytes are lost or changed."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as target:
            if self._remote is not None:
                received = self._remote.get(file.digest, target.fileno())
                if received != file.digest and not file_has_digest(path, file.digest):
                    raise DamagedArtifact(f"{file.path} in {self.uri} is damaged", digest=file.digest)
            elif self._blobs is not None:
                with open(self._blobs.path(file.digest, file.size), "rb") as source:
                    shutil.copyfileobj(source, target, CHUNK)
        os.chmod(path, file.mode)
        os.utime(path, ns=(file.modified, file.modified))

    # Writing

    def begin(self, attempt: int) -> int:
        """Take the place over from earlier attempts, and remove what they did not finish; returns the number of this
        attempt's next snapshot."""
        notes.put(f"{self.uri}/attempts/{attempt:06d}", b"")
        names = self.names()
        self._sweep(names)
        own = [int(name.split("-")[1]) for name in names if name.startswith(f"{attempt:06d}-")]
        return max(own, default=0) + 1

    def later_attempt(self, attempt: int) -> int:
        """The number of an attempt that began after this one; 0 if none did."""
        numbers = [int(name) for name in notes.names(f"{self.uri}/attempts") if name.isdecimal()]
        return max([number for number in numbers if number > attempt], default=0)

    def put(self, path: str) -> str:
        """Store a file and return its digest."""
        if self._blobs is not None:
            with open(path, "rb") as source, self._blobs.writer() as writer:
                shutil.copyfileobj(source, writer, CHUNK)
            return writer.digest
        assert self._remote is not None
        with open(path, "rb", buffering=0) as source:
            digest = digest_of(iter(partial(source.read, CHUNK), b""))
        if digest not in self._stored:
            self._remote.put(path, digest)
            self._stored.add(digest)
        return digest

    def write(self, snapshot: Snapshot, number: int) -> str:
        """Write a snapshot whose files are stored, the `number`-th of its attempt; returns its name."""
        data = json.dumps(to_json(snapshot)).encode("utf-8", "surrogatepass")
        name = f"{snapshot.attempt:06d}-{number:08d}-{hashlib.sha256(data).hexdigest()[:16]}.json"
        notes.put(f"{self.uri}/saved/{name}", data)
        return name

    def prune(self, keep: int) -> None:
        """Remove all but the last `keep` snapshots, with the files that only they had."""
        names = self.names()
        older = names[:-keep]
        if older:
            for name in older:
                notes.remove(f"{self.uri}/saved/{name}")
            self._sweep(names[-keep:])

    def _sweep(self, names: list[str]) -> None:
        """Remove the files that no snapshot has; a damaged snapshot has none that anybody could read."""
        needed: set[str] = set()
        for name in names:
            try:
                needed.update(file.digest for file in self.read(name).files)
            except DamagedArtifact:
                continue
        objects = self._remote or self._blobs
        assert objects is not None
        present = set(objects.digests())
        for digest in present - needed:
            objects.delete(digest)
        self._stored = present & needed


if __name__ == "__main__":
    main()
