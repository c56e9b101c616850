"""What a container can read and write of this machine, as whichever user it runs, and whose its files are then."""

from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest
from tests.containers.bench import CODE as BENCH_CODE
from tests.containers.bench import Bench, names
from tests.containers.test_docker_devices import leasing
from tests.servers.containers import Engine

from stoker.backends.base.backend import NO_SERVICES, Services
from stoker.core.settings import ResourceSettings
from stoker.devices.probe import parse_simulation
from stoker.store import artifacts

CODE = '''
import hashlib, os, stat

from stoker.worker.context import context


def sees(root, word, parts):
    """Every file and folder below the root that this user can read or write."""
    here = context.checkpoint_dir
    (here / "weights").write_text("w")
    rows = []
    for parent, folders, names in os.walk(root):
        for name in folders + names:
            path = os.path.join(parent, name)
            if path == os.environ["FLAGS"]:
                continue
            rights = "".join(right for right, bit in zip("rw", (os.R_OK, os.W_OK)) if os.access(path, bit))
            kind = "folder" if os.path.isdir(path) else "file"
            rows.append([os.path.relpath(path, root), kind, rights])
    attacks = []
    for path in [os.path.join(parent, name) for parent, _, names in os.walk(root) for name in names]:
        if "/inputs/" in path or "/code/" in path:
            for attack in (lambda: os.chmod(path, 0o777), lambda: open(path, "ab"), lambda: os.unlink(path)):
                try:
                    attack()
                    attacks.append(path)
                except OSError:
                    pass
    return {"rows": rows, "attacks": attacks, "word": len(word), "parts": [len(part) for part in parts],
            "user": os.getuid(), "big": "x" * 5000}


def forges(root, link):
    store = os.path.join(root, "artifacts", "objects", "ab")
    os.makedirs(store)
    if link:
        os.symlink("/etc/passwd", os.path.join(store, "c" * 62))
        return
    with open(os.path.join(store, "c" * 62), "w") as file:
        file.write("not what the name says")
'''
EXPECTED = {
    # its own job's folder
    "scratch/containers/NAME": "folder rw",
    "scratch/containers/NAME/job.json": "file rw",
    "scratch/containers/NAME/labels.json": "file rw",
    # what it writes
    "artifacts": "folder rw",
    "checkpoints/r1/sees": "folder rw",
    "checkpoints/r1/sees/weights": "file rw",
    # what it reads
    "artifacts/inputs": "folder r",
    "code": "folder r",
    "code/steps.py": "file r",
}


@pytest.fixture
def private(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose folders belong to their owner alone, with more in them than a job should see."""
    root = Path(bench.site.scratch).parent
    os.chmod(root, 0o700)
    (bench.code / "steps.py").write_text(CODE)
    mask = os.umask(0o077)
    try:
        artifacts.save("another run's " * 1000, bench.blobs)
        (root / "stoker.db").write_text("rows")
        for folder in ("scratch/containers/another", "checkpoints/r0/other", "checkpoints/r1/other"):
            (root / folder).mkdir(parents=True)
            (root / folder / "secret").write_text("s")
        bench.big = artifacts.save("i" * 2_000_000, bench.blobs).wire()  # type: ignore[attr-defined]
        bench.list = artifacts.save_split(["j" * 9000, "k" * 8000], bench.blobs).wire()  # type: ignore[attr-defined]
    finally:
        os.umask(mask)
    for path in Path(bench.blobs.uri, "objects").rglob("*/*"):
        os.chmod(path, 0o400)
    return bench


@pytest.fixture(scope="session")
def anns_image(engine: Engine, base_image: str) -> str:
    """An image whose Dockerfile says USER, by a name."""
    text = f"FROM {base_image}\nRUN echo ann:x:4711:4712::/:/bin/sh >> /etc/passwd\nUSER ann\n"
    engine.run("build", "--network", "host", "--tag", "localhost/anns:1", "-", input=text.encode())
    return "localhost/anns:1"


@pytest.mark.parametrize(
    ("image", "user", "of_image"),
    [
        ("base", "", None),
        ("base", "4711:4712", None),
        ("anns", "ann:4712", "5000"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("base", None, "4711"), ("anns", "", None), ("anns", "image", None))
        ),
    ],
)
def test_a_container_sees_its_own_job_and_nothing_else_of_the_home(
    private: Bench, engine: Engine, anns_image: str, image: str, user: str | None, of_image: str | None
) -> None:
    bench, root = private, Path(private.site.scratch).parent
    devices = Services(leasing=leasing(bench, parse_simulation("1xH100-80GB"))) if user == "4711:4712" else NO_SERVICES
    bench.image = anns_image if image == "anns" else bench.image
    job = bench.job(
        "sees",
        inputs={"root": str(root)},
        environment={"FLAGS": str(bench.flags)},
        **({"resources": ResourceSettings(gpu_count=1)} if devices is not NO_SERVICES else {}),
    )
    if of_image is not None:
        docker = attrs.evolve(job.step.settings.docker, user=of_image)
        job = attrs.evolve(job, step=attrs.evolve(job.step, settings=attrs.evolve(job.step.settings, docker=docker)))
    job.inputs["word"], job.inputs["parts"] = {"value": bench.big}, {"value": bench.list}  # type: ignore[index,attr-defined]
    status = bench.over(bench.backend(devices, **({"user": user} if user else {})), job)
    assert status.state == "succeeded", (status.result, bench.lines)
    seen = bench.output(status)
    assert (seen["word"], seen["parts"]) == (2_000_000, [9000, 8000])
    assert seen["user"] == (os.getuid() if (image, user) == ("base", "") else 4711)
    rows = {path.replace("stoker-r1-sees-1", "NAME"): f"{kind} {rights}" for path, kind, rights in seen["rows"]}
    inputs = {path: rights for path, rights in rows.items() if path.startswith("artifacts/inputs/")}
    assert len(inputs) == 4, "the word, its checksums, and the two elements"
    assert set(inputs.values()) == {"file r"}
    expected = dict(EXPECTED)
    if devices is not NO_SERVICES:
        assert status.lease is not None
        expected[os.path.relpath(status.lease.samples, root)] = "file rw"
    # Folders on the way to what is mounted are the engine's own, empty but for that.
    ways = {"scratch", "scratch/containers", "checkpoints", "checkpoints/r1"}
    others = {path: rights for path, rights in rows.items() if path not in inputs and path not in ways}
    assert others == expected, seen
    assert seen["attacks"] == []
    # Afterwards everything is the user's own again, and the job's folders are gone.
    assert {path.stat().st_uid for path in root.rglob("*")} == {os.getuid()}
    assert (root / "checkpoints/r1/sees/weights").read_text() == "w"
    assert not (root / "artifacts/jobs/stoker-r1-sees-1").exists()
    assert names(engine) == []


def test_a_user_who_may_not_give_files_away_has_them_back_by_the_engine(
    private: Bench, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, uid: int, gid: int) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(os, "lchown", refuse)  # what only root may do
    root = Path(private.site.scratch).parent
    job = private.job("sees", inputs={"root": str(root)}, environment={"FLAGS": str(private.flags)})
    job.inputs["word"], job.inputs["parts"] = {"value": private.big}, {"value": private.list}  # type: ignore[index,attr-defined]
    status = private.over(private.backend(user="4711:4712"), job)
    assert private.output(status)["user"] == 4711
    assert {path.stat().st_uid for path in root.rglob("*")} == {os.getuid()}
    assert not (root / "artifacts/jobs/stoker-r1-sees-1").exists()
    assert names(engine) == []


@pytest.mark.parametrize("link", [False, pytest.param(True, marks=pytest.mark.long)], ids=["other bytes", "a link"])
def test_what_is_not_what_its_name_says_does_not_reach_the_store(private: Bench, link: bool) -> None:
    root = Path(private.site.scratch).parent
    status = private.over(private.backend(), private.job("forges", inputs={"root": str(root), "link": link}))
    assert (status.state, status.cause) == ("failed", "worker-lost"), status
    assert "cannot be taken" in status.message
    assert not os.path.lexists(root / "artifacts/objects/ab" / ("c" * 62))


def test_a_user_that_the_image_does_not_have_is_named(private: Bench, engine: Engine) -> None:
    status = private.over(private.backend(user="nobody-here"), private.job("forges"))
    assert (status.state, status.cause) == ("failed", "refused")
    assert "has no user 'nobody-here'" in status.message
    assert names(engine) == []


def test_a_read_only_root_gets_a_place_to_write_and_its_secrets(
    private: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_TEST_TOKEN", "s3cret")
    (private.code / "steps.py").write_text(BENCH_CODE)
    options = {"run_options": {"read_only": True}, "secrets": {"token": "env:STOKER_TEST_TOKEN"}}
    for user in ({}, {"user": "4711:4711"}):
        job = private.job("surroundings", attempt=2 if user else 1)
        status = private.over(private.backend(**options, **user), job)
        assert status.state == "succeeded", (status, private.lines)
        assert private.output(status)["secret"] == "s3cret"
    assert not [path for path in Path(private.site.scratch).rglob("*") if path.is_file() and "containers" in str(path)][
        1:
    ]


def test_an_image_without_python_is_named_with_what_to_do(private: Bench, engine: Engine) -> None:
    status = private.over(private.backend(python="/opt/none/python3"), private.job("forges"))
    assert (status.state, status.cause) == ("failed", "refused")
    assert "has no /opt/none/python3" in status.message and "skip_build" in status.message
    assert names(engine) == []
