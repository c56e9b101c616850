"""The parts of a page about a step: why it failed, its attempts, results, settings and last lines. Pure.

They take the JSON of the client (`Step.as_dict`, `Attempt.as_dict`, `Failure.as_dict`), so that any page can show them.
"""

from __future__ import annotations

import base64
from collections import Counter
from datetime import datetime
from typing import Any, Final, Mapping, Sequence

from stoker.client.metrics import Usage, usage_of_document
from stoker.core.artifact import Preview
from stoker.core.plan import LogLine
from stoker.core.words import bounded, memory_text, number_text, time_text
from stoker.report import markup
from stoker.report.markup import (
    NOTHING,
    Content,
    Html,
    badge,
    element,
    facts,
    folded,
    joined,
    notice,
    preformatted,
    table,
)
from stoker.report.svg import Drawing, Line, chart, histogram


def preview_part(preview: Preview, *, label: str, pictures: bool = True) -> Html:
    """What is known of a value: words, text, rows, histogram, curves, picture. `label` names it for who cannot see.

    Without `pictures` those are left out, for a page that must stay small.
    """
    parts = []
    if preview.words:
        parts.append(element("p", {"class": "muted"}, preview.words))
    if preview.picture is not None and pictures:
        address = f"data:{preview.picture.media};base64,{base64.b64encode(preview.picture.data).decode('ascii')}"
        parts.append(element("p", None, element("img", {"src": address, "alt": label})))
    if preview.histogram is not None:
        shown = preview.histogram
        words = f"histogram of {label}"
        parts.append(histogram(shown.counts, shown.low, shown.high, label=words))
    if preview.curves:
        lines = [Line(places=one.places, values=one.values, name=one.name) for one in preview.curves]
        drawing = Drawing(words=number_text, axis=number_text, low=None, begin=None, filled=False, breaks=False)
        parts.append(chart(lines, label=label, drawing=drawing))
    if preview.text:
        parts.append(element("pre", {"tabindex": "0"}, preview.text))
    parts.append(table(preview.headers, preview.rows, caption=f"beginning of {label}"))
    if preview.more:
        parts.append(element("p", {"class": "muted"}, f"… {preview.more}"))
    return joined(parts) if any(parts) else NOTHING


Document = Mapping[str, Any]

TRACEBACK: Final = 8_000
"""Characters of a traceback, of stacks, of evidence."""
LINE: Final = 400
"""Characters of a line of a log."""


def time_words(text: str | None) -> str:
    """A time of a document, to the second, with its zone."""
    return "" if text is None else datetime.fromisoformat(text).isoformat(" ", "seconds")


def took(seconds: float | None) -> str:
    """Seconds in words; empty where they are not known."""
    return "" if seconds is None else time_text(seconds)


def usage_cells(usage: Usage) -> tuple[str, str]:
    """CPU time and the most memory, as cells of a table."""
    return took(usage.cpu), memory_text(usage.peak_memory) if usage.peak_memory else ""


def failure_part(failure: Document, *, unfolded: bool = False) -> Html:
    """Why an attempt failed: cause, message, the rank, what it means, what to do, and the traceback in a fold."""
    rank = failure.get("rank")
    where = [
        f"rank {rank} of {failure.get('world_size')}" if rank is not None else "",
        failure.get("place") or "",
        f"exit code {failure['exit_code']}" if failure.get("exit_code") is not None else "",
    ]
    others = [str(one) for one in failure.get("failed_ranks") or () if one != rank]
    if others:
        where.append(f"also rank {', '.join(others[:8])}" + (" …" if len(others) > 8 else ""))
    kind = failure.get("type") or ""
    message = failure.get("message") or ""
    parts: list[Content] = [
        element("p", None, element("strong", None, failure["cause"]), ": " if message else "", bounded(message, 2_000))
    ]
    location = ", ".join(filter(None, where))
    if location:
        parts.append(element("p", {"class": "muted"}, location))
    if failure.get("why"):
        parts.append(element("p", None, failure["why"]))
    if failure.get("advice"):
        parts.append(element("p", None, element("strong", None, "What to do: "), failure["advice"]))
    if failure.get("earlier"):
        parts.append(element("p", None, "Before: ", bounded(failure["earlier"], 2_000)))
    if failure.get("retryable") in _RETRY:
        parts.append(element("p", {"class": "muted"}, _RETRY[failure["retryable"]]))
    if failure.get("evidence"):
        parts.append(folded("What shows it", preformatted(bounded(failure["evidence"], TRACEBACK))))
    if failure.get("traceback"):
        title = f"Traceback of {kind}" if kind else "Traceback"
        parts.append(folded(title, preformatted(bounded(failure["traceback"], TRACEBACK)), unfolded=unfolded))
    stacks = failure.get("stacks") or {}
    for number, text in [*stacks.items()][:8]:
        parts.append(folded(f"Where rank {number} stood", preformatted(bounded(text, TRACEBACK // 2))))
    return notice("bad", *parts)


_RETRY: Final[Mapping[str, str]] = {
    "elsewhere": "The same job may succeed in another place.",
    "never": "The same job fails again until something is changed.",
}


def step_facts(step: Document) -> Html:
    """The step's own facts: status, times, what it used, where its result is from."""
    usage = step.get("usage") or {}
    origin = step.get("cached_from") or ""
    count = step.get("count")
    elements: Content = ""
    if count is not None:
        counts = Counter(one["status"] for one in step.get("elements") or ())
        words = ", ".join(f"{number:,} {status}" for status, number in counts.items())
        elements = f"{count:,}" + (f": {words}" if words else "")
    return facts(
        {
            "status": badge(step["status"]),
            "started": time_words(step.get("started")),
            "took": took(step.get("seconds")),
            "used": str(usage_of_document(usage)),
            "elements": elements,
            "cached from": origin,
            "unreadable": step.get("damage") or "",
        }
    )


def attempt_table(step: Document) -> Html:
    """A row for each attempt, with what was changed for it and why it ended; empty for a step without any."""
    rows = []
    for attempt in step.get("attempts") or ():
        failure = attempt.get("failure")
        changes = "; ".join(f"{one['what']}: {one['old']} → {one['new']}" for one in attempt.get("changes") or ())
        placement = attempt.get("placement") or {}
        place = ", ".join(filter(None, (placement.get("job"), placement.get("node"), placement.get("partition"))))
        queue = placement.get("queue_seconds")
        rows.append(
            (
                str(attempt["number"]),
                badge(attempt["status"]),
                attempt.get("backend") or "",
                place,
                took(queue) if queue else "",
                time_words(attempt.get("started")),
                took(attempt.get("seconds")),
                *usage_cells(usage_of_document(attempt.get("usage") or {})),
                changes,
                f"{failure['cause']}: {bounded(failure['message'], 300)}".rstrip(": ") if failure else "",
            )
        )
    headers = ("attempt", "status", "on", "job", "waited", "started", "took", "cpu", "peak", "changed", "why it ended")
    return table(headers, rows, right={0, 4, 6, 7, 8}, caption=f"attempts at {step['key']}")


def output_words(output: Document) -> str:
    """The type, shape, size and digest of a result in a line."""
    shape = "" if output.get("shape") is None else "×".join(map(str, output["shape"])) or "scalar"
    parts = (output["type"], shape, output.get("dtype") or "", memory_text(output["size"]), output["digest"][:12])
    return ", ".join(filter(None, parts))


def setting_table(settings: Sequence[tuple[str, str, str]]) -> Html:
    """Settings with their values and where each was given (`plan.plandoc.given_settings`)."""
    rows = [(element("code", None, name), element("code", None, value), origin) for name, value, origin in settings]
    return table(("setting", "value", "given in"), rows, caption="settings")


def log_part(lines: Sequence[LogLine], *, label: str = "log") -> Html:
    """Lines of a log, those of stderr marked; empty without lines."""
    if not lines:
        return NOTHING
    rows = []
    for line in lines:
        rank = NOTHING if line.rank is None else element("span", {"class": "rank"}, f"[{line.rank}] ")
        text = markup.line(line.text, most=LINE)
        # Whom the colour does not help is told by the mark.
        mark = "! " if line.stream == "stderr" else ""
        rows.append(joined([rank, element("span", {"class": "stderr"}, mark, text) if mark else text]))
    pre = element("pre", None, joined(rows, "\n"))
    return element("div", {"class": "log scroll", "tabindex": "0", "role": "region", "aria-label": label}, pre)
