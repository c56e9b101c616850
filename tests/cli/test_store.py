"""`stoker store check`, and what `stoker doctor` says of artifacts."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Project

from stoker.core.artifact import StoredArtifact
from stoker.core.errors import DamagedArtifact, InfrastructureError
from stoker.core.protocol import FunctionSource
from stoker.core.questions import Questions
from stoker.images import context
from stoker.images.resolving import LockStore
from stoker.plan.locking import Locking
from stoker.run.building import Builder
from stoker.store import artifacts
from stoker.store.batch import RowBatch
from stoker.store.check import check_store, last_check, lost
from stoker.store.rows import CacheRow, OutputRow, RunRow, StepRow
from stoker.store.store import Store, open_store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def filled(store: Store) -> dict[str, StoredArtifact]:
    """A store with a run whose outputs are of several kinds, each in the cache too."""
    values: dict[str, Any] = {"small": 7, "text": "x" * 9000, "large": os.urandom(2_000_000), "other": b"o" * 5000}
    saved = {name: artifacts.save(value, store.blobs) for name, value in values.items()}
    saved["parts"] = artifacts.save_split([os.urandom(6000) for _ in range(30)], store.blobs)
    batch = RowBatch()
    batch.step(StepRow(run_id="run1", key="make", name="make", status="succeeded"))
    for name, artifact in saved.items():
        batch.output(OutputRow(run_id="run1", key="make", name=name, artifact=artifact))
        batch.remember(CacheRow(key=name, run_id="run1", step_key="make", created=1.0, outputs={name: artifact.wire()}))
    store.records.create_run(RunRow(id="run1", pipeline="p", status="succeeded"), batch=batch)
    return saved


def spoil(store: Store, digest: str) -> None:
    path = store.blobs.path(digest)
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 2]))


def stoker(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return Project(home.parent, home).stoker(*arguments, code=None)


def test_a_whole_store(home: Path) -> None:
    store = open_store(home=str(home))
    filled(store)
    assert last_check(store.blobs) is None
    store.close()
    done = stoker(home, "store", "check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "read 33 artifacts" in done.stdout and "nothing is damaged or lost" in done.stdout
    assert last_check(store.blobs) is not None
    checks = json.loads(stoker(home, "doctor", "--json").stdout)["checks"]
    check = next(check for check in checks if check["name"] == "artifacts")
    assert check["found"].startswith("read as a whole") and not check["problem"]


def test_what_is_damaged_is_named_with_its_users_and_set_aside(home: Path) -> None:
    store = open_store(home=str(home))
    saved = filled(store)
    part = artifacts.items(saved["parts"], store.blobs)[3]
    spoil(store, saved["large"].digest)
    spoil(store, part.digest)
    os.unlink(store.blobs.path(saved["text"].digest))
    store.records.database.change("UPDATE outputs SET inline = X'39' WHERE name = 'small'")
    store.close()

    done = stoker(home, "store", "check")
    assert done.returncode == 4 and "4 artifacts damaged or lost" in done.stdout
    for digest, state, name in (
        (saved["large"].digest, "damaged", "large"),
        (part.digest, "damaged", "parts"),
        (saved["text"].digest, "lost", "text"),
        (saved["small"].digest, "damaged", "small"),
    ):
        assert f"{digest} is {state}; needed by" in done.stdout
        assert f"run1/make.{name}" in done.stdout
    doctor = json.loads(stoker(home, "doctor", "--json").stdout)
    check = next(check for check in doctor["checks"] if check["name"] == "artifacts")
    assert saved["text"].digest in check["problem"] and not doctor["ok"]

    repaired = json.loads(stoker(home, "store", "check", "--repair", "--json").stdout)
    assert not repaired["whole"] and len(repaired["aside"]) == 2 and repaired["forgotten"] == 4
    assert all(Path(path).parent.name == "quarantine" for path in repaired["aside"])
    store = open_store(home=str(home))
    assert [entry.key for entry in store.records.all_cached()] == ["other"]
    assert set(lost(store, 100)) == {saved["large"].digest, saved["text"].digest}
    store.close()


def test_a_damaged_local_copy_is_fetched_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    monkeypatch.setenv("STOKER_CACHE", str(home / "cache"))
    store = open_store(home=str(home), artifact_uri="memory://check")
    saved = filled(store)
    spoil(store, saved["large"].digest)
    result = check_store(store, repair=True)
    assert [(damage.digest, damage.repaired) for damage in result.damages] == [(saved["large"].digest, True)]
    assert result.whole and result.forgotten == 0
    assert check_store(store).damages == ()
    files = fsspec.filesystem("memory")
    key = f"/check/objects/{saved['other'].digest[:2]}/{saved['other'].digest[2:]}"
    files.pipe_file(key, b"p" * 5000)
    result = check_store(store, repair=True)
    assert [(damage.state, damage.repaired) for damage in result.damages] == [("damaged", False)]
    assert [damage.state for damage in check_store(store).damages] == ["lost"]
    store.blobs.put(b"o" * 5000)
    assert check_store(store).whole
    files.rm("/check", recursive=True)
    store.close()


def test_a_damaged_database_is_said(home: Path) -> None:
    store = open_store(home=str(home))
    filled(store)
    store.records.database.change("PRAGMA writable_schema = on")
    store.records.database.change("DELETE FROM sqlite_master WHERE name = 'outputs_by_digest'")
    store.close()
    store = open_store(home=str(home))
    assert "never used" in check_store(store).database
    store.close()


def spoil_file(path: Path, place: int, how: str) -> None:
    os.chmod(path, 0o644)
    if how == "cut":
        os.truncate(path, place)
        return
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << place % 8
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_ten_damaged_code_packages_are_found_refused_and_healed(home: Path, how: str) -> None:
    """By the check, by the worker that unpacks them, and by the next run that packs the same code."""
    code = home.parent / "code"
    code.mkdir()
    (code / "train.py").write_text("EPOCHS = 40\n" * 3000)
    package = context.package(code)
    tar = io.BytesIO()
    context.write(package, tar)
    store = open_store(home=str(home))
    assert store.blobs.put(tar.getvalue()) == package.digest
    plan = json.dumps({"package": package.digest, "shared": {"source": []}})
    store.records.create_run(RunRow(id="run1", pipeline="p", status="succeeded"), plan=plan)
    assert check_store(store).whole and check_store(store).unneeded == 0
    size = len(tar.getvalue())
    for number in range(10):
        path = Path(store.blobs.path(package.digest))
        spoil_file(path, size * number // 10 + number, how)
        (damage,) = check_store(store).damages
        assert (damage.digest, damage.state, damage.users) == (package.digest, "damaged", ("run1 (plan)",))
        target = home.parent / f"unpacked-{number}"
        with pytest.raises((DamagedArtifact, InfrastructureError)):
            context.unpack(Path(store.blobs.path(package.digest)), target)
        assert not target.exists()
        assert [damage.state for damage in check_store(store).damages] == ["lost"]
        store.blobs.put(tar.getvalue())
        assert check_store(store).whole
    store.close()


def test_the_next_run_replaces_a_damaged_code_package(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any container or node fetches it."""
    code = home.parent / "code"
    code.mkdir()
    (code / "train.py").write_text("EPOCHS = 40\n" * 200_000)
    libraries = [entry for entry in sys.path if entry.startswith((sys.prefix, sys.base_prefix))]
    monkeypatch.setattr(sys, "path", libraries)
    store = open_store(home=str(home))
    building = Builder(
        hosts={}, folder=home / "building", report=print, locking=lambda: Locking(LockStore(home), Questions())
    )
    source = FunctionSource(kind="module", module="train", qualname="train", root=str(code))
    digest = building.code([source], [], store.blobs, home).package
    for how in ("flipped", "cut", "lost"):
        path = Path(store.blobs.path(digest))
        path.unlink() if how == "lost" else spoil_file(path, 1_000_003, how)
        assert [damage.digest for damage in check_store(store).damages] == ([] if how == "lost" else [digest])
        assert building.code([source], [], store.blobs, home).package == digest
        assert check_store(store).whole
        with open(store.blobs.path(digest), "rb") as file:
            assert hashlib.sha256(file.read()).hexdigest() == digest
    store.close()


def test_what_plans_name_copies_and_receipts_are_checked(home: Path) -> None:
    store = open_store(home=str(home))
    argument = artifacts.save(b"argument" * 2000, store.blobs)
    function = artifacts.save(b"function" * 2000, store.blobs)
    table = home.parent / "table.csv"
    table.write_text("1,2\n" * 1000)
    saved = artifacts.save(table, store.blobs)
    copy = Path(artifacts.load(saved, store.blobs))
    plan = {
        "parameters": {"d": {"d": 1, "s": 2, "t": 3, "n": 4}},
        "steps": [{"inputs": {"data": {"list": [{"value": argument.wire()}, {"value": saved.wire()}]}}}],
        "shared": {"source": [{"kind": "pickled", "digest": function.digest}]},
    }
    store.records.create_run(RunRow(id="run1", pipeline="p", status="succeeded"), plan=json.dumps(plan))
    result = check_store(store)
    assert result.whole and (result.unneeded, result.copies) == (0, 1)

    spoil(store, argument.digest)
    os.unlink(store.blobs.path(function.digest))
    spoil_file(copy, 7, "flipped")
    store.records.database.change(
        "INSERT INTO receipts (run_id, key, number, verdict, receipt, tracks) "
        "VALUES ('run1', 'train', 1, 'ok', '{\"dev', X'00')"
    )
    result = check_store(store)
    assert {(damage.digest, damage.state, damage.users) for damage in result.damages} == {
        (argument.digest, "damaged", ("run1 (plan)",)),
        (function.digest, "lost", ("run1 (plan)",)),
        (saved.digest, "damaged", ("a copy",)),
    }
    assert result.receipts == ("run1/train",)
    checked = last_check(store.blobs)
    assert checked is not None and checked[1] == len(result.damages) + len(result.receipts)
    printed = stoker(home, "store", "check").stdout
    assert "a receipt of run1/train cannot be read" in printed
    assert f"the copy that was unpacked from {saved.digest} is damaged" in printed
    repaired = check_store(store, repair=True)
    assert {damage.digest for damage in repaired.damages if damage.repaired} == {saved.digest}
    assert Path(artifacts.load(saved, store.blobs)).read_text() == table.read_text()
    store.records.database.change("UPDATE plans SET plan = '{\"steps\": [' WHERE run_id = 'run1'")
    assert ("run1 (plan)",) in {damage.users for damage in check_store(store).damages}
    store.close()
