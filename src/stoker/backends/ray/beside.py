"""How commands run beside a step on Ray: each as a short Ray job on the node of the step's task (`besidejob`).

Ray itself tells which nodes those are. Its Jobs API has no channel for what is typed, so that there are no shells and
no ports.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.beside import Beside, RunningAttempt, no_way
from stoker.backends.ray import besidejob
from stoker.backends.ray.jobs import Jobs
from stoker.backends.ray.platform import ASKED
from stoker.backends.ray.settings import RaySettings
from stoker.core.errors import Away, BackendError

LATE: Final = 10.0
"""Seconds after which Ray knows a task that has begun: its workers report once a second."""
AGAIN: Final = 0.5
"""Seconds between two questions."""
_ACCESS: Final = ("address", "token", "verify")
"""The settings by which a dashboard is reached, without headers."""
_HEADER: Final = "STOKER_RAY_HEADER_"
"""The variable with the value of a header, which others could read on a command line."""
_ONLY_PRINTS: Final = "Ray's Jobs API starts a command and keeps its output, and has no channel for what is typed"


def places(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The nodes of the attempt's tasks; a `UsageError` where Ray does not tell them.

    Raises `Away` where the dashboard does not answer.
    """
    settings = RaySettings(**options)
    jobs = Jobs(settings, os.environ, patience=ASKED)
    try:
        task = f"{attempt.run}/{attempt.key}/{attempt.attempt}"
        until = time.monotonic() + LATE
        while not (ids := jobs.nodes_of(task)) and time.monotonic() < until:
            time.sleep(AGAIN)
        addresses = {str(node["node_id"]): str(node["node_ip"]) for node in jobs.nodes()}
    except Away:
        raise
    except BackendError as error:
        raise no_way(attempt, error.message, fix=error.fix or "see whether `ray status` answers there") from None
    finally:
        jobs.close()
    found = list(dict.fromkeys(addresses[id] for id in ids if id in addresses))
    if not found:
        raise no_way(
            attempt,
            "Ray does not tell on which node its task runs",
            fix="see why it waits with `stoker show`; Ray keeps no tasks with RAY_task_events_report_interval_ms=0",
        )
    access = json.dumps({**{key: options[key] for key in _ACCESS if key in options}, **_headers(settings)})
    for address in found:
        yield Beside(
            where=f"the node {address}",
            argv=(sys.executable, "-m", besidejob.__name__, access, address, "--"),
            environment={**attempt.environment, **attempt.devices},
            only_prints=_ONLY_PRINTS,
        )


def _headers(settings: RaySettings) -> dict[str, Any]:
    """The headers of requests, whose values are variables of this process and of those that it starts."""
    named = {}
    for number, (name, text) in enumerate(settings.get("headers", {}).items()):
        named[name] = text
        if text is not None and not text.startswith("env:"):
            os.environ[f"{_HEADER}{number}"] = text
            named[name] = f"env:{_HEADER}{number}"
    return {"headers": named} if named else {}
