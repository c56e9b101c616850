"""Named outputs, inputs and models of real runs, on SQLite and on PostgreSQL: what is registered, and what is not."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.distributed.conftest import SPAWN
from tests.servers import postgres

from stoker import Client
from stoker.core.errors import DamagedArtifact
from stoker.store.store import open_store

SECRET = "hf_Very-Secret_0123456789"
SCRIPT = """
import os
import sys
import time
from typing import Annotated

from stoker import Artifact, Model, Secret, artifact, context, log_metadata, log_metrics, pipeline, save_artifact, step
from stoker.config import Command, Retry

EDITION = int(os.environ.get("EDITION", "0"))

@step
def clean(rows: int) -> Annotated[list[int], Artifact("clean", tags=["customers"], metadata={"kind": "table"})]:
    log_metadata({"rows": rows, "kind": "list"}, artifact="clean")
    return list(range(rows))

@step(cache=False)
def again(rows: int) -> Annotated[list[int], Artifact("clean")]:
    return list(range(rows))

@step(retry=Retry(times=2, delay=0), cache=False)
def flaky(token: str) -> Annotated[int, Artifact("flaky")]:
    log_metadata({f"only{context.attempt}": 1, "last": context.attempt, "token": f"x {token}"}, artifact="flaky")
    log_metadata({"told": token}, model="churn")
    save_artifact({"attempt": context.attempt, "token": token}, "tried", tags=["t"], metadata={"token": token})
    if context.attempt == 1:
        raise ValueError("no")
    return context.attempt

@step(cache=False)
def children():
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            save_artifact(number, "child")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

@step(launch=Command([sys.executable, "spawn.py"], num_processes=2), cache=False)
def ranks() -> Annotated[int, Artifact("ranked")]:
    save_artifact(context.rank, "of rank")
    log_metadata({"rank": context.rank}, artifact="ranked")
    return 5

@step
def square(number: int) -> Annotated[int, Artifact("square", metadata={"a": 1})]:
    log_metadata({"number": number}, artifact="square")
    return number * number

@step
def pair(x: int) -> tuple[Annotated[int, Artifact("less")], Annotated[str, "more", Artifact("most")]]:
    log_metrics({"auc": 0.5 + x / 10})
    return x - 1, "m" * 9000

@step
def use(one: object, many: list, deep: dict) -> int:
    return repr((one, many, deep))

@pipeline(model=Model("churn", tags=["weekly"], metadata={"team": "growth"}, description="who leaves"))
def first(token: str = Secret.env("HF_TOKEN")):
    again.with_options(after=clean(4))(4)
    flaky(token)
    children()
    square.map([3, 4])
    pair(3)

@pipeline(model="churn")
def second():
    clean(4)
    pair(3)

@pipeline
def distributed():
    ranks()

@pipeline(model=Model("churn", "latest"))
def reading(version: object = artifact("clean"), other: str = "artifact:not-a-reference"):
    use(version, [artifact("clean", 1), artifact("flaky")], {"a": {"b": artifact("square", 1)}, "c": other})
    square.map(artifact("clean", "tag:customers"))

@pipeline(dynamic=True, model=Model("dyn", "1.0.0"))
def dynamic(data: list = artifact("clean")):
    for number in clean(2):
        square(number + 10)
    use(artifact("clean", 1), [], {})

@step(cache=False)
def slow() -> Annotated[int, Artifact("slow")]:
    log_metadata({"edition": EDITION}, artifact="slow")
    save_artifact(EDITION, "slowly")
    print("slow runs", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.02)
    return 1

@pipeline(model="slow")
def killed():
    slow()

@step
def large() -> Annotated[bytes, Artifact("large")]:
    return os.urandom(300_000)

@step(cache=False)
def needs(data: bytes, word: str) -> int:
    if word == "damage":
        from pathlib import Path
        for path in Path(os.environ["STOKER_HOME"]).glob("artifacts/objects/*/*"):
            if path.stat().st_size >= 300_000:
                path.unlink()
    return len(data) if word == "read" else 0

@pipeline
def losing():
    data = large()
    needs.with_options(after=needs(data, "damage"))(data, "read")

@pipeline
def wrong(what: str = ""):
    use(artifact(*what.split("@")), [], {})

class Box:
    def __init__(self, inside):
        self.inside = inside

@pipeline
def boxed():
    use(Box(artifact("clean")), [], {})

@step(cache=False)
def forging() -> Annotated[int, Artifact("forged")]:
    wire = {"d": "0" * 64, "s": "json", "t": "int", "n": 1}
    for odd in (
        5, None, [], {}, {"kind": "saved", "name": "x"}, {"kind": "saved", "name": "x", "wire": {"d": 5}},
        {"kind": "artifact", "name": "", "facts": {}}, {"kind": "model", "name": "x", "facts": [1]},
        {"kind": "saved", "name": "x", "output": "o", "wire": wire, "tags": ["a@b"]},
        {"kind": "saved", "name": "x", "output": "o", "wire": wire, "facts": {"": 1}},
    ):
        log_metadata({"_registry": odd})
    log_metadata({"lost": False}, artifact="nobody's")
    return 1

@pipeline
def forgery():
    forging()

@pipeline(model=Model("churn", "production"))
def unpromoted():
    clean(1)

if __name__ == "__main__":
    for name in os.environ.get("RUN", "").split():
        globals()[name]()
"""


class Place:
    """A lab with one kind of database."""

    def __init__(self, lab: Any, uri: str) -> None:
        self.lab = lab
        self.uri = uri
        lab.write("names.py", SCRIPT).write("spawn.py", SPAWN)
        if uri:
            lab.write("stoker.toml", f'stack = "s"\n[stacks.s]\ndatabase = "{uri}"\n')
        self.client = Client(store=open_store(uri, "", str(lab.home)))

    def run(self, names: str, *words: str, code: int = 0, **env: str) -> str:
        printed: str = self.lab.run("names.py", *words, code=code, env={"RUN": names, "HF_TOKEN": SECRET, **env})
        return printed

    def values(self, name: str) -> list[Any]:
        """The values of a name's versions, oldest first."""
        versions = self.client.artifact(name, "latest").versions[::-1]
        assert [one.version for one in versions] == list(range(1, len(versions) + 1))
        return [one.load() for one in versions]

    def newest(self, pipeline: str) -> Any:
        return self.client.runs(pipeline=pipeline, limit=1)[0]


@pytest.fixture(
    scope="module",
    params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.xdist_group("names"), pytest.mark.long])],
)
def place(request: Any, module_lab_of: Any) -> Iterator[Place]:
    """Two runs of pipelines with names, and one that repeats them from the cache. On a server each query is tried by
    `tests/store/test_registry.py`, too, and many drivers by `tests/reliability/test_names_storm.py`."""
    programs = postgres.binaries()
    if request.param == "sqlite":
        made = Place(module_lab_of("sqlite"), "")
    elif programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    else:
        made = Place(module_lab_of("postgresql"), request.getfixturevalue("server_uri"))
    made.run("first second")
    yield made
    made.client.store.close()


@pytest.fixture(scope="module")
def server_uri() -> Iterator[str]:
    """A PostgreSQL server of the module's own."""
    programs = postgres.binaries()
    assert programs is not None
    with postgres.running(programs) as uri:
        yield uri


def test_each_success_is_a_version(place: Place) -> None:
    client, run = place.client, place.newest("first")
    assert place.values("clean") == [[0, 1, 2, 3]] * 2, "clean() and again(); the cached clean() of second() is none"
    made = client.artifact("clean", 1)
    assert made.tags == ("customers",) and made.metadata == {"kind": "list", "rows": 4}
    assert made.producer.key == "clean" and made.run_id == run.id
    assert client.artifact("clean", 2).metadata == {} and client.artifact("clean", "tag:customers").version == 1
    assert place.values("square") in ([9, 16], [16, 9])
    by_key = {one.step: one.metadata for one in client.artifact("square", 1).versions}
    assert by_key == {"square[0]": {"a": 1, "number": 3}, "square[1]": {"a": 1, "number": 4}}
    assert place.values("less") == [2] and place.values("most") == ["m" * 9000]


def test_of_attempts_the_last_one_makes_the_version(place: Place) -> None:
    assert place.values("flaky") == [2]
    masked = "***env:HF_TOKEN***"
    flaky = place.client.artifact("flaky", 1)
    assert flaky.metadata == {"only2": 1, "last": 2, "token": f"x {masked}"}
    tried = place.client.artifact("tried", "latest").versions
    assert [one.metadata for one in tried] == [{"token": masked}] * 2 and tried[0].tags == ("t",)
    assert [one.load() for one in tried[::-1]] == [{"attempt": n, "token": SECRET} for n in (1, 2)], "values stay"
    assert tried[0].producer.key == "flaky"
    assert sorted(place.values("child")) == [0, 1, 2], "a process that the step forks saves, too"


def test_no_row_has_a_secret(place: Place) -> None:
    database = place.client.store.records.database
    for table in ("artifacts", "facts", "marks", "model_versions", "metrics", "events"):
        assert SECRET not in repr(database.rows(f"SELECT * FROM {table}")), table
    assert place.client.model("churn", 1).metadata["told"] == "***env:HF_TOKEN***"


def test_each_run_makes_a_version_of_its_model(place: Place) -> None:
    second, first = place.client.model("churn").versions
    assert (first.version, second.version) == (1, 2) and first.run_id == place.newest("first").id
    assert first.description == "who leaves" and first.tags == ("weekly",) and first.metadata["team"] == "growth"
    names = {"clean": 2, "flaky": 1, "square": 2, "less": 1, "most": 1, "tried": 2, "child": 3}
    assert {name: one.version for name, one in first.artifacts.items()} == names
    assert {name: one.version for name, one in second.artifacts.items()} == {"clean": 2, "less": 1, "most": 1}
    assert first.metrics["auc"] == 0.8 and first.load("most") == "m" * 9000


def test_inputs_by_name(place: Place) -> None:
    """Also in lists, in dicts and mapped; recorded in the plan and as uses; the cache goes by their content."""
    client = place.client
    place.run("reading")
    run = place.newest("reading")
    used = "([0, 1, 2, 3], [[0, 1, 2, 3], 2], {'a': {'b': 9}, 'c': 'artifact:not-a-reference'})"
    if client.artifact("square", 1).load() == 16:
        used = used.replace("9", "16")
    assert run.steps["use"].load() == used
    assert [element.load() for element in run.steps["square"]] == [0, 1, 4, 9]
    uses = {(row.key, row.parameter, row.name, row.version) for row in client.store.registry.uses_of_run(run.id)}
    assert uses == {
        ("use", "one", "clean", 2),
        ("use", "many", "clean", 1),
        ("use", "many", "flaky", 1),
        ("use", "deep", "square", 1),
        ("square", "number", "clean", 1),
    }
    assert '"named"' in client.store.records.plan(run.id) and run.parameters["version"] == "artifact:clean@latest"
    assert [use.run_id for use in client.artifact("flaky", 1).users if use.by_name] == [run.id]
    assert client.model("churn", 2).artifacts["square"].version == len(place.values("square"))
    assert run.id in client.model("churn", 2).run_ids
    place.lab.run("stoker", "run", "names.py:reading", "--version", "artifact:clean@1", env={"HF_TOKEN": SECRET})
    assert place.newest("reading").steps["use"].status == "cached", "version 1 has the content of version 2"


def test_a_dynamic_pipeline(place: Place) -> None:
    before = len(place.values("square"))
    place.run("dynamic")
    run = place.newest("dynamic")
    assert sorted(place.values("square")[before:]) == [100, 121]
    model = place.client.model("dyn", "1.0.0")
    assert (model.version, model.run_id) == (1, run.id) and set(model.artifacts) == {"clean", "square"}
    uses = {(row.key, row.name, row.version) for row in place.client.store.registry.uses_of_run(run.id)}
    assert ("use", "clean", 1) in uses
    place.run("dynamic")
    assert place.client.model("dyn").version == 1, "the label names one version"
    assert len(place.client.model("dyn").run_ids) == 2


def test_what_is_not_there_is_refused_before_anything_runs(place: Place) -> None:
    words = ["stoker", "run", "names.py:wrong", "--what", "claen@latest"]
    printed = place.lab.run(*words, code=None, env={"HF_TOKEN": SECRET})
    assert "there is no artifact 'claen', did you mean 'clean'" in printed and "Traceback" not in printed
    assert not place.client.runs(pipeline="wrong", limit=None)


def test_a_stage_that_nobody_holds_is_refused(place: Place) -> None:
    printed = place.run("unpromoted", code=2)
    assert "model 'churn' has no version 'production'" in printed
    assert not place.client.runs(pipeline="unpromoted")


def test_a_reference_inside_of_a_value_is_refused(place: Place) -> None:
    assert "artifact:clean@latest is inside of a value" in place.run("boxed", code=2)
    assert not place.client.runs(pipeline="boxed")


def test_what_looks_like_a_registration_is_metadata(place: Place) -> None:
    place.run("forgery")
    assert place.values("forged") == [1] and not place.client.store.registry.has_artifact("x")
    kept = place.newest("forgery").steps["forging"].metadata
    assert kept["artifact:nobody's"] == {"lost": False}


def test_a_lost_artifact_that_is_computed_again(place: Place) -> None:
    place.run("losing")
    new, lost = place.client.artifact("large", "latest").versions
    assert (new.version, lost.version) == (2, 1) and new.digest != lost.digest and len(new.load()) == 300_000
    with pytest.raises(DamagedArtifact, match="is not in"):
        lost.load()
    assert place.newest("losing").steps["needs_2"].load() == 300_000


def test_a_driver_that_is_killed(place: Place) -> None:
    (place.lab.folder / "go").unlink(missing_ok=True)
    driver = place.lab.start("names.py", env={"RUN": "killed", "EDITION": "1", "HF_TOKEN": SECRET})
    driver.until_written("slow runs")
    driver.signal(signal.SIGKILL)
    driver.wait(-9)
    run = place.newest("killed")
    assert not place.client.store.registry.has_artifact("slow")
    (place.lab.folder / "go").touch()
    place.lab.run("stoker", "resume", run.id, env={"EDITION": "2", "HF_TOKEN": SECRET})
    assert place.values("slow") == [1] and place.client.artifact("slow", 1).metadata == {"edition": 2}
    assert place.values("slowly")[-1] == 2
    place.lab.run("stoker", "resume", run.id, env={"HF_TOKEN": SECRET})
    assert len(place.values("slow")) == 1 and place.client.model("slow").version == 1


def test_under_a_debugger_detached_and_on_ranks(place: Place) -> None:
    (place.lab.folder / "go").touch()
    count = len(place.client.artifact("slow", "latest").versions) if place.client.artifacts("slow") else 0
    place.run("killed", "--debug", EDITION="7")
    assert place.client.artifact("slow", count + 1).metadata == {"edition": 7}
    place.run("killed", "--detach", EDITION="8")
    run = place.newest("killed")
    patience = time.monotonic() + 120
    while place.client.run(run.id).status == "running" and time.monotonic() < patience:
        time.sleep(0.05)
    assert place.client.artifact("slow", count + 2).metadata == {"edition": 8}
    assert place.client.artifact("slow", count + 2).run_id == run.id
    if place.uri:
        return  # ranks do not know of databases
    place.run("distributed")
    assert place.values("of rank") == [0] and place.client.artifact("ranked", 1).metadata == {"rank": 0}


FLOW = """
from stoker import log_metadata, save_artifact
from stoker.flow import FlowSpec, step

class Naming(FlowSpec):
    @step
    def start(self):
        self.numbers = [1, 2]
        self.next(self.each, foreach="numbers")

    @step
    def each(self):
        save_artifact(self.input, "of flow", metadata={"number": self.input})
        self.next(self.join)

    @step
    def join(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        log_metadata({"last": True}, artifact="of flow")

if __name__ == "__main__":
    Naming()
"""


def test_the_class_form(place: Place) -> None:
    place.lab.write("naming.py", FLOW).run("naming.py", "run")
    assert sorted(place.values("of flow")) == [1, 2]
    last, first = place.client.artifact("of flow", "latest").versions
    assert last.metadata == {"number": last.load(), "last": True} and first.metadata == {"number": first.load()}
    assert first.producer.name == "each"


NOWHERE = """
from stoker import log_metadata, save_artifact, load_artifact

made = save_artifact([1], "outside", tags=["t"])
assert made.version == 1 and load_artifact("outside", "tag:t") == [1]
log_metadata({"a": 1}, artifact="outside")
log_metadata({"b": 2}, artifact="outside", version=1)
assert made.metadata == {"a": 1, "b": 2}
"""


def test_outside_of_steps(place: Place) -> None:
    place.lab.write("nowhere.py", NOWHERE).run("nowhere.py")
    made = place.client.artifact("outside", 1)
    assert made.run_id == "" and made.producer is None and made.inputs == {} and made.users == []
