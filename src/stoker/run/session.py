"""The session of one run: its stack, its store, its settings, and the backends that run its steps."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Mapping, Sequence

import attrs

from stoker import stacks
from stoker.backends.base.backend import RunningBackend, Services
from stoker.backends.base.leasing import Leasing
from stoker.backends.registry import BACKENDS
from stoker.core import plugins
from stoker.core.findings import Finding
from stoker.core.plan import Code, Plan, Site, StepPlan, named_inputs
from stoker.core.printable import printable
from stoker.core.protocol import FunctionSource
from stoker.core.questions import SECONDS, NoAnswer, Questions, offline_reason
from stoker.core.request import RunRequest
from stoker.core.settings import Layer, PipelineSettings
from stoker.plan import plandoc
from stoker.plan.layers import RunFile, assignments, resolve_pipeline, run_file, with_usual_parts
from stoker.plan.planner import Overrides, refuse
from stoker.run.attached import attached_settings
from stoker.stacks import ORCHESTRATOR
from stoker.store.registry import UseRow
from stoker.store.rows import RunRow
from stoker.store.store import Store, open_store
from stoker.store.writer import RunWriter
from stoker.vendors.table import SIMULATE
from stoker.worker.processes import this_process
from stoker.worker.secrets import SecretKind, SecretReader

if TYPE_CHECKING:
    from stoker.core.devices import Devices
    from stoker.core.docker import ImageFacts
    from stoker.core.packages import Interpreter
    from stoker.images.environments import Environments
    from stoker.images.layers import LayerReading
    from stoker.plan.locking import Locking
    from stoker.run.building import Builder
    from stoker.run.program import Program

NOT_ASKED: Final = "STK368"
DEBUGGED: Final = "inline"
"""The backend that runs steps under `--debug`, whatever the stack says."""
PRELOADED: Final = ("numpy", "torch")
"""Packages that take long to import and ask for no device when they are: forked, they cost a step nothing. JAX and
TensorFlow start threads of their own, which do not survive a fork."""


class Session:
    """One session of a run: its stack, its store, its settings."""

    def __init__(self, request: RunRequest, *, stack: str | None = None) -> None:
        files = [run_file(request.run_file)] if request.run_file else []
        backends = attached_settings(request)
        files += [backends] if backends.layers else []
        files += [assignments(request.assignments)] if request.assignments else []
        self.files: Sequence[RunFile] = files
        stack_names = [file.stack for file in files if file.stack]
        self.request = request
        self.stack = stacks.load(request.stack or (stack_names[-1] if stack_names else None) or stack)
        overrides = self.overrides()
        self.add_parts((*overrides.every, *(layer for layers in overrides.steps.values() for layer in layers)))
        self.secrets = SecretReader(self._secret_kinds)
        """Reads what secrets of this stack are, once for plan and run."""
        self.store: Store = open_store(
            self.stack.database, self.stack.artifact_store, str(self.stack.home), shared=self.stack.shared
        )
        self.code = Code()
        """What travels to steps in images; known once their images are."""
        self.report: Callable[[str], None] = lambda text: None
        """Takes a line for the person about images and environments that are being made."""
        self.bundle = ""
        """Stoker's worker for other machines where it was made before; empty where this session makes it."""
        self.questions = Questions(
            self.stack.home,
            offline="--offline" if request.offline else offline_reason(),
            strict=request.offline,
            anew=request.upgrade,
            patient=request.upgrade,
            show=show_waiting,
        )
        """What the plan asks of the outside."""
        self._asked = itertools.count()
        self._digests: dict[str, str] = {}
        """The digests of the images that were read for the plan, by their references."""
        self._ledger: Devices | None = None
        self._environments: Environments | None = None
        self._worker_imports: tuple[str, ...] = ()
        self._builder: Builder | None = None
        self._locking: Locking | None = None

    def add_parts(self, layers: Iterable[Layer], names: Iterable[str] = ()) -> None:
        """Add what the stack lacks of backends that settings ask for, and of those that steps of a run call by name."""
        self.stack = with_usual_parts(self.stack, layers).with_usual(names)

    def remember_parts(self, settings: PipelineSettings) -> None:
        """Keep which backends a run has that no file names: `stoker gc` and `stoker cancel` look there, too."""
        for name, part in self.stack.parts.items():
            if part.usual:
                from stoker.client.leftjobs import remember_part  # few runs have such parts

                remember_part(str(self.stack.home), part.flavor, settings.backend.get(name, part.options))

    def _secret_kinds(self) -> Mapping[str, SecretKind]:
        from stoker.client.namedsecrets import kinds_of  # few runs have secrets

        return kinds_of(self.stack)

    def writer(self, run: str, token: str, report: Callable[[str], None]) -> RunWriter:
        """What writes the rows of a run that this session drives."""
        return RunWriter(self.store, run=run, token=token, patience=self.stack.reconnect, report=report)

    def create_run(self, row: RunRow, plan: Plan) -> None:
        """Write a run's row and plan, and which named artifacts and model it uses; doing it twice changes nothing."""
        text = plandoc.dump(plan)
        self.store.records.create_run(row, plan=text)
        for step in plan.steps if '"named":' in text else ():
            self.note_uses(row.id, step)
        if plan.model is not None and plan.model_version is not None:
            self.store.registry.note_run(plan.model.name, plan.model_version, row.id)

    def note_uses(self, run: str, step: StepPlan) -> StepPlan:
        """Record the versions of named artifacts that a step of a run is given; the step."""
        self.store.registry.add_uses(
            UseRow(run_id=run, key=step.key, parameter=parameter, name=name, version=version)
            for parameter, name, version in named_inputs(step)
        )
        return step

    def losses(self, backend: str) -> tuple[int, float]:
        """How many attempts on one of the stack's backends were lost with their place, in the seconds of all."""
        from stoker.core.cadence import LOSSES  # few steps save checkpoints by it

        return self.store.records.losses(self.stack.name, backend, LOSSES)

    def hint(self, program: Program) -> None:
        """Tell a program that its steps run on this machine, if they do; what its workers import is noted."""
        self._worker_imports = program.worker_imports
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
            metrics=str(self.stack.home / "scratch" / f"metrics-{os.getpid()}"),
            path=tuple(entry or os.getcwd() for entry in sys.path),
            folder=os.getcwd(),
            sources=tuple(sources),
            preload=tuple(name for name in PRELOADED if name in sys.modules),
            worker_imports=self._worker_imports,
            checkpoints=self.store.checkpoints.folder,
            package=self.code.package,
            code_root=self.code.root,
            bundle=self.code.bundle,
            simulate=self.request.simulate or os.environ.get(SIMULATE, ""),
            imports=str(self.stack.home / "imports.json"),
            registry=self.stack.container_registry.uri if self.stack.container_registry is not None else "",
        )

    def builder(self, settings: PipelineSettings, report: Callable[[str], None]) -> Builder | None:
        """What builds images and packages code for this session's steps; None where all run beside the driver."""
        self.report = report
        hosts, far, pushing = {}, [], {}
        for name, (flavor, options) in self._flavors(settings).items():
            if self.request.debug:
                continue
            backend = BACKENDS.load(flavor)
            if backend.image_engine is not None:
                hosts[name] = backend.image_engine(options)
            if backend.sends_code:
                far.append(name)
            if backend.puller is not None:
                pushing[name] = backend.puller(options)
        if not hosts and not far:
            return None
        from stoker.run.building import Builder

        self._builder = Builder(
            hosts=hosts,
            folder=self.stack.home / "wheels",
            report=report,
            far=far,
            pushing=pushing,
            registry=self.stack.container_registry,
            read_secret=self.secrets.read,
            builder=self.stack.image_builder,
            locking=self.locking,
        )
        self._builder.ready_bundle = self.bundle
        return self._builder

    def stage(self, plan: Plan, builder: Builder) -> Plan:
        """Build what the steps' images lack and send the user's code along; the plan that names both."""
        if not plan.dynamic and not builder.has_work(plan.steps):
            return plan
        self.questions.be_patient()
        if plan.locks:
            self.locking().adopt(plan.locks)
        sources = _modules_of(plan.steps)
        if plan.dynamic and plan.source is not None and plan.source.kind != "pickled":
            sources.append(plan.source)
        steps = builder.with_images(plan.steps)
        if self._digests:
            from stoker.images.contents import keep_digests

            keep_digests(self.stack.home, self._digests)
        self.code = builder.code(sources, steps, self.store.blobs, self.stack.home)
        locks = {} if self._locking is None else self._locking.documents()
        return attrs.evolve(plan, steps=steps, package=self.code.package, locks=locks)

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

    def prove(self, plan: Plan, settings: PipelineSettings) -> Plan:
        """The plan with the proofs of its accelerators, and the findings of all rules: those of images, wheels, drivers
        and chips, and those of other distributions.
        """
        plan = self._with_data(plan, settings)
        builder = self._builder or self.builder(settings, lambda text: None)
        hosts = builder.hosts if builder is not None and builder.has_work(plan.steps) else {}
        if builder is not None:
            registries = builder.registry_findings(plan.steps, self.questions)
            plan = attrs.evolve(plan, findings=(*plan.findings, *registries))
        asks = any(step.settings.resources.gpus_per_node for step in plan.steps)
        if not hosts and not asks and not plugins.entry_points("stoker.rules"):
            return plan
        from stoker.images import engine

        host = next(iter(hosts.values()), "")
        environ = {**os.environ, "DOCKER_HOST": host} if host else dict(os.environ)
        answering = cache(lambda: engine.find_again(self.questions, environ))
        if hosts:
            threading.Thread(target=answering, daemon=True).start()  # while the next lines import what checks
        from stoker.images import contents, registry
        from stoker.plan.preflight import Surroundings, judge

        flavors = {name: BACKENDS.load(flavor) for name, (flavor, _) in self._flavors(settings).items()}
        here = [name for name, one in flavors.items() if one.image_engine is None and not one.sends_code]

        def read(reference: str) -> ImageFacts | None:
            layers = self._layers_of(reference) if asks else None
            facts = registry.image_facts(reference, engine=answering(), layers=layers, questions=self.questions)
            if facts.digest:
                self._digests[reference] = facts.digest
            return contents.known_contents(facts, self.stack.home / "wheels")

        surroundings = Surroundings(
            inventory=lambda: self.devices().inventory(),
            image_facts=read,
            last_digests=contents.last_digests(self.stack.home) if hosts else {},
            in_images=frozenset(hosts),
            here=frozenset(flavors if self.request.debug else here),
            resolve=lambda step, image, machine: self.locking().of_image(step, image, machine=machine),
        )
        steps, findings = judge(plan, surroundings)
        plan = attrs.evolve(plan, steps=steps, findings=(*plan.findings, *findings))
        return attrs.evolve(plan, locks=self.locking().documents()) if hosts else plan

    def _with_data(self, plan: Plan, settings: PipelineSettings) -> Plan:
        """The plan with what the data of its steps is, and the findings about that."""
        for step in plan.steps:
            if step.settings.data and not step.data:
                break
        else:
            return plan
        from stoker.plan.data import with_data

        flavors = self._flavors(settings)
        steps, found = with_data(
            plan.steps,
            self.questions,
            self.secrets,
            far=lambda name: BACKENDS.load(flavors[name][0]).sends_code and not self.request.debug,
        )
        return attrs.evolve(plan, steps=steps, findings=(*plan.findings, *found))

    def ask_backend(self, name: str, where: str, check: Callable[[], Iterable[Finding]]) -> Iterable[Finding]:
        """What a backend says that asks its cluster; that it was not asked, or gave no answer in time, is a finding."""
        part = self.stack.parts[name]
        who = f"backend '{name}'"
        try:
            findings: Iterable[Finding] = self.questions.ask(
                who,
                lambda: list(check()),
                key=["backend", name, next(self._asked)],  # a cluster's state is not kept: the next plan asks again
                place=["backend", part.flavor, dict(part.options)],
                nearby=not self.questions.strict,
            )
            return findings
        except NoAnswer as error:
            why = "whether the cluster has room for the steps, and would take them, shows when they run"
            what = f"not checked: what {who} says of its steps: {error.message}"
            fix = f"plan again without --offline, or with more time: {SECONDS}=60"
            return [Finding(code=NOT_ASKED, level="info", where=where, what=what, why=why, fix=fix)]

    def locking(self) -> Locking:
        """The locks of what images install; they are kept in the stack's home."""
        if self._locking is None:
            from stoker.images.resolving import LockStore
            from stoker.plan.locking import Locking

            self._locking = Locking(LockStore(self.stack.home), self.questions, upgrade=self.request.upgrade)
        return self._locking

    def _layers_of(self, reference: str) -> LayerReading | None:
        """How far a plan reads an image's layers: what was read before, and little more; nothing of plain images."""
        from stoker.core.imagenames import is_plain
        from stoker.images.layers import LayerCache, planned_reading

        return None if is_plain(reference) else planned_reading(LayerCache(self.stack.home))

    def prove_step(self, plan: Plan, step: StepPlan) -> StepPlan:
        """A step of a dynamic pipeline with its proof and its data, now that it is known; raises `PreflightError`."""
        proved = step.proof is not None or not step.settings.resources.gpus_per_node
        if proved and (step.data or not step.settings.data):
            return step
        self.questions.begin()
        judged = self.prove(attrs.evolve(plan, steps=(step,), findings=()), plan.settings)
        refuse(judged)
        return judged.steps[0]

    def devices(self) -> Devices:
        """This machine's accelerators, or the pretended ones; opened at the first call, since probing takes a while."""
        if self._ledger is None:
            from functools import partial

            from stoker.devices.leases import Ledger
            from stoker.devices.probe import parse_simulation, probe, processes
            from stoker.worker.survivors import Survivors

            text = self.request.simulate
            find = probe if text is None else partial(parse_simulation, text)
            self._ledger = Ledger(find, processes, survivors=Survivors())
        return self._ledger

    def backends(self, steps: Sequence[StepPlan], settings: PipelineSettings) -> dict[str, RunningBackend]:
        """The stack's orchestrator, and its step operators."""
        self.add_parts((), [step.backend for step in steps])
        site = self.site(_modules_of(steps))
        flavors = self._flavors(settings)
        if self.request.debug:
            from stoker.worker.serving import distribute
            from stoker.worker.worker import Worker

            worker = Worker(self.store.blobs, checkpoints=site.checkpoints, metrics=site.metrics, distribute=distribute)
            services = Services(leasing=self._leasing(site, steps), execute=worker.run)
            return dict.fromkeys(flavors, BACKENDS.load(DEBUGGED).open(site, flavors[ORCHESTRATOR][1], services))
        opened = {}
        for name, (flavor, options) in flavors.items():
            services = Services(
                leasing=self._leasing(site, steps),
                environments=self._interpreter,
                environment={stacks.NAMED: self.stack.name},
            )
            opened[name] = BACKENDS.load(flavor).open(site, options, services)
        return opened

    def _flavors(self, settings: PipelineSettings) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """The stack's parts by the names under which steps call them: flavor and options."""
        parts = self.stack.parts
        return {name: (part.flavor, settings.backend.get(name, part.options)) for name, part in parts.items()}

    def _leasing(self, site: Site, steps: Sequence[StepPlan]) -> Leasing:
        """The leasing of this machine's devices to the jobs of one backend."""
        me = this_process()
        limits = any(step.settings.resources.gpus_per_node for step in steps)
        process = (int(me["pid"]), float(me["started"]))
        return Leasing(self.devices, process=process, scratch=site.scratch, limits=limits)


def show_waiting(text: str) -> None:
    """Show on a terminal what a plan waits for, in a line that goes away again."""
    out = sys.stderr
    if out is not None and out.isatty() and os.environ.get("TERM") != "dumb":
        out.write(f"\r\x1b[K{printable(text)}")
        out.flush()


def _modules_of(steps: Sequence[StepPlan]) -> list[FunctionSource]:
    """The modules that a worker should have imported before its first step."""
    modules: dict[tuple[str, str], FunctionSource] = {}
    for step in steps:
        if step.source.kind != "pickled":
            modules.setdefault((step.source.module, step.source.path), step.source)
    return list(modules.values())
