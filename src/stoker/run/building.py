"""What steps in images need before a run begins: their images, and a package of the user's code in the artifact store.

An image is made once for all steps with the same settings. The code travels beside it, so that a change of code builds
nothing. Knows images and the store; which backend runs a step is only a name here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Callable,
    Collection,
    Final,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    cast,
)

import attrs

from stoker.core import imagenames
from stoker.core.codec import to_json
from stoker.core.docker import DockerSettings
from stoker.core.errors import StokerError, UsageError
from stoker.core.findings import Finding
from stoker.core.plan import Code, StepPlan, reporter_of
from stoker.core.protocol import FunctionSource
from stoker.core.questions import NoAnswer, Questions
from stoker.core.secret import Secret
from stoker.core.units import value_or
from stoker.core.usercode import is_installed
from stoker.core.words import time_text
from stoker.images import context
from stoker.images.context import IGNORE_FILE, LARGE, CodePackage
from stoker.images.wheel import worker_bundle
from stoker.store.blobs import Blobs
from stoker.worker.secrets import read

if TYPE_CHECKING:
    from stoker.backends.base.pulling import Puller
    from stoker.images.build import BuiltImage, LockOf, WantedImage
    from stoker.images.builders import BuilderChoice, ImageBuilder
    from stoker.images.dockerfile import ImageSpec
    from stoker.images.engine import ImageEngine
    from stoker.images.registries import ContainerRegistry
    from stoker.plan.locking import Locking

PUSH_NOT_CHECKED: Final = "STK246"
BUILT_ELSEWHERE: Final = "STK249"
TAG_OF_A_CHECK: Final = "check"
"""The tag under which a push is asked for; nothing gets it."""


@attrs.frozen(kw_only=True)
class ImagePlace:
    """Where the image of a step is built, and where it goes."""

    engine: str
    """The address of the engine, as DOCKER_HOST has it; empty for the usual one."""
    root: str
    """The folder of the user's code."""
    push: str = ""
    """The repository that it is pushed to; empty if it stays in the engine."""


def _build_options(step: StepPlan) -> Mapping[str, Any]:
    """The options of `build_config` of a step's image."""
    docker = step.settings.docker
    config = value_or(docker.build_config, None) if docker is not None else None
    return (config or {}).get("options") or {}


def pulled_image(step: StepPlan) -> str:
    """The image at a registry that a step uses as it is; empty without one, and for a file that nodes see."""
    docker = step.settings.docker
    image = value_or(docker.parent_image, "") if docker is not None and docker.skip_build is True else ""
    return image if image and imagenames.parse(image) is not None else ""


def not_built(builder: ImageBuilder, tag: str) -> Finding:
    """The finding about an image that a builder elsewhere has not built yet."""
    what = f"its image {tag} is not at the registry, and {builder.title} is not started from here"
    fix = "`stoker build FILE --render --output FOLDER` writes what it is told and the commands that send it; then run"
    return Finding(code=BUILT_ELSEWHERE, level="error", what=what, where=tag, fix=fix)


def _push_not_checked(place: ImagePlace, where: str, error: StokerError) -> Finding:
    what = f"not checked: whether {place.push} takes the image: {error.message}"
    return Finding(code=PUSH_NOT_CHECKED, level="info", where=where, what=what, fix=error.fix)


log = logging.getLogger(__name__)
_SHOWN: Final = 5
"""Large files that are named."""


class Builder:
    """Images of one session, made when they are first asked for; what builds them is imported by then, since most
    steps on other machines have none.

    `folder` is one of Stoker's own, for wheels; `report` takes lines about how a build goes. `hosts` are the engines'
    addresses by the names under which steps call their backends; only those that run steps in images are in it. `far`
    are the names of those that run them on other machines, with a worker that is brought along. `pushing` are those of
    them whose images are built here, or by `builder`, and pushed to `registry`. `locking` has the packages that images
    install.
    """

    def __init__(  # noqa: PLR0913  # what a session hands over
        self,
        *,
        hosts: Mapping[str, str],
        folder: Path,
        report: Callable[[str], None],
        far: Collection[str] = (),
        pushing: Mapping[str, Puller | None] | None = None,
        registry: ContainerRegistry | None = None,
        read_secret: Callable[[Secret], str] = read,
        builder: BuilderChoice | None = None,
        locking: Callable[[], Locking],
    ) -> None:
        self.hosts = hosts
        self.registry = registry
        self._read_secret = read_secret
        self._far = far
        self._pushing = pushing or {}
        self._builder = builder
        self._folder = folder
        self._report = report
        self._locking = locking
        self.ready_bundle = ""
        """A bundle that was made before, and is used instead of another one."""
        self._images: dict[str, str] = {}
        self._engines: dict[str, ImageEngine] = {}

    def has_work(self, steps: Iterable[StepPlan]) -> bool:
        """Whether one of these steps needs anything to be sent along."""
        return any(step.backend in self.hosts or step.backend in self._far for step in steps)

    def with_images(self, steps: Iterable[StepPlan]) -> tuple[StepPlan, ...]:
        """The steps with their images, which are there then."""
        return tuple(self.with_image(step) for step in steps)

    def with_image(self, step: StepPlan) -> StepPlan:
        """The step with its image, if it runs in one."""
        place = self.place(step)
        if place is None:
            text = self.definition(step)
            return attrs.evolve(step, image=text) if text else step
        key = f"{place} {to_json(step.settings.docker)}"
        if key not in self._images:
            built = self.build(place, step.settings.docker)
            if not built.reused:
                self._report(f"built the image of step '{step.name}' in {time_text(built.seconds)}: {built.tag}")
            self._images[key] = built.reference
        return attrs.evolve(step, image=self._images[key])

    def place(self, step: StepPlan) -> ImagePlace | None:
        """Where the image of a step is built and where it goes; None for a step without an image of ours."""
        docker, root = step.settings.docker, step.source.root or os.getcwd()
        target = value_or(docker.target_repository, "") if docker is not None else ""
        if step.backend in self.hosts:
            push = self.registry.repository(target) if target and self.registry is not None else target
            return ImagePlace(engine=self.hosts[step.backend], root=root, push=push)
        if step.backend not in self._pushing or self.registry is None or docker is None or docker.skip_build is True:
            return None
        return ImagePlace(engine="", root=root, push=self.registry.repository(target))

    def definition(self, step: StepPlan) -> str:
        """What the image of a step is built of where it runs; empty for a step whose image is built or named here."""
        docker, puller = step.settings.docker, self._pushing.get(step.backend)
        if docker is None or docker.skip_build is True or self.registry is not None:
            return ""
        if puller is None or not puller.defines:
            return ""
        from stoker.images.build import PYTHON
        from stoker.images.dockerfile import definition
        from stoker.images.spec import spec_of

        return definition(spec_of(docker, root=Path(step.source.root or os.getcwd()), python=PYTHON))

    def build(self, place: ImagePlace, docker: DockerSettings | None) -> BuiltImage:
        """An image, which is there afterwards, also at the repository of the place."""
        from stoker.images.build import image_for
        from stoker.images.builders import BUILDERS

        with self.engine_for(place) as (local_engine, environ):
            builder = BUILDERS.load(self._builder.flavor) if self._builder is not None and place.push else None
            if builder is not None and builder.render is not None:
                return self._found(place, docker, builder, local_engine, environ)
            return image_for(
                docker,
                root=Path(place.root),
                folder=self._folder,
                engine=local_engine,
                progress=self._report,
                push=place.push,
                lock_of=self.lock_of(Path(place.root)),
                environ=environ,
            )

    def _found(
        self,
        place: ImagePlace,
        docker: DockerSettings | None,
        builder: ImageBuilder,
        local_engine: ImageEngine | None,
        environ: Mapping[str, str],
    ) -> BuiltImage:
        """An image that another builder has pushed; an error that says how it is told to, if it has not."""
        from stoker.images.build import BuiltImage

        wanted = self.wanted(place, docker, local_engine, environ)[-1]
        if not wanted.reference:
            finding = not_built(builder, wanted.tag)
            raise UsageError(finding.what, where=finding.where, fix=finding.fix)
        return BuiltImage(reference=wanted.reference, tag=wanted.tag, inputs=wanted.inputs, reused=True, seconds=0.0)

    def wanted(
        self,
        place: ImagePlace,
        docker: DockerSettings | None,
        local_engine: ImageEngine | None,
        environ: Mapping[str, str],
    ) -> tuple[ImageSpec, Mapping[str, bytes | Path], WantedImage]:
        """What an image is made of, its build's context, and whether it is at its registry."""
        from stoker.images.build import image_spec, wanted_image
        from stoker.images.dockerfile import dockerfile
        from stoker.images.spec import context_files

        root = Path(place.root)
        spec, wheel = image_spec(
            docker,
            root=root,
            folder=self._folder,
            engine=local_engine,
            lock_of=self.lock_of(root),
            pull=self._report,
            environ=environ,
        )
        files = context_files(spec, root=root, wheel=wheel)
        text = dockerfile(spec)
        wanted = wanted_image(
            spec, text, files, engine=local_engine, progress=self._report, push=place.push, environ=environ
        )
        return spec, files, wanted

    @contextlib.contextmanager
    def engine_for(self, place: ImagePlace) -> Iterator[tuple[ImageEngine | None, dict[str, str]]]:
        """The engine of a place, with the login of the stack's registry, and its environment.

        There is none where an image is pushed and no engine answers: one that was pushed before is found all the same.
        """
        from stoker.images import engine
        from stoker.images.credentials import logged_in

        base: dict[str, str] = dict(os.environ)
        base = {**base, "DOCKER_HOST": place.engine} if place.engine else base
        if place.engine not in self._engines:
            answering = engine.find(base) if place.push else engine.need(base)
            if answering is not None:
                self._engines[place.engine] = answering
        local_engine = self._engines.get(place.engine)
        login = self.registry if place.push else None
        with logged_in(login, local_engine.environ if local_engine is not None else base, self._read_secret) as environ:
            yield (local_engine.with_environ(environ) if local_engine is not None else None), environ

    def registry_findings(self, steps: Iterable[StepPlan], questions: Questions) -> Iterator[Finding]:
        """What registries refuse of these steps' images, before anything is built: pushes, and pulls where they run.

        Each repository is asked once. An image that is there already needs no push.
        """
        asked: set[tuple[str, str]] = set()
        for step in steps:
            place = self.place(step)
            puller = self._pushing.get(step.backend)
            image = place.push if place is not None else pulled_image(step)
            if place is not None and place.push and ("push", place.push) not in asked:
                asked.add(("push", place.push))
                yield from self._asked_push_findings(step, place, questions)
            if puller is not None and image and (step.backend, image) not in asked:
                from stoker.backends.base.pulling import pull_findings

                asked.add((step.backend, image))
                yield from pull_findings(image, puller, reporter_of(step), questions)

    def _asked_push_findings(self, step: StepPlan, place: ImagePlace, questions: Questions) -> Sequence[Finding]:
        from stoker.images.registries import parse
        from stoker.images.registry import check_name

        def ask() -> list[Finding]:
            return list(self._push_findings(step, place))

        try:
            refused = check_name(f"{place.push}:{TAG_OF_A_CHECK}")
            if refused is not None:
                return [attrs.evolve(refused, where=reporter_of(step).where)]
            name = parse(place.push)
            findings: Sequence[Finding] = questions.ask(
                name.server,
                ask,
                key=["push", place.push, step.name],
                place=["registry", name.server],
                nearby=name.loopback and not questions.strict,
            )
            return findings
        except StokerError as error:
            return [_push_not_checked(place, reporter_of(step).where, error)]

    def _push_findings(self, step: StepPlan, place: ImagePlace) -> Iterator[Finding]:
        from stoker.images.builders import BUILDERS, check_options
        from stoker.images.registry import check_push
        from stoker.images.transport import RegistryUnreachable

        where = reporter_of(step).where
        with self.engine_for(place) as (local_engine, environ):
            builder = BUILDERS.load(self._builder.flavor) if self._builder is not None else None
            refusal = None
            if builder is not None and builder.render is not None:
                check_options(_build_options(step), builder)
            else:
                try:
                    refusal = check_push(f"{place.push}:{TAG_OF_A_CHECK}", environ)
                except RegistryUnreachable as error:
                    raise NoAnswer(error.message, fix=error.fix) from None
                if refusal is None:
                    return
            try:
                wanted = self.wanted(place, step.settings.docker, local_engine, environ)[-1]
            except RegistryUnreachable as error:  # of a parent: this place has answered
                yield _push_not_checked(place, where, error)
                return
            if wanted.reference:
                return
            if builder is not None and refusal is None:
                refusal = not_built(builder, wanted.tag)
            if refusal is not None:
                yield attrs.evolve(refusal, where=where)

    def lock_of(self, root: Path) -> LockOf:
        """The packages to install into an image whose settings have paths below `root`."""
        return partial(self._locking().for_build, root=root)

    def bundle(self, steps: Iterable[StepPlan]) -> str:
        """A folder with Stoker's worker; empty where each image and each machine has it."""
        docker_settings = [step.settings.docker for step in steps if step.backend in self.hosts]
        lacks = any(docker is not None and docker.skip_build is True for docker in docker_settings)
        return (self.ready_bundle or str(worker_bundle(self._folder))) if lacks or self._far else ""

    def code(self, sources: Sequence[FunctionSource], steps: Iterable[StepPlan], blobs: Blobs, home: Path) -> Code:
        """The user's code in the artifact store, and a worker for the images and machines that lack one."""
        bundle = self.bundle(steps)
        root = code_root(sources)
        if not root:
            return Code(bundle=bundle)
        files = [Path(source.path) for source in sources if source.path and _is_below(source.path, root)]
        package = context.package(Path(root), files, home=home)
        digest, changing = package.digest, package.changing
        if not blobs.is_whole(digest):
            with blobs.writer() as writer:
                changing = context.write(package, cast("BinaryIO", writer)).changing
            digest = writer.digest
            for line in package_lines(package):
                self._report(line)
        for name in changing:
            self._report(f"left out of the code that travels: {name}, which is being written; name it in {IGNORE_FILE}")
        for path in package.left_out:
            log.debug("stays behind: %s", path)
        return Code(package=digest, root=str(package.root), bundle=bundle)


def package_lines(package: CodePackage) -> Iterator[str]:
    """How much code travels; of much, the largest files with the line that leaves each out."""
    yield f"the code travels: {package.summary()} of {package.root}"
    if package.size > LARGE:
        yield f"its largest files; if a step needs none of them, write their lines into {package.root / IGNORE_FILE}:"
        yield from (f"  {size / 10**6:>6.1f} MB  /{name}" for name, size in package.largest[:_SHOWN])


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
