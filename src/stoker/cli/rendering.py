"""`stoker plan FILE --render`: the exact requests of all steps, without sending or building anything.

Values that are known only when a run starts have placeholders: `RUN` for the run's id, words in angle brackets for an
image that would be built and for devices that would be leased. An input from another step is shown as that step's
output. What looks like a secret is masked.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final, Iterator, Mapping, Sequence, cast

import attrs

from stoker import stacks
from stoker.backends.base.backend import LeasesDevices, RunningBackend, capability
from stoker.cli.output import paint
from stoker.core.codec import to_json
from stoker.core.devices import Inventory, Lease
from stoker.core.plan import Code, Job, Plan, StepPlan
from stoker.images import context, engine
from stoker.images.build import image_spec
from stoker.images.dockerfile import ImageSpec, dockerfile, requirement_files
from stoker.images.wheel import worker_bundle
from stoker.run.building import Builder, code_root
from stoker.run.session import Session

RUN_PLACEHOLDER: Final = "RUN"
"""Placeholder of the run's id."""
IMAGE_PLACEHOLDER: Final = "<built from the Dockerfile>"
"""Placeholder of an image that would be built: its tag depends on its parent's digest, which needs an engine."""
MASK: Final = "***"
# Names as in https://12factor.net/config, recognized by their end. "key" alone is too common.
_SECRET: Final = r"(?:\w*_)?(?:token|password|passwd|secret|credentials?|(?:secret|api|access|private)_key)"
_SECRET_NAME: Final = re.compile(_SECRET, re.IGNORECASE)
_ASSIGNMENT: Final = re.compile(rf"(?<!\w)({_SECRET})=(?:\"[^\"]*\"|'[^']*'|[^\s,;&]+)", re.IGNORECASE)
_WHOLE_ASSIGNMENT: Final = re.compile(rf"({_SECRET})=.*", re.IGNORECASE | re.DOTALL)
_ENV_INSTRUCTION: Final = re.compile(rf"^(\s*ENV\s+{_SECRET})[ \t]+.*$", re.IGNORECASE | re.MULTILINE)
_SHORTEST: Final = 6
"""Characters. A shorter value of a secret variable may be a common word, which is not masked everywhere."""


@attrs.frozen(kw_only=True)
class RenderedStep:
    """What a step's backend would be sent."""

    step: str
    backend: str
    request: Mapping[str, Any]
    image: str = ""
    """Empty for a step that runs in no image."""
    dockerfile: str = ""
    """Empty for a step without an image, and for an image that is used as it is."""
    files: Mapping[str, str] = attrs.field(factory=dict)
    """The requirement files that the Dockerfile copies, by name."""
    times: tuple[str, ...] = ()
    """The inputs over which the step fans out: the request is sent once for each element."""


def render_plan(made: Plan, session: Session) -> tuple[RenderedStep, ...]:
    """The requests of all steps of a plan that this session made. Nothing is started."""
    builder = session.builder(made.settings, lambda text: None)
    steps = list(made.steps)
    images: dict[str, _Image] = {}
    if builder is not None and builder.has_work(steps):
        images = _images(steps, builder, session.stack.home)
        session.code = _code(steps, builder, session.stack.home)
    backends = session.backends(steps, made.settings)
    try:
        requests = []
        for step in steps:
            image = images.get(step.key, _Image())
            request = _request(attrs.evolve(step, image=image.name), backends[step.backend], session)
            rendered_request = RenderedStep(
                step=step.key,
                backend=step.backend,
                request=request,
                image=image.name,
                dockerfile=image.text,
                files=image.files,
                times=step.mapped,
            )
            requests.append(_mask(rendered_request, os.environ))
        return tuple(requests)
    finally:
        for backend in set(backends.values()):
            backend.close()


def lines(requests: Sequence[RenderedStep]) -> Iterator[str]:
    """The requests as text; a Dockerfile that several steps share is printed once."""
    dockerfiles: dict[tuple[str, ...], str] = {}
    for request in requests:
        yield ""
        each = f"  once for each of {', '.join(request.times)}" if request.times else ""
        yield f"{paint(request.step, '1')}  would be sent to {request.backend}{each}"
        if request.dockerfile:
            texts = {"Dockerfile": request.dockerfile, **request.files}
            first = dockerfiles.setdefault((*texts, *texts.values()), request.step)
            if first != request.step:
                yield f"  Dockerfile: that of {first}"
                texts = {}
            for name, text in texts.items():
                yield f"  {name}"
                yield from (f"    {line}".rstrip() for line in text.rstrip().splitlines())
        elif request.image:
            yield f"  no Dockerfile: {request.image} is used as it is"
        yield "  request"
        text = json.dumps(to_json(request.request), indent=2, ensure_ascii=False)
        yield from (f"    {line}" for line in text.splitlines())


def mask_secrets(value: Any, secrets: Sequence[str] = ()) -> Any:
    """A document with masked secrets: values whose name looks like one, and the texts in `secrets`."""
    if isinstance(value, Mapping):
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


def _request(step: StepPlan, backend: RunningBackend, session: Session) -> Mapping[str, Any]:
    """The request of a step's first attempt, with placeholders for the devices that it asks for."""
    key = f"{step.key}[0]" if step.mapped else step.key
    job = Job(name=f"{RUN_PLACEHOLDER}/{key}/1", run=RUN_PLACEHOLDER, key=key, attempt=1, step=step, inputs=step.inputs)
    leases = capability(backend, LeasesDevices) if step.settings.resources.gpus_per_node else None
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


def _images(steps: Sequence[StepPlan], builder: Builder, home: Path) -> dict[str, _Image]:
    """The images of the steps that run in one, by step; equal settings share an image."""
    built: dict[str, _Image] = {}
    by_step = {}
    for step in steps:
        host = builder.hosts.get(step.backend)
        if host is None:
            continue
        root = step.source.root or os.getcwd()
        signature = f"{host} {root} {to_json(step.settings.docker)}"
        if signature not in built:
            environ: dict[str, str] = {**os.environ, "DOCKER_HOST": host} if host else dict(os.environ)
            local_engine = engine.find(environ)
            spec, _ = image_spec(step.settings.docker, root=Path(root), folder=home / "wheels", engine=local_engine)
            built[signature] = _Image(name=spec.parent) if spec.skip_build else _image_to_build(spec)
        by_step[step.key] = built[signature]
    return by_step


def _image_to_build(spec: ImageSpec) -> _Image:
    files = {name: data.decode("utf-8", "replace") for name, data in requirement_files(spec).items()}
    return _Image(name=IMAGE_PLACEHOLDER, text=dockerfile(spec), files=files)


def _code(steps: Sequence[StepPlan], builder: Builder, home: Path) -> Code:
    """The code package and the worker that would travel beside the images; nothing is sent."""
    containerized = [step for step in steps if step.backend in builder.hosts]
    settings = [step.settings.docker for step in containerized]
    without_worker = any(docker is not None and docker.skip_build is True for docker in settings)
    bundle = str(worker_bundle(home / "wheels")) if without_worker else ""
    sources = [step.source for step in steps if step.source.kind != "pickled"]
    root = code_root(sources)
    if not root:
        return Code(bundle=bundle)
    prefix = f"{root.rstrip('/')}/"
    files = [Path(source.path) for source in sources if os.path.realpath(source.path or "/").startswith(prefix)]
    package = context.package(Path(root), files, home=home)
    return Code(package=package.digest, root=str(package.root), bundle=bundle)


def _mask(one: RenderedStep, environ: Mapping[str, str]) -> RenderedStep:
    values = [text for name, text in environ.items() if _SECRET_NAME.fullmatch(name) and len(text) >= _SHORTEST]
    secrets = sorted(values, key=len, reverse=True)
    request = cast("Mapping[str, Any]", mask_secrets(to_json(one.request), secrets))
    return attrs.evolve(
        one, request=request, dockerfile=mask_secrets(one.dockerfile, secrets), files=mask_secrets(one.files, secrets)
    )


def _is_secret(name: Any, value: Any) -> bool:
    """Whether a named value is a secret; an empty value, a list, and a reference to a step are none."""
    if not isinstance(name, str) or not _SECRET_NAME.fullmatch(name) or not value:
        return False
    return not (isinstance(value, Mapping) and "step" in value) and not isinstance(value, list)
