"""The sweeps of one run: which parameters a trial gets, which trials end early, when there are enough, which is best.

What a sweep decides and hears is an event of the run, recorded with whatever follows from it: a later session reads
them in their order and goes on. Optuna is imported where a sweep asks for a sampler of its.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any, Callable, Final, Iterable, Mapping, Protocol

import attrs

from stoker.core.artifact import from_wire
from stoker.core.errors import MissingPackage
from stoker.core.metrics import Row
from stoker.core.plan import StepPlan
from stoker.core.status import STEP_GOOD, StepStatus
from stoker.core.sweep import PARAMS, SWEEP_EVENT, TRIALS, VALUE, Plain, SweepPlan
from stoker.core.values import define, frozen
from stoker.core.words import count_text
from stoker.engine import clock
from stoker.engine.inputs import StepBindings, Wire
from stoker.engine.recorder import Recorder
from stoker.store import artifacts

Params = Mapping[str, Plain]
_COUNTED: Final = frozenset({"succeeded", "cached", "failed", "stopped"})
"""Statuses in which a trial has ended for good; one that was cancelled or skipped is tried again on resume."""
_NUMBERS: Final = frozenset({"json"})
"""Serializers of which the driver reads an output that is the metric: it runs no code of a user's."""
_HOUR: Final = 3600.0


class Sampler(Protocol):
    """Chooses the parameters of trials, which come in order, from those that have ended."""

    def ask(self, number: int, recorded: Params | None) -> Params:
        """The parameters of a trial; those that an earlier session recorded stay what they are."""

    def tell(self, number: int, status: str, value: float | None, reached: tuple[int, float] | None) -> None:
        """How a trial ended; `reached` is the last step at which it was compared, and its value there."""


class GridSampler:
    """Every combination in order, the last parameter fastest."""

    def __init__(self, sweep: SweepPlan) -> None:
        self._names = list(sweep.space)
        self._rows = list(
            itertools.islice(itertools.product(*(domain.grid() or () for domain in sweep.space.values())), sweep.trials)
        )

    def ask(self, number: int, recorded: Params | None) -> Params:
        """The combination of that number."""
        return recorded or dict(zip(self._names, self._rows[number]))

    def tell(self, number: int, status: str, value: float | None, reached: tuple[int, float] | None) -> None:
        """Nothing follows."""


class RandomSampler:
    """Each trial's parameters follow from the seed and its number alone."""

    def __init__(self, sweep: SweepPlan) -> None:
        self._sweep = sweep

    def ask(self, number: int, recorded: Params | None) -> Params:
        """Parameters drawn for that number."""
        draw = random.Random(f"{self._sweep.seed}/{number}")
        return recorded or {name: domain.at(draw.random()) for name, domain in self._sweep.space.items()}

    def tell(self, number: int, status: str, value: float | None, reached: tuple[int, float] | None) -> None:
        """Nothing follows."""


class TPESampler:
    """Optuna's tree-structured Parzen estimator; it is told in later sessions what it was told before."""

    def __init__(self, sweep: SweepPlan) -> None:
        try:
            import optuna
        except ModuleNotFoundError as error:
            raise MissingPackage(
                'method="tpe" needs Optuna, which is not installed', fix='pip install "stoker[sweep]"'
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = optuna.trial.TrialState
        sampler = optuna.samplers.TPESampler(seed=sweep.seed)
        self._study = optuna.create_study(sampler=sampler, direction=sweep.goal)
        kinds = optuna.distributions
        self._space: dict[str, Any] = {}
        for name, domain in sweep.space.items():
            if domain.values:
                self._space[name] = kinds.CategoricalDistribution(domain.values)
            elif domain.whole:
                low, high, step = int(domain.low), int(domain.high), int(domain.step or 1)
                self._space[name] = kinds.IntDistribution(low, high, log=domain.log, step=step)
            else:
                self._space[name] = kinds.FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
        self._trials: dict[int, Any] = {}

    def ask(self, number: int, recorded: Params | None) -> Params:
        """What the study says."""
        trial = self._study.ask(self._space)
        if recorded is not None and trial.params != recorded:  # a trial again, or another version of Optuna
            self._study.tell(trial, state=self._states.FAIL)
            self._study.enqueue_trial(dict(recorded))
            trial = self._study.ask(self._space)
        self._trials[number] = trial
        return dict(trial.params)

    def tell(self, number: int, status: str, value: float | None, reached: tuple[int, float] | None) -> None:
        """Tell the study."""
        trial = self._trials[number]
        if value is not None:
            self._study.tell(trial, value)
        elif status == "stopped" and reached is not None:
            trial.report(reached[1], reached[0])
            self._study.tell(trial, state=self._states.PRUNED)
        else:
            self._study.tell(trial, state=self._states.FAIL)


SAMPLERS: Final[Mapping[str, Callable[[SweepPlan], Sampler]]] = {
    "grid": GridSampler,
    "random": RandomSampler,
    "tpe": TPESampler,
}


@frozen(kw_only=True)
class TrialEnd:
    """How a trial ended."""

    status: StepStatus
    value: float | None
    """Its metric; None where it did not succeed."""
    cost: float
    """What its attempts cost, in the unit of the budget."""


@define(kw_only=True)
class OpenTrial:
    """A trial that has not ended."""

    attempt: int = 0
    rank: int = 0
    """The lowest rank that logged the metric."""
    value: float | None = None
    """What its attempt logged last under the metric; None for nothing."""
    began: float | None = None
    """When its attempt was submitted; None where none is on its way."""
    cost: float = 0.0
    """What its earlier attempts cost."""


class SweepState:
    """One sweep: what it decided and heard. Its steps are in the order of the events of its record."""

    def __init__(self, step: StepPlan, sweep: SweepPlan) -> None:
        self.step = step
        self.sweep = sweep
        self.sampler = SAMPLERS[sweep.method](sweep)
        self.asked: list[Params] = []
        self.ended: dict[int, TrialEnd] = {}
        # Trials that have not ended.
        self.trials: dict[int, OpenTrial] = {}
        # Steps at which trials are compared → trial → its value there.
        self.rungs: dict[int, dict[int, float]] = {}
        self.halted: set[int] = set()
        # Whether nothing more is tried, and why it fails, whatever its trials do.
        self.over = False
        self.problem = ""

    # What the events say

    def ask(self, recorded: Params | None = None) -> Params:
        """Begin the next trial."""
        params = self.sampler.ask(len(self.asked), recorded)
        self.trials[len(self.asked)] = OpenTrial()
        self.asked.append(params)
        return params

    def end(self, index: int, ended: TrialEnd) -> None:
        """End a trial."""
        self.trials.pop(index, None)
        self.ended[index] = ended
        reached = [(steps, values[index]) for steps, values in sorted(self.rungs.items()) if index in values]
        self.sampler.tell(index, ended.status, ended.value, reached[-1] if reached else None)

    def try_again(self, indices: Iterable[int]) -> None:
        """Begin trials again that have failed."""
        for index in indices:
            self.trials[index] = OpenTrial(cost=self.ended.pop(index).cost)
            self.sampler.ask(index, self.asked[index])

    def compare(self, index: int, steps: int, value: float, *, halt: bool) -> None:
        """Note a trial's value at a rung, and whether it goes on."""
        self.rungs.setdefault(steps, {})[index] = value
        if halt:
            self.halted.add(index)

    def replay(self, data: Mapping[str, Any]) -> None:
        """What an event of an earlier session says."""
        if "ask" in data:
            self.ask(data["params"])
        elif "again" in data:
            self.try_again(data["again"])
        elif "rung" in data:
            value = self._worst if data["value"] is None else float(data["value"])
            self.compare(data["trial"], data["rung"], value, halt=data["halt"])
        elif "tell" in data:
            self.end(data["tell"], TrialEnd(status=data["status"], value=data["value"], cost=data["cost"]))

    # Decisions

    @property
    def _worst(self) -> float:
        return math.inf if self.sweep.goal == "minimize" else -math.inf

    @property
    def best(self) -> int | None:
        """The trial with the best metric, the first of equal ones; None while none has succeeded."""
        best: int | None = None
        for index, ended in sorted(self.ended.items()):
            if ended.value is not None and (best is None or self.sweep.is_better(ended.value, self._value(best))):
                best = index
        return best

    def _value(self, index: int) -> float:
        value = self.ended[index].value
        return self._worst if value is None else value

    def goes_on(self, index: int, steps: int, value: float) -> bool:
        """Whether a trial is among the best of those that came to a rung so far; the first one always is."""
        values = sorted((*self.rungs.get(steps, {}).values(), value), reverse=self.sweep.goal == "maximize")
        factor = self.sweep.early_stop.factor if self.sweep.early_stop is not None else 1
        return not self.sweep.is_better(values[max(1, len(values) // factor) - 1], value)

    def has_room(self, now: float) -> bool:
        """Whether the budget allows one more trial, if that costs what trials cost on average."""
        budget = self.sweep.budget
        if budget is None:
            return True
        finished = [ended.cost for ended in self.ended.values() if ended.cost]
        expected = sum(finished) / len(finished) if finished else 0.0
        spent = sum(finished)
        for trial in self.trials.values():
            running = 0.0 if trial.began is None else budget.rate * (now - trial.began) / _HOUR
            spent += max(trial.cost + running, expected)
        return spent < budget.amount and spent + expected <= budget.amount


class Sweeps:
    """The sweeps of one run; used in the runner's thread."""

    def __init__(self, recorder: Recorder, inputs: StepBindings, say: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._inputs = inputs
        self._blobs = recorder.blobs
        self._say = say
        self._states: dict[str, SweepState] = {}

    def begin(self, step: StepPlan, sweep: SweepPlan) -> int:
        """Begin a sweep, or go on with it; how many trials it may have."""
        state = self._states[step.key] = SweepState(step, sweep)
        events = self._recorder.sweep_events(step.key)
        if not events:
            self._record(step.key, {"metric": sweep.metric, "goal": sweep.goal, "method": sweep.method})
        for data in events:
            state.replay(data)
        failed = [index for index, ended in state.ended.items() if ended.status == "failed"]
        if failed and self._recorder.had_failed(step.key):
            self._record(step.key, {"again": failed})
            state.try_again(failed)
        for index, trial in state.trials.items():
            spans = self._recorder.attempt_spans(f"{step.key}[{index}]")
            trial.cost = sum(self._cost(state, *span) for span in spans)
        self._inputs.begin_sweep(step, sweep.trials)
        return sweep.trials

    def _record(self, key: str, data: Mapping[str, Any]) -> None:
        self._recorder.record_event(SWEEP_EVENT, key, data)

    @staticmethod
    def _cost(state: SweepState, started: float | None, ended: float | None) -> float:
        rate = state.sweep.budget.rate if state.sweep.budget is not None else 0.0
        return 0.0 if started is None or ended is None else rate * max(0.0, ended - started) / _HOUR

    # Trials

    def status(self, key: str, index: int) -> StepStatus | None:
        """How a trial ended, in an earlier session or in this one; None for one that has not."""
        ended = self._states[key].ended.get(index)
        return None if ended is None else ended.status

    def give(self, key: str, index: int) -> bool:
        """Give a trial its parameters; False where the budget has no room for it now."""
        state = self._states[key]
        if index >= len(state.asked):
            if state.over or not state.has_room(clock.time()):
                state.over = state.over or not state.trials
                return False
            self._record(key, {"ask": index, "params": state.ask()})
        trees = {
            name: {"value": artifacts.save(value, self._blobs).wire()} for name, value in state.asked[index].items()
        }
        self._inputs.add_element(key, index, trees)
        return True

    def count(self, key: str) -> int:
        """How many trials there are."""
        return len(self._states[key].asked)

    def is_over(self, key: str) -> bool:
        """Whether nothing more is tried."""
        return self._states[key].over

    def note_start(self, key: str, index: int, attempt: int) -> None:
        """Note that an attempt of a trial was submitted."""
        trial = self._states[key].trials.get(index)
        if trial is not None:
            trial.attempt, trial.value, trial.began = attempt, None, clock.time()

    def note_attempt(self, key: str, index: int, facts: Mapping[str, Any]) -> None:
        """Note what an attempt that is over cost."""
        state = self._states[key]
        trial = state.trials.get(index)
        if trial is not None:
            trial.began = None
            trial.cost += self._cost(state, facts.get("started"), facts.get("ended"))

    def log(self, key: str, index: int, attempt: int, rows: Iterable[Row]) -> bool:
        """Note what a trial logged; whether it does too badly to go on."""
        state = self._states[key]
        trial = state.trials.get(index)
        if trial is None:
            return False
        if attempt != trial.attempt:
            trial.attempt, trial.value = attempt, None
        for row in rows:
            _, rank, steps, values = row
            value = values.get(state.sweep.metric) if steps is not None else None
            if isinstance(value, (int, float)) and (trial.value is None or rank <= trial.rank):
                trial.rank, trial.value = rank, float(value)
                self._compare(state, index, float(steps), float(value))
        return index in state.halted

    def _compare(self, state: SweepState, index: int, steps: float, value: float) -> None:
        """Compare a trial at each rung that it came to, and was not compared at."""
        asha = state.sweep.early_stop
        if asha is None:
            return
        rung = asha.min_steps
        while rung <= steps and index not in state.halted:
            if index not in state.rungs.get(rung, {}):
                shown = value if math.isfinite(value) else None
                known = state._worst if shown is None else value
                halt = not state.goes_on(index, rung, known)
                self._record(state.step.key, {"rung": rung, "trial": index, "value": shown, "halt": halt})
                state.compare(index, rung, known, halt=halt)
            rung *= asha.factor

    def note_origin(self, key: str, index: int, origin: str) -> None:
        """Note what a trial logged whose result is that of another step, "run/step"."""
        state = self._states[key]
        trial = state.trials.get(index)
        if trial is not None and state.sweep.metric not in {output.name for output in state.step.outputs}:
            trial.value = self._recorder.logged_value(origin, state.sweep.metric)

    def fault(self, key: str, index: int, outputs: Mapping[str, Wire]) -> str:
        """Why a trial that returned counts as failed: its metric is missing, or no number; empty if it is one."""
        state = self._states[key]
        trial = state.trials.get(index)
        if trial is None:
            return ""
        metric = state.sweep.metric
        if metric in outputs:
            artifact = from_wire(outputs[metric])
            value = artifacts.load(artifact, self._blobs) if artifact.serializer in _NUMBERS else None
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                return f"its output '{metric}', which the sweep compares, is not a number"
            trial.value = float(value)
        if trial.value is None:
            return f"it logged no metric '{metric}', which the sweep compares"
        return "" if math.isfinite(trial.value) else f"its {metric}, which the sweep compares, is {trial.value}"

    def end(self, key: str, index: int, status: StepStatus) -> str:
        """Note how a trial ended; why the sweep fails by that, empty if it does not."""
        state = self._states[key]
        trial = state.trials.get(index)
        if trial is None or status not in _COUNTED or index >= len(state.asked):
            return ""
        ended = TrialEnd(status=status, value=trial.value if status in STEP_GOOD else None, cost=trial.cost)
        self._record(key, {"tell": index, **attrs.asdict(ended)})
        state.end(index, ended)
        failures = sum(one.status == "failed" for one in state.ended.values())
        most = state.sweep.max_failures
        if most is None or failures <= most or state.problem:
            return ""
        state.over = True
        state.problem = f"{failures} of {count_text(len(state.asked), 'trial')} failed, and max_failures is {most}"
        return state.problem

    # The end

    def problem(self, key: str) -> str:
        """Why a sweep failed."""
        state = self._states.get(key)
        if state is None:
            return ""
        return state.problem or f"none of its {count_text(len(state.asked), 'trial')} succeeded"

    def outcome(self, key: str) -> dict[str, Wire]:
        """The outputs of a sweep that succeeded: those of its best trial, and which that is."""
        state = self._states[key]
        best = state.best
        if best is None:
            return {}
        counts = {status: sum(one.status == status for one in state.ended.values()) for status in ("failed", "stopped")}
        params = ", ".join(f"{name}={value}" for name, value in state.asked[best].items())
        others = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        of = count_text(len(state.asked), "trial") + (f" ({others})" if others else "")
        self._say(
            f"{key}: the best of {of} is {key}[{best}]: {state.sweep.metric} {state._value(best):g} with {params}"
        )
        values = {PARAMS: dict(state.asked[best]), VALUE: state._value(best), TRIALS: list(self._table(state))}
        made = self._inputs.made(key, best)
        return {**made, **{name: artifacts.save(value, self._blobs).wire() for name, value in values.items()}}

    @staticmethod
    def _table(state: SweepState) -> Iterable[dict[str, Any]]:
        for index, params in enumerate(state.asked):
            ended = state.ended.get(index)
            yield {
                "trial": index,
                "key": f"{state.step.key}[{index}]",
                "status": "" if ended is None else ended.status,
                "value": None if ended is None else ended.value,
                "params": dict(params),
            }
