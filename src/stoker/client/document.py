"""A run as a document, and the statuses that people are shown: those of rows, and of the jobs that have none yet."""

from __future__ import annotations

from collections import Counter
from typing import Any, Collection, Mapping, Sequence

from stoker.client.placements import Placement
from stoker.client.runs import Run
from stoker.client.steps import Step
from stoker.core.words import EXPECTED_START

Placements = Mapping[str, Sequence[Placement]]


def run_document(run: Run, *, elements: bool) -> dict[str, Any]:
    """The run as JSON, with the attempts and outputs of its steps."""
    document = {
        **run.as_dict(steps=False),
        "cause": run.cause,
        "queue_seconds": run.queue_seconds,
        "active_seconds": run.active_seconds,
    }
    placements = run.placements
    running = running_keys(run, placements)
    document["left_out"] = [one.as_dict() for one in run.left_out]
    document["steps"] = []
    for step in run.steps.values():
        entry = step.as_dict(elements=elements)
        if step.count is not None:
            entry["counts"] = dict(element_counts(step, running))
            entry["waits"] = dict(wait_reasons(step, placements))
            entry["status"] = fanout_status(step, entry["counts"])
        if elements:
            for element, shown in zip(step if step.count is not None else (), entry.get("elements", ())):
                jobs = placements.get(element.key, ())
                shown["placement"] = jobs[-1].as_dict() if jobs else None
                shown["status"] = step_status(element, running)
        document["steps"].append(entry)
    return document


def running_keys(run: Run, placements: Placements) -> Collection[str]:
    """Steps and elements that run: by their jobs, and of elements on the driver's machine by what the driver says."""
    jobs = {key for key, found in placements.items() if found[-1].started is not None and found[-1].ended is None}
    return jobs | run.active.keys()


def step_status(step: Step, running: Collection[str]) -> str:
    """A step's status; of an element, which has no row until it ends, by `running_keys`."""
    if step.count and step.status == "running":  # only then do its elements have a say
        return fanout_status(step, element_counts(step, running))
    return "running" if step.key in running and step.status == "pending" else step.status


def element_counts(step: Step, running: Collection[str]) -> Counter[str]:
    """How many elements of a fan-out have which status, counted by the database: there may be a hundred thousand."""
    counts = Counter(step.ended_by_status)
    rest = (step.count or 0) - counts.total()
    number = step.unended_count([key for key in running if key.startswith(f"{step.key}[")]) if rest else 0
    counts.update({"running": number, "pending": rest - number})
    return +counts


def fanout_status(step: Step, counts: Mapping[str, int]) -> str:
    """A fan-out's status: that of its row, but "pending" while elements wait and none has begun or ended."""
    waits = step.status == "running" and set(counts) == {"pending"}
    return "pending" if waits else step.status


def wait_reasons(step: Step, placements: Placements) -> Counter[str]:
    """Why elements of a fan-out wait in a platform's queue, with the number of each reason."""
    last = [found[-1] for key, found in placements.items() if key.startswith(f"{step.key}[")]
    waiting = [one.waits[-1][1] for one in last if one.waits and one.started is None and one.ended is None]
    return Counter(reason.partition(EXPECTED_START)[0] for reason in waiting)
