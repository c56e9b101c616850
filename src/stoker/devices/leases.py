"""The ledger of devices: which Stoker process of this machine holds which devices, and which processes wait.

There is no server. Every process changes the ledger itself, in one transaction on a shared SQLite file. Each
transaction first deletes the tickets of processes that have ended, once nothing lives that they started: as long as
something does, its devices are in quarantine. `choosing` decides which ticket gets which devices.

Real devices share one file; each set of simulated devices has its own. A container with a pid namespace of its own also
has its own file, because processes outside of it cannot be checked from inside.

Each user of the machine has ledgers of his own. Who takes devices looks at the lists of the other users' leases
(`devices.neighbours`), takes the devices in his own ledger, which publishes them, and looks again: of two users who
take one device at the same moment, at least one sees the other and gives it back before his step knows of it.
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

from stoker.core.codec import from_json, parse_json, to_json
from stoker.core.devices import Claim, Device, Entry, Holder, Inventory, Lease, Process
from stoker.core.errors import BackendError, SettingsError
from stoker.devices import choosing, neighbours
from stoker.devices.choosing import Occupant, Ticket
from stoker.devices.neighbours import birth_of, family, has_ended, is_alive, is_this_boot, namespace

T = TypeVar("T")

VARIABLE: Final = "STOKER_LEASES"
VERSION: Final = 1
"""The version of the tables. Another version is refused."""

BUSY_SECONDS: Final = 30.0
"""Seconds for which a writer waits for others. A transaction takes a millisecond; the limit is reached when a process
is stopped inside of one."""

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
"""A ticket's `devices` are UUIDs, empty while it waits. A view has the devices that a ticket's holder sees, as JSON.
The checks reject rows of a damaged file."""

_LOG: Final = logging.getLogger(__name__)

LOOK_SECONDS: Final = 2.0
"""Seconds for which a decision is reused while the ledger does not change. After that, ended processes and processes of
others on the devices are looked for again. NVML takes tens of milliseconds where no process keeps the driver awake."""
_SETTLED_NS: Final = 50_000_000
"""Nanoseconds after which a change of a file shows in its modification time: kernels count in ticks of up to 10 ms."""

_QUARANTINED: Final = "-"
"""Stands in a ticket's name before the pid of a process that does not end; other tickets are hexadecimal."""
_COLUMNS: Final = "ticket, claim, view, memory, run, key, attempt, pid, started, birth, devices"


@attrs.frozen(kw_only=True)
class _Decision:
    """The last decision about all waiting tickets."""

    stamp: tuple[int, int, int]
    """The state of the file that it was made from (`_stamp`)."""
    until: float
    """The monotonic time until which it may be reused."""
    outcomes: Mapping[str, tuple[Device, ...] | str]
    """By ticket: the devices that it may take, or why it waits."""


class Ledger:
    """This machine's accelerators and their holders: `core.devices.Devices` on a file.

    `survivors` ends what a holder that is gone left here and returns the pids that live; the holder is named by its pid
    and its start in clock ticks. The folder is `folder`, else `STOKER_LEASES`, else
    `devices.neighbours.own_folder`. Safe for use by several threads.
    """

    def __init__(
        self,
        inventory: Callable[[], Inventory],
        processes: Callable[[Inventory], tuple[Process, ...]],
        *,
        survivors: Callable[[int, str], tuple[int, ...]] | None = None,
        folder: Path | None = None,
    ) -> None:
        self._probe = inventory
        self._processes = processes
        self._survivors = survivors or _no_survivors
        self._folder = folder
        self._own_folder: Path | None = None
        self._lock = threading.RLock()
        self._inventory: Inventory | None = None
        self._name = ""
        self._own_tickets: dict[str, Ticket] = {}
        self._views: dict[str, tuple[Device, ...]] = {}
        self._claims: dict[str, Claim | None] = {}
        self._occupants: tuple[float, tuple[Occupant, ...]] = (0.0, ())
        self._decision: _Decision | None = None

    def inventory(self) -> Inventory:
        """The machine's devices; probed once."""
        with self._lock:
            if self._inventory is None:
                self._inventory = self._probe()
                self._name = self._file_name()
            return self._inventory

    @property
    def path(self) -> Path:
        """The file of this machine's ledger, whether or not it exists."""
        folder = self._named_folder() or self._own_folder or neighbours.own_folder(make=False)
        self.inventory()
        return (folder / self._name).absolute()

    def _named_folder(self) -> Path | None:
        """The folder that somebody chose: the ledgers in it stand alone."""
        variable = os.environ.get(VARIABLE, "")
        return self._folder or (Path(variable).expanduser() if variable else None)

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction, and publish what it changes before others can see it."""
        if self._named_folder() is not None:
            return transact(self.path, work)
        path = self.path

        def published(connection: sqlite3.Connection) -> T:
            result = work(connection)
            if connection.total_changes:
                cursor = connection.execute("SELECT * FROM tickets WHERE devices <> '' ORDER BY number")
                names = [column[0] for column in cursor.description]
                neighbours.publish(path, [dict(zip(names, row)) for row in cursor])
            return result

        return transact(path, published)

    def _others(self) -> list[Ticket]:
        """The leases of this machine's other users."""
        return [] if self._named_folder() is not None else neighbours.leases_of_others(self.path)

    def impossible(self, claim: Claim) -> str:
        """Why no devices of this machine can ever satisfy a claim; empty where some can."""
        return choosing.impossible(claim, self.inventory().devices)

    def claim(self, claim: Claim, holder: Holder) -> str:
        """Queue a claim and return its ticket. A claim that is impossible here is an error: it would wait forever."""
        reason = self.impossible(claim)
        if reason:
            raise BackendError(reason, fix="ask for what `stoker devices` shows, or run the step on another stack")
        ticket = Ticket(id=secrets.token_hex(8), holder=holder, claim=claim, view=self.inventory().devices)
        with self._lock:
            if self._named_folder() is None:
                self._own_folder = neighbours.own_folder(make=True)
            self._transact(lambda connection: _join(connection, ticket))
            self._own_tickets[ticket.id] = ticket
        return ticket.id

    def answer(self, ticket: str) -> Lease | str:
        """The lease of a ticket that has its devices, else why it waits, in words for a person.

        A ticket that was lost with a damaged file is queued again, at the end.
        """
        with self._lock:
            mine = self._own_tickets.get(ticket)
            if mine is not None and mine.devices:
                return _lease(mine)
            reason = self._cached_reason(ticket)
            if reason:
                return reason
            uses = self._strangers()
            others = self._others()
            outcome = self._transact(lambda connection: self._decide(connection, ticket, uses, others))
            if isinstance(outcome, Ticket):
                outcome = self._confirm(outcome, uses)
            if isinstance(outcome, str):
                return outcome
            if mine is not None:
                self._own_tickets[ticket] = outcome
            return _lease(outcome)

    def release(self, ticket: str) -> None:
        """Give back a ticket's devices, or leave the queue. Does nothing for a ticket that is not in the ledger."""
        with self._lock:
            self._own_tickets.pop(ticket, None)
            if self.path.exists():
                self._transact(lambda connection: _leave(connection, (ticket,)))

    def hand_over(self, ticket: str, pid: int) -> bool:
        """Tie the lease to another process; False if that process has ended or cannot be seen from here."""
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

            return self._transact(change)

    def quarantine(self, ticket: str, pids: Sequence[int]) -> None:
        """Tie a lease to processes of its attempt that do not end: the devices are free when the last of them has."""
        births = {pid: birth for pid in pids if (birth := birth_of(pid, None))}
        with self._lock:
            self._own_tickets.pop(ticket, None)

            def change(connection: sqlite3.Connection) -> None:
                row = connection.execute(f"SELECT {_COLUMNS} FROM tickets WHERE ticket = ?", (ticket,)).fetchone()
                for pid, birth in () if row is None else births.items():
                    values = (f"{ticket}{_QUARANTINED}{pid}", *row[1:7], pid, 0.0, birth, row[10])
                    places = ", ".join("?" * len(values))
                    connection.execute(f"INSERT OR REPLACE INTO tickets ({_COLUMNS}) VALUES ({places})", values)
                _leave(connection, (ticket,))

            self._transact(change)

    def dismiss(self, uuid: str) -> tuple[int, ...]:
        """Take a device out of quarantine although processes live; returns their pids, none where it is in none."""
        with self._lock:
            if not self.path.exists():
                return ()

            def change(connection: sqlite3.Connection) -> tuple[int, ...]:
                pids: list[int] = []
                for ticket in self._tickets(connection):
                    if ticket.survivors and uuid in ticket.devices:
                        pids += ticket.survivors
                        rest = " ".join(device for device in ticket.devices if device != uuid)
                        connection.execute("UPDATE tickets SET devices = ? WHERE ticket = ?", (rest, ticket.id))
                        if not rest:
                            _leave(connection, (ticket.id,))
                return tuple(pids)

            return self._transact(change)

    def holds(self, ticket: str) -> bool:
        """Whether a ticket holds devices, also one that another process claimed."""
        with self._lock:
            if not self.path.exists():
                return False
            tickets = self._transact(self._tickets)
            return any(one.id == ticket and one.devices for one in tickets)

    def entries(self) -> Sequence[Entry]:
        """All entries of the ledger: holders first, then waiting tickets in the order of the queue."""
        with self._lock:
            tickets = self._others()
            if self.path.exists():
                # The first transaction learns which devices other tickets see; then their processes are asked for.
                self._transact(self._tickets)
                uses = self._strangers()
                tickets += self._transact(self._tickets)
            elif tickets:
                uses = self._strangers()
            else:
                return ()
        outcomes = choosing.decide(tickets, uses)
        holders = [_entry(ticket, "") for ticket in tickets if ticket.devices]
        return holders + [_entry(ticket, outcomes[ticket.id]) for ticket in tickets if not ticket.devices]

    def _file_name(self) -> str:
        """The ledger's file name. Also remembers this process's view, so that it is never read from a damaged file."""
        assert self._inventory is not None  # called after the probe
        view = _view(self._inventory.devices)
        self._views[view] = self._inventory.devices
        name = f"simulated-{view[:16]}" if self._inventory.simulated else "devices"
        return "-".join(filter(None, (name, namespace()))) + ".sqlite"

    def _cached_reason(self, ticket: str) -> str:
        """Why a ticket waits, by the last decision if that is recent and the file has not changed; empty otherwise."""
        if (
            self._decision is None
            or self._decision.until < time.monotonic()
            or self._decision.stamp != _stamp(self.path)
        ):
            return ""
        outcome = self._decision.outcomes.get(ticket)
        return outcome if isinstance(outcome, str) else ""

    def _strangers(self) -> tuple[Occupant, ...]:
        """The processes on all devices of the ledger's views, asked for every `LOOK_SECONDS`."""
        until, uses = self._occupants
        if until >= time.monotonic():
            return uses
        visible = {device.uuid: device for view in self._views.values() for device in view}
        visible.update((device.uuid, device) for device in self.inventory().devices)
        running = self._processes(attrs.evolve(self.inventory(), devices=tuple(visible.values())))
        families = {pid: family(pid) for pid in {process.pid for process in running}}
        # The driver may list a process longer than the kernel: its memory is not free yet, however little that is.
        gone = {pid for pid, known in families.items() if not known and has_ended(pid)}
        uses = tuple(
            Occupant(uuid=one.uuid, pid=one.pid, memory=0 if one.pid in gone else one.memory, family=families[one.pid])
            for one in running
        )
        self._occupants = (time.monotonic() + LOOK_SECONDS, uses)
        return uses

    def _confirm(self, ticket: Ticket, uses: Sequence[Occupant]) -> Ticket | str:
        """The ticket, or why it waits: another user may have taken one of its devices since the leases were read."""
        others = self._others()
        if not others:
            return ticket

        def confirm(connection: sqlite3.Connection) -> Ticket | str:
            mine = [one for one in self._tickets(connection) if one.id != ticket.id]
            reason = choosing.conflict(ticket, [*others, *mine], uses)
            if reason:
                connection.execute("UPDATE tickets SET devices = '', memory = 0 WHERE ticket = ?", (ticket.id,))
            return reason or ticket

        return self._transact(confirm)

    def _decide(
        self, connection: sqlite3.Connection, name: str, uses: Sequence[Occupant], others: Sequence[Ticket]
    ) -> Ticket | str:
        """Inside a transaction: the ticket if it has devices or gets some now, else why it waits."""
        tickets = self._tickets(connection)
        ticket = next((one for one in tickets if one.id == name), None)
        if ticket is None:
            ticket = self._rejoin(connection, name)
            tickets.append(ticket)
        if ticket.devices:
            return ticket
        outcomes = choosing.decide([*others, *tickets], uses)
        outcome = outcomes[name]
        self._decision = None
        if not isinstance(outcome, str):
            assert ticket.claim is not None  # a claim that this version does not know gets nothing
            uuids = tuple(device.uuid for device in outcome)
            granted = attrs.evolve(ticket, devices=uuids, memory=choosing.part(ticket.claim))
            values = (" ".join(uuids), granted.memory, name)
            connection.execute("UPDATE tickets SET devices = ?, memory = ? WHERE ticket = ?", values)
            return granted
        stamp = _stamp(self.path)
        # A second write within one tick of the clock would not change the file's time. Survivors may be gone at once.
        changing = connection.total_changes or any(one.survivors for one in tickets)
        if not changing and stamp[1] < time.time_ns() - _SETTLED_NS:
            self._decision = _Decision(stamp=stamp, until=time.monotonic() + LOOK_SECONDS, outcomes=outcomes)
        return outcome

    def _rejoin(self, connection: sqlite3.Connection, name: str) -> Ticket:
        ticket = self._own_tickets.get(name)
        if ticket is None:
            raise BackendError(f"there is no ticket '{name}' in the ledger of devices {self.path}")
        _join(connection, ticket)
        return ticket

    def _tickets(self, connection: sqlite3.Connection) -> list[Ticket]:
        """Inside a transaction: the tickets of living processes, in order. Deletes the others.

        A ticket that holds devices remains until nothing lives that its process started here.
        """
        every = connection.execute(f"SELECT {_COLUMNS} FROM tickets ORDER BY number").fetchall()
        alive: dict[tuple[int, float, str], bool] = {}
        for row in every:
            process = row[7:10]
            if process not in alive:
                alive[process] = is_alive(*process)
        survivors = {
            row[0]: self._survivors_of(row)
            for row in every
            if row[10] and (not alive[row[7:10]] or _is_quarantined(row))
        }
        rows: list[Any] = []
        ended: list[Any] = []
        for row in every:
            (rows if alive[row[7:10]] or survivors.get(row[0]) else ended).append(row)
        _leave(connection, [row[0] for row in ended])
        if any(row[2] not in self._views for row in rows):
            for view, text in connection.execute("SELECT view, devices FROM views"):
                self._views.setdefault(view, _devices(text))
        self._claims = {row[1]: self._claims.get(row[1]) or _claim(row[1]) for row in rows}
        return [self._ticket(row, survivors.get(row[0], ())) for row in rows]

    def _survivors_of(self, row: tuple[Any, ...]) -> tuple[int, ...]:
        """What lives of a ticket that is over."""
        pid, started, birth = row[7:10]
        if _is_quarantined(row):
            return (pid,) if is_alive(pid, started, birth) else ()
        boot, _, ticks = birth.partition(" ")
        return self._survivors(pid, ticks) if ticks and is_this_boot(boot) else ()

    def _ticket(self, row: tuple[Any, ...], survivors: tuple[int, ...]) -> Ticket:
        name, claim, view, memory, run, key, attempt, pid, started, _, devices = row
        return Ticket(
            id=name,
            holder=Holder(run=run, key=key, attempt=attempt, pid=pid, started=started),
            claim=self._claims[claim],
            view=self._views.get(view, ()),
            devices=tuple(devices.split()),
            memory=memory,
            survivors=survivors,
        )


def _no_survivors(pid: int, ticks: str) -> tuple[int, ...]:
    return ()


def _is_quarantined(row: tuple[Any, ...]) -> bool:
    """Whether a row of a ticket ties its devices to a process that does not end."""
    return _QUARANTINED in row[0]


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
    rows = [(ticket,) for ticket in tickets]
    if rows:
        connection.executemany("DELETE FROM tickets WHERE ticket = ?", rows)
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
        survivors=ticket.survivors,
    )


def _json(value: Any) -> str:
    return json.dumps(to_json(value), separators=(",", ":"), sort_keys=True)


def _view(devices: tuple[Device, ...]) -> str:
    return hashlib.sha256(_json(devices).encode()).hexdigest()[:32]


def _devices(text: str) -> tuple[Device, ...]:
    """The devices of a view; none for one that is damaged, or that a newer version wrote in another format."""
    try:
        return from_json(tuple[Device, ...], parse_json(text), strict=False)
    except SettingsError:
        return ()


def _claim(text: str) -> Claim | None:
    try:
        return from_json(Claim, parse_json(text), strict=False)
    except SettingsError:
        return None


def _stamp(path: Path) -> tuple[int, int, int]:
    """Identifies the state of the file. Does not open it: closing it would drop SQLite's locks.

    https://www.sqlite.org/howtocorrupt.html, "Posix advisory locks canceled by a separate thread doing close()".
    """
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_ino, status.st_mtime_ns, status.st_size


def transact(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run `work` in a transaction and return its result. Creates a ledger that is missing, replaces a damaged one."""
    with _ledger_errors(path):
        try:
            return _transaction(path, work)
        except (FileNotFoundError, sqlite3.DatabaseError) as error:
            if not _is_damage(error):
                raise
            _mend(path)
        return _transaction(path, work)


def _transaction(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run `work` in a transaction, on a connection of its own: connections do not survive a fork."""
    if not path.exists():
        raise FileNotFoundError(path)
    # mode=rw: SQLite would create a missing file, for this user alone.
    with contextlib.closing(_connect(path)) as connection:
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


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    # No lease outlives the machine's end, and a process's end needs no syncing.
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _is_damage(error: Exception) -> bool:
    # SQLite's own word for it is the plain class; its subclasses are locks, rights and full disks.
    return isinstance(error, FileNotFoundError) or type(error) is sqlite3.DatabaseError


def _mend(path: Path) -> None:
    """Create a missing ledger; move a damaged one aside and create another with the rows that can still be read.

    Needs no person. A lease that cannot be read belongs to a step whose processes are on its devices; those devices are
    passed over, as in use by others, until the step ends.
    """
    _make_folder(path.parent)
    with _locked_folder(path.parent):
        if path.exists() and _is_sound(path):
            return
        rows = _salvage_rows(path) if path.exists() else []
        descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix="new-")
        # Whoever may write in the folder may write the file: a folder that several users share is theirs to open.
        mode = path.parent.stat().st_mode
        os.fchmod(descriptor, 0o600 | (0o060 if mode & 0o020 else 0) | (0o006 if mode & 0o002 else 0))
        os.close(descriptor)
        with contextlib.closing(_connect(Path(fresh))) as connection:
            for statement in _TABLES:
                connection.execute(statement)
            for table, row in rows:
                connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        if path.exists():
            damaged = path.with_suffix(".damaged")
            # The journal moves along: SQLite must not replay it into the new file.
            for suffix in ("-journal", ""):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{path}{suffix}", f"{damaged}{suffix}")
            _LOG.warning("the ledger of devices %s was damaged; %s rows were saved, see %s", path, len(rows), damaged)
        os.replace(fresh, path)


def _make_folder(folder: Path) -> None:
    """Create the folder, for this user alone; an existing one stays as it is.

    A folder that several users share must not be sticky. In a sticky folder SQLite cannot delete the journal of another
    user's crashed process (every user gets "disk I/O error" until that user returns), and with `fs.protected_regular`
    Linux lets nobody open another user's files with O_CREAT, as SQLite opens journals.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextlib.contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: one process at a time creates or repairs. The kernel releases it when the process
    ends.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_sound(path: Path) -> bool:
    try:
        result = _transaction(path, lambda connection: connection.execute("PRAGMA quick_check(1)").fetchone())
    except sqlite3.DatabaseError as error:
        if _is_damage(error):
            return False
        raise
    return bool(result == ("ok",))


def _salvage_rows(path: Path) -> list[tuple[str, tuple[Any, ...]]]:
    """(table, row) of every row that can still be read from a damaged ledger."""
    rows: list[tuple[str, tuple[Any, ...]]] = []
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(path)) as connection:
        for table in ("views", "tickets"):
            with contextlib.suppress(sqlite3.Error):
                for row in connection.execute(f"SELECT * FROM {table}"):
                    rows.append((table, row))
    return rows


@contextlib.contextmanager
def _ledger_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of files into a `BackendError` with a fix."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        text = " ".join(str(error).split())
        fix = f"set {VARIABLE} to a folder that you may write to"
        if "locked" in text:
            fix = "another process has held it for half a minute: end it, it may be stopped inside a transaction"
        elif "full" in text or "No space" in text:
            fix = f"free space on its disk, or set {VARIABLE} to a folder on another one"
        raise BackendError(f"the ledger of devices {path} cannot be used: {text}", fix=fix) from error
