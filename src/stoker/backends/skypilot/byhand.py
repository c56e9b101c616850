"""The script by which a person runs a rendered job by hand: the order that the program takes, and the task."""

from __future__ import annotations

import shlex
from typing import Any, Iterator, Mapping

from stoker.backends.base.byhand import document_lines, input_lines, needs, needs_command, stop, subshell
from stoker.backends.skypilot.requests import MAILBOX
from stoker.core.codec import to_json
from stoker.core.orders import JOB, MailOrder, order_folder, order_note
from stoker.core.plan import Job

TASK = "task.json"


def script(job: Job, request: Mapping[str, Any], *, sky: str) -> str:
    """The script: it leaves the order, and then another one by which the program ends."""
    return subshell(_lines(job, request, sky))


def _lines(job: Job, request: Mapping[str, Any], sky: str) -> Iterator[str]:
    if "refused" in request:
        yield stop(f"refused: {request['refused']}")
        return
    yield from input_lines(job.key, request["order"]["job"]["inputs"])
    root = request["task"]["envs"][MAILBOX]
    if "://" in root:
        yield stop(
            f"missing: {root}/0/{order_note(0)}, and {JOB} beside it, in the artifact store: a run puts them there"
        )
    else:
        yield needs(request["worker"], "Stoker's worker, which the first run puts there")
        for node in range(request["task"]["num_nodes"]):
            folder = f"{root}/{node}/{order_folder(0)}"
            yield f"mkdir -p {shlex.quote(folder)} {shlex.quote(f'{root}/{node}/{order_folder(1)}')}"
            yield from document_lines(shlex.quote(f"{folder}/{JOB}"), {**request["order"], "package": ""})
            yield from document_lines(shlex.quote(f"{root}/{node}/{order_note(1)}"), to_json(MailOrder(leave=0)))
            yield from document_lines(shlex.quote(f"{root}/{node}/{order_note(0)}"), to_json(MailOrder()))
    yield from document_lines(TASK, request["task"])
    yield needs_command(sky, "pip install skypilot, in an environment of its own")
    words = [sky if word == "sky" else TASK if word == "TASK" else word for word in request["command"]]
    yield shlex.join([word for word in words if word != "--detach-run"])
