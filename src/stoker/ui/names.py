"""The pages of what has a name beyond its run: artifacts and models, their versions, and two versions side by side."""

from __future__ import annotations

import json
from math import isfinite, nan
from typing import Any, Final, Iterable, Literal, Mapping, Sequence, TypeVar
from urllib.parse import parse_qsl

import attrs
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from stoker.client import ArtifactVersion, ModelVersion, Output
from stoker.client.names import model_diff
from stoker.core.artifact import StoredArtifact
from stoker.core.errors import StoreError, UsageError
from stoker.core.registry import HIGHEST, LATEST, STAGES, Version, checked_name
from stoker.core.values import frozen
from stoker.core.words import memory_text, number_text
from stoker.report.figures import fact_text
from stoker.report.markup import Html
from stoker.report.runreport import plan_of
from stoker.report.svg import Drawing, Line, chart
from stoker.store.registry import number_of
from stoker.store.store import Store
from stoker.ui import actions, artifacts, compare, pages, rendering, runview
from stoker.ui.rendering import State, in_place, named, page, url

Named = TypeVar("Named", ArtifactVersion, ModelVersion)
_MOST_CHARTS: Final = 12
_MOST_COLUMNS: Final = 8
"""Numbers by name that a table of versions has."""
_NUMBERS: Final = frozenset({"builtins.int", "builtins.float"})


@frozen(kw_only=True)
class NameQuery:
    """Which names a list has; an empty field is for any."""

    text: str = ""
    tag: str = ""
    """Of artifacts."""
    stage: str = ""
    """Of models."""
    before: str = ""
    """A name, after which the list goes on."""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> NameQuery:
        """What an address asks for."""
        # No name has a NUL, which PostgreSQL takes in no text.
        return cls(**{field: query.get(field, "").strip().replace("\0", "") for field in attrs.fields_dict(cls)})

    def after(self, name: str) -> dict[str, str]:
        """The query of what follows a name in the list; "" for its beginning."""
        return {**attrs.asdict(self), "before": name}


def found_artifacts(there: State, query: NameQuery, *, size: int = runview.PAGE) -> tuple[list[ArtifactVersion], bool]:
    """The latest version of each name that a query finds, and whether there are more."""
    rows = there.store.registry.artifacts(text=query.text, tag=query.tag, before=query.before, limit=size + 1)
    return [ArtifactVersion(there.store, row) for row in rows[:size]], len(rows) > size


def found_models(there: State, query: NameQuery, *, size: int = runview.PAGE) -> tuple[list[ModelVersion], bool]:
    """The latest version of each model that a query finds, and whether there are more."""
    rows = there.store.registry.models(text=query.text, stage=query.stage, before=query.before, limit=size + 1)
    return [ModelVersion(there.store, row) for row in rows[:size]], len(rows) > size


def artifact_list(request: Request) -> Response:
    """Named artifacts, the one that changed last first."""
    query = NameQuery.parse(request.query_params)
    return _list_page(request, "artifact", query, found_artifacts(pages.state_of(request), query))


def model_list(request: Request) -> Response:
    """Models, the one that changed last first."""
    query = NameQuery.parse(request.query_params)
    return _list_page(request, "model", query, found_models(pages.state_of(request), query))


def _list_page(
    request: Request, kind: Literal["artifact", "model"], query: NameQuery, found: tuple[Sequence[Named], bool]
) -> Response:
    rows, more = found
    address = f"/{kind}s"
    values: dict[str, Any] = {
        "kind": kind,
        "rows": rows,
        "existing": pages.state_of(request).store.records.existing(one.run_id for one in rows),
        "query": query,
        "is_filtered": bool(query.text or query.tag or query.stage),
        "newest": url(address, query.after("")) if query.before else "",
        "older": url(address, query.after(rows[-1].name)) if more else "",
    }
    if in_place(request):
        return HTMLResponse(rendering.environment().get_template("names_part.html").render(**values))
    return page(request, "names.html", title=f"{kind.capitalize()}s · Stoker", stages=STAGES, **values)


# An artifact


def _asked_version(request: Request, what: str) -> tuple[str, Version]:
    """The name and the version of an address, "NAME" or "NAME@VERSION"."""
    name, mark, version = request.path_params["name"].rpartition("@")
    return (checked_name(name, what), version) if mark else (checked_name(version, what), LATEST)


def artifact_version(request: Request) -> ArtifactVersion:
    """The version of an artifact that an address names."""
    store = pages.state_of(request).store
    return ArtifactVersion(store, store.registry.artifact(*_asked_version(request, "an artifact")))


def artifact(request: Request) -> Response:
    """A version of an artifact; with `as`, its bytes as a file, as a picture, or as a page for a frame."""
    one = artifact_version(request)
    answers = {"file": pages.file_of, "image": pages.image_of, "frame": pages.frame_of}
    form = request.query_params.get("as", "")
    if form:
        if form not in answers:
            raise UsageError(f"an artifact cannot be had as '{form}'", fix=f"choose of {', '.join(answers)}")
        return answers[form](one)
    store = pages.state_of(request).store
    addresses = {form: named("artifact", one.name, one.version, **{"as": form}) for form in answers}
    users, models = one.users, one.models
    versions = _artifact_versions(store, one.name, pages.number_of(request.query_params.get("before")))
    runs = [row.run_id for row in (*versions["rows"], *users[-runview.MOST_NAMES :])]
    return page(
        request,
        "named_artifact.html",
        title=f"{one.name} {one.version} · Stoker",
        one=one,
        shape="×".join(map(str, one.shape)) if one.shape is not None else "",
        is_latest=store.registry.artifact(one.name).version == one.version,
        preview=artifacts.preview(one, one.stored, store.blobs, address=addresses["image"], frame=addresses["frame"]),
        download=addresses["file"],
        producer=one.producer,
        inputs=[(name, *_input_link(store, made)) for name, made in one.inputs.items()],
        users=users[-runview.MOST_NAMES :],
        more_users=len(users[: -runview.MOST_NAMES]),
        models=models[-runview.MOST_NAMES :],
        more_models=len(models[: -runview.MOST_NAMES]),
        metadata=_fact_texts(one.metadata),
        versions=versions,
        existing=store.records.existing(runs),
        step_address=runview.step_address,
    )


def _input_link(store: Store, made: ArtifactVersion | Output) -> tuple[str, str]:
    """What an input is, in words, and its page; of an output that has a name that of its version."""
    known = [made.version] if isinstance(made, ArtifactVersion) else []
    known = known or [row.version for row in store.registry.named(made.digest) if row.name == made.name]
    if known:
        return f"{made.name} {known[-1]}", named("artifact", made.name, known[-1])
    return f"{made.step}.{made.name}", url(f"/runs/{made.run_id}/artifact", key=made.step, name=made.name)


def _fact_texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Metadata, each in one line."""
    return {name: fact_text(fact) for name, fact in facts.items()}


def _artifact_versions(store: Store, name: str, before: int | None) -> dict[str, Any]:
    """The versions of a name, newest first, with their numbers and how those changed."""
    rows = store.registry.versions(name, limit=runview.PAGE + 1, before=before or HIGHEST)
    shown = rows[: runview.PAGE]
    logged = store.registry.numbers("artifact", name, [row.version for row in shown])
    numbers = {row.version: {**_value(store, row.artifact), **logged[row.version]} for row in shown}
    sizes = {row.version: float(row.artifact.size) for row in shown}
    drawn = [_version_chart(sizes, "size", memory_text)] if len(set(sizes.values())) > 1 else []
    return {
        "rows": [ArtifactVersion(store, row) for row in shown],
        **_columns(numbers),
        "charts": [*drawn, *_charts(numbers)][:_MOST_CHARTS],
        "older": named("artifact", name, before=shown[-1].version) if len(rows) > runview.PAGE else "",
        "newest": named("artifact", name) if before else "",
    }


def _value(store: Store, stored: StoredArtifact) -> dict[str, float]:
    """A number that is an artifact, under the name "value"."""
    if stored.type not in _NUMBERS or stored.serializer != "json":
        return {}
    try:
        data = store.blobs.read(stored.digest, stored.size) if stored.inline is None else stored.inline
        number = number_of(json.loads(data))
    except (ValueError, StoreError):
        return {}
    return {} if number is None else {"value": number}


def _columns(numbers: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for row in numbers.values() for name in row))
    texts = {
        version: [number_text(row[name]) if name in row else "" for name in names[:_MOST_COLUMNS]]
        for version, row in numbers.items()
    }
    return {"names": names[:_MOST_COLUMNS], "numbers": texts, "more_names": len(names[_MOST_COLUMNS:])}


def _charts(numbers: Mapping[int, Mapping[str, float]]) -> Iterable[Html]:
    """A chart over the versions for each number that two of them have."""
    for name in dict.fromkeys(name for row in numbers.values() for name in row):
        values = {version: row[name] for version, row in numbers.items() if isfinite(row.get(name, nan))}
        if len(values) > 1:
            yield _version_chart(values, name)


def _version_chart(values: Mapping[int, float], label: str, words: Any = number_text) -> Html:
    places = sorted(values)
    drawing = Drawing(words=words, axis="version {:.0f}".format, low=None, begin=None, filled=False, breaks=False)
    line = Line(places=places, values=[values[place] for place in places], name=label)
    return chart([line], label=label, drawing=drawing, remark=f"last {words(values[places[-1]])}")


# A model


def model_of(request: Request) -> tuple[ModelVersion, bool]:
    """The version of a model that an address names, and whether it names one at all."""
    there = pages.state_of(request)
    _ = there.store
    name, version = _asked_version(request, "a model")
    return there.client.model(name, version), "@" in request.path_params["name"]


def model(request: Request) -> Response:
    """A model, one of its versions, two side by side, or the question which stage one is to get."""
    one, is_version = model_of(request)
    chosen = list(dict.fromkeys(request.query_params.getlist("version")))
    if len(chosen) == 2:
        return _comparison(request, *(pages.state_of(request).client.model(one.name, version) for version in chosen))
    if request.query_params.get("do") == "promote":
        return _promotion(request, one, request.query_params)
    if is_version:
        return _model_version(request, one)
    history, records = one.history, pages.state_of(request).store.records
    versions = _model_versions(pages.state_of(request).store, one.name, request.query_params.get("before"))
    return page(
        request,
        "model.html",
        title=f"{one.name} · Stoker",
        one=one,
        holders=one.holders,
        problem=f"{len(chosen)} versions chosen; two can be compared." if chosen else "",
        versions=versions,
        existing=records.existing(row.run_id for row in (*versions["rows"], *history[: runview.MOST_NAMES])),
        history=history[: runview.MOST_NAMES],
        more_history=len(history[runview.MOST_NAMES :]),
        rules=one.rules,
    )


def _model_versions(store: Store, name: str, asked: str | None) -> dict[str, Any]:
    before = pages.number_of(asked)
    rows = store.registry.model_versions(name, limit=runview.PAGE + 1, before=before or HIGHEST)
    shown = [ModelVersion(store, row) for row in rows[: runview.PAGE]]
    numbers = {one.version: one.metrics for one in shown}
    return {
        "rows": shown,
        **_columns(numbers),
        "charts": list(_charts(numbers))[:_MOST_CHARTS],
        "older": named("model", name, before=shown[-1].version) if len(rows) > runview.PAGE else "",
        "newest": named("model", name) if before else "",
    }


def _model_version(request: Request, one: ModelVersion) -> Response:
    runs = one.run_ids
    holder = one.holders.get("production")
    shown = runs[: -runview.MOST_NAMES - 1 : -1]
    history = [row for row in one.history if one.version in (row.version, row.displaced)]
    existing = pages.state_of(request).store.records.existing([one.run_id, *shown, *(row.run_id for row in history)])
    return page(
        request,
        "model_version.html",
        title=f"{one.name} {one.version} · Stoker",
        one=one,
        metrics={name: number_text(value) for name, value in sorted(one.metrics.items())},
        metadata=_fact_texts(one.metadata),
        runs=shown,
        existing=existing,
        more_runs=len(runs[: -runview.MOST_NAMES]),
        production=holder if holder is not None and holder.version != one.version else None,
        history=history,
    )


def _comparison(request: Request, left: ModelVersion, right: ModelVersion) -> Response:
    store = pages.state_of(request).store
    found = model_diff(store, left, right)
    plans = [plan_of(store, run) if run is not None else None for run in found.runs]
    return page(
        request,
        "model_compare.html",
        title=f"{left.name} {left.version} and {right.version} · Stoker",
        left=left,
        right=right,
        existing=store.records.existing([left.run_id, right.run_id]),
        found=found,
        metrics=[(name, *_change(*pair)) for name, pair in found.metrics.items()],
        metadata=[(name, *map(_text, pair)) for name, pair in found.metadata.items()],
        parameters=[(name, *map(_text, pair)) for name, pair in found.parameters.items()],
        settings=compare.setting_differences(*plans),
        diff_of=compare.diff_of,
        step_address=runview.step_address,
    )


def _change(left: float | None, right: float | None) -> tuple[str, str, str]:
    words = ["" if value is None else number_text(value) for value in (left, right)]
    if left is None or right is None:
        return words[0], words[1], ""
    return words[0], words[1], ("+" if right > left else "") + number_text(right - left)


def _text(value: Any) -> str:
    return "" if value is None else fact_text(value)


# Changes


async def change(request: Request) -> Response:
    """Tag a version of an artifact or a model, or give one of a model a stage, as a form says."""
    from starlette.concurrency import run_in_threadpool

    form = dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))
    return await run_in_threadpool(_tag if form.get("do") == "tag" else _promote, request, form)


def _tag(request: Request, form: Mapping[str, str]) -> Response:
    there = pages.state_of(request)
    is_model = request.url.path.startswith("/models/")
    one = model_of(request)[0] if is_model else artifact_version(request)
    options = [name for name in ("move", "remove") if name in form]
    kind: Literal["model", "artifact"] = "model" if is_model else "artifact"
    words = actions.tag_words(kind, one.name, one.version, form.get("tag", "").strip(), options, stack=there.stack)
    address = named(kind, one.name, one.version)
    started = there.commands.start("tag", address, words, retry=address, user=_user(request, there))
    return RedirectResponse(f"/commands/{started.id}", status_code=303)


def _promotion(request: Request, one: ModelVersion, form: Mapping[str, str], problem: str = "") -> Response:
    there = pages.state_of(request)
    stage = form.get("stage", "").strip()
    words = actions.promote_words(one.name, one.version, "STAGE", stack=there.stack)
    return page(
        request,
        "promote.html",
        title=f"Promote {one.name} {one.version} · Stoker",
        code=400 if problem else 200,
        one=one,
        holders=one.holders,
        rules=one.rules,
        stages=[*STAGES, *(name for name in one.holders if name not in STAGES)],
        stage=stage,
        why=form.get("why", ""),
        command=actions.command_text(words),
        problem=problem,
        refused=there.access.read_only,
    )


def _promote(request: Request, form: Mapping[str, str]) -> Response:
    one, _ = model_of(request)
    try:
        started = start_promotion(request, one, form)
    except UsageError as error:
        return _promotion(request, one, form, str(error))
    return RedirectResponse(f"/commands/{started.id}", status_code=303)


def start_promotion(request: Request, one: ModelVersion, form: Mapping[str, str]) -> actions.StartedCommand:
    """Start the command that gives a version the stage of a form. `UsageError` for what is no stage.

    Who logged in at a reverse proxy does it.
    """
    there = pages.state_of(request)
    stage, why = form.get("stage", "").strip(), form.get("why", "").strip()
    words = actions.promote_words(one.name, one.version, stage, why=why, force="force" in form, stack=there.stack)
    address = named("model", one.name, one.version)
    again = url(address, {"do": "promote", "stage": stage, "why": why})
    return there.commands.start("promote", address, words, retry=again, user=_user(request, there))


def _user(request: Request, there: State) -> str:
    """Who a reverse proxy says sent a request; empty without one."""
    header = there.access.user_header
    text = request.headers.get(header, "").strip() if header else ""
    return text if text.isprintable() else ""
