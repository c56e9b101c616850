"""Rules of preflight about the image, what starts in it, and whether a machine can run it."""

from __future__ import annotations

import re
from typing import Final, Iterator

from stoker.backends.docker.settings import SHARED_MEMORY
from stoker.core.findings import Finding, Level
from stoker.core.imagenames import parse
from stoker.core.resources import describe
from stoker.core.units import UNSET, size_text, value_or
from stoker.images.requirements import TORCH
from stoker.launchers.registry import launcher_named
from stoker.plan.packages import HARMLESS, NEEDS_TORCH
from stoker.plan.rules import MACHINES, PlanFacts

OTHER_PROCESSOR: Final = "STK209"
UNPINNED: Final = "STK211"
NO_LAUNCHER: Final = "STK213"
LITTLE_SHM: Final = "STK216"
NOWHERE: Final = "STK217"
UNREADABLE: Final = "STK218"
NO_EFFECT: Final = "STK221"
OTHER_LIBC: Final = "STK250"

SHM: Final = 64 * 2**20
"""Bytes of /dev/shm in a container by default: https://docs.docker.com/reference/cli/docker/container/run/#shm-size"""

# Their publishers put none of the launchers' packages into them, except torch.
_NO_LAUNCHERS: Final = ("nvidia/cuda", "nvcr.io/nvidia/cuda", "pytorch/pytorch")
# None of their releases has a wheel for musllinux (https://peps.python.org/pep-0656/) among its files; jax requires
# jaxlib.
_GLIBC_ONLY: Final = re.compile(
    r"torch|torchvision|torchaudio|tensorflow(?:-cpu)?|jax|jaxlib|jax-cuda\d+-plugin|cupy-cuda\d+x?|vllm|xformers|triton"
    r"|onnxruntime(?:-gpu)?|bitsandbytes|flash-attn|nvidia-[a-z-]+-cu\d+"
)
_LOADERS: Final = ("torch",)
"""Frameworks whose data loaders pass batches through shared memory."""


def processor(facts: PlanFacts) -> Iterator[Finding]:
    """The image is for another processor than the machine's. docker/for-mac 5475: "exec format error"."""
    platform = facts.docker.platform
    word = platform.partition("/")[2].partition("/")[0] if platform is not UNSET and platform else ""
    names = [word] if word else list(facts.image.architectures)
    processors = {MACHINES.get(name, name) for name in names}
    if not processors or not facts.machine or facts.machine in processors:
        return
    source = f"platform={platform!r}" if word else facts.reference
    what = f"its image ({source}) is for {', '.join(sorted(processors))}, and the machine is {facts.machine}"
    name = {there: here for here, there in MACHINES.items()}.get(facts.machine, facts.machine)
    fix = f'build it with platform="linux/{name}", or take one that is made for several processors'
    yield _finding(
        facts, OTHER_PROCESSOR, "error", what, why="the container would end with 'exec format error'", fix=fix
    )


def other_libc(facts: PlanFacts) -> Iterator[Finding]:
    """The image's C library is musl, and a requirement has wheels for glibc only."""
    if facts.image.libc != "musl" or not facts.builds:
        return
    names = [item.name for item in facts.requirements.items if _GLIBC_ONLY.fullmatch(item.name) and not item.url]
    if not names:
        return
    what = f"{facts.reference} has musl for its C library, and {', '.join(names)} has wheels for glibc only"
    fix = "take an image of Debian or Ubuntu, such as python:3.12-slim"
    yield _finding(facts, OTHER_LIBC, "error", what, why="nothing that could be installed is found there", fix=fix)


def unpinned(facts: PlanFacts) -> Iterator[Finding]:
    """The tag moves, or has moved since the last run: the same plan would run another image."""
    parts = parse(facts.reference) if facts.reference else None
    if parts is None or parts.pinned:
        return
    digest = facts.image.digest
    pin = f"{parts.name}:{parts.tag}@{digest}" if parts.tag else f"{parts.name}@{digest}"
    fix = f'write "{pin}"' if digest else "write a tag that names a version, or the digest (@sha256:…)"
    if digest and facts.last_digest and facts.last_digest != digest:
        what = f"{facts.reference} is another image than when it was last used "
        what += f"({facts.last_digest[:19]}…, now {digest[:19]}…)"
        yield _finding(facts, UNPINNED, "info", what, why="its tag was moved", fix=fix)
    elif parts.moving:
        what = f"{facts.reference} has {'the tag' if parts.tag else 'no tag, which is'} '{parts.tag or 'latest'}'"
        why = "it stands for another image whenever its publisher moves it"
        yield _finding(facts, UNPINNED, "info", what, why=why, fix=fix)


def unreadable(facts: PlanFacts) -> Iterator[Finding]:
    """The image could not be read: it does not exist, needs a login, or its registry was not reached."""
    image = facts.image
    if not image.unreadable or (facts.reference and parse(facts.reference) is None):  # STK230 refuses such a name
        return
    if image.refused:
        what = f"its image {facts.reference} cannot be read: {image.unreadable}"
        fix = "check the name, and log in to its registry (docker login), here and where the step will run"
        yield _finding(
            facts, UNREADABLE, "error", what, why="where the step runs it could not be pulled either", fix=fix
        )
        return
    what = f"its image {facts.reference} was not looked at: {image.unreadable}"
    why = "what is checked of it is what its name says"
    yield _finding(facts, UNREADABLE, "info", what, why=why, fix="see that the registry can be reached, and plan again")


def launcher(facts: PlanFacts) -> Iterator[Finding]:
    """The launcher's package will be missing in the image. accelerate 2920: the launch works here, and not there."""
    launch = facts.step.settings.launch
    if launch is None or not launcher_named(launch.launcher).package:
        return
    started_by = launcher_named(launch.launcher)
    package, brought_by = started_by.package, {started_by.package, *started_by.brought_by}
    names = {item.name for item in facts.requirements.items}
    extras = {(item.name, extra) for item in facts.requirements.items for extra in item.extras}
    if names & brought_by or package in facts.image.frameworks or ("transformers", "torch") in extras:
        return
    parts = parse(facts.reference) if facts.reference else None
    contents_known = facts.bare or (parts is not None and parts.name in _NO_LAUNCHERS)
    undecided = [*sorted(names - HARMLESS), *facts.requirements.unread]
    if contents_known and not undecided:
        what = f"is launched by {launch.launcher}, and neither its image nor its requirements bring {package}"
        fix = f'add "{package}" to its requirements'
        yield _finding(facts, NO_LAUNCHER, "error", what, fix=fix)
        return
    question = (
        f"whether {', '.join(undecided[:5])} brings it" if undecided else f"what {facts.reference or 'its image'} holds"
    )
    what = f"is launched by {launch.launcher}, and {package} is not among its requirements"
    yield _finding(
        facts, NO_LAUNCHER, "info", what, why=f"{question} is not known", fix=f"require {package}, to be sure"
    )


def little_shm(facts: PlanFacts) -> Iterator[Finding]:
    """Data loaders pass batches through /dev/shm, of which a container has 64 MB. pytorch 5040: "Bus error"."""
    loads = any(package.build.framework in _LOADERS for package in facts.packages)
    # By default, containers of our backends get more than the engine's default.
    has = facts.step.settings.resources.get("shared_memory", SHARED_MEMORY)
    if not facts.gpus or not loads or has > SHM:
        return
    what = f"its container has {size_text(has)} of /dev/shm"
    why = "workers of a DataLoader, and NCCL between GPUs, hand data over there; without room they end with 'Bus error'"
    fix = 'ask for some: resources=ResourceSettings(shared_memory="8GB"); or num_workers=0'
    yield _finding(facts, LITTLE_SHM, "info", what, why=why, fix=fix)


def idle_accelerator(facts: PlanFacts) -> Iterator[Finding]:
    """`docker.accelerator` beside an image of the user's own chooses torch's wheels only, and torch is not installed.

    `images.spec` takes the parent from `parent_image` or from the user's Dockerfile, if there is one.
    """
    accelerator, docker = value_or(facts.docker.accelerator, ""), facts.docker
    parent = "dockerfile" if value_or(docker.dockerfile, "") else "parent_image"
    if not accelerator or not value_or(getattr(docker, parent), "") or not facts.builds:
        return
    wanted = facts.requirements
    if wanted.unread or {item.name for item in wanted.items} & {*TORCH, *NEEDS_TORCH}:
        return
    what = f"accelerator={accelerator!r} has no effect: {parent} says which image the build starts from, "
    what += "and no requirement brings torch, whose wheels it would choose"
    fix = f"remove accelerator, or remove {parent} to start from the official image for {accelerator}"
    yield _finding(facts, NO_EFFECT, "warning", what, fix=fix)


def nowhere(facts: PlanFacts) -> Iterator[Finding]:
    """No known machine has the devices. skypilot 8388: the job waits for ever."""
    if not facts.lacking or facts.refused:
        return
    what = f"asks for {describe(facts.step.settings.resources)}: {facts.lacking}"
    level: Level = "error" if facts.required else "info"
    why = "it would wait for ever" if facts.required else 'accelerator_policy="prefer" lets it run without'
    fix = "ask for what is there (`stoker devices`), or use a stack that has it (--stack)"
    yield _finding(facts, NOWHERE, level, what, why=why, fix=fix)


def _finding(facts: PlanFacts, code: str, level: Level, what: str, *, why: str = "", fix: str = "") -> Finding:
    return Finding(code=code, level=level, where=facts.where, what=what, why=why, fix=fix)
