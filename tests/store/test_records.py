"""Rows: what is written comes back; guards; the cache; pages; many writers."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.artifact import StoredArtifact
from stoker.core.errors import NotFound, UsageError
from stoker.store.batch import RowBatch
from stoker.store.records import Records, RunFilter
from stoker.store.rows import AttemptRow, CacheRow, EventRow, OutputRow, RecipeRow, RunRow, StepProgress, StepRow
from stoker.store.store import Store, open_store


def run_row(id: str = "r1", **fields: Any) -> RunRow:
    return RunRow(**{"id": id, "pipeline": "train", "created": 1.0, "token": "t1", **fields})


def artifact(number: int = 1, **fields: Any) -> StoredArtifact:
    digest = f"{number:064x}"
    return StoredArtifact(**{"digest": digest, "serializer": "json", "type": "builtins.int", "size": 1, **fields})


def write(records: Records, *written: Any) -> None:
    batch = RowBatch()
    add = {
        StepRow: batch.step,
        StepProgress: batch.change,
        OutputRow: batch.output,
        AttemptRow: batch.attempt,
        CacheRow: batch.remember,
        EventRow: batch.event,
        RecipeRow: batch.recipe,
    }
    for row in written:
        add[type(row)](row)
    assert len(batch) == len(written)
    assert records.write(batch)


# Runs


def test_a_run_comes_back_as_it_was_written(records: Records) -> None:
    row = run_row(
        ended=2.5,
        parameters={"lr": 0.1, "ü": [1, None]},
        tags=("a", "ß"),
        dynamic=True,
        driver={"host": "h", "pid": 3},
        heartbeat=1.25,
        source="train.py:3",
        stack="gpu",
    )
    records.create_run(row, plan='{"steps":[]}')
    assert records.run("r1") == row
    assert records.plan("r1") == '{"steps":[]}'
    assert records.plan("r2") == ""


def test_a_run_is_found_by_the_beginning_of_its_id(records: Records) -> None:
    for id in ("abc1", "abd2", "xyz"):
        records.create_run(run_row(id))
    assert records.run("x").id == "xyz"
    assert records.run("abc").id == "abc1"
    with pytest.raises(NotFound, match="begins the ids of several runs: ab"):
        records.run("ab")
    with pytest.raises(NotFound, match=r"no run 'xyy' in .+, did you mean 'xyz'"):
        records.run("xyy")
    with pytest.raises(NotFound):
        records.run("")


def test_an_id_that_begins_another_is_found_whole(records: Records) -> None:
    for id in ("ab", "abc"):
        records.create_run(run_row(id))
    assert records.run("ab").id == "ab"


def test_runs_are_listed_newest_first_and_filtered(records: Records) -> None:
    for number in range(6):
        records.create_run(
            run_row(
                f"r{number}",
                created=float(number),
                pipeline="even" if number % 2 == 0 else "odd",
                status="failed" if number == 4 else "succeeded",
                stack="cluster" if number < 2 else "local",
                tags=("best",) if number in (0, 4) else ("Best", "be%t"),
            )
        )

    def ids(**filter: Any) -> list[str]:
        return [row.id for row in records.runs(RunFilter(**filter))]

    assert ids() == ["r5", "r4", "r3", "r2", "r1", "r0"]
    assert ids(limit=2, offset=1) == ["r4", "r3"]
    assert ids(pipeline="even") == ["r4", "r2", "r0"]
    assert ids(status="failed") == ["r4"]
    assert ids(tag="best") == ["r4", "r0"]
    assert ids(tag="bes") == []
    assert ids(tag="be%t", since=3.0) == ["r5", "r3"]
    assert ids(stack="cluster") == ["r1", "r0"]
    assert ids(text="BEST") == ["r5", "r4", "r3", "r2", "r1", "r0"]
    assert ids(text="VEN") == ["r4", "r2", "r0"]
    assert ids(text="R3") == ["r3"]
    assert ids(text="e%T") == ["r5", "r3", "r2", "r1"]
    assert ids(text="e_e") == ids(text="!") == ids(text="nothing") == []
    assert ids(before=(3.0, "r3"), limit=2) == ["r2", "r1"]
    assert ids(before=(3.0, "r4"), pipeline="odd", text="o") == ["r3", "r1"]


def test_a_long_tag_is_kept(records: Records) -> None:
    records.create_run(run_row("r1", tags=("long" * 10_000,)))  # longer than a key of an index of PostgreSQL's
    assert [row.id for row in records.runs(RunFilter(text="longlong"))] == ["r1"]


def test_only_the_token_changes_a_run(records: Records) -> None:
    records.create_run(run_row())
    assert records.set_run("r1", "t1", status="failed", ended=9.0, tags=["x"], error="boom")
    assert not records.set_run("r1", "other", status="succeeded")
    assert not records.set_run("r2", "t1", status="succeeded")
    row = records.run("r1")
    assert (row.status, row.ended, row.tags, row.error) == ("failed", 9.0, ("x",), "boom")


def test_tags_change_if_nobody_else_changed_them(records: Records) -> None:
    for id, tags in (("1aaa", ("user:ann", "刺身")), ("1bbb", ())):
        records.create_run(RunRow(id=id, pipeline="p", tags=tags))
        assert records.set_tags(id, ["x", *tags], expected=tags)
        assert not records.set_tags(id, [], expected=tags) and list(records.run(id).tags) == ["x", *tags]


def test_a_column_that_cannot_be_set_is_refused(records: Records) -> None:
    with pytest.raises(UsageError, match="no column 'statsu' that can be set, did you mean 'status'"):
        records.set_run("r1", "t1", statsu="failed")
    with pytest.raises(UsageError):
        records.set_run("r1", "t1", created=2.0)


def test_a_driver_that_lost_the_run_writes_nothing(records: Records) -> None:
    records.create_run(run_row(status="failed", error="x", ended=3.0))
    assert records.take_over("r1", expected="t1", token="t2", driver={"pid": 7})
    assert not records.take_over("r1", expected="t1", token="t3", driver={})
    row = records.run("r1")
    assert (row.token, row.sessions, row.status, row.error, row.ended) == ("t2", 2, "running", "", None)
    batch = RowBatch()
    batch.step(StepRow(run_id="r1", key="a", name="a"))
    assert not records.write(batch, run_id="r1", token="t1")
    assert records.steps("r1") == []
    assert records.write(batch, run_id="r1", token="t2")


def test_a_run_is_taken_over_together_with_its_plan(records: Records) -> None:
    records.create_run(run_row(), plan="first")
    assert records.take_over("r1", expected="t1", token="t2", driver={})
    assert records.plan("r1") == "first"
    assert records.take_over("r1", expected="t2", token="t3", driver={}, plan="second")
    assert records.plan("r1") == "second"
    assert not records.take_over("r1", expected="t2", token="late", driver={}, plan="late")
    assert (records.run("r1").token, records.plan("r1")) == ("t3", "second")


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_run_is_not_taken_over_between_the_look_at_its_token_and_the_write(
    records: Records, postgres_uri: str
) -> None:
    import psycopg

    records.create_run(run_row())
    taker = threading.Thread(
        target=records.take_over, args=("r1",), kwargs={"expected": "t1", "token": "t2", "driver": {}}
    )
    waiting = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'UPDATE runs SET token%' AND wait_event_type = 'Lock'"
    with psycopg.connect(postgres_uri, autocommit=True) as other, records.database.transaction() as cursor:
        cursor.execute(records._sql["is_holder"], ("r1", "t1"))
        assert cursor.fetchone() == (1,)
        taker.start()
        while other.execute(waiting).fetchone() is None:
            assert taker.is_alive(), "the run was taken over while its driver wrote"
            time.sleep(0.01)
        cursor.execute("SELECT token FROM runs")
        assert cursor.fetchone() == ("t1",)
    taker.join()
    assert records.run("r1").token == "t2"


def test_a_wish_reaches_the_driver_with_its_heartbeat(records: Records) -> None:
    records.create_run(run_row())
    assert records.heartbeat("r1", "t1", 5.0, {"score[3]": [1, 4.5]}) == ""
    assert records.run("r1").active == {"score[3]": [1, 4.5]}
    assert records.request_end("r1", "cancel")
    assert records.heartbeat("r1", "t1", 6.0) == "cancel"
    assert records.heartbeat("r1", "lost", 7.0) is None
    assert records.run("r1").heartbeat == 6.0
    records.set_run("r1", "t1", status="cancelled")
    assert not records.request_end("r1", "now")


def test_a_deleted_run_leaves_nothing(records: Records) -> None:
    for id in ("r1", "r2"):
        records.create_run(run_row(id), plan="{}")
        write(
            records,
            StepRow(run_id=id, key="a", name="a"),
            OutputRow(run_id=id, key="a", name="o", artifact=artifact()),
            AttemptRow(run_id=id, key="a", number=1, status="succeeded"),
            CacheRow(key=f"k{id}", run_id=id, step_key="a", created=1.0),
            EventRow(run_id=id, seq=0, time=1.0, kind="began"),
        )
    records.delete_run("r1")
    records.delete_run("r1")
    tables = {"runs": "id", "plans": "run_id", "steps": "run_id", "outputs": "run_id", "attempts": "run_id"}
    for table, column in {**tables, "cache": "run_id", "events": "run_id"}.items():
        assert records.database.rows(f"SELECT {column} FROM {table}") == [("r2",)]


# Steps


def test_a_step_comes_back_as_it_was_written(records: Records) -> None:
    row = StepRow(
        run_id="r1",
        key="train[3]",
        name="train",
        position=4,
        parent="train",
        idx=3,
        status="failed",
        started=1.0,
        ended=2.0,
        cause="user-error",
        message="nö",
        cached_from="r0/train",
        inputs={"x": "json:12"},
        cache_key="c",
        attempts=2,
        usage={"cpu": 1.5},
    )
    write(records, row)
    assert records.step("r1", "train[3]") == row
    assert records.step("r1", "train[4]") is None


def test_a_row_that_is_written_again_is_replaced(records: Records) -> None:
    write(records, StepRow(run_id="r1", key="a", name="a", inputs={"x": 1}))
    write(records, StepRow(run_id="r1", key="a", name="a", status="running", started=2.0))
    assert records.step("r1", "a") == StepRow(run_id="r1", key="a", name="a", status="running", started=2.0)


def test_progress_changes_what_moves_and_keeps_the_rest(records: Records) -> None:
    write(
        records,
        StepProgress(run_id="r1", key="a", status="succeeded", started=1.0, ended=2.0, attempts=1, usage={"cpu": 1}),
        StepRow(run_id="r1", key="a", name="train", position=3, inputs={"x": 1}, cache_key="c"),
    )
    row = records.step("r1", "a")
    assert row is not None
    assert (row.name, row.position, row.inputs, row.cache_key) == ("train", 3, {"x": 1}, "c")
    assert (row.status, row.ended, row.attempts, row.usage) == ("succeeded", 2.0, 1, {"cpu": 1})


def test_steps_are_in_the_order_of_the_pipeline_and_elements_by_index(records: Records) -> None:
    batch = RowBatch()
    for position, key in enumerate(["z", "fan", "a"]):
        batch.step(StepRow(run_id="r1", key=key, name=key, position=position, count=20 if key == "fan" else None))
    for index in reversed(range(20)):
        status: Any = "failed" if index == 3 else "succeeded"
        batch.step(
            StepRow(run_id="r1", key=f"fan[{index}]", name="f", position=1, parent="fan", idx=index, status=status)
        )
        one = artifact(index)
        batch.output(OutputRow(run_id="r1", key=f"fan[{index}]", name="output", artifact=one))
    records.write(batch)
    assert [row.key for row in records.steps("r1")] == ["z", "fan", "a"]
    assert [row.idx for row in records.steps("r1", parent="fan")] == list(range(20))
    assert [row.idx for row in records.steps("r1", parent="fan", limit=5, offset=10)] == [10, 11, 12, 13, 14]
    assert [row.key for row in records.steps("r1", limit=1, offset=1)] == ["fan"]
    everything = [row.key for row in records.all_steps("r1")]
    assert len(everything) == 23
    assert everything.index("fan") < everything.index("fan[0]") < everything.index("fan[11]") < everything.index("a")
    assert records.counts("r1") == {"pending": 3, "succeeded": 19, "failed": 1}
    assert records.counts("r1", parent="") == {"pending": 3}
    assert records.counts("r1", parent="fan") == {"succeeded": 19, "failed": 1}
    outputs = records.element_outputs("r1", "fan", "output")
    assert [row.artifact.digest for row in outputs] == [f"{index:064x}" for index in range(20)]


def test_what_elements_used_is_read_where_it_can_be(records: Records) -> None:
    used = [{"cpu": 1.5, "peak": 7}, {}, {"cpu": 0.5}, {"cpu": 9}]
    for index, usage in enumerate(used):
        row = StepRow(run_id="r1", key=f"m[{index}]", name="m", position=0, parent="m", idx=index, usage=usage)
        write(records, row)
    assert sorted(records.usages("r1", "m"), key=str) == sorted(filter(None, used), key=str)
    for damage in ('{"cpu": 9}, {"cpu": 3}', "[]", "{"):
        records.database.change(records.database.sql("UPDATE steps SET usage = ? WHERE key = 'm[3]'"), (damage,))
        assert sorted(records.usages("r1", "m"), key=str) == sorted((used[0], used[2]), key=str)
    assert records.count_rows("r1", ["m[1]", "m[7]", *(f"m[{index}]" for index in range(1000, 3000))]) == 1


def test_queries_of_elements_use_their_index(store: Store) -> None:
    records = store.records
    for name in ("elements", "element_outputs", "lineage"):
        statement = records._sql[name]
        plan = records.database.rows("EXPLAIN QUERY PLAN " + statement, ("x",) * statement.count("?"))
        assert "SCAN" not in str(plan), (name, plan)
        assert ("outputs_by_digest" if name == "lineage" else "elements") in str(plan)


# Outputs, attempts, events


def test_outputs_come_back_with_their_bytes(records: Records) -> None:
    small = artifact(1, serializer="pickle", inline=b"\x80\x05\x00", meta={"package": "x"})
    large = artifact(2, size=1 << 40)
    write(
        records,
        OutputRow(run_id="r1", key="a", name="small", artifact=small),
        OutputRow(run_id="r1", key="a", name="large", artifact=large),
        OutputRow(run_id="r1", key="b", name="large", artifact=large),
    )
    assert {row.name: row.artifact for row in records.outputs("r1", "a")} == {"small": small, "large": large}
    assert [(row.key, row.name) for row in records.lineage(large.digest)] == [("a", "large"), ("b", "large")]
    assert [row.key for row in records.lineage(small.digest)] == ["a"]
    assert records.lineage("f" * 64) == []


def test_attempts_are_in_order(records: Records) -> None:
    first = AttemptRow(
        run_id="r1",
        key="a",
        number=1,
        status="failed",
        backend="local",
        job="j",
        started=1.0,
        ended=2.0,
        cause="killed",
        message="m",
        error={"traceback": "t"},
        exit_code=-9,
        usage={"peak": 3},
    )
    second = AttemptRow(run_id="r1", key="a", number=2, status="succeeded")
    write(records, second, first)
    assert records.attempts("r1", "a") == [first, second]


def test_events_are_in_order_and_never_replaced(records: Records) -> None:
    assert records.next_seq("r1") == 0
    events = [EventRow(run_id="r1", seq=seq, time=1.0, kind="k", data={"n": seq}) for seq in range(5)]
    write(records, *events)
    write(records, EventRow(run_id="r1", seq=2, time=9.0, kind="other"))
    assert records.events("r1") == events
    assert records.events("r1", after=2) == events[3:]
    assert records.next_seq("r1") == 5


# The cache


def test_the_cache_forgets_in_time(records: Records) -> None:
    outputs = {"model": artifact(1, inline=b"1").wire()}
    for_ever = CacheRow(key="a", run_id="r1", step_key="s", created=1.0, outputs=outputs)
    until_ten = CacheRow(key="b", run_id="r1", step_key="s", created=1.0, expires=10.0)
    write(records, for_ever, until_ten)
    assert records.cached("a", 1e12) == for_ever
    assert records.cached("b", 9.9) == until_ten
    assert records.cached("b", 10.0) is None
    assert records.cached("c", 0.0) is None
    assert records.forget_expired(50.0) == 1
    records.forget(["a", "zz"])
    assert records.cached("a", 0.0) is None


# Any text


any_text = st.text(st.characters(exclude_categories=()))


@settings(max_examples=20)
@given(text=any_text, data=st.dictionaries(any_text, any_text))
def test_any_text_can_be_written(tmp_path_factory: pytest.TempPathFactory, text: str, data: dict[str, str]) -> None:
    store = open_store(home=str(tmp_path_factory.mktemp("home")))
    store.records.create_run(run_row(parameters=data, source=text))
    assert store.records.set_run("r1", "t1", error=text)
    write(store.records, StepRow(run_id="r1", key="a", name="n", message=text, inputs=data))
    row, run = store.records.step("r1", "a"), store.records.run("r1")
    assert row is not None
    assert row.inputs == run.parameters == data
    readable = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    assert run.error == run.source == readable
    assert row.message.replace("\0", "\ufffd") == readable
    store.close()


def test_no_text_stops_a_run(records: Records) -> None:
    """NUL is nothing for Postgres, half a surrogate pair for neither."""
    message = "a\0b\udcffc"
    records.create_run(run_row(error=message, parameters={"path": message}))
    write(
        records,
        StepRow(run_id="r1", key="a", name="a", message=message, inputs={"path": message}),
        EventRow(run_id="r1", seq=0, time=1.0, kind="k", data={"path": message}),
    )
    row = records.step("r1", "a")
    assert row is not None
    assert row.message == "a\ufffdb?c"
    assert row.inputs == records.run("r1").parameters == records.events("r1")[0].data == {"path": message}
    assert records.set_run("r1", "t1", error=message)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_server_that_closed_the_connection_is_asked_again(records: Records, postgres_uri: str) -> None:
    import psycopg

    pid = records.database.row("SELECT pg_backend_pid()")
    assert pid is not None
    with psycopg.connect(postgres_uri, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s)", pid)
    assert records.counts("r1") == {}


# Many writers


# What keys are made of, and the texts of code


def test_recipes_and_texts_are_kept_once_and_go_when_nothing_names_them(records: Records) -> None:
    first = RecipeRow(digest="a" * 32, created=1.0, document={"code": "ü"})
    write(records, first, RecipeRow(digest="b" * 32, created=1.0, document={}))
    write(records, RecipeRow(digest="a" * 32, created=9.0, document={"code": "another"}))
    assert records.recipe("a" * 32) == first and records.has_recipe("b" * 32) and records.recipe("c") is None
    records.create_run(run_row())
    write(records, StepRow(run_id="r1", key="x", name="x", recipe="a" * 32))
    records.forget_recipes(before=1.0)
    assert records.has_recipe("b" * 32), "it may be of a step that is about to be recorded"
    records.forget_recipes(before=2.0)
    assert records.has_recipe("a" * 32) and not records.has_recipe("b" * 32)

    records.keep_sources({"d" * 64: b"text\0", "e" * 64: b""})
    records.keep_sources({"d" * 64: b"other"})
    assert records.sources(["d" * 64, "e" * 64, "f" * 64]) == {"d" * 64: b"text\0", "e" * 64: b""}
    assert records.missing_sources({"d" * 64, "f" * 64}) == {"f" * 64}
    assert records.missing_sources(set()) == set()
    records.forget_sources({"d" * 64}, before=time.time() - 60)
    assert records.missing_sources({"e" * 64}) == set()
    records.forget_sources({"d" * 64}, before=time.time() + 60)
    assert records.missing_sources({"d" * 64, "e" * 64}) == {"e" * 64}


def test_a_step_in_earlier_runs_and_who_made_an_output_first(records: Records) -> None:
    for number in range(4):
        records.create_run(run_row(f"r{number}", created=float(number), pipeline="other" if number == 1 else "train"))
        write(records, StepRow(run_id=f"r{number}", key="x", name="x", ended=2.0))
        write(records, StepRow(run_id=f"r{number}", key="a", name="a", ended=5.0))
    assert [row.run_id for row in records.earlier_steps("train", "x", before=3.0)] == ["r2", "r0"]
    assert records.earlier_steps("train", "x", before=3.0, limit=1)[0].run_id == "r2"
    for key in ("a", "x"):
        write(records, OutputRow(run_id="r0", key=key, name="output", artifact=artifact()))
    made = records.maker_of("r0", artifact().digest)
    assert made is not None and made.key == "x" and records.maker_of("r1", artifact().digest) is None


def test_a_run_that_has_succeeded_is_taken_over_by_nobody(records: Records) -> None:
    records.create_run(run_row(status="succeeded"))
    assert not records.take_over("r1", expected="t1", token="t2", driver={})
    assert records.run("r1") == run_row(status="succeeded")
