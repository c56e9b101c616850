"""`--detach`: a run that is planned and written down here, and driven elsewhere.

The driver is `stoker resume RUN`, as a process of this machine that no terminal holds, or as a small job of the stack's
platform where its backend can do that (`backends.base.backend.Detaches`).

Until a driver takes the run over, its row says where one is to begin, and has what it is to begin with. The driver is
given the row's token (`TOKEN`) and takes the run over only while the row has it: who was first, a cancel or another
driver, has changed it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, Iterator

import attrs

from stoker.backends.base.backend import Detaches, RunningBackend, capability
from stoker.core.errors import UsageError
from stoker.core.plan import Code, Plan
from stoker.core.request import RunRequest
from stoker.core.settings import PipelineSettings
from stoker.plan import plandoc
from stoker.plan.planner import ORCHESTRATOR
from stoker.run.session import Session
from stoker.store.logs import file_name
from stoker.store.records import Records
from stoker.store.rows import DRIVER_OUTPUT, DRIVER_PLACE, RunRow
from stoker.store.store import Store
from stoker.worker.processes import process_of, this_process

TOKEN: Final = "STOKER_DETACHED"
"""The variable by which a driver knows that it is a detached run's, and which token the run's row must have."""
_START: Final = "start"
"""In a row's `driver` document: what the run is to begin with."""
_OUTPUT_FILE: Final = "driver.out"
"""Beside the logs of the run's steps, with which it goes; no step's name has a dot."""
_RUN_FILE: Final = "run-file.yaml"


@attrs.frozen(kw_only=True)
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
            platform.may_detach()


def start(session: Session, row: RunRow, plan: Plan, settings: PipelineSettings) -> None:
    """Write the run down, and have it driven elsewhere; what refuses that leaves nothing behind."""
    store, output = session.store, _output(session.store, row.id)
    output.parent.mkdir(parents=True, exist_ok=True)
    start = _start_document(session, output.parent)
    here = {**this_process(), DRIVER_PLACE: "it is being started", _START: start}
    row = attrs.evolve(row, driver=here, started=None, sessions=0)
    store.records.create_run(row, plan=plandoc.dump(plan))
    try:
        where = _start_driver(session, settings, row, output)
    except BaseException:  # also an interrupt: nobody drives it
        store.records.delete_run(row.id)
        store.logs.delete(row.id)
        raise
    waiting = {**where, DRIVER_OUTPUT: str(output), _START: start}
    # Nothing happens where the driver has taken the run over meanwhile.
    store.records.set_run(row.id, row.token, driver=waiting, heartbeat=time.time())


def whereabouts(run: str, location: str) -> str:
    """Where a run goes on, and how to look at it."""
    where = f"run {run} goes on by itself: {location}" if location else f"run {run} goes on by itself"
    return f"{where}\n  look: stoker show {run} · stoker logs {run} --follow\n  stop: stoker cancel {run}"


def start_of(row: RunRow) -> Start | None:
    """What a run is to begin with; None where a driver has begun, which may only go on."""
    document = row.driver.get(_START)
    if document is None:
        return None
    request = RunRequest(
        stack=document.get("stack"),
        cache=document.get("cache"),
        simulate=document.get("simulate"),
        run_file=document.get("run_file"),
        assignments=tuple(document.get("assignments", ())),
        attached=tuple(document.get("attached", ())),
        environment=document.get("environment"),
        tags=tuple(document.get("tags", ())),
    )
    fields = {field.name for field in attrs.fields(Code)}
    code = {name: text for name, text in document.get("code", {}).items() if name in fields}
    return Start(request=request, code=Code(**code))


@contextlib.contextmanager
def record_failure(records: Records, run: str, token: str) -> Iterator[None]:
    """Record a failure inside as the end of a run that still has the token of its detached driver."""
    try:
        yield
    except BaseException as error:  # the end is recorded, whatever it was, and then raised again
        if token:
            text = str(error) if isinstance(error, Exception) else type(error).__name__
            records.set_run(run, token, status="failed", ended=time.time(), error=text)
        raise


def _start_document(session: Session, folder: Path) -> dict[str, Any]:
    request = session.request
    run_file = ""
    if request.run_file:
        # As it is now: who waits for a place to drive from may wait for long.
        run_file = str(folder / _RUN_FILE)
        Path(run_file).write_bytes(Path(request.run_file).read_bytes())
    return {
        "stack": session.stack.name,
        "cache": request.cache,
        "simulate": request.simulate,
        "run_file": run_file,
        "assignments": list(request.assignments),
        "attached": list(request.attached),
        "environment": request.environment,
        "tags": list(request.tags),
        "code": attrs.asdict(session.code),
    }


def _start_driver(session: Session, settings: PipelineSettings, row: RunRow, output: Path) -> dict[str, Any]:
    """Start the driver; the row's document of it."""
    argv = [sys.executable, "-m", "stoker", "resume", row.id, "--stack", session.stack.name]
    with _orchestrator(session, settings) as backend:
        platform = capability(backend, Detaches)
        if platform is not None:
            # A platform's job may have another environment than this process.
            words = ["env", f"{TOKEN}={row.token}", f"STOKER_HOME={session.stack.home}", *argv]
            return {DRIVER_PLACE: platform.detach(words, os.getcwd(), f"stoker-driver-{row.id}", output=str(output))}
    return _process(argv, row.token, output)


def _process(argv: list[str], token: str, output: Path) -> dict[str, Any]:
    """A process of this machine in a session of its own, so that no terminal's end is its end."""
    with output.open("ab") as file:
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
