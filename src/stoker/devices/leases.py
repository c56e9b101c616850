"""The ledger of devices: who on this machine holds which, and who waits, for every Stoker process on it.

There is no server: whoever asks makes the changes, in one transaction on a file that all share. Each transaction first
takes away the tickets of processes that died. Who gets what is decided in `choosing`.

Simulated devices are in a file for each set of them, real ones in one. Processes in a container whose pids are its own
have files of their own too, where they share the folder with others: nobody there can tell whether these live.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence, TypeVar

import attrs

from stoker.core.codec import from_json, to_json
from stoker.core.devices import Claim, Device, Entry, Holder, Inventory, Lease, Process
from stoker.core.errors import BackendError, SettingsError
from stoker.devices import choosing
from stoker.devices.choosing import Occupant, Ticket
from stoker.devices.liveness import birth_of, family, lives, namespace

LOOK_SECONDS: Final = 2.0
"""How long an answer stands while nobody changes the ledger: after that, it is asked again who died and which strangers
came or went. Asking NVML takes tens of milliseconds where no process keeps the driver awake."""
_SETTLED_NS: Final = 50_000_000
"""Nanoseconds after which a change of a file shows in its time: kernels count that in ticks of up to 10 ms."""

_COLUMNS: Final = "ticket, claim, view, memory, run, key, attempt, pid, started, birth, devices"


@attrs.frozen(kw_only=True)
class _Look:
    """What a decision said of each that waits, and the state of the file that it was made of."""

    stamp: tuple[int, int, int]
    until: float
    found: Mapping[str, tuple[Device, ...] | str]


class Ledger:
    """This machine's accelerators and who holds them: `core.devices.Devices` on a file.

    `folder` is given, or `STOKER_LEASES`, or `stoker-leases` among the temporary files. May be used by many threads.
    """

    def __init__(
        self,
        inventory: Callable[[], Inventory],
        processes: Callable[[Inventory], tuple[Process, ...]],
        *,
        folder: Path | None = None,
    ) -> None:
        self._find = inventory
        self._processes = processes
        self._folder = folder
        self._lock = threading.RLock()
        self._found: Inventory | None = None
        self._name = ""
        self._mine: dict[str, Ticket] = {}
        self._views: dict[str, tuple[Device, ...]] = {}
        self._claims: dict[str, Claim | None] = {}
        self._uses: tuple[float, tuple[Occupant, ...]] = (0.0, ())
        self._last: _Look | None = None

    def inventory(self) -> Inventory:
        """What is there; asked once."""
        with self._lock:
            if self._found is None:
                self._found = self._find()
                self._name = self._file_name()
            return self._found

    @property
    def path(self) -> Path:
        """The file of this machine's ledger, whether or not it is there yet."""
        folder = self._folder
        if folder is None:
            named = os.environ.get(VARIABLE, "")
            folder = Path(named).expanduser() if named else Path(tempfile.gettempdir(), "stoker-leases")
        self.inventory()
        return (folder / self._name).absolute()

    def impossible(self, claim: Claim) -> str:
        """Why nothing that this machine has can ever satisfy a claim; empty where something can."""
        return choosing.impossible(claim, self.inventory().devices)

    def claim(self, claim: Claim, holder: Holder) -> str:
        """Join the line; the ticket to ask with. A claim that is impossible here is an error: it would wait forever."""
        reason = self.impossible(claim)
        if reason:
            raise BackendError(reason, fix="ask for what `stoker devices` shows, or run the step on another stack")
        ticket = Ticket(id=secrets.token_hex(8), holder=holder, claim=claim, view=self.inventory().devices)
        with self._lock:
            transact(self.path, lambda connection: _join(connection, ticket))
            self._mine[ticket.id] = ticket
        return ticket.id

    def answer(self, ticket: str) -> Lease | str:
        """The lease once it is this ticket's turn, else why it still waits, in words for a person.

        A ticket whose line was lost with a damaged file joins again, at the end.
        """
        with self._lock:
            mine = self._mine.get(ticket)
            if mine is not None and mine.devices:
                return _lease(mine)
            told = self._remembered(ticket)
            if told:
                return told
            uses = self._strangers()
            answered = transact(self.path, lambda connection: self._answered(connection, ticket, uses))
            if isinstance(answered, str):
                return answered
            if mine is not None:
                self._mine[ticket] = answered
            return _lease(answered)

    def release(self, ticket: str) -> None:
        """Give back what the ticket holds, or leave the line; a ticket that is gone is fine."""
        with self._lock:
            self._mine.pop(ticket, None)
            if self.path.exists():
                transact(self.path, lambda connection: _leave(connection, (ticket,)))

    def hand_over(self, ticket: str, pid: int) -> bool:
        """Let the lease live as long as another process; False if that one is gone, or not to be seen from here."""
        import psutil

        try:
            started = float(psutil.Process(pid).create_time())
        except psutil.Error:
            return False
        birth = birth_of(pid, started)
        if not birth:
            return False
        values = (pid, started, birth, ticket)
        with self._lock:

            def change(connection: sqlite3.Connection) -> bool:
                changed = connection.execute(
                    "UPDATE tickets SET pid = ?, started = ?, birth = ? WHERE ticket = ? AND devices <> ''", values
                )
                return bool(changed.rowcount)

            return transact(self.path, change)

    def holds(self, ticket: str) -> bool:
        """Whether a ticket is in the ledger with its devices: also one that another process had asked for."""
        with self._lock:
            if not self.path.exists():
                return False
            tickets = transact(self.path, self._tickets)
            return any(one.id == ticket and one.devices for one in tickets)

    def entries(self) -> Sequence[Entry]:
        """Everything in the ledger, holders first, then those who wait in their order."""
        with self._lock:
            if not self.path.exists():
                return ()
            # The first look learns what others see; what strangers do there is asked then.
            transact(self.path, self._tickets)
            uses = self._strangers()
            tickets = transact(self.path, self._tickets)
        found = choosing.decide(tickets, uses)
        holders = [_entry(ticket, "") for ticket in tickets if ticket.devices]
        return holders + [_entry(ticket, found[ticket.id]) for ticket in tickets if not ticket.devices]

    def _file_name(self) -> str:
        """The ledger's name; what this process sees is kept too, so that no damaged line is asked for it."""
        assert self._found is not None  # asked once it is
        view = _view(self._found.devices)
        self._views[view] = self._found.devices
        name = f"simulated-{view[:16]}" if self._found.simulated else "devices"
        return "-".join(filter(None, (name, namespace()))) + ".sqlite"

    def _remembered(self, ticket: str) -> str:
        """Why a ticket waits, if it was decided a moment ago and the file has not changed since."""
        if self._last is None or self._last.until < time.monotonic() or self._last.stamp != _stamp(self.path):
            return ""
        told = self._last.found.get(ticket)
        return told if isinstance(told, str) else ""

    def _strangers(self) -> tuple[Occupant, ...]:
        """Who computes on the devices that anybody in the ledger sees, asked every few moments."""
        until, uses = self._uses
        if until >= time.monotonic():
            return uses
        seen = {device.uuid: device for view in self._views.values() for device in view}
        seen.update((device.uuid, device) for device in self.inventory().devices)
        running = self._processes(attrs.evolve(self.inventory(), devices=tuple(seen.values())))
        families = {pid: family(pid) for pid in {process.pid for process in running}}
        uses = tuple(
            Occupant(uuid=one.uuid, pid=one.pid, memory=one.memory, family=families[one.pid]) for one in running
        )
        self._uses = (time.monotonic() + LOOK_SECONDS, uses)
        return uses

    def _answered(self, connection: sqlite3.Connection, name: str, uses: Sequence[Occupant]) -> Ticket | str:
        """In a transaction: the ticket with its devices if it has or gets some, else why it waits."""
        tickets = self._tickets(connection)
        ticket = next((one for one in tickets if one.id == name), None)
        if ticket is None:
            ticket = self._rejoined(connection, name)
            tickets.append(ticket)
        if ticket.devices:
            return ticket
        found = choosing.decide(tickets, uses)
        outcome = found[name]
        self._last = None
        if not isinstance(outcome, str):
            assert ticket.claim is not None  # only what is understood is given anything
            uuids = tuple(device.uuid for device in outcome)
            given = attrs.evolve(ticket, devices=uuids, memory=choosing.part(ticket.claim))
            values = (" ".join(uuids), given.memory, name)
            connection.execute("UPDATE tickets SET devices = ?, memory = ? WHERE ticket = ?", values)
            return given
        stamp = _stamp(self.path)
        # What was written a moment ago may be written again without a change of the file's time.
        if not connection.total_changes and stamp[1] < time.time_ns() - _SETTLED_NS:
            self._last = _Look(stamp=stamp, until=time.monotonic() + LOOK_SECONDS, found=found)
        return outcome

    def _rejoined(self, connection: sqlite3.Connection, name: str) -> Ticket:
        ticket = self._mine.get(name)
        if ticket is None:
            raise BackendError(f"there is no ticket '{name}' in the ledger of devices {self.path}")
        _join(connection, ticket)
        return ticket

    def _tickets(self, connection: sqlite3.Connection) -> list[Ticket]:
        """In a transaction: every line whose process lives, in order; the others are taken away."""
        rows = connection.execute(f"SELECT {_COLUMNS} FROM tickets ORDER BY number").fetchall()
        alive: dict[tuple[int, float, str], bool] = {}
        for row in rows:
            process = row[7:10]
            if process not in alive:
                alive[process] = lives(*process)
        _leave(connection, [row[0] for row in rows if not alive[row[7:10]]])
        if any(row[2] not in self._views for row in rows):
            for view, text in connection.execute("SELECT view, devices FROM views"):
                self._views.setdefault(view, _devices(text))
        self._claims = {row[1]: self._claims.get(row[1]) or _claim(row[1]) for row in rows}
        return [self._ticket(row) for row in rows if alive[row[7:10]]]

    def _ticket(self, row: tuple[Any, ...]) -> Ticket:
        name, claim, view, memory, run, key, attempt, pid, started, _, devices = row
        return Ticket(
            id=name,
            holder=Holder(run=run, key=key, attempt=attempt, pid=pid, started=started),
            claim=self._claims[claim],
            view=self._views.get(view, ()),
            devices=tuple(devices.split()),
            memory=memory,
        )


def _join(connection: sqlite3.Connection, ticket: Ticket) -> None:
    holder = ticket.holder
    birth = birth_of(holder.pid, holder.started)
    if not birth:
        raise BackendError(
            f"the process {holder.pid} that claims devices for step '{holder.key}' of run {holder.run} has ended",
            fix="claim devices for a process that lives as long as the step",
        )
    view = _view(ticket.view)
    connection.execute("INSERT OR REPLACE INTO views VALUES (?, ?)", (view, _json(ticket.view)))
    values = (ticket.id, _json(ticket.claim), view, ticket.memory, holder.run, holder.key, holder.attempt)
    connection.execute(
        f"INSERT INTO tickets ({_COLUMNS}) VALUES ({', '.join('?' * 11)})",
        (*values, holder.pid, float(holder.started), birth, " ".join(ticket.devices)),
    )


def _leave(connection: sqlite3.Connection, tickets: Iterable[str]) -> None:
    gone = [(ticket,) for ticket in tickets]
    if gone:
        connection.executemany("DELETE FROM tickets WHERE ticket = ?", gone)
        connection.execute("DELETE FROM views WHERE view NOT IN (SELECT view FROM tickets)")


def _lease(ticket: Ticket) -> Lease:
    devices = {device.uuid: device for device in ticket.view}
    return Lease(ticket=ticket.id, devices=tuple(devices[uuid] for uuid in ticket.devices), memory=ticket.memory)


def _entry(ticket: Ticket, outcome: tuple[Device, ...] | str) -> Entry:
    return Entry(
        ticket=ticket.id,
        holder=ticket.holder,
        claim=ticket.claim or Claim(count=len(ticket.devices)),
        devices=ticket.devices,
        memory=ticket.memory,
        waits=outcome if isinstance(outcome, str) else "its turn has come",
    )


def _json(value: Any) -> str:
    return json.dumps(to_json(value), separators=(",", ":"), sort_keys=True)


def _view(devices: tuple[Device, ...]) -> str:
    return hashlib.sha256(_json(devices).encode()).hexdigest()[:32]


def _devices(text: str) -> tuple[Device, ...]:
    """A view; nothing of one that was damaged, or that a newer version wrote in words that this one does not know."""
    try:
        return from_json(tuple[Device, ...], json.loads(text), strict=False)
    except (ValueError, SettingsError):
        return ()


def _claim(text: str) -> Claim | None:
    try:
        return from_json(Claim, json.loads(text), strict=False)
    except (ValueError, SettingsError):
        return None


def _stamp(path: Path) -> tuple[int, int, int]:
    """What tells one state of the file from another. It is not opened: to close it would drop SQLite's locks on it.

    https://www.sqlite.org/howtocorrupt.html, "Posix advisory locks canceled by a separate thread doing close()".
    """
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_mtime_ns, found.st_size


T = TypeVar("T")

VARIABLE: Final = "STOKER_LEASES"
VERSION: Final = 1
"""Of the tables. A Stoker that knows another one must not guess, and refuses."""

BUSY_SECONDS: Final = 30.0
"""How long a writer waits for others; a transaction takes a millisecond, so this is met when one was stopped inside."""

_TABLES: Final = (
    """CREATE TABLE tickets (
        number INTEGER PRIMARY KEY AUTOINCREMENT, ticket TEXT NOT NULL UNIQUE, claim TEXT NOT NULL, view TEXT NOT NULL,
        memory INTEGER NOT NULL, run TEXT NOT NULL, key TEXT NOT NULL, attempt INTEGER NOT NULL, pid INTEGER NOT NULL,
        started REAL NOT NULL, birth TEXT NOT NULL, devices TEXT NOT NULL,
        CHECK (typeof(memory) || typeof(attempt) || typeof(pid) || typeof(started) = 'integerintegerintegerreal'),
        CHECK (typeof(ticket) || typeof(claim) || typeof(birth) || typeof(devices) = 'texttexttexttext'))""",
    "CREATE TABLE views (view TEXT PRIMARY KEY, devices TEXT NOT NULL CHECK (typeof(devices) = 'text'))",
    f"PRAGMA user_version = {VERSION}",
)
"""`devices` of a ticket: UUIDs, none while it waits. A view: the devices that a ticket's holder sees, as JSON. The
checks keep out what a damaged file may tell."""

_LOG: Final = logging.getLogger(__name__)


def transact(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """What some work in a transaction of its own returns; a ledger that is missing or damaged is begun anew."""
    with _explained(path):
        try:
            return _transaction(path, work)
        except (FileNotFoundError, sqlite3.DatabaseError) as error:
            if not _is_damage(error):
                raise
            _mend(path)
        return _transaction(path, work)


def _transaction(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """What some work returns, all of it kept or nothing. One connection each time: none to lose by a fork."""
    if not path.exists():
        raise FileNotFoundError(path)
    # mode=rw: SQLite would make a missing file, for this user alone.
    with contextlib.closing(_opened(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            raise sqlite3.DatabaseError("the file has no tables")
        if version != VERSION:
            raise BackendError(
                f"the ledger of devices {path} has version {version}; this Stoker knows version {VERSION}",
                fix=f"use one version of Stoker on this machine, or set {VARIABLE} to another folder: "
                "the two will then not know of each other's devices",
            )
        result = work(connection)
        connection.execute("COMMIT")
        return result


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    # Nothing here need survive the machine's end: no holder does. The death of processes is survived without syncing.
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _is_damage(error: Exception) -> bool:
    # SQLite's own word for it is the plain class; its subclasses are locks, rights and full disks.
    return isinstance(error, FileNotFoundError) or type(error) is sqlite3.DatabaseError


def _mend(path: Path) -> None:
    """Make the ledger where it is missing; move a damaged one aside and begin anew with what it still tells.

    Nobody waits for a person: whatever can be read of living holders goes along, and what cannot be read was at most
    the lease of a step whose processes are on its devices, which are passed over as somebody else's until it ends.
    """
    _make_folder(path.parent)
    with _alone(path.parent):
        if path.exists() and _is_sound(path):
            return
        found = _salvaged(path) if path.exists() else []
        descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix="new-")
        os.fchmod(descriptor, 0o666)
        os.close(descriptor)
        with contextlib.closing(_opened(Path(fresh))) as connection:
            for statement in _TABLES:
                connection.execute(statement)
            for table, row in found:
                connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        if path.exists():
            aside = path.with_suffix(".damaged")
            # Its journal belongs to it: SQLite must not play it into the new one.
            for end in ("-journal", ""):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{path}{end}", f"{aside}{end}")
            _LOG.warning("the ledger of devices %s was damaged; %s rows were saved, see %s", path, len(found), aside)
        os.replace(fresh, path)


def _make_folder(folder: Path) -> None:
    """The folder, writable for everyone from the first moment; one that somebody has made stays as it is.

    It is not sticky. In a sticky one SQLite cannot take away the journal that another user's crashed process left
    (tried: "disk I/O error" for everyone until that user comes back), and Linux with `fs.protected_regular` lets nobody
    open another user's files for creating, as SQLite opens journals. Whoever may write a ledger that all users share
    can spoil it in either case.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = tempfile.mkdtemp(dir=folder.parent, prefix=folder.name)
    os.chmod(fresh, 0o777)
    try:
        os.rename(fresh, folder)
    except OSError:
        os.rmdir(fresh)
        if not folder.is_dir():
            raise


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time makes or mends; the lock goes with the process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_sound(path: Path) -> bool:
    try:
        found = _transaction(path, lambda connection: connection.execute("PRAGMA quick_check(1)").fetchone())
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return False
        raise
    return bool(found == ("ok",))


def _salvaged(path: Path) -> list[tuple[str, tuple[Any, ...]]]:
    """(table, row) of whatever a damaged ledger still tells."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_opened(path)) as connection:
        for table in ("views", "tickets"):
            with contextlib.suppress(sqlite3.Error):
                for row in connection.execute(f"SELECT * FROM {table}"):
                    found.append((table, row))
    return found


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = " ".join(str(error).split())
        fix = f"set {VARIABLE} to a folder that every user of this machine may write to"
        if "locked" in text:
            fix = "another process has held it for half a minute: end it, it may be stopped inside a transaction"
        elif "full" in text or "No space" in text:
            fix = f"free space on its disk, or set {VARIABLE} to a folder on another one"
        raise BackendError(f"the ledger of devices {path} cannot be used: {text}", fix=fix) from error
