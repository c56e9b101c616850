"""The exact requests of a plan's steps, without sending or building anything.

Values that are known only when a run starts have placeholders: `RUN` for the run's id, words in angle brackets for an
image that would be built and for devices that would be leased. An input from another step is shown as that step's
output. What looks like a secret is masked.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Callable, Final, Mapping, Sequence, cast

import attrs

from stoker import stacks
from stoker.backends.base.backend import ExpectsSteps, LeasesDevices, RunningBackend, RunsByHand, capability
from stoker.core.codec import to_json
from stoker.core.devices import Inventory, Lease
from stoker.core.plan import Code, Job, Plan, StepPlan, steps_of, without_secrets
from stoker.core.request import RunRequest
from stoker.core.secret import MASK, SECRET_NAME, SECRET_WORDS
from stoker.images import context, engine
from stoker.images.build import engine_text, image_spec
from stoker.images.dockerfile import ImageSpec, dockerfile, requirement_files
from stoker.run.building import Builder, code_root
from stoker.run.session import Session

RUN_PLACEHOLDER: Final = "RUN"
"""Placeholder of the run's id."""
IMAGE_PLACEHOLDER: Final = "<built from the Dockerfile>"
"""Placeholder of an image that would be built: its tag depends on its parent's digest, which needs an engine."""
# Names as in https://12factor.net/config, recognized by their end. "key" alone is too common.
_ASSIGNMENT: Final = re.compile(rf"(?<!\w)({SECRET_WORDS})=(?:\"[^\"]*\"|'[^']*'|[^\s,;&]+)", re.IGNORECASE)
_WHOLE_ASSIGNMENT: Final = re.compile(rf"({SECRET_WORDS})=.*", re.IGNORECASE | re.DOTALL)
_ENV_INSTRUCTION: Final = re.compile(rf"^(\s*ENV\s+{SECRET_WORDS})[ \t]+.*$", re.IGNORECASE | re.MULTILINE)
_SHORTEST: Final = 6
"""Characters. A shorter value of a secret variable may be a common word, which is not masked everywhere."""


@attrs.frozen(kw_only=True)
class RenderedStep:
    """What a step's backend would be sent."""

    step: str
    backend: str
    request: Mapping[str, Any]
    script: str = ""
    """What a person pastes into a shell to run the step by hand; empty where the backend has no such script."""
    image: str = ""
    """Empty for a step that runs in no image."""
    dockerfile: str = ""
    """Empty for a step without an image, and for an image that is used as it is."""
    files: Mapping[str, str] = attrs.field(factory=dict)
    """The requirement files that the Dockerfile copies, by name."""
    times: tuple[str, ...] = ()
    """The inputs over which the step fans out: the request is sent once for each element."""


def render_plan(
    made: Plan, session: Session, report: Callable[[context.CodePackage], None] = lambda package: None
) -> tuple[RenderedStep, ...]:
    """The requests of all steps of a plan that this session made. Nothing is started.

    `report` is given the package of code that would travel.
    """
    made = without_secrets(made)
    steps = list(made.steps)
    session.add_parts((), (step.backend for step in steps))
    builder = session.builder(made.settings, lambda text: None)
    images: dict[str, _Image] = {}
    if builder is not None and builder.has_work(steps):
        images = _images(steps, builder, session)
        session.code = _code(steps, builder, session.stack.home, report)
    backends = session.backends(steps, made.settings)
    for name, one in backends.items():
        expecting = capability(one, ExpectsSteps)
        if expecting is not None:
            named = [attrs.evolve(step, image=images.get(step.key, _Image()).name) for step in steps]
            expecting.expect(steps_of(name, named))
    try:
        requests = []
        for step in steps:
            image = images.get(step.key, _Image())
            backend = backends[step.backend]
            job = _first_job(attrs.evolve(step, image=image.name), made.pipeline)
            rendered_request = RenderedStep(
                step=step.key,
                backend=step.backend,
                request=_request(job, backend, session),
                image=image.name,
                dockerfile=image.text,
                files=image.files,
                times=step.mapped,
            )
            requests.append(_with_script(_mask(rendered_request, os.environ), job, backend))
        return tuple(requests)
    finally:
        for backend in set(backends.values()):
            backend.close()


def render_step(made: Plan, step: StepPlan, *, run: str, element: str = "") -> RenderedStep:
    """The request of a step, or of one element of it, of a run that has begun, as this machine would send it now.

    Its image is the one that the run's plan names; code and devices have placeholders.
    """
    session = Session(RunRequest(stack=made.stack, simulate=made.request.get("simulate")))
    backends = session.backends([step], made.settings)
    try:
        backend = backends[step.backend]
        expecting = capability(backend, ExpectsSteps)
        if expecting is not None:
            expecting.expect([step])
        job = _first_job(step, made.pipeline, run=run, key=element)
        rendered_request = RenderedStep(
            step=job.key, backend=step.backend, request=_request(job, backend, session), image=step.image
        )
        return _with_script(_mask(rendered_request, os.environ), job, backend)
    finally:
        for one in set(backends.values()):
            one.close()
        session.store.close()


def _with_script(masked: RenderedStep, job: Job, backend: RunningBackend) -> RenderedStep:
    by_hand = capability(backend, RunsByHand)
    return masked if by_hand is None else attrs.evolve(masked, script=by_hand.by_hand(job, masked.request))


def mask_secrets(value: Any, secrets: Sequence[str] = ()) -> Any:
    """A document with masked secrets: values whose name looks like one, and the texts in `secrets`."""
    if isinstance(value, Mapping):
        if value.keys() == _KEY_OF_SECRET:
            return dict(value)
        if value.keys() == _VARIABLE and SECRET_NAME.fullmatch(str(value["name"])) and value["value"]:
            return {**value, "value": MASK}
        return {
            name: MASK if _is_secret(name, inner) else mask_secrets(inner, secrets) for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [mask_secrets(inner, secrets) for inner in value]
    if not isinstance(value, str):
        return value
    whole = _WHOLE_ASSIGNMENT.fullmatch(value)
    if whole is not None:
        return f"{whole[1]}={MASK}"
    for secret in secrets:
        value = value.replace(secret, MASK)
    return stacks.masked(_ENV_INSTRUCTION.sub(rf"\1 {MASK}", _ASSIGNMENT.sub(rf"\1={MASK}", value)))


def placeholder_leases(inventory: Inventory, job: Job) -> list[Lease]:
    """Leases with placeholders of devices, one for each node; no device is leased.

    A machine without devices has none: there the step is refused or runs without.
    """
    if not inventory.devices:
        return []
    per_node = job.step.settings.resources.gpus_per_node
    example = attrs.evolve(inventory.devices[0], links=())
    return [
        Lease(
            devices=tuple(
                attrs.evolve(example, index=number, uuid=f"<device {node * per_node + number + 1} of the lease>")
                for number in range(per_node)
            )
        )
        for node in range(job.step.settings.resources.get("nodes", 1))
    ]


def _first_job(step: StepPlan, pipeline: str, *, run: str = RUN_PLACEHOLDER, key: str = "") -> Job:
    """The first attempt at a step, or at one element of it, by default the first."""
    key = key or (f"{step.key}[0]" if step.mapped else step.key)
    return Job(
        name=f"{run}/{key}/1",
        run=run,
        key=key,
        attempt=1,
        step=step,
        inputs=step.inputs,
        pipeline=pipeline,
    )


def _request(job: Job, backend: RunningBackend, session: Session) -> Mapping[str, Any]:
    """The request of a job, with placeholders for the devices that it asks for."""
    leases = capability(backend, LeasesDevices) if job.step.settings.resources.gpus_per_node else None
    if leases is None:
        return backend.render(job)
    return leases.render_leased(job, placeholder_leases(session.devices().inventory(), job))


@attrs.frozen(kw_only=True)
class _Image:
    """The image of a step."""

    name: str = ""
    """Its reference; empty for none."""
    text: str = ""
    """The Dockerfile; empty for an image that is used as it is."""
    files: Mapping[str, str] = attrs.field(factory=dict)
    """The requirement files that the Dockerfile copies, by name."""


def _images(steps: Sequence[StepPlan], builder: Builder, session: Session) -> dict[str, _Image]:
    """The images of the steps that run in one, by step; equal settings share an image."""
    built: dict[str, _Image] = {}
    by_step = {}
    for step in steps:
        place = builder.place(step)
        if place is None:
            text = builder.definition(step)
            if text:
                by_step[step.key] = _Image(name=text)
            continue
        host, root = place.engine, place.root
        signature = f"{place} {to_json(step.settings.docker)}"
        if signature not in built:
            environ: dict[str, str] = {**os.environ, "DOCKER_HOST": host} if host else dict(os.environ)
            local_engine = engine.find_again(session.questions, environ)  # the plan has just asked it
            spec, _ = image_spec(
                step.settings.docker,
                root=Path(root),
                folder=session.stack.home / "wheels",
                engine=local_engine,
                lock_of=builder.lock_of(Path(root)),
            )
            built[signature] = _Image(name=spec.parent) if spec.skip_build else _image_to_build(spec, local_engine)
        by_step[step.key] = built[signature]
    return by_step


def _image_to_build(spec: ImageSpec, local_engine: engine.ImageEngine | None) -> _Image:
    files = {name: data.decode("utf-8", "replace") for name, data in requirement_files(spec).items()}
    text = dockerfile(spec)
    if local_engine is not None:
        text = engine_text(spec, text, local_engine, {})
    return _Image(name=IMAGE_PLACEHOLDER, text=text, files=files)


def _code(
    steps: Sequence[StepPlan], builder: Builder, home: Path, report: Callable[[context.CodePackage], None]
) -> Code:
    """The code package and the worker that would travel beside the images; nothing is sent."""
    bundle = builder.bundle(steps)
    sources = [step.source for step in steps if step.source.kind != "pickled"]
    root = code_root(sources)
    if not root:
        return Code(bundle=bundle)
    prefix = f"{root.rstrip('/')}/"
    files = [Path(source.path) for source in sources if os.path.realpath(source.path or "/").startswith(prefix)]
    package = context.package(Path(root), files, home=home)
    report(package)
    return Code(package=package.digest, root=str(package.root), bundle=bundle)


def _mask(one: RenderedStep, environ: Mapping[str, str]) -> RenderedStep:
    values = [text for name, text in environ.items() if SECRET_NAME.fullmatch(name) and len(text) >= _SHORTEST]
    secrets = sorted(values, key=len, reverse=True)
    request = cast("Mapping[str, Any]", mask_secrets(to_json(one.request), secrets))
    return attrs.evolve(
        one, request=request, dockerfile=mask_secrets(one.dockerfile, secrets), files=mask_secrets(one.files, secrets)
    )


_REFERENCES: Final = frozenset({"step", "secretName"})
"""What a reference has: to the output of a step, or to the Secret of a pod's volume."""
_VARIABLE: Final = frozenset({"name", "value"})
"""What a variable of a container has in Kubernetes' words."""
_KEY_OF_SECRET: Final = frozenset({"secretKey", "envVar"})
"""What KFP has for a variable from a Secret: the name of the key in it, which is none of its values."""


def _is_secret(name: Any, value: Any) -> bool:
    """Whether a named value is a secret; an empty value, a list, and references to a step or to a Secret of a cluster
    are none."""
    if not isinstance(name, str) or not SECRET_NAME.fullmatch(name) or not value:
        return False
    if isinstance(value, Mapping):
        return not _REFERENCES & value.keys()
    return not isinstance(value, list)
