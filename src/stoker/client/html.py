"""Renders runs, steps and outputs as HTML tables for notebooks, from their JSON. Self-contained, for light and dark."""

from __future__ import annotations

import base64
from html import escape
from typing import Any, Final, Mapping, Sequence

from stoker.client.metrics import usage_of_document
from stoker.core import receipt as words
from stoker.core.artifact import Preview
from stoker.core.codec import from_json
from stoker.core.receipt import Receipt
from stoker.core.words import attempts_text, count_text, memory_text, time_text

ROWS: Final = 200
"""Rows of a table: with more, a page gets slow. Steps that failed are always among them."""
_COLOURS: Final[Mapping[str, str]] = {
    "succeeded": "#2e8b57",
    "cached": "#3f87a6",
    "running": "#b8860b",
    "failed": "#cd3b3b",
    "interrupted": "#cd3b3b",
    "cancelled": "#b8860b",
}
_VERDICTS: Final[Mapping[str, str]] = {
    "used": "#2e8b57",
    "idle": "#b8860b",
    "wrong-device": "#cd3b3b",
    "cpu-fallback": "#b8860b",
}
_OTHER_COLOUR: Final = "#808080"
_TABLE: Final = "border-collapse:collapse;text-align:left;font-variant-numeric:tabular-nums"
_CELL: Final = "padding:2px 12px 2px 0;text-align:left;vertical-align:top"
_TEXT: Final = "margin:4px 0;white-space:pre-wrap;overflow-wrap:anywhere"
_PRE: Final = "margin:4px 0;padding:6px 8px;border-left:3px solid #cd3b3b;white-space:pre-wrap;overflow-wrap:anywhere"


def run(document: Mapping[str, Any]) -> str:
    """A run with its steps, from `Run.as_dict`."""
    steps: Sequence[Mapping[str, Any]] = document["steps"]
    facts = {
        "started": _time(document["started"] or document["created"]),
        "took": _took(document["seconds"]),
        "stack": document["stack"],
        "source": document["source"],
        "parameters": ", ".join(f"{name}={value!r}" for name, value in document["parameters"].items()),
        "tags": ", ".join(document["tags"]),
        "sessions": str(document["sessions"]) if document["sessions"] > 1 else "",
    }
    title = f"<b>{escape(document['pipeline'])}</b> run <code>{escape(document['id'])}</code> {_status(document)}"
    error = f'<pre style="{_PRE}">{escape(document["error"])}</pre>' if document["error"] else ""
    return _page(title, facts, error, _step_table(steps, "step"))


def step(document: Mapping[str, Any]) -> str:
    """A step with its attempts, outputs and elements, from `Step.as_dict`."""
    count = document["count"]
    facts = {
        "started": _time(document["started"]),
        "took": _took(document["seconds"]),
        "used": _used(document["usage"]),
        "elements": "" if count is None else f"{count:,}",
        "cached from": document["cached_from"],
        "why": _why(document),
    }
    attempts = [
        (
            str(one["number"]),
            _status(one),
            escape(one["backend"]),
            _took(one["seconds"]),
            _used(one["usage"]),
            _failure(one),
        )
        for one in document["attempts"]
    ]
    outputs = [_output_cells(one) for one in document["outputs"].values()]
    return _page(
        f"step <b>{escape(document['key'])}</b> {_status(document)}",
        facts,
        _table(("attempt", "status", "on", "took", "used", ""), attempts),
        *(receipt(one["receipt"]) for one in document["attempts"][-1:] if one["receipt"] is not None),
        _table(("output", "type", "size", "digest"), outputs),
        _step_table(document.get("elements", ()), "element"),
    )


def attempt(document: Mapping[str, Any]) -> str:
    """One try at a step with its receipt, from `Attempt.as_dict`."""
    facts = {
        "started": _time(document["started"]),
        "took": _took(document["seconds"]),
        "on": document["backend"],
        "used": _used(document["usage"]),
    }
    accelerators = "" if document["receipt"] is None else receipt(document["receipt"])
    return _page(f"attempt <b>{document['number']}</b> {_status(document)}", facts, _failure(document), accelerators)


def receipt(document: Mapping[str, Any]) -> str:
    """What an attempt did with its accelerators, from the receipt's JSON: verdict, evidence, devices, advice."""
    parsed = from_json(Receipt, document, strict=False)
    rows = [
        (
            escape(words.device_name(use)),
            escape(words.model_text(use)),
            words.percent_text(use.utilization_mean),
            words.percent_text(use.utilization_peak),
            words.memory_of_text(use.memory_peak, use.memory),
            words.power_text(use.power_mean),
            words.energy_text(use.energy),
            words.text_or_empty(use.first_use, time_text),
            words.text_or_empty(use.longest_idle, time_text),
        )
        for use in parsed.devices
    ]
    headers = ("", "model", "utilisation", "peak", "memory", "power", "energy", "first use", "longest idle")
    columns = [index for index in range(len(headers)) if not rows or any(row[index] for row in rows)]
    colour = _VERDICTS.get(parsed.verdict, _OTHER_COLOUR)
    verdict = f'<span style="color:{colour};font-weight:600">{escape(parsed.verdict)}</span>'
    facts = {
        "asked for": parsed.asked,
        "predicted": parsed.prediction,
        "found": parsed.found or "",
        "no devices": parsed.fallback,
        "stopped": parsed.stopped or parsed.left_idle,
    }
    sentences = "".join(f"<div>{escape(text)}</div>" for text in (*parsed.evidence, *parsed.advice))
    table = _table([headers[index] for index in columns], [[row[index] for index in columns] for row in rows])
    return _page(f"accelerators {verdict}", facts, sentences, table)


def output(document: Mapping[str, Any], preview: Preview) -> str:
    """An output, from `Output.as_dict`, and what it looks like."""
    table = _table(("output", "type", "size", "digest"), [_output_cells(document)])
    parts = [escape(preview.words)]
    if preview.picture is not None:
        data = base64.b64encode(preview.picture.data).decode("ascii")
        alt = escape(f"{document['name']} of {document['step']}")
        parts.append(f'<img src="data:{preview.picture.media};base64,{data}" alt="{alt}" style="max-width:100%">')
    if preview.text:
        parts.append(f'<pre style="{_TEXT}">{escape(preview.text)}</pre>')
    parts.append(_table([escape(name) for name in preview.headers], [list(map(escape, row)) for row in preview.rows]))
    parts.append(f"<i>… {escape(preview.more)}</i>" if preview.more else "")
    shown = [f"<div>{part}</div>" for part in parts if part]
    return _page(f"output of step <b>{escape(document['step'])}</b>", {}, table, *shown)


def _page(title: str, facts: Mapping[str, str], *parts: str) -> str:
    rows = [(f"<i>{name}</i>", escape(value)) for name, value in facts.items() if value]
    return f"<div><div>{title}</div>{_table((), rows)}{''.join(parts)}</div>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are HTML already. Without rows it is empty."""
    if not rows:
        return ""
    top = "".join(f'<th style="{_CELL}">{name}</th>' for name in head)
    body = "".join("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows)
    return f'<table style="{_TABLE}">{f"<thead><tr>{top}</tr></thead>" if head else ""}<tbody>{body}</tbody></table>'


def _step_table(steps: Sequence[Mapping[str, Any]], noun: str) -> str:
    listed = _rows_to_show(steps)
    rows = [
        (
            escape(one["key"]) + ("" if one["count"] is None else f" × {one['count']:,}"),
            _status(one),
            _took(one["seconds"]),
            attempts_text(one["attempt_count"], of_elements=one["count"] is not None),
            escape(_used(one["usage"])),
            escape(_why(one)),
        )
        for one in listed
    ]
    hidden = len(steps) - len(listed)
    more = f"<div><i>… and {count_text(hidden, 'more ' + noun)}</i></div>" if hidden else ""
    return _table((noun, "status", "took", "attempts", "used", ""), rows) + more


def _rows_to_show(steps: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The steps that fit into a table, in their order: those that failed, then the first of the others."""
    if len(steps) <= ROWS:
        return steps
    failed_first = sorted(range(len(steps)), key=lambda index: (steps[index]["status"] != "failed", index))
    return [steps[index] for index in sorted(failed_first[:ROWS])]


def _output_cells(document: Mapping[str, Any]) -> Sequence[str]:
    kind = document["type"]
    if document["shape"] is not None:
        kind = f"{kind} {'×'.join(map(str, document['shape']))} {document['dtype'] or ''}"
    digest = f'<code title="{escape(document["digest"])}">{escape(document["digest"][:12])}</code>'
    return escape(document["name"]), escape(kind), memory_text(document["size"]), digest


def _status(document: Mapping[str, Any]) -> str:
    status = document["status"]
    return f'<span style="color:{_COLOURS.get(status, _OTHER_COLOUR)};font-weight:600">{escape(status)}</span>'


def _failure(attempt: Mapping[str, Any]) -> str:
    failure = attempt["failure"]
    if failure is None:
        return ""
    summary = escape(f"{failure['cause']}: {failure['message']}".rstrip(": "))
    if not failure["traceback"]:
        return summary
    return f'<details><summary>{summary}</summary><pre style="{_PRE}">{escape(failure["traceback"])}</pre></details>'


def _why(document: Mapping[str, Any]) -> str:
    return f"{document['cause']}: {document['message']}".strip(": ")


def _time(text: str | None) -> str:
    return "" if text is None else text[:19].replace("T", " ")


def _took(seconds: float | None) -> str:
    return "" if seconds is None else time_text(seconds)


def _used(usage: Mapping[str, Any]) -> str:
    return str(usage_of_document(usage))
