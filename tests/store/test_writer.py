"""What becomes of a run's rows while the PostgreSQL server is away: kept in order, written once, or refused."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import psutil
import psycopg
import pytest
from tests.servers import postgres

from stoker.core.artifact import StoredArtifact
from stoker.core.errors import DatabaseUnreachable, StoreError
from stoker.store.batch import RowBatch
from stoker.store.database import Database
from stoker.store.rows import CacheRow, EventRow, OutputRow, RungRow, RunRow, StepProgress, StepRow
from stoker.store.store import Store, open_store
from stoker.store.writer import JournalEntry, RunJournal, RunWriter, restore

pytestmark = pytest.mark.xdist_group("postgresql-restarts")


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """A server that tests stop; it runs when a test begins."""
    programs = postgres.binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    started = postgres.Server(programs)
    started.start()
    yield started
    started.kill()


@pytest.fixture
def open_home(server: postgres.Server, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Opens stores with one home, on a schema of the test's own."""
    schema = f"test_{os.urandom(6).hex()}"
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    stores: list[Store] = []

    def opened(port: str = "", **parameters: int) -> Store:
        host, _, name = server.uri.rpartition("/")
        address = f"{host.rpartition(':')[0]}:{port}/{name}" if port else server.uri
        uri = f"{address}?sslmode=disable&options=-csearch_path%3D{schema}"
        uri += "".join(f"&{name}={value}" for name, value in parameters.items())
        stores.append(open_store(uri, "", str(tmp_path / "home")))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def created(store: Store, token: str = "mine") -> None:
    """Create the run that the tests write."""
    now = time.time()
    store.records.create_run(RunRow(id="run", pipeline="p", created=now, started=now, token=token))


def step_batch(status: str, number: int) -> RowBatch:
    """The rows of a step with this status, one of each kind that holds bytes, replaces or is removed."""
    batch = RowBatch()
    batch.step(StepRow(run_id="run", key="a", name="a"))
    batch.change(StepProgress(run_id="run", key="a", status=status, attempts=number))  # type: ignore[arg-type]
    artifact = StoredArtifact(digest=f"d{number}", serializer="json", type="int", size=2, inline=bytes([number, 255]))
    batch.output(OutputRow(run_id="run", key="a", name="out", artifact=artifact))
    batch.remember(CacheRow(key="k", run_id="run", step_key="a", created=float(number)))
    batch.event(EventRow(run_id="run", seq=number, time=1.0, kind="happened", data={"number": number}))
    batch.learn(RungRow(key="r", run_id="run", created=1.0, changes={"used": [number]}))
    return batch


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def check_last(store: Store, number: int) -> None:
    """The rows are those of the last of `number` batches."""
    row = store.records.step("run", "a")
    assert row is not None and (row.status, row.attempts) == ("succeeded", number)
    assert [bytes(out.artifact.inline or b"") for out in store.records.outputs("run", "a")] == [bytes([number, 255])]
    assert [event.data["number"] for event in store.records.events("run")] == list(range(1, number + 1))
    learned = store.records.learned_changes("r")
    assert learned is not None and learned.changes == {"used": [number]}


def test_what_happens_while_the_server_is_away_is_written_in_order(
    server: postgres.Server, open_home: Callable[..., Store]
) -> None:
    store = open_home()
    created(store)
    lines: list[str] = []
    writer = RunWriter(store, run="run", token="mine", patience=600, report=lines.append)
    writer.write(step_batch("running", 1))
    assert not writer.is_away and not lines
    server.stop("immediate")
    try:
        writer.write(step_batch("failed", 2))
        writer.write(step_batch("succeeded", 3))
        assert writer.is_away and not writer.look()
        began = time.monotonic()
        with pytest.raises(DatabaseUnreachable, match="does not answer"):
            store.records.counts("run")
        with pytest.raises(DatabaseUnreachable, match="does not answer"):
            open_home()
        assert time.monotonic() - began < 30, "who reads does not wait for a server"
        assert len(RunJournal(store.home, "run").entries()) == 2
    finally:
        server.start()
    ended = threading.Thread(target=lambda: writer.end(status="succeeded", ended=5.0))
    ended.start()
    ended.join(60)
    check_last(store, 3)
    assert store.records.run("run").status == "succeeded"
    assert not RunJournal(store.home, "run").exists()
    assert len(lines) == 2 and "is away" in lines[0] and "is back" in lines[1]
    assert writer.patiently(lambda: store.records.counts("run")) == {"succeeded": 1}


def test_a_driver_that_lost_the_run_meanwhile_writes_nothing(
    server: postgres.Server, open_home: Callable[..., Store]
) -> None:
    store = open_home()
    created(store)
    writer = RunWriter(store, run="run", token="mine", patience=600)
    server.stop("fast")
    try:
        writer.write(step_batch("succeeded", 1))
    finally:
        server.start()
    other = open_home()
    assert other.records.take_over("run", expected="mine", token="theirs", driver={})
    with pytest.raises(StoreError, match="taken over by another driver"):
        until(writer.look)
    assert store.records.counts("run") == {} and store.records.events("run") == []
    assert not RunJournal(store.home, "run").exists()
    writer.end(status="failed", error="it lost the run")
    assert store.records.run("run").status == "running"


def test_a_journal_of_a_dead_driver_is_written_by_the_next(
    server: postgres.Server, open_home: Callable[..., Store]
) -> None:
    store = open_home()
    created(store)
    journal = RunJournal(store.home, "run")
    journal.append(JournalEntry(token="mine", batch=step_batch("failed", 1)))
    journal.append(JournalEntry(token="mine", batch=step_batch("succeeded", 2)))
    journal.append(JournalEntry(token="mine", fields={"status": "failed", "error": "the database was away"}))
    whole = Path(journal.path).read_bytes()
    assert os.stat(journal.path).st_mode & 0o777 == 0o600

    # The driver died before the database had any of it, after it had some of it, or while it wrote the last line.
    for present, text, status in ((0, whole, "failed"), (1, whole, "failed"), (2, whole[:-9], "running")):
        store.records.set_run("run", "mine", status="running", error="")
        store.records.database.change("DELETE FROM events")
        for entry in journal.entries()[:present]:
            assert store.records.write(entry.batch, run_id="run", token="mine")
        Path(journal.path).write_bytes(text)
        assert restore(store, "run", "mine") == (3 if text == whole else 2)
        check_last(store, 2)
        assert store.records.run("run").status == status
        assert not journal.exists()

    # Another driver has had the run since: what is in the journal did not happen in it.
    Path(journal.path).write_bytes(whole)
    store.records.take_over("run", expected="mine", token="theirs", driver={})
    assert restore(store, "run", "theirs") == 0
    assert store.records.run("run").status == "running" and not journal.exists()


def test_a_damaged_line_ends_a_journal_and_another_version_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = RunJournal(str(tmp_path), "run")
    for number in range(3):
        journal.append(JournalEntry(token="mine", batch=step_batch("running", number)))
    whole = Path(journal.path).read_bytes()
    lines = whole.splitlines(keepends=True)
    Path(journal.path).write_bytes(lines[0] + lines[1].replace(b"happened", b"hAppened") + lines[2])
    (entry,) = journal.entries()
    assert "its last 2 entries are left out" in caplog.text
    assert entry.batch.outputs == [list(columns) for columns in step_batch("running", 0).outputs]
    assert entry.batch.events == step_batch("running", 0).events
    damaged = Path(journal.path).read_bytes()
    journal.delete()
    assert not journal.exists() and Path(f"{journal.path}.damaged").read_bytes() == damaged, "nobody else has it"
    newer = lines[0][9:-1].replace(b'"version":1', b'"version":2')
    Path(journal.path).write_bytes(b"%08x %s\n" % (zlib.crc32(newer), newer))
    with pytest.raises(StoreError, match="has version 2"):
        journal.entries()


def test_patience_ends_with_what_to_do(server: postgres.Server, open_home: Callable[..., Store]) -> None:
    store = open_home()
    created(store)
    impatient = RunWriter(store, run="run", token="mine")
    writer = RunWriter(store, run="run", token="mine", patience=0.5)
    server.stop("fast")
    try:
        with pytest.raises(DatabaseUnreachable):
            impatient.write(step_batch("running", 1))
        writer.write(step_batch("succeeded", 1))
        with pytest.raises(DatabaseUnreachable, match=r"for 500ms; what happened since is in .*run\.jsonl") as caught:
            until(writer.look)
        assert "stoker resume run" in caught.value.fix
        writer.end(status="failed", error=str(caught.value))  # does not wait any more
    finally:
        server.start()
    assert restore(store, "run", "mine") == 2
    check_last(store, 1)
    assert store.records.run("run").status == "failed"


class CuttingProxy:
    """Passes everything on, but cuts the connection when the server has committed, before the client knows."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = str(self._listener.getsockname()[1])
        self.cuts = 0
        self._armed = False
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """Cut the next COMMIT."""
        self._armed = True

    def close(self) -> None:
        """Take no more connections, and wait until those that were passed on are closed."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        threads = []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            server = socket.create_connection(("127.0.0.1", self._server))
            threads += [
                threading.Thread(target=self._pass_on, args=(source, target, source is server), daemon=True)
                for source, target in ((client, server), (server, client))
            ]
            for thread in threads[-2:]:
                thread.start()
            self._sockets += [client, server]
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                # What the server answers to COMMIT: CommandComplete has the command's tag,
                # https://www.postgresql.org/docs/current/protocol-message-formats.html.
                if answers and self._armed and b"COMMIT\0" in data:
                    self._armed = False
                    self.cuts += 1
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def test_a_commit_whose_answer_is_lost_counts_once(server: postgres.Server, open_home: Callable[..., Store]) -> None:
    proxy = CuttingProxy(int(server.uri.rpartition(":")[2].partition("/")[0]))
    try:
        store = open_home(proxy.port)
        records = store.records
        proxy.arm()
        row = RunRow(id="run", pipeline="p", created=1.0, token="first")
        with pytest.raises(DatabaseUnreachable):
            records.create_run(row, plan="plan")
        assert records.plan("run") == "plan", "it was committed all the same"
        records.create_run(row, plan="plan")
        with pytest.raises(StoreError, match="there is a run 'run' already"):
            records.create_run(attrs.evolve(row, token="another"))
        proxy.arm()
        with pytest.raises(DatabaseUnreachable):
            records.take_over("run", expected="first", token="mine", driver={"pid": 1})
        assert records.take_over("run", expected="first", token="mine", driver={"pid": 1})
        assert records.run("run").sessions == 2 and records.plan("run") == "plan"
        assert not records.take_over("run", expected="first", token="late", driver={})
        writer = RunWriter(store, run="run", token="mine")
        for number in (1, 2):
            proxy.arm()
            writer.write(step_batch("succeeded", number))
        assert proxy.cuts == 4
        check_last(store, 2)
        assert records.counts("run") == {"succeeded": 1}
    finally:
        proxy.close()


def test_a_server_that_hangs_with_its_connections_open_is_away(
    server: postgres.Server, open_home: Callable[..., Store]
) -> None:
    store = open_home(tcp_user_timeout=1000, connect_timeout=2)
    created(store)
    lines: list[str] = []
    writer = RunWriter(store, run="run", token="mine", patience=600, report=lines.append)
    writer.write(step_batch("running", 1))
    server.freeze()
    try:
        writer.write(step_batch("failed", 2))
        writer.write(step_batch("succeeded", 3))
        assert writer.is_away and len(RunJournal(store.home, "run").entries()) == 2
        with pytest.raises(DatabaseUnreachable, match="the database server does not answer"):
            store.records.counts("run")
    finally:
        server.thaw()
    until(writer.look)
    check_last(store, 3)
    assert len(lines) == 2 and "is away" in lines[0] and "is back" in lines[1]


def test_a_connection_whose_own_process_hangs_is_replaced(
    server: postgres.Server, open_home: Callable[..., Store]
) -> None:
    database = open_home(tcp_user_timeout=1000).records.database
    connection = database.cursor().connection
    backend = psutil.Process(connection.info.backend_pid)
    backend.suspend()
    try:
        assert database.row("SELECT 7") == (7,)
        assert connection.closed and database.cursor().connection.info.backend_pid != backend.pid
    finally:
        backend.resume()
    with pytest.raises(DatabaseUnreachable, match="silent for 1s"):
        database.row("SELECT pg_sleep(600)")


def test_an_answer_that_arrives_slowly_is_no_silence(open_home: Callable[..., Store]) -> None:
    database = open_home(tcp_user_timeout=2000).records.database
    connection = database.cursor().connection
    # Rows of 10 kB: the server sends what fills its buffer of 8 kB, and does not keep all to the end.
    rows = database.rows("SELECT repeat('x', 10000), pg_sleep(0.3) FROM generate_series(1, 10)")
    assert len(rows) == 10 and database.cursor().connection is connection


def test_an_error_of_the_connection_itself_ends_it(open_home: Callable[..., Store]) -> None:
    """As a connection has it that is lost inside of a pipeline: it is not closed, and takes no statement any more."""
    database = open_home().records.database
    connection = database.cursor().connection
    error = psycopg.OperationalError("sending query failed: cannot exit pipeline mode while busy")
    with pytest.raises(DatabaseUnreachable):
        database.fail(error)
    assert connection.closed and database.cursor().connection is not connection
    with pytest.raises(StoreError) as caught:
        database.rows("SELECT 1 / 0")
    assert not isinstance(caught.value, DatabaseUnreachable)


def test_an_address_may_have_its_own_patience(server: postgres.Server) -> None:
    database = Database(f"{server.uri}?keepalives_idle=99")
    try:
        connection = database.cursor().connection
        parameters = connection.info.get_parameters()
        assert (parameters["keepalives_idle"], parameters["connect_timeout"]) == ("99", "10")
    finally:
        database.close()
