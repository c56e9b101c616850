"""`stoker build FILE`: the images in which a pipeline's steps would run, built and pushed without running them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Iterable, Mapping

import click

from stoker import config
from stoker.cli.output import paint, print_json, say, table
from stoker.cli.plan import planned
from stoker.cli.run import OPTIONS, Unparsed, command_line, help_for
from stoker.compile.planner import ORCHESTRATOR, refuse
from stoker.core import plugins
from stoker.core.codec import to_json
from stoker.core.docker import DockerSettings
from stoker.core.plan import StepPlan
from stoker.core.words import count_text, time_text
from stoker.frontends.arguments import RunOption
from stoker.images import engine as engines
from stoker.images.build import Built
from stoker.images.made import image_of

BUILD_OPTIONS: Final = (
    *OPTIONS,
    RunOption(name="push", value="REPOSITORY", help="push them there, such as ghcr.io/team/images"),
    RunOption(name="json", help="only JSON on stdout"),
)
TOLD: Final = (
    "Builds the images in which a pipeline's steps run. What was built from the same before is not built again."
)
HEADERS: Final = ("steps", "", "time", "image")


@click.command("build", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> int:
    """Build the images in which a pipeline's steps run."""
    found, line = command_line(words, BUILD_OPTIONS)
    if found is None or line.options.get("help"):
        click.echo(help_for(found, "build", BUILD_OPTIONS, TOLD))
        return 0
    push, as_json = str(line.options.get("push") or ""), bool(line.options.get("json"))
    made = planned(found, line)
    refuse(made)
    stack = config.load(made.stack)
    flavors = {ORCHESTRATOR: stack.orchestrator, **stack.step_operators}
    wanted = distinct(made.steps, {name: component.flavor for name, component in flavors.items()})
    if not wanted:
        say(f"no step of {made.pipeline} runs in an image on stack '{made.stack}'")
    engine = engines.find() if wanted else None
    built = [
        (
            [step.name for step in steps],
            image_of(
                settings,
                root=Path(found.root),
                folder=stack.home / "wheels",
                engine=engine,
                progress=lambda text: say(paint(text, "2")),
                push=push,
            ),
        )
        for settings, steps in wanted
    ]
    if as_json:
        print_json([document(names, image) for names, image in built])
    elif built:
        rows = [row(names, image) for names, image in built]
        click.echo(table(HEADERS, rows, right=("time",)))
    return 0


def distinct(
    steps: Iterable[StepPlan], flavors: Mapping[str, str]
) -> list[tuple[DockerSettings | None, list[StepPlan]]]:
    """The different settings of images, each with its steps; those of steps that run in no image left out.

    A step that says something of its image gets one built, also where this stack would run it without.
    """
    found: list[tuple[DockerSettings | None, list[StepPlan]]] = []
    for step in steps:
        settings = step.settings.docker
        if settings is None and not in_images(flavors.get(step.backend, "")):
            continue
        for known, together in found:
            if known == settings:
                together.append(step)
                break
        else:
            found.append((settings, [step]))
    return found


def in_images(flavor: str) -> bool:
    """Whether a backend runs its steps in images."""
    return bool(flavor) and bool(getattr(plugins.load("stoker.backends", flavor), "images", False))


def row(names: list[str], image: Built) -> tuple[str, ...]:
    """An image as a line of the table."""
    unique = list(dict.fromkeys(names))
    shown = (
        ", ".join(unique) if len(unique) <= 4 else f"{', '.join(unique[:3])} and {count_text(len(unique) - 3, 'more')}"
    )
    return shown, "was there" if image.reused else "built", time_text(image.seconds), image.tag


def document(names: list[str], image: Built) -> dict[str, Any]:
    """An image as JSON."""
    return {"steps": names, **to_json(image)}
