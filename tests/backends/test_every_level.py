"""Each field of each backend's settings at each level: `--explain`, `--render` and the job that is submitted agree.

Where a field is given does not matter to a platform: the request is the one that the same value in the stack makes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.backends.fields import ROWS, Example
from tests.backends.test_every_field import MACHINE, lines_of

from stoker import config, pipeline, stacks, step
from stoker.backends.aws_batch.backend import BatchBackend
from stoker.backends.base.backend import LeasesDevices, ProvesPlacement, Services, capability
from stoker.backends.docker.backend import DockerBackend
from stoker.backends.kubeflow.backend import KubeflowBackend
from stoker.backends.kubernetes.backend import KubernetesBackend
from stoker.backends.local.backend import LocalBackend
from stoker.backends.ray.backend import RayBackend
from stoker.backends.sagemaker.backend import SagemakerBackend
from stoker.backends.skypilot.backend import SkypilotBackend
from stoker.backends.slurm.backend import SlurmBackend
from stoker.cli import build
from stoker.cli.plan import setting_lines
from stoker.core.codec import to_json
from stoker.core.errors import BackendError, RunFailed, SettingsError
from stoker.core.plan import Capacity, Job, StepPlan
from stoker.core.request import RunRequest
from stoker.core.units import whole_run_fields
from stoker.devices.probe import parse_simulation
from stoker.plan.layers import resolve_pipeline
from stoker.run import driver, rendering
from stoker.run.session import Session
from stoker.settings.options import component_settings, layer_from, settings_class

CLASSES: Mapping[str, type] = {
    "batch": BatchBackend,
    "docker": DockerBackend,
    "kubeflow": KubeflowBackend,
    "kubernetes": KubernetesBackend,
    "local": LocalBackend,
    "ray": RayBackend,
    "sagemaker": SagemakerBackend,
    "skypilot": SkypilotBackend,
    "slurm": SlurmBackend,
}
PARTS = ("orchestrator", "step_operator")
WHOLE_RUN_LEVELS = ("stack defaults", "pipeline", "pipeline.with_options", "run file", "set")
STEP_LEVELS = ("step", "step.with_options", "run file step", "set step")
SHARED = {"ray": "request/entrypoint"}
"""The part of a request that is the whole run's, by flavor: one job of Ray's starts the tasks of many steps."""
HERE = Path(__file__).name
LOAD = stacks.load
"""Before it is replaced by what returns a case's stack."""


def train() -> int:
    return 1


@attrs.frozen(kw_only=True)
class Case:
    """A field of a backend with a value, given at a level, for a step on a part of a stack."""

    flavor: str
    part: str
    level: str
    name: str
    example: Example

    @property
    def key(self) -> str:
        return f"{self.part}.{self.flavor}"

    @property
    def given(self) -> dict[str, Any]:
        return {self.key: {self.name: self.example.value}}

    @property
    def origin(self) -> str:
        """How `--explain` calls the place where it is given."""
        return {
            "stack": "stoker.toml:7",
            "stack defaults": "stoker.toml:9",
            "run file": "run.yaml",
            "run file step": "run.yaml",
            "set": f"--set {self.key}.{self.name}",
            "set step": f"--set steps.train.{self.key}.{self.name}",
        }.get(self.level, HERE)


@attrs.frozen(kw_only=True)
class Seen:
    """What a field comes to: as explained, as rendered, and as it is in the job that is submitted."""

    value: Any
    text: str
    rendered: frozenset[str]
    submitted: frozenset[str]
    options: Mapping[str, Any]


class Submitted:
    """What backends are made with, and what they are given to submit."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.options: list[Mapping[str, Any]] = []


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> Submitted:
    """Backends that are asked for nothing but what they would send: no platform is reached."""
    for name in ("DOCKER_HOST", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    seen = Submitted()
    roomy = Capacity(cpus=64, memory=1 << 40, slots=64)
    monkeypatch.setattr(DockerBackend, "_remote_capacity", lambda self: roomy)  # an engine elsewhere is not asked
    monkeypatch.setattr(Session, "builder", lambda *_: None)  # nothing is built
    monkeypatch.setattr(driver, "refuse", lambda made: None)  # what a platform refuses is other tests' affair
    for flavor in ROWS:
        kind = CLASSES[flavor]
        plain = kind.__init__

        def made(self: Any, site: Any, options: Any, *services: Services, plain: Any = plain) -> None:
            seen.options.append(dict(options))
            plain(self, site, options, *services)

        def submit(self: Any, job: Job) -> str:
            seen.requests.append(placeholder_leases(self, job))
            raise BackendError("nothing is submitted here")

        monkeypatch.setattr(kind, "__init__", made)
        monkeypatch.setattr(kind, "submit", submit)
        if issubclass(kind, ProvesPlacement):
            monkeypatch.setattr(kind, "prove", lambda *_: iter(()))
    return seen


def placeholder_leases(backend: Any, job: Job) -> Any:
    """The request of a job, with devices as `--render` names them."""
    leases = capability(backend, LeasesDevices) if job.step.settings.resources.gpus_per_node else None
    if leases is None:
        return to_json(backend.render(job))
    return to_json(leases.render_leased(job, rendering.placeholder_leases(parse_simulation(MACHINE), job)))


def stack_of(case: Case, folder: Path) -> config.Stack:
    """A stack with the backend as the part in question, and maybe the field's value."""
    row = ROWS[case.flavor]
    options = {**row.options, **case.example.settings}
    origins = {}
    if case.level == "stack":
        options[case.name] = case.example.value
        origins[case.name] = "stoker.toml:7"
    else:
        options.pop(case.name, None)
    component = config.Component(flavor=case.flavor, options=component_settings(case.flavor, options), origins=origins)
    (folder / "stoker.toml").write_text("[stacks.one]\n")
    stack = attrs.evolve(LOAD("one", folder), home=folder / "home")
    if case.level == "stack defaults":
        stack = attrs.evolve(stack, layer=layer_from("stoker.toml:9", (case.given,)))
    if case.part == "orchestrator":
        return attrs.evolve(stack, orchestrator=component)
    return attrs.evolve(stack, step_operators={"far": component})


def called(case: Case, folder: Path) -> tuple[Any, RunRequest]:
    """The pipeline with the field at its level, and the request of its call."""
    base: dict[str, Any] = {"resources": dict(case.example.resources), **case.example.options}
    if case.part == "step_operator":
        base["step_operator"] = "far"
    on_step = case.given if case.level == "step" else {}
    one = step(settings=on_step, cache=False, **base)(train)
    if case.level == "step.with_options":
        one = one.with_options(settings=case.given)

    @pipeline(settings=case.given if case.level == "pipeline" else {})
    def training() -> None:
        one()

    made: Any = training
    if case.level == "pipeline.with_options":
        made = training.with_options(settings=case.given)
    plain = component_settings(case.flavor, case.given[case.key])[case.name]
    request = RunRequest(simulate=MACHINE, quiet=True)
    if case.level.startswith("run file"):
        document: Any = {case.part: {case.flavor: {case.name: plain}}}
        path = folder / "run.yaml"
        path.write_text(json.dumps({"steps": {"train": document}} if case.level.endswith("step") else document))
        request = attrs.evolve(request, run_file=str(path))
    elif case.level.startswith("set"):
        start = "steps.train." if case.level == "set step" else ""
        request = attrs.evolve(request, assignments=(f"{start}{case.key}.{case.name}={json.dumps(plain)}",))
    return made, request


def seen_of(
    case: Case, folder: Path, submitted: Submitted, monkeypatch: pytest.MonkeyPatch, *, run: bool = True
) -> Seen:
    """Plan it, render it, and `run` it up to the moment in which its job is submitted."""
    stack = stack_of(case, folder)
    monkeypatch.setattr(stacks, "load", lambda *_: stack)
    called_pipeline, request = called(case, folder)
    made = driver.plan(called_pipeline, {}, request)
    (one,) = made.steps
    submitted.options.clear()
    session = Session(request)
    session.hint(called_pipeline)
    (rendered,) = rendering.render_plan(made, session)
    rendered_with = options_of(case, submitted)
    sent: frozenset[str] = frozenset()
    if run:
        submitted.requests.clear()
        submitted.options.clear()
        with pytest.raises(RunFailed) as failed:
            driver.run(called_pipeline, {}, request)
        sent = lines_of_all(rendering.mask_secrets(submitted.requests[0], ()), failed.value.run.id)
        assert options_of(case, submitted) == rendered_with
    text = next((line for line in setting_lines(one) if line.startswith(f"{case.part}.{case.name}")), "")
    return Seen(
        value=value_of(one, case),
        text=text,
        rendered=lines_of_all(rendered.request, "RUN"),
        submitted=sent,
        options=rendered_with,
    )


def options_of(case: Case, submitted: Submitted) -> Mapping[str, Any]:
    """What the backend of the part in question was made with, of what cannot change from step to step."""
    kind = settings_class(case.flavor)
    whole = whole_run_fields(kind)
    ours = submitted.options[-1]  # a stack's operators are made after its orchestrator
    return {name: ours[name] for name in whole if name in ours}


def value_of(one: StepPlan, case: Case) -> Any:
    return to_json(one.settings.backend.get(case.part, {}).get(case.name))


def lines_of_all(request: Any, run: str) -> frozenset[str]:
    return frozenset(line.replace(run, "RUN") for line in lines_of(json.loads(json.dumps(request, default=str))))


def request_of(seen: Seen, case: Case) -> frozenset[str]:
    """The lines of a request that a step's settings speak of: what starts many steps' tasks is not its own."""
    shared = f"/{SHARED[case.flavor]}" if case.level in STEP_LEVELS and case.flavor in SHARED else None
    return frozenset(line for line in seen.rendered if shared is None or not line.startswith(shared))


def levels_of(number: int, part: str, *, every: bool) -> tuple[str, ...]:
    """The levels at which a field is tried on a part of a stack; not `every` one: of each third field one of the nine
    on one of the parts, others for the next one, since what a level means does not depend on the field."""
    levels = WHOLE_RUN_LEVELS + STEP_LEVELS
    if every:
        return levels
    turn, other = divmod(number, 3)
    return (levels[turn % len(levels)],) if not other and turn % len(PARTS) == PARTS.index(part) else ()


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("flavor", ROWS)
def test_all_three_agree(
    flavor: str, part: str, submitted: Submitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_form: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, (name, example) in enumerate(ROWS[flavor].examples.items()):
        levels = levels_of(number, part, every=long_form)
        if not levels:
            continue
        case = Case(flavor=flavor, part=part, level="stack", name=name, example=example)
        there = seen_of(case, tmp_path, submitted, monkeypatch, run=False)
        for level in levels:
            agrees_at(attrs.evolve(case, level=level), there, tmp_path, submitted, monkeypatch)


def agrees_at(case: Case, there: Seen, tmp_path: Path, submitted: Submitted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a field at a level comes to what it comes to `there`, in the stack."""
    kind = settings_class(case.flavor)
    whole = case.name in whole_run_fields(kind)
    place = f"{case.key}.{case.name} at {case.level}"
    if case.level in STEP_LEVELS and whole:
        with pytest.raises(SettingsError, match="for a whole run"):
            seen_of(case, tmp_path, submitted, monkeypatch)
        return
    here = seen_of(case, tmp_path, submitted, monkeypatch)
    assert here.value == there.value == to_json(component_settings(case.flavor, case.given[case.key])[case.name]), place
    assert case.origin in here.text, place
    assert here.rendered == here.submitted, place
    assert request_of(here, case) == request_of(there, case), place
    assert here.options == there.options, place
    if whole:
        assert to_json(here.options[case.name]) == here.value, place


DOCKER = Case(flavor="docker", part="orchestrator", level="pipeline", name="host", example=Example("tcp://a.example:1"))


@pytest.mark.parametrize("part", PARTS)
def test_a_pipeline_inside_another_cannot_change_what_the_run_has(
    part: str, submitted: Submitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = attrs.evolve(DOCKER, part=part)
    stack = stack_of(case, tmp_path)
    monkeypatch.setattr(stacks, "load", lambda *_: stack)
    one = step(step_operator="far" if part == "step_operator" else None)(train)

    @pipeline(settings=case.given)
    def inner() -> None:
        one()

    @pipeline
    def outer() -> None:
        inner()

    @pipeline(settings=case.given)
    def alike() -> None:
        inner()

    with pytest.raises(SettingsError, match=r"host is for a whole run, and 'tcp://a\.example:1' here") as error:
        driver.plan(outer, {}, RunRequest())
    assert HERE in error.value.where and "the run has nothing" in error.value.message
    assert driver.plan(alike, {}, RunRequest()).steps


def test_what_a_flavor_lacks_of_operators_settings_is_left_to_those_that_have_it(tmp_path: Path) -> None:
    stack = stack_of(attrs.evolve(DOCKER, part="step_operator"), tmp_path)
    other = config.Component(flavor="slurm", options={"partition": "cpu"})
    stack = attrs.evolve(stack, step_operators={**stack.step_operators, "big": other})
    every = layer_from("a", ({"step_operator": {"partition": "gpu"}},))
    settings, _ = resolve_pipeline((stack.layer, every), stack)
    assert settings.backend == {"big": {"partition": "gpu"}}


def test_options_of_an_earlier_session_lie_over_the_stacks_own(tmp_path: Path) -> None:
    stack = stack_of(attrs.evolve(DOCKER, part="step_operator", level="stack"), tmp_path)
    had = {"far": {"host": "tcp://had.example:1", "keep": True}}
    every = layer_from("a", ({"step_operator.docker": {"keep": False}},))
    settings, _ = resolve_pipeline((stack.layer, every), stack, recorded_options=had)
    assert settings.backend == {"far": {"host": "tcp://had.example:1", "keep": False}}


def test_a_resumed_run_has_what_its_command_line_says_of_backends(
    submitted: Submitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = attrs.evolve(DOCKER, name="network", example=Example("ml"))
    stack = stack_of(attrs.evolve(case, level="stack"), tmp_path)
    monkeypatch.setattr(stacks, "load", lambda *_: stack)
    one = step(settings={"orchestrator.docker": {"user": "image"}})(train)

    @pipeline
    def training() -> None:
        one()

    with pytest.raises(RunFailed) as failed:
        driver.run(training, {}, RunRequest(quiet=True))
    assignments = ("orchestrator.docker.network=other", "orchestrator.docker.host=tcp://b.example:1")
    with pytest.raises(RunFailed):
        driver.resume(failed.value.run.id, RunRequest(quiet=True, assignments=assignments))
    (request,) = submitted.requests[-1]["containers"]
    assert request["request"]["HostConfig"]["NetworkMode"] == "other"
    assert "User" not in request["request"], "what the step itself says stays"
    assert submitted.requests[-1]["engine"] == "tcp://b.example:1"


def test_images_are_built_where_the_run_has_its_engine(tmp_path: Path) -> None:
    stack = stack_of(attrs.evolve(DOCKER, level="stack"), tmp_path)
    every = layer_from("a", ({"orchestrator": {"host": "tcp://b.example:1"}},))
    settings, _ = resolve_pipeline((stack.layer, every), stack)
    assert build.addresses(stack, settings) == {"orchestrator": "tcp://b.example:1"}
