"""What one call of a pipeline is made with: its stack, its store, its settings, and the backends that run its steps."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence

from stoker import config
from stoker.backends.leasing import Leasing
from stoker.compile.layers import RunFile, assignments, run_file
from stoker.compile.planner import ORCHESTRATOR, Overrides
from stoker.core import plugins
from stoker.core.graph import Source
from stoker.core.plan import Backend, Site, StepPlan
from stoker.core.request import RunRequest
from stoker.core.settings import PipelineSettings
from stoker.runtime.identity import this_process
from stoker.store.store import Store, open_store

if TYPE_CHECKING:
    from stoker.core.devices import Devices

PRELOADED: Final = ("numpy", "torch")
"""Packages that take long to import and ask for no device when they are: forked, they cost a step nothing. JAX and
TensorFlow start threads of their own, which do not survive a fork."""


class Session:
    """What one call of a pipeline is made with: its stack, its store, its settings."""

    def __init__(self, request: RunRequest, *, stack: str | None = None) -> None:
        files = [run_file(request.run_file)] if request.run_file else []
        files += [assignments(request.assignments)] if request.assignments else []
        self.files: Sequence[RunFile] = files
        named = [file.stack for file in files if file.stack]
        self.request = request
        self.stack = config.load(request.stack or (named[-1] if named else None) or stack)
        self.store: Store = open_store(self.stack.database, self.stack.artifact_store, str(self.stack.home))
        self._ledger: Devices | None = None

    def overrides(self) -> Overrides:
        """What run file and command line say about steps."""
        steps: dict[str, tuple[Any, ...]] = {}
        for file in self.files:
            for name, layers in file.steps.items():
                steps[name] = (*steps.get(name, ()), *layers)
        return Overrides(every=tuple(layer for file in self.files for layer in file.layers), steps=steps)

    def parameters(self) -> dict[str, Any]:
        """What run file and command line say about the pipeline's parameters."""
        found: dict[str, Any] = {}
        for file in self.files:
            found.update(file.parameters)
        found.update(self.request.parameters)
        return found

    def site(self, sources: Sequence[Source]) -> Site:
        """Where this machine's workers find things."""
        return Site(
            artifacts=self.store.blobs.uri,
            scratch=str(self.stack.home / "scratch"),
            path=tuple(entry or os.getcwd() for entry in sys.path),
            folder=os.getcwd(),
            sources=tuple(sources),
            preload=tuple(name for name in PRELOADED if name in sys.modules),
            checkpoints=self.store.checkpoints.folder,
        )

    def devices(self) -> Devices:
        """This machine's accelerators, or the pretended ones; opened when somebody asks: to find them takes a while."""
        if self._ledger is None:
            from functools import partial

            from stoker.hardware.leases import Ledger
            from stoker.hardware.probe import probe, processes
            from stoker.hardware.simulate import simulated

            text = self.request.simulate
            self._ledger = Ledger(probe if text is None else partial(simulated, text), processes)
        return self._ledger

    def backends(self, steps: Sequence[StepPlan], settings: PipelineSettings) -> dict[str, Backend]:
        """The stack's orchestrator, and its step operators."""
        site = self.site(_modules_of(steps))
        options: Mapping[str, Any] = {**self.stack.orchestrator.options, **settings.backend.get("orchestrator", {})}
        flavors = {ORCHESTRATOR: (self.stack.orchestrator.flavor, options)}
        for name, operator in self.stack.step_operators.items():
            flavors[name] = (operator.flavor, operator.options)
        if self.request.debug:
            return dict.fromkeys(flavors, self._inline(site, options, steps))
        made = {name: plugins.load("stoker.backends", flavor)(site, given) for name, (flavor, given) in flavors.items()}
        for backend in made.values():
            self._with_devices(backend, site, steps)
        return made

    def _inline(self, site: Site, options: Mapping[str, Any], steps: Sequence[StepPlan]) -> Backend:
        from stoker.runtime.worker import Worker

        backend: Any = plugins.load("stoker.backends", "inline")(site, options)
        backend.execute = Worker(self.store.blobs, checkpoints=site.checkpoints).run
        self._with_devices(backend, site, steps)
        return backend  # type: ignore[no-any-return]

    def _with_devices(self, backend: Any, site: Site, steps: Sequence[StepPlan]) -> None:
        """Let a backend that runs steps on this machine hand out its devices."""
        if hasattr(backend, "leasing"):
            me = this_process()
            limits = any(step.settings.resources.gpus_per_node for step in steps)
            process = (int(me["pid"]), float(me["started"]))
            backend.leasing = Leasing(self.devices, process=process, scratch=site.scratch, limits=limits)


def _modules_of(steps: Sequence[StepPlan]) -> list[Source]:
    """The modules that a worker should have imported before its first step."""
    found: dict[tuple[str, str], Source] = {}
    for step in steps:
        if step.source.kind != "pickled":
            found.setdefault((step.source.module, step.source.path), step.source)
    return list(found.values())
