"""Rules of preflight about the image, what starts in it, Python and packages: whether they fit each other, the machine,
the image's Python and the client's."""

from __future__ import annotations

import re
from typing import Final, Iterator, Mapping, Sequence

from stoker.backends.docker.settings import SHARED_MEMORY
from stoker.core.findings import Finding, Level
from stoker.core.imagenames import cuda_of_tag, parse
from stoker.core.resources import describe
from stoker.core.units import UNSET, size_text, value_or
from stoker.images.requirements import TORCH as TORCH_NAMES
from stoker.launchers.registry import launcher_named
from stoker.plan.components.torchparts import VISION_UNPINNED
from stoker.plan.packages import HARMLESS, NEEDS_TORCH, TORCH_PYTHONS, jax_cuda
from stoker.plan.requirements import Release, Requirement, Wheel, numbers, same_version
from stoker.plan.rules import MACHINES, PlanFacts
from stoker.vendors.builds import dotted
from stoker.vendors.nvidia.builds import TORCH

STRANGERS: Final = "STK206"
OLD_PYTHON: Final = "STK207"
OTHER_PYTHON: Final = "STK208"
OTHER_VERSION: Final = "STK210"
NOT_INSTALLABLE: Final = "STK212"

OLDEST: Final = (3, 10)
"""The oldest Python for Stoker's worker: `requires-python` of the project."""

# https://github.com/pytorch/vision#installation: torchvision 0.15 belongs to torch 2.0, 0.16 to 2.1, and so on.
_VISION_BEHIND: Final = 15
_TORCH_FAMILY: Final = ("torchvision", "torchaudio", "flash-attn", "xformers", "torch-scatter", "torch-sparse")
"""Distributions compiled against one torch, with its CUDA in the local part of their version."""
_GLIBC_ONLY: Final = frozenset(
    {"jaxlib", "onnxruntime-gpu", "tensorflow", "torch", "torchaudio", "torchvision", "triton"}
)
"""Distributions that have neither a wheel for musl nor a source distribution that pip could build."""
# Requires-Dist of torch's wheels: nvidia-cudnn-cu11 8.5 since 1.13, nvidia-cudnn-cu12 8.9 in 2.1, 9.1 since 2.4.
_TORCH_REQUIRES_CUDNN: Final = (1, 13)
_TORCH_REQUIRES_CUDNN_9: Final = (2, 4)
_NEEDED_PYTHON: Final = "the image's Python is {}"


def companions(facts: PlanFacts) -> Iterator[Finding]:
    """Parts of one framework are built for different CUDAs, or belong to different releases of it.

    pytorch/vision 8985 and 9174, "operator torchvision::nms does not exist"; torchvision itself refuses another first
    number of CUDA when it is imported: https://github.com/pytorch/vision/blob/main/torchvision/extension.py.
    """
    torch = facts.package("torch")
    for name in _TORCH_FAMILY if torch is not None else ():
        item = facts.requirements.get(name)
        if item is None or torch is None:
            continue
        cuda = re.match(r"cu(\d+)", item.local)
        wheel_cuda = numbers(cuda_of_tag(cuda[1])) if cuda is not None else ()
        if wheel_cuda and torch.build.cuda and wheel_cuda[0] != torch.build.cuda[0]:
            what = f"{item.text} is built for CUDA {dotted(wheel_cuda)}, and torch {torch.build.version} for CUDA "
            what += dotted(torch.build.cuda)
            fix = f"require both with the same suffix, from PyTorch's own index: {name}+cu{_digits(torch.build.cuda)}"
            yield _finding(facts, STRANGERS, "error", what, why=f"torch is from {torch.text}", fix=fix)
        elif (wheel_cuda and torch.build.cpu) or (item.local == "cpu" and torch.build.cuda):
            torch_text = "a CPU build" if torch.build.cpu else f"built for {torch.build.target}"
            what = f"{item.text} does not fit torch {torch.build.version}, which is {torch_text}"
            yield _finding(
                facts, STRANGERS, "error", what, why=f"torch is from {torch.text}", fix="give both one suffix"
            )
        else:
            yield from _release_findings(facts, item, torch.build.version)
    yield from _jax_findings(facts)
    yield from _cupy_findings(facts)


def old_python(facts: PlanFacts) -> Iterator[Finding]:
    """The image's Python is older than any that the worker runs on."""
    if facts.python and facts.python[:2] < OLDEST:
        what = f"its image {facts.reference} has Python {dotted(facts.python)}, and the worker needs {dotted(OLDEST)}"
        fix = f"take an image with the client's Python, {dotted(facts.client.python[:2])}"
        yield _finding(facts, OLD_PYTHON, "error", f"{what} or later", fix=fix)


def other_python(facts: PlanFacts) -> Iterator[Finding]:
    """The image's Python is not the client's: code objects in pickles are read by the same minor release only.

    dask 6007 and nrdg/cloudknot 270: the worker cannot read what the client pickled.
    https://github.com/cloudpipe/cloudpickle#readme: "the exact same version of Python".
    """
    image, ours = facts.python[:2], facts.client.python[:2]
    if len(image) < 2 or not ours or image == ours or image < OLDEST:
        return
    what = f"its image {facts.reference} has Python {dotted(image)}, and this one is {dotted(ours)}"
    pickled = [source for source in (facts.step.source, *facts.step.hooks.values()) if source.kind == "pickled"]
    if pickled:
        why = "its function is sent as a pickle, which only the same Python reads: it is no module's and no file's"
        fix = f"define it in a file, or take an image with Python {dotted(ours)}"
        yield _finding(facts, OTHER_PYTHON, "error", what, why=why, fix=fix)
        return
    why = "arrays, frames, models and JSON travel well; an object that only pickle can keep may not be read there"
    yield _finding(facts, OTHER_PYTHON, "info", what, why=why, fix=f"take an image with Python {dotted(ours)}")


def other_versions(facts: PlanFacts) -> Iterator[Finding]:
    """Packages whose objects travel between steps have different versions here and in the image."""
    differences = []
    for name, here in facts.client.versions.items():
        item = facts.requirements.get(name)
        there = item.pinned if item is not None else facts.image.frameworks.get(name, "")
        if there and item is not None and not item.pinned:
            continue
        if there and not same_version(there, here):
            differences.append(f"{name} {there} (here {here})")
    if differences:
        what = f"its image will have {', '.join(differences)}"
        why = "what one version saves, another may read differently, or not at all"
        yield _finding(facts, OTHER_VERSION, "info", what, why=why, fix="pin the same versions in both places")


def not_installable(facts: PlanFacts) -> Iterator[Finding]:
    """A requirement has no build for the image's Python, processor or C library, or none at all. clearml-agent 152"""
    yield from _other_cudnn(facts)
    for item in facts.requirements.items:
        if item.wheel is None and item.pinned and not item.allows(item.pinned):
            what = f"no version of {item.name} satisfies all its requirements: {item.specifier}"
            yield _finding(facts, NOT_INSTALLABLE, "error", what, fix=f"require one version of {item.name}")
        if facts.image.libc == "musl" and _is_without_musl(item):
            what = f"{item.text} has no wheel for {facts.reference}, whose C library is musl"
            why = "its wheels are for glibc (manylinux), and there is no source that an installer could build"
            fix = f"take a parent image with glibc, such as python:{dotted(facts.python[:2] or OLDEST)}-slim"
            yield _finding(facts, NOT_INSTALLABLE, "error", what, why=why, fix=fix)
        if item.wheel is not None:
            yield from _wheel_findings(facts, item, item.wheel)
        if item.name != "torch" or not item.pinned:
            continue
        release = numbers(item.pinned)
        low, high = TORCH_PYTHONS.get(release[:2], ((), None))
        python = facts.python[:2]
        if python and low and (python < low or (high is not None and python > high)):
            until = f" to {dotted(high)}" if high is not None else " on"
            what = f"{item.text} has no wheel for Python {dotted(python)} of {facts.reference}"
            fix = f"take an image with Python {dotted(low)}{until}, or another release of torch"
            yield _finding(
                facts, NOT_INSTALLABLE, "error", what, why=f"its wheels are for {dotted(low)}{until}", fix=fix
            )
        yield from _no_such_build(facts, item, release)


def _other_cudnn(facts: PlanFacts) -> Iterator[Finding]:
    """A cuDNN of another first number is pinned than the one that the wheel of torch requires."""
    torch = facts.requirements.get("torch")
    if torch is None or torch.wheel is not None or facts.locked:
        return
    release = numbers(torch.pinned)[:2]
    if release < _TORCH_REQUIRES_CUDNN or (torch.local and not torch.local.startswith("cu")):
        return
    if torch.local and release < _TORCH_REQUIRES_CUDNN_9:
        return  # some wheels of PyTorch's own index contained it then
    needed = 9 if release >= _TORCH_REQUIRES_CUDNN_9 else 8
    for item in facts.requirements.items:
        if not item.pinned or not re.fullmatch(r"nvidia-cudnn-cu\d+", item.name):
            continue
        if numbers(item.pinned)[0] != needed:
            what = f"{torch.text} requires cuDNN {needed}, and the requirements pin {item.text}"
            fix = f"leave {item.name} out, which torch brings"
            yield _finding(facts, NOT_INSTALLABLE, "error", what, why="its wheel requires one version of it", fix=fix)


def _is_without_musl(item: Requirement) -> bool:
    """Whether all wheels of a distribution are for glibc: the files of each release at the Python Package Index."""
    if item.wheel is not None:
        return False
    return item.name in _GLIBC_ONLY or re.match(r"cupy-cuda|nvidia-.+-cu\d", item.name) is not None


def _no_such_build(facts: PlanFacts, item: Requirement, release: Release) -> Iterator[Finding]:
    match = re.fullmatch(r"cu(\d+)", item.local)
    rows = TORCH["x86_64"]
    releases = min(first for _, first, _, _ in rows), max(last for _, _, last, _ in rows)
    if match is None or not releases[0] <= release[:2] <= releases[1] or facts.machine not in ("x86_64", ""):
        return
    cuda = numbers(cuda_of_tag(match[1]))
    available = [built for built, first, last, _ in rows if first <= release[:2] <= last]
    if cuda not in available:
        names = ", ".join(f"cu{_digits(built)}" for built in available)
        what = f"there is no {item.text}: torch {dotted(release[:2])} was built for {names}"
        yield _finding(
            facts, NOT_INSTALLABLE, "error", what, fix=f"write torch=={dotted(release)}+cu{_digits(available[-1])}"
        )


def _wheel_findings(facts: PlanFacts, item: Requirement, wheel: Wheel) -> Iterator[Finding]:
    python = facts.python[:2]
    if len(python) == 2 and not any(_tag_fits(tag, abi, python) for tag in wheel.pythons for abi in wheel.abis):
        what = f"{item.name} {wheel.version} is a wheel for {', '.join(wheel.pythons)}, and "
        what += _NEEDED_PYTHON.format(dotted(python))
        fix = f"require the wheel for cp{python[0]}{python[1]}, or take an image with its Python"
        yield _finding(facts, NOT_INSTALLABLE, "error", what, fix=fix)
    machines = {MACHINES.get(facts.machine, facts.machine)} - {""}
    if "any" in wheel.platforms or not machines:
        return
    if not any(name.startswith(("linux", "manylinux", "musllinux")) for name in wheel.platforms):
        what = f"{item.name} {wheel.version} is a wheel for {', '.join(wheel.platforms)}, and images are Linux"
        yield _finding(facts, NOT_INSTALLABLE, "error", what, fix="require its wheel for Linux")
    elif not any(name.endswith(machine) for name in wheel.platforms for machine in machines):
        what = f"{item.name} {wheel.version} is a wheel for {', '.join(wheel.platforms)}, and the step runs on "
        what += ", ".join(machines)
        yield _finding(facts, NOT_INSTALLABLE, "error", what, fix=f"require its wheel for {', '.join(machines)}")


_STABLE: Final = ("abi3", "abi3t")
"""ABIs of a Python that later ones have, too: https://peps.python.org/pep-0384/, https://peps.python.org/pep-0803/."""


def _tag_fits(tag: str, abi: str, python: Release) -> bool:
    """https://packaging.python.org/en/latest/specifications/platform-compatibility-tags"""
    match = re.fullmatch(r"(cp|py)(\d)(\d*)", tag)
    if match is None or int(match[2]) != python[0]:
        return False
    minor = int(match[3]) if match[3] else None
    if minor is None:
        return True
    return minor <= python[1] if match[1] == "py" or abi in _STABLE else minor == python[1]


def _release_findings(facts: PlanFacts, item: Requirement, torch: str) -> Iterator[Finding]:
    torch_release, actual = numbers(torch)[:2], numbers(item.pinned)[:2]
    if not item.pinned or len(torch_release) < 2 or torch_release[0] != 2:
        return
    if item.name == "torchvision" and numbers(item.pinned) >= VISION_UNPINNED:
        return  # which torch it is built for, no metadata says: what is not known refuses nothing
    if item.name == "torchvision":
        expected: Release = (0, torch_release[1] + _VISION_BEHIND)
    elif item.name == "torchaudio":
        expected = torch_release
    else:
        match = re.search(r"torch(\d)\.?(\d+)", item.local)  # flash-attn 2.6.3+cu123torch2.4cxx11abiFALSE
        actual, expected = (
            ((int(match[1]), int(match[2])), torch_release) if match is not None else (torch_release, torch_release)
        )
    if actual == expected:
        return
    package = facts.package("torch")
    if package is not None and package.origin == "image":
        what = f"{item.text} needs another torch than {torch} of {facts.reference}: an installer would replace it"
        why = "what replaces it is the newest build that fits, with a CUDA of its own"
    else:
        what, why = (
            f"{item.text} does not belong to torch {torch}",
            f"torch is from {package.text if package else torch}",
        )
    fix = (
        f"require {item.name}=={dotted(expected)}.*"
        if item.name.startswith("torch")
        else "take its build for this torch"
    )
    yield _finding(facts, STRANGERS, "error" if package and package.sure else "info", what, why=why, fix=fix)


def _jax_findings(facts: PlanFacts) -> Iterator[Finding]:
    versions: Mapping[str, str] = dict(jax_cuda(facts.requirements))
    if len(versions) > 1:
        lines = ", ".join(dict.fromkeys(versions.values()))
        what = f"JAX is asked for with CUDA {' and '.join(sorted(versions))}: {lines}"
        why = "it loads one plugin; two of them register the same devices"
        yield _finding(facts, STRANGERS, "error", what, why=why, fix=f'require "jax[cuda{max(versions)}]" alone')
    jax, plugin = facts.requirements.get("jax"), None
    for item in facts.requirements.items:
        if re.fullmatch(r"jax-cuda\d+-plugin", item.name):
            plugin = item
    if jax is None or plugin is None or not (jax.pinned and plugin.pinned):
        return
    if not same_version(jax.pinned, plugin.pinned):
        what = f"{plugin.text} does not belong to {jax.text}"
        why = "JAX ignores a plugin of another version, and computes on the CPU"
        yield _finding(facts, STRANGERS, "error", what, why=why, fix=f"require {plugin.name}=={jax.pinned}")


def _cupy_findings(facts: PlanFacts) -> Iterator[Finding]:
    """CuPy's wheels have no CUDA: they load the image's, or that of other packages, by its major version.

    https://docs.cupy.dev/en/stable/install.html
    """
    cupy = facts.package("cupy")
    image_cuda = numbers(facts.image.cuda)[:1]
    if cupy is None or not cupy.build.cuda or not cupy.build.lacks:
        return
    majors = [one.build.cuda[0] for one in facts.packages if one is not cupy and one.build.cuda]
    majors += [
        int(found[1]) for item in facts.requirements.items if (found := re.search(r"^nvidia-.*-cu(\d+)$", item.name))
    ]
    if image_cuda and cupy.build.cuda[0] not in (image_cuda[0], *majors):
        what = f"{cupy.text} loads the libraries of CUDA {cupy.build.cuda[0]}, and {facts.reference} has "
        what += f"CUDA {facts.image.cuda}"
        fix = f"require cupy-cuda{image_cuda[0]}x, or {cupy.build.how}[ctk], which brings its own"
        yield _finding(facts, STRANGERS, "error", what, fix=fix)


def _digits(cuda: Sequence[int]) -> str:
    return "".join(map(str, cuda))


def _finding(facts: PlanFacts, code: str, level: Level, what: str, *, why: str = "", fix: str = "") -> Finding:
    return Finding(code=code, level=level, where=facts.where, what=what, why=why, fix=fix)


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
_NEEDS_GLIBC: Final = re.compile(
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
    names = [item.name for item in facts.requirements.items if _NEEDS_GLIBC.fullmatch(item.name) and not item.url]
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
    if wanted.unread or {item.name for item in wanted.items} & {*TORCH_NAMES, *NEEDS_TORCH}:
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
