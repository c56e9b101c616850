"""One session of a run: engine, backends and terminal together, from the row that is written to the end that is."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Mapping

import attrs

from stoker.backends.base.backend import RunningBackend
from stoker.core.errors import RunCancelled, RunFailed, StokerError
from stoker.core.observer import Observer
from stoker.core.plan import Plan
from stoker.core.settings import PipelineSettings
from stoker.engine.dynamic import Body
from stoker.engine.execution import Policy
from stoker.engine.inputs import Bindings
from stoker.engine.interrupts import interrupts
from stoker.engine.recorder import Recorder
from stoker.engine.runner import RunLoop
from stoker.plan.cachekey import environment_digest
from stoker.run.session import Session
from stoker.store.store import Store

if TYPE_CHECKING:
    from stoker.client import Client, Run


class Drive:
    """One session of a run: from here on the run has a row, and its end is always written into it."""

    def __init__(
        self,
        session: Session,
        made: Plan,
        settings: PipelineSettings,
        observer: Observer,
        *,
        id: str,
        token: str,
        body: Body | None,
        resumed: bool = False,
    ) -> None:
        self._session = session
        self._plan = made
        self._settings = settings
        self._id = id
        self._token = token
        self._body = body
        self._resumed = resumed
        self._observer = observer

    def go(self) -> Run:
        """Run, record the end, and say how it went."""
        request, store = self._session.request, self._session.store
        status, error = "failed", ""
        backends: dict[str, RunningBackend] = {}
        failure: BaseException | None = None
        try:
            sources = [*self._plan.steps]
            backends = self._session.backends(sources, self._settings)
            recorder = Recorder(store, run=self._id, token=self._token)
            if self._resumed:
                recorder.load_earlier(but=request.again)
            runner = RunLoop(
                run=self._id,
                recorder=recorder,
                inputs=Bindings(store.blobs),
                backends=backends,
                observer=self._observer,
                policy=Policy(
                    pipeline=self._plan.pipeline,
                    environment=environment_digest(),
                    fail_fast=self._plan.failure_mode == "fail_fast" and self._body is None,
                    use_cache=request.cache is not False,
                    max_parallel=self._settings.max_parallel,
                    hooks=self._plan.hooks,
                ),
            )
            # Which of a dynamic plan's steps will be reached, and how often, nobody knows yet.
            shown = self._plan if self._body is None else attrs.evolve(self._plan, steps=())
            self._observer.began(self._id, shown)
            if request.debug:
                status = self._loop(runner, backends)
            else:
                with interrupts(runner, self._observer, computing=self._computing):
                    status = self._loop(runner, backends)
        except StokerError as problem:
            failure, error = problem, str(problem)
        except KeyboardInterrupt:
            status, error = "cancelled", "interrupted"  # only under --debug: otherwise the signal stops the runner
        except BaseException as problem:  # the end is recorded, whatever it was, and then raised again
            failure, error = problem, f"{type(problem).__name__}: {problem}"
            raise
        finally:
            store.records.set_run(self._id, self._token, status=status, ended=time.time(), error=error)
            for backend in set(backends.values()):
                backend.close()
        self._observer.ended(status)
        run = client_of(store).run(self._id)
        if failure is not None:
            raise failure
        if status == "cancelled":
            raise RunCancelled(f"run {self._id} was cancelled", run=run, fix=f"stoker resume {self._id}")
        if status != "succeeded":
            raise RunFailed(self._summary(run), run=run, fix=f"stoker logs {self._id} STEP; stoker resume {self._id}")
        return run

    def _computing(self) -> bool:
        return self._body is not None and self._body.computing

    def _loop(self, runner: RunLoop, backends: Mapping[str, RunningBackend]) -> str:
        if self._body is not None:
            return self._body.run(runner, backends)
        runner.add(self._plan.steps)
        runner.close()
        runner.begin()
        # What is needed when the run is over is imported while the first workers start.
        importlib.import_module("stoker.client")
        return runner.loop()

    def _summary(self, run: Run) -> str:
        failed = [step for step in run.steps.values() if step.status == "failed"]
        told = "; ".join(f"{step.key}: {step.cause}: {step.message}".rstrip(": ") for step in failed[:5])
        return f"run {self._id} failed: {told}"


def client_of(store: Store) -> Client:
    """A client of a store that is open; half of its imports are made while the first workers start."""
    from stoker.client import Client

    return Client(store=store)
