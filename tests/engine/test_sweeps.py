"""A sweep tries a step with different parameters: which, how many, which of them ends early, and what is the best."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from stoker.core.errors import StokerError
from stoker.core.plan import Capacity
from stoker.core.status import STOPPED, USER_ERROR
from stoker.core.sweep import between
from stoker.engine import events as ev
from stoker.engine.machine import Machine

SEARCH = """
import os
import signal
from pathlib import Path
from typing import Annotated

from stoker import ASHA, between, log_metrics, pipeline, step, sweep
from stoker.config import ResourceSettings


def note(text):
    descriptor = os.open("ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (text + chr(10)).encode())
    os.close(descriptor)


@step
def data() -> float:
    return 0.25


@step
def train(x: float, offset: float, kind: str = "a") -> Annotated[str, "model"]:
    note(f"begins {x}")
    log_metrics({"loss": (x - offset) ** 2 + (kind == "b")}, step=1)
    note(f"ended {x}")
    return f"model of {x}"


@step
def use(model: str, params: dict, value: float, trials: list) -> list:
    return [model, params, value, [one["status"] for one in trials]]


@pipeline
def tpe(trials: int = 14):
    space = {"x": between(-2.0, 2.0), "kind": ["a", "b"]}
    found = sweep(train, space=space, given={"offset": data()}, method="tpe", metric="loss", trials=trials, parallel=1)
    use(found.best, found.params, found.value, found.trials)


@pipeline
def drawn(trials: int = 12):
    space = {"x": between(-2.0, 2.0)}
    found = sweep(train, space=space, given={"offset": data()}, metric="loss", trials=trials, parallel=3, seed=5)
    use(found.best, found.params, found.value, found.trials)


@step
def thirds(x: int) -> float:
    if x % 3 == 0:
        raise ValueError(f"{x} is a multiple of three" if os.environ.get("MENDED") != "yes" else "")
    return float(-x) if x < 7 else float("nan")


@step
def mended(x: int) -> float:
    if x % 3 == 0 and not Path("mended").exists():
        raise ValueError("a multiple of three")
    return float(x)


@pipeline
def failing():
    found = sweep(thirds, space={"x": between(0, 7)}, method="grid", goal="minimize")
    use("", found.params, found.best, found.trials)


@pipeline
def strict():
    sweep(mended, space={"x": between(0, 9)}, method="grid", max_failures=1, parallel=1)


@step(resources=ResourceSettings(gpu_count=1), cache=False)
def held(x: int) -> Annotated[int, "model"]:
    for number in range(1, 9):
        log_metrics({"loss": float(x)}, step=number)
    while x:  # until it is ended
        signal.pause()
    return x


@pipeline
def halved():
    stop = ASHA(min_steps=2, factor=2)
    found = sweep(held, space={"x": [0, 3, 2, 1]}, method="grid", metric="loss", early_stop=stop, parallel=2)
    use("", found.params, found.value, found.trials)


@step(resources=ResourceSettings(gpu_count=1))
def costly(x: int) -> int:
    return x


@pipeline
def poor():
    sweep(costly, space={"x": between(1, 9)}, method="grid", budget="0.0000001 device hours", parallel=2)


@pipeline
def unpriced():
    sweep(costly, space={"x": between(1, 9)}, budget="50 USD")


@pipeline
def uncounted():
    sweep(mended, space={"x": between(1, 9)}, budget="5 device hours")


@pipeline
def plain():
    data()


@pipeline(dynamic=True)
def asked():
    found = sweep(mended, space={"x": [4, 2, 5]}, method="grid")
    print("the best is", found.params.result(), found.value.result(), found.best.result())

"""


def table(run: Any, key: str = "train") -> list[dict[str, Any]]:
    """The trials of a sweep, as its output has them."""
    return run.steps[key].outputs["trials"].load()  # type: ignore[no-any-return]


@pytest.fixture
def search(lab: Any) -> Any:
    return lab.write("search.py", SEARCH)


def test_tpe_finds_what_optuna_finds_alone(search: Any) -> None:
    optuna = pytest.importorskip("optuna")
    search.run("stoker", "run", "search.py:tpe")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))

    def objective(trial: Any) -> float:
        x, kind = trial.suggest_float("x", -2.0, 2.0), trial.suggest_categorical("kind", ["a", "b"])
        return float((x - 0.25) ** 2 + (kind == "b"))

    study.optimize(objective, n_trials=14)
    run = search["tpe"]
    assert [one["params"] for one in table(run)] == [trial.params for trial in study.trials]
    assert [one["value"] for one in table(run)] == [trial.value for trial in study.trials]
    model, params, value, statuses = run.steps["use"].load()
    assert (params, value) == (study.best_params, study.best_value)
    assert model == f"model of {params['x']}" and statuses == ["succeeded"] * 14


def test_the_same_seed_has_the_same_trials_and_more_of_them_compute_the_new_ones(search: Any) -> None:
    search.run("stoker", "run", "search.py:drawn")
    first = table(search["drawn"])
    search.run("stoker", "run", "search.py:drawn", "--trials", "15")
    run = search["drawn"]
    assert [one["params"] for one in table(run)[:12]] == [one["params"] for one in first]
    assert [one["value"] for one in table(run)[:12]] == [one["value"] for one in first], "also of cached ones"
    assert [one.status for one in run.steps["train"]] == ["cached"] * 12 + ["succeeded"] * 3
    assert len({one["params"]["x"] for one in table(run)}) == 15
    given = json.loads(search.run("stoker", "metrics", run.id, "train", "--json"))
    assert given["train[3]"]["given"] == {"x": first[3]["params"]["x"]}


def test_trials_that_fail_are_counted_and_the_best_is_among_the_others(search: Any) -> None:
    said = search.run("stoker", "run", "search.py:failing")
    run = search["failing"]
    assert [one["value"] for one in table(run, "thirds")] == [None, -1, -2, None, -4, -5, None, None]
    assert run.steps["use"].load()[1:3] == [{"x": 5}, -5.0]
    assert "best of 8 trials (4 failed) is thirds[5]: output -5 with x=5" in said
    assert run.steps["thirds"].status == "succeeded" and run.status == "succeeded"
    assert run.steps["thirds"][7].message == "its output, which the sweep compares, is nan"


def test_too_many_failures_end_a_sweep_and_resume_tries_them_again(search: Any) -> None:
    said = search.run("stoker", "run", "search.py:strict", code=1)
    run = search["strict"]
    assert "2 of 4 trials failed, and max_failures is 1" in said
    assert [one.status for one in run.steps["mended"]] == ["failed", "succeeded", "succeeded", "failed"]
    (search.folder / "mended").touch()
    search.run("stoker", "resume", run.id)
    run = run.refresh()
    assert [one["status"] for one in table(run, "mended")] == ["succeeded"] * 10
    assert [one.attempt_count for one in run.steps["mended"]] == [2, 1, 1, 2] + [1] * 6


def test_a_trial_that_does_badly_ends_and_gives_its_device_back(search: Any) -> None:
    """All but the best never end by themselves, and one device is there for all."""
    search.run("stoker", "run", "search.py:halved", "--simulate", "1xH100-80GB")
    run = search["halved"]
    assert [one.status for one in run.steps["held"]] == ["succeeded", "stopped", "stopped", "stopped"]
    stopped = run.steps["held"][1]
    assert (stopped.cause, stopped.message) == (STOPPED, "its sweep ended it early: other trials do better")
    assert run.steps["use"].load()[1:] == [{"x": 0}, 0.0, ["succeeded", "stopped", "stopped", "stopped"]]
    assert "3 stopped, 1 succeeded" in search.run("stoker", "show", run.id)


def test_a_budget_begins_no_trial_that_would_pass_it(search: Any) -> None:
    search.run("stoker", "run", "search.py:poor", "--simulate", "1xH100-80GB")
    assert [one["params"] for one in table(search["poor"], "costly")] == [{"x": 1}, {"x": 2}]
    said = search.run("stoker", "run", "search.py:unpriced", "--simulate", "1xH100-80GB", code=2)
    assert "nothing counts against budget='50 USD': what its machine costs is not known" in said
    said = search.run("stoker", "run", "search.py:uncounted", code=2)
    assert "nothing counts against budget='5 device hours': it asks for no device" in said


def test_the_best_trial_is_run_again_by_itself(search: Any) -> None:
    search.run("stoker", "run", "search.py:drawn")
    first = search["drawn"]
    best = first.steps["use"].load()
    search.run("stoker", "rerun", "best", "--no-cache")
    run = search["drawn"]
    assert run.id != first.id and [one.status for one in run.steps["train"]] == ["succeeded"]
    assert run.steps["use"].load() == [*best[:3], ["succeeded"]]
    said = search.run("stoker", "run", "search.py:asked")
    assert "the best is {'x': 2} 2.0 2.0" in said, "a dynamic pipeline reads what was found"
    assert "dynamic pipeline" in search.run("stoker", "rerun", "best", code=2)
    search.run("stoker", "run", "search.py:plain")
    assert "its pipeline calls no sweep" in search.run("stoker", "rerun", "latest", "--best", code=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (0, 2, 3))])
def test_a_killed_driver_loses_no_trial_and_makes_none_twice(search: Any, seed: int) -> None:
    pytest.importorskip("optuna")
    pipeline = "tpe" if seed % 2 else "drawn"
    moments = random.Random(seed)
    notes: Path = search.folder / "ran"
    kills = 0
    command = ["stoker", "run", f"search.py:{pipeline}"]
    while kills < 3:
        before = len(search.read("ran")) if notes.exists() else 0
        wanted = before + moments.randrange(9)
        driver = search.start(*command)

        def is_time(driver: Any = driver, wanted: int = wanted) -> bool:
            return driver.process.poll() is not None or len(search.read("ran")) >= wanted

        until(is_time)
        driver.process.send_signal(signal.SIGKILL)
        driver.process.wait()
        kills += 1
        runs = search.client.runs()
        if runs:  # else it was killed before the run had begun
            command = ["stoker", "resume", runs[0].id]
    driver = search.start(*command)
    driver.wait(None)
    (run,) = search.client.runs()
    assert run.status == "succeeded", driver.text()
    left = table(run)
    asked = [
        one.data["ask"]
        for one in search.client.store.records.step_events(run.id, "train", "sweep")
        if "ask" in one.data
    ]
    told = [
        one.data["tell"]
        for one in search.client.store.records.step_events(run.id, "train", "sweep")
        if "tell" in one.data
    ]
    assert asked == list(range(len(left))) and sorted(told) == asked
    ended = Counter(line for line in search.read("ran") if line.startswith("ended"))
    assert len(ended) == len(left), "all of them ran"
    notes.unlink()
    search.run("stoker", "run", f"search.py:{pipeline}", "--no-cache")
    assert table(search[pipeline]) == left, "as in a run that nobody killed"


WRONG: dict[str, dict[str, Any]] = {
    "method='bayes' is none of random, grid, tpe": {"method": "bayes"},
    "nothing ends it": {"trials": None},
    "trials=0 is not a whole number from 1": {"trials": 0},
    "a grid needs to know which values rate may have": {"method": "grid"},
    "has no option 'max_failure', did you mean 'max_failures'?": {"max_failure": 3},
    "the step has no parameter 'rat', did you mean 'rate'?": {"space": {"rat": [1.0]}},
    "rate takes float, got 'high' (str)": {"space": {"rate": ["high"]}},
    "only texts, numbers, booleans and None can be tried": {"space": {"rate": [(1, 2)]}},
    "goal='best'": {"goal": "best"},
    "budget='a lot' is not a budget": {"budget": "a lot"},
    "trials are compared while they run: early_stop=3": {"early_stop": 3},
    "space={} has no parameters": {"space": {}},
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_said_before_anything_runs(words: str) -> None:
    from stoker import pipeline, step, sweep

    @step
    def train(rate: float) -> float:
        return rate

    @pipeline
    def search() -> None:
        sweep(train, **{"space": {"rate": between(0.0, 1.0)}, "metric": "loss", "trials": 3, **WRONG[words]})

    with pytest.raises(StokerError) as caught:
        search.trace()
    assert words in str(caught.value) and "test_sweeps.py" in caught.value.where


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker import pipeline, step, sweep

    @step
    def train(rate: float) -> float:
        return rate

    @pipeline
    def search() -> None:
        sweep(train, space={"rate": between(0.0, 1.0)}, method="tpe", trials=3)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StokerError, match=r"stoker\[sweep\]"):
        search.trace()


@pytest.mark.parametrize(
    ("domain", "least", "most"),
    [
        (between(1, 6), 1, 6),
        (between(1, 64, log=True), 1, 64),
        (between(0.5, 2.0), 0.5, 2.0),
        (between(1e-5, 1e-1, log=True), 1e-5, 1e-1),
        (between(0, 9, step=3), 0, 9),
        (between(0.0, 0.9, step=0.3), 0.0, 0.9),
    ],
)
def test_both_ends_of_a_domain_belong_to_it(domain: Any, least: float, most: float) -> None:
    shares = [place / 4000 for place in range(4000)]
    values = [domain.at(share) for share in shares]
    assert values == sorted(values) and type(values[0]) is (int if domain.whole else float)
    assert values[0] == pytest.approx(least) and values[-1] == pytest.approx(most, rel=0.01)
    assert min(values) >= least and max(values) <= most + 1e-9
    if domain.grid() is not None:
        assert set(values) == set(domain.grid())
        assert set(Counter(values).values()) <= {4000 // len(domain.grid()), 4000 // len(domain.grid()) + 1}


def test_the_machine_ends_a_sweep_where_it_is_told_to() -> None:
    machine = Machine({"p": Capacity(cpus=8, memory=1000, slots=8)})

    def trial(index: int) -> ev.TaskSpec:
        return ev.TaskSpec(key=f"s[{index}]", parent="s", pool="p", cpus=1.0, trial=True)

    sweep = ev.TaskSpec(key="s", pool="p", fanout=True, trial=True)
    after = ev.TaskSpec(key="after", pool="p", cpus=1.0, requires=("s",))
    machine.handle(ev.Added(tasks=(sweep, after)), 0.0)
    machine.handle(ev.Closed(), 0.0)
    actions = machine.handle(ev.Expanded(key="s", tasks=[trial(index) for index in range(100)], limit=3), 0.0)
    assert actions == [ev.Prepare(key=f"s[{index}]") for index in range(3)]
    for index in range(2):
        assert machine.handle(ev.Prepared(key=f"s[{index}]"), 0.0) == [ev.Submit(key=f"s[{index}]", attempt=1)]
    assert machine.handle(ev.Curtailed(key="s", count=2), 0.0) == []
    assert machine.handle(ev.Curtailed(key="s", count=2), 0.0) == []
    (cancel,) = machine.handle(ev.Halted(key="s[0]", attempt=1), 0.0)
    assert isinstance(cancel, ev.Cancel) and cancel.cause == STOPPED
    (end,) = machine.handle(ev.Ended(key="s[0]", attempt=1, cause=STOPPED), 0.0)
    assert end == ev.RecordEnd(key="s[0]", status="stopped", cause=STOPPED)
    actions = machine.handle(ev.Ended(key="s[1]", attempt=1, cause=USER_ERROR), 0.0)
    ends = {action.key: action.status for action in actions if isinstance(action, ev.RecordEnd)}
    assert ends == {"s[1]": "failed", "s": "failed", "after": "skipped"}
    assert actions[-1] == ev.FinishRun(status="failed")
