"""Each field on each backend, one at a time: the request changes, or a finding says what becomes of it.

The page docs/guide/backends.md has what is found here between two marks, and the test of the page finds it, field by
field; UPDATE_GOLDEN=1 writes it anew.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.backends.fields import (
    ELSEWHERE,
    NO_PLATFORM,
    RESOURCES,
    ROWS,
    STEP,
    Always,
    Enough,
    Example,
    Held,
    Row,
    Words,
    resources_of,
)

from stoker.backends.base.backend import LeasesDevices, Services, capability
from stoker.backends.base.leasing import Leasing
from stoker.backends.registry import BACKENDS
from stoker.core.codec import to_json
from stoker.core.devices import Inventory
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings
from stoker.core.units import whole_run_fields
from stoker.devices.leases import Ledger
from stoker.devices.probe import parse_simulation
from stoker.images.build import image_spec
from stoker.images.dockerfile import dockerfile
from stoker.run.rendering import placeholder_leases
from stoker.settings.options import layer_of, settings_class
from stoker.worker.processes import this_process

PAGE = "docs/guide/backends.md"
BEGIN, END = "<!-- written by tests/backends/test_every_field.py -->", "<!-- as far as here -->"
SITE = Site(
    artifacts="s3://bucket/store",
    scratch="/home/me/.stoker/scratch",
    path=("/home/me/project", "/usr/lib/python3.11"),
    folder="/home/me/project",
    checkpoints="/home/me/.stoker/checkpoints",
    package="c0de" * 16,
    code_root="/home/me/project",
    bundle="/home/me/.stoker/wheels/bundle-1",
)
MACHINE = "4xH100,1xA100-80GB,1xA100-80GB/1g.10gb"
DIGEST = re.compile(r"\b(?:[0-9a-f]{16}|[0-9a-f]{32}|[0-9a-f]{64}|train-[b-df-hj-np-tv-xz2-9]{5})\b")
"""Digests of all that is asked, names with letters of one, and secrets of gangs: they change with whatever is asked,
honoured or not."""
SHORT = 110
"""Letters of what a finding says that the page has room for; of longer ones it has the reason."""
WORDS = frozenset({"asked"})
"""Keys of documents under which a request stands in words, for people alone."""


@attrs.frozen
class Told:
    """What a backend makes of one request: the lines of all that is sent, and its findings."""

    lines: frozenset[str]
    findings: tuple[Finding, ...]


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    """Devices that are there: requests name only those that are not simulated."""
    found = parse_simulation(MACHINE)
    return attrs.evolve(found, devices=tuple(attrs.evolve(one, simulated=False) for one in found.devices))


@pytest.fixture
def tell(inventory: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a backend makes of a request: a row's name, the settings of a step, and options of the stack."""
    for name in ("DOCKER_HOST", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # no registry is asked
    me = this_process()
    ledger = Ledger(lambda: inventory, lambda _: (), folder=tmp_path / "leases")
    leasing = Leasing(
        lambda: ledger, process=(int(me["pid"]), float(me["started"])), scratch=str(tmp_path), limits=True
    )

    without: dict[str, Told] = {}
    """What a backend makes of a step without the field in question: the same for many fields."""

    def told(flavor: str, settings: StepSettings, options: Mapping[str, Any]) -> Told:
        asked = repr((flavor, settings, options))
        if asked not in without:
            without[asked] = made(flavor, settings, options)
        return without[asked]

    def made(flavor: str, settings: StepSettings, options: Mapping[str, Any]) -> Told:
        row = ROWS[flavor]
        job = job_of(row, settings)
        backend = BACKENDS.load(flavor).open(SITE, {**row.options, **options}, Services(leasing=leasing))
        try:
            findings = tuple(backend.check(job.step))
            found: dict[str, Any] = {"also": row.also(backend, {**row.options, **options})}
            if row.image and settings.docker is not None:
                found["dockerfile"] = written(settings.docker, tmp_path)
            leases = capability(backend, LeasesDevices)
            if leases is not None and leasing.wants(job):
                found["request"] = to_json(leases.render_leased(job, placeholder_leases(inventory, job)))
            else:
                found["request"] = to_json(backend.render(job))
            return Told(frozenset(lines_of(found)), findings)
        finally:
            backend.close()

    return told


def job_of(row: Row, settings: StepSettings) -> Job:
    source = FunctionSource(
        kind="script", module="train", qualname="train", path="/home/me/project/train.py", root="/home/me/project"
    )
    step = StepPlan(
        key="train",
        name="train",
        source=source,
        outputs=(),
        unpack=False,
        inputs={},
        settings=settings,
        backend="orchestrator",
        code="1234",
        where="train.py:7",
        image=row.image,
    )
    return Job(name="run1/train/1", run="run1", key="train", attempt=1, step=step, inputs={})


def written(docker: DockerSettings, folder: Path) -> str:
    """The Dockerfile of an image that is built for the step."""
    spec, _ = image_spec(docker, root=folder, folder=folder / "wheels", engine=None)
    return "" if spec.skip_build else dockerfile(spec)


def lines_of(found: Any, place: str = "") -> Iterator[str]:
    """A document as lines, each with its place; texts of several lines are taken apart."""
    if isinstance(found, Mapping):
        for name, inner in found.items():
            if name not in WORDS:
                yield from lines_of(inner, f"{place}/{name}")
    elif isinstance(found, list):
        for number, inner in enumerate(found):
            yield from lines_of(inner, f"{place}/{number}")
    else:
        for line in str(found).splitlines() or [""]:
            yield DIGEST.sub("DIGEST", f"{place}: {line}")


# What becomes of one field


def requests(flavor: str, kind: str, name: str, example: Example, value: Any) -> list[tuple[StepSettings, Any]]:
    """The settings of the step and of the stack: without the field's value, and with it."""
    made = []
    for more in ({}, {name: value}):
        step = dict(example.options)
        resources = resources_of(example, more if kind == "resources" else {})
        options: dict[str, Any] = {}
        own = dict(example.settings)
        if kind == "step":
            step.update(more)
        elif kind == "settings":
            (options if name in whole_run_fields(settings_class(flavor)) else own).update(more)
        if own:
            step["backend"] = {"orchestrator": own}
        made.append((StepSettings(resources=resources, **step), options))
    return made


def outcome(tell: Any, flavor: str, kind: str, name: str, example: Example) -> str:
    """In words what a backend makes of a field; fails where it makes nothing of it and does not say so."""
    words: Words | None = getattr(ROWS[flavor], kind).get(name)
    before, after = (tell(flavor, *asked) for asked in requests(flavor, kind, name, example, example.value))
    said = [
        one for one in after.findings if (one.code, one.what) not in {(had.code, had.what) for had in before.findings}
    ]
    for level, label in (("error", "refused"), ("translated", "translated")):
        for finding in said:
            if finding.level == level:
                assert finding.what and finding.why and (finding.fix or level != "error"), finding
                link = f"[{finding.code}](../findings.md#{finding.code.lower()})"
                short = finding.what if level == "translated" and len(finding.what) <= SHORT else finding.why
                return f"{label} {link}: {short}"
    changed = before.lines ^ after.lines
    place = f"{flavor}: {kind}.{name}={example.value!r}"
    assert words is not None, f"{place} is honoured ({sorted(changed)}): say in tests/backends/fields.py how"
    if isinstance(words, Enough):
        assert not changed, f"{place} changes the request: {sorted(changed)}"
        too_much = tell(flavor, *requests(flavor, kind, name, example, words.more)[1])
        assert words.code in {one.code for one in too_much.findings if one.level == "error"}, place
        return f"honoured: {words.words} ([{words.code}](../findings.md#{words.code.lower()}))"
    if isinstance(words, Held):
        assert not changed, f"{place} changes the request, so that this test can hold it: {sorted(changed)}"
        return f"honoured: {words.words}"
    if isinstance(words, Always):
        assert not changed, f"{place} changes the request, so that it is not always so: {sorted(changed)}"
        shown, text = after.lines, words.words
    else:
        assert changed, f"{place} changes nothing of the request, and nothing is said of it"
        shown, text = changed, words
    for token in re.findall("`([^`]+)`", text):
        assert any(token in line for line in shown), f"{place}: `{token}` is not in {sorted(shown)}"
    return f"honoured: {text}"


def examples_of(flavor: str, kind: str) -> Mapping[str, tuple[Example, ...]]:
    if kind == "settings":
        return {name: (example,) for name, example in ROWS[flavor].examples.items()}
    return {"resources": RESOURCES, "step": STEP}[kind]


def cell(tell: Any, flavor: str, kind: str, name: str) -> str:
    """All that becomes of a field: of the usual example, and of others that fare differently."""
    texts: list[str] = []
    for example in examples_of(flavor, kind)[name]:
        text = outcome(tell, flavor, kind, name, example)
        if not any(known.endswith(text) for known in texts):
            texts.append(f"{example.words}: {text}" if example.words and texts else text)
    return "; ".join(texts).replace("|", "\\|")


@pytest.mark.parametrize("flavor", ROWS)
def test_what_only_holds_for_a_whole_run_is_refused_for_one_step(flavor: str) -> None:
    for name in whole_run_fields(settings_class(flavor)):
        given = {f"orchestrator.{flavor}": {name: ROWS[flavor].examples[name].value}}
        with pytest.raises(SettingsError, match="for a whole run"):
            layer_of("@step", given, level="step")


# Nothing is forgotten


def names_of(kind: type) -> set[str]:
    return {field.name for field in attrs.fields(kind)}


def test_every_field_has_an_example() -> None:
    assert RESOURCES.keys() == names_of(ResourceSettings)
    assert not STEP.keys() & ELSEWHERE.keys()
    assert STEP.keys() | ELSEWHERE.keys() == names_of(StepSettings)
    for flavor, row in ROWS.items():
        assert row.examples.keys() == names_of(settings_class(flavor)), flavor


def test_every_backend_has_a_row() -> None:
    assert not ROWS.keys() & NO_PLATFORM.keys()
    assert ROWS.keys() | NO_PLATFORM.keys() == set(BACKENDS.names())


def test_words_are_of_fields_that_are_there() -> None:
    for flavor, row in ROWS.items():
        for kind in ("resources", "step", "settings"):
            assert not getattr(row, kind).keys() - examples_of(flavor, kind).keys(), flavor


def test_what_another_test_holds_is_held(repository: Path) -> None:
    for row in ROWS.values():
        for words in (*row.resources.values(), *row.step.values(), *row.settings.values()):
            if isinstance(words, Held):
                path, _, name = words.by.partition("::")
                tree = ast.parse((repository / path).read_text(encoding="utf-8"))
                assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, words.by


def test_a_field_that_nobody_reads_is_noticed(tell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure itself: a backend whose request is always the same honours nothing."""
    sent = json.loads("{}")
    monkeypatch.setattr("stoker.backends.local.backend.LocalBackend.render", lambda self, job: sent)
    with pytest.raises(AssertionError, match="changes nothing of the request"):
        cell(tell, "local", "resources", "cpu_count")


# The page


def tables(tell: Any) -> str:
    """What the page says of each field."""
    titles = [row.title for row in ROWS.values()]
    heads = {"resources": "## Resources", "step": "## Options of a step"}
    parts = []
    for kind, head in heads.items():
        lines = [head, "", f"| field | {' | '.join(titles)} |", "|" + "---|" * (len(titles) + 1)]
        for name in examples_of("local", kind):
            cells = [cell(tell, flavor, kind, name) for flavor in ROWS]
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    parts.append("Every other option of a step is Stoker's own and the same everywhere.")
    for flavor, row in ROWS.items():
        kind = settings_class(flavor).__name__
        lines = [f"## {row.title}: `{kind}`", "", "| field | what becomes of it |", "|---|---|"]
        lines += [f"| `{name}` | {cell(tell, flavor, 'settings', name)} |" for name in row.examples]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def test_the_page_says_what_becomes_of_each_field(tell: Any, repository: Path) -> None:
    path = repository / PAGE
    page = path.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, foot = rest.partition(END)
    expected = f"{head}{BEGIN}\n\n{tables(tell)}\n\n{END}{foot}"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(expected, encoding="utf-8")
    assert expected == path.read_text(encoding="utf-8")
