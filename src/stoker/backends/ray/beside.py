"""How commands run beside a step on Ray: each as a short Ray job on the node of the step's task.

    python -m stoker.backends.ray.beside SETTINGS ADDRESS -- COMMAND …

SETTINGS are those by which the dashboard is reached, as JSON, and ADDRESS is the node's, which Ray itself tells. The
Jobs API has no channel for standard input and no terminal, so that there are no shells and no ports: a job starts a
command, and its output, both streams as one, is read from its log. The exit code is the command's, or `FAILED`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from types import FrameType
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.base.backend import Beside, RunningAttempt, no_way
from stoker.backends.ray.jobs import ASKED, OVER, Jobs
from stoker.backends.ray.settings import RaySettings
from stoker.core.codec import parse_object
from stoker.core.errors import Away, BackendError, StokerError

FAILED: Final = 125
"""The exit code where the command was not run, or nothing is known of its end: as `docker exec` has it."""
METADATA: Final = "stoker.beside"
"""The key of such a job's metadata."""
PAUSES: Final = (0.1, 0.2, 0.3, 0.5, 1.0)
"""Seconds between two looks, longer while nothing is written."""
ENDS: Final = 10.0
"""Seconds for a job to end: Ray kills 3 seconds after it has asked."""
PATIENCE: Final = 60.0
"""Seconds for which the dashboard may not answer while a command runs."""
_BEGIN: Final = "stoker-begin-"
_END: Final = "stoker-end-"


def request(id: str, address: str, command: Sequence[str], token: str) -> dict[str, Any]:
    """The body of the request that starts a job on the node with an address, next to what runs there.

    Ray writes the command line into the log, so that marks are put together there.
    """
    entrypoint = (
        f"printf '%s%s\\n' {_BEGIN} {token}; {shlex.join(command)} </dev/null; "
        f"printf '\\n%s%s %s\\n' {_END} {token} \"$?\""
    )
    return {
        "entrypoint": entrypoint,
        "entrypoint_num_cpus": 0,
        # Every node has one unit of its own address.
        "entrypoint_resources": {f"node:{address}": 0.001},
        "submission_id": id,
        "metadata": {METADATA: token},
    }


class JobOutput:
    """What a command has written by now, without the marks and what Ray writes."""

    def __init__(self, id: str, entrypoint: str, token: str) -> None:
        self._begin, self._end = f"{_BEGIN}{token}\n", f"\n{_END}{token} "
        # Ray's line about the job may come behind the first lines of the command: it is flushed after the start.
        # https://github.com/ray-project/ray/blob/master/python/ray/dashboard/modules/job/job_supervisor.py
        self._ray_begin = f"Running entrypoint for job {id}: "
        self._ray_line = f"{self._ray_begin}{entrypoint}\n"
        self._printed = 0
        self.code: int | None = None
        """The command's exit code, once it is over."""

    def news(self, log: str) -> str:
        """What is new in a log since the last call."""
        before, there, after = log.partition(self._ray_line)
        log = before + after if there else log.partition(self._ray_begin)[0]  # the line is being written
        _, begun, text = log.partition(self._begin)
        if not begun:
            return ""
        text, over, rest = text.partition(self._end)
        if over and "\n" in rest:
            self.code = int(rest.partition("\n")[0])
        elif not over:
            text = text.rpartition("\n")[0]  # what follows may be the begin of the mark
        news = text[self._printed :]
        self._printed += len(news)
        return news


def follow(jobs: Jobs, id: str, output: JobOutput) -> int:
    """Print what a job's command writes until it is over; its exit code."""
    calm, heard = 0, time.monotonic()
    while True:
        try:
            job = jobs.job(id) or {}
            over = job.get("status") in OVER  # seen before the log is read: nothing comes behind it then
            news = output.news(jobs.log(id))
            heard = time.monotonic()
        except Away:
            if time.monotonic() > heard + PATIENCE:
                raise
            time.sleep(PAUSES[-1])
            continue
        sys.stdout.write(news)
        sys.stdout.flush()
        if output.code is not None:
            return output.code
        if over:
            words = " ".join(str(job.get("message") or "Ray does not say why").split())
            sys.stderr.write(f"the Ray job {id} ended before its command did: {words}\n")
            return FAILED
        calm = 0 if news else min(calm + 1, len(PAUSES) - 1)
        time.sleep(PAUSES[calm])


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit code."""
    settings, address, _, *command = arguments
    token = os.urandom(8).hex()
    id = f"stoker-beside-{token}"

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    try:
        with contextlib.closing(Jobs(RaySettings(**parse_object(settings)), os.environ)) as jobs:
            body = request(id, address, command, token)
            output = JobOutput(id, body["entrypoint"], token)
            jobs.submit(body)
            try:
                return follow(jobs, id, output)
            finally:
                jobs.close()  # a signal may have come in the middle of a request
                with contextlib.suppress(StokerError):  # what is left of it is a line of the dashboard's
                    _remove(jobs, id, ends=output.code is not None)
    except StokerError as error:
        sys.stderr.write(f"{'; '.join(filter(None, (' '.join(error.message.split()), error.fix)))}\n")
        return FAILED
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _remove(jobs: Jobs, id: str, *, ends: bool) -> None:
    """Delete a job, which must be over for that: it is stopped unless it `ends` by itself."""
    if not ends:
        jobs.stop(id)
    until = time.monotonic() + ENDS
    while (job := jobs.job(id)) is not None and time.monotonic() < until:
        if job["status"] in OVER:
            jobs.delete(id)
            return
        time.sleep(PAUSES[0])


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
            argv=(sys.executable, "-m", __name__, access, address, "--"),
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
