"""The pages: what each address shows. Reading is by the client; `actions` starts what changes a run."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from typing import Any, Final, Mapping, Sequence
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from stoker.client import Client, Output, Run, Step
from stoker.client.logs import last_attempt
from stoker.client.runs import running_keys, step_status
from stoker.client.variants import Variant, element_variants, run_variants, sweep_of
from stoker.core.errors import NotFound, StokerError, UsageError
from stoker.core.status import RUN_DONE, STEP_DONE
from stoker.core.words import count_text, time_text
from stoker.report import cards, machine
from stoker.report.figures import MOST, metrics_part, sweep_facts
from stoker.report.machine import devices_text
from stoker.report.runreport import plan_of
from stoker.store.registry import ArtifactRow
from stoker.ui import access as rules
from stoker.ui import actions, artifacts, compare, rendering, runview, streams
from stoker.ui.artifacts import artifact_of, lineage_of, output_of
from stoker.ui.compare import variant_values
from stoker.ui.rendering import State, in_place, is_part, live, page, part, url
from stoker.ui.runview import RunQuery
from stoker.ui.streams import TooManyFollow

FRAME_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; media-src data:; frame-ancestors 'self'"
)
"""A page of a user's: it may draw, and reach neither this server nor any other."""
_PARAMETERS: Final = 160
"""Characters of a run's parameters in the list."""
_CAUSE: Final = 240
"""Characters of why a run failed there."""
_CODES: Final = ((NotFound, 404), (UsageError, 400), (TooManyFollow, 503))
_FILE_POLICY = "sandbox; default-src 'none'; frame-ancestors 'none'"


def state_of(request: Request) -> State:
    """What this server's pages share."""
    there: State = request.app.state.stoker
    return there


def run_of(request: Request) -> Run:
    """The run of an address."""
    there = state_of(request)
    _ = there.store
    return there.client.run(request.path_params["run"])


def step_of(request: Request, run: Run) -> Step:
    """The step that an address names by `key`."""
    return run.steps[request.query_params.get("key", "")]


# Runs


def home(request: Request) -> Response:
    """The first page is the list of runs."""
    return RedirectResponse("/runs", status_code=307)


def runs(request: Request) -> Response:
    """The list of runs."""
    there = state_of(request)
    query = RunQuery.parse(request.query_params)
    problem = ""
    try:
        found = runview.run_page(there.client, query)
    except (UsageError, NotFound) as error:
        problem, found = str(error), runview.RunPage(runs=(), more=False)
    failed = [run.id for run in found.runs if run.status == "failed"]
    causes = there.store.records.first_failures(failed)
    rows = [_run_row(run, causes.get(run.id)) for run in found.runs]
    counts = Counter(run.status for run in found.runs)
    older = url("/runs", {**query.as_dict(), "before": found.runs[-1].id}) if found.more else ""
    again: dict[str, Any] = {
        "address": url("/runs", query.as_dict()),
        "again": not problem,
        "rows": rows,
        "query": query,
        "older": older,
        "newest": url("/runs", {**query.as_dict(), "before": ""}) if query.before else "",
        "problem": problem,
        "url": url,
    }
    if is_part(request):
        return part(request, "runs_part.html", **again)
    section, _ = live(request, "runs_part.html", **again)
    if in_place(request):
        return HTMLResponse(section.markup)
    words = f"{counts['running']} running · " if counts["running"] else ""
    return page(
        request,
        "runs.html",
        title=f"{words}Runs · Stoker",
        state="running" if counts["running"] else "",
        section=section,
        query=query,
        statuses=runview.STATUSES,
        pipelines=sorted({run.pipeline for run in found.runs}),
        stacks=sorted({run.stack for run in found.runs if run.stack}),
        tags=sorted({tag for run in found.runs for tag in run.tags}),
    )


def _run_row(run: Run, failure: tuple[str, str, str] | None = None) -> Mapping[str, Any]:
    seconds = run.active_seconds
    parameters = [f"{name}={actions.value_text(value)}" for name, value in run.parameters.items()]
    return {
        "id": run.id,
        "pipeline": run.pipeline,
        "status": run.status,
        "created": run.created,
        "took": time_text(seconds) if seconds is not None else "",
        "since": run.started if run.status == "running" else None,
        "stack": run.stack,
        "tags": run.tags,
        "parameters": "  ".join(parameters)[:_PARAMETERS],
        "failed": failure[0] if failure else "",
        "cause": ": ".join(filter(None, failure[1:]))[:_CAUSE] if failure else "",
        "error": run.error or (f"unreadable: {run.damage}" if run.damage else ""),
    }


# A run


def run(request: Request) -> Response:
    """A run."""
    there = state_of(request)
    shown = run_of(request)
    values = _run_values(there, shown)
    title = f"{shown.status} · {shown.pipeline} {shown.id} · Stoker"
    if is_part(request):
        return part(request, "run_part.html", title=title, **values)
    section, _ = live(request, "run_part.html", **values)
    plan = plan_of(there.store, shown)
    return page(
        request,
        "run.html",
        title=title,
        state=shown.status,
        run=shown,
        section=section,
        findings=plan.findings if plan is not None else (),
    )


def _run_values(there: State, shown: Run) -> dict[str, Any]:
    store, plan = there.store, plan_of(there.store, shown)
    listed = runview.lines_of(store, shown)
    failures, more = runview.failures_of(shown)
    metrics = shown.metrics
    return {
        "address": f"/runs/{shown.id}",
        "again": shown.status == "running" or bool(shown.status == "interrupted" and shown.restarted_by),
        "state": shown.status,
        "run": shown,
        "took": time_text(shown.active_seconds) if shown.active_seconds is not None else "",
        "queue": time_text(shown.queue_seconds) if shown.queue_seconds >= 1.0 else "",
        "hours": runview.device_hours(store, shown),
        "cost": runview.cost(store, shown, plan),
        "good": runview.last_good(there.client, shown) if shown.status != "running" else None,
        "lines": listed,
        "failures": failures,
        "more_failures": more,
        "graph": runview.graph_of(shown, plan, listed),
        "timeline": runview.timeline_of(shown, listed),
        "metrics": runview.metric_lines(shown.id, {key: metrics[key] for key in shown.steps if key in metrics}),
        "fanouts": list(runview.fanout_charts(store, shown, metrics)),
        "outputs": runview.output_rows(shown),
        "names": runview.names_of_run(store, shown.id),
        "parameters": {name: actions.value_text(value) for name, value in shown.parameters.items()},
        "left_out": shown.left_out,
    }


# A step


def step(request: Request) -> Response:
    """A step of a run, or an element of a fan-out."""
    there, shown = state_of(request), run_of(request)
    one = step_of(request, shown)
    attempt = number_of(request.query_params.get("attempt"))
    values = _step_values(there, shown, one, attempt)
    title = f"{values['state']} · {one.key} · {shown.pipeline} {shown.id} · Stoker"
    variants = _element_values(request, shown, one) if _shows_variants(request, one) else {}
    if variants and in_place(request):
        return _variants_part(request, variants)
    if is_part(request):
        return part(request, "step_part.html", title=title, **values)
    section, _ = live(request, "step_part.html", **values)
    plan = plan_of(there.store, shown)
    planned = runview.plan_step(plan, one)
    reason, unknown = runview.reason_of(one)
    outputs, made = runview.outputs_of(one), runview.names_of_step(there.store, one)
    return page(
        request,
        "step.html",
        title=title,
        state=values["state"],
        run=shown,
        step=one,
        section=section,
        log=None if one.count is not None else _log_values(there, one, request, attempt),
        card=url(f"/runs/{shown.id}/card", key=one.key) if runview.card_of(there.store, one) else "",
        outputs=[_output_values(shown, one, output, made) for output in outputs.values()],
        saved=[row for name, rows in made.items() if name not in outputs for row in rows],
        settings=runview.settings_of(planned),
        planned=planned,
        reason=reason,
        diffs=[compare.diff_of(change.diff.splitlines()) for change in reason.changes] if reason is not None else [],
        unknown=unknown,
        inputs=one.inputs,
        sources=runview.source_rows(planned, one, shown),
        request_address=url(f"/runs/{shown.id}/request", key=one.key),
        variants=variants,
        variants_section=live(request, "variants_part.html", **variants)[0] if variants else "",
    )


def _shows_variants(request: Request, one: Step) -> bool:
    """Whether the elements of a fan-out are asked for: with the page, or by themselves."""
    return 0 < (one.count or 0) <= runview.MOST_VARIANTS and (
        not is_part(request) or "variants" in request.query_params
    )


def variants_of(request: Request, shown: Run, one: Step) -> list[Variant]:
    """The elements of a fan-out with what each was given and logged."""
    running = running_keys(shown, shown.placements)
    return element_variants(state_of(request).store, one, status_of=lambda element: step_status(element, running))


def _element_values(request: Request, shown: Run, one: Step) -> dict[str, Any]:
    sweep = sweep_of(state_of(request).store, one)
    values = variant_values(
        variants_of(request, shown, one),
        request.query_params,
        noun="element",
        title=f"elements of {one.key}",
        address=lambda more: url(f"/runs/{shown.id}/step", key=one.key, **more),
        page_of=lambda element: runview.step_address(shown.id, element.key),
        sweep=sweep,
    )
    if sweep is not None:
        values["sweep"] = sweep_facts(sweep, lambda key: runview.step_address(shown.id, key))
    return {**values, "again": one.status not in STEP_DONE and shown.status not in RUN_DONE}


def _variants_part(request: Request, values: Mapping[str, Any]) -> Response:
    """Elements or runs for a page that is there: as another choice has them, or as they are now."""
    if is_part(request):
        return part(request, "variants_part.html", **values)
    section, _ = live(request, "variants_part.html", **values)
    return HTMLResponse(section.markup)


def request_page(request: Request) -> Response:
    """What the step's platform is sent, for the page of the step; as a page of its own without scripts."""
    there, shown = state_of(request), run_of(request)
    one = step_of(request, shown)
    rendered = runview.request_of(plan_of(there.store, shown), one)
    values: dict[str, Any] = {"rendered": rendered, "document": runview.request_text(rendered)}
    if "hx-request" in request.headers:
        return HTMLResponse(rendering.environment().get_template("request_part.html").render(**values))
    title = f"request of {one.key} · {shown.pipeline} {shown.id} · Stoker"
    return page(request, "request.html", title=title, state=one.status, run=shown, step=one, **values)


def card_frame(request: Request) -> Response:
    """What a step's author put on its card, for a frame in which it can do nothing to this server's pages."""
    there, shown = state_of(request), run_of(request)
    one = step_of(request, shown)
    found = runview.card_of(there.store, one)
    if not found:
        raise NotFound(f"step '{one.key}' has no card", fix="`@card` and `current.card.append` make one")
    text = cards.card_page(found, title=f"card of {one.key}", state=one.status)
    return HTMLResponse(text, headers={"content-security-policy": FRAME_POLICY})


def _step_values(there: State, shown: Run, one: Step, attempt: int | None) -> dict[str, Any]:
    placements = shown.placements
    state = step_status(one, running_keys(shown, placements))
    placement = one.placement
    usage = one.usage
    receipt = one.receipt if one.count is None else None
    return {
        "verdict": receipt.verdict if receipt is not None else "",
        "cost": runview.cost(there.store, shown, plan_of(there.store, shown), one.key),
        "address": url(f"/runs/{shown.id}/step", key=one.key, attempt=attempt or ""),
        "again": one.status not in STEP_DONE and shown.status not in RUN_DONE,
        "state": state,
        "run": shown,
        "step": one,
        "took": time_text(one.seconds) if one.seconds is not None and one.status != "cached" else "",
        "usage": usage,
        "placement": placement,
        "failures": list(runview.failure_of(one)),
        "waits": runview.waits_of(shown, placements).get(one.key, "") if state == "pending" else "",
        "attempts": runview.attempt_rows(one),
        "attempt_heads": runview.ATTEMPT_HEADS,
        "receipt": runview.receipt_part(there.store, one, attempt) if one.count is None else "",
        "metrics": metrics_part(one.metrics),
    }


def _output_values(
    shown: Run, one: Step, output: Output, made: Mapping[str, Sequence[ArtifactRow]]
) -> Mapping[str, Any]:
    name = output.name
    return {
        "made": made.get(name, ()),
        "name": name if output.step == one.key else f"{name} of {output.step}",
        "output": output,
        "shape": "×".join(map(str, output.shape)) if output.shape is not None else "",
        "address": url(f"/runs/{shown.id}/artifact", key=one.key, name=name),
        "download": url(f"/runs/{shown.id}/artifact/file", key=one.key, name=name),
    }


# Lines


def _log_values(there: State, one: Step, request: Request, attempt: int | None) -> dict[str, Any]:
    query = request.query_params
    rank = streams.rank_of(query.get("rank", ""))
    found = streams.log_page(
        there.store,
        one,
        attempt=attempt,
        rank=rank,
        start=number_of(query.get("from")),
        query=query.get("q", "").strip(),
    )
    address = f"/runs/{one.run_id}/log"
    about = {"key": one.key, "attempt": found.attempt, "rank": "" if rank is None else rank}
    return {
        "page": found,
        "address": address,
        "about": about,
        "file": url(f"/runs/{one.run_id}/log/file", about),
        "stream": url(f"/runs/{one.run_id}/log/stream", about, offset=found.offset) if found.follows else "",
        "earlier": url(address, about, **{"from": max(1, found.first - streams.PAGE)}) if found.first > 1 else "",
        "later": url(address, about, **{"from": found.first + found.shown})
        if not found.query and found.first + found.shown <= found.total
        else "",
        "end": url(address, about),
        "at_end": not found.query and found.first + found.shown > found.total,
    }


def log(request: Request) -> Response:
    """Lines of an attempt, for a page that is there; as a page of its own without scripts."""
    there, shown = state_of(request), run_of(request)
    one = step_of(request, shown)
    values = _log_values(there, one, request, number_of(request.query_params.get("attempt")))
    if "hx-request" in request.headers:
        text = rendering.environment().get_template("log_part.html").render(log=values)
        return HTMLResponse(text)
    title = f"log of {one.key} · {shown.pipeline} {shown.id} · Stoker"
    return page(request, "log.html", title=title, state=one.status, run=shown, step=one, log=values)


def log_file(request: Request) -> Response:
    """A whole log as a file."""
    there, shown = state_of(request), run_of(request)
    one = step_of(request, shown)
    number = number_of(request.query_params.get("attempt")) or last_attempt(there.store, shown.id, one.key)
    rank = streams.rank_of(request.query_params.get("rank", ""))
    body = streams.text_lines(there.store, one, number, rank)
    name = f"{shown.pipeline}-{shown.id}-{one.key}-{number}.txt"
    return StreamingResponse(body, media_type="text/plain; charset=utf-8", headers=_attachment(name))


async def log_stream(request: Request) -> Response:
    """New lines of an attempt, as server-sent events."""
    from starlette.concurrency import run_in_threadpool

    there = state_of(request)
    shown = await run_in_threadpool(run_of, request)
    one = await run_in_threadpool(step_of, request, shown)
    there.streams.check()  # last: the next one that follows begins at once
    attempt = number_of(request.query_params.get("attempt")) or 1
    rank = streams.rank_of(request.query_params.get("rank", ""))
    offset = number_of(request.headers.get("last-event-id")) or number_of(request.query_params.get("offset")) or 0
    events = there.streams.follow(there.store, (shown.id, one.key, attempt, rank), offset)
    return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


# Artifacts


def artifact(request: Request) -> Response:
    """An output of a step: what is in it, which steps made it, which used it."""
    there, shown = state_of(request), run_of(request)
    output = output_of(shown, request.query_params.get("key", ""), request.query_params.get("name", ""))
    about = {"key": output.step, "name": output.name}
    return page(
        request,
        "artifact.html",
        title=f"{output.name} of {output.step} · {shown.pipeline} {shown.id} · Stoker",
        state=shown.status,
        run=shown,
        output=output,
        shape="×".join(map(str, output.shape)) if output.shape is not None else "",
        preview=artifacts.preview(
            output,
            artifact_of(there.store, output),
            there.store.blobs,
            address=url(f"/runs/{shown.id}/artifact/image", about),
            frame=url(f"/runs/{shown.id}/artifact/frame", about),
        ),
        download=url(f"/runs/{shown.id}/artifact/file", about),
        lineage=lineage_of(there.store, output, shown),
        names=there.store.registry.named(output.digest)[: runview.MOST_NAMES],
        step_address=runview.step_address,
    )


def artifact_file(request: Request) -> Response:
    """The bytes of an output."""
    return file_of(_output_of(request))


def artifact_image(request: Request) -> Response:
    """The bytes of an output that is a picture by its first bytes."""
    return image_of(_output_of(request))


def artifact_frame(request: Request) -> Response:
    """An output that is a page, for a frame in which it can do nothing to this server's pages."""
    return frame_of(_output_of(request))


def _output_of(request: Request) -> Output:
    return output_of(run_of(request), request.query_params.get("key", ""), request.query_params.get("name", ""))


def file_of(output: Output) -> Response:
    """The bytes of an output, to be kept as a file."""
    headers = {**_attachment(artifacts.file_name(output)), "content-length": str(output.size)}
    headers["content-security-policy"] = _FILE_POLICY
    return StreamingResponse(_pieces(output.open()), media_type="application/octet-stream", headers=headers)


def image_of(output: Output) -> Response:
    """The bytes of an output that is a picture. `NotFound` for another."""
    kind = artifacts.image_type(output)
    if not kind:
        raise NotFound(f"{artifacts.title_of(output)} is no picture", fix="download it")
    headers = {"content-security-policy": _FILE_POLICY, "content-length": str(output.size)}
    return StreamingResponse(_pieces(output.open()), media_type=kind, headers=headers)


def frame_of(output: Output) -> Response:
    """An output that is a page, for a frame. `NotFound` for another."""
    if not artifacts.is_page(output):
        raise NotFound(f"{artifacts.title_of(output)} is no page", fix="download it")
    headers = {"content-security-policy": FRAME_POLICY}
    return StreamingResponse(_pieces(output.open()), media_type="text/html; charset=utf-8", headers=headers)


def _pieces(file: Any) -> Any:
    with file:
        while data := file.read(1024 * 1024):
            yield data


def _attachment(name: str) -> dict[str, str]:
    return {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}


# Runs side by side


def comparison(request: Request) -> Response:
    """Two runs side by side, or up to two hundred by what they were given."""
    there = state_of(request)
    ids = [id for id in request.query_params.getlist("run") if id]
    if len(ids) == 1:
        good = runview.last_good(there.client, there.client.run(ids[0]))
        if good is not None:
            return RedirectResponse(url("/compare") + f"?run={quote(good.id)}&run={quote(ids[0])}", status_code=303)
    if 2 < len(ids) <= MOST:
        return _many_runs(request, [there.client.run(id) for id in dict.fromkeys(ids)])
    if len(ids) != 2:
        runs_there = there.client.runs(limit=runview.PAGE)
        return page(
            request,
            "choose.html",
            title="Compare runs · Stoker",
            runs=[_run_row(one) for one in runs_there],
            chosen=ids,
            problem=f"{count_text(len(ids), 'run')} chosen; two to {MOST} can be compared." if ids else "",
        )
    left, right = (there.client.run(id) for id in ids)
    found = compare.compare(there.store, left, right)
    title = f"{left.id} and {right.id} · Stoker"
    failures = {one.id: runview.failures_of(one)[0][:1] for one in (left, right)}
    return page(
        request,
        "compare.html",
        title=title,
        found=found,
        left=left,
        right=right,
        failures=failures,
        seconds_text=time_text,
    )


def _many_runs(request: Request, runs: Sequence[Run]) -> Response:
    pairs = [("run", run.id) for run in runs]
    values = variant_values(
        run_variants(runs),
        request.query_params,
        noun="run",
        title="runs",
        address=lambda more: f"/compare?{urlencode([*pairs, *more.items()])}",
        page_of=lambda run: f"/runs/{run.key}",
    )
    values["again"] = any(run.status not in RUN_DONE for run in runs)
    if in_place(request):
        return _variants_part(request, values)
    section, _ = live(request, "variants_part.html", **values)
    title = f"Compare {count_text(len(runs), 'run')} · Stoker"
    return page(request, "compare_runs.html", title=title, runs=pairs, variants=values, variants_section=section)


# Devices


def schedules(request: Request) -> Response:
    """When pipelines are run next, and what became of the last times, with those that were missed."""
    from stoker.client.schedules import schedules_of

    rows = [(one.as_dict(), one.history()) for one in schedules_of(Client(store=state_of(request).store), time.time())]
    return page(request, "schedules.html", title="Schedules", rows=rows)


def devices(request: Request) -> Response:
    """This machine's accelerators."""
    from stoker.devices.probe import probe, processes

    inventory = probe()
    document = machine.document(inventory, machine.by_device(processes(inventory)), machine.entries(inventory))
    values: dict[str, Any] = {
        "address": "/devices",
        "again": True,
        "found": document,
        "nodes": state_of(request).nodes.known(),
        "devices_text": devices_text,
        "step_address": runview.step_address,
    }
    if is_part(request):
        return part(request, "devices_part.html", **values)
    section, _ = live(request, "devices_part.html", **values)
    return page(request, "devices.html", title="Devices · Stoker", section=section)


# What changes a run


def action(request: Request) -> Response:
    """The question whether a run is to be cancelled, gone on with or started again."""
    there, shown = state_of(request), run_of(request)
    what = _action(request)
    return _question(request, there, shown, what)


def _question(
    request: Request,
    there: State,
    shown: Run,
    what: actions.Action,
    *,
    problem: str = "",
    form: Mapping[str, str] | None = None,
) -> Response:
    parameters = {name: actions.value_text(value) for name, value in shown.parameters.items()}
    kept = {name: (form or {}).get(f"parameter.{name}", text) for name, text in parameters.items()}
    titles = {"cancel": "Cancel run", "resume": "Resume run", "rerun": "Run again"}
    words = {
        "cancel": actions.cancel_words(shown.id, stack=there.stack),
        "resume": actions.resume_words(shown.id, stack=there.stack),
        "rerun": actions.rerun_words(shown.id, actions.Rerun(), stack=there.stack),
    }[what]
    return page(
        request,
        f"{what}.html",
        title=f"{titles[what]} {shown.id} · Stoker",
        state=shown.status,
        code=400 if problem else 200,
        run=shown,
        heading=titles[what],
        command=actions.command_text(words),
        parameters=parameters,
        kept=kept,
        form=form or {},
        steps=list(shown.steps),
        problem=problem,
        refused=there.access.read_only,
    )


async def do_action(request: Request) -> Response:
    """Do what the question was about."""
    from starlette.concurrency import run_in_threadpool

    body = (await request.body()).decode("utf-8", "replace")
    form = dict(parse_qsl(body, keep_blank_values=True))
    return await run_in_threadpool(_do_action, request, form)


def _do_action(request: Request, form: Mapping[str, str]) -> Response:
    there, shown = state_of(request), run_of(request)
    what = _action(request)
    try:
        words = words_of(there, shown, what, form)
    except UsageError as error:
        return _question(request, there, shown, what, problem=str(error), form=form)
    command = there.commands.start(what, f"/runs/{shown.id}", words)
    return RedirectResponse(f"/commands/{command.id}", status_code=303)


def words_of(there: State, shown: Run, what: actions.Action, form: Mapping[str, str]) -> list[str]:
    """The command that a form asks for."""
    if what == "cancel":
        return actions.cancel_words(shown.id, now="now" in form, stack=there.stack)
    if what == "resume":
        return actions.resume_words(shown.id, stack=there.stack)
    parameters = {name: actions.value_text(value) for name, value in shown.parameters.items()}
    return actions.rerun_words(shown.id, actions.rerun_of(form, parameters), stack=there.stack)


def command(request: Request) -> Response:
    """What became of a command; its browser goes on to the run as soon as there is one."""
    there = state_of(request)
    started = there.commands[request.path_params["command"]]
    target = target_of(there, started)
    address = started.page if not started.run and started.code == 0 else target and f"/runs/{target}"
    if address:
        if "hx-request" in request.headers:
            return Response(status_code=200, headers={"hx-redirect": address})
        return RedirectResponse(address, status_code=303)
    code = started.code
    values: dict[str, Any] = {
        "address": f"/commands/{started.id}",
        "again": code is None,
        "command": started,
        "exit_code": code,
    }
    if is_part(request):
        return part(request, "command_part.html", **values)
    section, _ = live(request, "command_part.html", **values)
    state = "running" if code is None else "failed" if code else "succeeded"
    return page(
        request, "command.html", title=f"{started.text} · Stoker", state=state, section=section, command=started
    )


def target_of(there: State, started: actions.StartedCommand) -> str:
    """The run that a command led to; empty while it works, and where it failed."""
    if not started.run:
        return ""
    code = started.code
    run = there.client.run(started.run)
    if started.action == "rerun":
        return new_run(there, started) if code == 0 else ""
    if started.action == "resume":
        begun = run.status == "running" or (code is not None and run.status == "succeeded")
        return run.id if begun or code == 0 else ""
    return run.id if code == 0 else ""


def new_run(there: State, started: actions.StartedCommand) -> str:
    """The run that a command made: the first that repeats the other since then."""
    begun = datetime.datetime.fromtimestamp(started.started, datetime.timezone.utc)
    made = [one.id for one in there.client.runs(since=begun, limit=None) if one.origin == started.run]
    return made[-1] if made else ""


def _action(request: Request) -> actions.Action:
    name = request.path_params["action"]
    for known in actions.ACTIONS:
        if name == known:
            return known
    raise NotFound(f"nothing is called '{name}' here", fix="use the page's own buttons")


# Logging in


def login(request: Request) -> Response:
    """Where a token is shown once; the address that the server prints has it."""
    there = state_of(request)
    token = request.query_params.get("token", "")
    following = _own_address(request.query_params.get("next", "/runs"))
    if token:
        return _logged_in(request, there, token, following)
    return page(request, "login.html", title="Log in · Stoker", following=following, problem="")


async def do_login(request: Request) -> Response:
    """Take the token of the form."""
    form = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
    return _logged_in(request, state_of(request), form.get("token", ""), _own_address(form.get("next", "/runs")))


def _logged_in(request: Request, there: State, token: str, following: str) -> Response:
    if not there.access.token or not rules.same(token.strip(), there.access.token):
        problem = "This is not the token of this server."
        return page(request, "login.html", title="Log in · Stoker", code=403, following=following, problem=problem)
    response = RedirectResponse(following, status_code=303)
    response.set_cookie(
        rules.COOKIE,
        rules.cookie_of(there.access.token),
        max_age=30 * 24 * 3600,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https",
    )
    return response


def logout(request: Request) -> Response:
    """Forget the token in this browser."""
    response = RedirectResponse(rules.LOGIN, status_code=303)
    response.delete_cookie(rules.COOKIE)
    return response


def _own_address(text: str) -> str:
    """An address of this server; the list of runs for any other."""
    parts = urlsplit(text)
    own = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.netloc and not parts.scheme
    return text if own and text.isprintable() else "/runs"


def number_of(text: str | None) -> int | None:
    """The number that an address has; None for what is none."""
    return int(text) if text and text.isdecimal() and len(text) < 16 else None


def problem(request: Request, error: Exception) -> Response:
    """What an error of Stoker's own says, as a page."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), 500)
    message, fix = (error.message, error.fix) if isinstance(error, StokerError) else (str(error), "")
    return rendering.error_page(request, code, message, fix)


def missing(request: Request, error: Exception) -> Response:
    """An address that is none."""
    del error
    return rendering.error_page(request, 404, f"There is nothing at {request.url.path}.", "begin with the list of runs")


def defect(request: Request, error: Exception) -> Response:
    """That a page could not be made; the server's log has the traceback."""
    message = f"{type(error).__name__} inside Stoker, which should not happen"
    return rendering.error_page(request, 500, message, "report what `stoker ui` printed in its terminal")
