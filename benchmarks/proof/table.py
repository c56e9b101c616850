"""The cases of `cases/*.yaml`, and what `stoker plan` says of each."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence
from unittest import mock

import attrs
import yaml

from stoker import pipeline, step
from stoker.core.docker import ImageFacts
from stoker.core.packages import Resolution
from stoker.core.plan import StepPlan

FOLDER: Final = Path(__file__).parent / "cases"
WITHDRAWN: Final = FOLDER / "withdrawn.yaml"
MOST_NOT_PROVED: Final = 0.10
"""The share of cases that may be left without an answer."""

Truth = Literal["runs", "fails"]
HALVES: Final[Mapping[str, str]] = {"blind": "blind half", "open": "open half", "held": "held out"}
"""First part of a file's name, which says how its cases were written → the title in the page."""
Verdict = Literal["proved", "refused", "not-proved"]
TRUTHS: Final[Sequence[Truth]] = ("runs", "fails")
VERDICTS: Final[Sequence[Verdict]] = ("proved", "refused", "not-proved")
_WRONG: Final = {("runs", "refused"): "false refused", ("fails", "proved"): "false proved"}


@attrs.frozen(kw_only=True)
class Case:
    """An image with packages on a driver and a chip, and whether that computes on the accelerator."""

    id: str
    half: str
    """"blind": written before any rule was put to it; "open": written with the rules in view; "held": written by
    somebody who had not seen the rules."""
    family: str
    image: str
    requirements: tuple[str, ...]
    chip: str
    driver: str = ""
    """Empty for accelerators that have none that a simulation could give."""
    python: str
    """The Python of the image, or the one that is installed into it."""
    machine: str
    """The processor: "x86_64" or "aarch64"."""
    truth: Truth
    component: str = ""
    """What fails."""
    how: str
    sources: tuple[str, ...]
    """A public report, a vendor's table, release notes, or a distribution's metadata."""
    env: Mapping[str, str] | None = None
    """The environment in the image's configuration; None for an image of which only the name is known."""

    @property
    def simulation(self) -> str:
        """The text of `--simulate`."""
        return f"1x{self.chip}" + (f";driver={self.driver}" if self.driver else "")


@attrs.frozen(kw_only=True)
class Answer:
    """What the planner says of a case."""

    case: Case
    verdict: Verdict
    reasons: tuple[str, ...]
    """Refusals, or what is not known."""

    @property
    def wrong(self) -> str:
        """ "false proved" or "false refused"; empty for an answer that is right, and for none."""
        return _WRONG.get((self.case.truth, self.verdict), "")


@step
def compute() -> int:
    """The step of every case."""
    return 1


@pipeline
def computation() -> None:
    """One step, in the image of the case."""
    compute()


def cases(folder: Path = FOLDER) -> tuple[Case, ...]:
    """All cases; those that were withdrawn have no part in them."""
    withdrawn = set(withdrawals(folder))
    return tuple(case for path in sorted(folder.glob("*-*.yaml")) for case in _read(path) if case.id not in withdrawn)


def withdrawals(folder: Path = FOLDER) -> Mapping[str, str]:
    """Case → why it was a mistake."""
    path = folder / WITHDRAWN.name
    rows: list[dict[str, str]] = (_load(path) or []) if path.exists() else []
    return {row["id"]: row["reason"] for row in rows}


def _read(path: Path) -> Iterator[Case]:
    half, _, family = path.stem.partition("-")
    for row in _load(path):
        lists = {name: tuple(row.pop(name)) for name in ("requirements", "sources")}
        yield Case(half=half, family=family, **lists, **row)


def _load(path: Path) -> Any:
    # libyaml, where PyYAML has it, reads the table ten times as fast as Python does.
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def answers(table: Iterable[Case]) -> Iterator[Answer]:
    """Put each case to the planner, as `stoker plan --simulate` does, without network and without an engine."""
    with tempfile.TemporaryDirectory(prefix="proof-") as home, contextlib.chdir(home):
        Path(home, "stoker.toml").write_text('stacks.proof.orchestrator = "docker"\n', encoding="utf-8")
        kept = {name: os.environ.get(name) for name in _SURROUNDINGS}
        os.environ.update({name: value.format(home=home) for name, value in _SURROUNDINGS.items()})
        try:
            for case in table:
                yield _answer(case)
        finally:
            for name, value in kept.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


_SURROUNDINGS: Final = {
    "STOKER_HOME": "{home}",
    "DOCKER_HOST": "unix://{home}/no-engine.sock",
    "STOKER_OFFLINE": "1",
}


def _answer(case: Case) -> Answer:
    from stoker.core.errors import SettingsError, StokerError

    try:
        plan = _plan(case)
    except SettingsError as error:
        return Answer(case=case, verdict="not-proved", reasons=(f"no plan: {error.message}",))
    [step] = plan.steps
    proof = step.proof
    if proof is None:
        raise StokerError(f"the plan of {case.id} has no proof")
    reasons = [f"{one.code} {one.what}" for one in proof.refused] or [
        f"{one.component}: {one.reason}" for one in proof.unknown
    ]
    return Answer(case=case, verdict=proof.verdict, reasons=tuple(reasons))


def _plan(case: Case) -> Any:
    from stoker.config import DockerSettings, ResourceSettings
    from stoker.core.request import RunRequest
    from stoker.images import engine, facts, parents, registry
    from stoker.plan import locking
    from stoker.run import driver

    settings: dict[str, Any] = {"parent_image": case.image}
    if case.requirements:
        settings["requirements"] = case.requirements
    if parents.interpreter_of(case.image, python=case.python) != "parent":
        settings["python_version"] = case.python
    docker = DockerSettings(**settings)

    resources = ResourceSettings(accelerators=case.chip)
    proof = computation.with_options(docker=docker, resources=resources)

    def no_engine(environ: Mapping[str, str]) -> None:
        return None

    def image_facts(reference: str, **ignored: Any) -> Any:
        """The facts of the configuration that the case has: what a registry would answer."""
        if case.env is None:
            return registry.facts_of_name(reference)
        config = {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[case.machine],
            "os": "linux",
            "config": {"Env": [f"{name}={value}" for name, value in case.env.items()]},
        }
        return facts.read(reference, config).facts

    ask = locking.Locking.of_image

    def of_image(self: locking.Locking, step: StepPlan, image: ImageFacts | None, *, machine: str) -> Resolution:
        """What asking for a lock finds, without the one thing that no case is about: that no index was asked."""
        resolution = ask(self, step, image, machine=machine)
        findings = tuple(one for one in resolution.findings if one.code != locking.NOT_RESOLVED)
        return attrs.evolve(resolution, reason="", findings=findings)

    with (
        mock.patch.object(registry, "image_facts", image_facts),
        mock.patch.object(engine, "find", no_engine),
        mock.patch.object(locking.Locking, "of_image", of_image),
    ):
        return driver.plan(proof, {}, RunRequest(stack="proof", simulate=case.simulation))


@attrs.frozen(kw_only=True)
class Matrix:
    """Answers, counted."""

    counts: Mapping[tuple[Truth, Verdict], int]

    @classmethod
    def of(cls, rows: Iterable[Answer]) -> Matrix:
        """Count some answers."""
        counts: dict[tuple[Truth, Verdict], int] = {(truth, verdict): 0 for truth in TRUTHS for verdict in VERDICTS}
        for row in rows:
            counts[row.case.truth, row.verdict] += 1
        return cls(counts=counts)

    @property
    def total(self) -> int:
        """The number of cases."""
        return sum(self.counts.values())

    @property
    def not_proved(self) -> float:
        """The share of cases without an answer."""
        return sum(self.counts[truth, "not-proved"] for truth in TRUTHS) / max(1, self.total)
