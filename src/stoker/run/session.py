"""The session of one run: its stack, its store, its settings, and the backends that run its steps."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Final, Mapping, Sequence

import attrs

from stoker import stacks
from stoker.backends.base.backend import RunningBackend, Services
from stoker.backends.base.leasing import Leasing
from stoker.backends.registry import BACKENDS
from stoker.core import plugins
from stoker.core.findings import Finding
from stoker.core.plan import Code, Plan, Site, StepPlan
from stoker.core.request import RunRequest
from stoker.core.settings import PipelineSettings
from stoker.core.source import FunctionSource
from stoker.plan.layers import RunFile, assignments, resolve_pipeline, run_file
from stoker.plan.planner import ORCHESTRATOR, Overrides
from stoker.run.attached import attached_settings
from stoker.store.store import Store, open_store
from stoker.vendors.table import SIMULATE
from stoker.worker.processes import this_process

if TYPE_CHECKING:
    from stoker.core.devices import Devices
    from stoker.core.packages import Interpreter
    from stoker.images.environments import Environments
    from stoker.run.building import Builder
    from stoker.run.program import Program

DEBUGGED: Final = "inline"
"""The backend that runs steps under `--debug`, whatever the stack says."""
PRELOADED: Final = ("numpy", "torch")
"""Packages that take long to import and ask for no device when they are: forked, they cost a step nothing. JAX and
TensorFlow start threads of their own, which do not survive a fork."""


class Session:
    """One session of a run: its stack, its store, its settings."""

    def __init__(self, request: RunRequest, *, stack: str | None = None) -> None:
        files = [run_file(request.run_file)] if request.run_file else []
        backends, self.findings = attached_settings(request)
        files += [backends] if backends.layers else []
        files += [assignments(request.assignments)] if request.assignments else []
        self.files: Sequence[RunFile] = files
        stack_names = [file.stack for file in files if file.stack]
        self.request = request
        self.stack = stacks.load(request.stack or (stack_names[-1] if stack_names else None) or stack)
        self.store: Store = open_store(self.stack.database, self.stack.artifact_store, str(self.stack.home))
        self.code = Code()
        """What travels to steps in images; known once their images are."""
        self.report: Callable[[str], None] = lambda text: None
        """Takes a line for the person about images and environments that are being made."""
        self._ledger: Devices | None = None
        self._environments: Environments | None = None
        self._builder: Builder | None = None

    def hint(self, program: Program) -> None:
        """Tell a program that its steps run on this machine, if they do."""
        room_of = BACKENDS.load(self.stack.orchestrator.flavor).room
        if room_of is not None:
            settings, _ = resolve_pipeline((self.stack.layer, *self.overrides().every), self.stack)
            room = room_of(settings.backend.get(ORCHESTRATOR, {}))
            program.hint(room.cpus, room.memory // 2**30 * 2**30)

    def overrides(self) -> Overrides:
        """What run file and command line say about steps."""
        steps: dict[str, tuple[Any, ...]] = {}
        for file in self.files:
            for name, layers in file.steps.items():
                steps[name] = (*steps.get(name, ()), *layers)
        return Overrides(every=tuple(layer for file in self.files for layer in file.layers), steps=steps)

    def parameters(self) -> dict[str, Any]:
        """What run file and command line say about the pipeline's parameters."""
        parameters: dict[str, Any] = {}
        for file in self.files:
            parameters.update(file.parameters)
        parameters.update(self.request.parameters)
        return parameters

    def site(self, sources: Sequence[FunctionSource]) -> Site:
        """Where this machine's workers find things."""
        return Site(
            artifacts=self.store.blobs.uri,
            scratch=str(self.stack.home / "scratch"),
            path=tuple(entry or os.getcwd() for entry in sys.path),
            folder=os.getcwd(),
            sources=tuple(sources),
            preload=tuple(name for name in PRELOADED if name in sys.modules),
            checkpoints=self.store.checkpoints.folder,
            package=self.code.package,
            code_root=self.code.root,
            bundle=self.code.bundle,
            simulate=self.request.simulate or os.environ.get(SIMULATE, ""),
        )

    def builder(self, settings: PipelineSettings, report: Callable[[str], None]) -> Builder | None:
        """What builds images and packages code for this session's steps; None where all run beside the driver."""
        self.report = report
        hosts, far = {}, []
        for name, (flavor, options) in self._flavors(settings).items():
            if self.request.debug:
                continue
            backend = BACKENDS.load(flavor)
            if backend.image_engine is not None:
                hosts[name] = backend.image_engine(options)
            if backend.sends_code:
                far.append(name)
        if not hosts and not far:
            return None
        from stoker.run.building import Builder

        self._builder = Builder(hosts=hosts, folder=self.stack.home / "wheels", report=report, far=far)
        return self._builder

    def stage(self, plan: Plan, builder: Builder) -> Plan:
        """Build what the steps' images lack and send the user's code along; the plan that names both."""
        if not plan.dynamic and not builder.has_work(plan.steps):
            return plan
        sources = _modules_of(plan.steps)
        if plan.source is not None and plan.source.kind != "pickled":
            sources.append(plan.source)
        steps = builder.with_images(plan.steps)
        self.code = builder.code(sources, steps, self.store.blobs, self.stack.home)
        return attrs.evolve(plan, steps=steps, package=self.code.package)

    def prepare(self, plan: Plan) -> Plan:
        """Make what the steps still lack, images and Python environments; the plan that names them."""
        return attrs.evolve(plan, steps=tuple(map(self.prepare_step, plan.steps)))

    def prepare_step(self, step: StepPlan) -> StepPlan:
        """Make a step's image or its Python environment; the step that names it."""
        return self._with_environment(step if self._builder is None or step.image else self._builder.with_image(step))

    def _with_environment(self, step: StepPlan) -> StepPlan:
        packages = step.settings.packages
        if packages is None or not packages.makes_environment or step.settings.docker is not None:
            return step
        from stoker.plan.environments import environment_name, project_lines

        name = environment_name(packages)  # again: what is installed here may be another since the step was planned
        if name:
            self._all_environments().ready(name, packages, step=step.name, more=project_lines(packages))
        return step if name == step.environment else attrs.evolve(step, environment=name)

    def _all_environments(self) -> Environments:
        if self._environments is None:
            from stoker.images.environments import Environments

            self._environments = Environments(self.stack.home)
        self._environments.report = self.report
        return self._environments

    def _interpreter(self, name: str) -> Interpreter:
        return self._all_environments().interpreter(name)

    def proofs(self, plan: Plan, settings: PipelineSettings) -> tuple[Finding, ...]:
        """The findings of all rules: wheels, drivers and chips of images, and what other distributions look for."""
        in_images = self._image_proofs(plan, settings)
        if not plugins.entry_points("stoker.rules"):
            return in_images
        from stoker.plan.preflight import findings_without_images

        hosts = self._builder.hosts if self._builder is not None else {}
        without_images = [step for step in plan.steps if step.backend not in hosts]
        return (
            *in_images,
            *findings_without_images(plan, without_images, inventory=lambda: self.devices().inventory()),
        )

    def _image_proofs(self, plan: Plan, settings: PipelineSettings) -> tuple[Finding, ...]:
        builder = self.builder(settings, lambda text: None)
        if builder is None or not builder.hosts or not builder.has_work(plan.steps):
            return ()
        from functools import partial

        from stoker.images import engine, registry
        from stoker.plan.preflight import findings

        steps = [step for step in plan.steps if step.backend in builder.hosts]
        host = next(iter(builder.hosts.values()))
        environ = {**os.environ, "DOCKER_HOST": host} if host else dict(os.environ)
        read = partial(registry.image_facts, engine=engine.find(environ))
        return tuple(findings(plan, inventory=self.devices().inventory(), image_facts=read, steps=steps))

    def devices(self) -> Devices:
        """This machine's accelerators, or the pretended ones; opened at the first call, since probing takes a while."""
        if self._ledger is None:
            from functools import partial

            from stoker.devices.leases import Ledger
            from stoker.devices.probe import probe, processes
            from stoker.devices.simulate import parse_simulation

            text = self.request.simulate
            self._ledger = Ledger(probe if text is None else partial(parse_simulation, text), processes)
        return self._ledger

    def backends(self, steps: Sequence[StepPlan], settings: PipelineSettings) -> dict[str, RunningBackend]:
        """The stack's orchestrator, and its step operators."""
        site = self.site(_modules_of(steps))
        flavors = self._flavors(settings)
        if self.request.debug:
            from stoker.worker.serving import distribute
            from stoker.worker.worker import Worker

            execute = Worker(self.store.blobs, checkpoints=site.checkpoints, distribute=distribute).run
            services = Services(leasing=self._leasing(site, steps), execute=execute)
            return dict.fromkeys(flavors, BACKENDS.load(DEBUGGED).open(site, flavors[ORCHESTRATOR][1], services))
        opened = {}
        for name, (flavor, options) in flavors.items():
            services = Services(leasing=self._leasing(site, steps), environments=self._interpreter)
            opened[name] = BACKENDS.load(flavor).open(site, options, services)
        return opened

    def _flavors(self, settings: PipelineSettings) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """The stack's parts by the names under which steps call them: flavor and options."""
        parts = {ORCHESTRATOR: self.stack.orchestrator, **self.stack.step_operators}
        return {name: (part.flavor, settings.backend.get(name, part.options)) for name, part in parts.items()}

    def _leasing(self, site: Site, steps: Sequence[StepPlan]) -> Leasing:
        """The leasing of this machine's devices to the jobs of one backend."""
        me = this_process()
        limits = any(step.settings.resources.gpus_per_node for step in steps)
        process = (int(me["pid"]), float(me["started"]))
        return Leasing(self.devices, process=process, scratch=site.scratch, limits=limits)


def _modules_of(steps: Sequence[StepPlan]) -> list[FunctionSource]:
    """The modules that a worker should have imported before its first step."""
    modules: dict[tuple[str, str], FunctionSource] = {}
    for step in steps:
        if step.source.kind != "pickled":
            modules.setdefault((step.source.module, step.source.path), step.source)
    return list(modules.values())
