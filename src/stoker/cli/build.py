"""`stoker build FILE`: build and push the images of a pipeline's steps, without running them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Iterable, Mapping

import click

from stoker import stacks
from stoker.backends.registry import BACKENDS
from stoker.cli.output import paint, print_json, say, table
from stoker.cli.plan import plan_first_call
from stoker.cli.run import OPTIONS, Unparsed, command_line, help_for
from stoker.core.codec import to_json
from stoker.core.docker import DockerSettings
from stoker.core.plan import StepPlan
from stoker.core.request import RunOption
from stoker.core.settings import PipelineSettings
from stoker.core.words import count_text, time_text
from stoker.images import engine as engines
from stoker.images.build import BuiltImage, image_for
from stoker.plan.planner import ORCHESTRATOR, refuse

BUILD_OPTIONS: Final = (
    *OPTIONS,
    RunOption(name="push", value="REPOSITORY", help="push them there, such as ghcr.io/team/images"),
    RunOption(name="json", help="only JSON on stdout"),
)
SUMMARY: Final = (
    "Builds the images in which a pipeline's steps run. What was built from the same before is not built again."
)
ImageRequest = tuple[str, str, DockerSettings | None]
"""(the engine's address, "" for this machine's; the folder of the user's code; the docker settings)."""
HEADERS: Final = ("steps", "", "time", "image")


@click.command("build", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> int:
    """Build the images in which a pipeline's steps run."""
    target, line, options = command_line(words, BUILD_OPTIONS)
    if target is None or options.get("help"):
        click.echo(help_for(target, "build", BUILD_OPTIONS, SUMMARY))
        return 0
    push, as_json = str(options.get("push") or ""), bool(options.get("json"))
    plan = plan_first_call(target, line)
    refuse(plan)
    requests = distinct(plan.steps, addresses(stacks.load(plan.stack), plan.settings))
    if not requests:
        say(f"no step of {plan.pipeline} runs in an image on stack '{plan.stack}'")
    home = stacks.load(plan.stack).home
    images = [
        (
            [step.name for step in steps],
            image_for(
                settings,
                root=Path(root),
                folder=home / "wheels",
                engine=_engine(address),
                progress=lambda text: say(paint(text, "2")),
                push=push,
            ),
        )
        for (address, root, settings), steps in requests
    ]
    if as_json:
        print_json([document(names, image) for names, image in images])
    elif images:
        rows = [row(names, image) for names, image in images]
        click.echo(table(HEADERS, rows, right=("time",)))
    return 0


def addresses(stack: stacks.Stack, settings: PipelineSettings) -> dict[str, str]:
    """The addresses of a run's engines, by the names of the backends that run steps in images."""
    by_backend = {}
    for name, component in {ORCHESTRATOR: stack.orchestrator, **stack.step_operators}.items():
        engine_of = BACKENDS.load(component.flavor).image_engine
        if engine_of is not None:
            by_backend[name] = engine_of(settings.backend.get(name, component.options))
    return by_backend


def distinct(steps: Iterable[StepPlan], engines_of: Mapping[str, str]) -> list[tuple[ImageRequest, list[StepPlan]]]:
    """The distinct images, each with its steps; steps that run in no image are left out."""
    requests: list[tuple[ImageRequest, list[StepPlan]]] = []
    for step in steps:
        if step.backend not in engines_of:
            continue
        request = (engines_of[step.backend], step.source.root or os.getcwd(), step.settings.docker)
        sharing = next((sharing for other, sharing in requests if other == request), None)
        if sharing is None:
            requests.append((request, [step]))
        else:
            sharing.append(step)
    return requests


def _engine(address: str) -> engines.ImageEngine | None:
    return engines.find({**os.environ, "DOCKER_HOST": address} if address else None)


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
