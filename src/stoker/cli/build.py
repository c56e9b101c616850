"""`stoker build FILE`: build and push the images of a pipeline's steps, without running them.

With `--render` nothing is built: what a builder elsewhere is told is printed, or written to a folder with the packed
context (`--output`), together with the commands that send it. `stoker image inspect REF`: the contents of an image, as
far as they are known without pulling or running it.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs
import click

from stoker import stacks
from stoker.backends.registry import BACKENDS
from stoker.cli import target as targets
from stoker.cli.output import json_option, paint, print_json, table
from stoker.cli.plan import plan_first_call
from stoker.cli.rerun import Unparsed, command_line, help_for
from stoker.core.codec import to_json
from stoker.core.docker import DockerSettings, ImageFacts
from stoker.core.errors import UsageError
from stoker.core.plan import Plan, StepPlan
from stoker.core.questions import Questions, offline_reason
from stoker.core.settings import PipelineSettings
from stoker.core.words import count_text, memory_text, time_text
from stoker.images import engine as engines
from stoker.images.build import LABEL, BuiltImage
from stoker.images.builders import BUILDERS, CONTEXT, DOCKERFILE, BuildOrder, RenderedBuild, check_options
from stoker.images.dockerfile import assignment, dockerfile, pin_images
from stoker.images.facts import VERSION_FACTS, ImageInspection
from stoker.images.layers import LayerCache, LayerReading, planned_reading
from stoker.images.registry import examine
from stoker.images.resolving import LockStore
from stoker.plan.locking import Locking
from stoker.plan.planner import refuse
from stoker.report.streams import echo, say
from stoker.run.building import BUILT_ELSEWHERE, Builder, ImagePlace

SUMMARY: Final = (
    "Builds the images in which a pipeline's steps run. What was built from the same before is not built again."
)
HEADERS: Final = ("steps", "", "time", "image")
EPOCH: Final = 315_532_800
"""1980-01-01, the time of every packed file: equal contexts are equal archives, and ZIP knows no earlier time."""


@attrs.frozen(kw_only=True)
class StepsImage:
    """An image and the steps that run in it."""

    place: ImagePlace
    docker: DockerSettings | None
    steps: tuple[StepPlan, ...]


@attrs.frozen(kw_only=True)
class OrderedImage:
    """What the stack's image builder would be told about one image."""

    steps: tuple[str, ...]
    tag: str
    """The name under which it is pushed."""
    reference: str
    """Its name by digest; empty if it is not at the registry yet."""
    folder: str
    """The folder of its files below `--output`."""
    build: RenderedBuild


@click.command("build", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> int:
    """Build the images in which a pipeline's steps run."""
    target, line, options = command_line(words, targets.BUILD_OPTIONS)
    if target is None or options.get("help"):
        echo(help_for(target, "build", targets.BUILD_OPTIONS, SUMMARY))
        return 0
    push, as_json, render = str(options.get("push") or ""), bool(options.get("json")), bool(options.get("render"))
    output = str(options.get("output") or "")
    if output and not render:
        raise UsageError("--output is for what --render writes", fix="add --render")
    plan = plan_first_call(target, line)
    stack = stacks.load(plan.stack).with_usual(step.backend for step in plan.steps)
    # Whether another builder has built is what is asked here; nothing is run on a platform that does not answer.
    others = {BUILT_ELSEWHERE}
    for component in stack.parts.values():
        others.update(BACKENDS.load(component.flavor).unasked)
    refuse(attrs.evolve(plan, findings=tuple(one for one in plan.findings if one.code not in others)))
    builder = builder_of(stack, plan)
    images = distinct(plan.steps, builder, push=push)
    if not images:
        say(f"no step of {plan.pipeline} runs in an image on stack '{plan.stack}'")
    if render:
        _render(images, builder, stack, output=output, as_json=as_json)
        return 0
    built = [([step.name for step in one.steps], builder.build(one.place, one.docker)) for one in images]
    if as_json:
        print_json([document(names, image) for names, image in built])
    elif built:
        rows = [row(names, image) for names, image in built]
        echo(table(HEADERS, rows, right=("time",)))
    return 0


def builder_of(stack: stacks.Stack, plan: Plan) -> Builder:
    """What builds the images of a plan's steps."""
    pushing = {}
    for name, component in stack.parts.items():
        puller_of = BACKENDS.load(component.flavor).puller
        if puller_of is not None:
            pushing[name] = puller_of(plan.settings.backend.get(name, component.options))
    locking = Locking(LockStore(stack.home), Questions(stack.home, offline=offline_reason(), patient=True))
    locking.adopt(plan.locks)
    return Builder(
        hosts=addresses(stack, plan.settings),
        folder=stack.home / "wheels",
        report=lambda text: say(paint(text, "2")),
        pushing=pushing,
        registry=stack.container_registry,
        builder=stack.image_builder,
        locking=lambda: locking,
    )


def addresses(stack: stacks.Stack, settings: PipelineSettings) -> dict[str, str]:
    """The addresses of a run's engines, by the names of the backends that run steps in images."""
    by_backend = {}
    for name, component in stack.parts.items():
        engine_of = BACKENDS.load(component.flavor).image_engine
        if engine_of is not None:
            by_backend[name] = engine_of(settings.backend.get(name, component.options))
    return by_backend


def distinct(steps: Iterable[StepPlan], builder: Builder, *, push: str = "") -> list[StepsImage]:
    """The distinct images, each with its steps; steps that run in no image are left out.

    `push` is a repository that goes before the one that a place has.
    """
    images: list[StepsImage] = []
    for step in steps:
        place = builder.place(step)
        if place is None:
            continue
        image = StepsImage(
            place=attrs.evolve(place, push=push or place.push), docker=step.settings.docker, steps=(step,)
        )
        position = next(
            (at for at, one in enumerate(images) if (one.place, one.docker) == (image.place, image.docker)), None
        )
        if position is None:
            images.append(image)
        else:
            images[position] = attrs.evolve(images[position], steps=(*images[position].steps, step))
    return images


def _render(images: Sequence[StepsImage], builder: Builder, stack: stacks.Stack, *, output: str, as_json: bool) -> None:
    orders = [_ordered(one, builder, stack, output) for one in images]
    if as_json:
        print_json(to_json(orders))
        return
    for order in orders:
        state = f"is there: {order.reference}" if order.reference else "is not there yet"
        echo(f"{paint(', '.join(order.steps), '1')}  {order.tag} {state}")
        for name, content in order.build.files.items():
            echo(f"  {name}")
            text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False)
            echo("\n".join(f"    {line}".rstrip() for line in text.rstrip().splitlines()))
        echo("  commands" + (f", in {Path(output, order.folder)}" if output else ""))
        echo("\n".join(f"    {line}" for line in order.build.commands))


def _ordered(image: StepsImage, builder: Builder, stack: stacks.Stack, output: str) -> OrderedImage:
    """What the stack's builder is told about an image; its files are written where `output` names a folder."""
    choice = stack.image_builder
    kind = BUILDERS.load(choice.flavor) if choice is not None else None
    if choice is None or kind is None or kind.render is None or not image.place.push:
        raise UsageError(
            "these images are built by the container engine of this machine, which is told nothing",
            fix="`stoker plan FILE --render` shows Dockerfiles; or name an image_builder and a container_registry",
        )
    with builder.engine_for(image.place) as (local_engine, environ):
        spec, files, wanted = builder.wanted(image.place, image.docker, local_engine, environ)
    check_options(spec.options, kind)
    arguments = {**(spec.options.get("buildargs") or {}), **(spec.options.get("build_args") or {})}
    arguments = {name: str(value) for name, value in arguments.items()}
    text = dockerfile(spec) if kind.mounts else dockerfile(spec, cache_mounts=False)
    text = pin_images(text, wanted.pins, arguments)
    labels = {**(spec.options.get("labels") or {}), LABEL: wanted.inputs}
    text += "".join(f"LABEL {assignment(name, str(value))}\n" for name, value in sorted(labels.items()))
    name = wanted.tag.rpartition(":")[2]
    order = BuildOrder(
        tag=wanted.tag,
        name=name,
        platform=spec.platform or "linux/amd64",
        arguments=arguments,
        target=str(spec.options.get("target") or ""),
        cache=not spec.options.get("nocache"),
    )
    build = kind.render(order, choice.settings)
    build = attrs.evolve(build, files={DOCKERFILE: text, **build.files})
    if output:
        folder = Path(output, name)
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in build.files.items():
            folder.joinpath(file).write_text(
                content if isinstance(content, str) else json.dumps(content, indent=2) + "\n", encoding="utf-8"
            )
        folder.joinpath(CONTEXT).write_bytes(packed_context({**files, DOCKERFILE: text.encode()}))
    return OrderedImage(
        steps=tuple(step.name for step in image.steps),
        tag=wanted.tag,
        reference=wanted.reference,
        folder=name,
        build=build,
    )


def packed_context(files: Mapping[str, bytes | Path]) -> bytes:
    """A build's context as a `.tar.gz`; equal files make equal archives."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=EPOCH) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = EPOCH, 0o644
            if isinstance(content, Path) and content.is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, str(content.readlink())
                tar.addfile(info)
                continue
            data = content if isinstance(content, bytes) else content.read_bytes()
            if isinstance(content, Path) and content.stat().st_mode & 0o111:
                info.mode = 0o755
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def row(names: list[str], image: BuiltImage) -> tuple[str, ...]:
    """An image as a row of the table."""
    unique = list(dict.fromkeys(names))
    titles = (
        ", ".join(unique) if len(unique) <= 4 else f"{', '.join(unique[:3])} and {count_text(len(unique) - 3, 'more')}"
    )
    return titles, "was there" if image.reused else "built", time_text(image.seconds), image.tag


def document(names: list[str], image: BuiltImage) -> dict[str, Any]:
    """An image as JSON."""
    return {"steps": names, **to_json(image)}


NAMES: Final = {"cuda": "CUDA", "cudnn": "cuDNN", "rocm": "ROCm", "neuron": "Neuron", "python": "Python"}
"""Fact → its spelling."""
SOURCES: Final = {"registry": "its configuration at the registry", "engine": "this machine's engine"}


@click.group("image")
def image() -> None:
    """Look into the images in which steps run."""


@image.command("inspect")
@json_option
@click.option("--platform", metavar="OS/ARCH", default="", help='Of several images, the one for this: "linux/arm64".')
@click.option("--remote", is_flag=True, help="Ask the registry, also if this machine's engine has the image.")
@click.option("--deep", is_flag=True, help="Read all layers, whatever their size; later plans know what is in them.")
@click.argument("reference", metavar="IMAGE")
def inspect(*, reference: str, as_json: bool, platform: str, remote: bool, deep: bool) -> None:
    """Show what is in an image: CUDA, cuDNN, Python, installed packages, architecture, size.

    Small layers are read, and once; large ones with --deep. Nothing is run.
    """
    engine = None if remote or platform else engines.find()
    cache = LayerCache(stacks.load().home)
    layers = LayerReading(cache=cache) if deep else planned_reading(cache)
    inspection = examine(reference, engine=engine, platform=platform, layers=layers)
    unpacked = engine.size(reference) if engine is not None and inspection.facts.base == "engine" else None
    if as_json:
        print_json({**image_document(inspection), "unpacked": unpacked})
    else:
        echo("\n".join(lines(inspection, unpacked)))


def image_document(inspection: ImageInspection) -> dict[str, Any]:
    """The facts and their sources as JSON."""
    facts: dict[str, Any] = to_json(inspection.facts)
    other: dict[str, Any] = to_json(inspection)
    return {**facts, **{name: value for name, value in other.items() if name != "facts"}}


def lines(inspection: ImageInspection, unpacked: int | None = None) -> Iterator[str]:
    """The facts of an image as text."""
    facts = inspection.facts
    yield paint(facts.reference, "1") + f"  read from {SOURCES.get(facts.base, facts.base)}"
    rows = [
        ("digest", facts.digest),
        ("made", inspection.created.partition(".")[0].replace("T", " ").removesuffix("Z")),
    ]
    rows += [("platform", platform_text(inspection)), ("size", size_text(facts, unpacked))]
    for name in VERSION_FACTS:
        value = getattr(facts, name)
        # Few images are for AMD's or Amazon's chips: only those have a line about it.
        if value or name not in ("rocm", "neuron"):
            rows.append((NAMES[name], fact_text(value, inspection.sources.get(name, ""))))
    for package, version in facts.frameworks.items():
        rows.append((package, fact_text(version, inspection.sources.get(package, ""))))
    if facts.distributions is not None:
        rows.append(("packages", f"{count_text(len(facts.distributions), 'distribution')} of Python"))
    rows += [("C library", facts.libc), ("layers", inspection.layers)]
    rows.append(("driver", facts.env.get("NVIDIA_REQUIRE_CUDA", "").replace(" ", " or ")))
    rows += [("user", facts.user), ("folder", inspection.folder)]
    rows += [("entrypoint", " ".join(facts.entrypoint)), ("image", " ".join(facts.command))]
    yield from (f"  {name:<11} {value}" for name, value in rows if value)
    if facts.distributions is None and not facts.frameworks:
        yield f"  {'frameworks':<11} unknown: neither configuration nor name says what is installed; --deep reads it"


def fact_text(value: str, source: str) -> str:
    """A fact with its source, or "unknown"."""
    return f"{value}  ({source})" if value and source else value or "unknown"


def platform_text(inspection: ImageInspection) -> str:
    """The platform, such as linux/amd64, and the others of the image."""
    others = [name for name in inspection.facts.architectures if name != inspection.architecture]
    platform = f"{inspection.facts.os or 'unknown'}/{inspection.architecture or 'unknown'}"
    return f"{platform}  (also {', '.join(others)})" if others else platform


def size_text(facts: ImageFacts, unpacked: int | None) -> str:
    """The size to pull, or the size on this machine."""
    if unpacked is not None:
        return f"{memory_text(unpacked)} here"
    return f"{memory_text(facts.size)} to pull" if facts.size else "unknown"
