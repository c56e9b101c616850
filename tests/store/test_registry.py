"""Names of artifacts and models: versions, tags, metadata, stages, history; what is refused; two writers at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.client import Client
from stoker.client.names import ModelVersion
from stoker.core.artifact import StoredArtifact
from stoker.core.errors import NotFound, PromotionRefused, StoreError, UntrustedArtifact, UsageError
from stoker.core.registry import Artifact, Model
from stoker.store import artifacts, check
from stoker.store import database as database_module
from stoker.store.batch import RowBatch
from stoker.store.database import MIGRATIONS, Database
from stoker.store.moving import tables
from stoker.store.records import Records
from stoker.store.registry import LoggedFacts, Names, Registration
from stoker.store.rows import CacheRow, RecipeRow, RungRow, RunRow
from stoker.store.store import Store, open_store

_POSTGRESQL = pytest.mark.xdist_group("postgresql")
HOSTILE = ('it\'s "quoted"', "100%", "a_b", "刺身 ünï", "'; DROP TABLE artifacts; --", "x" * 200, "-rf", "a/b", "!%_")


@pytest.fixture
def names(database: Database) -> Names:
    """The names in a fresh database of each kind."""
    return Names(database)


def value(number: int = 1, **fields: Any) -> StoredArtifact:
    fields = {"serializer": "json", "type": "builtins.int", "size": 1, "inline": b"1", **fields}
    return StoredArtifact(digest=f"{number:064x}", **fields)


def output(name: str, number: int = 1, *, run: str = "r1", key: str = "s", **fields: Any) -> Registration:
    fields = {"output": "output", "created": float(number), "author": "ann@host", **fields}
    return Registration(name=name, artifact=value(number).wire(), run_id=run, key=key, **fields)


def logged(name: str, *, kind: Any = "artifact", run: str = "r1", facts: Any, **fields: Any) -> LoggedFacts:
    return LoggedFacts(kind=kind, name=name, run_id=run, facts=facts, created=1.0, author="ann@host", **fields)


def write(names: Names, *entries: Registration | LoggedFacts) -> None:
    """What a driver writes."""
    batch = RowBatch()
    for entry in entries:
        batch.register(entry)
    assert Records(names._database).write(RowBatch.from_dict(batch.as_dict()))


def versions(names: Names, name: str) -> list[tuple[int, int]]:
    """Numbers and values of a name's versions, oldest first."""
    return [(row.version, int(row.artifact.digest, 16)) for row in reversed(names.versions(name))]


# Artifacts


def test_a_version_comes_back_as_it_was_saved(names: Names) -> None:
    metadata = {"rows": 3, "ü": [None, {"a": 1.5}]}
    saved = names.save("clean", value(1, meta={"shape": [3]}), tags=["b", "a", "b"], metadata=metadata)
    assert (saved.name, saved.version, saved.run_id) == ("clean", 1, "") and "@" in saved.author
    assert saved == names.artifact("clean") == names.artifact("clean", "latest") == names.artifact("clean", "1")
    assert saved.artifact == value(1, meta={"shape": [3]})
    assert names.marks("artifact", "clean", 1) == ("a", "b")
    assert names.facts("artifact", "clean", 1) == metadata
    names.set_facts("artifact", "clean", 1, {"rows": 4})
    assert names.facts("artifact", "clean", 1)["rows"] == 4
    again = names.save("clean", value(0xAB << 248))
    assert again.version == 2 and names.artifact("clean", "ab").version == 2
    assert [row.version for row in names.versions("clean")] == [2, 1]


def test_a_number_is_never_given_twice(names: Names) -> None:
    for number in range(1, 4):
        names.save("n", value(number))
    changed = [row.name for row in names.artifacts()]
    names.delete_artifact("n", 3)
    names.delete_artifact("n", 3)  # again: a call whose connection was lost does so
    names.delete_artifact("n", 1)
    names.delete_artifact("n", 900)  # there never was one: the next number is still 4
    assert [row.name for row in names.artifacts()] == changed
    assert names.save("n", value(4)).version == 4
    for version in (2, 4):
        names.delete_artifact("n", version)
    assert names.artifacts() == [] and not names.has_artifact("n")
    assert names.save("n", value(5)).version == 5
    names.delete_artifact("typo", 1)
    with pytest.raises(NotFound, match="there is no artifact 'typo'"):
        names.artifact("typo")
    assert names.save("typo", value(1)).version == 1


def test_what_a_deleted_version_had_is_not_the_next_ones(names: Names) -> None:
    names.save("n", value(1), tags=["prod"], metadata={"a": 1})
    names.delete_artifact("n", 1)
    names.save("n", value(1))
    assert names.marks("artifact", "n", 2) == () and names.facts("artifact", "n", 2) == {}
    with pytest.raises(NotFound):
        names.artifact("n", "tag:prod")
    for change in (
        lambda: names.set_marks("artifact", "n", 1, ["x"]),
        lambda: names.set_facts("artifact", "n", 1, {"x": 1}),
        lambda: names.link("m", 1, "n", 1),
    ):
        with pytest.raises(NotFound, match="artifact 'n' has no version 1; the latest is 2"):
            change()


def test_pages_of_names(names: Names) -> None:
    """A name that has lost all versions comes again with the next."""
    for number in range(7):
        write(names, output(f"n{number}", number + 1, key=str(number), tags=["odd" if number % 2 else "even"]))
        write(names, output(f"n{number}", number + 101, key=f"{number} again"))
    assert [row.name for row in names.artifacts(limit=3, offset=2)] == ["n4", "n3", "n2"]
    assert [(row.name, row.version) for row in names.artifacts(tag="even", limit=2, offset=1)] == [("n2", 1), ("n4", 1)]
    assert [row.name for row in names.artifacts(tag="even", before="n2", limit=1)] == ["n4"]
    assert [row.name for row in names.artifacts(tag="odd", text="N3")] == ["n3"] and names.artifacts(tag="n") == []
    for version in (1, 2):
        names.delete_artifact("n4", version)
    assert [row.name for row in names.artifacts(limit=3)] == ["n6", "n5", "n3"], "a page is full"
    write(names, logged("n4", facts={"a": 1}))
    assert [row.name for row in names.artifacts()] == ["n6", "n5", "n3", "n2", "n1", "n0"]
    assert [row.name for row in names.artifacts(tag="even")] == ["n0", "n2", "n6"]
    write(names, output("n4", 5, run="r2", reused=True))
    assert [(row.name, row.version) for row in names.artifacts(text="n4")] == [("n4", 3)]
    names.create_model(Model("m"))
    names.delete_model("m", 1)
    assert names.models() == [] and names.create_model(Model("m")).version == 2 and len(names.models()) == 1


def test_exclusive_tags_move(names: Names) -> None:
    for number in (1, 2, 3):
        names.save("n", value(number), tags=["all"])
    names.save("other", value(1), tags=["prod"])
    names.set_marks("artifact", "n", 1, ["prod", "x"])
    names.set_marks("artifact", "n", 3, ["prod", "all"], exclusive=True)
    assert [names.marks("artifact", "n", version) for version in (1, 2, 3)] == [("x",), (), ("all", "prod")]
    assert names.artifact("n", "tag:prod").version == 3 and names.marks("artifact", "other", 1) == ("prod",)
    names.remove_marks("artifact", "n", 3, ["prod", "never"])
    with pytest.raises(NotFound):
        names.artifact("n", "tag:prod")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_names(names: Names, name: str) -> None:
    names.save("other", value(9))
    names.save(name, value(1), tags=[name], metadata={name: name})
    assert names.artifact(name, f"tag:{name}") == names.artifact(name)
    assert names.facts("artifact", name, 1) == {name: name}
    assert [row.name for row in names.artifacts(text=name)] == [row.name for row in names.artifacts(tag=name)] == [name]
    write(names, output(name, 2, model=Model(name, tags=[name], metadata={name: 1})))
    assert [row.version for row in names.parts(name, 1)] == [2]
    names.promote(name, 1, name, reason=f"{name}\0\ud800")
    assert names.model(name, name).version == names.holders(name).get(name).version == 1  # type: ignore[union-attr]
    assert names.promotions(name)[0].reason.startswith(name)
    assert len(names.artifacts()) == 2


@pytest.mark.parametrize(
    "bad", ["", " ", " a", "a ", "a@1", "a\nb", "a\0", "x" * 201, "\ud800", "\u202e", None, 3, b"a"]
)
def test_what_is_no_name_is_refused(names: Names, bad: Any) -> None:
    for refused in (
        lambda: names.save(bad, value()),
        lambda: names.save("n", value(), tags=[bad]),
        lambda: names.save("n", value(), metadata={bad: 1}),
        lambda: Model(bad),
        lambda: Artifact(bad),
    ):
        with pytest.raises(UsageError):
            refused()
    assert names.artifacts() == []


@pytest.mark.parametrize("fact", [object(), {1, 2}, b"x", "x" * 10_000, {"a": object()}, [np.float32(1)], 1j])
def test_metadata_that_json_lacks_is_refused_before_anything_is_written(store: Store, fact: Any) -> None:
    client = Client(store=store)
    for refused in (
        lambda: client.save_artifact(np.zeros(9999), "n", metadata={"fact": fact}),
        lambda: client.create_model_version("m", metadata={"fact": fact}),
        lambda: Artifact("n", metadata={"fact": fact}),
    ):
        with pytest.raises(UsageError, match="metadata 'fact'"):
            refused()
    assert client.artifacts() == [] and client.models() == [] and list(store.blobs.digests()) == []


@pytest.mark.parametrize("bad", [0, -1, True, "0", "", " ", None, 1.0, 2**31, 2**70])
def test_what_is_no_version_is_refused(names: Names, bad: Any) -> None:
    names.save("n", value())
    with pytest.raises(UsageError, match="is no version of"):
        names.artifact("n", bad)


def test_a_missing_name_is_told_with_what_there_is(names: Names) -> None:
    names.save("classifier", value())
    for version, words in ((2, "has no version 2; the latest is 1"), ("tag:x", "has no version 'tag:x'")):
        with pytest.raises(NotFound, match=words):
            names.artifact("classifier", version)
    with pytest.raises(NotFound, match="there is no artifact 'classifer', did you mean 'classifier'"):
        names.artifact("classifer")


def test_lookups_read_few_rows(tmp_path: Path) -> None:
    """Also of a name with 10,000 versions: statements find their rows by the index that is made for them."""
    opened = Database(f"sqlite://{tmp_path}/stoker.db")
    for name, index in (
        ("artifact", "artifacts_by_output"),
        ("mark", "artifacts_by_output"),
        ("named_in", "artifacts_by_output"),
        ("tagged_artifact", "marks_by_mark"),
        ("artifacts", "artifact_names_by_time"),
        ("artifacts_found", "artifact_names_by_time"),
        ("tagged", "marks_by_mark"),
        ("model", "model_makers"),
        ("model_labelled", "model_labels"),
        ("models", "model_names_by_time"),
        ("models_of_run", "model_runs_by_run"),
    ):
        statement = Names(opened)._sql[name]
        plan = opened.rows(f"EXPLAIN QUERY PLAN {statement}", [1] * statement.count("?"))
        assert any(index in str(row[3]) for row in plan), (name, plan)
    opened.close()


# What drivers write


def test_a_batch_that_is_written_twice_changes_nothing(names: Names) -> None:
    model = Model("m", tags=["t"], metadata={"k": 1})
    entries = [
        output("b", 1, tags=["x"], metadata={"f": 1}, model=model),
        output("a", 2, key="t", model=model),
        output("a", 3, key="u[1]", model=model),
        logged("a", facts={"rows": 3}),
        logged("m", kind="model", facts={"auc": 0.9}, of_run=True),
    ]
    for _ in range(3):
        write(names, *entries)
    assert versions(names, "a") == [(1, 2), (2, 3)] and versions(names, "b") == [(1, 1)]
    assert [row.version for row in names.model_versions("m")] == [1]
    assert [(row.name, row.version) for row in names.parts("m", 1)] == [("a", 1), ("a", 2), ("b", 1)]
    assert names.facts("artifact", "a", 2) == {"rows": 3} and names.facts("artifact", "b", 1) == {"f": 1}
    assert names.facts("model", "m", 1) == {"k": 1, "auc": 0.9} and names.marks("model", "m", 1) == ("t",)
    assert names.runs_of_model("m", 1) == ["r1"]
    assert [row.name for row in names.named_in("r1")] == ["a", "a", "b"]
    assert names.models_with("b", 1) == names.models_of_run("r1") == [names.model("m")]


def test_a_reused_result_is_a_version_only_of_a_name_without_it(names: Names) -> None:
    write(names, output("a", 7, run="r1"), output("b", 8, run="r1", key="t"))
    before = [row.name for row in names.artifacts()]
    model = Model("m")
    write(names, output("a", 7, run="r2", reused=True, model=model), output("c", 7, run="r2", reused=True, key="t"))
    assert versions(names, "a") == [(1, 7)] and versions(names, "c") == [(1, 7)]
    assert [row.name for row in names.artifacts() if row.name != "c"] == before, "a reused result is no change"
    assert [(row.name, row.version) for row in names.parts("m", 1)] == [("a", 1)]
    names.delete_artifact("c", 1)
    write(names, output("c", 7, run="r3", reused=True))
    assert versions(names, "c") == [(2, 7)]


def test_facts_of_what_nobody_has_made(names: Names) -> None:
    write(names, logged("nothing", facts={"a": 1}), logged("m", kind="model", facts={"a": 1}))
    with pytest.raises(NotFound):
        names.artifact("nothing")
    assert names.save("nothing", value()).version == 1
    assert names.facts("model", "m", 1) == {"a": 1}  # made by it, so that none is lost
    write(names, logged("m", kind="model", run="r2", facts={"a": 2}))
    assert names.facts("model", "m", 1) == {"a": 2} and len(names.model_versions("m")) == 1


def test_a_run_adds_to_the_version_that_it_uses(names: Names) -> None:
    for run in ("r1", "r2"):
        write(names, output("a", 1, run=run, model=Model("m")))
    used = {"model": Model("m", 1), "model_version": 1}
    write(names, output("b", 2, run="r3", **used), logged("m", kind="model", run="r3", facts={"x": 1}, **_of_run(1)))
    assert [(row.name, row.version) for row in names.parts("m", 1)] == [("a", 1), ("b", 1)]
    assert [(row.name, row.version) for row in names.parts("m", 2)] == [("a", 2)]
    assert names.facts("model", "m", 1) == {"x": 1} and names.runs_of_model("m", 1) == ["r1", "r3"]
    # The run that made version 2 is resumed with version 1: nothing of it goes to both.
    write(names, output("c", 3, run="r2", **used))
    assert [row.name for row in names.parts("m", 2)] == ["a"]


def _of_run(version: int) -> dict[str, Any]:
    return {"of_run": True, "model_version": version}


# Models


def test_promotions_displace_and_are_kept(names: Names) -> None:
    for _ in range(3):
        names.create_model(Model("m"))
    names.create_model(Model("other"))
    names.promote("other", 1, "production")
    for version, stage in ((1, "production"), (2, "production"), (2, "production"), (3, "canary"), (3, "production")):
        assert names.promote("m", version, stage, reason=f"{version} to {stage}")
    history = [(row.number, row.version, row.before, row.stage, row.displaced) for row in names.promotions("m")]
    assert history == [
        (4, 3, "canary", "production", 2),
        (3, 3, "", "canary", None),
        (2, 2, "", "production", 1),
        (1, 1, "", "production", None),
    ]
    assert [row.stage for row in names.model_versions("m")] == ["production", "archived", "archived"]
    assert {"canary", "archived", ""}.isdisjoint(names.holders("m"))
    assert not names.promote("m", 1, "production", expected=2) and len(names.promotions("m")) == 4
    assert names.promote("m", 1, "production", expected=3)
    assert [row.version for row in names.models(stage="production")] == [1, 1]
    assert names.promote("m", 1, "") and names.promotions("m")[0].before == "production"
    for stage in ("latest", "tag:x", "3", "a@b", " a"):
        with pytest.raises(UsageError):
            names.promote("m", 1, stage)
    with pytest.raises(NotFound, match="model 'm' has no version 4"):
        names.promote("m", 4, "production")


def test_only_versions_without_a_stage_are_deleted(names: Names) -> None:
    names.save("a", value())
    first = names.create_model(Model("m")).version
    names.link("m", first, "a", 1)
    with pytest.raises(UsageError, match="artifact 'a' version 1 belongs to model 'm' version 1"):
        names.delete_artifact("a", 1)
    names.promote("m", first, "production")
    with pytest.raises(UsageError, match="is in stage 'production'"):
        names.delete_model("m", first)
    names.promote("m", first, "archived")
    for _ in range(2):
        names.delete_model("m", first)
    names.delete_model("m", 77)
    names.delete_artifact("a", 1)
    assert names.create_model(Model("m")).version == 2 and len(names.promotions("m")) == 2


def test_labels(names: Names) -> None:
    client_like = [names.create_model(Model("m", label)).version for label in ("1.0.0", "1.1.0", "1.0.0")]
    assert client_like == [1, 2, 1] and names.model("m", "1.1.0").version == 2
    names.promote("m", 1, "1.1.0")  # the stage comes first
    assert names.model("m", "1.1.0").version == 1
    for bad in ("a@b", "x" * 201, " a"):
        with pytest.raises(UsageError):
            Model("m", bad)


def test_numbers_and_stages_are_no_labels(store: Store) -> None:
    for label in ("3", "latest", "production", "tag:x", ""):
        with pytest.raises(UsageError):
            Client(store=store).create_model_version("m", label)
    assert Client(store=store).models() == []


# Rules


@pytest.fixture
def model(store: Store) -> Callable[..., ModelVersion]:
    """Makes versions of a model with metadata."""

    def made(**metadata: Any) -> ModelVersion:
        return Client(store=store).create_model_version("m", metadata=metadata)

    return made


@pytest.mark.parametrize(
    ("rule", "passes", "fails"),
    [
        ("auc >= production", 0.8, 0.79),
        ("auc > production", 0.81, 0.8),
        ("auc<=production", 0.8, 0.9),
        ("auc < production", 0.1, 0.8),
        ("auc >= 0.9", 0.9, 0.8),
        ("auc < 5e-1", -3, 0.5),
        ("auc >= 0.1", 1, float("nan")),
    ],
)
def test_rules_of_metrics(model: Callable[..., ModelVersion], rule: str, passes: float, fails: float) -> None:
    holder = model(auc=0.8)
    holder.promote("production")
    holder.set_rules("production", [rule])
    bad = model(auc=fails)
    with pytest.raises(PromotionRefused, match="auc is"):
        bad.promote("production")
    with pytest.raises(PromotionRefused, match="has no auc"):
        model(auc="high", other=True).promote("production")
    bad.promote("staging")  # another stage
    model(auc=passes).promote("production", why="better")
    assert [(row.version, row.displaced) for row in holder.history if row.stage == "production"] == [(4, 1), (1, None)]
    bad.promote("production", force=True)
    holder.set_rules("production", [])
    assert holder.rules == {}
    model().promote("production")


def test_what_was_never_measured_is_not_compared(model: Callable[..., ModelVersion]) -> None:
    first = model()
    first.set_rules("production", ["auc >= production"])
    first.promote("production", why="the first one")
    model(auc=0.1).promote("production")
    with pytest.raises(PromotionRefused, match="has no auc"):
        model().promote("production")


def test_rules_of_code_and_receipts(
    model: Callable[..., ModelVersion], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fairness_checks.py").write_text(
        "def fair(version): return version.metadata['fair']\ndef broken(version): return 1 / 0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    version = model(fair=False)
    for rule, words in (
        ("check fairness_checks:fair", "returned False"),
        ("check fairness_checks:broken", "raised ZeroDivisionError"),
        ("check fairness_checks:missing", "cannot be found"),
        ("check no_such_module:fair", "cannot be found"),
        ("receipt", "no run made it"),
    ):
        version.set_rules("production", [rule])
        with pytest.raises(PromotionRefused, match=words):
            version.promote("production")
    version.set_rules("production", ["check fairness_checks:fair"])
    version.log_metadata({"fair": True})
    version.promote("production")
    for bad in ("", "auc", "auc >= staging", "auc >= nan", "auc == 1", "check x", "check x:y:z"):
        with pytest.raises(UsageError, match="is no rule"):
            version.set_rules("production", [bad])


# Two at once


def at_once(work: list[Callable[[], Any]]) -> list[BaseException]:
    """What is raised by functions that run at the same time."""
    raised: list[BaseException] = []
    ready = threading.Barrier(len(work))

    def go(one: Callable[[], Any]) -> None:
        try:
            ready.wait()
            one()
        except BaseException as error:  # shown by the test
            raised.append(error)

    threads = [threading.Thread(target=go, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


LETTERS = [f"n{number}" for number in range(5)]


def entries_of(kind: str, number: int, order: list[str]) -> RowBatch:
    """A batch with rows of one kind that several drivers write, in an order."""
    batch = RowBatch()
    for place, name in enumerate(order):
        if kind == "cache":
            batch.remember(CacheRow(key=name, run_id="r", step_key="s", created=1.0, expires=None, outputs={}))
        elif kind == "recipes":
            batch.recipe(RecipeRow(digest=name, created=1.0, document={}))
        elif kind == "rungs":
            batch.learn(RungRow(key=name, run_id="r", created=1.0, changes={}))
        elif kind == "outputs":
            batch.register(output(name, 1, run=f"r{number}", key=str(place), model=Model(order[0]), tags=["t"]))
        elif kind == "metadata" or (kind == "both" and place % 2 == number % 2):
            batch.register(logged(name, facts=dict.fromkeys(order, number)))
        elif kind == "both":
            batch.register(output(name, 1, run=f"r{number}", key=str(place)))
        else:
            batch.register(logged(name, kind="model", facts=dict.fromkeys(order, number)))
    return batch


@pytest.mark.parametrize("kind", ["cache", "recipes", "rungs", "outputs", "metadata", "both", "models"])
@pytest.mark.parametrize("database", [pytest.param("postgresql", marks=_POSTGRESQL)], indirect=True)
def test_two_drivers_never_wait_for_each_other(database: Database, kind: str) -> None:
    """Both come to a row in the middle that a third one holds, from both ends: then it is let go."""
    records, names = Records(database), Names(database)
    for name in LETTERS if kind in ("metadata", "both", "outputs", "models") else ():
        names.save(name, value(99))
        names.create_model(Model(name))
    raised: list[BaseException] = []
    threads = [
        threading.Thread(target=lambda one=one: raised.extend(at_once([one])))
        for one in (
            lambda: records.write(entries_of(kind, 1, LETTERS)),
            lambda: records.write(entries_of(kind, 2, LETTERS[::-1])),
        )
    ]
    cursor = database.begin()
    for statement, values in records._rows_of(entries_of(kind, 3, LETTERS[2:3] * 2)):
        cursor.executemany(statement, values)
    for thread in threads:
        thread.start()
    patience = time.monotonic() + 30
    while _waiting(cursor) < len(threads) and time.monotonic() < patience:
        time.sleep(0.01)
    waited = _waiting(cursor)
    database.rollback(cursor)
    for thread in threads:
        thread.join()
    assert not raised, raised
    assert waited == len(threads), "they never met"


def _waiting(cursor: Any) -> int:
    cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
    return int(cursor.fetchone()[0])


def test_drivers_and_people_at_once(names: Names) -> None:
    """Drivers that name the same in opposite order, beside promotions, links and metadata."""
    for name in LETTERS:
        names.save(name, value(99))
        names.create_model(Model(name))

    def driver(number: int, order: list[str]) -> Callable[[], None]:
        def drive() -> None:
            for turn in range(6):
                batch = RowBatch()
                for name in order:
                    made = {"run": f"r{number}", "key": f"{turn}.{name}"}
                    batch.register(output(name, turn, model=Model(order[0]), metadata={name: turn}, **made))
                    batch.register(logged(name, kind="model", facts=dict.fromkeys(order, turn)))
                assert Records(names._database).write(batch)

        return drive

    def others() -> None:
        for turn in range(6):
            for name in reversed(LETTERS):
                names.promote(name, 1, "production" if turn % 2 else "staging")
                names.link(name, 1, name, 1)
                names.set_facts("run", "r", 0, dict.fromkeys(LETTERS[:: 1 if turn % 2 else -1], turn))

    raised = at_once([driver(1, LETTERS), driver(2, LETTERS[::-1]), others, others])
    assert not raised, raised
    for name in LETTERS:
        assert [version for version, _ in versions(names, name)] == list(range(1, 2 * 6 + 2))


def test_of_two_promotions_one_comes_second(names: Names) -> None:
    for _ in range(4):
        names.create_model(Model("m"))
    assert not at_once([lambda n=n: names.promote("m", n, "production") for n in range(1, 5)])  # type: ignore[misc]
    history = names.promotions("m")[::-1]
    assert [row.displaced for row in history] == [None, *(row.version for row in history[:-1])]
    assert sorted(row.version for row in history) == [1, 2, 3, 4] and [row.number for row in history] == [1, 2, 3, 4]
    assert names.holders("m").get("production") == names.model("m", history[-1].version)


def test_a_connection_that_is_lost_at_the_commit(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change is made once more, and is there once."""
    from stoker.core.errors import DatabaseUnreachable

    names, transaction = Names(database), database.transaction
    lost = [False]
    meanwhile: list[Callable[[], Any]] = []

    class Losing:
        def __enter__(self) -> Any:
            self._real = transaction()
            return self._real.__enter__()

        def __exit__(self, *error: Any) -> Any:
            done = self._real.__exit__(*error)
            lost[0] = not lost[0]
            if lost[0] and error[0] is None:
                if meanwhile:
                    meanwhile.pop()()
                    lost[0] = True
                raise DatabaseUnreachable("lost")
            return done

    monkeypatch.setattr(database, "transaction", Losing)
    assert [names.save("n", value(number)).version for number in (1, 2)] == [1, 2]
    assert [names.create_model(Model("m")).version for _ in range(3)] == [1, 2, 3]
    assert names.promote("m", 1, "production")
    meanwhile.append(lambda: names.promote("m", 3, "production"))  # before it is done once more
    assert names.promote("m", 2, "production")
    assert [(row.version, row.displaced) for row in names.promotions("m")] == [(3, 2), (2, 1), (1, None)]
    names.delete_artifact("n", 2)
    names.delete_model("m", 1)
    assert names.save("n", value(3)).version == 3 and names.create_model(Model("m")).version == 4


# The store around them


def test_named_bytes_outlive_runs_and_sweeps(store: Store) -> None:
    client = Client(store=store)
    saved = client.save_artifact(np.arange(9000), "array")
    parts = artifacts.save_split([np.full(9000, number) for number in range(3)], store.blobs)
    store.registry.save("parts", parts)
    lost = artifacts.save(np.ones(9000), store.blobs)
    store.records.create_run(RunRow(id="r1", pipeline="p", created=1.0))
    made = artifacts.save(np.zeros(9001), store.blobs)
    write(store.registry, Registration(name="made", artifact=made.wire(), run_id="r1", key="s", **_place()))
    store.records.delete_run("r1")
    assert check.unreferenced(store) == [lost.digest]
    check.sweep(store, now=time.time() + 10_000)
    assert (saved.load() == np.arange(9000)).all() and client.artifact("made", 1).producer is None
    assert client.artifact("parts", 1).load()[2][0] == 2 and client.artifact("made", 1).load().size == 9001
    os.truncate(store.blobs.path(saved.digest), 10)
    (damage,) = check.check_store(store).damages
    assert (damage.digest, damage.users) == (saved.digest, ("artifact array@1",))
    saved.delete()
    check.sweep(store, now=time.time() + 10_000)
    assert saved.digest not in set(store.blobs.digests())


def _place() -> dict[str, Any]:
    return {"output": "output", "created": 1.0, "author": "ann@host"}


def test_anothers_store_is_read_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    store = open_store(home=str(home))
    Client(store=store).save_artifact({1, 2}, "set")
    Client(store=store).save_artifact([1], "list")
    store.close()
    if os.geteuid() == 0:
        for path in (home, *home.rglob("*")):
            os.chown(path, 12345, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setenv("STOKER_HOME", str(home))
    client = Client()
    assert client.artifact("list").load() == [1]
    with pytest.raises(UntrustedArtifact):
        client.artifact("set").load()
    client.close()


def test_a_store_that_may_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    store = open_store(home=str(home))
    Client(store=store).save_artifact([1], "list", tags=["t"], metadata={"a": 1})
    Client(store=store).create_model_version("m").promote("production")
    store.close()
    monkeypatch.setattr(database_module, "is_read_only", lambda path: True)
    store = open_store(home=str(home))
    client = Client(store=store)
    found = client.artifact("list", "tag:t")
    assert (found.load(), found.metadata, client.model("m", "production").version) == ([1], {"a": 1}, 1)
    for change in (
        lambda: found.add_tags("x"),
        lambda: found.log_metadata({"a": 2}),
        found.delete,
        lambda: client.model("m").promote("staging"),
        lambda: client.create_model_version("m"),
    ):
        with pytest.raises(StoreError, match="cannot be written"):
            change()
    store.close()


def test_a_store_of_before_is_migrated(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(number for number, statements in enumerate(MIGRATIONS) if "artifact_names" in statements[0])
    for table in (*tables(), "stoker_schema"):
        database.change(f"DROP TABLE {table}")
    database.close()
    with monkeypatch.context() as patch:
        patch.setattr(database_module, "MIGRATIONS", MIGRATIONS[:first])
        before = Database(database.uri)
        before.change("INSERT INTO plans (run_id, plan) VALUES ('r1', 'kept')")
        before.close()
    opened = Database(database.uri)
    names = Names(opened)
    assert Records(opened).plan("r1") == "kept" and names.artifacts() == names.models() == []
    assert names.save("n", value()).version == 1
    opened.close()
