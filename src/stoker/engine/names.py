"""What a run registers: its steps' named outputs, and what steps save and log by name while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Mapping

import attrs

from stoker.core.artifact import from_wire
from stoker.core.codec import from_json
from stoker.core.errors import StokerError
from stoker.core.registry import LINKS, LOGGED, LoggedName, Model, checked_name, registers
from stoker.engine import clock
from stoker.store.registry import LoggedFacts, Registration, author

if TYPE_CHECKING:
    from stoker.core.metrics import Row
    from stoker.core.plan import StepPlan
    from stoker.store.batch import RowBatch


class RunNames:
    """The names of one run, whose rows go into `batch`."""

    def __init__(self, run: str, model: Model | None, model_version: int | None) -> None:
        self._run = run
        self._model = model
        self._model_version = model_version
        self._author = author()
        # What the last attempts of steps have logged of the artifacts that they are to make, by key and name.
        self._logged: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
        self._links: dict[str, Any] = {}
        self._has_version = model_version is not None

    def add_outputs(
        self, key: str, step: StepPlan, outputs: Mapping[str, Mapping[str, Any]], batch: RowBatch, *, reused: bool
    ) -> None:
        """Add the named outputs of a step that succeeded; `reused`: its result is that of another run's step."""
        for output, artifact in step.named_outputs.items():
            if output in outputs:
                _, logged = self._logged.pop((key, artifact.name), (0, {}))
                found = LoggedName(
                    kind="saved",
                    name=artifact.name,
                    output=output,
                    wire=outputs[output],
                    tags=artifact.tags,
                    facts={**artifact.metadata, **logged},
                )
                self._register(key, found, batch, reused=reused)

    def take_logged(self, key: str, step: StepPlan, attempt: int, rows: Iterable[Row], batch: RowBatch) -> list[Row]:
        """Add what an attempt saved and logged by name; the rows that are none of it."""
        others = []
        for row in rows:
            entry = _logged_in(row)
            if entry is None:
                others.append(row)
                self._take_links(row, batch)
                continue
            if entry.kind == "saved":
                self._register(key, entry, batch)
            elif entry.kind == "artifact" and entry.name in {one.name for one in step.named_outputs.values()}:
                last, facts = self._logged.get((key, entry.name), (attempt, {}))
                self._logged[key, entry.name] = (attempt, {**(facts if last == attempt else {}), **entry.facts})
            else:
                if entry.kind == "artifact":  # which there may be none of: nothing is lost
                    others.append([*row[:3], {f"artifact:{entry.name}": dict(entry.facts)}])
                of_run = self._model is not None and self._model.name == entry.name
                batch.register(
                    LoggedFacts(
                        kind="artifact" if entry.kind == "artifact" else "model",
                        name=entry.name,
                        run_id=self._run,
                        facts=entry.facts,
                        created=clock.time(),
                        author=self._author,
                        of_run=of_run,
                        model_version=self._model_version if of_run else None,
                    )
                )
        return others

    def _take_links(self, row: Row, batch: RowBatch) -> None:
        """Add to the run's model what a row says of other libraries' runs; as soon as there is a version of it."""
        facts = row[3] if self._model is not None and row[2] is None and isinstance(row[3], dict) else {}
        links = {name: facts[name] for name in LINKS if name in facts}
        if not links or self._model is None:
            return
        self._links |= links
        if self._has_version:
            batch.register(
                LoggedFacts(
                    kind="model",
                    name=self._model.name,
                    run_id=self._run,
                    facts=links,
                    created=clock.time(),
                    author=self._author,
                    of_run=True,
                    model_version=self._model_version,
                )
            )

    def _register(self, key: str, entry: LoggedName, batch: RowBatch, *, reused: bool = False) -> None:
        model = self._model
        if model is not None:
            self._has_version = True
            model = attrs.evolve(model, metadata={**model.metadata, **self._links})
        batch.register(
            Registration(
                name=entry.name,
                artifact=entry.wire,
                run_id=self._run,
                key=key,
                output=entry.output,
                created=clock.time(),
                author=self._author,
                reused=reused,
                tags=entry.tags,
                metadata=entry.facts,
                model=model,
                model_version=self._model_version,
            )
        )


def _logged_in(row: Row) -> LoggedName | None:
    """What a row tells to register; None for another row, and for one that tells nothing that can be understood."""
    if not registers(row):
        return None
    try:
        entry = from_json(LoggedName, row[3][LOGGED], strict=False)
        if entry.kind == "saved":
            from_wire(entry.wire)
        checked_name(entry.name, "an artifact")
    except StokerError:
        return None
    return entry
