"""`--detach`: a run that is planned and written down here, and driven elsewhere.

The driver is `stoker resume RUN`, as a process of this machine that no terminal holds, or as a small job of the stack's
platform where its backend can do that (`backends.base.backend.Detaches`).

Until a driver takes the run over, its row says where one is to begin, and has what it is to begin with. The driver is
given the row's token (`TOKEN`) and takes the run over only while the row has it: who was first, a cancel or another
driver, has changed it.

A platform's job starts its driver again when that was killed, when the job itself was, or before its time limit. For
this the row of the run says which job it is, and keeps what the run was to begin with (`DRIVER_JOB`). The next start
takes the run over from the driver that is gone, unless somebody else has done so, and adopts its jobs.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, Iterator, Mapping

import attrs

from stoker.backends.base.backend import (
    SENDS_LOGS,
    BringsDriver,
    DetachedRun,
    Detaches,
    DriverStart,
    RunningBackend,
    capability,
)
from stoker.core.errors import DatabaseUnreachable, InfrastructureError, UsageError
from stoker.core.plan import Code, Plan
from stoker.core.request import RunRequest
from stoker.core.settings import PipelineSettings
from stoker.core.values import frozen
from stoker.run.session import Session
from stoker.stacks import ORCHESTRATOR, table_of, toml_text
from stoker.store.access import create_file, make_folders
from stoker.store.logcopies import LogCopies, LogSender
from stoker.store.logs import file_name
from stoker.store.records import Records
from stoker.store.rows import DRIVER_JOB, DRIVER_OUTPUT, DRIVER_PLACE, RunRow
from stoker.store.store import Store
from stoker.worker import secrets
from stoker.worker.processes import process_of, this_process

TOKEN: Final = "STOKER_DETACHED"
"""The variable by which a driver knows that it is a detached run's, and which token the run's row must have."""
QUIET: Final = 5.0
"""Seconds in which a driver has not said that it lives, after which the next start of its job takes its run over: five
of its heartbeats."""
QUICK: Final = 60.0
"""Seconds that a start must drive its run to count as progress; a finished step counts, too."""
MOST_STARTS: Final = 5
"""Starts in a row without progress after which a job gives its run up."""
_START: Final = "start"
"""In a row's `driver` document: what the run is to begin with."""
_OUTPUT_FILE: Final = "driver.out"
"""Beside the logs of the run's steps, with which it goes; no step's name has a dot."""
_RUN_FILE: Final = "run-file.yaml"
WHEELS: Final = "wheels"
"""The folder of a home in which what is made of Stoker itself is kept."""


@frozen(kw_only=True)
class Start:
    """What a detached driver needs beside the run's row and plan."""

    request: RunRequest
    code: Code

    def merge_into(self, request: RunRequest) -> RunRequest:
        """A request of who begins the run, over that of who started it."""
        earlier = self.request
        return attrs.evolve(
            request,
            stack=request.stack or earlier.stack,
            cache=earlier.cache if request.cache is None else request.cache,
            simulate=request.simulate or earlier.simulate,
            run_file=request.run_file or earlier.run_file,
            assignments=(*earlier.assignments, *request.assignments),
            attached=request.attached or earlier.attached,
            environment=request.environment or earlier.environment,
            tags=request.tags or earlier.tags,
        )


@frozen(kw_only=True)
class Detachment:
    """What a driver knows of being a detached run's."""

    token: str = ""
    """The token that the run's row had when it was detached; empty for a driver that somebody started."""
    job: str = ""
    """The job that starts the driver again, in words; empty where nothing does."""
    starts: int = 1
    """Starts of the job in a row without progress, this one among them."""

    def driver(self, row: RunRow, start: Start | None, settled: int, document: Mapping[str, Any]) -> dict[str, Any]:
        """The row's document of a driver, whose process is `document`; `settled` counts the steps that are over."""
        if not self.job or start is None:
            return dict(document)
        earlier = row.driver.get(DRIVER_JOB, {})
        job = {
            DRIVER_PLACE: self.job,
            "token": self.token,
            "starts": self.starts,
            "since": time.time(),
            "settled": settled,
            _START: earlier.get(_START) or row.driver.get(_START),
        }
        return {**document, DRIVER_JOB: job}


def check(session: Session, plan: Plan, settings: PipelineSettings) -> None:
    """`UsageError` where the run could not go on without this process, or not where its stack would have it."""
    if plan.dynamic and (plan.source is None or plan.source.kind == "pickled"):
        raise UsageError(
            f"'{plan.pipeline}' is dynamic and in no file, where another process could find it: --detach cannot run it",
            fix="put it into a file",
        )
    with _orchestrator(session, settings) as backend:
        platform = capability(backend, Detaches)
        if platform is not None:
            platform.may_detach(_facts(session, plan, settings))


def start(session: Session, row: RunRow, plan: Plan, settings: PipelineSettings) -> None:
    """Write the run down, and have it driven elsewhere; what refuses that leaves nothing behind."""
    store, output = session.store, _output(session.store, row.id)
    make_folders(str(output.parent))
    with _orchestrator(session, settings) as backend:
        if capability(backend, BringsDriver) is not None:
            from stoker.images.wheel import driver_bundle

            session.code = attrs.evolve(session.code, bundle=str(driver_bundle(session.stack.home / WHEELS)))
    start = _start_document(session, output.parent)
    here = {**this_process(), DRIVER_PLACE: "it is being started", _START: start}
    row = attrs.evolve(row, driver=here, started=None, sessions=0)
    session.create_run(row, plan)
    try:
        where = _start_driver(session, plan, settings, row, output)
        if DRIVER_OUTPUT not in where:
            LogCopies(store.records, store.logs.folder).expect(row.id)
    except BaseException:  # also an interrupt: nobody drives it
        store.records.delete_run(row.id)
        store.logs.delete(row.id)
        raise
    waiting = {**where, _START: start}
    # Nothing happens where the driver has taken the run over meanwhile.
    store.records.set_run(row.id, row.token, driver=waiting, heartbeat=time.time())


def leave_terminal(store: Store, run: str) -> None:
    """Have this process write to the run's file, where it wrote to a terminal; safe in a signal handler."""
    output = _output(store, run)
    make_folders(str(output.parent))
    file = create_file(str(output), os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((0, nothing), (1, file), (2, file)):
        # A terminal that was hung up says no more that it is one; /dev/null is the other device that is common here.
        about = os.fstat(descriptor)
        if stat.S_ISCHR(about.st_mode) and about.st_rdev != os.fstat(nothing).st_rdev:
            os.dup2(target, descriptor)
    os.close(file)
    os.close(nothing)
    with contextlib.suppress(OSError):  # it leads a group already
        os.setsid()


def whereabouts(run: str, location: str) -> str:
    """Where a run goes on, and how to look at it."""
    where = f"run {run} goes on by itself: {location}" if location else f"run {run} goes on by itself"
    return f"{where}\n  look: stoker show {run} · stoker logs {run} --follow\n  stop: stoker cancel {run}"


def holds(row: RunRow, detachment: Detachment) -> bool:
    """Whether a detached driver may begin a run, or an earlier start of its job was the last to drive it."""
    return detachment.token in (row.token, row.driver.get(DRIVER_JOB, {}).get("token"))


def await_end_of_driver(store: Store, row: RunRow) -> RunRow:
    """Wait until the driver that an earlier start of this job was is gone; the row then.

    A platform may start a job again whose node it merely cannot reach: such a driver goes on driving.
    """
    from stoker.client.leftjobs import awaited_place, shown_status  # a driver reads the client at its end only

    while row.status == "running" and shown_status(row) == "running" and not awaited_place(row):
        time.sleep(QUIET)
        latest = store.records.run(row.id)
        if (latest.heartbeat, latest.token) == (row.heartbeat, row.token):
            return latest
        row = latest
    return row


def started_again(store: Store, row: RunRow, detachment: Detachment) -> Detachment | None:
    """The next start of a run's job; None where the run is not to go on: it is over, it is to be cancelled, or its
    driver ended too often."""
    if row.status != "running":
        return None
    if row.asked:
        if store.records.cancel_waiting(row.id, token=row.token):
            from stoker.client.leftjobs import end_left_jobs
            from stoker.client.runs import LEAVE

            end_left_jobs(str(store.home), row.id, grace=LEAVE)
        return None
    job = row.driver[DRIVER_JOB]
    lived = (row.heartbeat or 0.0) - job["since"]
    starts = 1 if lived >= QUICK or settled_steps(store, row.id) > job["settled"] else job["starts"] + 1
    if starts <= MOST_STARTS:
        return attrs.evolve(detachment, starts=starts)
    again = f"stoker resume {row.id} goes on, stoker cancel {row.id} ends what it left running"
    text = (
        f"its driver ended {MOST_STARTS} times in a row within a minute of its start and finished no step meanwhile; "
    )
    text += f"see {_output(store, row.id)}; {again}"
    # Without a driver it is interrupted; the job's next start finds that it is no longer its own.
    store.records.set_run(row.id, row.token, error=text, driver={}, heartbeat=0.0)
    return None


def log_sender(store: Store, run: str, token: str) -> LogSender | None:
    """What sends the logs of a run whose driver's home nobody else sees, with those of earlier drivers in it; None for
    another."""
    if not os.environ.get(SENDS_LOGS):
        return None
    LogCopies(store.records, store.logs.folder).restore(run)
    return LogSender(store.records, store.logs.folder, run=run, token=token)


def settled_steps(store: Store, run: str) -> int:
    """How many steps of a run are over, elements of fan-outs among them."""
    return sum(count for status, count in store.records.counts(run).items() if status not in ("pending", "running"))


def leave_run(store: Store, run: str, token: str, driver: Mapping[str, Any]) -> None:
    """Write into a run's row that it waits for the next start of its driver's job; nothing while the database is
    away: the row then says that its driver is gone."""
    waiting = {DRIVER_PLACE: driver[DRIVER_JOB][DRIVER_PLACE]}
    if not os.environ.get(SENDS_LOGS):  # its own file is nobody else's
        waiting[DRIVER_OUTPUT] = str(_output(store, run))
    with contextlib.suppress(DatabaseUnreachable):
        store.records.set_run(run, token, driver={**waiting, DRIVER_JOB: driver[DRIVER_JOB]}, heartbeat=time.time())


def start_of(store: Store, row: RunRow, detachment: Detachment) -> Start | None:
    """What a run is to begin with; None where a driver has begun, after which only its own job begins so again.

    A driver in another place than the one that the run was started from gets the run file and Stoker's worker from its
    own home.
    """
    document = row.driver.get(_START)
    if document is None and detachment.job:
        document = row.driver.get(DRIVER_JOB, {}).get(_START)
    if document is None:
        return None
    request = RunRequest(
        stack=document.get("stack"),
        cache=document.get("cache"),
        simulate=document.get("simulate"),
        run_file=_run_file(store, row.id, document),
        assignments=tuple(document.get("assignments", ())),
        attached=tuple(document.get("attached", ())),
        environment=document.get("environment"),
        tags=tuple(document.get("tags", ())),
    )
    fields = {field.name for field in attrs.fields(Code)}
    code = Code(**{name: text for name, text in document.get("code", {}).items() if name in fields})
    if code.bundle and not os.path.isdir(code.bundle):
        code = attrs.evolve(code, bundle=os.path.join(store.home, WHEELS, os.path.basename(code.bundle)))
    return Start(request=request, code=code)


def bring_code(store: Store, plan: Plan, code: Code) -> None:
    """Unpack the code that was sent along to where it was, if a dynamic run's driver does not find it there."""
    source = plan.source
    if not plan.dynamic or source is None or not source.path or not code.package or os.path.exists(source.path):
        return
    import shutil

    from stoker.worker.codecopy import remove, unpack_code

    folder = unpack_code(code.package, store.blobs.uri)
    try:
        # Not renamed: the folder may be the place of a mount.
        shutil.copytree(folder, code.root, symlinks=True, dirs_exist_ok=True)
    finally:
        remove(folder)
    os.chdir(code.root)


def _run_file(store: Store, run: str, document: Mapping[str, Any]) -> str | None:
    """The run file of a run that is to begin, which is written again where it is not."""
    path: str | None = document.get("run_file")
    if not path or os.path.exists(path) or "run_file_text" not in document:
        return path
    own = _output(store, run).with_name(_RUN_FILE)
    make_folders(str(own.parent))
    own.write_text(document["run_file_text"], encoding="utf-8")
    return str(own)


@contextlib.contextmanager
def record_failure(records: Records, run: str, token: str, *, begun: bool) -> Iterator[None]:
    """Record a failure inside as the end of a detached run that still has a token.

    A run that has `begun` does not end because what it depends on is away: jobs of it may run, and its own job starts
    the driver again.
    """
    try:
        yield
    except BaseException as error:  # the end is recorded, whatever it was, and then raised again
        text = str(error) if isinstance(error, Exception) else type(error).__name__
        if begun and isinstance(error, InfrastructureError):
            records.set_run(run, token, error=text)
        else:
            status = "cancelled" if isinstance(error, KeyboardInterrupt) else "failed"
            records.set_run(run, token, status=status, ended=time.time(), error=text)
        raise


def _start_document(session: Session, folder: Path) -> dict[str, Any]:
    request = session.request
    run_file = text = ""
    if request.run_file:
        # As it is now: who waits for a place to drive from may wait for long.
        run_file, text = str(folder / _RUN_FILE), Path(request.run_file).read_text(encoding="utf-8")
        Path(run_file).write_text(text, encoding="utf-8")
    return {
        "stack": session.stack.name,
        "cache": request.cache,
        "simulate": request.simulate,
        "run_file": run_file,
        "run_file_text": text,
        "assignments": list(request.assignments),
        "attached": list(request.attached),
        "environment": request.environment,
        "tags": list(request.tags),
        "code": attrs.asdict(session.code),
    }


def _start_driver(
    session: Session, plan: Plan, settings: PipelineSettings, row: RunRow, output: Path
) -> dict[str, Any]:
    """Start the driver; the row's document of it."""
    words = ("-m", "stoker", "resume", row.id, "--stack", session.stack.name)
    with _orchestrator(session, settings) as backend:
        platform = capability(backend, Detaches)
        if platform is not None:
            table, variables = table_of(session.stack)
            job = platform.detach(
                DriverStart(
                    run=row.id,
                    name=f"stoker-driver-{row.id}",
                    words=words,
                    # A platform's job may have another environment than this process.
                    environment={TOKEN: row.token, "STOKER_HOME": str(session.stack.home)},
                    folder=os.getcwd(),
                    output=str(output),
                    facts=_facts(session, plan, settings),
                    code=session.code,
                    stack=toml_text(session.stack.name, table),
                    variables=variables,
                    read_secret=session.secrets.read,
                )
            )
            return {DRIVER_PLACE: job.place, **({DRIVER_OUTPUT: job.output} if job.output else {})}
    return {**_process([sys.executable, *words], row.token, output), DRIVER_OUTPUT: str(output)}


def _facts(session: Session, plan: Plan, settings: PipelineSettings) -> DetachedRun:
    """What the platform must know of a run."""
    parts = session.stack.parts
    trees = {name: {"value": wire} for name, wire in plan.parameters.items()}
    wanted = secrets.references({}, trees)
    for step in plan.steps:
        wanted |= secrets.references(step.settings.environment, step.inputs)
    return DetachedRun(
        home=str(session.stack.home),
        database=session.store.database_uri,
        artifacts=session.store.blobs.uri,
        dynamic=plan.dynamic,
        elsewhere={step.name: parts[step.backend].flavor for step in plan.steps if step.backend != ORCHESTRATOR},
        secrets=tuple(sorted(wanted)),
    )


def _process(argv: list[str], token: str, output: Path) -> dict[str, Any]:
    """A process of this machine in a session of its own, so that no terminal's end is its end."""
    with os.fdopen(create_file(str(output), os.O_WRONLY | os.O_APPEND), "ab") as file:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, TOKEN: token},
            start_new_session=True,
        )
    driver = process_of(process.pid)  # also if it is over: nobody has asked for its end yet
    # A process that lives on, such as a notebook, waits for the driver's end, so that no zombie stays.
    threading.Thread(target=process.wait, name="stoker-detached", daemon=True).start()
    return {**driver, DRIVER_PLACE: f"process {process.pid} of {driver['host']}"}


def _output(store: Store, run: str) -> Path:
    return Path(store.logs.folder) / file_name(run) / _OUTPUT_FILE


@contextlib.contextmanager
def _orchestrator(session: Session, settings: PipelineSettings) -> Iterator[RunningBackend]:
    backends = session.backends((), settings)
    try:
        yield backends[ORCHESTRATOR]
    finally:
        for backend in set(backends.values()):
            backend.close()
