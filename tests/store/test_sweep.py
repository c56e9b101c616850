"""What is needed stays, what is young stays, the rest goes."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from stoker.core.artifact import StoredArtifact
from stoker.store import artifacts
from stoker.store.batch import RowBatch
from stoker.store.check import sweep, unreferenced
from stoker.store.rows import CacheRow, OutputRow, RunRow, StepRow
from stoker.store.store import Store, open_store

LATER = 10_000.0


def blob(store: Store, number: int) -> StoredArtifact:
    return artifacts.save(np.full(10_000, number), store.blobs)


def run(store: Store, id: str = "r1", **fields: Any) -> None:
    plan = fields.pop("plan", "")
    store.records.create_run(RunRow(id=id, pipeline="p", created=1.0, **fields), plan=plan)


def output(store: Store, artifact: StoredArtifact, key: str = "a") -> None:
    batch = RowBatch()
    batch.step(StepRow(run_id="r1", key=key, name="a"))
    batch.output(OutputRow(run_id="r1", key=key, name="output", artifact=artifact))
    store.records.write(batch)


def test_what_a_row_names_stays(store: Store) -> None:
    run(store)
    needed, lost = blob(store, 1), blob(store, 2)
    output(store, needed)
    assert unreferenced(store) == [lost.digest]
    swept = sweep(store, now=time.time() + LATER)
    assert (swept.blobs, swept.bytes) == (1, lost.size)
    assert list(store.blobs.digests()) == [needed.digest]


def test_what_is_young_stays(store: Store) -> None:
    blob(store, 1)
    assert sweep(store).blobs == 0
    assert sweep(store, now=time.time() + 3000).blobs == 0
    assert sweep(store, older_than=10, now=time.time() + 20).blobs == 1


def test_what_a_plan_an_input_or_the_cache_names_stays(store: Store) -> None:
    in_plan, in_input, in_wire, in_cache, lost = (blob(store, number) for number in range(5))
    run(store, plan=json.dumps({"steps": [{"inputs": {"x": {"value": in_plan.wire()}}}]}))
    batch = RowBatch()
    batch.step(StepRow(run_id="r1", key="a", name="a", inputs={"x": f"numpy:{in_input.digest}", "y": in_wire.wire()}))
    batch.remember(CacheRow(key="k", run_id="gone", step_key="a", created=1.0, outputs={"o": in_cache.wire()}))
    store.records.write(batch)
    assert unreferenced(store) == [lost.digest]


def test_what_only_an_expired_entry_of_the_cache_names_goes(store: Store) -> None:
    expired = blob(store, 1)
    batch = RowBatch()
    batch.remember(
        CacheRow(key="k", run_id="r", step_key="a", created=1.0, expires=time.time() + 5, outputs={"o": expired.wire()})
    )
    store.records.write(batch)
    assert sweep(store, older_than=0.0, now=time.time() + 1).blobs == 0
    assert sweep(store, older_than=0.0, now=time.time() + 10).blobs == 1


@pytest.mark.parametrize("count", [2, 200])
@pytest.mark.parametrize("where", ["output", "plan", "cache", "nested"])
def test_the_elements_of_a_list_stay_wherever_it_is_named(store: Store, count: int, where: str) -> None:
    elements = [blob(store, number) for number in range(count)]
    lost = blob(store, -1)
    whole = artifacts.gather(elements, store.blobs)
    assert (whole.inline is not None) == (count == 2)
    if where == "nested":
        whole = artifacts.gather([whole, artifacts.save("x" * 5000, store.blobs)], store.blobs)
    if where in ("output", "nested"):
        run(store)
        output(store, whole)
    elif where == "plan":
        run(store, plan=json.dumps({"inputs": [{"value": whole.wire()}]}))
    else:
        batch = RowBatch()
        batch.remember(CacheRow(key="k", run_id="r", step_key="a", created=1.0, outputs={"o": whole.wire()}))
        store.records.write(batch)
    assert unreferenced(store) == [lost.digest]


def test_a_list_that_is_gone_needs_nothing(store: Store) -> None:
    run(store)
    output(store, StoredArtifact(digest="f" * 64, serializer="list", type="builtins.list", size=99))
    lost = blob(store, 1)
    assert unreferenced(store) == [lost.digest]


def test_a_relative_home_stays_where_it_was_meant(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        opened = open_store(home="here", artifact_uri="there")
        assert opened.home == str(tmp_path / "here")
        assert opened.artifact_uri == opened.blobs.uri == str(tmp_path / "there")
        assert opened.logs.folder == str(tmp_path / "here" / "logs")
        opened.close()
