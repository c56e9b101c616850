"""`stoker plan FILE --render`: what would be sent for each step, to the letter, without anything being sent or built.

What is only known when a run begins is told as such: `RUN` stands for the run's id, words in angle brackets for the
image that would be built and for the devices that would be leased. An input that another step makes is shown as that
step's output. Whatever looks like a secret is starred.
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

RUN: Final = "RUN"
"""Stands for the id of the run."""
BUILT: Final = "<built from the Dockerfile>"
"""Stands for an image whose tag is the digest of all that goes in, its parent's too, which only an engine knows."""
STARS: Final = "***"
# Names as in https://12factor.net/config: the end says what it is. "key" alone is any dictionary's.
_SECRET: Final = r"(?:\w*_)?(?:token|password|passwd|secret|credentials?|(?:secret|api|access|private)_key)"
_NAMED: Final = re.compile(_SECRET, re.IGNORECASE)
_ASSIGNED: Final = re.compile(rf"(?<!\w)({_SECRET})=(?:\"[^\"]*\"|'[^']*'|[^\s,;&]+)", re.IGNORECASE)
_WHOLE: Final = re.compile(rf"({_SECRET})=.*", re.IGNORECASE | re.DOTALL)
_INSTRUCTION: Final = re.compile(rf"^(\s*ENV\s+{_SECRET})[ \t]+.*$", re.IGNORECASE | re.MULTILINE)
_SHORTEST: Final = 6
"""Characters. A shorter value of a secret variable may be any word, and to star it everywhere would hide the rest."""


@attrs.frozen(kw_only=True)
class Rendered:
    """What a step's backend would be sent. `dockerfile` is empty for a step whose image is used as it is, and for one
    that runs in none; `image` is empty for the latter. `files` are the lists of requirements that the Dockerfile
    copies. `times`: it is sent once for each element of these inputs."""

    step: str
    backend: str
    request: Mapping[str, Any]
    image: str = ""
    dockerfile: str = ""
    files: Mapping[str, str] = attrs.field(factory=dict)
    times: tuple[str, ...] = ()


def rendered(made: Plan, session: Session) -> tuple[Rendered, ...]:
    """What would be sent for each step of a plan that this session made. Nothing is started."""
    builder = session.builder(made.settings, lambda text: None)
    steps = list(made.steps)
    images: dict[str, _Image] = {}
    if builder is not None and builder.needed(steps):
        images = _images(steps, builder, session.stack.home)
        session.code = _code(steps, builder, session.stack.home)
    backends = session.backends(steps, made.settings)
    try:
        found = []
        for step in steps:
            image = images.get(step.key, _Image())
            request = _request(attrs.evolve(step, image=image.name), backends[step.backend], session)
            one = Rendered(
                step=step.key,
                backend=step.backend,
                request=request,
                image=image.name,
                dockerfile=image.text,
                files=image.files,
                times=step.mapped,
            )
            found.append(_without_secrets(one, os.environ))
        return tuple(found)
    finally:
        for backend in set(backends.values()):
            backend.close()


def lines(found: Sequence[Rendered]) -> Iterator[str]:
    """The same as a person reads it; a Dockerfile that several steps share is written out once."""
    shown: dict[tuple[str, ...], str] = {}
    for one in found:
        yield ""
        each = f"  once for each of {', '.join(one.times)}" if one.times else ""
        yield f"{paint(one.step, '1')}  would be sent to {one.backend}{each}"
        if one.dockerfile:
            texts = {"Dockerfile": one.dockerfile, **one.files}
            first = shown.setdefault((*texts, *texts.values()), one.step)
            if first != one.step:
                yield f"  Dockerfile: that of {first}"
                texts = {}
            for name, text in texts.items():
                yield f"  {name}"
                yield from (f"    {line}".rstrip() for line in text.rstrip().splitlines())
        elif one.image:
            yield f"  no Dockerfile: {one.image} is used as it is"
        yield "  request"
        text = json.dumps(to_json(one.request), indent=2, ensure_ascii=False)
        yield from (f"    {line}" for line in text.splitlines())


def hidden(value: Any, secrets: Sequence[str] = ()) -> Any:
    """A document without what looks like a secret by its name, or holds one of `secrets`."""
    if isinstance(value, Mapping):
        return {name: STARS if _tells(name, inner) else hidden(inner, secrets) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [hidden(inner, secrets) for inner in value]
    if not isinstance(value, str):
        return value
    whole = _WHOLE.fullmatch(value)
    if whole is not None:
        return f"{whole[1]}={STARS}"
    for secret in secrets:
        value = value.replace(secret, STARS)
    return stacks.masked(_INSTRUCTION.sub(rf"\1 {STARS}", _ASSIGNED.sub(rf"\1={STARS}", value)))


def promised(inventory: Inventory, job: Job) -> list[Lease]:
    """Devices as a lease would name them, one a node; nobody is asked for any.

    There are none on a machine without devices, where the step is refused or runs without.
    """
    if not inventory.devices:
        return []
    each = job.step.settings.resources.gpus_per_node
    like = attrs.evolve(inventory.devices[0], links=())
    return [
        Lease(
            devices=tuple(
                attrs.evolve(like, index=number, uuid=f"<device {node * each + number + 1} of the lease>")
                for number in range(each)
            )
        )
        for node in range(job.step.settings.resources.get("nodes", 1))
    ]


def _request(step: StepPlan, backend: RunningBackend, session: Session) -> Mapping[str, Any]:
    """What the backend would be sent for a step's first attempt, with promised devices where it asks for some."""
    key = f"{step.key}[0]" if step.mapped else step.key
    job = Job(name=f"{RUN}/{key}/1", run=RUN, key=key, attempt=1, step=step, inputs=step.inputs)
    leases = capability(backend, LeasesDevices) if step.settings.resources.gpus_per_node else None
    if leases is None:
        return backend.render(job)
    return leases.render_leased(job, promised(session.devices().inventory(), job))


@attrs.frozen(kw_only=True)
class _Image:
    """The reference under which a step is given its image, the Dockerfile, and what that copies of our making."""

    name: str = ""
    text: str = ""
    files: Mapping[str, str] = attrs.field(factory=dict)


def _images(steps: Sequence[StepPlan], builder: Builder, home: Path) -> dict[str, _Image]:
    """The images of those steps that run in one; each different one is made up once."""
    known: dict[str, _Image] = {}
    found = {}
    for step in steps:
        host = builder.hosts.get(step.backend)
        if host is None:
            continue
        root = step.source.root or os.getcwd()
        same = f"{host} {root} {to_json(step.settings.docker)}"
        if same not in known:
            environ: dict[str, str] = {**os.environ, "DOCKER_HOST": host} if host else dict(os.environ)
            near = engine.find(environ)
            spec, _ = image_spec(step.settings.docker, root=Path(root), folder=home / "wheels", engine=near)
            known[same] = _Image(name=spec.parent) if spec.skip_build else _built(spec)
        found[step.key] = known[same]
    return found


def _built(spec: ImageSpec) -> _Image:
    files = {name: data.decode("utf-8", "replace") for name, data in requirement_files(spec).items()}
    return _Image(name=BUILT, text=dockerfile(spec), files=files)


def _code(steps: Sequence[StepPlan], builder: Builder, home: Path) -> Code:
    """What would travel beside the images: the package's digest is known without anybody being given it."""
    inside = [step for step in steps if step.backend in builder.hosts]
    lacks = any(step.settings.docker is not None and step.settings.docker.skip_build is True for step in inside)
    bundle = str(worker_bundle(home / "wheels")) if lacks else ""
    sources = [step.source for step in steps if step.source.kind != "pickled"]
    root = code_root(sources)
    if not root:
        return Code(bundle=bundle)
    below = f"{root.rstrip('/')}/"
    files = [Path(source.path) for source in sources if os.path.realpath(source.path or "/").startswith(below)]
    package = context.package(Path(root), files, home=home)
    return Code(package=package.digest, root=str(package.root), bundle=bundle)


def _without_secrets(one: Rendered, environ: Mapping[str, str]) -> Rendered:
    values = [text for name, text in environ.items() if _NAMED.fullmatch(name) and len(text) >= _SHORTEST]
    secrets = sorted(values, key=len, reverse=True)
    request = cast("Mapping[str, Any]", hidden(to_json(one.request), secrets))
    return attrs.evolve(
        one, request=request, dockerfile=hidden(one.dockerfile, secrets), files=hidden(one.files, secrets)
    )


def _tells(name: Any, value: Any) -> bool:
    """Whether a value under this name is a secret; where one comes from, and the absence of one, is none."""
    if not isinstance(name, str) or not _NAMED.fullmatch(name) or not value:
        return False
    return not (isinstance(value, Mapping) and "step" in value) and not isinstance(value, list)
