"""Resolve what a step's image will install, before it is built: the lock, or why there is none, and the findings.

An image is resolved for its own Python and platform, beside what its parent has. A request that was resolved before
gives the same lock until a newer one is asked for; an index that does not answer stops no plan.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final, Iterator, Mapping

import attrs

from stoker.core.codec import to_json
from stoker.core.docker import ImageFacts
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.packages import Lock, Resolution, Unresolved, canonical
from stoker.core.plan import StepPlan, reporter_of
from stoker.core.questions import NoAnswer, Questions
from stoker.images.build import PYTHON, check
from stoker.images.dockerfile import ImageSpec
from stoker.images.parents import is_official
from stoker.images.resolving import LockRequest, LockStore, indexes, parse, resolve
from stoker.images.spec import is_bare, spec_of
from stoker.images.wheel import worker_requirements
from stoker.plan.requirements import Requirement, Requirements, numbers, requirement
from stoker.vendors.builds import dotted

CANNOT_BE_MADE: Final = "STK230"
CONFLICT: Final = "STK231"
NO_SUCH_VERSION: Final = "STK232"
NOT_RESOLVED: Final = "STK233"
LEFT_OUT: Final = "STK234"
_GRACE: Final = 1.0
"""Seconds after which a resolver is ended that nobody waits for any more."""
MISSING_HERE: Final = "installed here from a folder"
"""Words of what an image lacks although the step may need it."""
OLDEST_GLIBC: Final = 28
"""The minor version of glibc that is taken for an image of unknown distribution: that of manylinux_2_28, for which
torch and numpy build; https://github.com/pypa/manylinux."""
GLIBC: Final[Mapping[str, int]] = {
    # https://packages.ubuntu.com/search?keywords=libc6 and https://packages.debian.org/search?keywords=libc6
    "ubuntu18.04": 27,
    "ubuntu20.04": 31,
    "ubuntu22.04": 35,
    "ubuntu24.04": 39,
    "bionic": 27,
    "focal": 31,
    "jammy": 35,
    "noble": 39,
    "buster": 28,
    "bullseye": 31,
    "bookworm": 36,
    "trixie": 41,
    "debian10": 28,
    "debian11": 31,
    "debian12": 36,
    "debian13": 41,
    # https://docs.redhat.com/: RHEL's rebuilds have its glibc
    "ubi8": 28,
    "rockylinux8": 28,
    "almalinux8": 28,
    "ubi9": 34,
    "rockylinux9": 34,
    "almalinux9": 34,
}
"""Word of an image's name → the minor version of its distribution's glibc."""
OFFICIAL_GLIBC: Final = 36
"""Of Docker's official images of Python without a distribution in their tag: Debian 12 or later."""
_PYTHON_PACKAGE: Final = re.compile(r"python3?-(?!dev$|pip$|venv$|is-python3$|distutils$|setuptools$|minimal$|full$)")
"""Debian's packages that are Python distributions: what they bring is not known."""


class Locking:
    """The locks of one session. `upgrade` asks the indexes although there is a lock."""

    def __init__(self, store: LockStore, questions: Questions, *, upgrade: bool = False) -> None:
        self.locks: dict[str, Lock] = {}
        """By digest, those that were used."""
        self._store = store
        self._upgrade = upgrade
        self._questions = questions
        self._answers: dict[str, Lock | Unresolved] = {}

    def of_image(self, step: StepPlan, image: ImageFacts | None, *, machine: str) -> Resolution:
        """The resolution of a step that runs in an image; what its settings ask in vain is a finding.

        `image` are the facts of its parent, `machine` is the image's processor in the kernel's words.
        """
        root = Path(step.source.root or os.getcwd())
        report = reporter_of(step)
        try:
            spec = spec_of(step.settings.docker, root=root, python=PYTHON)
            check(spec)
            answer = None if spec.skip_build else self._answer(spec, image, machine=machine, root=root)
        except SettingsError as error:
            what = f"its image cannot be made: {error.message}" + (f" ({error.where})" if error.where else "")
            finding = report.error(CANNOT_BE_MADE, what, fix=error.fix)
            return Resolution(reason=error.message, findings=(finding,))
        notes = tuple(_left_out(step, spec))
        if answer is None:
            return Resolution(findings=notes)
        if isinstance(answer, Lock):
            self.locks[answer.digest] = answer
            return Resolution(lock=answer, findings=notes)
        if not spec.requirements:
            return Resolution(findings=notes)  # only what the worker needs has no lock
        return Resolution(reason=_sentence(answer), findings=(*notes, _finding(step, answer)))

    def documents(self) -> dict[str, Any]:
        """The locks that were used, by digest, as a plan keeps them."""
        return {digest: to_json(lock) for digest, lock in sorted(self.locks.items())}

    def for_build(self, spec: ImageSpec, image: ImageFacts | None, machine: str, *, root: Path) -> Lock | None:
        """The lock of an image that is to be built, as `of_image` has it for a plan; None if there is none."""
        answer = self._answer(spec, image, machine=machine, root=root)
        if not isinstance(answer, Lock):
            return None
        self.locks[answer.digest] = answer
        return answer

    def adopt(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Use the locks of a plan for the same requests, also where newer ones were made since."""
        for digest, document in documents.items():
            self._answers.setdefault(digest, parse(document))

    def _answer(self, spec: ImageSpec, image: ImageFacts | None, *, machine: str, root: Path) -> Lock | Unresolved:
        request = lock_request(spec, image, machine=machine)
        if isinstance(request, Unresolved):
            return request
        known = self._answers.get(request.digest)
        if known is None or (isinstance(known, Unresolved) and known.trouble == "unanswered"):
            known = self._answers[request.digest] = self._resolved(request, root)
        return known

    def _resolved(self, request: LockRequest, root: Path) -> Lock | Unresolved:
        lock = None if self._upgrade else self._store.find(request, root=root)
        if lock is not None:
            return lock
        left = self._questions.seconds
        seconds = None if left is None else left + _GRACE
        place = ["index", indexes(request)]

        def ask() -> Lock | Unresolved:
            answer = resolve(request, refresh=self._upgrade, seconds=seconds)
            if isinstance(answer, Unresolved) and answer.trouble == "unanswered":
                raise NoAnswer(answer.reason)
            return answer

        try:
            answer: Lock | Unresolved = self._questions.ask(
                "the package index", ask, key=["lock", request.digest], place=place
            )
        except NoAnswer as error:
            return Unresolved(trouble="unanswered", reason=error.message)
        if isinstance(answer, Lock):
            self._store.keep(answer)
            return answer
        return attrs.evolve(answer, sure=request.whole)


def lock_request(spec: ImageSpec, image: ImageFacts | None, *, machine: str) -> LockRequest | Unresolved:
    """What a resolver is to be asked for an image; an `Unresolved` if its Python or its processor is not known."""
    python = spec.python if spec.interpreter != "parent" or _makes_conda(spec) else image.python if image else ""
    # Two numbers only: whether the patch is known depends on what was reached, and would give another digest.
    python = dotted(numbers(python)[:2])
    if not python:
        return Unresolved(trouble="undecided", reason=f"the Python of {spec.parent or 'its parent image'} is not known")
    if not machine:
        return Unresolved(trouble="undecided", reason="the processor of its machine is not known")
    installed = image.distributions if image is not None else None
    bare = is_bare(spec)
    more = bool(spec.own_dockerfile or spec.conda_packages or any(map(_PYTHON_PACKAGE.match, spec.apt_packages)))
    parent = dict((installed if installed is not None else image.frameworks) or {}) if image is not None else {}
    platform, known = _platform(spec.parent, machine)
    variables = {**(image.env if image is not None else {}), **_arguments(spec), **spec.environment}
    secrets = spec.options.get("secrets") or {}
    return LockRequest(
        lists=(*spec.requirements, worker_requirements(python, spec.worker_extras)),
        python=python,
        platform=platform,
        installer=spec.installer,
        arguments=spec.arguments,
        wheels=spec.wheels if spec.installer == "uv" else "",
        environment=variables,
        parent={} if bare else {canonical(name): version for name, version in parent.items()},
        whole=(bare or installed is not None) and not more,
        files={name: os.path.expanduser(path) for name, path in secrets.items() if not str(path).startswith("$")},
        sure=known,
    )


def with_lock(wanted: Requirements, lock: Lock) -> Requirements:
    """Requirements with every package that will be installed, each at its version; what they say of indexes stays."""
    written = {item.name: item for item in wanted.items}
    items = []
    for line in lock.lines:
        item = requirement(line)
        if item is not None:
            items.append(_pinned(item, written.get(item.name)))
    for name, version in lock.kept.items():
        if name in written:
            items.append(written[name] if not version else _kept(written[name], version))
    return attrs.evolve(wanted, items=tuple(items), unread=_not_resolved(wanted.unread))


def _pinned(item: Requirement, written: Requirement | None) -> Requirement:
    return item if written is None else attrs.evolve(item, extras=written.extras, wheel=written.wheel or item.wheel)


def _kept(written: Requirement, version: str) -> Requirement:
    pin = requirement(f"{written.name}=={version}")
    return written if pin is None else attrs.evolve(pin, extras=written.extras)


def _not_resolved(unread: tuple[str, ...]) -> tuple[str, ...]:
    """The sources of packages that no resolver sees: conda, and what a command installs."""
    return tuple(text for text in unread if text in ("conda_packages", "local_project_install_command"))


def _platform(reference: str, machine: str) -> tuple[str, bool]:
    """The newest platform of wheels that an image takes, and whether it is known."""
    name = reference.lower()
    if re.search(r"\balpine|-alpine", name):
        return f"musllinux_1_2_{machine}", True
    words = re.sub(r"(ubuntu|debian|rockylinux|almalinux)[:/]", r"\1", name)
    glibc = next((minor for word, minor in GLIBC.items() if re.search(rf"(?<![a-z0-9]){re.escape(word)}", words)), 0)
    if not glibc and is_official(reference):
        glibc = OFFICIAL_GLIBC
    return f"manylinux_2_{glibc or OLDEST_GLIBC}_{machine}", bool(glibc)


def _makes_conda(spec: ImageSpec) -> bool:
    """Whether conda's packages bring the Python that is asked for."""
    return any(text.startswith("python=") for text in spec.conda_packages)


def _arguments(spec: ImageSpec) -> dict[str, str]:
    values: Mapping[str, Any] = {**(spec.options.get("buildargs") or {}), **(spec.options.get("build_args") or {})}
    return {name: str(value) for name, value in values.items()}


def _left_out(step: StepPlan, spec: ImageSpec) -> Iterator[Finding]:
    """What was asked for and is not installed."""
    report = reporter_of(step)
    missing = [text for text in spec.left_out if MISSING_HERE in text]
    if missing:
        yield report.warning(
            LEFT_OUT,
            f"its image lacks {'; '.join(missing)}",
            "an import of it fails there",
            'let local_project_install_command="pip install ." install it, or keep its code beside the pipeline',
        )
    others = [text for text in spec.left_out if MISSING_HERE not in text]
    if others:
        yield report.info(LEFT_OUT, f"not taken from its requirements: {'; '.join(others)}", "")


def _finding(step: StepPlan, answer: Unresolved) -> Finding:
    report = reporter_of(step)
    if answer.trouble not in ("conflict", "missing"):
        why = "which versions will be installed is known when the image is built"
        return report.info(NOT_RESOLVED, _sentence(answer), why)
    origin = f" of {answer.list}" if answer.list not in ("", "requirements") else ""
    why = f"{answer.resolver}: {_without_headline(answer.reason)}"
    if answer.trouble == "missing":
        code, fix = NO_SUCH_VERSION, "check name and version, or name the index: python_package_installer_args"
        what = f"no index has what its requirements{origin} ask for"
    else:
        code, fix = CONFLICT, "loosen one of the two, or take it out"
        what = f"its requirements{origin} contradict each other"
    if answer.wrong:
        return report.error(code, what, why, fix)
    what += ", unless its parent image, whose packages are not known, has what is missing"
    return report.warning(code, what, why, fix)


def _sentence(answer: Unresolved) -> str:
    """Why there is no lock, as the proof says it."""
    lines = _without_headline(answer.reason).splitlines() or [""]
    if answer.trouble == "unanswered":
        return f"its requirements are not resolved, no index answered: {lines[-1].strip()}"
    if answer.trouble == "unbuilt":
        return f"its requirements are not resolved, the metadata of a package cannot be made here: {lines[0].strip()}"
    return f"its requirements are not resolved: {lines[-1].strip()}"


def _without_headline(reason: str) -> str:
    """A resolver's words without the line that says that there is no solution; the others below each other."""
    lines = [line for line in reason.splitlines() if not line.startswith("No solution found")]
    return "\n    ".join(lines)
