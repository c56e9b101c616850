"""The pages' content as JSON, and its description in OpenAPI: both are made of one table."""

from __future__ import annotations

import json
from typing import Any, Callable, Final, Mapping, Sequence

import attrs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.client import ModelVersion
from stoker.client.names import model_diff
from stoker.client.runs import run_document
from stoker.client.variants import run_variants
from stoker.core.codec import to_json
from stoker.core.errors import NotFound, StokerError, UsageError
from stoker.core.words import count_text
from stoker.report import machine
from stoker.report.figures import MOST
from stoker.report.runreport import plan_of
from stoker.ui import actions, compare, names, pages, runview, streams
from stoker.ui.artifacts import lineage_of, output_of
from stoker.ui.names import NameQuery
from stoker.ui.runview import RunQuery

PREFIX: Final = "/api/v1"
_VERSION: Final = "1"
_MOST: Final = 500
"""Runs, names and versions of one answer."""
_PLATFORM: Final = 10.0
"""Seconds that an answer waits for a stack's platforms to tell their nodes."""


@attrs.frozen(kw_only=True)
class AddressParameter:
    """A parameter of an endpoint's address."""

    name: str
    what: str
    place: str = "query"
    required: bool = False
    kind: str = "string"


@attrs.frozen(kw_only=True)
class Endpoint:
    """One address of the API."""

    path: str
    summary: str
    answer: Callable[[Request], Any]
    """The document of an answer."""
    parameters: Sequence[AddressParameter] = ()
    method: str = "GET"
    body: Mapping[str, Any] | None = None
    """The JSON schema of what is sent; None for nothing."""


RUN: Final = AddressParameter(
    name="run", what="a run's id, the beginning of one, or latest", place="path", required=True
)
KEY: Final = AddressParameter(name="key", what="a step's key, such as train or train[3]", required=True)
NAME: Final = AddressParameter(
    name="name", what="NAME, or NAME@VERSION as in `stoker pull`", place="path", required=True
)
TEXT: Final = AddressParameter(name="text", what="part of a name")
BEFORE: Final = AddressParameter(
    name="before", what="a name: what follows it in the list, as `next` of an earlier answer says"
)
LIMIT: Final = AddressParameter(name="limit", what=f"how many, {_MOST} at most", kind="integer")
ATTEMPT: Final = AddressParameter(name="attempt", what="an attempt's number; the newest if left out", kind="integer")


def runs(request: Request) -> Any:
    """Runs, newest first."""
    there = pages.state_of(request)
    found = runview.run_page(there.client, RunQuery.parse(request.query_params), size=_size(request))
    return {
        "runs": [run.as_dict(steps=False) for run in found.runs],
        "next": found.runs[-1].id if found.more else None,
    }


def run(request: Request) -> Any:
    """A run with its steps."""
    there, shown = pages.state_of(request), pages.run_of(request)
    hours = runview.device_hours(there.store, shown)
    cost = runview.cost(there.store, shown, plan_of(there.store, shown))
    document = run_document(shown, elements="elements" in request.query_params)
    return {**document, "device_hours": hours or None, "cost": cost or None}


def step(request: Request) -> Any:
    """A step with its attempts, outputs and settings."""
    there, shown = pages.state_of(request), pages.run_of(request)
    one = pages.step_of(request, shown)
    planned = runview.plan_step(plan_of(there.store, shown), one)
    reason, unknown = runview.reason_of(one)
    return {
        **one.as_dict(),
        "settings": [dict(zip(("setting", "value", "origin"), row)) for row in runview.settings_of(planned)],
        "why": reason.as_dict() if reason is not None else {"unknown": unknown},
    }


def rendered(request: Request) -> Any:
    """What a step's platform is sent."""
    there, shown = pages.state_of(request), pages.run_of(request)
    return to_json(runview.request_of(plan_of(there.store, shown), pages.step_of(request, shown)))


def log(request: Request) -> Any:
    """Lines of an attempt."""
    one = pages.step_of(request, pages.run_of(request))
    attempt = pages.number_of(request.query_params.get("attempt"))
    rank = streams.rank_of(request.query_params.get("rank", ""))
    tail = min(10_000, pages.number_of(request.query_params.get("tail")) or streams.PAGE)
    found = list(one.logs(attempt, rank=rank, tail=tail))
    return {"lines": [streams.line_document(line, number) for number, line in enumerate(found, 1)]}


def metrics(request: Request) -> Any:
    """What a step logged of itself, with the points that are kept; of a fan-out what each element did, without them."""
    shown = pages.run_of(request)
    one = pages.step_of(request, shown)
    if one.count is not None:
        return {"elements": [variant.as_dict() for variant in pages.variants_of(request, shown, one)]}
    logged = one.metrics
    return {
        "metrics": {
            name: {
                **metric.as_dict(),
                "points": {
                    str(rank): [[point.step, point.time, _number(point.value)] for point in metric.rank(rank).points]
                    for rank in metric.ranks
                },
            }
            for name, metric in logged.items()
        },
        "facts": dict(logged.facts),
    }


def lineage(request: Request) -> Any:
    """Which steps made an output's bytes, and which took them."""
    there, shown = pages.state_of(request), pages.run_of(request)
    output = output_of(shown, request.query_params.get("key", ""), request.query_params.get("name", ""))
    found = lineage_of(there.store, output, shown)
    return {
        "output": output.as_dict(),
        "made_by": [maker.as_dict() for maker in found.makers],
        "used_by": [dict(zip(("run", "step", "input"), user)) for user in found.users],
    }


def comparison(request: Request) -> Any:
    """How two runs differ, or what each of more was given and logged."""
    there = pages.state_of(request)
    ids = request.query_params.getlist("run")
    if not 2 <= len(ids) <= MOST:
        raise UsageError(f"{count_text(len(ids), 'run')} named, not two to {MOST}", fix="write ?run=ID&run=ID")
    named = [there.client.run(id) for id in ids]
    if len(named) > 2:
        return {"runs": [variant.as_dict() for variant in run_variants(named)]}
    return compare.compare(there.store, *named).as_dict()


def artifacts(request: Request) -> Any:
    """Named artifacts, the one that changed last first."""
    query, size = NameQuery.parse(request.query_params), _size(request)
    found, more = names.found_artifacts(pages.state_of(request), query, size=size)
    return {"artifacts": [one.as_dict() for one in found], "next": found[-1].name if more else None}


def artifact(request: Request) -> Any:
    """A version of an artifact."""
    one = names.artifact_version(request)
    inputs = {name: made.as_dict() for name, made in one.inputs.items()}
    return {
        **one.as_dict(),
        "inputs": inputs,
        "users": [attrs.asdict(use) for use in one.users],
        "models": [{"name": model.name, "version": model.version, "stage": model.stage} for model in one.models],
        "versions": [older.as_dict() for older in one.versions[: _size(request)]],
    }


def models(request: Request) -> Any:
    """Models, the one that changed last first."""
    query, size = NameQuery.parse(request.query_params), _size(request)
    found, more = names.found_models(pages.state_of(request), query, size=size)
    documents = [{**one.as_dict(), "stages": _stages(one)} for one in found]
    return {"models": documents, "next": found[-1].name if more else None}


def model(request: Request) -> Any:
    """A version of a model, and how it differs from another one."""
    there = pages.state_of(request)
    one, _ = names.model_of(request)
    other = request.query_params.get("compare")
    difference = model_diff(there.store, there.client.model(one.name, other), one).as_dict() if other else None
    return {
        **one.as_dict(),
        "stages": _stages(one),
        "rules": one.rules,
        "history": [attrs.asdict(row) for row in one.history],
        "versions": [version.as_dict() for version in one.versions[: _size(request)]],
        "difference": difference,
    }


def promote(request: Request) -> Any:
    """Start the command that gives a version of a model a stage."""
    body: Mapping[str, Any] = request.state.body
    unknown = set(body) - set(_PROMOTE_BODY["properties"])
    if unknown:
        raise UsageError(f"there is no field '{min(unknown)}'", fix="see /api/v1/openapi.json")
    form = {"stage": str(body.get("stage", "")), "why": str(body.get("why", ""))}
    one, _ = names.model_of(request)
    started = names.start_promotion(request, one, {**form, **({"force": "1"} if body.get("force") is True else {})})
    return _command_document(request, started)


def _stages(one: ModelVersion) -> dict[str, int]:
    return {stage: holder.version for stage, holder in one.holders.items()}


def _size(request: Request) -> int:
    return min(_MOST, pages.number_of(request.query_params.get("limit")) or runview.PAGE)


def devices(request: Request) -> Any:
    """This machine's accelerators, their leases, who waits, and the nodes of the stack's platforms."""
    from stoker.devices.probe import probe, processes

    inventory = probe()
    found = machine.document(inventory, machine.by_device(processes(inventory)), machine.entries(inventory))
    return {**found, "nodes": to_json(pages.state_of(request).nodes.known(patience=_PLATFORM))}


def command(request: Request) -> Any:
    """What became of a command."""
    there = pages.state_of(request)
    started = there.commands[request.path_params["command"]]
    return _command_document(request, started)


def openapi(request: Request) -> Any:
    """This description."""
    del request
    return description()


def _command_document(request: Request, started: actions.StartedCommand) -> dict[str, Any]:
    there = pages.state_of(request)
    return {
        "id": started.id,
        "command": started.text,
        "exit_code": started.code,
        "output": started.output,
        "run": pages.target_of(there, started) or None,
    }


def _change(what: actions.Action) -> Callable[[Request], Any]:
    def change(request: Request) -> Any:
        there, shown = pages.state_of(request), pages.run_of(request)
        body: Mapping[str, Any] = request.state.body
        if what == "rerun":
            words = actions.rerun_words(shown.id, _rerun(body), stack=there.stack)
        elif what == "cancel":
            words = actions.cancel_words(shown.id, now=body.get("now") is True, stack=there.stack)
        else:
            words = actions.resume_words(shown.id, stack=there.stack)
        return _command_document(request, there.commands.start(what, f"/runs/{shown.id}", words))

    return change


def _rerun(body: Mapping[str, Any]) -> actions.Rerun:
    """What a document asks for. `UsageError` for what is none of the schema's."""
    known = _RERUN_BODY["properties"]
    for name in body:
        if name not in known:
            raise UsageError(f"there is no field '{name}'", fix=f"known are {', '.join(known)}")
    parameters, settings = body.get("parameters", {}), body.get("settings", [])
    if not isinstance(parameters, dict) or not isinstance(settings, list):
        raise UsageError("parameters is an object, settings a list of KEY=VALUE", fix="see /api/v1/openapi.json")
    form = {f"parameter.{name}": actions.value_text(value) for name, value in parameters.items()}
    form["settings"] = "\n".join(map(str, settings))
    form["from"] = str(body.get("from", ""))
    form["code"] = str(body.get("code", "current"))
    form["tags"] = ",".join(map(str, body.get("tags", ())))
    if body.get("cache") is False:
        form["no_cache"] = "1"
    return actions.rerun_of(form, dict.fromkeys((str(name) for name in parameters), ""))


_RERUN_BODY: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "parameters": {"type": "object", "description": "parameters of the pipeline that change, by name"},
        "settings": {"type": "array", "items": {"type": "string"}, "description": "KEY=VALUE, as after --set"},
        "from": {"type": "string", "description": "the step from which it runs again"},
        "code": {"type": "string", "enum": ["current", "original"]},
        "cache": {"type": "boolean", "description": "false: run every step"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "additionalProperties": False,
}
_CANCEL_BODY: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"now": {"type": "boolean", "description": "without giving steps time to leave"}},
}
_PROMOTE_BODY: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "stage": {"type": "string", "description": "staging, production, archived, or one of your own"},
        "why": {"type": "string", "description": "the reason, which the history keeps"},
        "force": {"type": "boolean", "description": "true: although a rule of the stage is not fulfilled"},
    },
    "required": ["stage"],
    "additionalProperties": False,
}

ENDPOINTS: Final[Sequence[Endpoint]] = (
    Endpoint(
        path="/runs",
        summary="Runs, newest first",
        answer=runs,
        parameters=(
            AddressParameter(name="text", what="part of an id, of a pipeline's name or of a tag"),
            AddressParameter(name="pipeline", what="a pipeline's name"),
            AddressParameter(name="status", what=f"one of {', '.join(runview.STATUSES)}"),
            AddressParameter(name="tag", what="a tag"),
            AddressParameter(name="stack", what="a stack's name"),
            AddressParameter(name="since", what="how long ago at most, such as 2h"),
            AddressParameter(name="before", what="a run's id: only older ones, as `next` of an earlier answer says"),
            LIMIT,
        ),
    ),
    Endpoint(
        path="/runs/{run}",
        summary="A run with its steps",
        answer=run,
        parameters=(RUN, AddressParameter(name="elements", what="also every element of fan-outs, if it is there")),
    ),
    Endpoint(
        path="/runs/{run}/step", summary="A step, its settings, and why it ran", answer=step, parameters=(RUN, KEY)
    ),
    Endpoint(
        path="/runs/{run}/request",
        summary="What a step's platform is sent, with secrets masked",
        answer=rendered,
        parameters=(RUN, KEY),
    ),
    Endpoint(
        path="/runs/{run}/log",
        summary="The last lines of an attempt",
        answer=log,
        parameters=(
            RUN,
            KEY,
            ATTEMPT,
            AddressParameter(name="rank", what="a rank's number, or launcher"),
            AddressParameter(name="tail", what="how many lines, 10,000 at most", kind="integer"),
        ),
    ),
    Endpoint(
        path="/runs/{run}/metrics",
        summary="What a step logged of itself; of a fan-out what each element was given and logged",
        answer=metrics,
        parameters=(RUN, KEY),
    ),
    Endpoint(
        path="/runs/{run}/lineage",
        summary="Which steps made an output, and which took it",
        answer=lineage,
        parameters=(RUN, KEY, AddressParameter(name="name", what="an output's name", required=True)),
    ),
    Endpoint(
        path="/compare",
        summary="How two runs differ; of more, what each was given and logged",
        answer=comparison,
        parameters=(
            AddressParameter(name="run", what=f"a run's id; given twice, or up to {MOST} times", required=True),
        ),
    ),
    Endpoint(
        path="/artifacts",
        summary="Named artifacts, the one that changed last first (with a tag, by name): the latest version of each",
        answer=artifacts,
        parameters=(TEXT, AddressParameter(name="tag", what="a tag: the newest version that has it"), BEFORE, LIMIT),
    ),
    Endpoint(
        path="/artifacts/{name:path}",
        summary="A version of an artifact: of what it was made, who used it, and the other versions",
        answer=artifact,
        parameters=(NAME, LIMIT),
    ),
    Endpoint(
        path="/models",
        summary="Models, the one that changed last first: the latest version of each, and its stages",
        answer=models,
        parameters=(TEXT, AddressParameter(name="stage", what="a stage: the version that has it"), BEFORE, LIMIT),
    ),
    Endpoint(
        path="/models/{name:path}",
        summary="A version of a model: its metrics and artifacts, the other versions, rules and promotions",
        answer=model,
        parameters=(NAME, AddressParameter(name="compare", what="a version of the same model: how they differ"), LIMIT),
    ),
    Endpoint(
        path="/models/{name:path}/promote",
        summary="Give a version of a model a stage",
        answer=promote,
        parameters=(NAME,),
        method="POST",
        body=_PROMOTE_BODY,
    ),
    Endpoint(
        path="/devices", summary="This machine's accelerators and their leases, and the stack's nodes", answer=devices
    ),
    Endpoint(
        path="/runs/{run}/cancel",
        summary="Ask a run to stop",
        answer=_change("cancel"),
        parameters=(RUN,),
        method="POST",
        body=_CANCEL_BODY,
    ),
    Endpoint(
        path="/runs/{run}/resume",
        summary="Go on with a run where it stopped",
        answer=_change("resume"),
        parameters=(RUN,),
        method="POST",
        body={"type": "object"},
    ),
    Endpoint(
        path="/runs/{run}/rerun",
        summary="Start a run again, with changes",
        answer=_change("rerun"),
        parameters=(RUN,),
        method="POST",
        body=_RERUN_BODY,
    ),
    Endpoint(
        path="/commands/{command}",
        summary="What became of a command that one of these started",
        answer=command,
        parameters=(AddressParameter(name="command", what="the id that it was given", place="path", required=True),),
    ),
    Endpoint(path="/openapi.json", summary="This description", answer=openapi),
)
"""Everything that the API answers."""


def routes() -> list[Route]:
    """The addresses of the API."""
    return [Route(PREFIX + one.path, _handler(one), methods=[one.method]) for one in ENDPOINTS]


def description() -> dict[str, Any]:
    """The API in OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for one in ENDPOINTS:
        entry: dict[str, Any] = {
            "summary": one.summary,
            "parameters": [
                {
                    "name": parameter.name,
                    "in": parameter.place,
                    "required": parameter.required,
                    "description": parameter.what,
                    "schema": {"type": parameter.kind},
                }
                for parameter in one.parameters
            ],
            "responses": {
                "200": {"description": "the answer", "content": {"application/json": {"schema": {"type": "object"}}}},
                "400": {"description": "what was asked makes no sense", "content": _ERROR},
                "401": {"description": "the server asks for its token", "content": _ERROR},
                "403": {"description": "refused: see `error`", "content": _ERROR},
                "404": {"description": "there is none", "content": _ERROR},
            },
        }
        if one.body is not None:
            entry["requestBody"] = {"content": {"application/json": {"schema": one.body}}}
        paths.setdefault(PREFIX + one.path.replace(":path}", "}"), {})[one.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stoker",
            "version": _VERSION,
            "summary": "Runs, steps, logs, metrics, artifacts, models and devices",
        },
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


_ERROR: Final[Mapping[str, Any]] = {
    "application/json": {
        "schema": {"type": "object", "properties": {"error": {"type": "string"}, "fix": {"type": "string"}}}
    }
}


def _handler(endpoint: Endpoint) -> Callable[[Request], Any]:
    def answer(request: Request) -> Response:
        try:
            return _json(endpoint.answer(request))
        except StokerError as error:
            code = 404 if isinstance(error, NotFound) else 400 if isinstance(error, UsageError) else 500
            return _json({"error": error.message, "fix": error.fix}, code)

    if endpoint.method == "GET":
        return answer

    async def change(request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        try:
            body = json.loads(await request.body() or b"{}")
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return _json({"error": "the body is no JSON object", "fix": "see /api/v1/openapi.json"}, 400)
        request.state.body = body
        return await run_in_threadpool(answer, request)

    return change


def _json(document: Any, code: int = 200) -> Response:
    """A document; numbers that JSON lacks are null, and what is no JSON is text."""
    text = json.dumps(_finite(document), ensure_ascii=False, default=str)
    return Response(text.encode("utf-8", "replace"), status_code=code, media_type="application/json")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _number(value: float) -> float | None:
    return value if value - value == 0 else None
