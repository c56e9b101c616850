"""`stoker image inspect REF`: what is in an image as far as it can be known without pulling it."""

from __future__ import annotations

from typing import Any, Final, Iterator

import click

from stoker.cli.options import json_option
from stoker.cli.output import paint, print_json
from stoker.core.codec import to_json
from stoker.core.imagefacts import ImageFacts
from stoker.core.words import memory_text
from stoker.images import engine as engines
from stoker.images.facts import VERSION_FACTS, ImageInspection
from stoker.images.registry import examine

NAMES: Final = {"cuda": "CUDA", "cudnn": "cuDNN", "rocm": "ROCm", "neuron": "Neuron", "python": "Python"}
"""fact → how it is written"""
SOURCES: Final = {"registry": "its configuration at the registry", "engine": "this machine's engine"}


@click.group("image")
def command() -> None:
    """Look into the images in which steps run."""


@command.command("inspect")
@json_option
@click.option("--platform", metavar="OS/ARCH", default="", help='Of several images, the one for this: "linux/arm64".')
@click.option("--remote", is_flag=True, help="Ask the registry, also if this machine's engine has the image.")
@click.argument("reference", metavar="IMAGE")
def inspect(*, reference: str, as_json: bool, platform: str, remote: bool) -> None:
    """Show what is in an image: CUDA, cuDNN, Python, frameworks, architecture, size. No layer is pulled."""
    engine = None if remote or platform else engines.find()
    found = examine(reference, engine=engine, platform=platform)
    unpacked = engine.size(reference) if engine is not None and found.facts.base == "engine" else None
    if as_json:
        print_json({**document(found), "unpacked": unpacked})
    else:
        click.echo("\n".join(lines(found, unpacked)))


def document(found: ImageInspection) -> dict[str, Any]:
    """All that is known, as JSON: the facts, and where each was read."""
    facts: dict[str, Any] = to_json(found.facts)
    rest: dict[str, Any] = to_json(found)
    return {**facts, **{name: value for name, value in rest.items() if name != "facts"}}


def lines(found: ImageInspection, unpacked: int | None = None) -> Iterator[str]:
    """All that is worth knowing, for a person."""
    facts = found.facts
    yield paint(facts.reference, "1") + f"  read from {SOURCES.get(facts.base, facts.base)}"
    rows = [("digest", facts.digest), ("made", found.created.partition(".")[0].replace("T", " ").removesuffix("Z"))]
    rows += [("platform", platform_text(found)), ("size", size_text(facts, unpacked))]
    for name in VERSION_FACTS:
        value = getattr(facts, name)
        # Few images are for AMD's or Amazon's chips: that one is not is worth no line.
        if value or name not in ("rocm", "neuron"):
            rows.append((NAMES[name], told(value, found.sources.get(name, ""))))
    for package, version in facts.frameworks.items():
        rows.append((package, told(version, found.sources.get(package, ""))))
    rows.append(("driver", facts.env.get("NVIDIA_REQUIRE_CUDA", "").replace(" ", " or ")))
    rows += [("user", facts.user), ("folder", found.folder)]
    rows += [("entrypoint", " ".join(facts.entrypoint)), ("command", " ".join(facts.command))]
    yield from (f"  {name:<11} {value}" for name, value in rows if value)
    if not facts.frameworks:
        yield f"  {'frameworks':<11} unknown: what was installed without being named cannot be read without running it"


def told(value: str, source: str) -> str:
    """A fact with where it was read, or that it is not known."""
    return f"{value}  ({source})" if value and source else value or "unknown"


def platform_text(found: ImageInspection) -> str:
    """`linux/amd64`, and what else there is."""
    others = [name for name in found.facts.architectures if name != found.architecture]
    this = f"{found.facts.os or 'unknown'}/{found.architecture or 'unknown'}"
    return f"{this}  (also {', '.join(others)})" if others else this


def size_text(facts: ImageFacts, unpacked: int | None) -> str:
    """What is pulled, or what lies here."""
    if unpacked is not None:
        return f"{memory_text(unpacked)} here"
    return f"{memory_text(facts.size)} to pull" if facts.size else "unknown"
