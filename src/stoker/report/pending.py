"""Why the steps of a run that goes on have not begun, in the words of the live view, from what is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

from stoker.plan import plandoc
from stoker.report.live import row_text
from stoker.report.progress import planned_row

if TYPE_CHECKING:
    from stoker.client import Run
    from stoker.client.document import Placements


def pending_texts(run: Run, placements: Placements) -> Mapping[str, str]:
    """Step → what it waits for: other steps, or a place or accelerators that they have. Steps of which their platform
    says why they wait have their own message; those of a run that is over wait for nothing."""
    steps = run.steps
    pending = [key for key, step in steps.items() if step.status == "pending" and not step.message]
    text = run.store.records.plan(run.id) if pending and run.status == "running" else ""
    if not text:
        return {}
    rows = {planned.key: planned_row(planned) for planned in plandoc.load(text).steps if planned.key in steps}
    for key, row in rows.items():
        row.status = steps[key].status
        if row.status == "running":
            row.running[key] = 0.0
            if row.wants:
                row.devices[key] = ()
        elif key in placements and placements[key][-1].ended is None:
            row.waits[key] = "sent"
    return {key: words for key in pending if key in rows and (words := row_text(rows[key], rows, 0.0))}
