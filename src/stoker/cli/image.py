"""`stoker image inspect REF`: the contents of an image, as far as they are known without pulling or running it."""

from __future__ import annotations

from typing import Any, Final, Iterator

import click

from stoker import stacks
from stoker.cli.options import json_option
from stoker.cli.output import paint, print_json
from stoker.core.codec import to_json
from stoker.core.imagefacts import ImageFacts
from stoker.core.words import count_text, memory_text
from stoker.images import engine as engines
from stoker.images.facts import VERSION_FACTS, ImageInspection
from stoker.images.layers import LayerCache, LayerReading, planned_reading
from stoker.images.registry import examine
from stoker.report.streams import echo

NAMES: Final = {"cuda": "CUDA", "cudnn": "cuDNN", "rocm": "ROCm", "neuron": "Neuron", "python": "Python"}
"""Fact → its spelling."""
SOURCES: Final = {"registry": "its configuration at the registry", "engine": "this machine's engine"}


@click.group("image")
def command() -> None:
    """Look into the images in which steps run."""


@command.command("inspect")
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
        print_json({**document(inspection), "unpacked": unpacked})
    else:
        echo("\n".join(lines(inspection, unpacked)))


def document(inspection: ImageInspection) -> dict[str, Any]:
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
    rows += [("entrypoint", " ".join(facts.entrypoint)), ("command", " ".join(facts.command))]
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
