"""Processes that save, tag, promote, link, delete, sweep and list by name at once, beside drivers, and are killed.

    python -m tests.reliability.names_storm --seed 1 --processes 20 --each 200 --drivers 10 --database postgresql

Each process writes down what it was told is done, and what it is about to delete. In the end every number was given
once, every value that was saved is there once and loads, and each promotion names the version that it displaced.
A PostgreSQL server is stopped, killed and cut off meanwhile. `make storm-names SEED=… N=…` does it on both databases.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from tests.servers import postgres

from stoker.client import Client
from stoker.core.errors import DatabaseUnreachable, NotFound, StokerError, UsageError
from stoker.store import check
from stoker.store.store import Store, open_store

PATIENCE: Final = 600.0
"""Seconds without anything done after which a storm counts as hanging."""
NAMES: Final = ("a", "b", "c%", "d'e")
MODELS: Final = ("m", "n")
STAGES: Final = ("staging", "production", "canary", "archived", "")
WEIGHTS: Final = {"save": 9, "tag": 3, "make": 3, "promote": 4, "link": 2, "log": 2, "delete": 3, "sweep": 1, "look": 2}
DRIVER: Final = """
import os
from typing import Annotated

from stoker import Artifact, context, log_metadata, pipeline, save_artifact, step

@step(cache=False)
def make(number: int) -> Annotated[str, Artifact("made", tags=["driver"])]:
    log_metadata({"run": context.run_id, "number": number}, artifact="made")
    return f"made {context.run_id} {number}"

@step(cache=False)
def first(values: list[str]) -> tuple[Annotated[str, Artifact("a")], Annotated[str, Artifact("b")]]:
    return f"a {context.run_id} " + "x" * 5000, f"b {context.run_id}"

@step(cache=False)
def second(value: str) -> tuple[Annotated[str, Artifact("made")], Annotated[str, Artifact("a")]]:
    log_metadata({"seen": context.run_id}, model="n")
    log_metadata({"b": context.run_id}, artifact="b")
    return f"second made {context.run_id}", f"second a {context.run_id}"

@pipeline(model="m")
def naming():
    second(first(make.map([1, 2, 3]))[0])

if __name__ == "__main__":
    naming()
"""


@attrs.frozen(kw_only=True)
class NamesStorm:
    """What a storm did, and what was wrong after it."""

    done: int
    """Acknowledged changes."""
    killed: int
    outages: int
    versions: int
    promotions: int
    problems: Sequence[str]


class _Actor:
    """One process of a storm: does things at random until it has done enough of them."""

    def __init__(self, store: Store, notes: Path, who: str) -> None:
        self._client = Client(store=store)
        self._registry = store.registry
        self._draw = random.Random(who)
        self._who = who
        self._count = 0
        self._notes = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(self._notes, b"\n")  # behind what the one before was killed in the middle of

    def act(self) -> None:
        """Do one thing, and write down that it is done; what another process was faster with is none."""
        self._count += 1
        what = self._draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        try:
            done: Mapping[str, Any] = getattr(self, f"_{what}")() or {}
        except (NotFound, UsageError):
            done = {}  # it was deleted meanwhile, or it has a stage, or belongs to a model
        except DatabaseUnreachable:
            time.sleep(0.05)
            return
        self._note({"did": what, **done})

    def _note(self, document: Mapping[str, Any]) -> None:
        os.write(self._notes, (json.dumps(document) + "\n").encode())

    def _save(self) -> Mapping[str, Any]:
        name, text = self._draw.choice(NAMES), f"{self._who} {self._count}"
        value = text + "x" * 5000 if self._draw.random() < 0.5 else text
        if self._draw.random() < 0.3:
            self._age(value)
        saved = self._client.save_artifact(value, name, tags=[text], metadata={"text": text})
        return {"name": name, "version": saved.version, "value": value}

    def _age(self, value: str) -> None:
        """Put the bytes that will be saved as rubbish of yesterday, which another process may sweep."""
        from stoker.store import artifacts

        blobs = self._client.store.blobs
        saved = artifacts.save(value, blobs)
        if saved.inline is None:
            with contextlib.suppress(FileNotFoundError):
                os.utime(blobs.path(saved.digest), (time.time() - 86400,) * 2)

    def _tag(self) -> None:
        one = self._client.artifact(self._draw.choice(NAMES), "latest")
        one.add_tags("best", self._who.partition(" ")[0], exclusive=True)

    def _make(self) -> Mapping[str, Any]:
        name = self._draw.choice(MODELS)
        label = f"{self._who}.{self._count}" if self._draw.random() < 0.5 else None
        made = self._client.create_model_version(name, label, metadata={"score": self._draw.random()})
        return {"model": name, "version": made.version}

    def _promote(self) -> Mapping[str, Any]:
        name, why = self._draw.choice(MODELS), f"{self._who} {self._count}"
        one = self._draw.choice(self._client.model(name).versions[:5])
        stage = self._draw.choice(STAGES)
        changed = one.stage != stage
        one.promote(stage, why=why)
        return {"model": name, "why": why if changed else "", "place": [one.version, stage]}

    def _link(self) -> None:
        model = self._client.model(self._draw.choice(MODELS))
        model.link(self._client.artifact(self._draw.choice(NAMES), "latest"))

    def _log(self) -> None:
        facts = dict.fromkeys(self._draw.sample("abcde", 3), self._count)
        if self._draw.random() < 0.5:
            self._client.artifact(self._draw.choice(NAMES), "latest").log_metadata(facts)
        else:
            self._registry.set_facts("run", "storm", 0, facts)

    def _delete(self) -> None:
        if self._draw.random() < 0.3:
            model = self._draw.choice(self._client.model(self._draw.choice(MODELS)).versions)
            self._note({"deletes": [model.name, model.version], "kind": "model"})
            model.delete()
            return
        one = self._draw.choice(self._client.artifact(self._draw.choice((*NAMES, "made")), "latest").versions)
        self._note({"deletes": [one.name, one.version], "digest": one.digest, "kind": "artifact"})
        one.delete()

    def _sweep(self) -> None:
        check.sweep(self._client.store)

    def _look(self) -> None:
        for one in self._client.artifacts(self._draw.choice(("", "a", "%"))):
            assert one.version >= 1 and one.versions is not None
        for model in self._client.models(stage=self._draw.choice((None, *STAGES[:2]))):
            assert len(model.artifacts) <= len(NAMES) + 1


def act(folder: Path, uri: str, number: int, life: int, each: int) -> int:
    """What one process does; what may not be is written into a file."""
    notes = folder / f"notes-{number}"
    try:
        actor = _Actor(open_store(uri, "", str(folder / "home")), notes, f"{number}.{life}")
        while len(notes_in(notes)) < each:
            for _ in range(5):
                actor.act()
    except DatabaseUnreachable:
        return 4  # at its start
    except Exception as error:
        import traceback

        (folder / f"wrong-{number}-{life}").write_text(f"{error!r}\n{traceback.format_exc()}")
        return 1
    return 0


def notes_in(path: Path) -> list[dict[str, Any]]:
    """What a process wrote down, without what it was killed in the middle of."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


class _Children:
    """The processes of a storm; one that ends before it has done enough is started again."""

    def __init__(self, folder: Path, uri: str, *, processes: int, each: int, drivers: int) -> None:
        self._folder = folder
        self._uri = uri
        self._each = each
        self._lives: collections.Counter[int] = collections.Counter()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._processes = processes
        self._drivers_left = drivers
        self._driver: subprocess.Popen[bytes] | None = None
        self.killed = 0

    def turn(self) -> bool:
        """Start what is to run; whether anything does."""
        for number in range(self._processes):
            process = self._running.get(number)
            if process is not None and process.poll() is None:
                continue
            self._running.pop(number, None)
            if self.done(number) < self._each and not list(self._folder.glob(f"wrong-{number}-*")):
                self._running[number] = self._start(number)
        if self._driver is not None and self._driver.poll() is not None:
            self._driver = None
        if self._driver is None and self._drivers_left:
            self._drivers_left -= 1
            self._driver = _run(self._folder, ["naming.py"])
        return bool(self._running or self._driver)

    def done(self, number: int) -> int:
        """How many things a process has done."""
        path = self._folder / f"notes-{number}"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def kill(self, draw: random.Random) -> None:
        """End one of them, a driver too, wherever it stands."""
        living = [*self._running.values(), *([] if self._driver is None else [self._driver])]
        if living:
            process = draw.choice(living)
            process.kill()
            process.wait()
            self.killed += 1

    def close(self) -> None:
        for process in (*self._running.values(), *([] if self._driver is None else [self._driver])):
            process.kill()
            process.wait()

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self._lives[number] += 1
        words = [self._folder, self._uri, number, self._lives[number], self._each]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.names_storm", "--act", *map(str, words)],
            env=_environment(self._folder),
        )


def _environment(folder: Path) -> dict[str, str]:
    repository = str(Path(__file__).parents[2])
    return {**os.environ, "STOKER_HOME": str(folder / "home"), "PYTHONPATH": repository}


def _run(folder: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=_environment(folder), stdout=output, stderr=subprocess.STDOUT
        )


def storm(
    folder: Path,
    *,
    seed: int,
    processes: int,
    each: int,
    kills: int,
    drivers: int,
    server: postgres.Server | None = None,
    outages: int = 0,
) -> NamesStorm:
    """Let processes do so many things each, kill some, and stop the server; all at moments that `seed` draws: when so
    many things are done."""
    draw = random.Random(seed)
    uri = "" if server is None else server.uri
    (folder / "naming.py").write_text(DRIVER)
    if uri:
        (folder / "stoker.toml").write_text(f'stack = "s"\n[stacks.s]\ndatabase = "{uri}"\n')
    open_store(uri, "", str(folder / "home")).close()
    total = processes * each
    moments = sorted(
        [(draw.uniform(0.05, 0.9) * total, "kill") for _ in range(kills)]
        + [(draw.uniform(0.1, 0.9) * total, "outage") for _ in range(outages if server is not None else 0)]
    )
    children = _Children(folder, uri, processes=processes, each=each, drivers=drivers)
    done, changed = 0, time.monotonic()
    try:
        while children.turn():
            now = sum(map(children.done, range(processes)))
            if now != done:
                done, changed = now, time.monotonic()
            if time.monotonic() - changed > PATIENCE:
                raise RuntimeError(f"nothing was done for {PATIENCE:.0f} s: {folder}")
            while moments and moments[0][0] <= done:
                if moments.pop(0)[1] == "kill":
                    children.kill(draw)
                elif server is not None:
                    _outage(server, draw)
            time.sleep(0.02)
    finally:
        children.close()
    store = open_store(uri, "", str(folder / "home"))
    try:
        problems = [path.read_text() for path in folder.glob("wrong-*")]
        problems += _finish(store, folder)
        problems += wrong(store, [note for path in folder.glob("notes-*") for note in notes_in(path)])
        return NamesStorm(
            done=done,
            killed=children.killed,
            outages=outages if server is not None else 0,
            versions=len(store.registry.all_artifacts()),
            promotions=sum(len(store.registry.promotions(name)) for name in MODELS),
            problems=problems,
        )
    finally:
        store.close()


def _outage(server: postgres.Server, draw: random.Random) -> None:
    import psycopg

    how = draw.choice(("terminated", "immediate", "fast"))
    if how == "terminated":
        with psycopg.connect(server.uri, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        return
    server.stop(how)
    server.start()


def _finish(store: Store, folder: Path) -> Iterator[str]:
    """Resume the runs whose drivers were killed; what is wrong with runs."""
    for run in Client(store=store).runs(limit=None):
        if run.status != "succeeded":
            _run(folder, ["-m", "stoker", "resume", run.id]).wait(PATIENCE)
        if run.refresh().status != "succeeded":
            yield f"run {run.id} is {run.status}: {run.error}"
    output = folder / "output"
    text = output.read_text(errors="replace") if output.exists() else ""
    if "deadlock" in text or ("Traceback" in text and "DatabaseUnreachable" not in text):
        yield f"drivers wrote: {text[-3000:]}"


def wrong(store: Store, notes: Sequence[Mapping[str, Any]]) -> list[str]:
    """What may not be in a store after a storm whose processes wrote these notes."""
    return [
        *_wrong_versions(store, notes),
        *_wrong_rests(store),
        *_wrong_runs(store, notes),
        *_wrong_models(store, notes),
    ]


def _wrong_versions(store: Store, notes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = {(row.name, row.version): row for row in store.registry.all_artifacts()}
    deleted = {tuple(note["deletes"]) for note in notes if note.get("kind") == "artifact"}
    told: dict[tuple[str, int], str] = {}
    for note in notes:
        if note.get("did") == "save" and note:
            place = note["name"], note["version"]
            if place in told:
                yield f"the number {place} was given twice: {told[place][:30]!r} and {note['value'][:30]!r}"
            told[place] = note["value"]
            if place not in rows and place not in deleted:
                yield f"{place} was saved and is gone: {note['value'][:30]!r}"
    for digest, count in collections.Counter(row.artifact.digest for row in rows.values()).items():
        if count > 1:
            yield f"{digest} is there {count} times"
    client = Client(store=store)
    for place, row in rows.items():
        one = client.artifact(*place)
        try:
            value = one.load()
        except StokerError as error:
            yield f"{place} does not load: {error}"
            continue
        if place in told and told[place] != value:
            yield f"{place} is {value[:30]!r} and was saved as {told[place][:30]!r}"
        if not row.run_id and one.metadata.get("text") not in (value.rstrip("x"), None):
            yield f"{place} has the metadata of another version: {one.metadata}"
        if not row.run_id and value.rstrip("x") not in one.tags:
            yield f"{place} has lost its tag: {one.tags}"


def _wrong_rests(store: Store) -> Iterator[str]:
    """What is left of versions that were deleted, and tags that are not exclusive any more."""
    rows = {(row.name, row.version) for row in store.registry.all_artifacts()}
    client = Client(store=store)
    best = collections.Counter(name for name, version in rows if "best" in client.artifact(name, version).tags)
    yield from (f"{count} versions of {name} have an exclusive tag" for name, count in best.items() if count > 1)
    for table in ("marks WHERE kind = 'artifact'", "facts WHERE kind = 'artifact'", "model_parts"):
        for name, version in store.records.database.rows(f"SELECT name, version FROM {table}"):
            if (name, version) not in rows:
                yield f"{name}@{version} is gone and is in {table}"


def _wrong_runs(store: Store, notes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    deleted = {note["digest"] for note in notes if note.get("kind") == "artifact"}
    for run in store.records.runs(_all_runs()):
        made = {(row.key, row.artifact.digest) for row in store.registry.named_in(run.id)}
        for output in store.records.all_outputs():
            place = output.key, output.artifact.digest
            parent = output.key == "make"  # the list of the elements' results
            if output.run_id == run.id and not parent and place not in made and place[1] not in deleted:
                yield f"run {run.id} has {output.key}.{output.name}, and no version of it"


def _all_runs() -> Any:
    from stoker.store.records import RunFilter

    return RunFilter(limit=10_000)


def _wrong_models(store: Store, notes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    told = [(note["model"], note["why"], note["place"]) for note in notes if note.get("why")]
    deleted = {tuple(note["deletes"]) for note in notes if note.get("kind") == "model"}
    numbers = collections.Counter(
        (note["model"], note["version"]) for note in notes if note.get("did") == "make" and "model" in note
    )
    yield from (f"the number {place} was given twice" for place, count in numbers.items() if count > 1)
    for name in MODELS:
        versions = {row.version: row.stage for row in store.registry.model_versions(name)}
        for _, version in (place for place in numbers if place[0] == name):
            if version not in versions and (name, version) not in deleted:
                yield f"model {name} version {version} was made and is gone"
        stages: dict[int, str] = {}
        history = store.registry.promotions(name)[::-1]
        if [row.number for row in history] != list(range(1, len(history) + 1)):
            yield f"the promotions of {name} have the numbers {[row.number for row in history]}"
        for row in history:
            if stages.get(row.version, "") != row.before:
                yield f"{name}: {row} follows a stage {stages.get(row.version)!r}"
            held = [version for version, stage in stages.items() if stage == row.stage] if row.displaced else []
            if held != [row.displaced] * bool(row.displaced):
                yield f"{name}: {row} displaced {held}"
            if row.displaced:
                stages[row.displaced] = "archived"
            elif row.stage not in ("", "archived") and row.stage in stages.values():
                yield f"{name}: {row} displaced nothing"
            stages[row.version] = row.stage
        for version, stage in versions.items():
            if stages.get(version, "") != stage:
                yield f"{name}@{version} is in {stage!r}, and its history says {stages.get(version)!r}"
        kept = collections.Counter(row.reason for row in history)
        yield from (f"{name}: {reason} was recorded {count} times" for reason, count in kept.items() if count > 1)
        # Another one may have done the same just before, or displaced it.
        moved = [[row.version, row.stage] for row in history] + [[row.displaced, "archived"] for row in history]
        for model, why, place in told:
            if model == name and why not in kept and place not in moved:
                yield f"{name}: the promotion {why!r} to {place} was done and is not recorded"


def main() -> int:
    """Run storms as the command line asks, and print what they came to."""
    if sys.argv[1:2] == ["--act"]:
        folder, uri, number, life, each = sys.argv[2:]
        return act(Path(folder), uri, int(number), int(life), int(each))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--each", type=int, default=150)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--drivers", type=int, default=10)
    parser.add_argument("--outages", type=int, default=8)
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("seed", "processes", "each", "kills", "drivers", "outages")}
    bad = 0
    for kind in ("sqlite", "postgresql") if options.database == "both" else (options.database,):
        programs = postgres.binaries()
        if kind == "postgresql" and programs is None:
            print("no PostgreSQL server is installed (Debian: apt-get install postgresql)", file=sys.stderr)
            return 2
        server = None if kind == "sqlite" or programs is None else postgres.Server(programs, connections=200)
        with tempfile.TemporaryDirectory(prefix="storm-") as folder:
            began = time.monotonic()
            try:
                if server is not None:
                    server.start()
                result = storm(Path(folder), server=server, **given)
            finally:
                if server is not None:
                    server.kill()
        counts = {**attrs.asdict(result), "problems": len(result.problems)}
        print(json.dumps({"database": kind, "seconds": round(time.monotonic() - began), **counts}), flush=True)
        print("\n".join(result.problems), flush=True)
        bad += bool(result.problems)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
