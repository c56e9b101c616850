"""Artifacts and models by name: their versions, tags, metadata, stages, and who made and used them.

Rules guard a stage of a model: what a version must fulfil before it is promoted.

auc >= production      a metric at least as good as that of the version that has the stage, where one has it
auc >= 0.9             a metric against a number; also >, <= and <
receipt                a step of the run that made it held accelerators, and its receipt says that they were used
check checks:fair      a function of yours that is given the `ModelVersion` and returns whether it passes
"""

from __future__ import annotations

import contextlib
import importlib
import json
import operator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Final, Iterable, Mapping, Sequence, TypeVar

from stoker.client.outputs import Output
from stoker.client.runs import Run
from stoker.core.artifact import content_of
from stoker.core.errors import NotFound, PromotionRefused, UsageError
from stoker.core.registry import Kind
from stoker.core.values import frozen, lazy_pattern
from stoker.core.words import memory_text
from stoker.store.registry import ArtifactRow, ModelRow, PromotionRow, number_of
from stoker.store.rows import OutputRow, iso_text, local_time

if TYPE_CHECKING:
    from stoker.client.steps import Step
    from stoker.client.why import StepReason
    from stoker.store.store import Store

T = TypeVar("T")


@frozen(kw_only=True)
class ArtifactUse:
    """A step that was given an artifact."""

    run_id: str
    step: str
    parameter: str
    by_name: bool
    """Whether the run was given it by its name; else the step took it from the step that made it."""


class _NamedVersion:
    """What a version of an artifact and one of a model have: a time, tags and metadata."""

    _KIND: ClassVar[Kind]
    _store: Store
    _created: float
    name: str
    version: int

    @property
    def created(self) -> datetime:
        """When it was registered."""
        return local_time(self._created)

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, sorted."""
        return self._store.registry.marks(self._KIND, self.name, self.version)

    @property
    def metadata(self) -> dict[str, Any]:
        """Its metadata by name."""
        return self._store.registry.facts(self._KIND, self.name, self.version)

    def add_tags(self, *tags: str, exclusive: bool = False) -> None:
        """Add tags; with `exclusive`, no other version of the name keeps them, as a name that moves."""
        self._store.registry.set_marks(self._KIND, self.name, self.version, tags, exclusive=exclusive)

    def remove_tags(self, *tags: str) -> None:
        """Remove tags; one that it does not have is fine."""
        self._store.registry.remove_marks(self._KIND, self.name, self.version, tags)

    def log_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add metadata; a later value replaces an earlier one of the same name."""
        self._store.registry.set_facts(self._KIND, self.name, self.version, metadata)


class ArtifactVersion(_NamedVersion, Output):
    """A version of a named artifact: an output with a name beyond its run, or a value saved outside of runs."""

    _KIND: ClassVar[Kind] = "artifact"

    def __init__(self, store: Store, row: ArtifactRow) -> None:
        place = OutputRow(run_id=row.run_id, key=row.key, name=row.output, artifact=row.artifact)
        super().__init__(store, place)
        self.name = row.name
        self.version = row.version
        self.output = row.output
        self.author = row.author
        self._created = row.created

    @property
    def versions(self) -> list[ArtifactVersion]:
        """Every version of its name, newest first."""
        return [ArtifactVersion(self._store, row) for row in self._store.registry.versions(self.name)]

    @property
    def producer(self) -> Step | None:
        """The step that made it; None for a value that was saved outside of runs, and where the run was deleted."""
        if not self.run_id:
            return None
        with contextlib.suppress(NotFound):
            steps = Run(self._store, self._store.records.run(self.run_id)).steps
            return steps.get(self.step)
        return None

    @property
    def inputs(self) -> dict[str, ArtifactVersion | Output]:
        """What the step that made it was given, by parameter: named versions and outputs of other steps.

        Other values that a step is given have no name, and are left out.
        """
        registry, records = self._store.registry, self._store.records
        found: dict[str, ArtifactVersion | Output] = {}
        for parameter, tree in self._input_trees().items():
            with contextlib.suppress(NotFound):
                if "named" in tree:
                    found[parameter] = ArtifactVersion(self._store, registry.artifact(*tree["named"]))
                elif "step" in tree:
                    outputs = {row.name: row for row in records.outputs(self.run_id, tree["step"])}
                    if tree["output"] in outputs:
                        found[parameter] = Output(self._store, outputs[tree["output"]])
        return found

    def _input_trees(self) -> Mapping[str, Mapping[str, Any]]:
        """The inputs in the run's plan of the step that made it (`core.plan.StepPlan.inputs`)."""
        made = self._store.records.step(self.run_id, self.step) if self.run_id else None
        if made is None:
            return {}
        steps = json.loads(self._store.records.plan(self.run_id) or "{}").get("steps", ())
        planned: Mapping[str, Any] = next((step for step in steps if step["key"] == (made.parent or made.key)), {})
        trees: Mapping[str, Mapping[str, Any]] = planned.get("inputs", {})
        return trees

    @property
    def users(self) -> list[ArtifactUse]:
        """The steps that were given it: by its name, in any run, and in its own run from the step that made it."""
        uses = [
            ArtifactUse(run_id=row.run_id, step=row.key, parameter=row.parameter, by_name=True)
            for row in self._store.registry.uses(self.name, self.version)
        ]
        content = content_of(self._artifact.wire())
        for step in self._store.records.steps(self.run_id) if self.run_id else ():
            uses += [
                ArtifactUse(run_id=self.run_id, step=step.key, parameter=parameter, by_name=False)
                for parameter, digest in step.inputs.items()
                if digest == content
            ]
        return uses

    @property
    def models(self) -> list[ModelVersion]:
        """The versions of models that it belongs to."""
        return [ModelVersion(self._store, row) for row in self._store.registry.models_with(self.name, self.version)]

    def delete(self) -> None:
        """Remove the version; `UsageError` while a version of a model has it. Its bytes stay until `stoker gc`."""
        self._store.registry.delete_artifact(self.name, self.version)

    def as_dict(self) -> dict[str, Any]:
        """All but the value, as JSON."""
        return {
            **super().as_dict(),
            "version": self.version,
            "output": self.output,
            "created": iso_text(self.created),
            "author": self.author,
            "tags": list(self.tags),
            "metadata": self.metadata,
        }

    def __repr__(self) -> str:
        return f"<ArtifactVersion '{self.name}' {self.version}: {self.type}, {memory_text(self.size)}>"


class ModelVersion(_NamedVersion):
    """A version of a model: a group of artifacts with metadata, a stage, and the runs that made and used it."""

    _KIND: ClassVar[Kind] = "model"

    def __init__(self, store: Store, row: ModelRow) -> None:
        self._store = store
        self.name = row.name
        self.version = row.version
        self.label = row.label
        self.stage = row.stage
        """"staging", "production", "archived", one of your own, or "" for none; as it was when this was read."""
        self.author = row.author
        self.description = row.description
        self.run_id = row.run_id
        """The run that made it; empty for one that was made outside of runs."""
        self._created = row.created

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers by name: the last ones that the run's steps logged, and over them the metadata that is a number."""
        numbers: dict[str, float] = {}
        with contextlib.suppress(NotFound):
            if self.run_id:
                for logged in Run(self._store, self._store.records.run(self.run_id)).metrics.values():
                    numbers.update({name: logged[name].last for name in logged})
        facts = {name: number_of(value) for name, value in self.metadata.items()}
        return {**numbers, **{name: value for name, value in facts.items() if value is not None}}

    @property
    def artifacts(self) -> dict[str, ArtifactVersion]:
        """Its artifacts by name; of several versions of a name the newest."""
        parts = self._store.registry.parts(self.name, self.version)
        return {row.name: ArtifactVersion(self._store, row) for row in parts}

    @property
    def run_ids(self) -> list[str]:
        """The runs that made or used it."""
        return self._store.registry.runs_of_model(self.name, self.version)

    @property
    def versions(self) -> list[ModelVersion]:
        """Every version of its name, newest first."""
        return [ModelVersion(self._store, row) for row in self._store.registry.model_versions(self.name)]

    @property
    def holders(self) -> dict[str, ModelVersion]:
        """The versions of its name that hold a stage, by stage; archived ones hold none."""
        return {stage: ModelVersion(self._store, row) for stage, row in self._store.registry.holders(self.name).items()}

    @property
    def history(self) -> list[PromotionRow]:
        """Every change of a stage of the model's versions, newest first: who, when, why, and from which run."""
        return self._store.registry.promotions(self.name)

    @property
    def rules(self) -> dict[str, list[str]]:
        """What a version must fulfil before it gets a stage: stage → rules."""
        return self._store.registry.rules(self.name)

    def load(self, artifact: str) -> Any:
        """The value of one of its artifacts."""
        return self.artifact(artifact).load()

    def artifact(self, name: str) -> ArtifactVersion:
        """One of its artifacts by name; `NotFound` where it has none."""
        found = self.artifacts
        if name not in found:
            have = ", ".join(found) or "none"
            raise NotFound(
                f"model '{self.name}' version {self.version} has no artifact '{name}' (it has: {have})",
                fix=f"stoker models show {self.name}@{self.version}",
            )
        return found[name]

    def promote(self, stage: str, *, why: str = "", force: bool = False) -> None:
        """Give the version a stage; the one that had it is archived, so that a stage has one version.

        Raises `PromotionRefused` where a rule of the stage is not fulfilled, unless `force`. Rules that compare with
        the version in the stage are judged again where another one was promoted meanwhile.
        """
        from stoker.worker.context import context

        registry = self._store.registry
        run_id = context.run_id if context else ""
        while True:
            holder = self.holders.get(stage)
            broken = [] if force else _broken_rules(self, holder, self.rules.get(stage, ()))
            if broken:
                raise PromotionRefused(
                    f"model '{self.name}' version {self.version} may not be promoted to '{stage}': {'; '.join(broken)}",
                    fix=f"stoker models show {self.name}@{self.version} has its metrics; --force promotes it anyway",
                )
            expected = None if holder is None else holder.version
            if registry.promote(self.name, self.version, stage, reason=why, run_id=run_id, expected=expected):
                self.stage = stage
                return

    def set_rules(self, stage: str, rules: Iterable[str]) -> None:
        """Set what versions must fulfil before they get a stage; none for nothing. `UsageError` for what is no rule."""
        wanted = [_checked_rule(rule) for rule in rules]
        while True:
            before = self.rules
            after = {**before, stage: wanted}
            if not wanted:
                del after[stage]
            if self._store.registry.set_rules(self.name, after, expected=before):
                return

    def link(self, artifact: ArtifactVersion) -> None:
        """Add an artifact; one that it has is fine."""
        self._store.registry.link(self.name, self.version, artifact.name, artifact.version)

    def delete(self) -> None:
        """Remove the version, but not its artifacts; `UsageError` while it has a stage."""
        self._store.registry.delete_model(self.name, self.version)

    def as_dict(self) -> dict[str, Any]:
        """What is known of it, as JSON."""
        return {
            "name": self.name,
            "version": self.version,
            "label": self.label,
            "stage": self.stage,
            "created": iso_text(self.created),
            "author": self.author,
            "description": self.description,
            "run": self.run_id,
            "runs": self.run_ids,
            "tags": list(self.tags),
            "metadata": self.metadata,
            "metrics": self.metrics,
            "artifacts": {name: one.version for name, one in self.artifacts.items()},
        }

    def __repr__(self) -> str:
        stage = f", {self.stage}" if self.stage else ""
        return f"<ModelVersion '{self.name}' {self.version}{stage}>"


@frozen(kw_only=True)
class ModelDiff:
    """What differs between two versions; of each pair, None where a version lacks it."""

    left: ModelVersion
    right: ModelVersion
    metrics: Mapping[str, tuple[float | None, float | None]]
    metadata: Mapping[str, tuple[Any, Any]]
    """What is no number; numbers are metrics."""
    artifacts: Mapping[str, tuple[ArtifactVersion | None, ArtifactVersion | None]]
    """Those whose values differ, by name."""
    runs: tuple[Run | None, Run | None]
    """The runs that made them; None for one that was made outside of runs, or whose run was deleted."""
    parameters: Mapping[str, tuple[Any, Any]]
    """Parameters of the runs."""
    steps: Sequence[StepReason]
    """The steps of the right run whose cache key differs from that of the left run's, with the parts that do: code,
    inputs, arguments, environment."""
    unknown: Mapping[str, str]
    """Steps of which this cannot be said, with why: only one run has them, or one of them did not record it."""

    def as_dict(self) -> dict[str, Any]:
        """The differences as JSON."""
        return {
            "model": [self.left.name, self.right.name],
            "versions": [self.left.version, self.right.version],
            "metrics": {name: list(pair) for name, pair in self.metrics.items()},
            "metadata": {name: list(pair) for name, pair in self.metadata.items()},
            "artifacts": {
                name: [None if one is None else {"version": one.version, "digest": one.digest} for one in pair]
                for name, pair in self.artifacts.items()
            },
            "runs": [None if run is None else run.id for run in self.runs],
            "parameters": {name: list(pair) for name, pair in self.parameters.items()},
            "steps": [step.as_dict() for step in self.steps],
            "unknown": dict(self.unknown),
        }


def model_diff(store: Store, left: ModelVersion, right: ModelVersion) -> ModelDiff:
    """What differs between two versions of a model, or of two models."""
    runs = _run(store, left), _run(store, right)
    steps, unknown = _changed_steps(store, *runs)
    metrics = left.metrics, right.metrics
    parameters = [run.parameters if run is not None else {} for run in runs]
    return ModelDiff(
        left=left,
        right=right,
        metrics=_pairs(*metrics),
        metadata=_pairs(*(_without(one.metadata, numbers) for one, numbers in zip((left, right), metrics))),
        artifacts=_pairs(left.artifacts, right.artifacts, of=operator.attrgetter("digest")),
        runs=runs,
        parameters=_pairs(*parameters) if None not in runs else {},
        steps=steps,
        unknown=unknown,
    )


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_RULE: Final = lazy_pattern(r"(?P<metric>\S.*?)\s*(?P<sign>>=|<=|>|<)\s*(?P<limit>\S+)")
_CHECK: Final = lazy_pattern(r"check\s+(?P<module>[\w.]+):(?P<name>\w+)")
_FIX: Final = 'write "METRIC >= production", "METRIC >= 0.9", "receipt" or "check MODULE:FUNCTION"'


def _checked_rule(rule: str) -> str:
    """The rule; a `UsageError` for a text that is none."""
    text = rule.strip()
    match = _RULE.fullmatch(text)
    if text == "receipt" or _CHECK.fullmatch(text) or (match is not None and _limit(match["limit"]) is not None):
        return text
    raise UsageError(f"{rule!r} is no rule for a promotion", fix=_FIX)


def _broken_rules(version: ModelVersion, holder: ModelVersion | None, rules: Iterable[str]) -> list[str]:
    """The rules that a version does not fulfil, each with what is the case; `holder` has the stage now."""
    return [f"{rule} ({why})" for rule in rules if (why := _why_broken(version, holder, rule))]


def _why_broken(version: ModelVersion, holder: ModelVersion | None, rule: str) -> str:
    if rule == "receipt":
        return _receipt(version)
    match = _CHECK.fullmatch(rule)
    if match is not None:
        return _check(version, match["module"], match["name"])
    match = _RULE.fullmatch(rule)
    if match is None:
        return f"this version of Stoker knows no such rule; {_FIX}"
    metric, sign, limit = match["metric"], match["sign"], _limit(match["limit"])
    if limit == "production" and (holder is None or holder.version == version.version):
        return ""
    bound = holder.metrics.get(metric) if limit == "production" and holder is not None else limit
    value = version.metrics.get(metric)
    if value is None:
        return f"version {version.version} has no {metric}: log_metadata({{{metric!r}: …}}, model={version.name!r})"
    if bound is None:
        return ""  # the version in the stage was never measured so
    return "" if _COMPARISONS[sign](value, bound) else f"{metric} is {value:g}, and not {sign} {bound:g}"


def _limit(text: str) -> float | str | None:
    if text == "production":
        return text
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number else None  # noqa: PLR0124  # NaN compares with nothing


def _receipt(version: ModelVersion) -> str:
    if not version.run_id:
        return "no run made it"
    try:
        run = Run(version._store, version._store.records.run(version.run_id))
    except NotFound:
        return f"the run that made it, {version.run_id}, was deleted"
    verdicts = {key: receipt.verdict for key, receipt in run.receipts.items()}
    if not verdicts:
        return f"no step of run {run.id} held accelerators"
    return "" if "used" in verdicts.values() else ", ".join(f"{key}: {verdict}" for key, verdict in verdicts.items())


def _check(version: ModelVersion, module: str, name: str) -> str:
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        return f"it cannot be found here: {error}"
    try:
        passed = function(version)
    except Exception as error:  # the user's code
        return f"it raised {type(error).__name__}: {error}"
    return "" if passed else f"it returned {passed!r}"


def _pairs(
    left: Mapping[str, T], right: Mapping[str, T], *, of: Callable[[T], Any] = lambda value: value
) -> dict[str, tuple[T | None, T | None]]:
    """What differs by name, in the order of the names; `of` is what is compared."""
    found = {}
    for name in sorted({*left, *right}):
        both = name in left and name in right
        if not both or of(left[name]) != of(right[name]):
            found[name] = (left.get(name), right.get(name))
    return found


def _without(metadata: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name not in metrics}


def _run(store: Store, version: ModelVersion) -> Run | None:
    with contextlib.suppress(NotFound):
        if version.run_id:
            return Run(store, store.records.run(version.run_id))
    return None


def _changed_steps(store: Store, left: Run | None, right: Run | None) -> tuple[list[StepReason], dict[str, str]]:
    from stoker.client.why import why

    reasons: list[StepReason] = []
    unknown: dict[str, str] = {}
    if left is None or right is None:
        return reasons, unknown
    rows = [{row.key: row for row in store.records.steps(run.id)} for run in (left, right)]
    for key in dict.fromkeys([*rows[1], *rows[0]]):
        if key not in rows[0] or key not in rows[1]:
            unknown[key] = f"only run {(left if key in rows[0] else right).id} has it"
        elif not rows[0][key].cache_key or rows[0][key].cache_key != rows[1][key].cache_key:
            try:
                reason = why(store, right.id, key, against=left.id)
            except (NotFound, UsageError) as error:
                unknown[key] = error.message
            else:
                reasons += [reason] if reason.changes else []
    return reasons, unknown
