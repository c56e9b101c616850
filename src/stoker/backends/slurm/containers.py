"""How an image is run on a cluster's nodes: by Apptainer or Singularity around the worker, or by srun with pyxis."""

from __future__ import annotations

from typing import Iterable, Iterator, Sequence

from stoker.backends.base.mounts import Mount
from stoker.backends.slurm.devices import vendor_of
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.plan import Job, Site
from stoker.vendors.registry import USUAL, VENDORS


def contained(job: Job, settings: SlurmSettings, image: str, mounts: Iterable[Mount]) -> list[str]:
    """What stands before the worker's command; for pyxis these are words of srun."""
    container = settings.get("container", "")
    if not container:
        return []
    if container == "pyxis":
        return list(_pyxis(image, mounts))
    return [container, *_apptainer(job, mounts), docker_address(image)]


def mounts_of(site: Site, settings: SlurmSettings, *, folders: Sequence[str], bundle: str) -> Iterator[Mount]:
    """Folders of the nodes at their own paths, and those that the person names."""
    ours = [*folders]
    if "://" not in site.artifacts:
        ours.append(site.artifacts)
    if not site.package:
        ours += [site.folder, *(source.root for source in site.sources if source.root)]
    for path in dict.fromkeys(filter(None, ours)):
        yield Mount(path, path)
    if bundle:
        yield Mount(bundle, bundle, True)
    for text in settings.get("mounts", ()):
        yield Mount.parse(text)


def docker_address(image: str) -> str:
    """An image as Apptainer takes it: a file's path and other schemes are left as they are."""
    return image if "://" in image or image.startswith(("/", "./")) else f"docker://{image}"


def enroot_address(image: str) -> str:
    """An image as enroot takes it, with a "#" behind the registry; files and other schemes are left as they are.

    https://github.com/NVIDIA/enroot/blob/master/doc/cmd/import.md
    """
    name = image.removeprefix("docker://")
    if name.startswith(("/", "./")) or "://" in name:
        return name
    registry, slash, path = name.partition("/")
    is_registry = bool(slash) and ("." in registry or ":" in registry or registry == "localhost")
    return f"{registry}#{path}" if is_registry and "#" not in name else name


def _apptainer(job: Job, mounts: Iterable[Mount]) -> Iterator[str]:
    """Options of https://apptainer.org/docs/user/latest/cli/apptainer_exec.html, whose words are Singularity's too.

    It hands on the environment by itself, and shows the person's home as the site has it.
    """
    wanted = job.step.settings.resources
    yield "exec"
    if job.kind == "step" and wanted.gpus_per_node:
        yield from VENDORS.load(vendor_of(wanted) or USUAL).apptainer
    for mount in mounts:
        yield f"--bind={_bound(mount)}"


def _pyxis(image: str, mounts: Iterable[Mount]) -> Iterator[str]:
    """https://github.com/NVIDIA/pyxis/wiki/Usage: the job's environment is handed on, but for what the image sets."""
    yield f"--container-image={enroot_address(image)}"
    yield f"--container-mounts={','.join(map(_bound, mounts))}"
    yield from ("--no-container-mount-home", "--no-container-entrypoint")


def _bound(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
