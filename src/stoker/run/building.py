"""What steps in images need before a run begins: their images, and a package of the user's code in the artifact store.

An image is made once for all steps with the same settings. The code travels beside it, so that a change of code builds
nothing. Knows images and the store; which backend runs a step is only a name here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, BinaryIO, Callable, Collection, Iterable, Mapping, Sequence, cast

import attrs

from stoker.core.codec import to_json
from stoker.core.errors import UsageError
from stoker.core.plan import Code, StepPlan
from stoker.core.source import FunctionSource
from stoker.core.words import time_text
from stoker.images import context, engine
from stoker.images.build import image_for
from stoker.images.installed import is_installed
from stoker.images.wheel import worker_bundle
from stoker.store.blobs import Blobs


class Builder:
    """Images of one session, made when they are first asked for.

    `folder` is one of Stoker's own, for wheels; `report` takes lines about how a build goes. `hosts` are the engines'
    addresses by the names under which steps call their backends; only those that run steps in images are in it. `far`
    are the names of those that run them on other machines, with a worker that is brought along.
    """

    def __init__(
        self, *, hosts: Mapping[str, str], folder: Path, report: Callable[[str], None], far: Collection[str] = ()
    ) -> None:
        self.hosts = hosts
        self._far = far
        self._folder = folder
        self._report = report
        self._images: dict[str, str] = {}
        self._engines: dict[str, engine.ImageEngine] = {}

    def has_work(self, steps: Iterable[StepPlan]) -> bool:
        """Whether one of these steps needs anything to be sent along."""
        return any(step.backend in self.hosts or step.backend in self._far for step in steps)

    def with_images(self, steps: Iterable[StepPlan]) -> tuple[StepPlan, ...]:
        """The steps with their images, which are there then."""
        return tuple(self.with_image(step) for step in steps)

    def with_image(self, step: StepPlan) -> StepPlan:
        """The step with its image, if it runs in one."""
        host = self.hosts.get(step.backend)
        if host is None:
            return step
        root = step.source.root or os.getcwd()
        key = f"{host} {root} {to_json(step.settings.docker)}"
        if key not in self._images:
            self._images[key] = self._image(step, host, Path(root))
        return attrs.evolve(step, image=self._images[key])

    def _image(self, step: StepPlan, host: str, root: Path) -> str:
        if host not in self._engines:
            environ: dict[str, str] = dict(os.environ)
            self._engines[host] = engine.need({**environ, "DOCKER_HOST": host} if host else environ)
        built = image_for(
            step.settings.docker,
            root=root,
            folder=self._folder,
            engine=self._engines[host],
            progress=self._report,
        )
        if not built.reused:
            self._report(f"built the image of step '{step.name}' in {time_text(built.seconds)}: {built.tag}")
        return built.reference

    def code(self, sources: Sequence[FunctionSource], steps: Iterable[StepPlan], blobs: Blobs, home: Path) -> Code:
        """The user's code in the artifact store, and a worker for the images and machines that lack one."""
        steps = list(steps)
        docker_settings = [step.settings.docker for step in steps if step.backend in self.hosts]
        lacks = any(docker is not None and docker.skip_build is True for docker in docker_settings)
        lacks = lacks or bool(self._far)
        bundle = str(worker_bundle(self._folder)) if lacks else ""
        root = code_root(sources)
        if not root:
            return Code(bundle=bundle)
        files = [Path(source.path) for source in sources if source.path and _is_below(source.path, root)]
        package = context.package(Path(root), files, home=home)
        if not blobs.exists(package.digest):
            with blobs.writer() as writer:
                context.write(package, cast("BinaryIO", writer))
        for path in package.left_out:
            self._report(f"stays behind: {path}")
        return Code(package=package.digest, root=str(package.root), bundle=bundle)


def code_root(sources: Iterable[FunctionSource], loaded: Mapping[str, Any] | None = None) -> str:
    """The folder that holds all code of the user's own that the steps' modules have imported; empty without any.

    What is installed does not count: it is the image's affair. Nor does what this process alone was started from.
    """
    roots = {os.path.realpath(source.root) for source in sources if source.root and not is_installed(source.root)}
    path = [os.path.realpath(entry or os.getcwd()) for entry in sys.path]
    for entry in dict.fromkeys(path):
        if (
            entry not in roots
            and not is_installed(entry)
            and _was_imported_from(entry, sys.modules if loaded is None else loaded)
        ):
            roots.add(entry)
    if not roots:
        return ""
    common = os.path.commonpath(sorted(roots))
    home = os.path.realpath(os.path.expanduser("~"))
    if len(roots) > 1 and (common in {"/", home} or _is_below(home, common)):
        raise UsageError(
            f"the steps' code lies in folders that have nothing but {common} in common: {', '.join(sorted(roots))}",
            fix="put it below one folder, or install what the steps import as a package (requirements of the image)",
        )
    return common


def _was_imported_from(entry: str, loaded: Mapping[str, Any]) -> bool:
    """Whether a module of the user's was imported from an entry of the path."""
    for name, module in list(loaded.items()):
        file = getattr(module, "__file__", None)
        if not file or "." in name or name == "__main__":
            continue
        folder = os.path.dirname(os.path.realpath(file))
        if os.path.basename(file).startswith("__init__."):
            folder = os.path.dirname(folder)
        if folder == entry:
            return True
    return False


def _is_below(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(folder.rstrip("/") + "/")
