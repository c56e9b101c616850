"""Locks of images before they are built: what is reused, what is asked again, and what a plan says without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.plan.test_preflight import NEW, a_plan, a_step, read
from tests.servers.packageindex import PackageIndex, running_index

from stoker.core.docker import DockerSettings, ImageFacts
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.imagenames import merge_facts
from stoker.core.packages import Lock, Resolution
from stoker.core.questions import Questions
from stoker.core.resources import ResourceSettings
from stoker.devices.probe import parse_simulation
from stoker.images.resolving import LockStore, file_text, read_file
from stoker.images.spec import spec_of, with_lock
from stoker.plan.locking import Locking
from stoker.plan.preflight import Surroundings, judge

OFF = "STOKER_OFFLINE is set"
SLIM = "python:3.11-slim"
OWN = "team/image:1"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    with running_index(tmp_path / "index") as index:
        index.put_what_the_worker_needs()
        index.put("torch", "2.4.0")
        index.put("trainer", "1.0", requires=["torch==2.4.0"])
        yield index


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> LockStore:
    return LockStore(tmp_path / "home")


def resolution(
    locking: Locking, index: PackageIndex | None, *requirements: str, image: ImageFacts | None = None, **docker: Any
) -> Resolution:
    settings: dict[str, Any] = {"parent_image": SLIM, "requirements": requirements or None, **docker}
    if index is not None:
        settings["python_package_installer_args"] = {"index-url": index.url}
    step = a_step(
        DockerSettings(**{name: text for name, text in settings.items() if text is not None}), ResourceSettings()
    )
    facts = merge_facts(image, settings["parent_image"] or SLIM)
    return locking.of_image(step, facts, machine="x86_64")


def locking(store: LockStore, *, offline: str = "", upgrade: bool = False) -> Locking:
    questions = Questions(store.folder.parent, offline=offline, anew=upgrade, patient=upgrade)
    return Locking(store, questions, upgrade=upgrade)


def lock_of(answer: Resolution) -> Lock:
    assert answer.lock is not None, answer
    return answer.lock


def only(answer: Resolution) -> Finding:
    (finding,) = answer.findings
    return finding


def test_the_same_requirements_keep_their_lock_until_a_newer_one_is_asked_for(
    index: PackageIndex, store: LockStore, folder: Path
) -> None:
    first = lock_of(resolution(locking(store), index, "trainer"))
    assert {"trainer==1.0", "torch==2.4.0", "attrs==9000.0"} <= set(first.lines) and first.whole
    index.put("trainer", "2.0", requires=["torch"])
    asked = len(index.asked)
    assert lock_of(resolution(locking(store), index, "trainer")) == first and len(index.asked) == asked
    assert "trainer==2.0" in lock_of(resolution(locking(store), index, "trainer>1")).lines, "other requirements"
    newer = lock_of(resolution(locking(store, upgrade=True), index, "trainer"))
    assert "trainer==2.0" in newer.lines and newer.digest == first.digest
    assert lock_of(resolution(locking(store), index, "trainer")) == newer
    # A file beside the code says it for everybody, and a stored run's plan for its own run.
    (folder / "stoker.lock").write_text(file_text([first]))
    assert lock_of(resolution(locking(store), index, "trainer")) == first
    resumed = locking(store)
    resumed.adopt({newer.digest: json.loads(json.dumps(attrs.asdict(newer)))})
    assert lock_of(resolution(resumed, index, "trainer")) == newer


def test_a_damaged_lock_is_made_again_and_a_damaged_file_is_said(
    index: PackageIndex, store: LockStore, folder: Path, tmp_path: Path
) -> None:
    first = lock_of(resolution(locking(store), index, "trainer"))
    (kept,) = (tmp_path / "home" / "locks").glob("[0-9a-f]*.json")
    kept.write_text('{"digest": 1')
    assert lock_of(resolution(locking(store), index, "trainer")) == first
    (folder / "stoker.lock").write_text("{}")
    with pytest.raises(SettingsError, match=r"stoker\.lock is no file of locks"):
        read_file(folder / "stoker.lock")
    assert "stoker.lock is no file of locks" in only(resolution(locking(store), index, "trainer")).what


def test_an_index_that_does_not_answer_is_asked_once(store: LockStore, index: PackageIndex) -> None:
    arguments = {"python_package_installer_args": {"index-url": "http://127.0.0.1:9/simple"}}
    first = resolution(locking(store), None, "trainer", **arguments)
    finding = only(first)
    assert (finding.code, finding.level, first.lock) == ("STK233", "info", None)
    assert "no index answered" in first.reason and "refused" in first.reason
    again = resolution(locking(store), None, "trainer", **arguments)
    assert again.reason == first.reason
    assert resolution(locking(store), index, "trainer").lock is not None, "another index is asked"


def test_offline_nothing_is_asked_and_a_lock_that_is_there_is_used(index: PackageIndex, store: LockStore) -> None:
    offline = resolution(locking(store, offline=OFF), index, "trainer")
    assert offline.reason.endswith("STOKER_OFFLINE is set") and index.asked == []
    first = lock_of(resolution(locking(store), index, "trainer"))
    assert lock_of(resolution(locking(store, offline=OFF), index, "trainer")) == first
    assert resolution(locking(store, offline=OFF), index).findings == (), "without requirements nothing is unknown"


def test_contradictions_and_missing_versions_refuse_the_plan(index: PackageIndex, store: LockStore) -> None:
    missing = only(resolution(locking(store), index, "trainer", "torch==2.3.0"))
    assert (missing.code, missing.level) == ("STK232", "error")
    index.put("torch", "2.3.0")  # what was published a moment ago is seen, whatever the resolver remembers
    conflict = only(resolution(locking(store), index, "trainer", "torch==2.3.0"))
    assert (conflict.code, conflict.level) == ("STK231", "error")
    assert "torch==2.4.0" in conflict.why and "torch==2.3.0" in conflict.why
    missing = only(resolution(locking(store), index, "trainer==7"))
    assert (missing.code, missing.level) == ("STK232", "error") and "trainer==7" in missing.why
    # What is not known to be missing refuses nothing: the image may have it.
    perhaps = only(
        resolution(
            locking(store), index, "trainer==7", parent_image=OWN, image=ImageFacts(reference=OWN, python="3.11")
        )
    )
    assert (perhaps.code, perhaps.level) == ("STK232", "warning")


def test_an_image_whose_packages_are_known_keeps_them(index: PackageIndex, store: LockStore) -> None:
    index.put("torch", "2.5.0")
    index.put("trainer", "1.5", requires=["torch>=2.4"])
    facts = ImageFacts(reference=OWN, python="3.11", frameworks={"torch": "2.4.0+cu121"})
    predicted = lock_of(resolution(locking(store), index, "trainer", parent_image=OWN, image=facts))
    assert not predicted.whole and predicted.kept["torch"] == "2.4.0+cu121"
    built = with_lock(
        spec_of(DockerSettings(parent_image=OWN, requirements=["trainer"]), root=Path(), python="3.11"), predicted
    )
    assert built.requirements[0].constraints == ("torch==2.4.0+cu121",), "what is predicted to stay does"
    known = attrs.evolve(facts, distributions={"torch": "2.4.0+cu121", "Attrs": "8000.0", "numpy": "1.26.4"})
    lock = lock_of(resolution(locking(store), index, "trainer", parent_image=OWN, image=known))
    assert lock.whole and lock.kept == {"torch": "2.4.0+cu121", "attrs": "8000.0"}
    assert "trainer==1.5" in lock.lines and not [line for line in lock.lines if line.startswith(("torch", "attrs"))]


def test_what_a_registry_adds_to_a_name_asks_nothing_new(index: PackageIndex, store: LockStore) -> None:
    """A plan that could read the image, and one that could not, have the same lock."""
    by_name = lock_of(resolution(locking(store), index, "trainer"))
    facts = ImageFacts(reference=SLIM, python="3.11.9", env={"PATH": "/bin"}, digest="sha256:1")
    assert lock_of(resolution(locking(store, offline=OFF), index, "trainer", image=facts)) == by_name


def test_an_unknown_python_is_said(index: PackageIndex, store: LockStore) -> None:
    answer = resolution(locking(store), index, "trainer", parent_image=OWN, image=ImageFacts(reference=OWN))
    assert "the Python of team/image:1 is not known" in answer.reason and only(answer).code == "STK233"


def test_the_proof_sees_what_will_be_installed(index: PackageIndex, store: LockStore) -> None:
    step = a_step(
        DockerSettings(
            parent_image=SLIM, requirements=["trainer"], python_package_installer_args={"index-url": index.url}
        ),
        ResourceSettings(gpu_count=1),
    )
    used = locking(store)
    surroundings = Surroundings(
        inventory=lambda: parse_simulation(NEW),
        image_facts=read(python="3.11"),
        in_images=frozenset({"orchestrator"}),
        resolve=lambda step, image, machine: used.of_image(step, image, machine=machine),
    )
    (planned,), _ = judge(a_plan(step), surroundings)
    assert planned.proof is not None and planned.lock in used.documents()
    assert "torch 2.4.0" in str(planned.proof.facts) + str(planned.proof.unknown)
    silent = attrs.evolve(surroundings, resolve=lambda *_: Resolution(reason="no index answered: none"))
    (planned,), _ = judge(a_plan(step), silent)
    assert planned.proof is not None and planned.proof.verdict == "not-proved"
    assert ("requirements", "no index answered: none") in [(one.component, one.reason) for one in planned.proof.unknown]


# What a run would refuse, a plan finds.


@pytest.mark.parametrize(
    ("docker", "words"),
    [
        ({"requirements": "none.txt"}, "none.txt"),
        ({"dockerfile": "Dockerfile.none", "parent_image": None}, "Dockerfile.none"),
        ({"pyproject_path": "none/pyproject.toml"}, "none/pyproject.toml"),
        ({"skip_build": True, "requirements": ["numpy"]}, "skip_build"),
        ({"environment": {"HF_TOKEN": "hf_0123456789abcdef"}}, "HF_TOKEN looks like a secret"),
        ({"build_config": {"options": {"build_args": {"API_KEY": "0123456789abcdef"}}}}, "API_KEY looks like a secret"),
        ({"build_config": {"options": {"build_args": {"SITE": "https://me:word@host/simple"}}}}, "password"),
        ({"python_package_installer_args": {"index-url": "https://me:word@host/simple"}}, "password"),
        ({"requirements": ["--extra-index-url https://me:word@host/simple", "numpy"]}, "password"),
        ({"parent_image": "Foo Bar:latest"}, "Foo Bar:latest"),
        ({"parent_image": "Team/Image:1"}, "no capital letters"),
        ({"image_tag": "not a tag"}, "does not name an image"),
        ({"target_repository": "Team Images"}, "does not name an image"),
        ({"build_config": {"options": {"no_cash": True}}}, "no option 'no_cash'"),
        ({"build_config": {"options": {"secrets": {"netrc": "none/netrc"}}}}, "none/netrc"),
        ({"build_config": {"dockerignore": "none.ignore"}}, "none.ignore"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_what_a_build_would_refuse_is_a_finding(store: LockStore, docker: dict[str, Any], words: str) -> None:
    finding = only(resolution(locking(store, offline=OFF), None, **docker))
    assert (finding.code, finding.level) == ("STK230", "error")
    assert words in finding.what


def test_what_is_left_out_is_said(store: LockStore, index: PackageIndex) -> None:
    finding = only(resolution(locking(store), index, "zenml==0.50", "trainer"))
    assert (finding.code, finding.level) == ("STK234", "info") and "zenml==0.50" in finding.what
    findings = resolution(locking(store, offline=OFF), None, replicate_local_python_environment=True).findings
    # This checkout is installed from its folder; only Stoker's own name is taken from the list without a word.
    assert {finding.code for finding in findings} <= {"STK233", "STK234"}
