"""Why a step ran or was cached: which part of its cache key differs from that of an earlier result, and how.

Everything comes from the store: the recipes of two results (`plan.cachekey`), the digests of their inputs, the plans of
their runs. No file of the user's is read, so that the answer is the same after the files have changed.
"""

from __future__ import annotations

import difflib
import json
import re
from datetime import datetime
from typing import Any, Final, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.client.keys import NoSuchKey
from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import NotFound, UsageError
from stoker.core.plan import places_text
from stoker.core.status import STEP_GOOD
from stoker.core.words import count_text
from stoker.store.rows import RunRow, StepRow, iso_text, local_time, optional_time
from stoker.store.store import Store

ChangeKind = Literal["code", "value", "package", "input", "argument", "environment", "cache_key", "outputs"]
Reason = Literal[
    "taken", "cached", "first", "changed", "no-cache", "cache-off", "not-followed", "again", "expired", "failed",
    "lost", "gone", "unfinished",
]  # fmt: skip
_LONGEST: Final = 60
"""Characters of a value that is shown."""
_UPSTREAM_IN_FLOWS: Final = {
    "inputs": "the tasks that it joins",
    "place": "the step's place in the flow: its targets, its index in a foreach, its decorators",
}
"""Inputs of a flow's tasks that are no artifact → what they are."""
_TEXT_NAME: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_NOTHING: Final[Mapping[str, Any]] = {}


@attrs.frozen(kw_only=True)
class KeyChange:
    """One part of a cache key that differs between two results."""

    kind: ChangeKind
    name: str
    """The function, class or constant ("train.fit → LR"), the parameter, or the part of the key."""
    before: str
    """A value or a short digest; empty where the earlier key did not have the part."""
    after: str
    """The same of the step in question."""
    where: str = ""
    """The file and line of code."""
    upstream: str = ""
    """Of an input: the step and the output that it is, as "load.output", or what it is in words."""
    diff: str = ""
    """Of code: a unified diff of its source."""

    def as_dict(self) -> dict[str, Any]:
        """The change as JSON."""
        return attrs.asdict(self)


@attrs.frozen(kw_only=True)
class StepReason:
    """Why a step ran or was cached."""

    run: str
    step: str
    status: str
    reason: Reason
    text: str
    """The reason in a sentence."""
    compared_with: str = ""
    """The earlier step, as "run/step"; empty where there is none."""
    since: datetime | None = None
    """When the earlier step ended."""
    changes: tuple[KeyChange, ...] = ()
    """What differs between the two keys."""

    def as_dict(self) -> dict[str, Any]:
        """The answer as JSON."""
        names = ("run", "step", "status", "reason", "text", "compared_with")
        document: dict[str, Any] = {name: getattr(self, name) for name in names}
        document["since"] = iso_text(self.since)
        document["changes"] = [change.as_dict() for change in self.changes]
        return document


def why(store: Store, run_id: str, key: str, *, against: str = "") -> StepReason:
    """Why a step of a run ran or was cached, compared with the newest earlier result or with that of run `against`.

    Of a fan-out, why its first element ran that was not cached. `NotFound` where the store does not say.
    """
    return _Question(store, run_id, key, against).answer()


class _Question:
    """One step and what the store has about it."""

    def __init__(self, store: Store, run_id: str, key: str, against: str) -> None:
        self._records = store.records
        self._run = store.records.run(run_id)
        self._plans: dict[str, dict[str, Any]] = {}
        self._prefix = ""
        self._row = self._row_of(key)
        self._against = store.records.run(against) if against else None

    def answer(self) -> StepReason:
        row = self._row
        if row.status in ("pending", "skipped"):
            return self._reason("unfinished", f"it is {row.status}: it did not run and took no result", None)
        if row.recipe == "" and not row.cached_from:
            raise NotFound(
                f"run {row.run_id} does not say what the key of '{row.key}' was made of",
                fix="an older Stoker recorded it, or its inputs could not be read; ask about a newer run",
            )
        if self._against is not None:
            return self._compare_with(self._against)
        if row.cached_from:
            return self._cached()
        rows = self._records.earlier_steps(self._run.pipeline, row.key, before=self._run.created)
        return self._ran([earlier for earlier in rows if earlier.recipe])

    def _compare_with(self, other: RunRow) -> StepReason:
        earlier = self._records.step(other.id, self._row.key)
        if earlier is None or not earlier.recipe:
            raise NotFound(f"run {other.id} has no result of '{self._row.key}'", fix="name another one: --against RUN")
        changes = self._changes(earlier)
        verb = "was cached" if self._row.cached_from else "ran"
        differ = f"{count_text(len(changes), 'part')} of its key differ" if changes else "its key is the same"
        return self._reason("changed" if changes else "cached", f"it {verb}; {differ}", earlier, changes)

    def _cached(self) -> StepReason:
        row = self._row
        run, _, key = row.cached_from.partition("/")
        earlier = self._records.step(run, key)
        if run == self._run.origin:
            text = f"its result is that of {row.cached_from}: this run repeats that one and takes it by reference"
            return self._reason("taken", text, earlier, name=row.cached_from)
        when = f", on {_moment(earlier.ended)}" if earlier is not None and earlier.ended is not None else ""
        gone = "" if earlier is not None else ", a run that is deleted by now"
        text = f"the same code, inputs, outputs and environment were computed by {row.cached_from}{when}{gone}"
        return self._reason("cached", text, earlier, name=row.cached_from)

    def _ran(self, rows: Sequence[StepRow]) -> StepReason:
        row = self._row
        good = [earlier for earlier in rows if earlier.status in STEP_GOOD]
        same = [earlier for earlier in rows if earlier.cache_key == row.cache_key]
        same_good = [earlier for earlier in same if earlier.status in STEP_GOOD]
        nearest = next(iter(same_good or good), None)
        changes = self._changes(nearest) if nearest is not None else ()
        forced = self._forced()
        if forced is not None:
            return self._reason(*forced, nearest, changes)
        lost = next((event for event in self._records.events(row.run_id) if self._is_loss(event.kind, event.key)), None)
        if lost is not None:
            digest = str(lost.data.get("artifact"))[:12]
            text = f"the result in the cache is lost or damaged in the store (artifact {digest})"
            return self._reason("lost", text, nearest, changes)
        if same_good:
            return self._not_found(same_good[0])
        if same:
            text = f"the step {same[0].status} in run {same[0].run_id} with the same key: there was no result to take"
            return self._reason("failed", text, same[0])
        if nearest is None:
            return self._reason("first", f"no earlier run of '{self._run.pipeline}' has a result of it", None)
        number = count_text(len(changes), "part")
        verb = "differs" if len(changes) == 1 else "differ"
        return self._reason("changed", f"{number} of its key {verb} from the newest earlier result", nearest, changes)

    def _forced(self) -> tuple[Reason, str] | None:
        """Why the cache was not asked, if it was not."""
        plan = self._plan(self._run.id)
        start = (plan.get("origin") or _NOTHING).get("start", "")
        if plan.get("request", _NOTHING).get("no_cache"):
            return "no-cache", "the run was started with --no-cache"
        if self._recipe(self._row).get("cache") is False:
            return "cache-off", "the cache is off for the step (cache=False, or a flow's step without @cache)"
        if self._recipe(self._row).get("lookups"):
            places = places_text(self._recipe(self._row)["lookups"])
            return "not-followed", f"it looks up code by name at {places}, which no cache key can know"
        if start:
            return "again", f"the run repeats run {self._run.origin} from '{start}' on"
        return None

    def _is_loss(self, kind: str, key: str) -> bool:
        return kind in ("cache-lost", "lost") and key == self._row.key

    def _not_found(self, earlier: StepRow) -> StepReason:
        """The same key has a good result, which the cache did not give."""
        name = f"{earlier.run_id}/{earlier.key}"
        started = self._row.started or self._run.created
        if earlier.ended is not None and earlier.ended > started:
            text = f"{name} was still computing the same when the step began"
            return self._reason("gone", text, earlier)
        expires = self._expires()
        if expires is not None and earlier.ended is not None and earlier.ended + expires <= started:
            return self._reason("expired", f"the result of {name} had expired (cache_expires)", earlier)
        text = f"{name} has the same key, and the cache had no entry: it was removed, or it was computed without the "
        return self._reason("gone", text + "accelerators that the step asks for", earlier)

    def _expires(self) -> float | None:
        plan = self._plan(self._run.id)
        step = self._plan_step(self._run.id)
        settings = plan.get("shared", _NOTHING).get("settings", ())
        index = step.get("settings")
        value = settings[index].get("cache_expires") if isinstance(index, int) and index < len(settings) else None
        return value if isinstance(value, (int, float)) else None

    # What differs

    def _changes(self, earlier: StepRow) -> tuple[KeyChange, ...]:
        before, after = self._recipe(earlier), self._recipe(self._row)
        changes = [*_code_changes(before.get("parts", {}), after.get("parts", {}))]
        if not changes and before.get("code") != after.get("code"):
            digests = [str(recipe.get("code", ""))[:12] for recipe in (before, after)]
            changes.append(KeyChange(kind="code", name="the step's code", before=digests[0], after=digests[1]))
        changes += self._input_changes(earlier)
        kinds: tuple[ChangeKind, ...] = ("outputs", "environment", "cache_key")
        for kind in kinds:
            if before.get(kind) != after.get(kind):
                changes.append(
                    KeyChange(kind=kind, name=kind, before=_short(before.get(kind)), after=_short(after.get(kind)))
                )
        return tuple(changes)

    def _input_changes(self, earlier: StepRow) -> Iterator[KeyChange]:
        before, after = _flat(earlier.inputs), _flat(self._row.inputs)
        for name in dict.fromkeys((*after, *before)):
            old, new = before.get(name, ""), after.get(name, "")
            if old == new:
                continue
            upstream = self._upstream(name, new or old) or _UPSTREAM_IN_FLOWS.get(name, "")
            yield KeyChange(
                kind="input" if upstream else "argument",
                name=name,
                before=self._value(earlier.run_id, name, old),
                after=self._value(self._run.id, name, new),
                upstream=upstream,
            )

    def _upstream(self, name: str, digest: str) -> str:
        """The step and output that an input is; empty for a value of the pipeline's own."""
        tree = self._plan_step(self._run.id).get("inputs", _NOTHING).get(name)
        if isinstance(tree, Mapping) and "step" in tree:
            return f"{tree['step']}.{tree['output']}"
        if isinstance(tree, Mapping) and "value" in tree:
            return ""
        maker = self._records.maker_of(self._run.id, digest.partition(":")[2])
        return "" if maker is None or maker.key == self._row.key else f"{maker.key}.{maker.name}"

    def _value(self, run: str, name: str, digest: str) -> str:
        """A small value as text; of a larger one its type and digest."""
        if not digest:
            return ""
        tree = self._plan_step(run).get("inputs", _NOTHING).get(name)
        artifact: StoredArtifact | None = None
        parameter = self._plan(run).get("parameters", _NOTHING).get(name.removeprefix("parameters."))
        if isinstance(tree, Mapping) and "value" in tree:
            artifact = from_wire(tree["value"])
        elif parameter is not None and name.startswith("parameters."):
            artifact = from_wire(parameter)
        else:
            maker = self._records.maker_of(run, digest.partition(":")[2])
            artifact = None if maker is None else maker.artifact
        if artifact is None or artifact.digest != digest.partition(":")[2]:
            return digest.partition(":")[2][:12] or digest[:40]
        if artifact.inline is not None and artifact.serializer in ("json", "str"):
            text = artifact.inline.decode("utf-8", "replace")
            text = repr(text) if artifact.serializer == "str" else text
            if len(text) <= _LONGEST:
                return text
        return f"{artifact.type.removeprefix('builtins.')} {artifact.digest[:12]}"

    # Rows and documents

    def _row_of(self, key: str) -> StepRow:
        row = self._records.step(self._run.id, key)
        if row is None:
            keys = [step.key for step in self._records.steps(self._run.id)]
            raise NoSuchKey(f"run {self._run.id} has no step '{key}' that ended (steps: {', '.join(keys)})")
        if row.count is None:
            return row
        ran, number = self._records.first_that_ran(self._run.id, row.key)
        shown = ran or next(iter(self._records.steps(self._run.id, parent=row.key, limit=1)), None)
        if shown is None:
            raise UsageError(f"fan-out '{key}' has no elements: nothing of it ran, and nothing was cached")
        elements = count_text(row.count, "element")
        cached = self._records.counts(self._run.id, parent=row.key).get("cached", 0)
        verb = f"{cached:,} of {elements} were cached and none ran"
        if ran or cached == row.count:
            verb = f"{number:,} of {elements} ran" if ran else "all its elements were cached"
        self._prefix = f"{verb}; {shown.key}: "
        return shown

    def _plan(self, run: str) -> dict[str, Any]:
        if run not in self._plans:
            text = self._records.plan(run)
            self._plans[run] = json.loads(text) if text else {}
        return self._plans[run]

    def _plan_step(self, run: str) -> Mapping[str, Any]:
        """The step in a run's plan; empty for one that was planned while the run went on."""
        key = self._row.parent or self._row.key
        plan = self._plan(run)
        steps = plan.get("steps", ()) if not plan.get("dynamic") else ()
        return next((step for step in steps if step["key"] == key), _NOTHING)

    def _recipe(self, row: StepRow) -> Mapping[str, Any]:
        recipe = self._records.recipe(row.recipe) if row.recipe else None
        return _NOTHING if recipe is None else recipe.document

    def _reason(
        self,
        reason: Reason,
        text: str,
        earlier: StepRow | None,
        changes: tuple[KeyChange, ...] = (),
        *,
        name: str = "",
    ) -> StepReason:
        return StepReason(
            run=self._run.id,
            step=self._row.key,
            status=self._row.status,
            reason=reason,
            text=self._prefix + text,
            compared_with=name or ("" if earlier is None else f"{earlier.run_id}/{earlier.key}"),
            since=None if earlier is None else optional_time(earlier.ended),
            changes=changes,
        )


def _code_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[KeyChange]:
    """Parts of code that differ; one that several labels name is reported once."""
    reported: set[tuple[str, str]] = set()
    for label in dict.fromkeys((*after, *before)):
        old, new = before.get(label, _NOTHING), after.get(label, _NOTHING)
        if old.get("digest") == new.get("digest"):
            continue
        digests = (str(old.get("digest", "")), str(new.get("digest", "")))
        if digests in reported:
            continue
        reported.add(digests)
        part = new or old
        kind: ChangeKind = part["kind"] if part["kind"] in ("package", "value") else "code"
        file, line = str(part.get("file", "")), part.get("line", 0)
        is_text = kind == "code"
        yield KeyChange(
            kind=kind,
            name=label,
            before=digests[0] if is_text else str(old.get("text", digests[0])),
            after=digests[1] if is_text else str(new.get("text", digests[1])),
            where=f"{file}:{line}" if file else "",
            diff=_diff(old, new) if is_text else "",
        )


def _diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """A unified diff of two source texts, with the lines of their files; empty where neither text is kept."""
    before, after = (str(part.get("text", "")).splitlines(keepends=True) for part in (old, new))
    names = [f"{part.get('file')}:{part.get('line')}" if part.get("file") else "nothing" for part in (old, new)]
    lines = difflib.unified_diff(before, after, f"{names[0]} before", f"{names[1]} now", n=2)
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def _flat(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Inputs as in `StepRow`, those in a dict by dotted names."""
    flat: dict[str, str] = {}
    for name, digest in inputs.items():
        entries = _entries(str(digest))
        if entries is None:
            flat[name] = str(digest)
        for key, value in (entries or {}).items():
            flat[f"{name}.{key}"] = value
    return flat


def _entries(text: str) -> dict[str, str] | None:
    """The entries of a dict of digests, as `engine.inputs.tree_digest` writes one; None for anything else."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    entries: dict[str, str] = {}
    at = 1
    while at < len(text) - 1:
        name = _TEXT_NAME.match(text, at)
        if name is None:
            return None
        end = _end_of_value(text, name.end() + 1)
        entries[name.group()[1:-1]] = text[name.end() + 1 : end]
        at = end + 1
    return entries


def _end_of_value(text: str, start: int) -> int:
    """Where the value that begins at `start` ends: at a comma or the bracket of what it is in."""
    depth = 0
    at = start
    while at < len(text):
        name = _TEXT_NAME.match(text, at)
        if name is not None:
            at = name.end()
            continue
        if text[at] in "{[":
            depth += 1
        elif text[at] in "}]":
            if depth == 0:
                return at
            depth -= 1
        elif text[at] == "," and depth == 0:
            return at
        at += 1
    return at


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _moment(seconds: float) -> str:
    return f"{local_time(seconds):%Y-%m-%d %H:%M:%S}"
