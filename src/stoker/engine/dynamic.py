"""Runs a dynamic pipeline: its body in the caller's thread with real values, the engine in a thread beside it.

Each call of the body becomes a node. A failure is raised where the body asks for the result; the run
goes on if the body catches it.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Callable, Mapping, Protocol

from stoker.backends.base.backend import RunningBackend
from stoker.core import findings as checks
from stoker.core.artifact import from_wire
from stoker.core.errors import PreflightError, RunCancelled, RunFailed
from stoker.core.graph import GraphNode
from stoker.core.plan import StepPlan
from stoker.core.protocol import MAPPED
from stoker.core.status import STEP_GOOD
from stoker.engine import events as ev
from stoker.engine.runner import RunLoop
from stoker.plan.planner import Planner, backend_findings, with_rates
from stoker.store import artifacts


class Body(Protocol):
    """Decides which steps come next while a run goes on."""

    @property
    def computing(self) -> bool:
        """Whether the user's own code runs in this process now."""

    def run(self, runner: RunLoop, backends: Mapping[str, RunningBackend]) -> str:
        """Run to the end of the run; its status."""


class DynamicBody:
    """One run of a dynamic pipeline's body, and the session to which its steps are submitted.

    `call` runs the body in this session. `ready` makes what a step needs before it is submitted, such as its image.
    """

    def __init__(
        self, call: Callable[[DynamicBody], Any], planner: Planner, ready: Callable[[StepPlan], StepPlan]
    ) -> None:
        self._call = call
        self._planner = planner
        self._ready = ready
        self._runner: RunLoop | None = None
        self._backends: Mapping[str, RunningBackend] = {}
        self._changed = threading.Condition()
        self._settled: dict[str, str] = {}
        self._shown_warnings: set[str] = set()
        self._over = False
        self.computing = False
        self.returned: Any = None

    def run(self, runner: RunLoop, backends: Mapping[str, RunningBackend]) -> str:
        """Run body and engine to their ends; what the body raised is raised, unless it is a step's failure."""
        self._runner, self._backends = runner, backends
        runner.on_settled = self._on_settled
        outcome: list[Any] = []
        thread = threading.Thread(target=self._engine, args=(runner, outcome), name="stoker-engine")
        thread.start()
        failure: BaseException | None = None
        try:
            self.computing = True
            self.returned = self._call(self)
        except BaseException as error:  # the user's code
            failure = error
        self.computing = False
        runner.post(lambda: runner.close(failed=failure is not None))
        self._join(thread)
        status = outcome[0]
        if isinstance(status, BaseException):
            raise status
        interrupted = isinstance(failure, KeyboardInterrupt) and status == "cancelled"
        if failure is not None and not interrupted and not isinstance(failure, RunFailed):
            raise failure
        return str(status)

    def _engine(self, runner: RunLoop, outcome: list[Any]) -> None:
        try:
            outcome.append(runner.loop())
        except BaseException as error:  # handed over to the thread that waits
            outcome.append(error)
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _join(self, thread: threading.Thread) -> None:
        while thread.is_alive():
            thread.join(0.1)  # so that the main thread can handle signals

    def _on_settled(self, key: str, status: str) -> None:
        self._running().show()  # what the body writes when it goes on comes after that
        with self._changed:
            self._settled[key] = status
            self._changed.notify_all()

    # The session of the pipeline's front end

    def submit(self, node: GraphNode) -> None:
        """Plan a node and add it to the run; refused at once where its backend would refuse it."""
        runner = self._running()
        step = self._planner.step_plan(node)
        findings = list(backend_findings([step], self._backends, self._planner.secrets))
        errors = checks.errors(findings)
        if errors:
            raise PreflightError("\n".join(finding.text() for finding in errors), findings=errors)
        for text in [warning.text() for warning in checks.warnings(findings)]:
            if text not in self._shown_warnings:
                self._shown_warnings.add(text)
                runner.post(partial(runner.growth.say, text))
        (step,) = with_rates([step], findings, self._planner.prices)
        ready = self._ready(step)
        given = {name: ready.inputs[name] for name in ready.mapped if name in ready.inputs}
        if given:
            runner.post(lambda: runner.note(MAPPED, ready.key, given))
        runner.post(lambda: runner.add([ready]))

    def result(self, key: str, output: str) -> Any:
        """The value of a step's output, once it is there; of a fan-out the list of its elements' values."""
        self._wait(key)
        return self._value(self._running().output_of(key, output))

    def wait(self, key: str) -> None:
        """Wait for a step that has no outputs."""
        self._wait(key)

    def _running(self) -> RunLoop:
        if self._runner is None:
            raise RunFailed("the pipeline's run has not begun")
        return self._runner

    def _wait(self, key: str) -> None:
        with self._changed:
            while key not in self._settled and not self._over:
                self._changed.wait(0.1)  # so that the main thread can handle signals
            status = self._settled.get(key)
        if status in STEP_GOOD:
            return
        if status is None or status in ("cancelled", "skipped"):
            raise RunCancelled(f"step '{key}' did not run to its end: the run was stopped")
        runner = self._running()
        runner.post(lambda: runner.tell(ev.Forgiven(key=key)))
        raise RunFailed(f"step '{key}' failed: {runner.failure_of(key)}")

    def _value(self, wire: Mapping[str, Any]) -> Any:
        return artifacts.load(from_wire(wire), self._planner.blobs)
